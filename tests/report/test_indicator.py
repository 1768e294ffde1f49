"""The multi-species indicator by its definition, and what becomes of gaps, zeros and one species' errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.report.indicator import FLOOR, indicator

YEARS = np.arange(2000, 2010)


def world(S=6, B=200, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    totals, draws = {}, {}
    for s in range(S):
        t = np.exp(rng.normal(4, 1) + rng.normal(0, 0.03) * (YEARS - 2000) + rng.normal(0, 0.1, YEARS.size))
        totals[f"s{s}"] = pd.Series(t, index=YEARS)
        draws[f"s{s}"] = pd.DataFrame(t * np.exp(rng.normal(0, noise, (B, YEARS.size))), columns=YEARS)
    return totals, draws


def test_it_is_the_geometric_mean_of_the_indices():
    totals, draws = world()
    got = indicator(totals, draws, base=2003)
    index = np.stack([t / t.loc[2003] for t in totals.values()])
    np.testing.assert_allclose(got["index"], 100 * np.exp(np.log(index).mean(axis=0)), rtol=1e-10)
    assert got.loc[3, "index"] == pytest.approx(100)
    # independent errors: variance of log ratio is 2 noise^2 / S
    half = np.log(got["hi"] / got["index"])[got["year"] != 2003]
    np.testing.assert_allclose(half, 1.96 * 0.1 * np.sqrt(2 / 6), rtol=0.25)


def test_a_species_that_enters_late_tells_the_ratios_it_has_and_does_not_move_the_rest():
    totals, _ = world(seed=1)
    whole = indicator(totals, {})
    # a late species that follows the mean of the others leaves the indicator as it is
    follower = whole.set_index("year")["index"].loc[2004:] * 3.7
    more = indicator(totals | {"late": follower}, {})
    np.testing.assert_allclose(more["index"], whole["index"], rtol=1e-9)
    assert more["n_species"].tolist() == [6] * 4 + [7] * 6
    assert whole["lo"].isna().all()


def test_scale_does_not_matter_and_a_zero_is_held_at_the_floor():
    totals, draws = world(seed=2)
    other = {k: 1000 * v if k == "s0" else v for k, v in totals.items()}
    np.testing.assert_allclose(indicator(totals, {})["index"], indicator(other, {})["index"], rtol=1e-10)
    gone = totals["s0"].copy()
    gone.iloc[-1] = 0.0
    got = indicator(totals | {"s0": gone}, draws)["index"].iloc[-1]
    before = indicator(totals, {})["index"].iloc[-1]
    floor = FLOOR * gone.mean() / totals["s0"].iloc[-1]
    # the species' mean moves too, through the year that is gone; the first year does not
    assert got / before == pytest.approx(floor ** (1 / 6), rel=1e-6)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="there is none"):
        indicator({}, {})
    a = {"a": pd.Series([1.0, 2], index=[2000, 2001]), "b": pd.Series([1.0, 2], index=[2005, 2006])}
    with pytest.raises(ConfigError, match="linked by no species"):
        indicator(a, {})
    with pytest.raises(ConfigError, match="base 1999"):
        indicator(world()[0], {}, base=1999)
