"""Tables of visits in other forms: a date in three columns, a column for each species."""

import pytest

from fedmiss.errors import ConfigError, InputError

AUTO = {"auto": ""}
NAMED = {"observer": "observer", "site": "plotname", "count": "count"}
PARTS = "observer,plotname,year,month,day,species,count\no1,A,2024,5,6,Wren,3\n"
MATRIX = "observer,site,date,sky,Robin,Wren\no1,A,2024-05-06,sun,2,X\no2,B,2024-05-07,rain,0,\no1,B,2024-05-08,rain,NA,4\n"


@pytest.mark.parametrize("names", ["Jahr,Monat,Tag", "year,month,day"])
def test_a_date_in_three_columns_is_one_in_one(plain, names):
    """Surveys often have it so; a day of a month was taken for a date, and no such table could be read."""
    rows = "o1,A,{},Wren,{}\n"
    whole = ("2024-05-06", "2024-05-31", "2023-12-01", "2023-02-30", "2023-02-")
    parts = ("2024,5,6", "2024,05,31.0", "2023,12,01", "2023,2,30", "2023,2,")
    three = dict(zip(("year", "month", "day"), names.split(","), strict=True))
    tables = []
    for title, dates, named in (("date", whole, {"date": "date"}), (names, parts, three)):
        text = "".join(rows.format(date, count) for count, date in enumerate(dates))
        named |= {"observer": "observer", "site": "plot", "species": "species", "count": "n"}
        tables.append(plain(f"observer,plot,{title},species,n\n{text}", column_map=named))
    one, three = (table.checklists.sort("date")["date"].to_list() for table in tables)
    assert one == three
    assert len(one) == 3  # 30 February is no day
    assert tables[0].records["count"].to_list() == tables[1].records["count"].to_list()


def test_the_proposal_takes_a_date_in_three_columns(plain):
    with pytest.raises(ConfigError, match=r"year=year,month=month,day=day[.] Still to name: site"):
        plain(PARTS)
    with pytest.raises(ConfigError, match="not both"):
        plain(PARTS, column_map=NAMED | {"date": "day", "day": "day"})
    with pytest.raises(ConfigError, match=r"which column of .* is month"):
        plain(PARTS, column_map=NAMED | {"year": "year", "day": "day"})


def test_a_column_for_each_species_is_a_row_for_each_count(plain):
    """Surveys often have it so; each species had to be imported by itself."""
    with pytest.raises(ConfigError, match=r"Still to name: count\..*pass --wide"):
        plain(MATRIX)
    got = plain(MATRIX, column_map=AUTO, wide=True, keep=("sky",))
    rows = [line.split(",") for line in MATRIX.splitlines()[1:]]
    long = [
        f"{who},{at},{day},{sky},{bird},{n}"
        for who, at, day, sky, *counts in rows
        for bird, n in zip(("Robin", "Wren"), counts, strict=True)
    ]
    table = "observer,site,date,sky,species,count\n" + "\n".join(long)
    same = plain(table, column_map=AUTO, keep=("sky",))
    assert got.records.equals(same.records)
    assert got.records["count"].to_list() == [2, None, 0, 4]
    assert got.checklists.drop("line", strict=False).equals(same.checklists.drop("line", strict=False))
    assert got.flow("records: read") == same.flow("records: read") == 6
    assert "a species each: 'Robin', 'Wren'" in got.warnings


def test_a_blank_in_a_column_of_a_species_is_no_zero_but_on_a_complete_visit(plain):
    text = "observer,site,date,complete,Robin,Wren\no1,A,2024-05-06,{},2,\no2,B,2024-05-07,0,NA,4\no1,B,2024-05-08,{},,\n"
    counts = {}
    for said in ("1", "0"):
        got = plain(text.format(said, said), column_map=AUTO, wide=True)
        counts[said] = got.records.filter(got.records["species"] == "Wren").height
        assert "counts are missing, as nobody counted" in got.warnings
    bare = text.replace("complete,", "").replace("{},", "").replace("07,0,", "07,")
    zeros = plain(bare, column_map=AUTO, wide=True, assume_complete=True)
    assert zeros.records.filter(zeros.records["species"] == "Wren")["count"].sort().to_list() == [0, 0, 4]
    assert counts == {"1": 3, "0": 1}


def test_of_columns_of_species_those_asked_for_are_read(plain):
    got = plain(MATRIX, column_map=AUTO, wide=True, species=("wren",))
    assert got.records.select("species", "count").rows() == [("Wren", None), ("Wren", 4)]
    with pytest.raises(InputError, match=r"line 2, column 'sky': 'sun' is no count.*name the species with"):
        plain(MATRIX, column_map=AUTO, wide=True)
    named = {"observer": "observer", "site": "site", "date": "date"}
    with pytest.raises(ConfigError, match="leave count out of --map, or --wide"):
        plain(MATRIX, column_map=named | {"count": "Wren"}, wide=True)
    every = {"protocol": "sky", "start": "Robin", "duration": "Wren"}
    with pytest.raises(ConfigError, match="none is left for a species"):
        plain(MATRIX, column_map=named | every, wide=True)


def test_a_total_beside_columns_of_species_is_no_species(plain):
    """It was one, and with the map that the table proposes it was the count, which --wide refuses."""
    text = "observer,site,date,Robin,Wren,Total\no1,A,2024-05-06,2,1,3\n"
    for named in ({"auto": ""}, {"observer": "observer", "site": "site", "date": "date"}):
        got = plain(text, column_map=named, wide=True)
        assert got.records.select("species", "count").rows() == [("Robin", 2), ("Wren", 1)]
        assert "not used: 'Total'" in got.warnings
    asked = plain(text, column_map=AUTO, wide=True, species=("total",))
    assert asked.records.select("species", "count").rows() == [("Total", 3)]


def test_a_column_for_each_species_and_a_date_in_three_columns_make_no_table_of_counts(plain):
    text = "Observer,Site,Jahr,Monat,Tag,Amsel,Star\no1,A,2020,5,3,1,0\no1,A,2020,5,13,2,0\n"
    got = plain(text, column_map=AUTO, wide=True)
    assert got.records.sort("species", "count")["count"].to_list() == [1, 2, 0, 0]


@pytest.mark.parametrize("column", ["year", "day"])
def test_years_and_days_of_months_are_no_dates(plain, column):
    words = rf"line 2, column '{column}'.*is no date.*year=\.\.\.,month=\.\.\.,day="
    with pytest.raises(InputError, match=words):
        plain(PARTS, column_map=NAMED | {"species": "species", "date": column})


def test_visits_of_days_in_a_table_like_one_of_monthly_counts_are_read_as_the_message_says(plain):
    text = "site,year,month,day,observer,count\nA,2024,5,6,o1,3\nA,2024,5,16,o2,4\n"
    with pytest.raises(InputError, match="stands 2 times") as told:
        plain(text)
    said = str(told.value).partition("--map ")[2].partition(" (")[0].replace("=...", "=observer")
    got = plain(text, column_map=dict(pair.split("=") for pair in said.split(",")), species=("Wren",))
    assert got.records.sort("count")["count"].to_list() == [3, 4]
    assert sorted(str(day) for day in got.checklists["date"]) == ["2024-05-06", "2024-05-16"]
