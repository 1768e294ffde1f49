"""What each filter does to a batch of checklists (see ``filters``)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, timedelta
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path

import numpy as np
import polars as pl

from fedmiss.arrays import F64, I32, Bool, Columns
from fedmiss.atomic import read_json
from fedmiss.errors import InputError
from fedmiss.etl.filters import EPOCH, Filters, Words, day_of

Step = tuple[str, Callable[[Columns], Bool]]
Met = dict[tuple[str, Words], set[str]]  # name and words of a filter -> values in the files, in small letters


def steps_of(
    filters: Filters, column: Callable[[str, str], pl.Series], last_day: int, met: Met
) -> list[Step]:
    """Return the filters that are set, in order: name and a function of a batch of events.

    ``column`` reads a column of the places, observers and protocols of the projection that the batch comes from;
    ``last_day`` is the latest date of all sources (days since 1970). The values met are added to ``met``,
    for :func:`unmatched`.
    """

    def words(name: str, wanted: Words, table: str, *columns: str, drop: bool = False) -> list[Step]:
        """Keep (or drop) the events whose code in ``table`` has one of the wanted words in one of the columns."""
        if not wanted:
            return []
        parts = [[v or "" for v in column(table, name).to_list()] for name in columns]
        if columns == ("project",):  # several of them with commas, since 2025 with |
            split = ([piece.strip() for piece in re.split(r"[,|]", v)] for v in parts[0])
            parts = [list(p) for p in zip_longest(*split, fillvalue="")] or [[]]
        low = {word.casefold() for word in wanted}
        # Words are compared once for each code, not once for each checklist.
        mask = np.zeros(len(parts[0]), dtype=np.bool_)
        for part in parts:
            folded = [value.casefold() for value in part]
            mask |= np.fromiter((value in low for value in folded), np.bool_, len(folded))
            met.setdefault((name, wanted), set()).update(folded)
        keep = ~mask if drop else mask
        return [(f"{name} left out" if drop else name, _coded(table, keep))]

    return [
        *words("country", filters.countries, "places", "country_code", "country"),
        *words("state", filters.states, "places", "state_code", "state"),
        *words("county", filters.counties, "places", "county_code", "county"),
        *words("Bird Conservation Region", filters.bcrs, "places", "bcr"),
        *words("locality", filters.localities, "places", "site"),
        *_by_position(filters, column),
        *_by_day(filters, last_day),
        *_between("start time", lambda b: np.where(b["start"] < 0, np.nan, b["start"] / 60), *filters.start),
        *words("protocol", filters.protocols, "protocols", "protocol"),
        *words("project", filters.projects, "protocols", "project"),
        *([("complete lists only", lambda b: b["complete"] == 1)] if filters.complete_only else []),
        *_between("duration", lambda b: b["duration"], *filters.duration),
        *_between("distance", lambda b: b["distance"], *filters.distance),
        *_between("speed", _speed, None, filters.max_speed),
        *_between("party size", lambda b: b["n_observers"], *filters.party),
        *words("observer", filters.observers, "observers", "observer"),
        *words("observer", filters.without_observers, "observers", "observer", drop=True),
    ]


def unmatched(met: Met) -> list[str]:
    """Return a sentence for each word of a filter that no row of any source has."""
    out = []
    for (name, wanted), known in met.items():
        for value in wanted:
            if value.casefold() not in known:
                near = get_close_matches(value.casefold(), sorted(known - {""}), n=3, cutoff=0.6)
                hint = f"; near names: {', '.join(map(repr, near))}" if near else ""
                out.append(f"the filter {name} names {value!r}, which is nowhere in the files{hint}.")
    return out


def _by_position(filters: Filters, column: Callable[[str, str], pl.Series]) -> list[Step]:
    masks: dict[str, Bool] = {}
    if filters.hotspots_only:
        masks["hotspots only"] = (column("places", "site_type") == "H").fill_null(False).to_numpy()
    if filters.bbox is not None or filters.polygon is not None:
        lon, lat = (
            column("places", name).cast(float, strict=False).to_numpy() for name in ("longitude", "latitude")
        )
        if filters.bbox is not None:
            west, south, east, north = filters.bbox
            # A box whose west edge is east of its east edge crosses the date line.
            across = (lon >= west) & (lon <= east) if west <= east else (lon >= west) | (lon <= east)
            masks["bounding box"] = across & (lat >= south) & (lat <= north)
        if filters.polygon is not None:
            masks["polygon"] = _inside(filters.polygon, lon, lat)
    return [(name, _coded("places", mask)) for name, mask in masks.items()]


def _coded(table: str, mask: Bool) -> Callable[[Columns], Bool]:
    """Keep the events whose code in ``table`` is marked; the column of codes has the table's name in the singular."""
    return lambda b: mask[b[table.removesuffix("s")]]


