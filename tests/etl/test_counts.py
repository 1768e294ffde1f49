"""Tables of counts: what is read rightly, and what is refused with line, value and next move."""

import hashlib
import json
import os
from functools import partial

import numpy as np
import openpyxl
import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl import sources
from fedmiss.etl.columns import familiar
from fedmiss.etl.count_visits import MONTH_OF_YEARLY
from fedmiss.etl.counts import read_counts
from fedmiss.etl.panel import make_panel
from fedmiss.etl.sources import expand
from fedmiss.files import read_manifest

ROWS = "site,year,count,weight\nA,2001,5,1.5\nA,2002,NA,1.5\nB,2001,0,2\nB,2002,7,2\n"


@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", "."), ("\t", "."), (";", ",")])
@pytest.mark.parametrize("missing", ["NA", "", "nan"])
def test_separators_decimals_and_missing_counts_read_alike(read, separator, decimal, missing):
    got = read(ROWS.replace(",", separator).replace("NA", missing).replace(".", decimal))
    assert got.frame["count"].to_list() == [5, None, 0, 7]
    assert got.frame["weight"].to_list() == [1.5, 1.5, 2, 2]
    assert any("decimal comma" in s for s in got.said) == (decimal == ",")
    assert "1 row with a missing count" in got.said[0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("A,2003,10-20", r"line 4, column 'count': '10-20' is no count"),
        ("A,2003,ca. 5", r"line 4, column 'count': 'ca. 5' is no count"),
        ("A,2003,-2", r"line 4, column 'count': '-2' is no count"),
        ("A,2003,X", r"line 4, column 'count': 'X' is no count"),
        ("A,2003,99999999999999999999", r"line 4, column 'count': '99999999999999999999' is no count"),
        ('A,2003,"1,234"', r"line 4, column 'count': '1,234' may be thousands or a decimal comma"),
        ("A,31.05.2003,4", r"line 4, column 'year': '31.05.2003' is no year"),
        ("A,2012/13,4", r"line 4, column 'year': '2012/13' is no year; .*a winter by its last year"),
        (",2003,4", r"line 4, column 'site': '' is no site"),
        ("A,2002,9", r"site A, year 2002 stands 2 times \(lines 3, 4; counts 2, 9\)"),
        (" a,2003,4", r"site 'A' \(line 2\) is also written 'a' \(line 4\)"),
        ("A,2003,4,5", r"line 4: 4 columns, the header has 3"),
        *(
            (f"site,year,mois,count\nA,2001,12,1\nA,2001,{month},2", f"line 3, column 'mois': '{month}' is no month; write")
            for month in ("0", "13", "May", "")
        ),
        *(
            (f"site,year,count,weight\nA,2001,1,1\nA,2002,2,{bad}", f"line 3, column 'weight': '{bad}' is no weight")
            for bad in ("-1", "")
        ),
        *(
            (f"site,{title},year,count\nA,a,2001,1", "is a pattern of names; give it a name of letters")
            for title in ("*", "^site$")
        ),
    ],
)  # fmt: skip
def test_what_is_no_count_is_refused_with_its_line(read, row, words):
    with pytest.raises(InputError, match=words):
        read(row if "\n" in row else f"site,year,count\nA,2001,1\nA,2002,2\n{row}\n")


def test_repeats_and_spellings_as_asked(read):
    text = "site,year,count\nÉtang,2001,1\netang ,2001,4\nB,2001,NA\nB,2001,NA\n"
    for repeats, want in (("sum", 5), ("max", 4), ("mean", 2.5)):
        got = read(text, repeats=repeats, spellings="join")
        assert got.frame["site"].to_list() == ["Étang", "B"]
        assert got.frame["count"].to_list() == [want, None]  # missing twice is missing, not nought
    assert read(text, repeats="sum", spellings="apart").frame["site"].to_list() == ["Étang", "etang", "B"]


