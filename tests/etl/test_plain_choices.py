"""What a plain table leaves open is refused with line, value and remedy, and the remedy works."""

import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError

ROWS = "o1,A,2024-05-06,Wren,3\no2,B,2024-05-07,Wren,X\no2,B,2024-06-07,Wren,\n"


@pytest.fixture
def rows(plain):
    return lambda text, **settings: plain(
        f"observer,site,date,species,count\n{text}", column_map={"auto": ""}, **settings
    )


def test_a_number_an_x_and_a_blank(rows):
    got = rows(ROWS + 'o1,A,2024-05-08,Wren,"2,0"\no1,B,2024-05-08,Wren,7.00\n').records
    # the blank one is no record
    assert got.sort("count", nulls_last=True)["count"].to_list() == [2, 3, 7, None]


@pytest.mark.parametrize("count", ["10-20", "ca. 5", "5+", "2.5", "many", "-3"])
def test_what_is_no_count_never_becomes_a_presence(rows, count):
    text = ROWS + f"o1,C,2024-05-09,Wren,{count}\n"
    with pytest.raises(InputError) as told:
        rows(text)
    assert f"t.csv line 5, column 'count': {count!r}" in str(told.value)
    assert "--missing" in str(told.value)
    assert rows(text, missing=(count,)).records.height == 2  # as if nobody had counted there


@pytest.mark.parametrize(
    ("code", "written"), [("999", "999.0"), ("-1", '"-1,00"'), ("nd", " ND "), ("9.0", "9")]
)
def test_a_code_for_a_missing_count_is_found_in_every_form(rows, code, written):
    """A table that was saved by another program has 999.0 for 999: it became 999 birds."""
    assert rows(ROWS + f"o1,C,2024-05-09,Wren,{written}\n", missing=(code,)).records.height == 2


@pytest.mark.parametrize(("code", "count"), [("+7", "7"), ("7+", "7")])
def test_a_limit_named_as_missing_leaves_the_same_number_a_count(rows, code, count):
    """--missing +50 took every 50 out."""
    text = ROWS + f"o1,C,2024-05-09,Wren,{count}\no1,D,2024-05-09,Wren,{code}\n"
    assert rows(text, missing=(code,)).records.height == 3


@pytest.mark.parametrize(
    ("count", "why"),
    [('"1,000"', "may be thousands"), ("2.000", "write 2000 or 2"), ("\u0661\u0662", "is no count")],
)
def test_a_count_that_may_be_another_number_is_refused(rows, count, why):
    """1,000 and 1.000 birds were read as 1, and a number in Arabic digits as a missing count."""
    with pytest.raises(InputError, match=f"line 3, column 'count'.*{why}"):
        rows(f"o1,A,2024-05-06,Wren,3\no1,B,2024-05-06,Wren,{count}\n")


def test_points_are_decimal_ones_where_no_zeros_stand_behind_them_or_everywhere(read):
    for counts, want in ((("1.250", "12"), None), (("1.25", "12"), 1.25), (("1.250", "12.000"), 1.25)):
        text = "site,year,count\n" + "".join(f"A,{2001 + at},{count}\n" for at, count in enumerate(counts))
        if want is None:
            with pytest.raises(InputError, match=r"line 2, column 'count'.*point; write 1250 or 1\.25"):
                read(text)
        else:
            assert read(text).frame["count"][0] == want


def test_quotes_around_values_are_no_part_of_them_whatever_separates(plain):
    """As R's write.table has them, and Excel around a value with a comma or a quote."""
    text = 'observer,site,date,species,count\nAnn,"Mill, old",2024-05-06,Wren,3\nAnn,"5"" pole",2024-05-06,Wren,4'
    tabs = text.replace("Mill, old", "Mill; old").replace(",", "\t").replace("Mill; old", "Mill, old")
    all_quoted = tabs.replace("Ann", '"Ann"').replace("Wren", '"Wren"').replace("2024-05-06", '"2024-05-06"')
    want = plain(text, column_map={"auto": ""})
    assert set(want.checklists["site_id"]) == {"Mill, old", '5" pole'}
    for other in (tabs, all_quoted, all_quoted.replace('5""', '5\\"')):
        got = plain(other, name="t.txt", column_map={"auto": ""})
        assert got.checklists.equals(want.checklists)
        assert got.records.equals(want.records)


