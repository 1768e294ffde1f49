"""Trend classes: tables of cases at the thresholds, and what separates the two rules."""

import numpy as np
import pytest
from scipy import stats

from fedmiss.errors import ConfigError
from fedmiss.report.classes import NOT_CLASSIFIED, classify
from fedmiss.report.style import CLASS_COLOURS

TINY = 1e-9


def pecbms_case(mul, half):
    """Slope and standard error whose PECBMS limits are mul -+ half."""
    return np.log(mul), half / (1.96 * mul)


@pytest.mark.parametrize(
    ("mul", "half", "name"),
    [
        (1.10, 0.05 - TINY, "strong increase"), (1.10, 0.05 + TINY, "moderate increase"),
        (1.02, 0.02 - TINY, "moderate increase"), (1.02, 0.02 + TINY, "stable"),
        (1.02, 0.03 - TINY, "stable"), (1.02, 0.03 + TINY, "uncertain"), (1.00, 0.05 - TINY, "stable"),
        (1.00, 0.05 + TINY, "uncertain"), (0.98, 0.02 - TINY, "moderate decline"),
        (0.98, 0.02 + TINY, "stable"), (0.98, 0.03 - TINY, "stable"), (0.98, 0.03 + TINY, "uncertain"),
        (0.90, 0.05 - TINY, "strong decline"), (0.90, 0.05 + TINY, "moderate decline"), (1.00, 0.0, "stable"),
        (1.02, 0.0, "moderate increase"), (1.06, 0.0, "strong increase"), (0.94, 0.0, "strong decline"),
    ],
)  # fmt: skip
def test_pecbms_at_its_thresholds(mul, half, name):
    got = classify(*pecbms_case(mul, half), 10, "pecbms")
    assert got.name == name
    assert got.lo == pytest.approx(max(mul - half, 0.0), abs=1e-12)
    assert got.hi == pytest.approx(mul + half, abs=1e-12)


def rtrim_se(distance, n_years, level):
    return distance / stats.t.ppf(1 - (1 - level) / 2, n_years - 2)


@pytest.mark.parametrize("n_years", [3, 5, 8, 20])
@pytest.mark.parametrize(
    ("slope", "limit", "level", "inside", "outside"),
    [
        # (slope, log limit that is touched, level, label just inside, label just outside)
        (0.30, np.log(1.05), 0.999, "Strong increase (p<0.01)", "Strong increase (p<0.05)"),
        (0.30, np.log(1.05), 0.95, "Strong increase (p<0.05)", None),
        (-0.30, np.log(0.95), 0.999, "Strong decrease (p<0.01)", "Strong decrease (p<0.05)"),
        (-0.30, np.log(0.95), 0.95, "Strong decrease (p<0.05)", None),
        (-0.03, 0.0, 0.999, "Moderate decrease (p<0.01)", "Moderate decrease (p<0.05)"),
        (0.03, 0.0, 0.999, "Moderate increase (p<0.01)", "Moderate increase (p<0.05)"),
        (0.03, 0.0, 0.95, "Moderate increase (p<0.05)", None),
        (-0.03, 0.0, 0.95, "Moderate decrease (p<0.05)", None),
        (0.01, np.log(1.05), 0.95, "Stable", "Uncertain"),
        (-0.01, np.log(0.95), 0.95, "Stable", "Uncertain"),
    ],
)
def test_rtrim_at_its_thresholds(n_years, slope, limit, level, inside, outside):
    se = rtrim_se(abs(slope - limit), n_years, level)
    got = classify(slope, se * (1 - 1e-4), n_years, "rtrim")
    assert (got.label, got.name) == (inside, inside.partition(" (")[0].lower().replace("decrease", "decline"))
    beyond = classify(slope, se * (1 + 1e-4), n_years, "rtrim").label
    assert beyond != inside
    if outside:
        assert beyond == outside


def test_rtrim_knows_no_class_without_degrees_of_freedom():
    got = classify(0.5, 0.001, 2, "rtrim")
    assert (got.name, got.label) == (NOT_CLASSIFIED, "Unknown (df<=0)")
    assert classify(0.0, 0.0, 5, "rtrim").label == "Stable"


def test_every_class_can_be_reached_and_unknown_rules_are_named():
    grid = [(b, s) for b in np.linspace(-0.2, 0.2, 41) for s in (0.0, 0.005, 0.02, 0.1)]
    for rule in ("pecbms", "rtrim"):
        assert {classify(b, s, 10, rule).name for b, s in grid} == {*CLASS_COLOURS} - {NOT_CLASSIFIED}
    with pytest.raises(ConfigError, match="'trim4'"):
        classify(0.0, 0.1, 10, "trim4")
    assert classify(np.nan, 0.1, 10).name == NOT_CLASSIFIED
    assert classify(0.1, np.nan, 10).name == NOT_CLASSIFIED


def test_a_standard_error_below_0_is_refused():
    with pytest.raises(ConfigError, match=r"standard error of the slope is -0\.1"):
        classify(0.1, -0.1, 20)


def test_limits_are_numbers_whatever_the_error():
    of = classify(1.0, 20.0, 3, "rtrim")
    assert of.name == "uncertain"
    assert np.isfinite([of.lo, of.hi]).all()
