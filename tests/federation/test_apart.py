"""Rows at which a column is not what the columns before it make of it."""

import numpy as np
import pytest

from fedmiss.federation.group.apart import set_apart


@pytest.mark.parametrize("rows", [40, 200, 60_000])
@pytest.mark.parametrize("far", [0.0, 25.0])
@pytest.mark.parametrize("turned", [False, True])
def test_two_columns_that_agree_but_for_one_row_are_apart_there_only(rows, far, turned):
    """However far out that row is, in whichever column comes first; of many rows a sample tells the slopes."""
    rng = np.random.default_rng(rows)
    part = rng.integers(0, 6, rows)
    one = rng.normal(0, 1.0, rows)
    one[7] = far
    other = 2.0 * one + np.arange(6.0)[part]  # a constant of each month more
    other[7] = 0.3
    columns = np.column_stack([other, one] if turned else [one, other])
    apart = set_apart(columns, part)
    assert apart[:, 0].mean() > 0.8  # the first column has none before it
    assert np.flatnonzero(apart[:, 1]).tolist() == [7]


def test_columns_without_a_law_between_them_are_apart_nearly_everywhere():
    rng = np.random.default_rng(1)
    apart = set_apart(rng.normal(size=(3000, 4)), rng.integers(0, 12, 3000))
    assert apart.mean(axis=0) == pytest.approx(1.0, abs=0.01)


def test_three_categories_of_which_the_last_is_what_the_others_leave():
    level = np.arange(90) % 3
    marks = np.stack([level == k for k in range(3)], axis=1).astype(float)
    marks[4] = 0.0, 1.0, 1.0
    apart = set_apart(marks, np.zeros(90, np.int32))
    assert np.flatnonzero(apart[:, 2]).tolist() == [4]
    assert set_apart(np.zeros((0, 2)), np.zeros(0, np.int32)).shape == (0, 2)
