"""Sections E and F of the specification: filters with closed ranges, presets, dates, sites."""

import json
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from ebird_files import fields_of, random_rows, seen, visit

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl import _lines, codes
from fedmiss.etl import filters as options
from fedmiss.etl.ebird import read_decimal
from fedmiss.etl.filters import PRESETS, Filters, preset
from fedmiss.etl.sites import EARTH_RADIUS_KM, grid_cells, parse_site_rule


def kept(pair, changes: dict[str, dict[str, str]], filters: Filters, **settings) -> set[str]:
    """Ids of the checklists that pass."""
    rows = [visit(f"S{name}", **fields) for name, fields in changes.items()]
    out = pair([seen(r, "1") for r in rows], rows, filters=filters, **settings)
    return {c.removeprefix("S") for c in out.checklists["checklist_id"]}


@pytest.mark.parametrize(
    ("column", "name", "low", "high"),
    [
        ("DURATION MINUTES", "duration", 5.0, 300.0),
        ("EFFORT DISTANCE KM", "distance", 0.5, 5.0),
        ("NUMBER OBSERVERS", "party", 2.0, 10.0),
    ],
)
def test_ranges_are_closed_and_blanks_fail(pair, column, name, low, high):
    """Line 28."""
    values = {"1": f"{low:g}", "2": f"{high:g}", "3": f"{low - 0.25:g}", "4": f"{high + 1:g}", "5": ""}
    got = kept(pair, {k: {column: v} for k, v in values.items()}, Filters(**{name: (low, high)}))
    assert got == {"1", "2"}


def test_time_range_includes_its_end(pair):
    """Line 28 (t50): 09:00:00 is inside 06:00..09:00 (auk's text comparison drops it), 09:00:01 is after it."""
    times = ["06:00:00", "09:00:00", "09:00:01", "", "05:59:59", "09:00:59", "09:01:00"]
    changes = {str(k): {"TIME OBSERVATIONS STARTED": v} for k, v in enumerate(times, 1)}
    assert kept(pair, changes, Filters(start=options.clock_range("06:00..09:00"))) == {"1", "2"}


@pytest.mark.parametrize("written", ["20200101", "2020-W01-1", "2020-1-1", "2020-02-30"])
def test_a_date_has_one_form(written):
    """Python reads more, which would not sort as dates do."""
    for asked in ({"first_date": written}, {"last_edited": (None, written)}):
        with pytest.raises(ConfigError, match=f"'{written}' is not a date"):
            Filters(**asked)


def test_blank_distance_counts_as_zero_for_stationary_only(pair):
    """Line 28 (t51)."""
    kinds = {"1": "Stationary", "2": "Area", "3": "Traveling", "4": "Stationary (2 band, 25m)"}
    changes = {k: {"OBSERVATION TYPE": v, "EFFORT DISTANCE KM": ""} for k, v in kinds.items()}
    assert kept(pair, changes, Filters(distance=(0.0, 5.0))) == {"1", "4"}


def test_observer_filter_reads_the_sampling_file(pair):
    """Line 28: auk_observer returns nothing there."""
    changes = {"1": {"OBSERVER ID": "obsr1"}, "2": {"OBSERVER ID": "obsr2"}}
    assert kept(pair, changes, Filters(observers=("obsr2",))) == {"2"}
    assert kept(pair, changes, Filters(without_observers=("OBSR2",))) == {"1"}


def test_preset_v1(pair):
    """Line 29: Stationary or Traveling, complete, <= 5 h, <= 5 km, <= 10 observers, last 10 years."""
    d, t, n, c = "DURATION MINUTES", "EFFORT DISTANCE KM", "NUMBER OBSERVERS", "ALL SPECIES REPORTED"
    changes = {
        "1": {d: "300", t: "5", n: "10"},
        "2": {d: "301"},
        "3": {t: "5.01"},
        "4": {n: "11"},
        "5": {c: "0"},
        "6": {"OBSERVATION TYPE": "Incidental"},
        "7": {"OBSERVATION TYPE": "Stationary", t: ""},
        "8": {"OBSERVATION DATE": "2010-12-31"},
        "9": {"OBSERVATION DATE": "2011-01-01"},
        "10": {d: ""},
        "11": {n: ""},
    }
    assert kept(pair, changes, preset("best-practices-v1")) == {"1", "7", "9"}


