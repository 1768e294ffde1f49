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
