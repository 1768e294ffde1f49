"""Which checklists to keep: filters with closed ranges, named presets, and what each of them means exactly.

A blank in a filtered column drops the checklist. Distance counts as 0 for the protocol 'Stationary', whatever
stands in the column (Best Practices, both editions); speed is distance over duration, and a duration of 0 has
no speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import Bool
from fedmiss.errors import ConfigError, InputError
from fedmiss.files import read_json

if TYPE_CHECKING:
    import polars as pl

__all__ = ["PRESETS", "Filters", "Step", "preset"]

Range = tuple[float | None, float | None]
Step = tuple[str, Callable[[dict[str, Any]], Bool]]


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters on checklists; every one that is not given lets all pass.

    Parameters
    ----------
    countries, states, counties : codes ('US-WA-033') or names, compared without case
    bbox : west, south, east, north in degrees; west > east crosses the 180th meridian
    polygon : GeoJSON file with Polygon or MultiPolygon geometries (WGS84)
    bcrs : codes of Bird Conservation Regions
    localities : locality ids
    hotspots_only : keep only locality type H
    first_date, last_date : ISO dates, both included
    season : ('11-15', '02-15') month-day window of any year, both included, may wrap over New Year
    protocols : names as in the source
    duration : minutes; distance : km; party : number of observers; start : minutes after midnight
    max_speed : km/h
    complete_only : only checklists on which all species were reported
    observers, without_observers : observer ids to keep, or to leave out
    last_years : keep the last so many calendar years of the data
    years : calendar years to keep
    last_edited : ISO dates between which the checklist was edited last, both included
    projects : codes of eBird projects (atlases, portals); a checklist may be of several
    """

    countries: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    counties: tuple[str, ...] = ()
    bbox: tuple[float, float, float, float] | None = None
    polygon: str | None = None
    bcrs: tuple[str, ...] = ()
    localities: tuple[str, ...] = ()
    hotspots_only: bool = False
    first_date: str | None = None
    last_date: str | None = None
    last_years: int | None = None
    years: tuple[int, ...] = ()
    last_edited: tuple[str | None, str | None] = (None, None)
    season: tuple[str, str] | None = None
    start: Range = (None, None)
    protocols: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    complete_only: bool = False
    duration: Range = (None, None)
    distance: Range = (None, None)
    max_speed: float | None = None
    party: Range = (None, None)
    observers: tuple[str, ...] = ()
    without_observers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("start", "duration", "distance", "party"):
            low, high = getattr(self, name)
            if low is not None and high is not None and low > high:
                raise ConfigError(f"the range of {name} is empty: {low:g} is above {high:g}; swap the two.")
        for name in ("first_date", "last_date"):
            _day(getattr(self, name), name)
        low_edit, high_edit = self.last_edited
        for edge in self.last_edited:
            _day(edge, "last edited")
        if low_edit and high_edit and low_edit > high_edit:
            raise ConfigError(
                f"the range of last edits is empty: {low_edit} is after {high_edit}; swap the two."
            )
        for year in self.years:
            if not 1800 <= year <= 2199:
                raise ConfigError(f"{year} is no year (must be between 1800 and 2199).")
        if self.first_date and self.last_date and self.first_date > self.last_date:
            raise ConfigError(
                f"the first date {self.first_date} is after the last {self.last_date}; swap them."
            )
        if self.season:
            for edge in self.season:
                _day(f"2000-{edge}", "season")
        if self.bbox is not None:
            west, south, east, north = self.bbox
            if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
                raise ConfigError(
                    f"the box {self.bbox} is not west,south,east,north in degrees (longitude -180..180, latitude "
                    "-90..90, south below north); for example -125,45,-117,49."
                )

    def steps(
        self, column: Callable[[str, str], pl.Series], last_day: int, seen: dict[str, set[str]]
    ) -> list[Step]:
        """Return the filters that are set, in order: name and a function of a batch of events.

        ``column`` reads a column of the places, observers and protocols of the projection that the batch comes from;
        ``last_day`` is the latest date of all sources (days since 1970). The values met are added to ``seen``,
        for :meth:`unmatched`.
        """
        steps: list[Step] = []

        def matches(name: str, wanted: tuple[str, ...], columns: list[list[str | None]]) -> Bool:
            low = {w.casefold() for w in wanted}
            mask = np.zeros(len(columns[0]), dtype=np.bool_)
            for column in columns:
                folded = [(v or "").casefold() for v in column]
                mask |= np.fromiter((v in low for v in folded), np.bool_, len(folded))
                seen.setdefault(name, set()).update(folded)
            return mask

        def by_place(name: str, mask: Bool) -> None:
            steps.append((name, lambda b: mask[b["place"]]))

        for name, wanted, columns in (
            ("country", self.countries, ("country_code", "country")),
            ("state", self.states, ("state_code", "state")),
            ("county", self.counties, ("county_code", "county")),
            ("Bird Conservation Region", self.bcrs, ("bcr",)),
            ("locality", self.localities, ("site",)),
        ):
            if wanted:
                by_place(name, matches(name, wanted, [column("places", c).to_list() for c in columns]))
        if self.hotspots_only:
            by_place("hotspots only", (column("places", "site_type") == "H").fill_null(False).to_numpy())
        if self.bbox is not None or self.polygon is not None:
            lon, lat = (
                column("places", c).cast(float, strict=False).to_numpy() for c in ("longitude", "latitude")
            )
            if self.bbox is not None:
                west, south, east, north = self.bbox
                across = (lon >= west) & (lon <= east) if west <= east else (lon >= west) | (lon <= east)
                by_place("bounding box", across & (lat >= south) & (lat <= north))
            if self.polygon is not None:
                by_place("polygon", _inside(self.polygon, lon, lat))
        first, last = _day(self.first_date, ""), _day(self.last_date, "")
        if first is not None or last is not None:
            steps.append(("dates", lambda b: _within(b["date"], first, last)))
        if self.last_years is not None:
            year = np.datetime64(int(last_day), "D").astype("M8[Y]").astype(int) + 1970 - self.last_years + 1
            start_day = (date(int(year), 1, 1) - date(1970, 1, 1)).days
            steps.append((f"last {self.last_years} years", lambda b: b["date"] >= start_day))
        if self.years:
            wanted_years = np.array(sorted(self.years))
            steps.append(
                (
                    "years",
                    lambda b: np.isin(
                        b["date"].astype("M8[D]").astype("M8[Y]").astype(int) + 1970, wanted_years
                    ),
                )
            )
        if self.last_edited != (None, None):
            low_edit, high_edit = (_edit_day(d) for d in self.last_edited)
            steps.append(("last edited", lambda b: _within(_days_of_edits(b["edited"]), low_edit, high_edit)))
        if self.season is not None:
            low, high = (int(e[:2]) * 100 + int(e[3:]) for e in self.season)
            steps.append(("season", lambda b: _in_season(b["date"], low, high)))
        if self.start != (None, None):
            steps.append(
                ("start time", lambda b: _within(np.where(b["start"] < 0, np.nan, b["start"]), *self.start))
            )
        if self.protocols:
            mask = matches("protocol", self.protocols, [column("protocols", "protocol").to_list()])
            steps.append(("protocol", lambda b: mask[b["protocol"]]))
        if self.projects:
            joined = column("protocols", "project").to_list()
            parts = [[p.strip() for p in (v or "").split(",")] for v in joined]
            width = max((len(p) for p in parts), default=1)
            among = matches(
                "project", self.projects, [[p[i] if i < len(p) else "" for p in parts] for i in range(width)]
            )
            steps.append(("project", lambda b: among[b["protocol"]]))
        if self.complete_only:
            steps.append(("complete lists only", lambda b: b["complete"] == 1))
        if self.duration != (None, None):
            steps.append(("duration", lambda b: _within(b["duration"], *self.duration)))
        if self.distance != (None, None):
            steps.append(("distance", lambda b: _within(b["distance"], *self.distance)))
        if self.max_speed is not None:
            top = self.max_speed
            steps.append(("speed", lambda b: _speed(b) <= top))
        if self.party != (None, None):
            steps.append(("party size", lambda b: _within(b["n_observers"], *self.party)))
        if self.observers:
            keep = matches("observer", self.observers, [column("observers", "observer").to_list()])
            steps.append(("observer", lambda b: keep[b["observer"]]))
        if self.without_observers:
            out = matches("observer", self.without_observers, [column("observers", "observer").to_list()])
            steps.append(("observer left out", lambda b: ~out[b["observer"]]))
        return steps

    def unmatched(self, seen: dict[str, set[str]]) -> list[str]:
        """Return a sentence for each value of a filter that no row of any source has."""
        out = []
        for name, wanted in (
            ("country", self.countries),
            ("state", self.states),
            ("county", self.counties),
            ("Bird Conservation Region", self.bcrs),
            ("locality", self.localities),
            ("protocol", self.protocols),
            ("project", self.projects),
            ("observer", (*self.observers, *self.without_observers)),
        ):
            known = seen.get(name, set())
            for value in wanted:
                if value.casefold() not in known:
                    near = get_close_matches(value.casefold(), sorted(known - {""}), n=3, cutoff=0.6)
                    hint = f"; near names: {', '.join(near)}" if near else ""
                    out.append(f"the filter {name} names {value!r}, which is nowhere in the files{hint}.")
        return out


