"""What a plain table leaves open is refused with line, value and remedy, and the remedy works."""

from __future__ import annotations

import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.ingest import IngestSettings, ingest

HEAD = "observer,site,date,species,count\n"
ROWS = "o1,A,2024-05-06,Wren,3\no2,B,2024-05-07,Wren,X\no2,B,2024-06-07,Wren,\n"


def records(tmp_path, rows, **settings):
    (tmp_path / "t.csv").write_text(HEAD + rows, encoding="utf-8")
    chosen = IngestSettings(column_map={"auto": ""}, **settings)
    manifest = ingest([tmp_path / "t.csv"], tmp_path / "out", chosen, overwrite=True)
    return pl.read_parquet(tmp_path / "out" / "records.parquet"), manifest


def test_a_number_an_x_and_a_blank(tmp_path):
    got, _ = records(tmp_path, ROWS)
    assert got.sort("count", nulls_last=True)["count"].to_list() == [3, None]  # the blank one is no record


@pytest.mark.parametrize("count", ["10-20", "ca. 5", "5+", "2.5", "many", "-3"])
def test_what_is_no_count_never_becomes_a_presence(tmp_path, count):
    rows = ROWS + f"o1,C,2024-05-09,Wren,{count}\n"
    with pytest.raises(InputError) as told:
        records(tmp_path, rows)
    assert f"t.csv line 5, column 'count': {count!r}" in str(told.value)
    assert "--missing" in str(told.value)
    got, _ = records(tmp_path, rows, missing=(count,))
    assert got.height == 2  # as if nobody had counted there


def test_decimals_without_a_fraction_are_numbers(tmp_path):
    got, _ = records(tmp_path, 'o1,A,2024-05-06,Wren,"2,0"\no1,B,2024-05-06,Wren,7.00\n')
    assert sorted(got["count"]) == [2, 7]


def test_a_date_that_may_be_two_days(tmp_path):
    rows = ROWS + "o1,C,05/06/2024,Wren,4\n"
    with pytest.raises(InputError, match="line 5, column 'date': '05/06/2024' may be two days"):
        records(tmp_path, rows)
    days = {"day-first": "2024-06-05", "month-first": "2024-05-06"}
    for dates, day in days.items():
        records(tmp_path, rows, dates=dates)
        visits = pl.read_parquet(tmp_path / "out" / "checklists.parquet")
        assert day in visits.filter(pl.col("site_id") == "C")["date"].cast(pl.String).to_list()
    with pytest.raises(ConfigError, match="--dates is 'european'"):
        records(tmp_path, rows, dates="european")


def test_european_dates_need_no_word(tmp_path):
    records(tmp_path, "o1,A,31.05.2024,Wren,4\n")
    visits = pl.read_parquet(tmp_path / "out" / "checklists.parquet")
    assert visits["date"].cast(pl.String).to_list() == ["2024-05-31"]


def test_two_spellings_of_a_site(tmp_path):
    rows = "o1,North Pond,2024-05-06,Wren,3\no1,north  pond,2024-06-06,Wren,4\n"
    with pytest.raises(InputError, match=r"'North Pond' \(line 2\) is also written 'north  pond' \(line 3\)"):
        records(tmp_path, rows)
    records(tmp_path, rows, spellings="join")
    assert pl.read_parquet(tmp_path / "out" / "checklists.parquet")["site_id"].n_unique() == 1
    records(tmp_path, rows, spellings="apart")
    assert pl.read_parquet(tmp_path / "out" / "checklists.parquet")["site_id"].n_unique() == 2
