"""Loops that are compiled for one number of coefficients have the bits of the loop for any, one fit or eight at a time."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import round_speed as rounds

from fedmiss.federation.group import kernels, lane_kernels
from fedmiss.models.lowrank.families import FAMILIES

FAMILY = {family.code: family for family in FAMILIES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_the_loop_of_one_width_has_the_bits_of_the_loop_of_any(p):
    given = rounds.arrays(200, 3.0, p)
    any_width, one_width = (rounds.once(loop, given, p)[1] for loop in (kernels._round, kernels._of_width(p)))
    for a, b in zip(any_width, one_width, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.any()


@pytest.mark.slow
@pytest.mark.parametrize("code", sorted(FAMILY))
@pytest.mark.parametrize(
    "p", [3, pytest.param(5, marks=pytest.mark.nightly), pytest.param(7, marks=pytest.mark.nightly)]
)
def test_fits_side_by_side_have_the_bits_of_fits_alone(code, p):
    for fits in (11, 3):  # neither fills its lanes
        given = rounds.arrays(120, 4.0, p, fits=fits, family=FAMILY[code], seed=fits)
        alone = rounds.once(kernels._round, given, p)[1]
        beside = rounds.once(lane_kernels.side_by_side(p, code), given, p, together=True)[1]
        for a, b in zip(alone, beside, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.any()


def test_lanes_stay_empty_only_where_that_is_as_quick():
    assert [lane_kernels.together(3, n, 16) for n in (1, 2, 3, 8, 9, 10, 11, 16)] == [
        0, 0, 3, 8, 8, 8, 11, 16,
    ]  # fmt: skip
    assert [lane_kernels.together(p, 16, 16) for p in range(1, 8)] == [0, 0, 16, 16, 16, 0, 0]


def test_a_site_with_most_birds_says_as_little_of_slopes_as_one_without_visits():
    """Sums over sites: what it adds to those of slopes is its prior mean, squared, its prior variance, and nothing told."""
    p, sites = 3, 12
    given = rounds.arrays(sites, 6.0, p, fits=1)
    given[11] = np.array([-1])
    plain = rounds.once(kernels._round, given, p)[1]
    given[11] = np.array([4])
    major = rounds.once(kernels._round, given, p)[1]
    kinds = [4 + i * p for i in range(3)]
    for a in (0, 2):  # effects and factors move with its slope, the other sites' sums stay
        assert np.isfinite([major[1][0, k + a] for k in kinds]).all()
    others = np.arange(sites) != 4
    np.testing.assert_array_equal(major[2][0, others], plain[2][0, others])  # P
    M, tau = given[15][0, :, 1], given[10][0, 1]
    np.testing.assert_allclose(major[1][0, kinds[0] + 1], (plain[2][0, :, 1] - M)[others].sum(), rtol=1e-9)
    np.testing.assert_allclose(
        major[1][0, kinds[1] + 1], (plain[2][0, others, 1] ** 2).sum() + M[4] ** 2, rtol=1e-9
    )
    np.testing.assert_allclose(major[1][0, kinds[2] + 1], plain[3][0, others, 1, 1].sum() + tau, rtol=1e-9)
