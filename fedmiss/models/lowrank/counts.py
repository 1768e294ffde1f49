"""The model of bird counts: effort, observers, dispersion and penalties around the low-rank solver.

    eta = x . kappa + o_observer + mu + a_site + b_month + (U V')_site,month

``x`` are effort covariates, zero at standard effort, so that exp(mu + a + b + UV') is the expected count of a
standard visit. The observer effects ``o`` are estimated inside each group and never leave it; only their
sums of squares do. The variances of a, b and o are estimated by the EM recursion for Gaussian random effects
under a Laplace approximation (mean of squared effect plus its conditional variance), so their ridges need no
choosing. The factors are either integrated out with estimated variances (``bayes``, the default: penalty=None)
or penalised by a given ridge (``solver``, the paper's objective); the rank, and the ridge if wanted, are chosen by
cross-validation (``crossval``).

Over-dispersed counts: quasi-Poisson (Var = phi mu, all ridges scaled by phi) or negative binomial
(Var = mu + mu^2/theta, solved through its quasi-score weights 1/(1 + mu/theta)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.bayes import (
    Posterior,
    add_factor,
    predictor,
    set_predictor,
    start_posterior,
    vb_fit,
)
from fedmiss.models.lowrank.data import Cells, GroupPanel
from fedmiss.models.lowrank.families import mean
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.solver import Fit, Penalty, Theta, _Phase, fit_cells, set_eta
from fedmiss.models.lowrank.visits import (
    fill_cells,
    pearson,
    update_effort,
    update_observers,
    update_theta,
    visit_mean,
)

__all__ = ["Auxiliary", "CountFit", "CountSettings", "fit_counts", "to_counts"]


@dataclass(slots=True)
class CountFit:
    """A fitted count model.

    ``fit`` is the low-rank part, ``aux`` the rest; ``dispersion`` is Pearson / residual degrees of freedom on
    visits; ``edf`` the effective number of parameters (trace of the block hat matrices); ``smear`` the factor
    of the log1p back-transform, calibrated on the total of the observed counts.
    """

    settings: CountSettings
    J: int
    L: int
    fit: Fit
    aux: Auxiliary
    dispersion: float
    edf: float
    n_counted: int
    smear: float = 1.0
    posterior: Posterior | None = None

    @property
    def theta(self) -> Theta:
        """Parameters of the low-rank part."""
        return self.fit.theta

    def expected(self, site: slice | I64 = slice(None), month: slice | I64 = slice(None)) -> F64:
        """Expected count (or detection probability) at standard effort, for a block of cells."""
        if self.posterior is not None:
            return to_counts(
                predictor(self.posterior, site, self.settings.family)[:, month], self.settings, self.smear
            )
        return to_counts(self.theta.eta(site, month), self.settings, self.smear)


def to_counts(eta: F64, settings: CountSettings, smear: float = 1.0) -> F64:
    """Back-transform the linear predictor to birds."""
    if settings.scale == "log1p":
        return np.maximum(smear * np.exp(np.minimum(eta, 50.0)) - 1.0, 0.0)
    if settings.family == "poisson":
        return smear * np.exp(np.minimum(eta, 50.0))
    return mean(eta, settings.family)


def prepare(panel: GroupPanel, settings: CountSettings) -> tuple[GroupPanel, list[Cells]]:
    """Transform the counts to the family's scale and index the cells of every group."""
    settings.check()
    groups = []
    for g in panel.groups:
        y = g.count
        if settings.family == "poisson" and y.size and float(y.min()) < 0:
            raise ConfigError(
                f"group {g.name!r} has the count {y.min():g}; Poisson counts must be 0 or more."
            )
        if settings.scale == "log1p":
            y = np.log1p(y)
        elif settings.family == "bernoulli":
            y = (y > 0).astype(float)
        groups.append(replace(g, count=y))
    ready = replace(panel, groups=tuple(groups))
    by_visit = settings.family == "bernoulli" and (
        settings.observers or any(g.effort.shape[1] for g in panel.groups)
    )
    return ready, [Cells.index(g, panel.J, panel.L, by_visit=by_visit) for g in groups]


# -- penalties from variances --------------------------------------------------------------------------------


def _blocks(cells: Sequence[Cells], theta: Theta, settings: CountSettings, size: int, by_site: bool) -> F64:
    design = (
        np.column_stack([np.ones(theta.b.size), theta.V])
        if by_site
        else np.column_stack([np.ones(theta.a.size), theta.U])
    )
    if not settings.effects:
        design = np.ascontiguousarray(design[:, 1:])
    return _Phase(cells, size, settings.family, by_site=by_site).sums(design)[1]