def test_preset_v2(pair):
    """Line 29: Stationary or Traveling, <= 6 h, <= 10 km, <= 100 km/h, <= 10 observers; blanks drop."""
    d, t = "DURATION MINUTES", "EFFORT DISTANCE KM"
    changes = {
        "1": {d: "360", t: "10"},
        "2": {d: "361"},
        "3": {t: "10.5"},
        "4": {d: "6", t: "10"},  # exactly 100 km/h
        "5": {d: "5", t: "9"},  # 108 km/h
        "6": {d: "0", t: "0"},  # no speed
        "7": {"OBSERVATION TYPE": "Stationary", t: ""},
        "8": {t: ""},
        "9": {"OBSERVATION TYPE": "Historical"},
        "10": {"OBSERVATION DATE": "1990-01-01"},
    }
    assert kept(pair, changes, preset("best-practices-v2")) == {"1", "4", "7", "10"}


def test_presets_can_be_changed_and_are_named():
    assert preset("best-practices-v2", max_speed=50.0) == replace(
        PRESETS["best-practices-v2"], max_speed=50.0
    )
    with pytest.raises(ConfigError, match="best-practices-v1, best-practices-v2"):
        preset("best")


def test_complete_is_not_effort(pair):
    """Line 27: a complete incidental list passes the complete filter."""
    assert kept(pair, {"1": {"OBSERVATION TYPE": "Incidental"}}, Filters(complete_only=True)) == {"1"}


def test_dates_are_closed_and_old_ones_read(pair):
    """Line 32: ISO dates back to 1928, no time zone."""
    dates = {"1": "1928-02-29", "2": "2020-01-01", "3": "2020-12-31", "4": "2021-01-01"}
    changes = {k: {"OBSERVATION DATE": v} for k, v in dates.items()}
    assert kept(pair, changes, Filters(first_date="2020-01-01", last_date="2020-12-31")) == {"2", "3"}
    assert kept(pair, changes, Filters(last_date="1928-02-29")) == {"1"}


def test_every_date_reads_as_python_reads_it():
    days = [
        date.fromordinal(o) for o in range(date(1581, 1, 1).toordinal(), date(2101, 1, 1).toordinal(), 17)
    ]
    odd = ["2023-02-29", "2023-00-10", "2023-13-01", "2023-04-31", "20230401  ", "2023-4-01", ""]
    words = [d.isoformat() for d in days] + odd
    expected = [(d - date(1970, 1, 1)).days for d in days] + [codes.BAD] * 7
    again = np.random.default_rng(1).integers(0, len(words), 3000)  # the same date again, with others between
    again = np.concatenate([np.arange(len(words)), again, np.repeat(again, 2), again % 3 + len(days) - 2])
    words = [words[i] for i in again]
    out = np.empty(len(words), np.int32)
    _lines.read_dates(*fields_of(words), out)
    assert out.tolist() == [expected[i] for i in again]


def test_decimals_read_as_python_reads_them_and_other_texts_are_none():
    for word in ("0", "12", "3.25", ".5", "-1.5", "0.1", "123456.789", "47.6542400", "1000000", "7."):
        assert read_decimal(word) == float(word)
    for word in ("1e3", "a", "-", ".", " 1", "1_0", "\u0663", "nan"):
        assert np.isnan(read_decimal(word)), word


def test_seasons_of_any_year_may_wrap(pair):
    dates = {"1": "2019-11-15", "2": "2020-02-15", "3": "2020-02-16", "4": "2021-12-31", "5": "1960-01-01"}
    changes = {k: {"OBSERVATION DATE": v} for k, v in dates.items()}
    assert kept(pair, changes, Filters(season=("11-15", "02-15"))) == {"1", "2", "4", "5"}
    assert kept(pair, changes, Filters(season=("02-16", "11-15"))) == {"1", "3"}