def test_a_site_by_number_in_two_forms_is_refused_or_joined(read):
    """A spreadsheet writes the site 01 as 1, a program as 1.0; 10, 1.1 and A1 are other sites."""
    text = "site,year,count\n01,2001,1\n1,2002,4\n1.0,2003,2\n10,2001,5\n1.1,2001,6\nA1,2001,7\n"
    with pytest.raises(InputError, match=r"the site '01' \(line 2\) is also written '1' \(line 3\)"):
        read(text)
    got = read(text, spellings="join")
    assert got.frame["site"].to_list() == ["01", "01", "01", "10", "1.1", "A1"]
    assert "3 spellings of 1 site were joined." in got.said


def test_sums_of_fewer_counts_than_others_of_their_site_are_said(read):
    """A month that was not counted makes the year's sum too low, whether its row is blank or is not there."""
    full = "A,2001,1,3\nA,2001,2,4\nA,2002,1,3\nA,2002,2,4\nB,2001,1,5\nB,2002,1,6\n"
    for row, n in (("", 0), ("A,2003,1,3\n", 1), ("A,2003,1,3\nA,2003,2,NA\n", 1), ("A,2003,1,NA\n", 0)):
        text = f"site,year,month,count\n{full}{row}"
        for repeats in ("sum", "mean"):
            said = " ".join(read(text, repeats=repeats, months=False).said)
            low = bool(n) and repeats == "sum"
            assert (f"not counted: {n} (the first: site A, year 2003)" in said) == low


@pytest.mark.parametrize("called", ["Total", "SUMME", "Grand total:", "всего"])
def test_a_row_called_total_is_refused(read, called):
    with pytest.raises(InputError, match=f"line 4, column 'site': the site '{called}' is called as a row of"):
        read(f"site,year,count\nA,2001,1\nB,2001,2\n{called},2001,2\n")


@pytest.mark.parametrize("called", ["SUM01", "Total 3", "Somme", "Soma"])
def test_a_code_or_a_place_is_no_total(read, called):
    assert read(f"site,year,count\nA,2001,1\nB,2001,2\n{called},2001,2\n").frame["site"].n_unique() == 3


def test_one_pair_beside_one_that_moves_is_no_total(read):
    rows = [f"{s},{2001 + t},{s == 'A' or t % 3 == 'BCD'.find(s):d}" for t in range(6) for s in "ABCD"]
    assert read("site,year,count\n" + "\n".join(rows) + "\n").frame["site"].n_unique() == 4


def test_a_site_with_the_sum_of_all_others_is_refused_and_one_near_it_is_read(read):
    rng = np.random.default_rng(3)
    counts = rng.poisson(4, (4, 6)) + 1
    rows = [[f"s{j}", *map(str, line)] for j, line in enumerate(counts)]
    rows[1][3] = "NA"
    total = counts.sum(axis=0) - np.where(np.arange(6) == 2, counts[1], 0)

    def table(last):
        lines = [["site", *map(str, range(2001, 2007))], *rows, ["county", *map(str, last)]]
        return read("\n".join(map(",".join, lines)) + "\n", wide=True)

    with pytest.raises(InputError, match=r"line 6, column 'site': the site 'county' has the sum of all"):
        table(total)
    assert table(total + np.eye(6, dtype=int)[4]).frame["site"].n_unique() == 5


def test_a_column_called_as_fedmiss_calls_one_is_kept_beside_others(read):
    got = read("site,line,line_,line__,year,count\nA,a,b,c,2001,1\n")
    assert got.covariates == ("line_", "line__", "line___")
    assert [got.frame[name][0] for name in got.covariates] == ["a", "b", "c"]


