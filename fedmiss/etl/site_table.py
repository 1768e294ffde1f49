"""A table of sites: their covariates (numbers and categories), places, regions; visited or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fedmiss.errors import ConfigError, InputError, listed
from fedmiss.etl.checks import AT_ZERO, at_zero, refuse_thousands, site_key
from fedmiss.etl.columns import NAMES, PLACES, familiar
from fedmiss.etl.rows import LINE, decimals, read_texts
from fedmiss.etl.sources import Source, expand
from fedmiss.models.lowrank.structure import LIMIT

_GROUPED = r"^-?\d{1,3}([,.' \x{a0}\x{2019}\x{202f}]\d{3})+([,.]\d+)?$"  # a number with marks of thousands
_ABSENT = ("", "NA", "N/A", "NAN", "NULL", "NONE", "-")
_FIXED = {
    "site_id": (
        "siteid",
        "site",
        "locality",
        "localityid",
        "plot",
        "square",
        "station",
        "id",
        *NAMES["site"],
    ),
    **PLACES,
}
MOST_LEVELS = 20  # values of a category
LARGEST = 1e9  # of a number
MOSTLY = 0.8  # share of numbers above which a text among them is taken for an error
NEAR = 0.5  # degrees between the place in the table and that of the records that are worth a word


@dataclass(frozen=True, slots=True)
class SiteTable:
    """Sites by ``site_id``, with ``site_name``, ``latitude``, ``longitude``, ``region``, and the covariates.

    ``frame`` has the covariates as numbers or texts, null for a gap; ``covariates`` their names; ``said`` what is worth a
    warning.
    """

    frame: pl.DataFrame
    covariates: tuple[str, ...]
    said: tuple[str, ...]

    def long(self, sites: pl.DataFrame) -> pl.DataFrame:
        """Covariates of the panel's sites, one row each (schema ``site_covariates``)."""
        joined = sites.select("site_index", "site_id").join(
            self.frame, on="site_id", how="left", maintain_order="left"
        )
        parts = []
        for name in self.covariates:
            number = joined[name].dtype == pl.Float64
            parts.append(
                joined.select(
                    "site_index",
                    covariate=pl.lit(name),
                    value=pl.col(name) if number else pl.lit(None, pl.Float64),
                    category=pl.lit(None, pl.String) if number else pl.col(name),
                )
            )
        return pl.concat(parts)

    def joined(self, other: SiteTable) -> SiteTable:
        """Join the covariates of another one to this one, and the sites that this one lacks."""
        if both := sorted({*self.covariates} & {*other.covariates}):
            raise InputError(
                f"the table of sites has a column {both[0]!r}, as the scores of a community; rename it."
            )
        more = other.frame.select("site_id", *other.covariates)
        place = [column for column in other.frame.columns if column not in other.covariates]
        lacking = other.frame.filter(~pl.col("site_id").is_in(self.frame["site_id"].to_list())).select(place)
        rows = pl.concat([self.frame, lacking], how="diagonal_relaxed")
        frame = rows.join(more, on="site_id", how="left", maintain_order="left")
        return SiteTable(frame, (*self.covariates, *other.covariates), (*self.said, *other.said))

    def _places(self) -> pl.DataFrame:
        return self.frame.select("site_id", "latitude", "longitude", "region")

    def placed(self, sites: pl.DataFrame) -> pl.DataFrame:
        """The panel's sites with places and regions of the table where the records have none."""
        both = sites.join(self._places(), on="site_id", how="left", suffix="_table", maintain_order="left")
        nowhere = pl.col("latitude").is_null() | pl.col("longitude").is_null()
        place = (
            pl.when(nowhere).then(f"{key}_table").otherwise(key).alias(key)
            for key in ("latitude", "longitude")
        )
        return both.with_columns(*place, pl.coalesce("region", "region_table").alias("region")).select(
            sites.columns
        )

    def beyond(self, sites: pl.DataFrame) -> list[str]:
        """Say which numbers of the table lie beyond what the visited ``sites`` span, as the model sees it."""
        here = self.frame["site_id"].is_in(sites["site_id"].to_list())
        said = []
        for name in self.covariates:
            if self.frame[name].dtype != pl.Float64:
                lost = sorted(
                    set(self.frame[name].drop_nulls()) - set(self.frame.filter(here)[name].drop_nulls())
                )
                if lost:
                    values = listed([repr(value) for value in lost], 4)
                    said.append(
                        f"in the column {name!r}, no visited site has {values}; sites that have it are expected to be like "
                        "the mean."
                    )
                continue
            seen = self.frame.filter(here)[name].drop_nulls()
            if seen.len() < 2:
                continue
            mean, reach = float(seen.mean() or 0.0), LIMIT * float(seen.std(ddof=0) or 0.0)  # type: ignore[arg-type]
            out = int(((self.frame[name] - mean).abs() > reach).sum())
            if out:
                lie, they = ("lies", "it counts") if out == 1 else ("lie", "they count")
                said.append(
                    f"{out:,} of {self.frame.height:,} sites of the table {lie} beyond what visited sites span in {name} "
                    f"({mean - reach:,.4g} to {mean + reach:,.4g}); {they} as the edge of it."
                )
        return said

    def beside(self, sites: pl.DataFrame) -> list[str]:
        """What is to be said of these sites and the panel's; no site in common is an error."""
        ids = set(self.frame["site_id"].to_list())
        own = sites["site_id"].to_list()
        said = []
        if lacking := [site for site in own if site not in ids]:
            spelt = {site_key(site): site for site in sorted(ids.difference(own))}
            if like := next((site for site in lacking if site_key(site) in spelt), None):
                raise InputError(
                    f"the site {like!r} of the panel is written {spelt[site_key(like)]!r} in the table of sites; write it "
                    "in one way in both."
                )
            if len(lacking) == len(own):
                raise InputError(
                    f"the table of sites has no site of the panel: its ids are like {self.frame['site_id'][0]!r}, those of "
                    f"the panel like {own[0]!r}. Write the panel's ids into the column of sites (`fedmiss inspect` shows "
                    "them)."
                )
            said.append(
                f"sites of the panel that the table of sites lacks: {len(lacking):,} of {len(own):,} ({listed(lacking, 3)})"
                ". Covariates of such a site count as the mean of the others."
            )
        both = sites.join(self._places(), on="site_id", suffix="_table").drop_nulls(
            ["latitude", "longitude", "latitude_table", "longitude_table"]
        )
        if both.height:
            lat, lon, lat2, lon2 = (
                both[name].to_numpy()
                for name in ("latitude", "longitude", "latitude_table", "longitude_table")
            )
            straight = np.abs(lat - lat2) + np.abs(lon - lon2)
            # Swapped columns: most sites are far from where the records have them, and near once the two are exchanged.
            crossed = np.abs(lat - lon2) + np.abs(lon - lat2)
            at = int(np.argmax(straight))
            if (straight > NEAR).mean() > 0.5 and (crossed < straight).mean() > 0.5:
                raise InputError(
                    f"the table of sites has {both['site_id'][at]} at latitude {lat2[at]:g}, longitude {lon2[at]:g}, the "
                    f"records at {lat[at]:g}, {lon[at]:g}: latitude and longitude are swapped. Correct the columns' names."
                )
            if straight.max() > NEAR:
                said.append(
                    f"{both['site_id'][at]} is at {lat[at]:.2f}, {lon[at]:.2f} in the records and at {lat2[at]:.2f}, "
                    f"{lon2[at]:.2f} in the table of sites; the records' place is used."
                )
        return said


