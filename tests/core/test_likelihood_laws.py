"""``check_model`` passes five correct models and finds 24 wrong formulas in them, each on three data sets."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Identity
from fedmiss.core import FedEM, Roster, em, log_likelihood, pooled_s_bar, run, watch_likelihood
from fedmiss.core.testing import check_model
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError
from fedmiss.models import GMM
from fedmiss.models.gmm import GMMParams, second_moment
from tests.core.toys import example

NAMES = ("poisson_mixture", "missing_mixture", "hmm", "factor_analysis")


def tied(seed=0):
    """A mixture with a common covariance, collected once."""
    rng = np.random.default_rng(seed)
    y = (
        rng.normal(size=(120, 2)) @ np.array([[1.0, 0.4], [0.0, 0.8]])
        + np.array([[-2.0, 0], [2, 1]])[np.arange(120) % 2]
    )
    theta = GMMParams(
        np.array([0.3, 0.7]), np.array([[-1.0, 0.0], [1.0, 0.2]]), np.array([[1.0, 0.3], [0.3, 0.8]]), "tied"
    )
    return GMM(2, 2, "tied", YY=second_moment(y)), [y], theta


def case(name, seed=0):
    model, rows, theta = tied(seed) if name == "tied" else example(name, seed=seed)
    return model, rows[0], theta


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
@pytest.mark.parametrize("name", [*NAMES, "tied"])
def test_correct_models_pass(name, seed):
    check_model(*case(name, seed))


class Wrong:
    """A model with another M-step, E-step or both; its likelihood and surrogate stay right."""

    def __init__(self, model, T=None, s_bar=None):
        self._model, self._T, self._s_bar, self.q = model, T, s_bar, model.q
        self.log_likelihood, self.surrogate = model.log_likelihood, model.surrogate

    def T(self, S):
        theta = self._model.T(S)
        return theta if self._T is None else self._T(self._model, S, theta)

    def s_bar(self, theta, rows):
        if self._s_bar is None:
            return self._model.s_bar(theta, rows)
        return self._s_bar(self._model, theta, rows)


def entry(i, change):
    """M-step with one array of theta changed."""
    return lambda model, S, theta: (*theta[:i], change(theta[i]), *theta[i + 1 :])


def scaled(part, by):
    """E-step with some entries of the statistic scaled."""

    def s_bar(model, theta, rows):
        S = model.s_bar(theta, rows)
        S[part] *= by
        return S

    return s_bar


def at(change):
    """E-step at another parameter than the one given."""
    return lambda model, theta, rows: model.s_bar(change(theta), rows)


def even(p):
    return np.full_like(p, 1 / p.shape[-1])


def no_spread(model, theta, rows):
    """Missing entries filled with the mean, without the variance: the classical mistake."""
    r, gap = model._posterior(theta, rows)
    z = np.where(gap, theta[1], rows[:, None])
    return np.concatenate(
        [p.ravel() for p in (r.mean(0), (r[..., None] * z).mean(0), (r[..., None] * z**2).mean(0))]
    )


def no_posterior_cover(model, theta, rows):
    """E[z] E[z]' in place of E[z z']."""
    S = model.s_bar(theta, rows)
    S[2 * model.d + model.r : 2 * model.d + model.r + model.r**2] -= model._posterior(theta, rows)[1].ravel()
    return S


def hard(model, theta, rows):
    """Each row given to its likeliest component."""
    r = np.eye(model.G)[np.argmax(model._log_joint(theta, rows), axis=1)]
    return np.r_[r.mean(0), (r * rows[:, None]).mean(0)]


def filtered(model, theta, rows):
    """Pairs transposed: moves from tomorrow to today."""
    S, G = model.s_bar(theta, rows), model.G
    S[G : G + G * G] = S[G : G + G * G].reshape(G, G).T.ravel()
    return S


BUGS = {
    # name: (model, M-step, E-step)
    "rates x 0.8": ("poisson_mixture", entry(1, lambda rate: 0.8 * rate), None),
    "last entries x 1.3": ("poisson_mixture", None, scaled(slice(2, 4), 1.3)),
    "even weights": ("poisson_mixture", entry(0, even), None),
    "weights as square roots": ("poisson_mixture", entry(0, lambda p: np.sqrt(p) / np.sqrt(p).sum()), None),
    "hard assignment": ("poisson_mixture", None, hard),
    "E-step without weights": ("poisson_mixture", None, at(lambda t: (even(t[0]), t[1]))),
    "gaps without variance": ("missing_mixture", None, no_spread),
    "variance frozen": ("missing_mixture", entry(2, np.ones_like), None),
    "variance as standard deviation": ("missing_mixture", entry(2, np.sqrt), None),
    "means halfway to their mean": ("missing_mixture", entry(1, lambda mu: 0.5 * (mu + mu.mean(0))), None),
    "one variance for all": ("missing_mixture", entry(2, lambda v: np.full_like(v, v.mean())), None),
    "E-step with swapped weights": ("missing_mixture", None, at(lambda t: (t[0][::-1], t[1], t[2]))),
    "moves transposed": ("hmm", None, filtered),
    "moves with even first state": ("hmm", entry(0, even), None),
    "moves pulled to even": ("hmm", entry(1, lambda P: 0.9 * P + 0.05), None),
    "E-step with means x 1.1": ("hmm", None, at(lambda t: (t[0], t[1], 1.1 * t[2], t[3]))),
    "variance x (1 + 1/12)": ("hmm", entry(3, lambda v: v * 13 / 12), None),
    "no posterior variance": ("factor_analysis", None, no_posterior_cover),
    "loadings x 0.9": ("factor_analysis", entry(1, lambda W: 0.9 * W), None),
    "noise without its off part": ("factor_analysis", entry(2, lambda v: np.full_like(v, v.mean())), None),
    "mean kept at 0": ("factor_analysis", entry(0, np.zeros_like), None),
    "E-step at half the noise": ("factor_analysis", None, at(lambda t: (t[0], t[1], 0.5 * t[2]))),
    "covariance without its corner": ("tied", lambda m, S, t: replace(t, Sigma=np.diag(np.diag(t.Sigma))), None),
    "E-step at Sigma = I": ("tied", None, at(lambda t: replace(t, Sigma=np.eye(2)))),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_die(bug):
    name, T, s_bar = BUGS[bug]
    for seed in range(3):
        model, rows, theta = case(name, seed)
        with pytest.raises((AssertionError, DomainError)):
            check_model(Wrong(model, T, s_bar), rows, theta)


def test_the_report_says_which_half_is_wrong():
    model, rows, theta = case("poisson_mixture")
    with pytest.raises(AssertionError, match=r"T\(S\) is not the argmin.*part of T"):
        check_model(Wrong(model, T=BUGS["rates x 0.8"][1]), rows, theta)
    with pytest.raises(AssertionError, match="not the posterior mean"):
        check_model(Wrong(model, s_bar=BUGS["last entries x 1.3"][2]), rows, theta)


def test_the_log_likelihood_alone_finds_them_too():
    """Without a surrogate: ascent, and the slope where EM stays."""
    for bug in ("rates x 0.8", "last entries x 1.3", "gaps without variance", "moves pulled to even"):
        name, T, s_bar = BUGS[bug]
        model, rows, theta = case(name)
        wrong = Wrong(model, T, s_bar)
        del wrong.surrogate
        with pytest.raises(AssertionError, match="EM "):
            check_model(wrong, rows, theta)


def test_a_penalty_is_part_of_what_em_raises():
    """A gamma prior on the rates: right with penalty(theta), found wrong without it."""
    model, rows, theta = case("poisson_mixture")
    a, b = 0.4, 0.2

    class Prior(Wrong):
        def penalty(self, theta):
            return b * theta[1].sum() - a * np.log(theta[1]).sum()

    prior = Prior(model, T=lambda m, S, t: (t[0], (S[2:] + a) / (S[:2] + b)))
    prior.surrogate = lambda theta, S: model.surrogate(theta, S) + prior.penalty(theta)
    check_model(prior, rows, theta)
    prior.penalty = lambda theta: 0.0
    prior.surrogate = model.surrogate
    with pytest.raises(AssertionError, match="argmin"):
        check_model(prior, rows, theta)


def test_the_trace_holds_the_log_likelihood_and_uncompressed_em_raises_it():
    model, data, theta = example("hmm")
    roster = Roster.of([len(r) for r in data])
    S_0 = pooled_s_bar(model, theta, data, roster)
    algo = FedEM(model, Identity(), roster, gamma=1.0)
    result = run(algo, LocalEngine(data), S_0, stop=30, observe=watch_likelihood(model, data, roster))
    trace = result.trace["log_likelihood"]
    assert len(trace) == 30
    assert (np.diff(trace) > -1e-12).all()
    S = em(model, data, roster, S_0, rounds=29)[0]
    assert trace[-1] == pytest.approx(log_likelihood(model, model.T(S), data, roster), rel=1e-12)
    with pytest.raises(ConfigError, match="no member log_likelihood"):
        log_likelihood(object(), theta, data, roster)


def test_gaps_are_imputed_from_the_posterior():
    for name in ("missing_mixture", "hmm"):
        model, rows, theta = case(name)
        full, gap = model.impute(theta, rows), np.isnan(rows)
        assert np.isfinite(full).all()
        assert np.array_equal(full[~gap], rows[~gap])