def test_years_as_columns_are_offered_to_be_melted(read):
    text = "site,habitat,2001,2002,2003\nA,bog,1,NA,3\nB,fen,0,5,\n"
    with pytest.raises(InputError, match=r"2001 to 2003 are columns.*--wide"):
        read(text)
    got = read(text, wide=True)
    assert sorted(got.frame.select("site", "year", "count").rows()) == [
        ("A", 2001, 1), ("A", 2002, None), ("A", 2003, 3), ("B", 2001, 0), ("B", 2002, 5), ("B", 2003, None),
    ]  # fmt: skip
    assert got.covariates == ("habitat",)
    assert read("site,2001,2002,Total\nA,1,2,3\n", wide=True).covariates == ("Total",)
    for text, words in (
        ("site,2001,2002,Count\nA,1,2,3\n", "a column 'Count', which is taken for the count"),
        ("site,y2001,y2002\nA,1,2\n", "no columns named by years; it has site, y2001, y2002"),
    ):
        with pytest.raises(ConfigError, match=words):
            read(text, wide=True)


def test_columns_without_a_known_name_are_found_by_what_stands_in_them_or_asked_for(read):
    found = read("plot,saison,brut\nA,2001,3\nA,2002,4\n").columns
    assert found == {"site": "plot", "year": "saison", "count": "brut"}
    text = "plot,saison,brut,net\nA,2001,3,2\nA,2002,4,3\n"
    with pytest.raises(InputError, match=r"no column is clearly the count .*--columns count="):
        read(text)
    assert read(text, columns={"count": "net"}).frame["count"].to_list() == [2, 3]
    with pytest.raises(ConfigError, match="no column 'nett'"):
        read(text, columns={"count": "nett"})


COMUNIDADES = (
    "Sitio;Ano;Numero;Comunidad;Quien;Horas;Nord\nA;2001;3;Aragon;Ana;30;41.5\nB;2001;4;Murcia;;20;38\n"
)
OF_COUNTS = {"site": "Sitio", "year": "Ano", "count": "Numero"}


def test_a_map_names_region_observer_effort_and_place_of_a_table_of_years(plain):
    """Only columns that are called so were found: of others the map said that region is unknown."""
    named = {"region": "Comunidad", "observer": "Quien", "duration": "Horas", "latitude": "Nord"}
    lists = plain(COMUNIDADES, column_map=OF_COUNTS | named).checklists.sort("site_id")
    assert lists["region"].to_list() == ["Aragon", "Murcia"]
    assert lists["observer_id"].to_list() == ["Ana", "B"]
    assert lists["duration_minutes"].to_list() == [30, 20]
    assert lists["latitude"].to_list() == [41.5, 38]
    same = plain(COMUNIDADES, column_map=OF_COUNTS | {"observer": "Sitio"}).checklists
    assert same["observer_id"].to_list() == same["site_id"].to_list()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"region": "Comarca"}, "has no column 'Comarca'"),
        ({"region": "Sitio"}, "has the column 'Sitio' for something else already"),
        ({"country": "Comunidad"}, "'country' is unknown"),
    ],
)
def test_a_map_of_a_table_of_years_that_cannot_be_is_refused(plain, named, words):
    with pytest.raises(ConfigError, match=words):
        plain(COMUNIDADES, column_map=OF_COUNTS | named)


@pytest.mark.parametrize(("site", "named"), [("Gebiet", {}), ("Dorf", {"column_map": {"site": "Dorf"}})])
def test_ingest_takes_a_table_of_years_whose_site_has_a_name_that_is_known_or_given(plain, site, named):
    assert plain(f"{site};Jahr;Anzahl\nA;2001;3\nA;2002;4\n", "t.csv", **named).records["count"].sum() == 7


@pytest.mark.parametrize("named", [{}, {"column_map": {"observer": "Beobachter", "site": "Standort"}}])
def test_a_table_with_dates_is_none_of_years_in_german_either(plain, named):
    """The dates of such a table would be thrown away."""
    with pytest.raises(ConfigError, match=r"date=(Datum|\.\.\.)"):
        plain("Beobachter;Standort;Datum;Jahr;Art;Anzahl\nb;A;2010-02-03;2010;x;3\n", "t.csv", **named)


@pytest.mark.parametrize(("code", "written"), [("999", "999.0"), ("-1", '"-1,00"'), ("nd", " ND ")])
def test_a_code_for_a_missing_count_is_found_in_every_form(read, code, written):
    got = read(f"site,year,count\na,2001,4\na,2002,{written}\n", missing=(code,))
    assert got.frame["count"].to_list() == [4, None]


