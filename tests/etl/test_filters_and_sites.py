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


def of(field: str, *values: str) -> dict[str, dict[str, str]]:
    """Checklists 1, 2, ... that differ in a field."""
    return {str(k): {field: value} for k, value in enumerate(values, 1)}


DURATION, DISTANCE, PARTY, TYPE, DAY, COMPLETE = (
    "DURATION MINUTES", "EFFORT DISTANCE KM", "NUMBER OBSERVERS", "OBSERVATION TYPE", "OBSERVATION DATE",
    "ALL SPECIES REPORTED",
)  # fmt: skip
EDITED = "LAST EDITED DATE"
OLD_DATES = of(DAY, "1928-02-29", "2020-01-01", "2020-12-31", "2021-01-01")
SEASONS = of(DAY, "2019-11-15", "2020-02-15", "2020-02-16", "2021-12-31", "1960-01-01")
OBSERVERS = of("OBSERVER ID", "obsr1", "obsr2")
PLACES = {
    k: {"LOCALITY TYPE": kind, "LOCALITY ID": f"L{k}"}
    for k, kind in zip("1234", ("H", "P", "T", "PC"), strict=True)
}
REGIONS = {
    "1": {}, "2": {"STATE": "Oregon", "STATE CODE": "US-OR", "COUNTY": "Lane", "COUNTY CODE": "US-OR-039"},
    "3": {"COUNTRY": "Canada", "COUNTRY CODE": "CA", "STATE CODE": "CA-BC", "STATE": "British Columbia"},
}  # fmt: skip
KEPT = {  # lines of the specification, and checklists, filters, those that pass
    "ranges are closed and blanks fail: minutes (28)":
        (of(DURATION, "5", "300", "4.75", "301", ""), Filters(duration=(5.0, 300.0)), "1 2"),
    "kilometres (28)": (of(DISTANCE, "0.5", "5", "0.25", "6", ""), Filters(distance=(0.5, 5.0)), "1 2"),
    "people (28)": (of(PARTY, "2", "10", "1.75", "11", ""), Filters(party=(2.0, 10.0)), "1 2"),
    "09:00:00 is inside 06:00..09:00, where auk's comparison of texts drops it (28)":
        (of("TIME OBSERVATIONS STARTED", "06:00:00", "09:00:00", "09:00:01", "", "05:59:59", "09:00:59",
            "09:01:00"),
         Filters(start=options.clock_range("06:00..09:00")), "1 2"),
    "a blank distance is 0 for stationary lists only (28)":
        ({"1": {TYPE: "Stationary", DISTANCE: ""}, "2": {TYPE: "Area", DISTANCE: ""},
          "3": {TYPE: "Traveling", DISTANCE: ""}, "4": {TYPE: "Stationary (2 band, 25m)", DISTANCE: ""}},
         Filters(distance=(0.0, 5.0)), "1 4"),
    "observers, of whom auk_observer finds none (28)": (OBSERVERS, Filters(observers=("obsr2",)), "2"),
    "all but an observer (28)": (OBSERVERS, Filters(without_observers=("OBSR2",)), "1"),
    "a complete incidental list is complete (27)":
        ({"1": {TYPE: "Incidental"}}, Filters(complete_only=True), "1"),
    "best practices, first version: 5 h, 5 km, 10 observers, 10 years (29)": ({
        "1": {DURATION: "300", DISTANCE: "5", PARTY: "10"}, "2": {DURATION: "301"}, "3": {DISTANCE: "5.01"},
        "4": {PARTY: "11"}, "5": {COMPLETE: "0"}, "6": {TYPE: "Incidental"},
        "7": {TYPE: "Stationary", DISTANCE: ""}, "8": {DAY: "2010-12-31"}, "9": {DAY: "2011-01-01"},
        "10": {DURATION: ""}, "11": {PARTY: ""},
    }, preset("best-practices-v1"), "1 7 9"),
    "best practices, second version: 6 h, 10 km, 100 km/h, 10 observers (29)": ({
        "1": {DURATION: "360", DISTANCE: "10"}, "2": {DURATION: "361"}, "3": {DISTANCE: "10.5"},
        "4": {DURATION: "6", DISTANCE: "10"}, "5": {DURATION: "5", DISTANCE: "9"},  # 100 km/h, and 108
        "6": {DURATION: "0", DISTANCE: "0"}, "7": {TYPE: "Stationary", DISTANCE: ""},  # no speed
        "8": {DISTANCE: ""},
        "9": {TYPE: "Historical"}, "10": {DAY: "1990-01-01"},
    }, preset("best-practices-v2"), "1 4 7 10"),
    "dates are closed (32)": (OLD_DATES, Filters(first_date="2020-01-01", last_date="2020-12-31"), "2 3"),
    "dates back to 1928 (32)": (OLD_DATES, Filters(last_date="1928-02-29"), "1"),
    "a season over the New Year": (SEASONS, Filters(season=("11-15", "02-15")), "1 2 4 5"),
    "a season within a year": (SEASONS, Filters(season=("02-16", "11-15")), "1 3"),
    "towns and postcodes are no hotspots (33)": (PLACES, Filters(hotspots_only=True), "1"),
    "localities (33)": (PLACES, Filters(localities=("L3",)), "3"),
    "countries by name": (REGIONS, Filters(countries=("canada",)), "3"),
    "states by code or name": (REGIONS, Filters(states=("US-WA", "oregon")), "1 2"),
    "counties": (REGIONS, Filters(counties=("Lane",)), "2"),
    "Bird Conservation Regions": (of("BCR CODE", "5", "9", "", "10"), Filters(bcrs=("9", "10")), "2 4"),
    "years": (of(DAY, "2018-12-31", "2019-01-01", "2020-06-01"), Filters(years=(2019, 2021)), "2"),
    "projects": (of("PROJECT IDENTIFIERS", "EBIRD", "ATL_NY", "ATL_NY, EBIRD_CAN", "", "EBIRD|ATL_NY"),
                 Filters(projects=("atl_ny",)), "2 3 5"),
    "days of the last edit":
        (of(EDITED, "2020-05-01 23:59:59.999999", "2020-05-02", "2021-05-02 12:00:00", ""),
         Filters(last_edited=("2020-05-02", "2021-05-02")), "2 3"),
    "edited before a day":
        (of(EDITED, "1999-05-01", "2020-05-02", "", ""), Filters(last_edited=(None, "2000-01-01")), "1"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "filters", "wanted"), KEPT.values(), ids=KEPT)
def test_checklists_that_pass_a_filter(pair, changes, filters, wanted):
    assert kept(pair, changes, filters) == set(wanted.split())


@pytest.mark.parametrize("written", ["20200101", "2020-W01-1", "2020-1-1", "2020-02-30"])
def test_a_date_has_one_form(written):
    """Python reads more, which would not sort as dates do."""
    for asked in ({"first_date": written}, {"last_edited": (None, written)}):
        with pytest.raises(ConfigError, match=f"'{written}' is not a date"):
            Filters(**asked)


def test_presets_can_be_changed_and_are_named():
    assert preset("best-practices-v2", max_speed=50.0) == replace(
        PRESETS["best-practices-v2"], max_speed=50.0
    )
    with pytest.raises(ConfigError, match="best-practices-v1, best-practices-v2"):
        preset("best")


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


def test_bounding_box_and_polygon(pair, tmp_path):
    spots = {
        "1": ("47.0", "-122.0"), "2": ("47.5", "-122.5"), "3": ("10.0", "179.9"), "4": ("10.0", "-179.9"),
    }  # fmt: skip
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