def _by_day(filters: Filters, last_day: int) -> list[Step]:
    first, last = day_of(filters.first_date, ""), day_of(filters.last_date, "")
    steps = _between("dates", lambda b: b["date"], first, last)
    if filters.last_years is not None:
        # Whole calendar years back from the latest date of all
        # sources, not from today: the same file gives the same result.
        year = (EPOCH + timedelta(days=last_day)).year - filters.last_years + 1
        start = (date(year, 1, 1) - EPOCH).days
        steps += _between(f"last {filters.last_years} years", lambda b: b["date"], start, None)
    if filters.years:
        wanted = np.array(sorted(filters.years)) - 1970
        steps.append(
            ("years", lambda b: np.isin(b["date"].astype("M8[D]").astype("M8[Y]").astype(int), wanted))
        )
    # Stamps (see ``_lines.read_stamps``) begin with the year after 1900, month and day as digits; a blank is 0.
    edits = (float(day.replace("-", "")) - 1900_00_00 if day else None for day in filters.last_edited)
    steps += _between(
        "last edited", lambda b: np.where(b["edited"] > 0, b["edited"] // 10**12, np.nan), *edits
    )
    if filters.season is not None:
        low, high = (int(edge[:2]) * 100 + int(edge[3:]) for edge in filters.season)
        steps.append(("season", lambda b: _in_season(b["date"], low, high)))
    return steps


def _between(
    name: str, value: Callable[[Columns], np.ndarray], low: float | None = None, high: float | None = None
) -> list[Step]:
    """Keep the events whose value is known and within both limits; no step where there are none."""

    def step(batch: Columns) -> Bool:
        values = value(batch)
        # An unknown value is within no limit: it drops the checklist.
        mask = ~np.isnan(values)
        if low is not None:
            mask &= values >= low
        if high is not None:
            mask &= values <= high
        return np.asarray(mask, dtype=np.bool_)

    return [] if low is None and high is None else [(name, step)]


def _speed(columns: Columns) -> F64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(columns["distance"] / (columns["duration"] / 60.0))


def _in_season(days: I32, low: int, high: int) -> Bool:
    dates = days.astype("M8[D]")
    month = dates.astype("M8[M]")
    # Month and day as one number, 101 to 1231; a season that begins late in the year goes over its end.
    code = (month.astype(np.int64) % 12 + 1) * 100 + (dates - month).astype(np.int64) + 1
    inside = (code >= low) & (code <= high) if low <= high else (code >= low) | (code <= high)
    return np.asarray(inside, dtype=np.bool_)


def _inside(path: str, lon: F64, lat: F64) -> Bool:
    import shapely  # not loaded where no polygon is given
    from shapely.errors import ShapelyError

    raw = read_json(Path(path))
    kind = raw.get("type") if isinstance(raw, dict) else None
    if kind == "FeatureCollection":
        parts = [feature.get("geometry") for feature in raw.get("features", []) if isinstance(feature, dict)]
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
    # Drawn polygons often cross themselves, of which "inside" is not defined.
    area = shapely.make_valid(shapely.union_all(shapes))
    known = ~(np.isnan(lon) | np.isnan(lat))
    inside = np.zeros(lon.size, dtype=np.bool_)
    inside[known] = shapely.intersects_xy(area, lon[known], lat[known])
    return inside