def _effect_variances(
    cells: Sequence[Cells], theta: Theta, aux: Auxiliary, settings: CountSettings
) -> tuple[float, float, float]:
    """EM update of the ridges of a and b, and the effective degrees of freedom."""
    pen = penalty_of(aux, settings)
    edf = 1.0 if settings.effects else 0.0
    out = []
    for by_site, effect, ridge in ((True, theta.a, pen.sites), (False, theta.b, pen.months)):
        G = _blocks(cells, theta, settings, effect.size, by_site)
        p = G.shape[1]
        lam = np.full(p, pen.factors)
        if settings.effects:
            lam[0] = ridge
        C = np.linalg.pinv(G + np.diag(lam + 1e-10), hermitian=True)
        edf += float(np.einsum("nij,nji->", C, G))
        if settings.effects:
            var = float((effect**2 + aux.phi * C[:, 0, 0]).mean())
            out.append(1.0 / max(var, 1e-4))
        else:
            out.append(0.0)
    return out[0], out[1], edf


def penalty_of(aux: Auxiliary, settings: CountSettings) -> Penalty:
    """Ridges on the scale of the loss."""
    pen = Penalty(1.0 if settings.penalty is None else settings.penalty, aux.sites, aux.months)
    return pen.scaled(aux.phi)


def start_aux(panel: GroupPanel, settings: CountSettings) -> Auxiliary:
    """Neutral start: no effort, observer or dispersion effect."""
    K = max((g.effort.shape[1] for g in panel.groups), default=0)
    observers = tuple(np.zeros(g.n_observers if settings.observers else 0) for g in panel.groups)
    return Auxiliary(
        np.zeros(K),
        observers,
        float("inf"),
        1.0,
        1.0 if settings.site_penalty is None else settings.site_penalty,
        1.0 if settings.month_penalty is None else settings.month_penalty,
        4.0,
        float(K),
    )


def marginal_fit(
    panel: GroupPanel,
    cells: Sequence[Cells],
    settings: CountSettings,
    *,
    rounds: int = 12,
    aux: Auxiliary | None = None,
) -> tuple[Fit, Auxiliary]:
    """Rank-0 fit that estimates everything else: kappa, observers, dispersion, ridges of a and b."""
    zero = replace(settings, rank=0)
    aux = aux or start_aux(panel, settings)
    for c in cells:
        c.shrink = np.zeros(0)
    fill_cells(panel, cells, replace(aux, theta=float("inf")), zero)
    theta: Theta | None = None
    fit: Fit | None = None
    for k in range(rounds):
        fit = fit_cells(
            cells,
            panel.J,
            panel.L,
            family=settings.family,
            rank=0,
            penalty=penalty_of(aux, zero),
            effects=settings.effects,
            start=theta,
            tol=1e-6,
            max_sweeps=30,
            seed=settings.seed,
        )
        theta = fit.theta
        previous = aux
        aux = refine_aux(panel, cells, theta, aux, zero)
        fill_cells(panel, cells, aux, zero)
        set_eta(cells, theta)
        if k >= 2 and _change(previous, aux) < 0.01:
            break
    assert fit is not None
    return fit, aux


def _change(old: Auxiliary, new: Auxiliary) -> float:
    pairs = [
        (old.phi, new.phi),
        (old.sites, new.sites),
        (old.months, new.months),
        (old.observers, new.observers),
    ]
    change = max(abs(np.log(max(b, 1e-12) / max(a, 1e-12))) for a, b in pairs)
    if np.isfinite(old.theta) and np.isfinite(new.theta):
        change = max(change, abs(np.log(new.theta / old.theta)))
    return float(max(change, float(np.abs(new.kappa - old.kappa).max(initial=0.0))))


def refine_aux(
    panel: GroupPanel, cells: Sequence[Cells], theta: Theta, aux: Auxiliary, settings: CountSettings
) -> Auxiliary:
    """One update of every auxiliary parameter at the current low-rank fit (``eta`` must be set)."""
    aux = update_effort(panel, cells, aux, settings)
    aux = update_observers(panel, cells, aux, settings)
    sites, months, edf = _effect_variances(cells, theta, aux, settings)
    edf += aux.edf
    if settings.dispersion == "negbin":
        aux = replace(aux, theta=update_theta(panel, cells, aux, settings, edf))
    if settings.dispersion != "none" and settings.family != "bernoulli":
        n = sum(float(g.weight.sum()) for g in panel.groups)
        phi = pearson(panel, cells, aux, settings) / max(n - edf, 0.2 * n)
        aux = replace(aux, phi=max(phi, 1.0) if settings.family == "poisson" else max(phi, 1e-8))
    return replace(
        aux,
        sites=sites if settings.site_penalty is None else settings.site_penalty,
        months=months if settings.month_penalty is None else settings.month_penalty,
    )


