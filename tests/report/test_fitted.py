"""Counted and fitted totals by year: sums, and when their difference is worth a warning."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmiss.report.fitted import fitted_years, lack_of_fit, no_clear_miss


def data(counted, fitted, variance=None, months=3):
    """Inputs with ``months`` months a year, each with a third of the year's birds."""
    years = len(counted)
    month = np.arange(years * months)
    per = lambda x: np.repeat(np.asarray(x, float) / months, months)  # noqa: E731
    visited = pd.DataFrame(
        {
            "month_index": month,
            "weight": per(np.full(years, 30.0)),
            "counted": per(counted),
            "fitted": per(fitted),
            "variance": per(np.asarray(fitted, float) if variance is None else variance),
        }
    )
    return visited, pd.DataFrame({"year": 2010 + month // months})


def test_months_are_added_up_to_years():
    table = fitted_years(*data([100, 120, 90, 0], [110, 100, 90, 10]))
    np.testing.assert_allclose(table["counted"], [100, 120, 90, 0])
    np.testing.assert_allclose(table["ratio"], [100 / 110, 1.2, 1.0, 0.0])
    np.testing.assert_allclose(table["ratio_se"], np.array([110, 100, 90, 10]) ** -0.5)
    assert fitted_years(None, pd.DataFrame()).empty


def test_a_drift_is_told_with_its_direction():
    x = np.arange(10)
    down = lack_of_fit(fitted_years(*data(1000 * np.exp(-0.04 * x), np.full(10, 840.0))))
    up = lack_of_fit(fitted_years(*data(840 * np.exp(0.04 * (x - 4.5)), np.full(10, 840.0))))
    assert "30 % below" in down
    assert "may be too flat" in down
    assert "% above" in up


def test_one_year_that_is_missed_is_named():
    fitted = np.full(8, 400.0)
    counted = fitted.copy()
    counted[4] = 280.0
    assert "2014" in lack_of_fit(fitted_years(*data(counted, fitted)))


def test_ratios_far_from_one_are_never_called_a_good_fit():
    far = fitted_years(*data([144, 78.3, 138, 100], np.full(4, 100.0), np.full(4, 2500.0)))
    near = fitted_years(*data([104, 98, 101, 100], np.full(4, 100.0)))
    assert lack_of_fit(far) == lack_of_fit(near) == ""
    assert "more than a fifth away from 1" in no_clear_miss(far)
    assert "away from 1" not in no_clear_miss(near)


@pytest.mark.slow
def test_noise_is_no_lack_of_fit():
    rng = np.random.default_rng(0)
    said = [
        bool(lack_of_fit(fitted_years(*data(rng.poisson(60, 10), np.full(10, 60.0))))) for _ in range(400)
    ]
    assert np.mean(said) < 0.08  # at the nominal 4.6 % of a two-sided two standard errors, and its own error
