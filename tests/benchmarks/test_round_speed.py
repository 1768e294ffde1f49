"""The loop that is compiled for one number of coefficients has the bits of the loop for any."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fedmiss.federation.group import kernels


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, 4])
def test_the_loop_of_one_width_has_the_bits_of_the_loop_of_any(p):
    path = Path(__file__).parents[2] / "benchmarks" / "round_speed.py"
    spec = importlib.util.spec_from_file_location("round_speed", path)
    rounds = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rounds)
    given = rounds.arrays(200, 3.0, p)
    any_width, one_width = (rounds.once(loop, given, p)[1] for loop in (kernels._round, kernels._of_width(p)))
    for a, b in zip(any_width, one_width, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.any()
