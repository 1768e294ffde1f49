"""What the league compares: each method sees the visits that are left, and predicts the counts of those that are hidden.

Not a script: ``league.py`` imports it. A prediction is a law for every hidden visit: its expected count, a 95 % interval,
the log probability of a count, and draws of all hidden counts together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from lowrank_peers import additive_glm, soft_impute_path
from scipy import stats
from scipy.special import gammaln, logsumexp

from fedmiss.federation.group.visits import experience
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.models.lowrank.occupancy import zero_inflated
from fedmiss.models.lowrank.predictive import LEVEL, Law, LogCountLaw
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES

DRAWS = 400


@dataclass
class Prediction:
    """Of the hidden visits: (n,) expected, lower, upper; ``log_score`` of their counts; ``totals`` (draws,) of their sum."""

    expected: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    log_score: np.ndarray
    totals: np.ndarray


@dataclass
class Task:
    """Visits left (``train``) and hidden (``test``), with places in the common axes of sites and times."""

    train: pd.DataFrame
    test: pd.DataFrame
    J: int
    L: int
    calendar: tuple[np.ndarray, np.ndarray]
    sites: np.ndarray
    region: np.ndarray | None = None
    covariates: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pd.DataFrame, away: np.ndarray, known: pd.DataFrame | None = None) -> Task:
        """The axes are those of all visits: which times and sites there are is known."""
        times = table[["year", "month"]].drop_duplicates().sort_values(["year", "month"])
        sites, j = np.unique(table["site"], return_inverse=True)
        key = times["year"].to_numpy() * 12 + times["month"].to_numpy()
        t = np.searchsorted(key, table["year"].to_numpy() * 12 + table["month"].to_numpy())
        table = table.assign(j=j, t=t)
        calendar = (times["month"].to_numpy(np.int64), times["year"].to_numpy(np.int64))
        known = pd.DataFrame(index=sites) if known is None else known.reindex(sites)
        columns = {
            c: known[c].to_numpy() if known[c].dtype.kind == "f" else known[c].fillna("").to_numpy(object)
            for c in known
        }
        region = columns.pop("region", None)
        return cls(table[~away], table[away], sites.size, len(times), calendar, sites, region, columns)


# -- what the others are read as: counts scatter by a negative binomial around their predictions ---------------------


def _of_points(task: Task, fitted: np.ndarray, expected: np.ndarray, seed: int = 0) -> Prediction:
    """A method that only predicts: its size gives the Pearson statistic of the visits left its expectation."""
    y, mu = task.train["count"].to_numpy(), np.maximum(fitted, 1e-3)
    k = float(np.clip(np.median([0.0, 1e3, _inverse_size(y, mu)]), 1e-6, 1e3))
    m = np.maximum(expected, 1e-3)
    law = stats.nbinom(1 / k, 1 / (1 + k * m))
    rng = np.random.default_rng(seed)
    rate = rng.gamma(1 / k, k, (DRAWS, m.size)) * m
    totals = rng.poisson(np.minimum(rate, 1e15)).sum(axis=1)
    low, high = law.ppf(0.025), law.ppf(0.975)
    return Prediction(expected, low, high, law.logpmf(task.test["count"].to_numpy()), totals)


def _inverse_size(y: np.ndarray, mu: np.ndarray) -> float:
    low, high = 0.0, 1e3
    for _ in range(60):
        mid = 0.5 * (low + high)
        low, high = (mid, high) if ((y - mu) ** 2 / (mu + mid * mu**2)).sum() > y.size else (low, mid)
    return 0.5 * (low + high)


def mean(task: Task) -> Prediction:
    """Mean of the site; of all visits where the site has none."""
    y, j = task.train["count"].to_numpy(), task.train["j"].to_numpy()
    n = np.bincount(j, minlength=task.J)
    per = np.where(n > 0, np.bincount(j, y, task.J) / np.maximum(n, 1), y.mean())
    return _of_points(task, per[j], per[task.test["j"].to_numpy()])


def trim(task: Task) -> Prediction:
    """Effects of sites and times, Poisson: TRIM's model 3. A site without visits has the mean effect."""
    j, t = task.train["j"].to_numpy(), task.train["t"].to_numpy()
    alpha, beta = additive_glm(j, t, task.train["count"].to_numpy(), task.J, task.L)
    at = task.test
    return _of_points(task, alpha[j] * beta[t], alpha[at["j"].to_numpy()] * beta[at["t"].to_numpy()])