def fit_counts(
    panel: GroupPanel,
    settings: CountSettings | None = None,
    *,
    start: CountFit | None = None,
    watch: Callable[[int, float, float], None] | None = None,
) -> CountFit:
    """Fit the count model: the marginal model first, then the factors at its dispersion and penalties.

    Parameters
    ----------
    panel : the groups' counted visits
    settings : by default the negative binomial of rank 2
    start : an earlier fit of the same panel (bootstrap): its variances, dispersion and effort are kept

    Returns
    -------
    CountFit

    Examples
    --------
    >>> import numpy as np
    >>> g = Group.of("a", [0, 0, 1, 1], [0, 1, 0, 1], [2.0, 4.0, 6.0, 12.0])
    >>> fit = fit_counts(GroupPanel.of(2, 2, [g]), CountSettings(rank=0, penalty=0.0, site_penalty=0.0, month_penalty=0.0))
    >>> bool(np.allclose(fit.expected(), [[2, 4], [6, 12]], rtol=1e-4))
    True
    """
    settings = settings or CountSettings(dispersion="negbin")
    ready, cells = prepare(panel, settings)
    return fit_prepared(ready, cells, settings, start=start, watch=watch)


def fit_prepared(
    panel: GroupPanel,
    cells: Sequence[Cells],
    settings: CountSettings,
    *,
    start: CountFit | tuple[Fit, Auxiliary] | None = None,
    watch: Callable[[int, float, float], None] | None = None,
) -> CountFit:
    """:func:`fit_counts` on cells that are indexed already; ``start`` may also be a marginal fit.

    A variational fit of rank r starts where that of rank r - 1 ended (``bayes.add_factor``), so a ``start`` of lower rank
    only saves work: the result is the same. A ``start`` of the same rank keeps its variances (bootstrap).
    """
    bayes = settings.penalty is None
    if isinstance(start, CountFit) and bayes:
        if start.posterior is None:
            raise ConfigError("a variational fit cannot start at a penalised one; leave start out.")
        fit = start
        if start.settings.rank >= settings.rank:
            return _fit_bayes(panel, cells, settings, start.aux, start.posterior, watch, learn=False)
        _fill_at(panel, cells, settings, start.aux, start.posterior)
    else:
        if isinstance(start, CountFit):
            theta, aux = start.theta, start.aux
        else:
            marginal, aux = start or marginal_fit(panel, cells, settings)
            theta = marginal.theta
        set_eta(cells, theta)
        for c in cells:  # no memory of an earlier fit
            c.shrink = np.zeros(0)
        fill_cells(panel, cells, aux, settings)
        if not bayes:
            return _fit_penalised(panel, cells, settings, aux, theta, watch)
        fit = _fit_bayes(
            panel, cells, replace(settings, rank=0), aux, start_posterior(theta), watch, learn=True
        )
    for rank in range(fit.theta.rank + 1, min(settings.rank, panel.J, panel.L) + 1):
        assert fit.posterior is not None
        _fill_at(panel, cells, settings, fit.aux, fit.posterior)
        q = add_factor(cells, fit.posterior, settings.family, phi=fit.aux.phi, seed=settings.seed)
        before = fit.fit.sweeps
        fit = _fit_bayes(panel, cells, replace(settings, rank=rank), fit.aux, q, watch, learn=True)
        fit.fit.sweeps += before
    # a small panel cannot have the rank that was asked for
    return replace(fit, settings=replace(settings, rank=fit.theta.rank))


def _fit_penalised(
    panel: GroupPanel,
    cells: Sequence[Cells],
    settings: CountSettings,
    aux: Auxiliary,
    theta: Theta,
    watch: Callable[[int, float, float], None] | None,
) -> CountFit:
    """Everything but the low-rank part is held fixed, so that the run minimises one objective and its list never rises."""
    fit = fit_cells(
        cells,
        panel.J,
        panel.L,
        family=settings.family,
        rank=settings.rank,
        effects=settings.effects,
        penalty=penalty_of(aux, settings),
        start=theta,
        tol=settings.tol,
        max_sweeps=settings.max_sweeps,
        seed=settings.seed,
        watch=watch,
    )
    _, _, fit.edf = _effect_variances(cells, fit.theta, aux, settings)
    return _finish(panel, cells, settings, aux, fit, None)


