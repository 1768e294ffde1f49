"""Personal models of observers: right gradients, nothing private in a message, pooled = federated, known truth found."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.experiments.personal import SCENARIOS, nb_deviance, simulate_turnover
from fedmiss.models.personal import Personal, PersonalVisits, fit_personal, size_of

KINDS = [("none", 1), ("scalar", 1), ("factors", 2), ("mixture", 3)]


@pytest.fixture(scope="module")
def panel():
    return simulate_turnover("levels and factors", 1, J=15, years=4)


def pooled(groups):
    start = np.cumsum([0] + [v.observers for v in groups])
    return PersonalVisits(
        *(np.concatenate([getattr(v, name) for v in groups]) for name in ("site", "month")),
        np.concatenate([v.observer + s for v, s in zip(groups, start, strict=False)]),
        np.concatenate([v.y for v in groups]),
        int(start[-1]),
    )


@pytest.mark.parametrize(("kind", "k"), KINDS)
def test_the_sum_of_messages_is_the_gradient_of_the_profile(panel, kind, k):
    groups, season, year, _ = panel
    model = Personal(kind, 15, season, year, k=k)
    rng = np.random.default_rng(0)
    x = model.start(5.0, 0) + 0.1 * rng.normal(size=model.q)
    direction, h = rng.normal(size=model.q), 1e-5

    def value(at):
        return sum(model.answer(at, v, model.private_start(v))[0] for v in groups)

    answers = [model.answer(x, v, model.private_start(v)) for v in groups]
    gradient = sum(a[1] for a in answers)
    assert gradient.shape == (model.q,) == model.ridge().shape
    slope = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
    assert slope == pytest.approx(gradient @ direction, rel=1e-5)
    one = model.answer(x, pooled(groups), model.private_start(pooled(groups)))
    np.testing.assert_allclose(
        one[1], gradient, rtol=1e-5, atol=1e-5
    )  # one group or ten: the same message in sum
    np.testing.assert_allclose(one[2], np.concatenate([a[2] for a in answers]), atol=1e-5)


@pytest.mark.parametrize(("kind", "k"), KINDS[1:])
def test_private_parameters_are_at_their_optimum(panel, kind, k):
    """No other value of one observer's parameters is better: solved in the group, at the shared parameters given."""
    groups, season, year, _ = panel
    model, v = Personal(kind, 15, season, year, k=k), groups[0]
    x = model.start(5.0, 0)
    best, _, private = model.answer(x, v, model.private_start(v))
    rng = np.random.default_rng(1)
    for _ in range(20):
        start = (
            rng.dirichlet(np.ones(k), v.observers) if kind == "mixture" else rng.normal(size=private.shape)
        )
        assert model.answer(x, v, start)[0] == pytest.approx(best, rel=1e-8)
    if kind == "mixture":
        np.testing.assert_allclose(private.sum(axis=1), 1)


def test_scalar_effects_are_a_ridge_regression_of_scipy(panel):
    from scipy.optimize import minimize

    groups, season, year, _ = panel
    model, v = Personal("scalar", 15, season, year, size=3.0, sd=0.5), groups[0]
    x = model.start(5.0, 0)
    _, _, private = model.answer(x, v, model.private_start(v))
    at = v.observer == 1
    y, eta = v.y[at], model.shared(x, v.site, v.month)[at]

    def loss(o):
        mu = np.exp(eta + o[0])
        return float((-y * np.log(mu) + (y + 3.0) * np.log(mu + 3.0)).sum() + 0.5 * o[0] ** 2 / 0.25)

    assert private[1, 0] == pytest.approx(minimize(loss, [0.0], tol=1e-12).x[0], abs=1e-5)


@pytest.mark.slow
def test_effects_of_the_right_kind_predict_held_out_visits_better_and_needless_ones_do_not():
    """Means over three seeds of the held-out deviance, less that without observers."""
    gain = {}
    for scenario in SCENARIOS[:2]:
        for seed in range(3):
            groups, season, year, _ = simulate_turnover(scenario, seed, J=40, years=6)
            rng = np.random.default_rng(seed)
            held = [rng.random(len(v.y)) < 0.2 for v in groups]
            train = [v.take(~h) for v, h in zip(groups, held, strict=True)]
            test = [v.take(h) for v, h in zip(groups, held, strict=True)]
            y = np.concatenate([v.y for v in test])
            score = {}
            for kind in ("none", "scalar"):
                fit = fit_personal(Personal(kind, 40, season, year, size=3.0, sd=0.4), train, rounds=80)
                score[kind] = nb_deviance(y, np.concatenate(fit.mean(test)), 3.0).mean()
            gain[scenario] = gain.get(scenario, 0.0) + (score["none"] - score["scalar"]) / 3
    assert gain["levels"] > 0.05
    assert gain["no effects"] < 0.02


def test_one_component_away_from_the_others_is_found_by_the_mixture():
    groups, season, year, _ = simulate_turnover("two kinds", 2, J=30, years=8)
    model = Personal("mixture", 30, season, year, size=3.0, k=2)
    fit = fit_personal(model, groups, rounds=80)
    base = fit_personal(Personal("none", 30, season, year, size=3.0), groups, rounds=80)
    y = np.concatenate([v.y for v in groups])
    inside = [nb_deviance(y, np.concatenate(f.mean(groups)), 3.0).mean() for f in (base, fit)]
    assert inside[1] < inside[0] - 0.1
    assert fit.totals().shape == (32,)
    assert size_of(groups, fit.mean(groups)) > size_of(groups, base.mean(groups))


def test_impossible_settings_are_refused(panel):
    _, season, year, _ = panel
    for settings, words in (
        ({"kind": "own"}, "'own' is unknown"),
        ({"kind": "mixture", "k": 1}, "no mixture"), ({"kind": "none", "sd": 0.0}, "sd=0.0"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            Personal(J=15, season=season, year=year, **settings)
    with pytest.raises(ConfigError, match="nothing to fit"):
        fit_personal(Personal("none", 15, season, year), [])
