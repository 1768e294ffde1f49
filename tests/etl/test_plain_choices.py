"""What a plain table leaves open is refused with line, value and remedy, and the remedy works."""

from __future__ import annotations

import pytest

from fedmiss.errors import ConfigError, InputError

ROWS = "o1,A,2024-05-06,Wren,3\no2,B,2024-05-07,Wren,X\no2,B,2024-06-07,Wren,\n"


@pytest.fixture
def rows(plain):
    return lambda text, **settings: plain(
        f"observer,site,date,species,count\n{text}", column_map={"auto": ""}, **settings
    )


def test_a_number_an_x_and_a_blank(rows):
    got = rows(ROWS).records
    assert got.sort("count", nulls_last=True)["count"].to_list() == [3, None]  # the blank one is no record


@pytest.mark.parametrize("count", ["10-20", "ca. 5", "5+", "2.5", "many", "-3"])
def test_what_is_no_count_never_becomes_a_presence(rows, count):
    text = ROWS + f"o1,C,2024-05-09,Wren,{count}\n"
    with pytest.raises(InputError) as told:
        rows(text)
    assert f"t.csv line 5, column 'count': {count!r}" in str(told.value)
    assert "--missing" in str(told.value)
    assert rows(text, missing=(count,)).records.height == 2  # as if nobody had counted there


def test_decimals_without_a_fraction_are_numbers(rows):
    got = rows('o1,A,2024-05-06,Wren,"2,0"\no1,B,2024-05-06,Wren,7.00\n').records
    assert sorted(got["count"]) == [2, 7]


def test_a_date_that_may_be_two_days(rows):
    text = "o1,C,05/06/2024,Wren,4\no1,A,31.05.2024,Wren,4\n"  # points need no word
    with pytest.raises(InputError, match="line 2, column 'date': '05/06/2024' may be two days"):
        rows(text)
    for dates, day in {"day-first": "2024-06-05", "month-first": "2024-05-06"}.items():
        days = rows(text, dates=dates).checklists["date"].dt.to_string()
        assert sorted(days) == sorted([day, "2024-05-31"])
    with pytest.raises(ConfigError, match="--dates is 'european'"):
        rows(text, dates="european")


@pytest.mark.parametrize("date", ["5/1/19", "05.01.19", "19-05-01", "12/31/18", "3019-05-01"])
@pytest.mark.parametrize("dates", ["", "day-first", "month-first"])
def test_a_year_of_two_digits_is_not_one_of_antiquity(rows, date, dates):
    got = rows(ROWS + f"o1,C,{date},Wren,3\n", dates=dates)
    assert got.checklists["date"].dt.year().unique().to_list() == [2024]
    assert any(f"'{date}'" in sentence for sentence in got.manifest["warnings"])


def test_two_spellings_of_a_site(rows):
    text = "o1,North Pond,2024-05-06,Wren,3\no1,north  pond,2024-06-06,Wren,4\n"
    with pytest.raises(InputError, match=r"'North Pond' \(line 2\) is also written 'north  pond' \(line 3\)"):
        rows(text)
    for spellings, sites in (("join", 1), ("apart", 2)):
        assert rows(text, spellings=spellings).checklists["site_id"].n_unique() == sites
