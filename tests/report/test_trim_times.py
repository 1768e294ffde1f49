"""Time points of TRIM's models: their kinds and distances, bases among them, and years that look mistyped."""

import datetime as dt
import json
import re

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.report.trim import TrimSettings, fit_trim
from fedmiss.report.trim.files import as_json


def test_dates_as_time_points_are_texts_in_json():
    times = [dt.date(year, 1, 1) for year in range(2001, 2005)]
    counts = [1, 2, 3, 4, 2, 3, 4, 4, 5, 6, 7, 8]
    fit = fit_trim(np.repeat(["a", "b", "c"], 4), times * 3, counts, TrimSettings(model=3))
    said = json.loads(json.dumps(as_json(fit)))
    assert [str(time)[:10] for time in said["time_points"]] == [str(time) for time in times]


def test_times_that_are_texts_or_dates_keep_their_order_and_their_distance():
    years, counts = [8, 9, 10, 13], [4, 6, 7, 12, 3, 5, 5, 11]
    site = np.repeat(["a", "b"], 4)
    for settings in (TrimSettings(model=2), TrimSettings(model=3)):
        meant = fit_trim(site, years * 2, counts, settings).overall()["slope"].iloc[0]
        texts = fit_trim(site, [str(year) for year in years] * 2, counts, settings)
        assert texts.overall()["slope"].iloc[0] == pytest.approx(meant, rel=1e-12)
    dates = [dt.date(2000 + year, 6, 1) for year in years]
    assert fit_trim(site, dates * 2, counts).overall()["slope"].iloc[0] == pytest.approx(meant, rel=1e-12)
    months = [dt.date(2000, month, 1) for month in (2, 3, 4, 7)]  # the same distances
    assert fit_trim(site, months * 2, counts).overall()["slope"].iloc[0] == pytest.approx(meant, rel=1e-12)


def test_a_base_or_a_window_that_is_not_among_the_times_is_named():
    fit = fit_trim([1, 1, 2, 2], [2000, 2001] * 2, [1, 2, 3, 4])
    with pytest.raises(ConfigError, match="the base 1999 is not"):
        fit.index(base=[1999, 2000])
    with pytest.raises(ConfigError, match="1999 is not among"):
        fit.overall(window=(1999, 2001))
    with pytest.raises(ConfigError, match="2001 to 2000 has no two time points in order"):
        fit.overall(window=(2001, 2000))


def test_a_base_may_be_a_range_an_array_or_the_text_of_a_year():
    site, year = np.repeat(["a", "b"], 4), np.tile([2001, 2002, 2003, 2004], 2)
    fit = fit_trim(site, [str(one) for one in year], [3, 4, 5, 4, 6, 6, 8, 9])
    want = fit.index(base=[2001, 2002])
    for base in (range(2001, 2003), np.array([2001, 2002]), ["2001", "2002"]):
        pd.testing.assert_frame_equal(fit.index(base=base), want)
    pd.testing.assert_frame_equal(fit.overall(window=("2001", "2003")), fit.overall(window=(2001, 2003)))


def rows_with_year(year, n_sites=30, last=2020):
    """Sites counted in every year from 2005, of which one has ``year`` where 2019 should stand."""
    cells = [(f"s{i}", y) for i in range(n_sites) for y in range(2005, last + 1)]
    time = [year if (site, y) == ("s3", 2019) else y for site, y in cells]
    return (
        [site for site, _ in cells],
        time,
        [float(50 + i % 7 - (y - 2005)) for i, (_, y) in enumerate(cells)],
    )


@pytest.mark.parametrize("model", [1, 2, 3])
@pytest.mark.parametrize(
    ("year", "how"), [(2109, "after 20.., this year"), (1019, "986 years apart"), (1999, "6 years apart")]
)
def test_a_mistyped_year_is_told(year, how, model):
    """2109 for 2019 made a decline "Stable", and only the span of the years said it."""
    fit = fit_trim(*rows_with_year(year), TrimSettings(model=model))
    (said,) = [note for note in fit.notes if "check the year:" in note]
    assert re.search(rf"1 of 480 counts \({year} at site s3\) lies {how}", said)
    assert "Correct it in the table" in said


def test_mistyped_years_at_both_ends_are_told_and_no_row_is_advised_away():
    sites, time, count = rows_with_year(1905)
    time[0] = 2105
    first, last = (note for note in fit_trim(sites, time, count).notes if "check the year" in note)
    assert first == (
        "check the year: 1 of 480 counts (1905 at site s3) lies 100 years apart from all others, and bears on totals, slope "
        "and class. Correct it in the table if mistyped."
    )
    assert "1 of 480 counts (2105 at site s0) lies after 20" in last


def scheme(years, n_sites=10, more=()):
    """(site, time, count) of sites that are counted at all times, and of ``more``, (site, time)."""
    cells = [(f"s{i}", year) for i in range(n_sites) for year in years] + list(more)
    return [site for site, _ in cells], [year for _, year in cells], [5.0] * len(cells)


NOW = dt.date.today().year


USUAL = {
    "all years": rows_with_year(2019),
    "a gap in the years": scheme([*range(1965, 1970), *range(2010, 2021)], 30),
    "a census every ten years": scheme([1980, 1990, 2000, 2010], 3),
    "points that are no years": scheme(range(1, 17)),
    "a point after a gap": scheme([*range(1, 10), 14], 1),
    "winters by the year in which they end": scheme(range(2005, NOW + 2)),
    "years and months": scheme([100 * y + m for y in (2010, 2011, 2012) for m in range(1, 13)]),
    "days of the Julian calendar": scheme(range(2_455_000, 2_455_020)),
    "an early survey": scheme(range(1995, 2025), more=[(f"s{i}", 1966) for i in range(3)]),
    "few years after a pause": scheme([*range(2000, 2006), 2012, 2013], 1),
}


@pytest.mark.parametrize("rows", USUAL.values(), ids=USUAL)
def test_years_that_a_scheme_may_have_are_not_told(rows):
    assert not [note for note in fit_trim(*rows).notes if "check the year" in note]


def test_change_points_without_counts_are_one_sentence():
    fit = fit_trim(*rows_with_year(2109), TrimSettings(model=2, changepoints="auto"))
    assert (
        len(
            [note for note in fit.notes if note.startswith("no change point at 2021, 2022, 2023, 2024, ...:")]
        )
        == 1
    )
    assert len(fit.notes) < 5