def test_coordinates_that_are_none_are_said(plain):
    rows = ["A,50\u00b030N,8,3,2001", "B,50.1,3512345,4,2001", "C,NA,,5,2001", 'D,"50,2",-8,6,2001']
    head = "site,latitude,longitude,count,year"
    visits = [f"{head},observer,date,species", *(f"{row},o1,2024-05-06,Wren" for row in rows)]
    for got in (plain("\n".join([head, *rows])), plain("\n".join(visits), column_map={"auto": ""})):
        for line, key, value in ((2, "latitude", "50\u00b030N"), (3, "longitude", "3512345")):
            said = f"{key!r}: 1 value could not be read and counts as blank; line {line}: {value!r}."
            assert said in got.warnings


def test_a_place_at_0_0_is_one_that_nobody_knows(plain):
    rows = ["A,0,0.0,3,2001", "B,0,8,4,2001", "C,50,0,5,2001"]
    head = "site,latitude,longitude,count,year"
    visits = [f"{head},observer,date,species", *(f"{row},o1,2024-05-06,Wren" for row in rows)]
    for got in (plain("\n".join([head, *rows])), plain("\n".join(visits), column_map={"auto": ""})):
        place = got.checklists.sort("site_id").select("latitude", "longitude")
        assert place.rows() == [(None, None), (0.0, 8.0), (50.0, 0.0)]
        assert "1 place at latitude 0 and longitude 0 counts as blank; line 2: " in got.warnings


def test_an_observer_in_two_spellings_is_said_without_the_name(rows):
    got = rows("A. Meier,A,2024-05-06,Wren,3\nA.meier,A,2024-05-06,Robin,4\nB,A,2024-05-06,Wren,4\n")
    assert "2 observers differ in case, blanks, accents or zeros only (as in lines 2 and 3)" in got.warnings
    assert "eier" not in got.warnings


@pytest.mark.parametrize("order", [1, -1])
def test_a_blank_count_is_no_zero_where_any_row_of_its_visit_says_complete(plain, order):
    visit = ["o1,A,2024-05-06,Wren,3,1\n", "o1,A,2024-05-06,Robin,NA,\n"][::order]
    text = "observer,site,date,species,count,complete\n" + "".join(visit)
    got = plain(text + "o1,B,2024-05-06,Robin,2,1\n", column_map={"auto": ""})
    assert sorted(got.visits("Robin").values()) == [2]
    assert sorted(got.visits("Wren").values()) == [0, 3]


