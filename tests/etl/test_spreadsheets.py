"""Workbooks and texts of any kind are read alike, and what a spreadsheet hides or mangles is refused with its cell."""

import datetime as dt
import zipfile
from dataclasses import replace

import openpyxl
import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.counts import read_counts
from fedmiss.etl.site_table import read_site_table
from fedmiss.etl.sources import dated_by_sheet, expand
from fedmiss.etl.spreadsheets import address, serial_date

HEAD = ["Site", "Species", "Year", "Count"]
ROWS = [
    ["Étang", "Alauda arvensis", 2001, 5], ["Étang", "Alauda arvensis", 2002, None], ["B 7", "Alauda arvensis", 2001, 0],
    ["B 7", "Parus major", 2001, 12],
]  # fmt: skip
WANT = [("Étang", 2001, 5.0), ("Étang", 2002, None), ("B 7", 2001, 0.0)]
LARK = CountOptions(species="Alauda arvensis")


def xlsx(path, rows, sheet="Counts", change=lambda book, sheet: None):
    book = openpyxl.Workbook()
    page = book.active
    page.title = sheet
    for row in rows:
        page.append(row)
    change(book, page)
    book.save(path)
    return path


def ods(path, rows, sheet="Counts", merged=""):
    """The least that an OpenDocument spreadsheet needs; a blank row is written as one that is repeated."""

    def cell(value, first):
        span = ' table:number-rows-spanned="2"' if first and merged == value else ""
        if value is None:
            return "<table:table-cell/>"
        if isinstance(value, int | float):
            return f'<table:table-cell office:value-type="float" office:value="{value}"{span}/>'
        return (
            f'<table:table-cell office:value-type="string"{span}><text:p>{value}</text:p></table:table-cell>'
        )

    body = "".join(
        f"<table:table-row>{''.join(cell(v, i == 0) for i, v in enumerate(row))}</table:table-row>"
        for row in rows
    )
    names = " ".join(
        f'xmlns:{k}="urn:oasis:names:tc:opendocument:xmlns:{k}:1.0"' for k in ("office", "table", "text")
    )
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", kind)
        archive.writestr(
            "content.xml",
            f'<office:document-content {names}><office:body><office:spreadsheet><table:table table:name="{sheet}">{body}'
            "</table:table></office:spreadsheet></office:body></office:document-content>",
        )
        archive.writestr(
            "META-INF/manifest.xml",
            '<m:manifest xmlns:m="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"><m:file-entry m:full-path="/" '
            f'm:media-type="{kind}"/></m:manifest>',
        )
    return path


def text(path, rows, separator=",", encoding="utf-8", above=()):
    lines = [*above, *(separator.join("" if v is None else str(v) for v in row) for row in rows)]
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


