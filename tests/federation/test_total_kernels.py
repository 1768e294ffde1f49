"""Totals: the compiled sums are those of the whole matrix of expected counts."""

import numpy as np
import pytest

from fedmiss.federation.group.total_kernels import expected_sums
from fedmiss.loops import exponential
from fedmiss.models.lowrank.families import FAMILIES, SCALES
from fedmiss.models.lowrank.own_lines import OwnLines
from fedmiss.models.lowrank.theta import moments


def test_the_exponential_is_right_to_its_last_bits():
    x = np.concatenate([np.linspace(-708, 709, 4001), np.linspace(-2, 2, 4001), [0.0, 1.0, -1e-300]])
    ours = np.array([exponential.py_func(float(value)) for value in x])
    np.testing.assert_allclose(ours, np.exp(x), rtol=4.5e-16)
    with np.errstate(over="ignore"):  # whole numbers wrap round, as in compiled loops
        assert exponential.py_func(-np.inf) == pytest.approx(np.exp(-708.0))
        assert exponential.py_func(np.inf) == pytest.approx(np.exp(709.0))
    assert np.isnan(exponential.py_func(np.nan))


@pytest.mark.parametrize(
    ("family", "scale"),
    [("poisson", "raw"), ("bernoulli", "raw"), ("gaussian", "raw"), ("gaussian", "log1p")],
)
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_sums_over_sites_and_years_are_those_of_the_matrix(family, scale, drawn, p):
    rng = np.random.default_rng(5)
    J, L, chunks = 23, 31, 4
    scale = SCALES[scale]
    family = scale.counted(FAMILIES[family])
    P, T = rng.normal(0, 0.6, (J, p)), rng.normal(0, 0.6, (L, p))
    C, D = (A @ A.transpose(0, 2, 1) for A in (rng.normal(0, 0.3, (n, p, p)) for n in (J, L)))
    first, year = np.array([0, 7, 19]), np.repeat([0, 1, 2], [7, 12, 12])
    of = np.stack([np.ones(J, bool), np.arange(J) % 3 == 0, np.zeros(J, bool)])
    first_year = np.where(np.arange(J) % 5 == 0, -1, np.arange(J) % 3)  # every fifth site was never visited
    lines = OwnLines(
        first_year,
        np.minimum(first_year + (first_year >= 0), 2),
        rng.normal(0, 0.3, J),
        year,
        0.7,
        np.zeros(J),
    )
    # Drawn changes stand in the place of their variance; one coefficient a site is a model without slopes.
    changes = rng.normal(0, 0.3, (J, 3)) * (lines.variance() > 0) if drawn else 0.4 * lines.variance()
    straight = np.zeros((0, 1)), np.zeros(0), np.zeros((0, 1)), year
    bent = (lines.bend(), lines.mean, changes, year) if p > 1 else straight
    eta, var = moments(0.4, P, C, T, D)
    if p > 1:
        further, more = lines.moved(P, C, T, np.full(p, 0.4), slice(None))
        eta, var = eta + further, var + more
        assert np.abs(further).max() > 0.1
    if drawn:
        eta, var = eta + changes[:, year] * (p > 1), 0.0 * var
    for present in (np.ones((0, 1)), rng.random((J, 3))):
        value = scale.counts(family.mean(family.marginal(eta, var)), 1.3)
        if present.size:
            value = value * present[:, year]
        out, yearly = np.zeros((chunks, 3, L)), np.zeros((J, 3))
        expected_sums(
            0, chunks, chunks, 0.4, P, C, np.ascontiguousarray(T.T), np.ascontiguousarray(np.moveaxis(D, 0, -1)),
            *bent, drawn, family.code, scale.log, 1.3, present, year, of, first, out, yearly,
        )  # fmt: skip
        np.testing.assert_allclose(out.sum(axis=0), of @ value, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(yearly, np.add.reduceat(value, first, axis=1), rtol=1e-12, atol=1e-12)