def test_blanks_around_texts_of_parquet_make_no_second_visit(tmp_path, run):
    rows = {
        "observer": ["Ann ", "Ann"], "site": ["A", "A "], "date": ["2024-05-06"] * 2,
        "species": ["Wren", "Robin"],
    }  # fmt: skip
    pl.DataFrame(rows | {"count": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    got = run(tmp_path / "t.parquet", column_map={"auto": ""}, assume_complete=True)
    assert len(got.visits("Wren")) == got.checklists.height == 1


WITH_A_TIME = [
    "2024-05-31, 07:00:00", "2024-05-31; 7:00 PM", "2024-05-31_07:00", "2024-05-31 7 AM", "2024-05-31 morning",
    "2024-05-31T0700Z", "2024-05-31 07:00:00.000 +02:00", "2024-05-31T23:30:00+02:00", "2024-05-31 07:00 - 09:00",
    "2024-05-31 07:00 - 2024-05-31 09:00", "2024-05-31T07:00/2024-05-31T09:00", "31.05.2024 10.30.00", "31.5.2024 7:00",
    "31/5/2024 6:30", "31/05/2024 16:30:00", "31/05/2024, 07:00:00",
]  # fmt: skip
TO_ANOTHER_DAY = [
    "2020-05-01 to 08", "2020-05-01 - 08.05.", "2020-05-01 to 08.05", "2020-05-01, 08.05.2020", "2020-05-01 bis 8.",
    "2020-05-01 - 02.05.2020 07:00", "2020-05-06 - 2020-06-08", "06.05.2020 - 08.06.2020", "2020-05-06 to 2020-05-08",
]  # fmt: skip


def sites_of(texts):
    """One visit at a site of its own for each text that stands where a date does."""
    return "".join(f'o1,s{k},"{text}",Wren,3\n' for k, text in enumerate(texts))


def test_what_stands_behind_a_date_may_be_a_time(rows):
    days = rows(sites_of(WITH_A_TIME), dates="day-first").checklists["date"]
    assert days.dt.to_string().to_list() == ["2024-05-31"] * len(WITH_A_TIME)


def test_what_stands_behind_a_date_may_be_no_other_day(rows):
    """A span was its first day, so that its counts stood in another month."""
    got = rows(ROWS + sites_of(TO_ANOTHER_DAY))
    assert set(got.checklists["site_id"]) == {"A", "B"}
    n = len(TO_ANOTHER_DAY)
    assert f"{n} of {n + 3} rows were left out; line 5: no usable date" in got.warnings


def test_numbers_of_visits_do_not_join_sites_and_days(plain):
    """A visit is at one site on one day: 1 and 2 are the numbers of the visits of a site, and a blank is none."""
    got = plain(
        "visit,observer,site,date,species,count\n1,o1,A,2024-05-06,Wren,1\n2,o1,A,2024-06-06,Wren,2\n"
        "1,o2,B,2024-05-07,Wren,4\n1,o2,B,2024-05-07,Wren,8\n,o1,C,2024-05-08,Wren,16\n,o2,C,2024-05-08,Wren,32\n"
        "v7,o1,D,2024-05-09,Wren,64\n",
        column_map={"auto": ""},
    )
    table = got.records.join(got.checklists, on="checklist_id").sort("count")
    assert table.select("observer_id", "site_id", "count").rows() == [
        ("o1", "A", 1), ("o1", "A", 2), ("o2", "B", 12), ("o1", "C", 16), ("o2", "C", 32), ("o1", "D", 64),
    ]  # fmt: skip
    assert table["checklist_id"][-1] == "v7|D|2024-05-09"


def test_a_visit_has_one_name_whatever_else_is_in_its_table(plain):
    """Folders that share it would count it twice."""
    head, mine = "visit,observer,site,date,species,count\n", "1,o1,A,2024-05-06,Wren,1\n"
    alone = plain(head + mine, column_map={"auto": ""})
    beside = plain(f"{head}{mine}1,o1,B,2024-05-07,Wren,4\n", column_map={"auto": ""})
    assert set(alone.checklists["checklist_id"]) < set(beside.checklists["checklist_id"])


@pytest.mark.parametrize("other", ["06:30", "6:30 AM", "06:30:00"])
def test_one_time_in_two_forms_is_one_visit(plain, other):
    """As two it would give each species a zero."""
    text = f"start,observer,site,date,species,count\n6:30,o,A,2024-05-06,Wren,1\n{other},o,A,2024-05-06,Robin,2\n"
    got = plain(text, column_map={"auto": ""}, assume_complete=True)
    assert got.checklists.height == 1
    assert got.flow("visits: zeros implied") == 0


def test_columns_that_nothing_is_made_of_are_named(plain):
    """Effort in a column of another name would be lost without a word."""
    text = "observer,site,date,species,count,km,hours walked,sky\no,A,2024-05-06,Wren,1,2,3,blue\n"
    told = plain(text, column_map={"auto": ""}).warnings
    assert "columns that are not used: 'hours walked', 'sky'. " in told
    assert "name it in --map: duration (minutes), n_observers." in told
    kept = plain(text, column_map={"auto": ""}, keep=("hours walked", "sky")).warnings
    assert "not used" not in kept


@pytest.mark.parametrize("word", ["NA", "nan", ""])
def test_a_missing_time_is_no_fault(plain, word):
    """As R writes it; visits without a time are one per observer, site and day."""
    text = f"start,observer,site,date,species,count\n{word},o,A,2024-05-06,Wren,1\n,o,A,2024-05-06,Robin,2\n"
    got = plain(text, column_map={"auto": ""}, assume_complete=True)
    assert got.checklists.height == 1
    assert "start" not in got.warnings


@pytest.mark.parametrize("other", ["a ", "\u00c1"])
def test_a_site_in_two_spellings_that_are_joined_is_one_visit(rows, other):
    text = f"o,A,2024-05-06,Wren,1\no,{other},2024-05-06,Robin,2\n"
    got = rows(text, spellings="join", assume_complete=True)
    assert got.checklists.height == 1


@pytest.mark.parametrize("title", ["weather (sun, rain)", "weather\nof the day", 'sun, ""clear"", rain'])
def test_a_column_name_in_quotes_may_hold_the_separator_and_line_ends(plain, title):
    """Every column behind such a name was read as its neighbour."""
    visits = f'observer,site,date,"{title}",species,count,n\no1,A,2024-05-06,sun,Wren,3,70\n'
    assert plain(visits, column_map={"auto": ""}).records.select("species", "count").rows() == [("Wren", 3)]
    counts = f'site,"{title}",year,count,pairs\nA,sun,2001,3,70\nB,"a, b",2001,4,80\n'
    assert sorted(plain(counts).records["count"]) == [3, 4]


def test_a_quote_for_inches_in_a_column_name_is_a_sign_of_it(plain):
    # more than is looked at for the names
    rows = "".join(f"site {k},2001,{k},{'7' * 90}\n" for k in range(1000))
    assert plain(f'site,year,count,length 5"\n{rows}').records.height == 1000
    assert plain('length 5";site;year;count\n7;A;2001;3\n7;B;2001;4\n').records.height == 2


def test_places_of_one_name_and_two_ids_are_two(plain):
    rows = "Mill Pond,{},1,{},3\nMill Pond,{},2,{},4\n"
    visits = "site,date,site id,observer,count\n" + rows.format("2024-05-06", "o", "2024-05-06", "o")
    got = plain(visits, column_map={"auto": ""}, species=("Wren",))
    assert sorted(got.checklists["site_id"]) == ["1", "2"]
    counts = "site,year,Site_ID,weight,count\n" + rows.format("2001", "1", "2001", "1")
    assert sorted(plain(counts).checklists["site_id"]) == ["1", "2"]


def test_names_beside_ids_of_sites_are_their_names(plain):
    """They were lost from reports."""
    visits = "site,date,siteid,observer,species,count\nMill Pond,2024-05-06,7,o,Wren,3\n"
    counts = "Site,year,site code,count\nMill Pond,2001,7,3\n"
    for got in (plain(visits, column_map={"auto": ""}), plain(counts)):
        assert got.checklists.select("site_id", "site_name").rows() == [("7", "Mill Pond")]
        assert "are not used" not in got.warnings


@pytest.mark.parametrize("asked", ["Alauda arvensis", "alauda ARVENSIS"])
def test_a_column_of_species_with_an_unknown_name_is_no_reason_to_add_them_up(plain, asked):
    """--map may leave the column of species out: what the species asked for stands in is one, whatever it is called."""
    text = "who,plot,day,Fugl,n\no,A,2024-05-06,Alauda arvensis,3\no,A,2024-05-06,Turdus merula,9\n"
    named = {"observer": "who", "site": "plot", "date": "day", "count": "n"}
    with pytest.raises(ConfigError, match=r"If that names the species: --map .*,species=Fugl") as told:
        plain(text, column_map=named, species=(asked,))
    assert f"{asked!r} stands in the column 'Fugl'" in str(told.value)
    got = plain(text, column_map=named | {"species": "Fugl"}, species=(asked,))
    assert got.records.select("species", "count").rows() == [("Alauda arvensis", 3)]


def test_remarks_that_name_the_species_once_make_no_species_of_the_others(plain):
    """The visits were of a species called windy."""
    rows = "".join(f"o,A,2024-05-{day:02},windy,3\n" for day in range(10, 20))
    text = f"observer,site,date,notes,count\no,A,2024-05-06,Mute swan,1\n{rows}"
    with pytest.raises(ConfigError, match="If it holds remarks, leave it out of the table"):
        plain(text, column_map={"auto": ""}, species=("Mute Swan",))


def test_lines_of_separators_only_are_no_rows(rows, plain):
    assert rows("o,A,2024-05-06,Wren,3\n" + ",,,,\n" * 20).flow("records: read") == 1
    assert plain("site,year,count\nA,2001,3\n,,\n\n,,\n").flow("records: read") == 1


@pytest.mark.parametrize("date", ["05/06/2024", "5-6-2024"])
def test_a_date_that_may_be_two_days(rows, date):
    # points need no word, and months neither
    text = f"o1,C,{date},Wren,4\no1,A,31.05.2024,Wren,4\no1,A,31-May-2024,Wren,4\n"
    with pytest.raises(InputError, match=f"line 2, column 'date': '{date}' may be two days"):
        rows(text)
    for dates, day in {"day-first": "2024-06-05", "month-first": "2024-05-06"}.items():
        days = rows(text, dates=dates).checklists["date"].dt.to_string()
        assert sorted(set(days)) == sorted([day, "2024-05-31"])
    with pytest.raises(ConfigError, match="--dates is 'european'"):
        rows(text, dates="european")


@pytest.mark.parametrize(
    ("dates", "said"),
    [
        (
            ["15/1/2008", "3/2/2008"],
            "line 3, column 'date': '3/2/2008' may be two days.*('15/1/2008' is day-first)",
        ),
        (
            ["1-15-2008"],
            "line 2, column 'date': '1-15-2008' has an order.*month-first ('1-15-2008' is month-first)",
        ),
        (["15/1/2008", "1/15/2008"], "('15/1/2008' is day-first and '1/15/2008' is month-first)"),
    ],
)
def test_a_date_that_can_only_be_one_day_shows_the_order_to_pass(rows, dates, said):
    """The first of them was called two days."""
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        rows("".join(f"o1,S{i},{date},Wren,4\n" for i, date in enumerate(dates)))


@pytest.mark.parametrize("dates", ["", "day-first", "month-first"])
def test_a_year_of_two_digits_is_not_one_of_antiquity(rows, dates):
    texts = ["5/1/19", "05.01.19", "19-05-01", "12/31/18", "3019-05-01"]
    got = rows(ROWS + sites_of(texts), dates=dates)
    assert set(got.checklists["site_id"]) == {"A", "B"}
    assert "5 of 8 rows were left out; line 5: no usable date" in got.warnings
    assert "'5/1/19'" in got.warnings


def test_two_spellings_of_a_site(rows):
    text = "o1,North Pond,2024-05-06,Wren,3\no1,north  pond,2024-06-06,Wren,4\n"
    with pytest.raises(InputError, match=r"'North Pond' \(line 2\) is also written 'north  pond' \(line 3\)"):
        rows(text)
    for spellings, sites in (("join", 1), ("apart", 2)):
        assert rows(text, spellings=spellings).checklists["site_id"].n_unique() == sites


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,s1,31 May 2020,3\na,s1,5 Mai 2021,2\n", r"none of 2 rows .* \(line 2: no usable .* '31 May 2020'\)"),
        ("a,s1,2020-05-31,NA\na,s1,2021-05-31,\n", r"none of 2 rows .* \(the count is missing, NA or blank\)"),
    ],
)  # fmt: skip
def test_a_table_of_which_no_row_can_be_used_is_refused(plain, rows, said):
    """It was imported as nothing, with the note that every complete checklist counts as a zero."""
    table = "observer,site,date,count\n" + rows
    for complete in (False, True):
        with pytest.raises(InputError, match=said):
            plain(table, column_map={"auto": ""}, species=("Lark",), assume_complete=complete)


