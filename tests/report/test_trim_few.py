"""TRIM's models of tables with a few birds: a fit whose errors are numbers, or a sentence."""

import warnings

import numpy as np
import pytest

from fedmiss.errors import InputError
from fedmiss.report.trim import TrimSettings, fit_trim

_ = np.nan
OVER, SERIAL = TrimSettings(1, overdispersion=True), TrimSettings(1, serial_correlation=True)


def fitted(table, settings, covariates=None):
    """The fit without a warning of numpy, every error a number; None where the table was refused."""
    f = np.array(table, dtype=float)
    i, j = (at.ravel() for at in np.indices(f.shape))
    given = None if covariates is None else {"kind": np.array(covariates)[i]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            fit = fit_trim(i, 2000 + j, f.ravel(), settings, covariates=given)
            errors = [fit.totals()["se"], fit.coefficients()["se"], fit.wald()["p"]]
        except InputError:
            return None
    assert np.isfinite(np.concatenate(errors).astype(float)).all()
    assert np.isfinite(fit.overall()["slope_se"]).all()
    return fit


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        ([[0, 0, 1]], TrimSettings(2)),  # the slope grows without end
        ([[3, 4, 5], [0, 0, 1]], TrimSettings(2)),
        ([[1, _, 0, 2], [0, _, _, _], [1, _, _, _], [_, _, 1, _]], TrimSettings(3)),
        ([[_, 1, 0, _], [_, 2, _, _], [_, 1, _, _], [1, _, 1, _]], SERIAL),  # correlation 1
        (  # and one that runs away
            [[_, _, 11, _, _, 80], [5, _, _, _, _, 197], [_, 2, 3, 6, 1, 0], [16, _, 30, 25, 21, _],
             [19, _, _, _, _, 135]],
            TrimSettings(2, "auto", overdispersion=True, serial_correlation=True),
        ),
        ([[23, 11, _, 23], [20, _, 23, _], [_, 17, _, 19]], SERIAL),  # and beyond -1
    ],
)  # fmt: skip
def test_what_a_few_birds_do_not_tell_is_a_sentence(table, settings):
    assert fitted(table, settings, None if len(table) != 2 else ["a", "b"]) is None


@pytest.mark.parametrize("settings", [OVER, SERIAL])
def test_counts_that_are_met_exactly_leave_the_errors_of_poisson_counts(settings):
    fit = fitted([[2, 2, 2], [1, 1, _]], settings)
    np.testing.assert_allclose(
        fit.totals()["se"], fitted([[2, 2, 2], [1, 1, _]], TrimSettings(1)).totals()["se"]
    )
    assert bool(fit.notes) == settings.overdispersion


@pytest.mark.parametrize("seed", range(8))
def test_any_small_table_is_fitted_or_refused_in_a_sentence(seed):
    rng = np.random.default_rng(seed)
    for model, changepoints in [(1, ()), (2, ()), (2, "auto"), (3, ())] * 6:
        f = rng.poisson(rng.choice([0.2, 1, 20]), rng.integers([1, 2], 6)).astype(float)
        f[rng.random(f.shape) < rng.choice([0, 0.3, 0.6])] = np.nan
        switches = {name: bool(rng.random() < 0.4) for name in ("overdispersion", "serial_correlation")}
        kinds = rng.choice(["a", "b"], len(f)) if rng.random() < 0.4 else None
        fitted(f, TrimSettings(model, changepoints, **switches), kinds)
