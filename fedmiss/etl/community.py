"""All species of the complete checklists of a records folder at once: counts by site and species, and effort."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from fedmiss.arrays import F64, I32, Bool
from fedmiss.errors import InputError, fold, listed
from fedmiss.etl.cells import MISSING, entry_of, sites_of, without_zeros
from fedmiss.etl.site_table import SiteTable
from fedmiss.files import read_manifest
from fedmiss.tables import read_table

EFFORT = ("duration_minutes", "distance_km", "n_observers")
NEAR = 0.92  # likeness of two names that may be one species


@dataclass(frozen=True, slots=True)
class Lists:
    """The complete checklists of a records folder, and what was found on them.

    Attributes
    ----------
    species, common : (S,) names, by the number of lists that they were found on, the most first
    sites : site_id, site_name, latitude, longitude, region, by site_id
    site : (m,) int32 row of ``sites`` of each list;  effort : (m, 3) minutes, km, observers, NaN where unknown
    month : (m,) int32 calendar month, 1 to 12
    list_, found, count : records: list (k,), species (k,), birds (k,), NaN where present but not counted (X)
    missing : (n, 2) list and species of which neither a detection nor a zero is known (not accepted, escaped, sensitive)
    flow : what was left out: (step, lists or species, note);  warnings : sentences
    """

    species: tuple[str, ...]
    common: tuple[str, ...]
    sites: pl.DataFrame
    site: I32
    effort: F64
    month: I32
    list_: I32
    found: I32
    count: F64
    missing: I32
    flow: tuple[tuple[str, int, str], ...]
    warnings: tuple[str, ...]

    @property
    def J(self) -> int:
        """Number of sites."""
        return self.sites.height

    @property
    def S(self) -> int:
        """Number of species."""
        return len(self.species)

    @property
    def visits(self) -> F64:
        """Lists (J,) of every site."""
        return np.bincount(self.site, minlength=self.J).astype(float)

    def summed(self, weight: F64 | None = None, only: Bool | None = None) -> tuple[F64, F64, F64]:
        """Birds, exposure and lists with a detection, each (J, S), of all lists or ``only`` (m,) some.

        ``weight`` (m,) is what each list counts for, 1 by default. A list on which a species was present but not counted,
        or on which its record is missing, has no part in the birds and the exposure of that species.
        """
        lists_in = np.ones(self.site.size, dtype=bool) if only is None else only
        weights = np.where(lists_in, 1.0 if weight is None else weight, 0.0)
        here = lists_in[self.list_]
        shape, S = (self.J, self.S), self.S
        # Every list of a site is effort for every species, but for lists on which the species' record may not be used.
        exposure: F64 = np.repeat(np.bincount(self.site, weights, self.J)[:, None], S, axis=1)
        counted = ~np.isnan(self.count)
        at = self.site[self.list_].astype(np.int64) * S + self.found
        lost = np.concatenate(
            [at[~counted], self.site[self.missing[:, 0]].astype(np.int64) * S + self.missing[:, 1]]
        )
        lists = np.concatenate([self.list_[~counted], self.missing[:, 0]])
        exposure -= np.bincount(lost, weights[lists], self.J * S).reshape(shape)
        taken = here & counted
        birds = np.bincount(at[taken], self.count[taken], self.J * S).astype(float).reshape(shape)
        seen = np.bincount(at[here], minlength=self.J * S).astype(float).reshape(shape)
        return birds, np.where(exposure > 1e-9, exposure, 0.0), seen

    def totals(self) -> tuple[F64, Bool]:
        """Birds (m,) of all species on each list, and whether all of them were counted."""
        counted = ~np.isnan(self.count)
        birds = np.bincount(self.list_[counted], self.count[counted], self.site.size).astype(float)
        whole = np.ones(self.site.size, dtype=bool)
        whole[self.list_[~counted]] = False
        return birds, whole


def read_lists(
    records: str | Path, *, min_sites: int = 3, counted: bool = False, species: Sequence[str] | None = None
) -> Lists:
    """Read the complete checklists of a records folder, and the species found or ``counted`` at ``min_sites`` sites or more.

    With ``species`` those instead, in this order, whether found or not: the list that organisations have agreed on, also
    where these records write a name in other capitals. What they name as sensitive is left out, or in an agreed list
    unknown on every checklist.

    Raises
    ------
    InputError    a folder of another kind; no complete checklist; fewer than three species, or than five sites
    """
    folder = Path(records)
    manifest = read_manifest(folder, "records", verify=True)
    entries = {entry["species"]: entry for entry in manifest["results"]["species"]}
    lists, flow = _complete(folder)
    at = lists.select(pl.col("row").cast(pl.Int64), list_=pl.int_range(pl.len(), dtype=pl.Int32))
    found = (
        pl.scan_parquet(folder / "records.parquet", glob=False)
        .select(pl.col("checklist_row").cast(pl.Int64).alias("row"), "species", "count", "detected", "reason")
        .join(at.lazy(), on="row", maintain_order="left")
        .collect()
    )
    if species is not None:
        agreed = agreed_names(entries, species)
        if agreed:
            found = found.with_columns(pl.col("species").replace_strict(agreed, default=pl.col("species")))
        entries = {
            agreed.get(name, name): entry | {"species": agreed.get(name, name)}
            for name, entry in entries.items()
        }
    unknown = pl.col("reason").is_in(MISSING).fill_null(False)
    missing, found = found.filter(unknown), found.filter(pl.col("detected") & ~unknown)
    sites = sites_of(lists).sort("site_id")
    site = (
        lists["site_id"]
        .replace_strict(sites["site_id"], range(sites.height), return_dtype=pl.Int32)
        .to_numpy()
    )
    hidden = without_zeros(entries.values())
    warnings = list(manifest["warnings"])
    if species is None:
        names, common = _species(found, site, entries, hidden, sites.height, min_sites, flow, counted=counted)
    else:
        names = tuple(species)
        if withheld := sorted(hidden & set(names)):
            nobody = pl.DataFrame({"species": withheld})
            found, missing = (part.filter(~pl.col("species").is_in(withheld)) for part in (found, missing))
            missing = pl.concat(
                [missing.select("list_", "species"), at.select("list_").join(nobody, how="cross")]
            )
        common = tuple(str(entries[name]["common_name"] or "") if name in entries else "" for name in names)
    number = {name: i for i, name in enumerate(names)}
    keep = pl.col("species").is_in(names)
    found, missing = found.filter(keep), missing.filter(keep)
    code, lost_of = (
        part["species"].replace_strict(number, return_dtype=pl.Int32).to_numpy() for part in (found, missing)
    )
    if species is None:
        _enough(folder, names, sites.height, min_sites, counted=counted)
        warnings += _one_in_two_names(names, found, code)
    effort = lists.select(pl.col(EFFORT).cast(pl.Float64)).to_numpy().astype(float)
    return Lists(
        names, common, sites, site.astype(np.int32), effort, lists["date"].dt.month().to_numpy().astype(np.int32),
        found["list_"].to_numpy().astype(np.int32), code,
        found["count"].cast(pl.Float64).fill_null(float("nan")).to_numpy().astype(float),
        np.column_stack([missing["list_"].to_numpy(), lost_of]).astype(np.int32).reshape(-1, 2), tuple(flow),
        tuple(warnings),
    )  # fmt: skip


def _complete(folder: Path) -> tuple[pl.DataFrame, list[tuple[str, int, str]]]:
    """Return the complete checklists with their rows, and the flow to them."""
    everything = pl.read_parquet(folder / "checklists.parquet", glob=False).with_row_index("row")
    flow: list[tuple[str, int, str]] = [("checklists of the records", everything.height, "")]
    lists = everything.filter("zero_ok")
    if lost := everything.height - lists.height:
        flow.append(("left out: not complete, so that what is missing on them is no zero", -lost, ""))
    if lists.is_empty():
        raise InputError(
            f"{folder} has no complete checklist ({everything.height:,} checklists in all): nobody can say what was absent "
            "on the others. A table of lists says so in a column `complete`; an EBD comes with its sampling file "
            "(`fedmiss ingest EBD --sampling FILE`)."
        )
    return lists, flow


def _species(
    found: pl.DataFrame, site: I32, entries: dict[str, dict[str, object]], hidden: frozenset[str], J: int, min_sites: int,
    flow: list[tuple[str, int, str]], *, counted: bool,
) -> tuple[tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """The species that take part; what leaves the others out is said in the flow."""
    places = (
        found.with_columns(site=pl.Series(site)[found["list_"]])
        .group_by("species")
        .agg(
            n_sites=pl.col("site").n_unique(),
            n_lists=pl.col("list_").n_unique(),
            n_counted=pl.col("site").filter(pl.col("count").is_not_null()).n_unique(),
        )
        .sort(["n_lists", "species"], descending=[True, False])
    )
    flow.append(("species found", places.height, f"at {J:,} sites"))
    for step, keep in (
        ("species without zeros (sensitive)", ~pl.col("species").is_in(list(hidden))),
        (f"species at fewer than {min_sites} sites", pl.col("n_sites") >= min_sites),
        (
            f"species counted at fewer than {min_sites} sites, elsewhere X",
            (pl.col("n_counted") >= min_sites) | ~pl.lit(counted),
        ),
    ):
        lost = places.filter(~keep)["species"].to_list()
        if lost:
            flow.append((f"left out: {step}", -len(lost), listed(lost, 4)))
        places = places.filter(keep)
    names = tuple(places["species"].to_list())
    return names, tuple(str(entries[name]["common_name"] or "") for name in names)


def _enough(folder: Path, names: tuple[str, ...], J: int, min_sites: int, *, counted: bool) -> None:
    if J < 5:
        raise InputError(
            f"{folder} has complete checklists at {J} site{'s' if J != 1 else ''}; what species have in common shows over "
            "sites, from five on. Import a larger area, or smaller sites (`fedmiss ingest --site grid:1km`)."
        )
    if len(names) < 3:
        were, presence = (
            ("counted", "take --model presence, which reads X too, ") if counted else ("found", "")
        )
        raise InputError(
            f"{folder} has {len(names)} species that were {were} at {min_sites} sites or more on complete checklists; other "
            "species can tell something from three on. Import all species (`fedmiss ingest` without --species), "
            f"{presence}or lower --min-sites."
        )


def agreed_names(held: Iterable[str], agreed: Sequence[str]) -> dict[str, str]:
    """Names that records write in other capitals, accents or blanks than an agreed list, with that of the list."""
    there, written = set(held), set(agreed)
    by_key = {fold(name): name for name in agreed if name not in there}
    return {name: by_key[key] for name in sorted(there - written) if (key := fold(name)) in by_key}


def alike(first: str, second: str) -> bool:
    """Whether two names may be those of one species: written alike, or one is the other's subspecies."""
    short, long = sorted((first.casefold(), second.casefold()), key=len)
    if long.startswith(f"{short} "):
        return True
    return difflib.SequenceMatcher(None, first.casefold(), second.casefold()).ratio() >= NEAR


