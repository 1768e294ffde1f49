"""What each filter does to a batch of checklists (see ``filters``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedmiss.arrays import Bool
from fedmiss.errors import InputError
from fedmiss.etl.filters import Filters, day_of
from fedmiss.files import read_json

__all__ = ["Step", "steps_of"]

Step = tuple[str, Callable[[dict[str, Any]], Bool]]


def steps_of(
    filters: Filters, column: Callable[[str, str], pl.Series], last_day: int, seen: dict[str, set[str]]
) -> list[Step]:
    """Return the filters that are set, in order: name and a function of a batch of events.

    ``column`` reads a column of the places, observers and protocols of the projection that the batch comes from;
    ``last_day`` is the latest date of all sources (days since 1970). The values met are added to ``seen``,
    for :meth:`Filters.unmatched`.
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
        ("country", filters.countries, ("country_code", "country")),
        ("state", filters.states, ("state_code", "state")),
        ("county", filters.counties, ("county_code", "county")),
        ("Bird Conservation Region", filters.bcrs, ("bcr",)),
        ("locality", filters.localities, ("site",)),
    ):
        if wanted:
            by_place(name, matches(name, wanted, [column("places", c).to_list() for c in columns]))
    if filters.hotspots_only:
        by_place("hotspots only", (column("places", "site_type") == "H").fill_null(False).to_numpy())
    if filters.bbox is not None or filters.polygon is not None:
        lon, lat = (
            column("places", c).cast(float, strict=False).to_numpy() for c in ("longitude", "latitude")
        )
        if filters.bbox is not None:
            west, south, east, north = filters.bbox
            across = (lon >= west) & (lon <= east) if west <= east else (lon >= west) | (lon <= east)
            by_place("bounding box", across & (lat >= south) & (lat <= north))
        if filters.polygon is not None:
            by_place("polygon", _inside(filters.polygon, lon, lat))
    first, last = day_of(filters.first_date, ""), day_of(filters.last_date, "")
    if first is not None or last is not None:
        steps.append(("dates", lambda b: _within(b["date"], first, last)))
    if filters.last_years is not None:
        year = np.datetime64(int(last_day), "D").astype("M8[Y]").astype(int) + 1970 - filters.last_years + 1
        start_day = (date(int(year), 1, 1) - date(1970, 1, 1)).days
        steps.append((f"last {filters.last_years} years", lambda b: b["date"] >= start_day))
    if filters.years:
        wanted_years = np.array(sorted(filters.years))
        steps.append(
            (
                "years",
                lambda b: np.isin(b["date"].astype("M8[D]").astype("M8[Y]").astype(int) + 1970, wanted_years),
            )
        )
    if filters.last_edited != (None, None):
        low_edit, high_edit = (_edit_day(d) for d in filters.last_edited)
        steps.append(("last edited", lambda b: _within(_days_of_edits(b["edited"]), low_edit, high_edit)))
    if filters.season is not None:
        low, high = (int(e[:2]) * 100 + int(e[3:]) for e in filters.season)
        steps.append(("season", lambda b: _in_season(b["date"], low, high)))
    if filters.start != (None, None):
        steps.append(
            ("start time", lambda b: _within(np.where(b["start"] < 0, np.nan, b["start"]), *filters.start))
        )
    if filters.protocols:
        mask = matches("protocol", filters.protocols, [column("protocols", "protocol").to_list()])
        steps.append(("protocol", lambda b: mask[b["protocol"]]))
    if filters.projects:
        joined = column("protocols", "project").to_list()
        parts = [[p.strip() for p in (v or "").split(",")] for v in joined]
        width = max((len(p) for p in parts), default=1)
        among = matches(
            "project", filters.projects, [[p[i] if i < len(p) else "" for p in parts] for i in range(width)]
        )
        steps.append(("project", lambda b: among[b["protocol"]]))
    if filters.complete_only:
        steps.append(("complete lists only", lambda b: b["complete"] == 1))
    if filters.duration != (None, None):
        steps.append(("duration", lambda b: _within(b["duration"], *filters.duration)))
    if filters.distance != (None, None):
        steps.append(("distance", lambda b: _within(b["distance"], *filters.distance)))
    if filters.max_speed is not None:
        top = filters.max_speed
        steps.append(("speed", lambda b: _speed(b) <= top))
    if filters.party != (None, None):
        steps.append(("party size", lambda b: _within(b["n_observers"], *filters.party)))
    if filters.observers:
        keep = matches("observer", filters.observers, [column("observers", "observer").to_list()])
        steps.append(("observer", lambda b: keep[b["observer"]]))
    if filters.without_observers:
        out = matches("observer", filters.without_observers, [column("observers", "observer").to_list()])
        steps.append(("observer left out", lambda b: ~out[b["observer"]]))
    return steps


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