def test_one_row_that_is_left_out_is_one_of_so_many_rows(plain):
    text = "observer,site,date,count\na,s1,31.05.20,3\na,s1,2021-05-31,2\n"
    got = plain(text, column_map={"auto": ""}, species=("Lark",))
    assert "1 of 2 rows was left out; line 2: no usable date" in got.warnings


@pytest.mark.parametrize("at", range(3))
def test_a_zero_byte_in_a_value_is_refused_where_it_stands(plain, at):
    """It became part of the name of a site, which every screen shows like another."""
    values = ["A", "2001", "3"]
    values[at] += "\0"
    with pytest.raises(InputError, match=rf"line 3, column '{'site year count'.split()[at]}'.*zero byte"):
        plain(f"site,year,count\nA,2002,3\n{','.join(values)}\n", species=("Wren",))
    with pytest.raises(InputError, match=r"line 2, column 'site'.*zero byte"):
        plain("observer,site,date,species,count\no,A\0,2024-05-06,Wren,3\n", column_map={"auto": ""})


def test_a_value_that_reads_as_blank_is_no_row_that_was_left_out(plain):
    """The note of the rows left out gave values of rows that were kept as examples."""
    said = plain(
        "observer,site,date,species,count,complete\n"
        "o,A,2024-05-06,Wren,3,perhaps\n,A,2024-05-07,Wren,3,ja\no,A,2024-05-08,Wren,3,WAHR\no,A,2024-05-09,Wren,3,nein\n",
        column_map={"auto": ""},
    )
    assert "1 of 4 rows was left out; line 3: no usable observer ''.\n" in said.warnings
    assert "'complete': 1 value could not be read and counts as blank; line 2: 'perhaps'." in said.warnings
    assert said.checklists.sort("date")["complete"].to_list() == [False, True, False]