def read_site_table(path: str | Path) -> SiteTable:
    r"""Read a table of sites: one row a site, a column that names it, any further columns as covariates.

    Columns of latitude, longitude, region and name are known by their usual names. Blank, NA, NaN and - are gaps. A
    column of numbers is a number (a decimal comma too), any other a category.

    Raises
    ------
    InputError    no column of sites, a site twice, coordinates out of range, a text among numbers, too many categories

    Examples
    --------
    >>> from pathlib import Path
    >>> n = Path("sites.csv").write_text("site,elevation,habitat\na,400,forest\nb,,farm\n")
    >>> read_site_table("sites.csv").covariates
    ('elevation', 'habitat')
    """
    try:
        found = expand(path)
    except ConfigError:
        raise ConfigError(
            f"--site-table: {path} has several sheets; save the one of the sites as a file of its own.",
            path=str(path),
        ) from None
    if len(found) != 1:
        raise InputError(f"{path} holds {len(found)} tables; give one table of sites.", path=str(path))
    source = found[0]
    raw = read_texts(source)
    at = familiar(source.header, _FIXED)
    if "site_id" not in at:
        raise InputError(
            f"{source.name} has no column that names the site (its columns: {listed(source.header, 8)}); call it site_id."
        )
    text = {name: raw[name].str.strip_chars() for name in source.header if name}
    line = raw[LINE]
    ids = text[at["site_id"]]
    _check_ids(source, ids, line, at["site_id"])
    blank = pl.Series([None] * ids.len(), dtype=pl.String)
    out: dict[str, pl.Series] = {"site_id": ids}
    for key in ("site_name", "region"):
        out[key] = _gaps(text[at[key]]) if key in at else blank
    for key, limit in (("latitude", 90.0), ("longitude", 180.0)):
        out[key] = (
            _degrees(source, key, at[key], text[at[key]], line, limit) if key in at else blank.cast(float)
        )
    covariates, said = [], []
    if zero := int((unknown := at_zero(out["latitude"], out["longitude"])).sum()):
        lie = "site lies" if zero == 1 else "sites lie"
        said.append(f"{source.name}: {zero:,} {lie} at {AT_ZERO}, which counts as blank.")
        out |= {key: out[key].set(unknown, None) for key in ("latitude", "longitude")}
    for name in text:
        if name in at.values():
            continue
        values = _gaps(text[name])
        if values.null_count() == values.len():
            said.append(f"the column {name!r} of {source.name} is empty; it is left out.")
            continue
        if name in (*out, "site_index"):
            raise InputError(
                f"{source.name}: fedmiss has a column {name!r} of its own; rename this one.", column=name
            )
        # ": " stands between a category and its value, as in _covariate
        covariates.append(own := name.replace(": ", ":"))
        out[own] = _covariate(source, name, text[name], line, values)
    return SiteTable(pl.DataFrame(out), tuple(covariates), tuple(said))


