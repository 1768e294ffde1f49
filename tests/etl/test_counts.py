"""Tables of counts: what is read rightly, and what is refused with line, value and next move."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.columns import familiar
from fedmiss.etl.counts import CountOptions, read_counts
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.plain import MONTH_OF_YEARLY

ROWS = [("A", 2001, 5, "1.5"), ("A", 2002, None, "1.5"), ("B", 2001, 0, "2"), ("B", 2002, 7, "2")]


def write(path, separator=",", header="site,year,count,weight", missing="NA", decimal="."):
    lines = [header.replace(",", separator)]
    for s, y, c, w in ROWS:
        lines.append(separator.join([s, str(y), missing if c is None else str(c), w.replace(".", decimal)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("missing", ["NA", "", "nan"])
def test_separators_and_missing_counts_read_alike(tmp_path, separator, missing):
    got = read_counts(write(tmp_path / "t.csv", separator, missing=missing))
    assert got.frame["count"].to_list() == [5, None, 0, 7]
    assert got.frame["weight"].to_list() == [1.5, 1.5, 2, 2]
    assert "1 rows with a missing count" in got.said[0]


def test_decimal_commas_are_read_and_said(tmp_path):
    got = read_counts(write(tmp_path / "t.csv", ";", decimal=","))
    assert got.frame["weight"].to_list() == [1.5, 1.5, 2, 2]
    assert any("decimal comma" in s for s in got.said)


def test_thousands_or_decimals_is_a_question_not_a_guess(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site;year;count\nA;2001;1,234\nA;2002;2,345\n")
    with pytest.raises(InputError, match=r"line 2, column 'count': '1,234' may be"):
        read_counts(path)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("A,2003,10-20", r"line 4, column 'count': '10-20' is no count"),
        ("A,2003,ca. 5", r"line 4, column 'count': 'ca. 5' is no count"),
        ("A,2003,-2", r"line 4, column 'count': '-2' is no count"),
        ("A,2003,X", r"line 4, column 'count': 'X' is no count"),
        ("A,31.05.2003,4", r"line 4, column 'year': '31.05.2003' is no year"),
        (",2003,4", r"line 4, column 'site': '' is no site"),
        ("A,2002,9", r"site A, year 2002 stands 2 times \(lines 3, 4; counts 2, 9\)"),
        (" a,2003,4", r"site 'A' \(line 2\) is also written 'a' \(line 4\)"),
        ("A,2003,4,5", r"line 4: 4 columns, the header has 3"),
    ],
)
def test_what_is_no_count_is_refused_with_its_line(tmp_path, row, words):
    path = tmp_path / "t.csv"
    path.write_text(f"site,year,count\nA,2001,1\nA,2002,2\n{row}\n", encoding="utf-8")
    with pytest.raises(InputError, match=words):
        read_counts(path)


def test_a_weight_that_is_negative_or_blank_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    for bad in ("-1", ""):
        path.write_text(f"site,year,count,weight\nA,2001,1,1\nA,2002,2,{bad}\n")
        with pytest.raises(InputError, match=f"line 3, column 'weight': '{bad}' is no weight"):
            read_counts(path)


def test_repeats_and_spellings_as_asked(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,year,count\nÉtang,2001,1\netang ,2001,4\nB,2001,NA\nB,2001,NA\n", encoding="utf-8")
    for repeats, want in (("sum", 5), ("max", 4), ("mean", 2.5)):
        got = read_counts(path, CountOptions(repeats=repeats, spellings="join"))
        assert got.frame["site"].to_list() == ["Étang", "B"]
        assert got.frame["count"].to_list() == [want, None]  # missing twice is missing, not nought
    apart = read_counts(path, CountOptions(repeats="sum", spellings="apart"))
    assert apart.frame["site"].to_list() == ["Étang", "etang", "B"]


def test_years_as_columns_are_offered_to_be_melted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,habitat,2001,2002,2003\nA,bog,1,NA,3\nB,fen,0,5,\n")
    with pytest.raises(InputError, match=r"2001 to 2003 are columns.*--wide"):
        read_counts(path)
    got = read_counts(path, CountOptions(wide=True))
    table = {(r["site"], r["year"]): r["count"] for r in got.frame.rows(named=True)}
    assert table == {
        ("A", 2001): 1,
        ("A", 2002): None,
        ("A", 2003): 3,
        ("B", 2001): 0,
        ("B", 2002): 5,
        ("B", 2003): None,
    }
    assert got.covariates == ("habitat",)


def test_columns_without_a_known_name_are_found_by_what_stands_in_them_or_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("plot,saison,brut\nA,2001,3\nA,2002,4\n")
    assert read_counts(path).columns == {"site": "plot", "year": "saison", "count": "brut"}
    path.write_text("plot,saison,brut,net\nA,2001,3,2\nA,2002,4,3\n")
    with pytest.raises(InputError, match=r"no column is clearly the count .*--columns count="):
        read_counts(path)
    assert read_counts(path, CountOptions({"count": "net"})).frame["count"].to_list() == [2, 3]
    with pytest.raises(ConfigError, match="no column 'nett'"):
        read_counts(path, CountOptions({"count": "nett"}))


def test_ingest_keeps_every_count_and_no_missing_one(tmp_path):
    path = write(tmp_path / "Alauda arvensis.csv")
    manifest = ingest([path], tmp_path / "rec", keep_cache=False)
    r = pl.read_parquet(tmp_path / "rec" / "records.parquet")
    c = pl.read_parquet(tmp_path / "rec" / "checklists.parquet")
    assert c.height == 3  # the missing count is no visit
    assert sorted(c["date"].dt.year().to_list()) == [2001, 2001, 2002]
    assert set(c["date"].dt.month()) == {MONTH_OF_YEARLY}
    assert c["observer_id"].to_list() == c["site_id"].to_list()  # replicates draw sites
    assert int(r["count"].sum()) == 12
    assert manifest["results"]["species"][0]["species"] == "Alauda arvensis"
    steps = {row["step"]: row["rows"] for row in manifest["flow"]}
    assert steps["records: read"] == 4
    assert steps["records: missing counts"] == -1
    assert "column_map" in json.dumps(manifest["settings"])


def test_ingest_refuses_what_its_model_cannot_take(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,year,count\nA,2001,1.5\nA,2002,2\n")
    with pytest.raises(InputError, match=r"line 2: the count 1.5 is no whole number.*fedmiss trim"):
        ingest([path], tmp_path / "r", keep_cache=False)
    path.write_text("site,time,count\nA,1,1\nA,2,2\n")
    with pytest.raises(InputError, match="1 to 2 are no years; pass --first-year"):
        ingest([path], tmp_path / "r", keep_cache=False)
    ingest([path], tmp_path / "r", IngestSettings(first_year=1990), keep_cache=False)
    years = pl.read_parquet(tmp_path / "r" / "checklists.parquet")["date"].dt.year()
    np.testing.assert_array_equal(sorted(years), [1990, 1991])


@pytest.mark.parametrize(("repeats", "want"), [("sum", 12), ("max", 7), ("mean", 6)])
def test_several_counts_of_one_visit_are_joined_as_asked(tmp_path, repeats, want):
    path = tmp_path / "t.csv"
    path.write_text(
        "observer,site,date,count\no,A,2001-05-01,7\no,A,2001-05-01,5\no,A,2001-05-02,3\np,A,2001-05-01,4\n"
    )
    settings = IngestSettings(species=("Heron",), column_map={"auto": ""}, repeats=repeats)
    manifest = ingest([path], tmp_path / "r", settings, keep_cache=False)
    r = pl.read_parquet(tmp_path / "r" / "records.parquet")
    assert sorted(r["count"]) == sorted([want, 3, 4])  # another observer's count is a visit of its own
    assert any("2 counts are of 1 visits" in w for w in manifest["warnings"])


def test_a_plain_table_as_spreadsheets_write_it_in_europe(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "observer;site;date;count;latitude;longitude\no;A;31.05.2001;7;51,5;-0,25\no;A;01.06.2001;NA;51,5;-0,25\n"
        "o;B;02.06.2001;X;52;0\no;B;03.06.2001;0;52;0\n"
    )
    manifest = ingest(
        [path], tmp_path / "r", IngestSettings(species=("Heron",), column_map={"auto": ""}), keep_cache=False
    )
    c = pl.read_parquet(tmp_path / "r" / "checklists.parquet").sort("date")
    assert c["date"].dt.to_string().to_list() == ["2001-05-31", "2001-06-02", "2001-06-03"]  # NA is no visit
    assert (c["latitude"][0], c["longitude"][0]) == (51.5, -0.25)
    assert manifest["results"]["species"][0]["x"] == 1  # X is a presence, NA is not
    steps = {row["step"]: row["rows"] for row in manifest["flow"]}
    assert steps["records: missing counts"] == -1


def test_columns_are_found_by_familiar_names_each_once():
    words = {"year": ("annee", "time"), "start": ("time", "clock"), "site": ("plot",)}
    assert familiar(["Time", "Plot", "plot_", "A"], words) == {"year": "Time", "site": "Plot"}
    assert familiar(["Time", "Clock"], words, {"year": "Clock"}) == {"year": "Clock", "start": "Time"}
