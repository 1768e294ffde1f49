"""The community model: counts of every species at every site, with factors that species have in common.

    log E[y_js] = log e_js + mu + a_j + b_s + beta_s . x_j + u_j . w_s

e_js is the effort of the complete lists of site j on which species s was counted, in standard visits; a_j and the factors
u_j of the site stay with whoever holds the site, b_s, beta_s and the loadings w_s are joint. It is the count model of
docs/guide/model.md with species in the place of months: the same program, messages and solver. Counts of a cell are negative
binomial. 1 / size is chosen among fractions of its value at rank 0 together with the rank, on cells left out of the fit:
estimated with the factors it goes to zero where most species were seen once, since the factors then explain single counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.community.settings import CommunitySettings
from fedmiss.errors import ConfigError
from fedmiss.etl.community import Lists
from fedmiss.federation.group.visits import Visits, effort_columns
from fedmiss.federation.hub.agree import Plan
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import CountFit
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import FAMILIES, negbin_deviance
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for

__all__ = ["Cells", "Community", "Effort", "cell_deviance", "cells_of", "effort_of", "fit_community"]

SIZES = (1.0, 0.5, 0.25, 0.125)  # fractions of the 1 / size of rank 0 that are tried
COVARIATES = ("covariates",)
ROUNDS = 30  # of each rank while models are compared: scores of left-out cells move less after them than between folds
SAME = 0.005  # share of the deviance by which a model with more axes must be better


@dataclass(frozen=True, slots=True)
class Effort:
    """What a list counts for: ``weight`` (m,) in visits of one hour, standing still, by one observer; terms and powers."""

    weight: F64
    terms: Mapping[str, float] = field(default_factory=dict)


def effort_of(lists: Lists, wanted: str = "auto") -> Effort:
    """Estimate what effort does to the number of birds on a list: the count model of all birds of the lists that count all.

    Sites differ by their effects and months by theirs, so the powers come from lists of the same site that differ in effort.
    """
    m = lists.site.size
    birds, whole = lists.totals()
    if wanted == "none" or not whole.any():
        return Effort(np.ones(m))
    held = Visits(
        site_id=lists.sites["site_id"].to_numpy().astype(object), site=lists.site, month=lists.month.astype(np.int64) - 1,
        count=np.where(whole, birds, np.nan), detected=birds > 0, observer=np.zeros(m, np.int32), effort=lists.effort,
        weight=np.ones(m), region=np.full(lists.J, "", dtype=object), calendar=False,
    )  # fmt: skip
    terms = wanted if wanted == "auto" else tuple(t.strip() for t in wanted.split(","))
    plan = Plan(months=np.arange(12, dtype=np.int64), effort=terms)
    federation = LocalFederation({"lists": held}, {"lists": np.arange(lists.J)}, lists.J, plan)
    found = federation.agreement
    if not found.terms:
        return Effort(np.ones(m))
    model = CountSettings(rank=0, dispersion="negbin", season=False, slopes=False)
    kappa = federation.fit(model).aux.kappa
    names = [n for t in found.terms for n in ((t, f"{t} not known") if t in found.blanks else (t,))]
    weight: F64 = np.exp(effort_columns(lists.effort, found.terms, found.blanks) @ kappa)
    return Effort(weight, dict(zip(names, (float(k) for k in kappa), strict=True)))


@dataclass(frozen=True, slots=True)
class Cells:
    """Site x species cells with a complete list.

    ``site``, ``species`` (n,); ``count`` (n,) birds, or 1 and 0; ``exposure`` (n,) standard visits, None for presence;
    ``weight`` (n,) 1, or for presence the number of lists with and without the species; J sites, S species.
    """

    J: int
    S: int
    site: I64
    species: I64
    count: F64
    exposure: F64 | None
    weight: F64

    def take(self, keep: np.ndarray) -> Cells:
        """Some of the cells."""
        exposure = None if self.exposure is None else self.exposure[keep]
        return replace(
            self, site=self.site[keep], species=self.species[keep], count=self.count[keep], exposure=exposure,
            weight=self.weight[keep],
        )  # fmt: skip

    @property
    def effort(self) -> F64:
        """Standard visits (n,) of each cell."""
        return np.ones(self.count.size) if self.exposure is None else self.exposure

    def panel(self, covariates: Mapping[str, np.ndarray], groups: Sequence[str] | None) -> GroupPanel:
        """The cells as a panel whose months are the species; ``groups`` (J,) says who holds each site."""
        own = np.full(self.J, "all", dtype=object) if groups is None else np.asarray(groups, dtype=object)
        parts = []
        for name in sorted(set(own[self.site].tolist())):
            c = self.take(own[self.site] == name)
            parts.append(Group.of(name, c.site, c.species, c.count, weight=c.weight, exposure=c.exposure))
        return replace(GroupPanel.of(self.J, self.S, parts), covariates=dict(covariates))


def cells_of(lists: Lists, effort: Effort, model: str) -> Cells:
    """Cells of the community model from lists."""
    birds, exposure, found = lists.summed(effort.weight)
    if model == "counts":
        j, s = np.nonzero(exposure > 0)
        return Cells(lists.J, lists.S, j, s, birds[j, s], exposure[j, s], np.ones(j.size))
    lost = np.zeros((lists.J, lists.S))
    np.add.at(lost, (lists.site[lists.missing[:, 0]], lists.missing[:, 1]), 1.0)
    without = np.maximum(lists.visits[:, None] - lost - found, 0.0)
    parts = [(np.nonzero(n > 0), n, y) for n, y in ((found, 1.0), (without, 0.0))]
    j, s = (np.concatenate([at[i] for at, _, _ in parts]) for i in (0, 1))
    y = np.concatenate([np.full(at[0].size, value) for at, _, value in parts])
    n = np.concatenate([n[at] for at, n, _ in parts])
    return Cells(lists.J, lists.S, j, s, y, None, n)


@dataclass(frozen=True, slots=True)
class Community:
    """A fitted community.

    ``fit`` with species in the place of months; ``choice`` of rank and size among
    the models ``tried``; ``cells`` that it is a fit of; ``covariates``
    of the sites, and names of the species' ``responses`` to them; ``gains`` one row for each cell: its deviance when it was
    left out, of the model without axes (``none``) and of the one ``chosen``.
    """

    fit: CountFit
    choice: Choice
    tried: tuple[CountSettings, ...]
    cells: Cells
    covariates: Mapping[str, np.ndarray]
    responses: tuple[str, ...]
    gains: pd.DataFrame

    @property
    def rank(self) -> int:
        """Number of axes."""
        return self.fit.settings.rank


def fit_community(
    cells: Cells,
    settings: CommunitySettings | None = None,
    *,
    covariates: Mapping[str, np.ndarray] | None = None,
    groups: Sequence[str] | None = None,
    watch: Callable[[str], None] | None = None,
) -> Community:
    """Fit the community model, its rank and size chosen by left-out cells.

    Parameters
    ----------
    covariates : name -> (J,) numbers (NaN for a gap) or texts (empty for a gap)
    groups : (J,) who holds each site; the fit does not depend on it
    watch : called with what is done next

    Raises
    ------
    ConfigError    a rank that so few species cannot bear

    Examples
    --------
    >>> import numpy as np
    >>> from fedmiss.community.model import Cells, fit_community
    >>> from fedmiss.community.settings import CommunitySettings
    >>> rng = np.random.default_rng(0)
    >>> site, species = np.nonzero(np.ones((30, 12)))
    >>> count = rng.poisson(np.exp(rng.normal(size=30)[site] + rng.normal(size=12)[species])).astype(float)
    >>> cells = Cells(30, 12, site, species, count, np.ones(360), np.ones(360))
    >>> fit_community(cells, CommunitySettings(rank=0)).fit.expected().shape
    (30, 12)
    """
    s, known, tell = settings or CommunitySettings(), dict(covariates or {}), watch or (lambda text: None)
    most = (cells.S - 1) // 2
    if s.rank != "auto" and s.rank > most:
        raise ConfigError(
            f"rank {s.rank} needs {2 * s.rank + 1} species or more; there are {cells.S} (at most rank {most}). Lower --rank "
            "or --min-sites."
        )
    panel = cells.panel(known, groups)
    family = {"counts": "poisson", "presence": "bernoulli"}[s.model]
    dispersion = "negbin" if s.model == "counts" else "none"
    plain = CountSettings(
        family=family, rank=0, dispersion=dispersion, season=False, slopes=False, seed=s.seed
    )
    federation = LocalFederation.of_panel(panel)
    tell("rank 0")
    federation.fit(plain)
    widest = federation.members[0].state.inverse_size
    base = replace(plain, inverse_size=widest if widest > 0 else None)

    def compared(candidates: Sequence[CountSettings]) -> Choice:
        return federation.cross_validate(
            [replace(c, max_sweeps=ROUNDS) for c in candidates],
            folds=s.folds,
            by="cell",
            seed=s.seed,
            inverse_size=widest,
        )

    start = base
    if known:
        tell("covariates")
        following = replace(base, responses=COVARIATES)
        start = following if _clear(compared([base, following]), 0, 1) else base
    held = [replace(start, inverse_size=widest * f) for f in SIZES] if widest > 0 else [start]
    ranks = range(min(s.max_rank, most) + 1) if s.rank == "auto" else [s.rank]
    candidates = [replace(h, rank=r) for r in sorted({0, *ranks}) for h in held]
    tell("number of axes")
    choice = compared(candidates)
    alone = _best(choice, candidates, [0])
    best = _best(choice, candidates, ranks)
    if s.rank == "auto" and not _clear(choice, candidates.index(alone), candidates.index(best)):
        best = alone
    tell("fit")
    fit = federation.fit(best)
    features = federation.hub.features
    names = () if features is None else tuple(str(features.made[i]) for i in features.of(best.responses))
    tell("what each species gained")
    return Community(
        fit,
        choice,
        tuple(candidates),
        cells,
        known,
        names,
        _gains(cells, known, {"none": alone, "chosen": best}, widest, s),
    )


def _folds(choice: Choice, measure: str = "deviance") -> F64:
    """A measure of left-out cells by fold (rows) and candidate."""
    return choice.table.pivot(index="fold", columns="candidate", values=measure).to_numpy(dtype=float)


def _best(choice: Choice, candidates: Sequence[CountSettings], ranks: Sequence[int]) -> CountSettings:
    """The candidate of some ``ranks`` that predicts left-out cells best.

    Of those whose deviance is within ``SAME`` of the lowest the one with the fewest axes: an axis too many is switched off.
    """
    mean = _folds(choice).mean(axis=0)
    able = [i for i, c in enumerate(candidates) if c.rank in ranks]
    lowest = min(mean[i] for i in able)
    near = [i for i in able if mean[i] <= (1.0 + SAME) * lowest]
    return candidates[min(near, key=lambda i: (candidates[i].rank, mean[i]))]


def _clear(choice: Choice, first: int, second: int) -> bool:
    """Whether the second candidate clearly predicts left-out cells better than the first.

    Its deviance is lower, and that or its error of log(1 + count) is lower by one standard error over the folds: of the
    deviance few large counts decide, so that five folds differ by more than anything can gain.
    """
    excess = [_folds(choice, m)[:, second] - _folds(choice, m)[:, first] for m in ("deviance", "log_rmse")]
    sure = [e.mean() < -e.std(ddof=1) / np.sqrt(e.size) for e in excess]
    return bool(excess[0].mean() < 0 and any(sure))


def cell_deviance(count: F64, mean: F64, inverse_size: float, family: str) -> F64:
    """Minus twice the log likelihood ratio to the saturated model (n,): deviance of each cell."""
    if family == "poisson" and inverse_size > 0:
        return negbin_deviance(count, mean, inverse_size)
    return FAMILIES[family].deviance(count, mean)


def _gains(
    cells: Cells,
    covariates: Mapping[str, np.ndarray],
    models: Mapping[str, CountSettings],
    inverse_size: float,
    s: CommunitySettings,
) -> pd.DataFrame:
    """Deviance of every left-out cell under both models; folds of whole cells."""
    key = cells.site * cells.S + cells.species
    unique, at = np.unique(key, return_inverse=True)
    fold = rng_for(s.seed, "community folds").integers(0, s.folds, unique.size)[at]
    out = {name: np.zeros(cells.count.size) for name in models}
    for k in range(s.folds):
        train, test = cells.take(fold != k), cells.take(fold == k)
        federation = LocalFederation.of_panel(train.panel(covariates, None))
        for name, model in models.items():
            mean = (
                federation.fit(replace(model, max_sweeps=ROUNDS)).expected()[test.site, test.species]
                * test.effort
            )
            out[name][fold == k] = test.weight * cell_deviance(test.count, mean, inverse_size, model.family)
    return pd.DataFrame({"site": cells.site, "species": cells.species, "weight": cells.weight, **out})