def soft_impute(task: Task) -> Prediction:
    """softImpute on log(1 + count) after site and time means; lambda from a fifth of the visits left."""
    train = task.train.sort_values(["j", "t"]).groupby(["j", "t"], as_index=False)["count"].mean()
    rng = np.random.default_rng(1)
    out = rng.random(len(train)) < 0.2
    best, score = 0, np.inf
    left = train[~out]
    paths = soft_impute_path(
        left["j"].to_numpy(), left["t"].to_numpy(), left["count"].to_numpy(),
        (train["j"].to_numpy()[out], train["t"].to_numpy()[out]), task.J, task.L, True,
    )  # fmt: skip
    for i, at in enumerate(paths):
        d = deviance(train["count"].to_numpy()[out], at).mean()
        if d < score:
            best, score = i, d
    both = pd.concat([task.train, task.test])
    final = soft_impute_path(
        train["j"].to_numpy(), train["t"].to_numpy(), train["count"].to_numpy(),
        (both["j"].to_numpy(), both["t"].to_numpy()), task.J, task.L, True,
    )[best]  # fmt: skip
    return _of_points(task, final[: len(task.train)], final[len(task.train) :])


# -- fedmiss -----------------------------------------------------------------------------------------------------------


def panel_of(task: Task) -> GroupPanel:
    """The visits left, as one group of visitors."""
    who = np.unique(task.train["observer"], return_inverse=True)[1]
    group = Group.of(
        "all", task.train["j"].to_numpy(), task.train["t"].to_numpy(), task.train["count"].to_numpy(), who
    )
    return GroupPanel.of(
        task.J,
        task.L,
        [group],
        task.calendar,
        site_id=task.sites,
        region=task.region,
        covariates=task.covariates,
    )


def predicted(task: Task, fit: AverageFit) -> Prediction:
    """Of a fit: the law of the visit's count by its observer, the errors of sites, months and observers included."""
    j, t, y = (task.test[c].to_numpy() for c in ("j", "t", "count"))
    eta, var = fit.moments()
    who, effect, error, found = _of_observers(task, fit)
    times = np.exp(effect + 0.5 * error - found)[who]
    expected, law = fit.expected()[j, t], fit.law  # of the visit of any observer
    if isinstance(law, LogCountLaw):
        law = replace(law, logs=replace(law.logs, observers=0.0), smear=law.smear * np.exp(-found))
        expected = np.maximum((1.0 + expected) * times - 1.0, 0.0)
    else:
        law, effect = replace(law, observers=0.0), effect - found
        expected = expected * times
    eta, var = eta[j, t] + effect[who], var[j, t] + error[who]
    rng = np.random.default_rng(0)
    totals = np.empty(DRAWS)
    for b in range(DRAWS):
        of_observers = effect + np.sqrt(error) * rng.standard_normal(effect.size)
        drawn = fit.draw(rng)(slice(None))[j, t] + of_observers[who]
        empty = np.isneginf(drawn)
        totals[b] = np.where(empty, 0.0, law.draw(np.where(empty, 0.0, drawn), rng)).sum()
    here = np.broadcast_to(fit.present(), (task.J, task.L))[j, t]  # probability that the site is occupied
    lower, upper, *_ = zero_inflated(law, fit.counts_at, eta, var, here, LEVEL)
    score = np.log(here) + log_score(law, eta, var, y)
    score = np.where(y == 0, np.logaddexp(score, np.log(np.maximum(1.0 - here, 1e-300))), score)
    return Prediction(expected, lower, upper, score, totals)