def _gaps(text: pl.Series) -> pl.Series:
    return text.set(text.str.to_uppercase().is_in(_ABSENT), None)


def _check_ids(source: Source, ids: pl.Series, line: pl.Series, column: str) -> None:
    source.refuse(ids == "", line, column, lambda row: "the site has no name.")
    twice = ids.is_duplicated()
    if twice.any():
        first, again = (ids == ids[int(twice.arg_max() or 0)]).arg_true()[:2]
        said = f"{ids[first]!r} stands in line {line[first]} too; give every site one row."
        raise source.fault(line[again], column, said)


def _degrees(
    source: Source, key: str, column: str, text: pl.Series, line: pl.Series, limit: float
) -> pl.Series:
    """Latitude or longitude, null for gaps."""
    number = _number(source, column, text, line)

    def said(row: int) -> str:
        crossed = key == "latitude" and abs(number[row]) <= 180
        swapped = " Are latitude and longitude swapped?" if crossed else ""
        return f"{number[row]:g} is no {key} (-{limit:g} to {limit:g} degrees).{swapped}"

    source.refuse((number.abs() > limit).fill_null(False), line, column, said)
    return number


def _covariate(source: Source, column: str, text: pl.Series, line: pl.Series, levels: pl.Series) -> pl.Series:
    """The column as numbers where most of it are, or else its ``levels``; null for gaps."""
    value, bad = decimals(text, _ABSENT)
    good = int(value.is_not_null().sum())
    most = MOSTLY * (good + int(bad.sum()))
    if good >= most:
        refuse_thousands(source, column, text, line, points=False)
        return _number(source, column, text, line)
    grouped = bad & text.str.contains(_GROUPED)
    if good + int(grouped.sum()) >= most:
        source.refuse(
            grouped,
            line,
            column,
            lambda row: f"{text[row]!r} is no number; write it without marks of thousands.",
        )
    held = levels.drop_nulls().unique()
    if held.len() > MOST_LEVELS:
        raise InputError(
            f"{source.name}, column {column!r}: {held.len()} different texts ({listed(held.sort().to_list(), 3)}); a "
            f"category has at most {MOST_LEVELS}. Join some of them, or leave the column out."
        )
    return levels.str.replace_all(": ", ":", literal=True)


def _number(source: Source, column: str, text: pl.Series, line: pl.Series) -> pl.Series:
    """The column as numbers, null for gaps."""
    value, bad = decimals(text, _ABSENT)
    good = int(value.is_not_null().sum())
    others = f"the other {good:,} values are" if good else "a number is needed"
    source.refuse(
        bad,
        line,
        column,
        lambda row: f"{text[row]!r} is no number, and {others}; correct it, or leave it blank.",
    )
    source.refuse(
        (value.abs() > LARGEST).fill_null(False),
        line,
        column,
        lambda row: f"{value[row]:g} is beyond {LARGEST:g}; give it in a larger unit.",
    )
    return value