@pytest.mark.parametrize("limit", ["+4", "4+", ">4"])
def test_a_limit_is_no_count_and_named_as_missing_leaves_the_same_number_a_count(read, limit):
    text = f"site,year,count\na,2001,4\na,2002,{limit}\n"
    with pytest.raises(InputError, match="it is a limit: write 4 if"):
        read(text)
    assert read(text, missing=(limit,)).frame["count"].to_list() == [4, None]


def test_ingest_keeps_every_count_and_no_missing_one(plain):
    out = plain(ROWS, "Alauda arvensis.csv")
    lists = out.checklists
    assert lists.height == 3  # the missing count is no visit
    assert sorted(lists["date"].dt.year().to_list()) == [2001, 2001, 2002]
    assert set(lists["date"].dt.month()) == {MONTH_OF_YEARLY}
    assert lists["observer_id"].to_list() == lists["site_id"].to_list()  # replicates draw sites
    assert out.records["count"].sum() == 12
    assert out.manifest["results"]["species"][0]["species"] == "Alauda arvensis"
    assert (out.flow("records: read"), out.flow("records: missing counts")) == (4, -1)
    assert "column_map" in json.dumps(out.manifest["settings"])


@pytest.mark.parametrize("missing", ["NA", ""])
def test_a_table_without_any_count_is_refused_by_one_sentence(plain, missing):
    text = f"species,site,year,count\nLark,A,2001,{missing}\nLark,B,2002,{missing}\nCrow,A,2001,3\n"
    with pytest.raises(InputError, match=r"t.csv: the count of Lark is missing .* in every row \(2\)"):
        plain(text, species=("Lark",))


@pytest.mark.parametrize(("month", "period"), [("", "year"), ("5", "month")])
@pytest.mark.parametrize(("observer", "n_observers"), [("", 0), ("ann", 1)])
def test_counts_without_months_are_yearly_and_sites_are_no_observers(
    plain, tmp_path, month, period, observer, n_observers
):
    names = "site,year,count" + ",month" * bool(month) + ",observer" * bool(observer)
    rows = [
        f"{site},{year},3" + f",{month}" * bool(month) + f",{observer}" * bool(observer)
        for site in "AB"
        for year in (2001, 2003)
    ]
    out = plain("\n".join([names, *rows]) + "\n", "Wren.csv")
    panel = make_panel(out.folder, tmp_path / "panel")
    facts = read_manifest(panel, "panel")["results"]
    assert (facts["period"], facts["n_observers"]) == (period, n_observers)


def test_coordinates_with_a_decimal_comma_and_counts_without_an_observer(plain):
    """A place is one whatever its comma; sites whose counts name nobody have no observer in common."""
    rows = "A;2001;3;47,5;-8,25;ann\nA;2002;4;47.5;-8.25;\nB;2001;5;46;9;\n"
    got = plain("site;year;count;lat;lon;observer\n" + rows).checklists.sort("site_id", "date")
    assert got.select("latitude", "longitude").rows() == [(47.5, -8.25), (47.5, -8.25), (46, 9)]
    assert got["observer_id"].to_list() == ["ann", "A", "B"]


def test_ingest_refuses_what_its_model_cannot_take(plain):
    with pytest.raises(InputError, match=r"line 2: the count 1.5 is no whole number.*fedmiss trim"):
        plain("site,year,count\nA,2001,1.5\nA,2002,2\n")
    points = "site,time,count\nA,1,1\nA,2,2\n"
    with pytest.raises(InputError, match="1 to 2 are no years; pass --first-year"):
        plain(points)
    years = plain(points, first_year=1990).checklists["date"].dt.year()
    assert sorted(years) == [1990, 1991]