def _of_observers(task: Task, fit: AverageFit) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Who made each hidden visit (n,), effects of these observers, their variances, and log of what the mean one finds.

    An observer whom the visits left do not hold is one of the mean experience.
    """
    train = task.train
    names, of = np.unique(train["observer"], return_inverse=True)
    hidden, who = np.unique(task.test["observer"], return_inverse=True)
    at = np.minimum(np.searchsorted(names, hidden), names.size - 1)
    known = names[at] == hidden
    months = task.calendar[1] * 12 + task.calendar[0] - 1
    lacks = experience(of.astype(np.int32), train["j"].to_numpy(), months[train["t"]], months)[0]
    mean = np.stack([np.bincount(of, column) / np.bincount(of) for column in lacks.T], axis=1)
    mean = np.where(known[:, None], mean[at], lacks.mean(axis=0))
    effects, errors = np.zeros((len(fit.fits), hidden.size)), np.zeros((len(fit.fits), hidden.size))
    found = 0.0
    for one, effect, error in zip(fit.fits, effects, errors, strict=True):
        if one.settings.observers:
            assert one.state is not None
            effect[known], error[:] = one.aux.observer[0][at[known]], 1.0 / one.aux.observers
            error[known] = one.aux.observer_var[0][at[known]]
            effect += mean @ one.state.kappa[-2:] if one.settings.learning else 0.0
            found += float(np.log(one.state.found)) / len(fit.fits)
    return who, effects.mean(axis=0), errors.mean(axis=0) + effects.var(axis=0), found


def log_score(law: Law, eta: np.ndarray, var: np.ndarray, y: np.ndarray, nodes: int = 60) -> np.ndarray:
    """Log probability of each count under its law, by Gauss-Hermite quadrature over the predictor's error."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    observers = law.logs.observers if isinstance(law, LogCountLaw) else law.observers
    e = eta[:, None] + np.sqrt(var + observers)[:, None] * z
    if isinstance(law, LogCountLaw):
        s = np.sqrt(law.logs.phi)
        times = law.times(eta, var)
        below, above = (np.log1p((y + by) / times)[:, None] for by in (-0.5 * (y > 0), 0.5))
        p = stats.norm.cdf((above - e) / s) - np.where(y[:, None] > 0, stats.norm.cdf((below - e) / s), 0.0)
        return np.log(np.maximum((p * w).sum(axis=1) / w.sum(), 1e-300))
    k = 1.0 / np.maximum(law.inverse_size_at(e), 1e-9)
    m, n = np.exp(e), y[:, None]
    log_p = gammaln(n + k) - gammaln(k) - gammaln(n + 1) + k * np.log(k / (k + m)) + n * np.log(m / (k + m))
    return logsumexp(log_p, b=w / w.sum(), axis=1)


def fedmiss(task: Task) -> Prediction:
    """The default: ranks 0 to 4 and three laws by cross-validation, average of the ranks that it cannot tell apart."""
    federation = LocalFederation.of_panel(panel_of(task))
    zeros = bool((task.train["count"] == 0).any())  # else sites are listed because birds were seen
    choice = federation.cross_validate(
        default_candidates(CountSettings(dispersion="negbin")),
        structure=[f for f in FEATURES if f != "visits" or zeros],
    )
    return predicted(task, federation.fit_average(choice.members))


def mixed(task: Task) -> Prediction:
    """Negative binomial mixed model: random sites and years, no slopes, no factors (rank 0 of this program)."""
    federation = LocalFederation.of_panel(panel_of(task))
    settings = CountSettings(dispersion="negbin", rank=0, slopes=False, season=False)
    return predicted(task, federation.fit_average([settings]))


METHODS: dict[str, Callable[[Task], Prediction]] = {
    "mean": mean, "TRIM": trim, "softImpute": soft_impute, "NB mixed model": mixed, "fedmiss": fedmiss,
}  # fmt: skip


def deviance(y: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """Poisson unit deviance."""
    return POISSON.deviance(y, np.maximum(mu, 1e-3))