def _fill_at(
    panel: GroupPanel, cells: Sequence[Cells], settings: CountSettings, aux: Auxiliary, q: Posterior
) -> None:
    """Set predictor and weights to those of a start: a refit must not depend on what the cells held before."""
    set_predictor(cells, q, settings.family)
    for c in cells:
        c.shrink = np.zeros(0)
    fill_cells(panel, cells, aux, settings)


def _fit_bayes(
    panel: GroupPanel,
    cells: Sequence[Cells],
    settings: CountSettings,
    aux: Auxiliary,
    start: Posterior,
    watch: Callable[[int, float, float], None] | None,
    *,
    learn: bool,
) -> CountFit:
    n = sum(float(g.weight.sum()) for g in panel.groups)
    box = [aux]

    def between(q: Posterior, edf: float, k: int) -> float:
        if learn and k % 3 == 0:
            now = update_effort(panel, cells, box[0], settings)
            now = update_observers(panel, cells, now, settings)
            if settings.dispersion == "negbin":
                now = replace(now, theta=update_theta(panel, cells, now, settings, edf + now.edf))
            if settings.dispersion != "none" and settings.family != "bernoulli":
                phi = pearson(panel, cells, now, settings) / max(n - edf - now.edf, 0.2 * n)
                now = replace(now, phi=max(phi, 1.0) if settings.family == "poisson" else max(phi, 1e-8))
            box[0] = now
            fill_cells(panel, cells, now, settings)
        elif settings.observers and k % 2 == 0:
            # A replicate keeps the variances but not the effects: reweighted observers move the level with them.
            moved = update_observers(panel, cells, box[0], settings)
            box[0] = replace(moved, observers=aux.observers)
            fill_cells(panel, cells, box[0], settings)
        return box[0].phi

    _fill_at(panel, cells, settings, aux, start)
    q, _phi, edf, rounds, converged = vb_fit(
        cells,
        start,
        family=settings.family,
        phi=aux.phi,
        learn=learn,
        between=between,
        watch=watch,
        calendar=panel.calendar if settings.season else None,
        max_rounds=settings.max_sweeps if learn else 25,
        tol=3e-3 if learn else 1e-2,
    )
    reason = (
        "in three rounds in a row predictors and months moved by less than 0.003 (root mean square)"
        if converged
        else f"the limit of {rounds} rounds was reached"
    )
    fit = Fit(q.theta(), [], converged, reason, rounds, edf=edf)
    aux = replace(box[0], sites=1.0 / float(q.tau[0]), months=1.0 / float(q.noise[0]))
    set_predictor(cells, q, settings.family)  # after the last round's months: totals of what is returned
    return _finish(panel, cells, settings, aux, fit, q)


def _finish(
    panel: GroupPanel,
    cells: Sequence[Cells],
    settings: CountSettings,
    aux: Auxiliary,
    fit: Fit,
    q: Posterior | None,
) -> CountFit:
    n = sum(float(g.weight.sum()) for g in panel.groups)
    dispersion = pearson(panel, cells, aux, settings) / max(n - fit.edf - aux.edf, 0.05 * n)
    smear = _smear(panel, cells, aux, settings)
    return CountFit(settings, panel.J, panel.L, fit, aux, dispersion, fit.edf, panel.m, smear, q)


def _smear(panel: GroupPanel, cells: Sequence[Cells], aux: Auxiliary, settings: CountSettings) -> float:
    """Ratio of the counted to the fitted total over the visits; two sums per group travel.

    log1p: of (1 + count) to exp(eta), Duan's smearing factor (JASA 1983) as a ratio of totals. Negative binomial: of count
    to mean. Its score weighs a visit by 1 / (1 + mu/theta) at the visit's own fitted mean, so visits that happened to
    be low count for more, and the fitted total falls short (by 4 to 20 % where theta is below 1). The Poisson score has no
    such weights: its fitted totals are the counted ones, and so are these after multiplication (the ratio estimator of
    sampling theory).
    """
    if settings.scale != "log1p" and not (settings.calibrate and np.isfinite(aux.theta)):
        return 1.0
    top = bottom = 0.0
    for i, (g, c) in enumerate(zip(panel.groups, cells, strict=True)):
        if settings.scale == "log1p":
            top += float((g.weight * np.exp(g.count)).sum())
            bottom += float((g.weight * np.exp(visit_mean(g, c, aux, i, "gaussian"))).sum())
        else:
            top += float((g.weight * g.count).sum())
            bottom += float((g.weight * visit_mean(g, c, aux, i, settings.family)).sum())
    return top / bottom if top > 0 else 1.0