@pytest.mark.parametrize("idle", [{"decimals": 1}, {"drop_suspected": True}, {"assume_complete": True}])
def test_a_setting_for_another_kind_of_input_is_refused(plain, tmp_path, idle):
    with pytest.raises(ConfigError, match=r"does nothing here: t\.csv is a table of counts"):
        plain(ROWS, species=("Parus major",), **idle)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(("repeats", "want"), [("sum", 12), ("max", 7), ("mean", 6)])
def test_several_counts_of_one_visit_are_joined_as_asked(plain, repeats, want):
    rows = ("o,A,2001-05-01,7", "o,A,2001-05-01,5", "o,A,2001-05-02,3", "p,A,2001-05-01,4")
    text = "\n".join(["observer,site,date,count", *rows])
    out = plain(text, species=("Heron",), column_map={"auto": ""}, repeats=repeats)
    # another observer's count is a visit of its own
    assert sorted(out.records["count"]) == sorted([want, 3, 4])
    assert "2 counts are of 1 visits" in out.warnings


def test_a_plain_table_as_spreadsheets_write_it_in_europe(plain):
    out = plain(
        "observer;site;date;count;latitude;longitude\no;A;31.05.2001;7;51,5;-0,25\no;A;01.06.2001;NA;51,5;-0,25\n"
        "o;B;02.06.2001;X;52;0\no;B;03.06.2001;0;52;0\n",
        species=("Heron",),
        column_map={"auto": ""},
    )
    c = out.checklists.sort("date")
    assert c["date"].dt.to_string().to_list() == ["2001-05-31", "2001-06-02", "2001-06-03"]  # NA is no visit
    assert (c["latitude"][0], c["longitude"][0]) == (51.5, -0.25)
    assert out.manifest["results"]["species"][0]["x"] == 1  # X is a presence, NA is not
    assert out.flow("records: missing counts") == -1


def test_columns_are_found_by_familiar_names_each_once():
    words = {"year": ("annee", "time"), "start": ("time", "clock"), "site": ("plot",)}
    assert familiar(["Time", "Plot", "plot_", "A"], words) == {"year": "Time", "site": "Plot"}
    assert familiar(["Time", "Clock"], words, {"year": "Clock"}) == {"year": "Clock", "start": "Time"}


@pytest.mark.parametrize("ending", ["csv", "xlsx"])
def test_a_table_that_changes_between_its_opening_and_its_hash_is_refused(tmp_path, ending):
    """Columns of a sheet were taken by places of an older one, and the hash was of what nobody had read."""
    path = tmp_path / f"counts.{ending}"

    def write(site):
        table = pl.DataFrame({site: ["a", "a"], "year": [2001, 2002], "count": [4, 6]})
        _write(table, path)
        os.utime(path, ns=(0, len(site)))

    write("site")
    (source,) = expand(path)
    read = read_counts(source)
    assert read.source.hash() == hashlib.sha256(path.read_bytes()).hexdigest()
    write("plots")
    for step in (partial(read_counts, source), read.source.hash):
        with pytest.raises(InputError, match=rf"counts\.{ending} was changed while it was read"):
            step()


@pytest.mark.parametrize("ending", ["csv", "xlsx", "parquet"])
def test_a_table_that_changes_right_after_its_header_was_read_is_refused(tmp_path, monkeypatch, ending):
    """Size and time are of the file whose header was read: they were taken after it, and the change was unseen."""
    path = tmp_path / f"counts.{ending}"
    _write(pl.DataFrame({"site": ["a"], "year": [2001], "count": [4]}), path)
    monkeypatch.setattr(sources, "refuse_doubles", lambda *_: os.utime(path, ns=(0, 1)))  # the header is read
    (source,) = expand(path)
    with pytest.raises(InputError, match=rf"counts\.{ending} was changed while it was read"):
        source.hash()


def _write(table, path):
    if path.suffix != ".xlsx":
        (table.write_csv if path.suffix == ".csv" else table.write_parquet)(path)
        return
    book = openpyxl.Workbook()
    for row in (table.columns, *table.rows()):
        book.active.append(row)
    book.save(path)