def test_regions_by_code_or_name(pair):
    changes = {
        "1": {},
        "2": {"STATE": "Oregon", "STATE CODE": "US-OR", "COUNTY": "Lane", "COUNTY CODE": "US-OR-039"},
        "3": {"COUNTRY": "Canada", "COUNTRY CODE": "CA", "STATE CODE": "CA-BC", "STATE": "British Columbia"},
    }
    assert kept(pair, changes, Filters(countries=("canada",))) == {"3"}
    assert kept(pair, changes, Filters(states=("US-WA", "oregon"))) == {"1", "2"}
    assert kept(pair, changes, Filters(counties=("Lane",))) == {"2"}
    rows = [visit("S1")]
    out = pair([seen(rows[0], "1")], rows, filters=Filters(states=("Wahsington",)))
    assert "near names: washington" in out.warnings


def test_bounding_box_and_polygon(pair, tmp_path):
    spots = {
        "1": ("47.0", "-122.0"),
        "2": ("47.5", "-122.5"),
        "3": ("10.0", "179.9"),
        "4": ("10.0", "-179.9"),
    }
    changes = {k: {"LATITUDE": a, "LONGITUDE": b, "LOCALITY ID": f"L{k}"} for k, (a, b) in spots.items()}
    assert kept(pair, changes, Filters(bbox=(-122.25, 46.0, -121.0, 47.0))) == {"1"}
    assert kept(pair, changes, Filters(bbox=(179.0, 0.0, -179.0, 20.0))) == {"3", "4"}
    ring = [[-123, 47.2], [-122.2, 47.2], [-122.2, 48], [-123, 48], [-123, 47.2]]
    path = tmp_path / "area.geojson"
    geometry = {"type": "Polygon", "coordinates": [ring]}
    path.write_text(
        json.dumps({"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": geometry}]})
    )
    assert kept(pair, changes, Filters(polygon=str(path))) == {"2"}
    path.write_text(json.dumps({"type": "FeatureCollection", "features": []}))
    with pytest.raises(InputError, match="holds no polygon"):
        kept(pair, changes, Filters(polygon=str(path)))
    path.write_text(json.dumps({"type": "Point", "coordinates": [0, 0]}))
    with pytest.raises(InputError, match="holds a Point"):
        kept(pair, changes, Filters(polygon=str(path)))


def test_hotspots_and_localities(pair):
    """Line 33: towns and postcodes are no hotspots."""
    kinds = {"1": "H", "2": "P", "3": "T", "4": "PC"}
    changes = {k: {"LOCALITY TYPE": v, "LOCALITY ID": f"L{k}"} for k, v in kinds.items()}
    assert kept(pair, changes, Filters(hotspots_only=True)) == {"1"}
    assert kept(pair, changes, Filters(localities=("L3",))) == {"3"}


@pytest.mark.parametrize(
    ("read", "bad", "words"),
    [
        *((lambda given: Filters(**given), *case) for case in (
            ({"duration": (5.0, 1.0)}, "5 is above 1"), ({"first_date": "2020-13-01"}, "is not a date"),
            ({"first_date": "2021-01-01", "last_date": "2020-01-01"}, "is after the last"),
            ({"season": ("02-30", "03-01")}, "'02-30' is not a date"),
            ({"bbox": (0.0, 50.0, 1.0, 40.0)}, "south below north"),
        )),
        *((lambda t: options.number_range(t, "--duration"), t, "--duration") for t in ("five", "5..x")),
        (options.clock_range, "25:00..26:00", "--time"), (options.season_window, "5-1..6-1", "--season"),
        (options.four_numbers, "1,2,3", "--bbox"), *((options.parse_map, t, "--map") for t in ("observer", "a=b,a=c")),
        *((parse_site_rule, rule, "--site") for rule in ("grid", "grid:0km", "grid:5000km", "hexagon:3km")),
    ],
)  # fmt: skip
def test_what_a_filter_or_a_site_cannot_be_is_refused(read, bad, words):
    with pytest.raises(ConfigError, match=words):
        read(bad)


