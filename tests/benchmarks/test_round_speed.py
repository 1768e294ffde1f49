"""The loop that is compiled for one number of coefficients has the bits of the loop for any."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import round_speed as rounds

from fedmiss.federation.group import kernels


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_the_loop_of_one_width_has_the_bits_of_the_loop_of_any(p):
    given = rounds.arrays(200, 3.0, p)
    any_width, one_width = (rounds.once(loop, given, p)[1] for loop in (kernels._round, kernels._of_width(p)))
    for a, b in zip(any_width, one_width, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.any()