def _day(text: str | None, what: str) -> int | None:
    if text is None:
        return None
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        shown = text[5:] if what == "season" else text
        raise ConfigError(
            f"{shown!r} is not a date ({what}); write it as 2024-05-31 (season: 05-31)."
        ) from None


def _edit_day(text: str | None) -> float | None:
    return None if text is None else float(text.replace("-", "")) - 1900_00_00


def _days_of_edits(stamps: Any) -> Any:
    """Read the days of stamps (see ``_values.read_stamps``): year after 1900, month and day as digits; blank is nan."""
    return np.where(stamps > 0, (stamps // 10**12).astype(np.float64), np.nan)


def _within(values: Any, low: float | None, high: float | None) -> Bool:
    mask = ~np.isnan(values)
    if low is not None:
        mask &= values >= low
    if high is not None:
        mask &= values <= high
    return np.asarray(mask, dtype=np.bool_)


def _speed(b: dict[str, Any]) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return b["distance"] / (b["duration"] / 60.0)


def _in_season(days: Any, low: int, high: int) -> Bool:
    d = days.astype("M8[D]")
    month = d.astype("M8[M]")
    code = (month.astype(np.int64) % 12 + 1) * 100 + (d - month).astype(np.int64) + 1
    inside = (code >= low) & (code <= high) if low <= high else (code >= low) | (code <= high)
    return np.asarray(inside, dtype=np.bool_)


def _inside(path: str, lon: Any, lat: Any) -> Bool:
    import shapely
    from shapely.errors import ShapelyError

    raw = read_json(Path(path))
    kind = raw.get("type") if isinstance(raw, dict) else None
    if kind == "FeatureCollection":
        parts = [f.get("geometry") for f in raw.get("features", []) if isinstance(f, dict)]
    elif kind == "Feature":
        parts = [raw.get("geometry")]
    elif kind == "GeometryCollection":
        parts = list(raw.get("geometries", []))
    else:
        parts = [raw]
    if not parts:
        raise InputError(f"{path} holds no polygon; a polygon filter needs GeoJSON Polygon or MultiPolygon.")
    shapes = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in ("Polygon", "MultiPolygon"):
            found = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InputError(
                f"{path} holds a {found}; a polygon filter needs GeoJSON Polygon or MultiPolygon."
            )
        try:
            shapes.append(shapely.from_geojson(json.dumps(part)))
        except ShapelyError as error:
            raise InputError(f"{path} holds a polygon that cannot be read: {error}") from None
    area = shapely.make_valid(shapely.union_all(shapes))
    known = ~(np.isnan(lon) | np.isnan(lat))
    inside = np.zeros(lon.size, dtype=np.bool_)
    inside[known] = shapely.intersects_xy(area, lon[known], lat[known])
    return inside


PRESETS = {
    # Strimas-Mackey et al., Best Practices for Using eBird Data, version 1 (2020), section 2.5
    "best-practices-v1": Filters(
        protocols=("Stationary", "Traveling"),
        complete_only=True,
        duration=(None, 300.0),
        distance=(None, 5.0),
        party=(None, 10.0),
        last_years=10,
    ),
    # the same, version 2 (2023): complete lists are a condition of its zero-filling
    "best-practices-v2": Filters(
        protocols=("Stationary", "Traveling"),
        complete_only=True,
        duration=(None, 360.0),
        distance=(None, 10.0),
        max_speed=100.0,
        party=(None, 10.0),
    ),
}


def preset(name: str, **changes: Any) -> Filters:
    """Return a named set of filters, with some of them changed.

    Raises
    ------
    ConfigError : an unknown name
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}.", preset=name)
    return replace(PRESETS[name], **changes)
