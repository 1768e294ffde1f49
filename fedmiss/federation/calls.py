"""The count model of groups that one person holds, each stage of a job in one call: fit, choose, resample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.federation.group.visits import IncludedVisits
from fedmiss.federation.local import Draws, LocalFederation
from fedmiss.federation.results import CountFit
from fedmiss.models.lowrank.choice import Choice, check_candidates
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.settings import kinds_checked


@kinds_checked
def fit_counts(
    panel: GroupPanel,
    settings: CountSettings | None = None,
    *,
    watch: Callable[[int, float], None] | None = None,
) -> CountFit:
    """Fit the count model to groups that one person holds.

        eta = x . kappa + o_observer + mu + a_site + b_month + (U V')_site,month

    ``x`` are effort covariates, zero at standard effort, so that exp(mu + a + b + UV') is the expected count of a standard
    visit. The observer effects ``o`` are estimated inside each group and never leave it. The factors are integrated out
    with estimated variances. Over-dispersed counts: quasi-Poisson (Var = phi mu) or negative binomial
    (Var = mu + mu^2/size, solved through its quasi-score weights 1/(1 + mu/size)).

    Parameters
    ----------
    panel : the groups' counted visits
    settings : by default the negative binomial of rank 2
    watch : called after each round with (round, root mean square move)

    Returns
    -------
    CountFit

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> g = fedmiss.Group.of("a", [0, 0, 1, 1], [0, 1, 0, 1], [2.0, 4.0, 6.0, 12.0])
    >>> free = fedmiss.CountSettings(rank=0, time="fixed")  # no prior at all
    >>> fit = fedmiss.fit_counts(fedmiss.GroupPanel.of(2, 2, [g]), free)
    >>> bool(np.allclose(fit.expected(), [[2, 4], [6, 12]], rtol=1e-4))
    True
    """
    return LocalFederation.of_panel(panel).fit(settings or CountSettings(dispersion="negbin"), watch=watch)


@kinds_checked
def cross_validate(
    panel: GroupPanel,
    candidates: Sequence[CountSettings],
    *,
    folds: int = 5,
    by: str = "auto",
    seed: int = 0,
    one_se: bool = False,
    watch: Callable[[int], None] | None = None,
) -> Choice:
    """Score every candidate on held-out visits and choose (see ``fedmiss.models.lowrank.choice``).

    Parameters
    ----------
    candidates : settings to compare; the first one's distribution is the default
    by : what a fold holds out: cell, block, visit, observer; ``auto`` is cells or blocks, like the gaps
    one_se : choose the smallest rank within one standard error of the lowest deviance

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> p = fedmiss.simulate_panel(30, 24, 0.5, rank=0, seed=1, groups=2)
    >>> clubs = [p.group == k for k in (0, 1)]
    >>> groups = [fedmiss.Group.of(f"club {k}", p.site_index[c], p.month_index[c], p.y[c]) for k, c in enumerate(clubs)]
    >>> panel = fedmiss.GroupPanel.of(30, 24, groups)
    >>> ranks = [fedmiss.CountSettings(rank=r) for r in (0, 1)]
    >>> choice = fedmiss.federation.cross_validate(panel, ranks, folds=3)
    >>> choice.best.rank
    0
    """
    check_candidates(candidates, folds)
    return LocalFederation.of_panel(panel).cross_validate(
        candidates, folds=folds, by=by, seed=seed, one_se=one_se, watch=watch
    )


@kinds_checked
def bootstrap(
    panel: GroupPanel,
    fit: CountFit,
    *,
    draws: int = 200,
    seed: int = 0,
    watch: Callable[[int], None] | None = None,
    weigh: Callable[[str, int, int, F64, IncludedVisits], F64] | None = None,
) -> Draws:
    """Refit ``draws`` times with reweighted observers.

    Parameters
    ----------
    panel, fit : the panel and its full fit
    watch : called with the number of finished replicates

    Returns
    -------
    Draws    totals (B, 1 + regions, L), slopes (B, J)

    Raises
    ------
    ConfigError    no draw or more than 100,000, or the fit of another panel

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> p = fedmiss.simulate_panel(30, 24, 0.5, rank=0, seed=1, groups=2)
    >>> clubs = [p.group == k for k in (0, 1)]
    >>> groups = [fedmiss.Group.of(f"club {k}", p.site_index[c], p.month_index[c], p.y[c]) for k, c in enumerate(clubs)]
    >>> panel = fedmiss.GroupPanel.of(30, 24, groups)
    >>> fit = fedmiss.fit_counts(panel, fedmiss.CountSettings(rank=0))
    >>> draws = fedmiss.federation.bootstrap(panel, fit, draws=20)
    >>> draws.totals.shape  # replicates, regions (the whole first), months
    (20, 1, 24)
    """
    if not 1 <= draws <= 100_000:
        raise ConfigError(f"draws is {draws} (must be 1 to 100,000).")
    federation = LocalFederation.of_panel(panel, weigh=weigh)
    federation.load(fit)
    size, parts = federation.lockstep_size(), []
    for first in range(0, draws, size):
        numbers = range(first, min(first + size, draws))
        parts.append(federation.replicates(numbers, seed=seed))
        if watch:
            watch(numbers[-1] + 1)
    return Draws.joined(parts)