def names_of(records: str | Path, species: Sequence[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Species of a records folder, as the agreed list writes them, and which of them were named as sensitive."""
    found = read_manifest(Path(records), "records")["results"]["species"]
    agreed = agreed_names((str(entry["species"]) for entry in found), species)
    names, hidden = (str(entry["species"]) for entry in found), without_zeros(found)
    return (
        tuple(sorted(agreed.get(name, name) for name in names)),
        frozenset(agreed.get(name, name) for name in hidden),
    )


def _one_in_two_names(names: tuple[str, ...], found: pl.DataFrame, code: I32) -> list[str]:
    """Name pairs of species with names alike that are never on one list: perhaps one species under two names."""
    at = found["list_"].to_numpy()
    return [
        f"{one} and {other} are never on the same list: perhaps one species in two names; if so, name it once."
        for (i, one), (k, other) in combinations(enumerate(names), 2)
        if alike(one, other) and not np.isin(at[code == i], at[code == k]).any()
    ]


def scores_without(community: str | Path, species: str, common: str = "") -> SiteTable:
    """Scores of the sites on the axes of a community as covariates; the species' own counts have no part in them.

    The community may have the ``species`` in another case, or by its ``common`` name.

    Raises
    ------
    InputError    another kind of folder; a community without axes
    ConfigError    a community that has the name as the common one of several species
    """
    folder = Path(community)
    results = read_manifest(folder, "community", verify=True)["results"]
    if not results["rank"]:
        raise InputError(
            f"{folder} has no axes: other species say nothing of the sites that left-out counts would show. Leave "
            "--community out.",
            path=str(folder),
        )
    scores = pl.from_arrow(read_table(folder / "scores.parquet", "community_scores"))
    assert isinstance(scores, pl.DataFrame)
    held = pl.read_parquet(
        folder / "species.parquet", columns=["species", "common_name"], glob=False
    ).to_dicts()
    # Its own name first: several species may have one common name.
    mine = entry_of(held, species) or entry_of(held, common)
    own = scores.filter(pl.col("without") == (mine["species"] if mine else ""))
    if own.is_empty():  # found at too few sites to take part, so that no score knows of it
        own = scores.filter(pl.col("without").is_null())
    wide = own.with_columns(axis=pl.format("axis {} of other species", "axis")).pivot(
        "axis", index="site_id", values="score"
    )
    place = pl.read_parquet(
        folder / "sites.parquet",
        columns=["site_id", "site_name", "latitude", "longitude", "region"],
        glob=False,
    )
    return SiteTable(place.join(wide, on="site_id", maintain_order="left"), tuple(wide.columns[1:]), ())
