"""Numbers as words: never rounded into something else."""

import math
from types import SimpleNamespace

import pytest

from fedmiss.report.sections import change_cell
from fedmiss.report.words import count, number, per_year, percent, quantity, share, year_list


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,300"), (0.01234, "0.0123"), (0, "0"), (-3.456, "−3.46"), (math.nan, "n/a"),
        (1e-7, "1.0 × 10⁻⁷"), (999.7, "1,000"), (0.9999, "1.00"), (9.9949e-05, "1.0 × 10⁻⁴"),
        (-0.09996, "−0.100"),
    ],
)  # fmt: skip
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 %"), (1.0, "100 %"), (0.9962, "99.6 %"), (0.99997, "99.99 %"), (0.00002, "less than 0.01 %"),
        (0.002, "0.2 %"), (0.4567, "46 %"),
    ],
)  # fmt: skip
def test_a_share_that_is_not_all_or_nothing_is_not_written_so(value, text):
    assert share(value) == text


def test_intervals_go_with_their_numbers():
    assert percent(-3.04) == "−3.0 %"
    assert [percent(v) for v in (-99.97, -99.99999, -100.0)] == ["−99.97 %", "−99.99 %", "−100 %"]
    assert [percent(v) for v in (434.2, 24895.0, 1.33e20)] == ["+434 %", "+24,900 %", "+1.3 × 10²⁰ %"]
    assert [percent(v) for v in (-0.028, 0.06, -0.001, 0.0)] == ["−0.03 %", "+0.1 %", "0.0 %", "0.0 %"]
    assert [percent(v) for v in (-5.02, -4.97, 4.96, 5.1)] == ["−5.02 %", "−4.97 %", "+4.96 %", "+5.1 %"]
    assert per_year(-3.0, -4.0, -2.0) == "−3.0 % per year (95 % interval −4.0 % to −2.0 %)"
    assert per_year(1.0, math.nan, math.nan) == "+1.0 % per year (no interval available)"
    assert quantity(1234.0, 1000.0, 1500.0, "birds") == "1,230 birds (95 % interval 1,000 to 1,500)"
    assert quantity(5.0, math.nan, math.nan, "birds") == "5.00 birds (no interval available)"
    assert count(1234.5) == "1,234"


@pytest.mark.parametrize(
    ("n_draws", "lo", "text"), [(60, 0.5, "+1.0 %"), (60, math.nan, "n/a"), (0, math.nan, "+1.0 %")]
)
def test_a_change_without_its_interval_is_shown_only_where_none_was_asked_for(n_draws, lo, text):
    assert change_cell(SimpleNamespace(n_draws=n_draws), 1.0, lo).text == text


@pytest.mark.parametrize(
    ("years", "text"),
    [
        ([2004], "2004"),
        ([2004, 2006], "2004 and 2006"),
        (range(2004, 2009), "2004, 2005, 2006, 2007 and 2008"),
        (range(2004, 2010), "6 years (2004 to 2009)"),
        ([2001, *range(2004, 2009)], "2001, 2004, 2005, 2006, 2007 and 2008"),  # not all between are meant
    ],
)
def test_years_in_words_name_each_unless_they_follow_each_other(years, text):
    assert year_list([str(year) for year in years]) == text
