"""The table of sites: what it may hold, every fault a sentence, and what a panel makes of it."""

import numpy as np
import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.ingest import ingest
from fedmiss.etl.panel import make_panel
from fedmiss.etl.settings import IngestSettings, PanelSettings
from fedmiss.etl.site_table import SiteTable, read_site_table
from fedmiss.federation.group.covariates import expanded
from fedmiss.files import read_manifest
from fedmiss.pipeline.panels import open_panel
from fedmiss.pipeline.recipe import read_recipe

ROWS = "site,year,count,latitude,longitude\n" + "".join(
    f"{s},{y},{(7 * y + i) % 5},{45 + i / 10},{6 + i / 10}\n"
    for i, s in enumerate("abcd")
    for y in range(2001, 2009)
)
SITES = "site_id;elevation;habitat;empty\na;400,5;forest;\nb;NA;farm;\nd;120;-;\nx;2000;forest;\n"


@pytest.fixture
def records(tmp_path):
    (tmp_path / "counts.csv").write_text(ROWS)
    ingest([tmp_path / "counts.csv"], tmp_path / "records", settings=IngestSettings())
    return tmp_path / "records"


def table_of(tmp_path, text):
    path = tmp_path / "sites.csv"
    path.write_text(text)
    return path


@pytest.fixture
def panel(tmp_path, records):
    """Make a panel with the table of sites that is given as a text."""

    def _panel(text, name="panel", **more):
        settings = PanelSettings(site_table=str(table_of(tmp_path, text)), **more)
        return make_panel(records, tmp_path / name, settings)

    return _panel


def test_numbers_categories_and_gaps_reach_the_panel(panel):
    made = panel(SITES)
    folder = open_panel(made)
    assert folder.sites["site_id"].to_list() == ["a", "b", "c", "d"]
    columns = folder.covariates()
    np.testing.assert_array_equal(columns["elevation"], [400.5, np.nan, np.nan, 120.0])
    assert columns["habitat"].tolist() == ["forest", "farm", "", ""]
    assert sorted(columns) == ["elevation", "habitat", "latitude", "longitude"]
    manifest = read_manifest(made, "panel")
    assert manifest["settings"]["site_table"] == "sites.csv", "the name, not the path"
    said = " ".join(manifest["warnings"])
    assert "sites of the panel that the table of sites lacks: 1 of 4 (c)." in said
    assert "'empty'" in said
    held, at = folder.visits()
    for name, v in held.items():
        assert sorted(v.covariates) == [
            "elevation", "habitat: farm", "habitat: forest", "latitude", "longitude"
        ]  # fmt: skip
        np.testing.assert_array_equal(v.covariates["elevation"], columns["elevation"][at[name]])


def test_a_frame_adds_the_sites_that_nobody_visited(panel):
    folder = open_panel(panel(SITES, sites="frame"))
    assert folder.sites["site_id"].to_list() == ["a", "b", "c", "d", "x"]
    assert folder.frame
    assert folder.covariates()["elevation"][4] == 2000.0
    assert any("nobody visited" in row["step"] and row["note"] == "1 site" for row in folder.manifest["flow"])
    assert sum(v.site_id.size for v in folder.visits()[0].values()) == 5, "each site is held by one group"


