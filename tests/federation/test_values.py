"""Copies of a fit's state with some fields changed are those of the standard library."""

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from fedmiss.federation.hub.season import SeriesPrior
from fedmiss.federation.hub.values import evolve

MONTHS = np.tile(np.arange(1, 13), 3)
PRIOR = SeriesPrior.of(MONTHS, np.repeat([2001, 2002, 2003], 12), 0.5)


def test_a_changed_copy_is_that_of_the_standard_library_and_leaves_the_first_as_it_was():
    before = dict(vars(PRIOR))
    one, two = evolve(PRIOR, noise=0.25, mean=None), replace(PRIOR, noise=0.25, mean=None)
    assert type(one) is type(two)
    for field in fields(SeriesPrior):
        assert getattr(one, field.name) is getattr(two, field.name), field.name
    assert vars(PRIOR) == before
    assert PRIOR.noise != 0.25
    with pytest.raises(FrozenInstanceError):
        one.noise = 1.0
    with pytest.raises(TypeError, match="SeriesPrior has no nois"):
        evolve(PRIOR, nois=1.0)