TITLE = ["Bird counts 2002", None, None, None]
KINDS = {
    "xlsx": lambda p: xlsx(p / "c.xlsx", [HEAD, *ROWS]),
    "xlsx, header in row 3": lambda p: xlsx(p / "c.xlsx", [TITLE, [None], HEAD, *ROWS]),
    "ods": lambda p: ods(p / "c.ods", [HEAD, *ROWS]),
    "ods, header in row 3": lambda p: ods(p / "c.ods", [TITLE, [None], HEAD, *ROWS]),
    "comma": lambda p: text(p / "c.csv", [HEAD, *ROWS]),
    "semicolon, byte order mark": lambda p: text(p / "c.csv", [HEAD, *ROWS], ";", "utf-8-sig"),
    "tab, UTF-16": lambda p: text(p / "c.txt", [HEAD, *ROWS], "\t", "utf-16"),
    "Latin-1": lambda p: text(p / "c.csv", [HEAD, *ROWS], ";", "latin-1"),
    "two lines above the header": lambda p: text(p / "c.csv", [HEAD, *ROWS], ";", above=("Counts, 2002", "")),
    "parquet": lambda p: pl.DataFrame(ROWS, HEAD, orient="row").write_parquet(p / "c.parquet") or p / "c.parquet",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_table(tmp_path, kind):
    got = read_counts(KINDS[kind](tmp_path), LARK)
    assert got.frame.select("site", "year", "count").rows() == WANT
    said = " ".join(got.said)
    assert ("row 3" in said) == ("header" in kind), said
    assert ("CP1252" in said and "line 2" in said) == (kind == "Latin-1"), "a guess is said"


def test_columns_of_parquet_that_hold_no_text_are_none(tmp_path):
    """As the geometry that geopandas and sf write."""
    more = pl.DataFrame({"geometry": [b"\x01\xff\x00"] * 4, "list": [[1]] * 4, "record": [{"a": 1}] * 4})
    more = more.with_columns(watch=pl.duration(minutes=5))
    pl.DataFrame(ROWS, HEAD, orient="row").hstack(more).write_parquet(tmp_path / "c.parquet")
    got = read_counts(tmp_path / "c.parquet", LARK)
    assert got.frame.select("site", "year", "count").rows() == WANT
    assert got.covariates == ("geometry", "watch")
    assert got.frame["geometry"].null_count() == got.frame["watch"].null_count() == 3


def test_numbers_dates_and_places_of_cells():
    assert [address(17, c, s) for c, s in ((3, "Sheet1"), (25, ""), (26, ""), (701, ""), (702, ""))] == [
        "Sheet1!D17", "Z17", "AA17", "ZZ17", "AAA17",
    ]  # fmt: skip
    assert serial_date("45000") == (dt.date(1899, 12, 30) + dt.timedelta(45000)).isoformat() == "2023-03-15"
    assert serial_date("2001") == serial_date("1,5") == ""


def cell(row, column, value):
    return lambda book, sheet: sheet.cell(row, column, value)


def failed(book, sheet):
    sheet["D3"] = "#REF!"
    sheet["D3"].data_type = "e"


def second(book, sheet):
    book.create_sheet("Old counts").append(HEAD)


BAD = {
    "range": (cell(3, 4, "10-15"), r"cell Counts!D3, column 'Count': '10-15' is no count; .*its middle 12"),
    "about": (cell(3, 4, "c. 20"), r"Counts!D3.*'c. 20' is no count; if the estimate is to count, write 20"),
    "limit": (cell(3, 4, ">100"), r"Counts!D3.*'>100' is no count; .*write 100 if"),
    "range as date": (cell(3, 4, dt.date(2024, 10, 15)), r"Counts!D3.*'2024-10-15'.*make of ranges"),
    "thousands": (cell(3, 4, "1,234"), r"Counts!D3.*'1,234' may be thousands or a decimal comma"),
    "date as year": (cell(3, 3, 45000), r"Counts!C3.*the date 2023-03-15 as Excel counts days; write 2023"),
    "merged": (lambda b, s: s.merge_cells("A3:A4"), r"cells Counts!A3:A4 are merged.*unmerge"),
    "failed formula": (failed, r"cell Counts!D3 holds #REF!, a formula that failed"),
    "formula without its value": (cell(3, 4, "=2+3"), r"cell Counts!D3 holds a formula whose value is not stored"),
    "two sheets": (second, r"has 2 sheets \(Counts, Old counts\); .*--sheet Counts"),
    "code and name": (cell(3, 2, 9760), r"Counts!B3.*'9760' is a code, and row 2 has the name 'Alauda arvensis'"),
    "letters and name": (cell(3, 2, "ALAARV"), r"Counts!B3.*'ALAARV' is a code"),
    "two columns of one name": (cell(1, 5, "count"), r"sheet Counts: columns 4 and 5 are both named 'count'"),
    "no header": (lambda b, s: s.delete_rows(1), r"no column is clearly the site.*--header-row"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_what_a_spreadsheet_hides_is_refused_with_its_cell(run, tmp_path, fault):
    change, words = BAD[fault]
    path = xlsx(tmp_path / "c.xlsx", [HEAD, *ROWS], change=change)
    with pytest.raises((InputError, ConfigError), match=words) as told:
        read_counts(path, LARK)
    assert "\n" not in str(told.value)
    with pytest.raises((InputError, ConfigError)):  # the importer reads through the same door
        run(path, species=("Alauda arvensis",))


def test_merged_cells_of_ods_have_their_address(tmp_path):
    rows = [TITLE, HEAD, ROWS[0], ["X", *ROWS[1][1:]], [None, *ROWS[2][1:]]]
    with pytest.raises(InputError, match=r"cells Counts!A4:A5 are merged"):
        read_counts(ods(tmp_path / "c.ods", rows, merged="X"))
    xlsx(tmp_path / "t.xlsx", [TITLE, HEAD, *ROWS], change=lambda b, s: s.merge_cells("A1:D1"))
    assert read_counts(tmp_path / "t.xlsx", LARK).frame.height == 3, "a merged title is no table"


def test_a_formula_of_ods_without_its_value_has_its_address(tmp_path):
    path = ods(tmp_path / "c.ods", [HEAD, ROWS[0]])
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(
                name, part.replace(b'office:value-type="float" office:value="5"', b'table:formula="of:=2+3"')
            )
    with pytest.raises(InputError, match=r"cell Counts!D2 holds a formula whose value is not stored"):
        read_counts(path)


def test_sheets_and_header_rows_as_asked(run, tmp_path):
    def more(book, sheet):
        book.create_sheet("New").append(HEAD)
        book["New"].append(ROWS[0])
        book.create_sheet("Hidden").append(["x"])
        book["Hidden"].sheet_state = "hidden"

    path = xlsx(tmp_path / "c.xlsx", [HEAD, *ROWS], change=more)
    both = [table for sheet in ("Counts", "New") for table in expand(path, sheet)]
    added = run(*both, species=("Alauda arvensis",), repeats="sum")
    assert added.records["count"].sum() == 10, "each sheet is a table"
    assert read_counts(path, CountOptions(sheet="New")).frame["count"].to_list() == [5.0]
    with pytest.raises(ConfigError, match=r"no such sheet; it has Counts, New, Hidden"):
        read_counts(path, CountOptions(sheet="Newer"))
    with pytest.raises(ConfigError, match="--sheet does nothing here"):
        read_counts(text(tmp_path / "c.csv", [HEAD, *ROWS]), CountOptions(sheet="New"))
    odd = xlsx(
        tmp_path / "o.xlsx", [["who knows"], ["lieu-dit", "saison", "brut"], ["A", 2001, 4], ["A", 2002, 5]]
    )
    asked = CountOptions({"site": "lieu-dit", "year": "saison", "count": "brut"}, header_row=2)
    assert read_counts(odd, asked).frame["count"].to_list() == [4.0, 5.0]
    (tmp_path / "old.xls").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    with pytest.raises(InputError, match=r"old Excel \(.xls\); save it as .xlsx"):
        read_counts(tmp_path / "old.xls")
    broken = tmp_path / "b.xlsx"
    broken.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(InputError, match=r"damaged|cannot be read"):
        read_counts(broken)


def test_names_below_a_title_are_found_though_the_site_is_called_by_an_odd_name(run, tmp_path):
    """Of odd names of all columns only the title was looked at; a blank proposal was all that was said of the site."""
    head = ["Bucht", "Wer", "Wann", "Art", "Zahl"]
    rows = [["Winter", None, None], ["Stand: Anzahl"], [], head, ["A", "o", "10.01.2020", "Tafelente", 3]]
    path = xlsx(tmp_path / "w.xlsx", rows)
    got = run(path, column_map=dict(zip(("site", "observer", "date", "species", "count"), head, strict=True)))
    assert got.records["count"].to_list() == [3]
    xlsx(tmp_path / "x.xlsx", [["Bucht", "Wer"], ["A", "o"]])
    with pytest.raises(
        ConfigError, match=r"is observer or site or date or count\. Its columns: Bucht, Wer\."
    ):
        run(tmp_path / "x.xlsx", column_map={"auto": ""})


def test_bytes_that_are_no_letters_are_not_guessed(tmp_path):
    path = tmp_path / "c.csv"
    path.write_bytes("site;year;count\nŁąka;2001;4\nA;2002;3\n".encode("cp1250"))
    with pytest.raises(InputError, match=r"line 2.*is not UTF-8"):
        read_counts(path)


def test_visits_are_read_from_a_sheet_and_dates_as_numbers_are_refused(run, tmp_path):
    head = ["observer", "site", "date", "species", "count"]
    rows = [["o", "A", dt.date(2020, 5, d), "Parus major", d] for d in range(1, 9)]
    path = xlsx(tmp_path / "v.xlsx", [head, *rows])
    lists = run(path, column_map={"auto": ""}).checklists
    assert sorted(lists["date"].to_list()) == [r[2] for r in rows]
    rows[4][2] = 45000
    with pytest.raises(InputError, match=r"Counts!C6, column 'date': '45000' is no date; .*write 2023-03-15"):
        run(xlsx(tmp_path / "w.xlsx", [head, *rows]), column_map={"auto": ""})
    sites = xlsx(
        tmp_path / "sites.xlsx", [["site", "height"], ["A", 5], ["B", "x"], *([k, 1] for k in range(30))]
    )
    with pytest.raises(InputError, match=r"Counts!B3, column 'height': 'x' is no number"):
        read_site_table(sites)


def test_a_table_of_counts_may_name_observer_and_effort(run, tmp_path):
    head = [*HEAD, "observer", "effort"]
    rows = [["A", "Parus major", y, y - 2000, f"o{y % 2}", 30 + y % 3] for y in range(2001, 2009)]
    out = run(xlsx(tmp_path / "c.xlsx", [head, *rows]))
    lists = out.checklists.sort("date")
    assert lists["observer_id"].to_list() == [r[4] for r in rows]
    assert lists["duration_minutes"].to_list() == [r[5] for r in rows]
    assert "duration of the visits, in minutes: the column 'effort'" in out.warnings
    rows[2][5] = "long"
    with pytest.raises(InputError, match=r"Counts!F4, column 'effort': 'long' is no effort"):
        run(xlsx(tmp_path / "d.xlsx", [head, *rows]))


def test_a_cube_of_gbif_is_a_table_of_records_by_cell_and_month(run, tmp_path):
    """Columns as GBIF's SQL downloads name them: a tab-separated table in a zip."""
    head = "specieskey species yearmonth eeacellcode occurrences mincoordinateuncertaintyinmeters".split()
    rows = [
        [k, name, f"20{y}-0{m}", f"1kmE3872N310{c}", y + m + c, 250]
        for k, name in ((2481139, "Larus argentatus"), (9515886, "Larus fuscus"))
        for y in (18, 19) for m in (5, 6) for c in (1, 2)
    ]  # fmt: skip
    table = text(tmp_path / "0001.csv", [head, *rows], "\t")
    with zipfile.ZipFile(tmp_path / "cube.zip", "w") as archive:
        archive.write(table, "0001.csv")
    got = read_counts(table, CountOptions(species="Larus fuscus"))
    named = {"site": "eeacellcode", "year": "yearmonth", "count": "occurrences", "month": "yearmonth"}
    assert got.columns == named
    assert got.frame["month"].unique().sort().to_list() == [5, 6]
    assert got.frame["count"].sum() == sum(r[4] for r in rows[8:])
    assert any("not of birds" in s for s in got.said)
    out = run(tmp_path / "cube.zip", species=("Larus fuscus",))
    assert out.records.height == 8
    assert "not of birds" in out.warnings
    by_key = read_counts(text(tmp_path / "k.csv", [[h for h in head if h != "species"], *([r[0], *r[2:]] for r in rows)]),
                         CountOptions(species="2481139"))  # fmt: skip
    assert by_key.frame.height == 8


@pytest.mark.parametrize("site", ["Probefläche", "PROBEFLÄCHE", "Probeflaeche", "Fläche", "lieu"])
@pytest.mark.parametrize("year", ["Année", "año", "Jahr"])
def test_names_of_columns_with_accents_are_known(read, site, year):
    """They stood in the list of usual names, and no column was ever found by them."""
    table = read(f"{site};{year};Anzahl;Längengrad\nA;2001;3;8,5\nA;2002;4;8,5\n")
    assert table.columns == {"site": site, "year": year, "count": "Anzahl"}


def test_a_workbook_of_sites_with_several_sheets_is_refused_with_what_can_be_done(tmp_path):
    """The message named the sheet of the counts, and an option that the command does not have."""
    path = xlsx(tmp_path / "b.xlsx", [["site", "x"], ["A", 1]], change=second)
    with pytest.raises(ConfigError, match="several sheets; save the one of the sites as a file of") as told:
        read_site_table(path)
    assert "--sheet " not in str(told.value)


def test_degrees_in_german_are_the_place(tmp_path):
    path = tmp_path / "Gebiete.csv"
    path.write_text("Gebiet;Breitengrad;Längengrad;Höhe\nA;49,5;8,5;300\n", encoding="utf-8")
    table = read_site_table(path)
    assert table.covariates == ("Höhe",)
    assert table.frame.select("latitude", "longitude").row(0) == (49.5, 8.5)


def years_of_sheets(path, *, doubled=False, named="Conteo {}"):
    """A workbook with a sheet for each year, a hidden one of notes, and a blank one."""

    def more(book, first):
        for year, counts in ((2009, [4, None, 2]), (2010, [6, 5, 0])):
            page = book.create_sheet("Copia" if doubled and year == 2010 else named.format(year))
            page.append(["Zona", "Conteo"] if year == 2010 else [f"Censo de {year}"])
            if year == 2009:
                page.append(["Zona", "Conteo"])
            for site, count in zip("ABC", counts, strict=True):
                page.append([site, count])
        book.create_sheet("vacía")
        notes = book.create_sheet("Notas")
        notes.append(["quién", "cuándo"])
        notes.sheet_state = "hidden"

    return xlsx(path, [["Zona", "Conteo"], ["A", 3], ["B", 1]], named.format(2008), more)


ZONES = {"site": "Zona", "count": "Conteo", "year": "year"}


def test_sheets_that_are_years_are_one_table(run, tmp_path):
    path = years_of_sheets(tmp_path / "patos.xlsx")
    with pytest.raises(ConfigError, match="or pass --sheet all if each is a part of one table, as a year"):
        run(path, species=("Anas acuta",), column_map=ZONES)
    out = run(path, species=("Anas acuta",), column_map=ZONES, sheet="all")
    rows = out.records.join(out.checklists.select("checklist_id", "site_id", "date"), on="checklist_id")
    rows = rows.select("site_id", pl.col("date").dt.year(), "count").sort("date", "site_id").rows()
    assert rows == [
        ("A", 2008, 3),
        ("B", 2008, 1),
        ("A", 2009, 4),
        ("C", 2009, 2),
        ("A", 2010, 6),
        ("B", 2010, 5),
        ("C", 2010, 0),
    ]
    assert (
        "patos.xlsx:Conteo 2009: no column says when; the year is that of the sheet, 'Conteo 2009'."
        in out.warnings
    )
    assert sorted(out.manifest["inputs"]) == [f"patos.xlsx:Conteo {year}" for year in (2008, 2009, 2010)]
    assert out.flow("records: missing counts") == -1
    out.check_flow_adds_up()
    (alone,) = (
        run(path, species=("Anas acuta",), column_map=ZONES, sheet="Conteo 2010")
        .checklists["date"]
        .dt.year()
        .unique()
    )
    assert alone == 2010


def test_sheets_that_are_no_parts_of_one_table_are_refused(run, tmp_path):
    given = {"species": ("Anas acuta",), "column_map": ZONES, "sheet": "all"}
    with pytest.raises(ConfigError, match="no column 'year'"):  # the name of one sheet says no year
        run(years_of_sheets(tmp_path / "a.xlsx", doubled=True), **given)
    with pytest.raises(InputError, match="4 counts of a site and time stand in more than one of"):
        run(years_of_sheets(tmp_path / "b.xlsx", named="2008, {0:x}"), **given)
    with pytest.raises(ConfigError, match="`fedmiss ingest --sheet all` joins the sheets"):
        read_counts(years_of_sheets(tmp_path / "c.xlsx"), replace(LARK, sheet="all"))


def test_a_year_in_the_name_of_a_sheet_is_none_where_a_column_says_when(tmp_path):
    """2008 and 2009 are when the sheet was written, as in Contaje 2008-2009, or the column's word stands."""
    for sheet, header in (
        ("2008-2009", ["Zona", "Conteo"]),
        ("2008", ["Zona", "Conteo", "Jahr"]),
        ("2008", ["Zona", "2007"]),
    ):
        (source,) = expand(xlsx(tmp_path / "t.xlsx", [header, ["A"] + [2007] * (len(header) - 1)], sheet))
        assert dated_by_sheet(source).header == tuple(header)


def test_a_year_in_the_name_of_a_sheet_is_no_covariate_of_sites_and_no_date_beside_one_that_is_mapped(
    run, tmp_path
):
    """A table of sites on a sheet called Sites 2020 had a covariate year."""
    sites = read_site_table(
        xlsx(tmp_path / "s.xlsx", [["site", "forest"], ["A", 1.5], ["B", 2.5]], "Sites 2020")
    )
    assert sites.covariates == ("forest",)
    visits = [["Quién", "Zona", "Cuándo", "Conteo"], ["ana", "A", "2019-05-03", 3]]
    named = {"observer": "Quién", "site": "Zona", "date": "Cuándo", "count": "Conteo"}
    out = run(xlsx(tmp_path / "v.xlsx", visits, "2018"), species=("Anas acuta",), column_map=named)
    assert out.checklists["date"].dt.to_string().to_list() == ["2019-05-03"]
    assert "no column says when" not in out.warnings