def test_another_table_makes_another_fit(panel):
    """A fit is of a panel whose covariates are part of its identity."""
    made = (panel(SITES, "one"), panel(SITES.replace("120", "121"), "two"))
    one, two = (read_manifest(folder, "panel")["files"]["site_covariates.parquet"] for folder in made)
    assert one["sha256"] != two["sha256"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("elevation\n4\n", "no column that names the site"),
        ("site,e\nz,1\na,4\na,5\n", "line 4, column 'site': 'a' stands in line 3 too"),
        ("site,e\n,4\nb,5\n", "line 2, column 'site': the site has no name"),
        ("site,e\na,1\nb,2\nc,3\nd,4\nx,4OO\n",
         "line 6, column 'e': '4OO' is no number, and the other 4 values are"),
        ("site,e\na,1e12\nb,2\n", "line 2, column 'e': 1e[+]12 is beyond 1e[+]09; give it in a larger unit"),
        ("site,e\na,inf\nb,2\nc,3\nd,4\ne,5\n", "line 2, column 'e': 'inf' is no number"),
        ("site;e\na;1,234\nb;950\nc;2,100\n",
         "line 2, column 'e': '1,234' may be thousands or a decimal comma; write 1234 or 1.234"),
        ("site,lat,lon\na,145,45\n", "145 is no latitude .*Are latitude and longitude swapped"),
        ("site,lat,lon\na,45,200\n", "200 is no longitude"),
        ("site,e\nq,4\nr,5\n", "no site of the panel: its ids are like 'q', those of the panel like 'a'"),
        ("site,h\n" + "".join(f"s{i},h{i}\n" for i in range(30)), "30 different texts .*at most 20"),
        ("site,lat,lon\na,6,45\nb,6.1,45.1\nc,6.2,45.2\n", "latitude and longitude are swapped"),
        ("site,e\na,1\nB,2\nc,3\n", "the site 'b' of the panel is written 'B' in the table of sites"),
        ("site,e\nA,1\nB,2\nC,3\n", "the site 'a' of the panel is written 'A' in the table of sites"),
        ('site,e\na,950.5\nb,"1,234.5"\n',
         "line 3, column 'e': '1,234.5' is no number; write it without marks"),
        ("site;e\na;1.234,5\nb;2.100\n",
         "line 2, column 'e': '1.234,5' is no number; write it without marks"),
        ("site,e\na,1 234\nb,2 100\n", "line 2, column 'e': '1 234' is no number; write it without marks"),
        ("site,e\n", "nothing to read"),
        ("site,site_index\na,1\nb,2\n", "fedmiss has a column 'site_index' of its own; rename this one"),
    ],
)  # fmt: skip
def test_every_fault_is_a_sentence(tmp_path, panel, text, words):
    with pytest.raises(InputError, match=words):
        panel(text)
    assert not (tmp_path / "panel").exists()


@pytest.mark.parametrize(("own", "there"), [("007", "7"), ("7", "007"), ("007", "7.0"), ("12", "12.0")])
def test_zeros_that_a_spreadsheet_takes_or_adds_are_told(own, there):
    """Such sites were noted as lacking, and had no covariates."""
    table = SiteTable(pl.DataFrame({"site_id": ["a", there]}), (), ())
    with pytest.raises(InputError, match=f"the site '{own}' of the panel is written '{there}' in the table"):
        table.beside(pl.DataFrame({"site_id": ["a", own, "0"]}))


@pytest.mark.parametrize(
    ("header", "covariates"),
    [("id,location,h", ("location", "h")), ("site,site_code,h", ("site_code", "h")), ("ort,h,w", ("h", "w"))],
)
def test_the_usual_name_of_the_site_comes_first(tmp_path, header, covariates):
    assert read_site_table(table_of(tmp_path, f"{header}\na,forest,2\nb,farm,3\n")).covariates == covariates


@pytest.mark.parametrize("text", ["0.125\n0.250\n0.375\nunknown\nunknown2", "1.123\n2.234\nA\nB\nC"])
def test_codes_with_three_decimals_are_no_marks_of_thousands(tmp_path, text):
    rows = "\n".join(f"s{i},{value}" for i, value in enumerate(text.split("\n")))
    table = read_site_table(table_of(tmp_path, f"site,code\n{rows}\n"))
    assert table.frame["code"].to_list() == text.split("\n")


def test_a_place_at_0_0_is_blank_and_said(tmp_path):
    table = read_site_table(table_of(tmp_path, "site,lat,lon,e\na,0,0,1\nb,0,8,2\nc,0,,3\n"))
    assert table.frame.select("latitude", "longitude").rows() == [(None, None), (0.0, 8.0), (0.0, None)]
    assert "sites.csv: 1 site lies at latitude 0 and longitude 0, which counts as blank." in table.said[0]


def test_a_frame_without_a_table_is_refused():
    with pytest.raises(ConfigError, match="--sites frame needs the sites"):
        PanelSettings(sites="frame")


def test_a_table_that_is_not_there(tmp_path, records):
    with pytest.raises(InputError, match="nowhere"):
        make_panel(records, tmp_path / "panel", PanelSettings(site_table=str(tmp_path / "nowhere.csv")))


def test_a_site_elsewhere_in_the_table_is_said(panel):
    made = panel("site,lat,lon,e\na,45,6,1\nb,45.1,6.1,2\nc,45.2,9.9,3\n")
    assert any("c is at 45.20, 6.20 in the records" in w for w in read_manifest(made, "panel")["warnings"])


