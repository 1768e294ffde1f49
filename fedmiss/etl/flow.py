"""What the manifest of records keeps: the flow of the rows, the summary by species, warnings, and terms of use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmiss.errors import listed, several
from fedmiss.etl.checks import AT_ZERO
from fedmiss.etl.projection import Projection
from fedmiss.etl.resolve import RecordCounts
from fedmiss.etl.settings import IngestSettings
from fedmiss.etl.sources import EBIRD_ROLES
from fedmiss.etl.species import SpeciesChoice
from fedmiss.files import FlowRow
from fedmiss.folders import SpeciesRow


def summarise(
    counts: RecordCounts, lists: dict[str, int], settings: IngestSettings, choice: SpeciesChoice
) -> dict[str, Any]:
    """Return the results of the manifest: totals, and records, X, zeros and visits of each species."""
    sensitive = {name.casefold() for name in settings.sensitive}
    species: list[SpeciesRow] = []
    numbers = counts.of_species.T.tolist()
    for name, common, (records, x, explicit_zeros, on_zero_ok) in zip(
        choice.names, choice.common, numbers, strict=True
    ):
        zeros_allowed = not ({name.casefold(), (common or "").casefold()} & sensitive)
        zeros = lists["zero_ok"] - on_zero_ok if zeros_allowed else 0
        species.append(
            {
                "species": name, "common_name": common, "records": records, "x": x,
                "explicit_zeros": explicit_zeros, "zeros": zeros, "visits": records + zeros,
                "zeros_allowed": zeros_allowed,
            }
        )  # fmt: skip
    return {
        "n_checklists": lists["written"],
        "n_zero_ok": lists["zero_ok"],
        "n_records": sum(row["records"] for row in species),
        "orphans": len(counts.orphans),
        "species": species,
    }


_RECORD_STEPS = {  # key of the counts -> step and note
    "above": ("taxa above species", "spuh, slash, hybrid"),
    "other species": ("other species", ""),
    "duplicates": ("duplicates", "same global unique identifier, latest edit kept"),
    "explicit zeros": ("explicit zeros", "reported as 0: not detected"),
    "orphans": ("checklist not in the sampling file", ""),
    "unvetted": ("not accepted or not asked for, or count missing", "hold back zeros only"),
    "escapees": ("exotic codes not asked for", "hold back zeros only"),
    "copies": ("copies on shared lists", "the lowest id that lists the species counts"),
    "rolled up": ("rolled up", "further counts of a species on one visit, as of subspecies, added up"),
}


class _Flow(list[FlowRow]):
    """The rows of one table; a step that changed nothing is left out unless it is always shown."""

    def __init__(self, table: str) -> None:
        self.table = table

    def add(self, step: str, n: int, note: str = "", *, always: bool = False) -> None:
        if n or always:
            self.append({"step": f"{self.table}: {step}", "rows": n, "note": note})


def row_flow(
    projections: list[Projection],
    lists: dict[str, int],
    records: dict[str, int],
    results: dict[str, Any],
    *,
    presence_only: bool,
) -> list[FlowRow]:
    """Return the row flow: each table starts at what was read, and its signed steps add up to what was written."""
    visits = _Flow("visits")
    every: list[SpeciesRow] = results["species"]
    visits.add("records", sum(step["records"] for step in every), always=True)
    zeros = sum(step["zeros"] for step in every)
    visits.add("zeros implied", zeros, "never stored; made in a panel", always=True)
    visits.add("over all species", sum(step["visits"] for step in every), always=True)
    return [
        *_checklist_flow(projections, lists, presence_only=presence_only),
        *_record_flow(projections, records),
        *visits,
    ]


def _checklist_flow(
    projections: list[Projection], lists: dict[str, int], *, presence_only: bool
) -> list[FlowRow]:
    flow = _Flow("checklists")
    for projection in projections:
        if projection.has("events") and not projection.has("records"):
            flow.add("read", projection.meta["rows"], projection.meta["source"], always=True)
            flow.add("malformed", -sum(projection.meta["malformed"].values()), projection.meta["source"])
    if presence_only or not flow:
        flow.add("met in the records", lists["read"] - lists["duplicates"], always=True)
    else:
        flow.add("duplicates", -lists["duplicates"], "same id twice, latest edit kept")
    apart = (
        f"{lists['elsewhere']:,} of them name another locality; that of the lowest id stands"
        if lists["elsewhere"]
        else ""
    )
    flow.add("copies of shared lists", -lists["copies"], apart)
    for key, number in lists.items():
        if key.startswith("filter: "):
            flow.add(key, -number, always=True)
    flow.add("no coordinates", -lists["no coordinates"], "no grid cell can be told")
    flow.add("written", lists["written"], f"{lists['zero_ok']:,} of them may give zeros", always=True)
    return flow


def _record_flow(projections: list[Projection], records: dict[str, int]) -> list[FlowRow]:
    flow = _Flow("records")
    for projection in projections:
        if projection.has("records"):
            flow.add("read", projection.meta["rows"], projection.meta["source"], always=True)
            flow.add("malformed", -sum(projection.meta["malformed"].values()), projection.meta["source"])
            flow.add(
                "of other species",
                -projection.meta.get("other_species", 0),
                "the column of species is a filter",
            )
            flow.add(
                "joined repeats", -projection.meta.get("joined", 0), "several counts of one cell became one"
            )
            flow.add("missing counts", -projection.meta.get("missing", 0), "NA or blank: not a visit")
            flow.add(
                "of visits without birds", -projection.meta.get("without_birds", 0), "a zero of every species"
            )
    for key, (step, note) in _RECORD_STEPS.items():
        flow.add(step, -records[key], note)
    for key, record in records.items():
        if key.startswith("on checklists"):
            flow.add(key, -record)
    flow.add("held back", records["held back"], "seen, but neither a count nor a zero")
    flow.add("written", records["written"], f"{records['X']:,} of them X (not counted)", always=True)
    return flow


def orphan_warning(lists: list[Projection], counts: RecordCounts, folder: Path) -> str:
    """List the checklists that no sampling file has in ``orphans.txt``; return the sentence about them."""
    ids = sorted(counts.orphans)
    text = [f"{lists[0].meta['prefix']}{number}" for number in ids]
    (folder / "orphans.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    some = listed([repr(name) for name in text], 5)
    return (
        f"{several(counts.steps['orphans'], 'record')} on {several(len(text), 'checklist')} that the sampling file does not "
        f"have ({some}; all in orphans.txt): left out, since their effort is unknown. Download both "
        "files together."
    )


def source_warnings(projection: Projection) -> list[str]:
    """Return the sentences about what reading a source has found."""
    meta = projection.meta
    out: list[str] = list(meta.get("said", []))
    name = meta["source"]
    bad = sum(meta["malformed"].values())
    if bad:
        were = "was" if bad == 1 else "were"
        out.append(
            f"{name}: {bad:,} of {meta['rows']:,} rows {were} left out; {'; '.join(meta['examples'])}."
        )
    for column, value in meta["unreadable"].items():
        at = f": {column} "
        first = next(("; " + one.replace(at, ": ", 1) for one in meta["odd"] if at in one), "")
        s, count = ("", "counts") if value == 1 else ("s", "count")
        where, what = f"{name}, {column!r}", f"value{s} could not be read and {count} as blank"
        if column == AT_ZERO:
            where, what = name, f"place{s} at {column} {count} as blank"
        out.append(f"{where}: {value:,} {what}{first}.")
    if n := meta.get("long_rows"):
        have = "has" if n == 1 else "have"
        out.append(f"{name}: {several(n, 'row')} {have} more columns than the header (tabs in comments).")
    if n := meta.get("short_rows"):
        have = "has" if n == 1 else "have"
        out.append(
            f"{name}: {several(n, 'row')} {have} fewer columns than the header; the rest counts as blank."
        )
    if meta.get("unterminated"):
        out.append(f"{name}: the last line has no line end; the file may have been cut short.")
    for column in meta.get("absent_columns", []):
        consequence = {
            "GROUP IDENTIFIER": "copies of shared checklists cannot be told apart from other checklists",
            "GLOBAL UNIQUE IDENTIFIER": "duplicated records cannot be found",
            "CATEGORY": "taxa above species are told by their names only",
        }.get(column)
        if consequence:
            out.append(f"{name}: no column {column}; {consequence}.")
    return out


def why_no_zeros(family: str) -> str:
    """Return the reason why records of this family give no zeros."""
    if family == "gbif":
        return (
            "GBIF occurrences carry no checklist, effort or completeness, so no zeros are made from them: only what "
            "was seen is used."
        )
    return (
        "no sampling file was given, so no zeros are made: checklists without the species stand only in the sampling "
        "file. Name it with --sampling."
    )


SIMULATED_COUNTRY = "Simland"

_EBIRD = (
    "eBird terms of use",
    "eBird Basic Dataset. Version: {version}. Cornell Lab of Ornithology, Ithaca, New York.",
    "eBird data are for non-commercial use and for the purpose for which they were requested; the records may not "
    "be passed on or published in their original format, whole or in part; what is derived from them carries the "
    "same terms.",
)
_TERMS = {  # role of a source -> licence, citation and terms
    "simulated": (
        "CC0",
        "Simulated by fedmiss; no bird was counted.",
        "Made-up data, partly in eBird's format: free to use, not to be mistaken for eBird's own.",
    ),
    **dict.fromkeys(EBIRD_ROLES, _EBIRD),
    "myebird": (
        "the observers' own records",
        "Records downloaded by their observers from eBird (MyEBirdData).",
        "Each observer decides on the use of these records; ask before passing them on.",
    ),
    "gbif": (
        "CC BY 4.0",
        "GBIF occurrence download; for eBird records: Auer T, Barker S, et al. EOD - eBird Observation "
        "Dataset. Cornell Lab of Ornithology. Occurrence dataset accessed via GBIF.org. Give the download's DOI.",
        "Credit the publishers of the records and cite the DOI of the download.",
    ),
    "plain": (
        "not stated",
        "Records of the organisation that ran this import.",
        "Set by the owner of the records.",
    ),
}


def all_simulated(lists: list[Projection]) -> bool:
    """Say whether all checklists were made up by ``fedmiss simulate``, whose country is on no map."""
    countries = [folder.read("places", ["country"])["country"] for folder in lists]
    return any(country.len() for country in countries) and all(
        (country == SIMULATED_COUNTRY).all() for country in countries
    )


def terms_of(role: str, releases: list[str], licences: list[str], citations: list[str]) -> dict[str, str]:
    """Return licence, citation, release and terms for a source role (see ``sources.ROLES``), or for 'simulated'.

    ``citations`` : what the provider asked to be cited, in its own words
    """
    licence, citation, terms = _TERMS.get(role, _TERMS["plain"])
    release = role if role == "simulated" else ", ".join(releases)
    if _TERMS.get(role) is _EBIRD:
        version = (
            ", ".join(f"EBD_rel{release}" for release in releases) or "release not stated in the file name"
        )
        citation = " ".join(citations) or citation.format(version=version)
    if role == "gbif":
        licence = ", ".join(licences) or licence
    return {"licence": licence, "citation": citation, "release": release, "terms": terms}