def test_grid_cells_are_equal_in_area_and_hold_their_points():
    """Line 33: every cell within half a column of size squared; a point lies within its own cell."""
    rng = np.random.default_rng(3)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, 20_000)))
    lon = rng.uniform(-180, 180, 20_000)
    size = 25.0
    row, column, mid_lat, mid_lon = grid_cells(lat, lon, size)
    half = np.degrees(size / EARTH_RADIUS_KM) / 2
    assert np.all(np.abs(lat - mid_lat) <= half * 1.0001)
    n_columns = np.round(360.0 / ((mid_lon + 180.0) / (column + 0.5)))
    assert np.all(np.abs(lon - mid_lon) <= 180.0 / n_columns * 1.0001)
    inner = np.abs(lat) < 80
    south, north = np.radians(mid_lat - half), np.radians(mid_lat + half)
    area = 2 * np.pi * EARTH_RADIUS_KM**2 * (np.sin(north) - np.sin(south)) / n_columns
    assert np.abs(area[inner] / size**2 - 1).max() < 0.5 / n_columns[inner].min() * 1.01
    again = grid_cells(mid_lat, mid_lon, size)
    assert np.array_equal(again[0], row)
    assert np.array_equal(again[1], column)


def test_grid_sites_join_near_localities(pair):
    near = [("47.6600", "-122.3200"), ("47.6601", "-122.3201"), ("48.6", "-122.3"), ("", "")]
    rows = [
        visit(f"S{k}", **{"LATITUDE": a, "LONGITUDE": b, "LOCALITY ID": f"L{k}"})
        for k, (a, b) in enumerate(near, 1)
    ]
    out = pair([seen(r, "1") for r in rows], rows, site="grid:3km")
    sites = dict(out.checklists.select("checklist_id", "site_id").iter_rows())
    assert sites["S1"] == sites["S2"] != sites["S3"]
    assert "S4" not in sites
    assert out.flow("checklists: no coordinates") == -1
    assert out.checklists["site_name"].null_count() == 3


def test_effort_travels_with_units(pair):
    row = visit("S1", **{"TIME OBSERVATIONS STARTED": "23:59:30", "BREEDING CODE": "S "})
    got = pair([seen(row, "1")], [row]).checklists.row(0, named=True)
    effort = ("start_minutes", "duration_minutes", "distance_km", "n_observers")
    assert [got[name] for name in effort] == [1439, 60, 2.5, 2]
    assert (got["protocol"], got["region"], got["date"]) == ("Traveling", "US-WA-033", date(2020, 5, 14))


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["first", "raw", "merged"])
def test_flow_of_every_filter_adds_up_on_random_files(pair, groups):
    records, rows = random_rows(11, 300, 1100)
    for k, record in enumerate(records):
        record["EXOTIC CODE"] = "" if k % 7 else "X"
        if k % 20 == 0:  # on a checklist that is not there
            record["SAMPLING EVENT IDENTIFIER"] = f"S{9000 + k}"
    records, rows = [*records, *records[:60]], [*rows, *rows[:40]]
    filters = Filters(
        complete_only=True,
        duration=(5.0, 100.0),
        distance=(None, 10.0),
        last_years=10,
        season=("03-01", "10-31"),
    )
    for settings in ({}, {"filters": filters}, {"filters": filters, "site": "grid:10km"}):
        out = pair(records, rows, groups=groups, **settings)  # the fixture checks the flow and the cells
        lists, found = out.checklists, out.records
        assert lists["checklist_id"].n_unique() == lists.height
        assert found.select("checklist_id", "species").n_unique() == found.height
        assert set(found["checklist_id"]) <= set(lists["checklist_id"])