def test_places_and_regions_of_the_table_fill_those_that_the_records_lack(tmp_path):
    (tmp_path / "counts.csv").write_text("site,year,count,lat,lon\na,2001,1,45,6\nb,2001,2,,\nc,2001,3,46,\n")
    ingest([tmp_path / "counts.csv"], tmp_path / "records", settings=IngestSettings())
    text = "site,lat,lon,region,latitude_table\na,45.1,6.1,N,1\nb,47,7,S,2\nc,48,8,,3\n"
    settings = PanelSettings(site_table=str(table_of(tmp_path, text)))
    sites = open_panel(make_panel(tmp_path / "records", tmp_path / "panel", settings)).sites
    assert sites["latitude"].to_list() == [45, 47, 48]  # a place is of one source
    assert sites["longitude"].to_list() == [6, 7, 8]
    assert sites["region"].to_list()[:2] == ["N", "S"]


@pytest.mark.parametrize("name", ["all", "visited sites"])
def test_a_region_called_as_the_whole_is_refused(panel, name):
    """Its replicates stood under the name of those of all sites: no report could be made of the fit."""
    with pytest.raises(InputError, match=f"a region is called '{name}'"):
        panel(f"site,region\na,{name}\nb,N\n")


def test_a_column_is_not_taken_for_a_value_of_a_category(panel):
    """The share of forest took the place of the category: the model had the one under the name of the other."""
    made = open_panel(panel("site;habitat;habitat: forest\na;forest;0,9\nb;farm;0,1\nc;forest;0,8\n"))
    columns = expanded(made.covariates())
    assert columns["habitat:forest"][:3].tolist() == [0.9, 0.1, 0.8]
    assert columns["habitat: forest"][:3].tolist() == [1.0, 0.0, 1.0]


def test_a_column_called_as_a_score_of_a_community_is_refused(tmp_path):
    """It took the place of the score without a word."""
    table = read_site_table(table_of(tmp_path, "site;axis 1 of other species\na;1\nb;2\n"))
    with pytest.raises(InputError, match="has a column 'axis 1 of other species', as the scores"):
        table.joined(table)


def test_in_a_recipe_the_table_lies_beside_it(tmp_path):
    (tmp_path / "counts.csv").write_text(ROWS)
    (tmp_path / "r.toml").write_text('[ingest]\nfiles = ["counts.csv"]\n[panel]\nsite_table = "sites.csv"\n')
    with pytest.raises(InputError, match=r"panel\.site_table: there is no file"):
        read_recipe(tmp_path / "r.toml")
    table_of(tmp_path, SITES)
    assert read_recipe(tmp_path / "r.toml").panel.site_table == str(tmp_path / "sites.csv")


def test_numbers_written_in_other_ways_are_the_same(tmp_path):
    """Separator, decimal comma, quotes, order of the rows and a byte order mark change nothing."""
    one = read_site_table(table_of(tmp_path, "site_id,elevation,habitat\na,1.5,x\nb,-2,y\n")).frame
    for text in (
        "site_id;elevation;habitat\na;1,5;x\nb;-2,0;y\n",
        "site_id\televation\thabitat\nb\t-2\ty\na\t1.50\tx\n",
        '\ufeff"site_id","elevation","habitat"\n"a","1.5","x"\n"b","-2","y"\n',
    ):
        assert read_site_table(table_of(tmp_path, text)).frame.sort("site_id").equals(one)


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("e;0,125;0,250", [0.125, 0.25]), ("e;12,125;3,5", [12.125, 3.5]), ("e;-0,500;1,000", [-0.5, 1]),
        ("e;1.250;3;2.500", [1.25, 3, 2.5]),  # points of a covariate are decimal ones
        ("latitude;47,123;46,001", [47.123, 46.001]),  # a degree has no thousands
    ],
)  # fmt: skip
def test_a_decimal_sign_that_can_be_nothing_else_is_read(tmp_path, written, want):
    name, *values = written.split(";")
    rows = "".join(f"{site};{value}\n" for site, value in zip("abc", values, strict=False))
    got = read_site_table(table_of(tmp_path, f"site;{name}\n{rows}")).frame
    assert got[name].to_list() == want
