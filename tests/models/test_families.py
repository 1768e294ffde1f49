"""Laws of every family, and of its twin in compiled loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.models.lowrank import family_kernels as compiled
from fedmiss.models.lowrank.families import FAMILIES, GAUSSIAN, SCALES

ETA = np.linspace(-4.0, 4.0, 32)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_mean_variance_and_deviance_belong_to_the_log_partition(family):
    h, mu = 1e-5, family.mean(ETA)
    np.testing.assert_allclose(
        mu, (family.psi(ETA + h) - family.psi(ETA - h)) / (2 * h), rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(
        family.variance(mu), (family.mean(ETA + h) - family.mean(ETA - h)) / (2 * h), rtol=1e-6
    )
    np.testing.assert_allclose([family.link(float(m)) for m in mu], ETA, rtol=1e-9, atol=1e-12)
    for y in (0.0, 1.0):
        slope = (family.deviance(y, mu + h * mu) - family.deviance(y, mu - h * mu)) / (2 * h * mu)
        np.testing.assert_allclose(slope, -2 * (y - mu) / family.variance(mu), rtol=1e-6, atol=1e-9)
    assert bool((family.unit(2.0) > 0) & (family.log_error(mu, mu) == 0).all())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_compiled_loops_have_the_same_family(family):
    code = family.code
    for eta, mu in zip(ETA, family.mean(ETA), strict=True):
        v = float(family.variance(mu))
        same = {
            compiled.mean: ((eta,), mu),
            compiled.variance: ((mu,), v),
            compiled.curvature: ((2.5 * mu, 2.5), 2.5 * v),
            compiled.predictor: ((eta, 0.7), float(family.marginal(eta, np.float64(0.7)))),
        }
        for loop, (arguments, value) in same.items():
            assert loop(*arguments, code) == pytest.approx(value, rel=1e-9, abs=1e-12), loop.__name__


def test_names_and_codes_are_unique_and_scales_name_their_family():
    assert all(name == family.name for name, family in FAMILIES.items())
    assert len({family.code for family in FAMILIES.values()}) == len(FAMILIES)
    assert all(scale.needs is None or scale.needs.name in FAMILIES for scale in SCALES.values())
    count = np.array([0.0, 1.0, 7.0])
    np.testing.assert_allclose(SCALES["log1p"].counts(SCALES["log1p"].values(count), 1.0), count, atol=1e-12)
    np.testing.assert_array_equal(SCALES["raw"].counts(SCALES["raw"].values(count), 1.0), count)


def test_a_code_without_compiled_branches_is_refused():
    with pytest.raises(ConfigError, match="family gamma has the code 3"):
        replace(GAUSSIAN, name="gamma", code=3)
