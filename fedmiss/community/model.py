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
from fedmiss.etl.community import Lists
from fedmiss.federation.group.covariates import expanded
from fedmiss.federation.group.visits import Visits, effort_columns
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.begin import responding
from fedmiss.federation.hub.crossval import FOLDS, KEPT
from fedmiss.federation.hub.features import refuse_doubled
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import CountFit, Posterior
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import FAMILIES, negbin_deviance
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import effort_words

SIZES = (1.0, 0.5, 0.25, 0.125)  # fractions of the 1 / size of rank 0 that are tried
COVARIATES = ("covariates",)
BIRDS = 20.0  # what a prior that counted and fitted birds of a species are as many weighs
ROUNDS = 30  # of each rank while models are compared: scores of left-out cells move less after them than between folds
SAME = 0.005  # share of the deviance by which a model with more axes must be better


@dataclass(frozen=True, slots=True)
class Effort:
    """What a list counts for: ``weight`` (m,) in visits of one hour, standing still, by one observer; terms and powers."""

    weight: F64
    terms: Mapping[str, float] = field(default_factory=dict)


def effort_visits(lists: Lists) -> Visits:
    """The lists as visits on which all birds were counted, by calendar month."""
    birds, whole = lists.totals()
    return Visits(
        site_id=lists.sites["site_id"].to_numpy().astype(object), site=lists.site, month=lists.month.astype(np.int64) - 1,
        count=np.where(whole, birds, np.nan), detected=birds > 0, observer=np.zeros(lists.site.size, np.int32),
        effort=lists.effort, weight=np.ones(lists.site.size), region=np.full(lists.J, "", dtype=object), calendar=False,
    )  # fmt: skip


def effort_plan(wanted: str) -> DataSpec:
    """What :func:`effort_by` needs to be agreed; ``wanted``: auto, or terms with commas between them."""
    return DataSpec(months=np.arange(12, dtype=np.int64), effort=effort_words(wanted))


def effort_by(federation: LocalFederation, lists: Lists) -> Effort:
    """Estimate what effort does to the number of birds on a list: the count model of all birds of the lists that count all.

    Sites differ by their effects and months by theirs, so the powers come from lists of the same site that differ in effort.
    """
    # Which terms have effort, agreed by all organisations, so that all weigh a list alike.
    found = federation.agreement
    if not found.terms:
        return Effort(np.ones(lists.site.size))
    model = CountSettings(rank=0, dispersion="negbin", season=False, slopes=False)
    federation.fit(model)
    kappa = federation.members[0].state.kappa
    names = [
        column
        for term in found.terms
        for column in ((term, f"{term} not known") if term in found.blanks else (term,))
    ]
    # exp(x'kappa): a list counts for as many standard visits as would find as many birds.
    weight: F64 = np.exp(effort_columns(lists.effort, found.terms, found.blanks) @ kappa)
    return Effort(weight, dict(zip(names, (float(power) for power in kappa), strict=True)))


def effort_of(lists: Lists, wanted: str = "auto") -> Effort:
    """What each list counts for; ``wanted``: auto, none, or terms with commas between them."""
    if wanted == "none" or not lists.totals()[1].any():
        return Effort(np.ones(lists.site.size))
    held, at = {"lists": effort_visits(lists)}, {"lists": np.arange(lists.J)}
    return effort_by(LocalFederation(held, at, lists.J, effort_plan(wanted)), lists)


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

    def visited(self) -> F64:
        """Standard visits (J, S) of every cell, or lists for presence; 0 where there was none."""
        visits = self.weight if self.exposure is None else self.exposure
        out = np.zeros((self.J, self.S))
        np.add.at(out, (self.site, self.species), visits)
        return out

    def visits(self, site_id: np.ndarray, covariates: Mapping[str, np.ndarray]) -> Visits:
        """The cells as visits of an organisation's own sites (J,), in months that are the species."""
        size = self.count.size
        return Visits(
            site_id=site_id.astype(object), site=self.site.astype(np.int32), month=self.species.astype(np.int64),
            count=self.count, detected=self.count > 0, observer=np.zeros(size, np.int32), effort=np.zeros((size, 0)),
            weight=self.weight, exposure=self.exposure, region=np.full(self.J, "", dtype=object), given=True,
            calendar=False, covariates=expanded(covariates),
        )  # fmt: skip

    def panel(self, covariates: Mapping[str, np.ndarray], groups: Sequence[str] | None) -> GroupPanel:
        """The cells as a panel whose months are the species; ``groups`` (J,) says who holds each site."""
        own = np.full(self.J, "all", dtype=object) if groups is None else np.asarray(groups, dtype=object)
        parts = []
        for name in sorted(set(own[self.site].tolist())):
            cells = self.take(own[self.site] == name)
            parts.append(
                Group.of(
                    name, cells.site, cells.species, cells.count, weight=cells.weight, exposure=cells.exposure
                )
            )
        return replace(GroupPanel.of(self.J, self.S, parts), covariates=dict(covariates))


def cells_of(lists: Lists, effort: Effort, model: str) -> Cells:
    """Cells of the community model from lists."""
    birds, exposure, found = lists.summed(effort.weight)
    if model == "counts":
        site, species = np.nonzero(exposure > 0)
        return Cells(
            lists.J, lists.S, site, species, birds[site, species], exposure[site, species], np.ones(site.size)
        )
    # A list on which the species is there and may not be used is neither a detection nor an absence.
    lost = np.zeros((lists.J, lists.S))
    np.add.at(lost, (lists.site[lists.missing[:, 0]], lists.missing[:, 1]), 1.0)
    without = np.maximum(lists.visits[:, None] - lost - found, 0.0)
    parts = [(np.nonzero(many > 0), many, value) for many, value in ((found, 1.0), (without, 0.0))]
    site, species = (np.concatenate([at[axis] for at, _, _ in parts]) for axis in (0, 1))
    count = np.concatenate([np.full(at[0].size, value) for at, _, value in parts])
    number = np.concatenate([many[at] for at, many, _ in parts])
    return Cells(lists.J, lists.S, site, species, count, None, number)


@dataclass(frozen=True, slots=True)
class Community:
    """A fitted community.

    ``fit`` with species in the place of months; ``choice`` of rank and size among
    the models ``tried``; ``cells`` that it is a fit of; ``covariates``
    of the sites, and names of the species' ``responses`` to them; ``gains`` one row for each cell: its deviance when it was
    left out, of the model without axes (``none``) and of the one ``chosen``. ``raised`` (S,): what calibration added to the
    species' levels (see :func:`_calibrated`). ``categories``: what each response is a value of, or "".
    """

    fit: CountFit
    choice: Choice
    tried: tuple[CountSettings, ...]
    cells: Cells
    covariates: Mapping[str, np.ndarray]
    responses: tuple[str, ...]
    gains: pd.DataFrame
    widest: float = 0.0
    raised: F64 | float = 0.0
    categories: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """Number of axes."""
        return self.fit.settings.rank

    @property
    def posterior(self) -> Posterior:
        """What is known of sites and species; every fit of a community has it."""
        assert self.fit.posterior is not None
        return self.fit.posterior


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

    Raises ConfigError: a rank that so few species cannot bear.
    """
    known = dict({} if covariates is None else covariates)
    federation = LocalFederation.of_panel(cells.panel(known, groups))
    return fit_by(federation, cells, settings or CommunitySettings(), known, watch)


def plain_model(settings: CommunitySettings) -> CountSettings:
    """The count model of species without axes."""
    family = {"counts": "poisson", "presence": "bernoulli"}[settings.model]
    dispersion = "negbin" if settings.model == "counts" else "none"
    return CountSettings(
        family=family, rank=0, dispersion=dispersion, season=False, slopes=False, seed=settings.seed
    )


def fit_by(
    federation: LocalFederation,
    cells: Cells,
    settings: CommunitySettings,
    covariates: Mapping[str, np.ndarray],
    watch: Callable[[str], None] | None = None,
) -> Community:
    """Fit the community model by a federation whose months are species.

    ``cells`` and ``covariates`` are those of the sites that are held here.

    Raises
    ------
    ConfigError    more axes than so few species can bear, two responses of one name
    """
    tell, most = watch or (lambda text: None), settings.most_axes(cells.S)
    plain = plain_model(settings)
    refuse_doubled(federation.hub.covariates)
    tell("rank 0")
    federation.fit(plain)
    # Without axes all that they explain is overdispersion: this is
    # the largest 1/size, and smaller ones are tried beside axes.
    widest = federation.members[0].state.inverse_size
    base = replace(plain, inverse_size=widest if widest > 0 else None)

    def compared(candidates: Sequence[CountSettings], seed: int = settings.seed) -> Choice:
        return federation.cross_validate(
            [replace(candidate, max_sweeps=ROUNDS) for candidate in candidates],
            folds=settings.folds,
            by="cell",
            seed=seed,
            inverse_size=widest,
        )

    # Covariates before axes: what they explain needs no axis.
    start = base
    if federation.hub.covariates:
        tell("covariates")
        following = replace(base, responses=COVARIATES)
        start = following if _clear(compared([base, following]), 0, 1) else base
    # Fixed for each candidate, so that left-out cells choose it together with the number of axes.
    held = [replace(start, inverse_size=widest * size) for size in SIZES] if widest > 0 else [start]
    ranks = range(min(settings.max_rank, most) + 1) if settings.rank == "auto" else [settings.rank]
    candidates = [replace(h, rank=rank) for rank in sorted({0, *ranks}) for h in held]
    tell("number of axes")
    choice = compared(candidates)
    alone = _best(choice, candidates, [0])
    best = _best(choice, candidates, ranks)
    if settings.rank == "auto" and not _clear(choice, candidates.index(alone), candidates.index(best)):
        best = alone
    tell("what each species gained")
    # Other folds than those of the choice: on its own folds the chosen model would look better than it is.
    seed = settings.seed + 1
    gains = _gains(federation, alone, best, lambda models: compared(models, seed), settings.folds, seed)
    tell("fit")
    fit, raised = _calibrated(federation.fit(best))
    features = federation.hub.features
    columns = [] if features is None else [features.made[i] for i in features.of(best.responses)]
    names, categories = (
        tuple(text) for text in ([str(c) for c in columns], [c.of if c.level else "" for c in columns])
    )
    return Community(
        fit, choice, tuple(candidates), cells, covariates, names, gains, widest, raised, categories
    )


def _calibrated(fit: CountFit) -> tuple[CountFit, F64]:
    """The fit with every species' own calibration in its level, and what was added to the levels (S,).

    A fitted total falls short where counts are large beside the size of the negative binomial: by much for common species
    and not at all for rare ones. One factor of all birds is that of the commonest, and expects too many of the others.
    """
    q, state = fit.posterior, fit.state
    assert q is not None
    assert state is not None
    assert state.visited is not None
    if fit.settings.family != "poisson":
        return fit, np.zeros(fit.L)
    counted, fitted = state.visited[:, 1:3].T
    raised: F64 = np.log((counted + BIRDS) / (fitted + BIRDS))
    T = np.column_stack([q.T[:, 0] + raised, q.T[:, 1:]])
    return replace(fit, smear=1.0, posterior=replace(q, T=T)), raised


def _folds(choice: Choice, measure: str = "deviance") -> F64:
    """A measure of left-out cells by fold (rows) and candidate."""
    wide = choice.table.pivot(index="fold", columns="candidate", values=measure)
    # numbers of axes that were left out predict worse
    out = np.full((len(wide), int(max(wide.columns)) + 1), np.inf)
    out[:, wide.columns] = wide
    return out


def _best(choice: Choice, candidates: Sequence[CountSettings], ranks: Sequence[int]) -> CountSettings:
    """The candidate of some ``ranks`` that predicts left-out cells best.

    Of those whose deviance is within ``SAME`` of the lowest the one with the fewest axes: an axis too many is switched off.
    """
    mean = _folds(choice).mean(axis=0)
    able = [i for i, candidate in enumerate(candidates[: mean.size]) if candidate.rank in ranks]
    lowest = min(mean[candidate] for candidate in able)
    near = [candidate for candidate in able if mean[candidate] <= (1.0 + SAME) * lowest]
    return candidates[min(near, key=lambda i: (candidates[i].rank, mean[i]))]


def _clear(choice: Choice, first: int, second: int) -> bool:
    """Whether the second candidate clearly predicts left-out cells better than the first.

    Its deviance is lower, and that or its error of log(1 + count) is lower by one standard error over the folds: of the
    deviance few large counts decide, so that five folds differ by more than anything can gain.
    """
    excess = [
        _folds(choice, name)[:, second] - _folds(choice, name)[:, first] for name in ("deviance", "log_rmse")
    ]
    return clear_gain(np.array(excess))


def clear_gain(excess: F64) -> bool:
    """Whether (2, folds) differences of deviance and log error are clearly below 0, as :func:`_clear` has it."""
    sure = excess.mean(axis=1) < -excess.std(axis=1, ddof=1) / np.sqrt(excess.shape[1])
    return bool(excess[0].mean() < 0 and sure.any())


def cell_deviance(count: F64, mean: F64, inverse_size: float, family: str) -> F64:
    """Minus twice the log likelihood ratio to the saturated model (n,): deviance of each cell."""
    if family == "poisson" and inverse_size > 0:
        return negbin_deviance(count, mean, inverse_size)
    return FAMILIES[family].deviance(count, mean)


def _gains(
    federation: LocalFederation,
    alone: CountSettings,
    best: CountSettings,
    compare: Callable[[Sequence[CountSettings]], object],
    folds: int,
    seed: int,
) -> pd.DataFrame:
    """Deviance of every left-out cell under both models, as the programs here keep it.

    Folds are other ones than those of the choice.
    """
    models = list(dict.fromkeys([alone, best]))
    paths = list(dict.fromkeys(replace(model, rank=0) for model in models))
    for program in federation.programs.values():
        program.left_out = {}
    compare(models)
    parts = []
    for name, program in federation.programs.items():
        used, kept = program.need(), program.left_out or {}
        table = {
            "site": federation.at[name][used.site], "species": used.month.astype(np.int64), "weight": used.weight,
            "count": used.count,
            "visits": np.ones(used.site.size) if used.exposure is None else used.exposure,
            "fold": program.fold_of("cell", folds, seed, used),
        }  # fmt: skip
        for column, model in (("none", alone), ("chosen", best)):
            batch, most = FOLDS + paths.index(replace(model, rank=0)), 1 + model.rank
            most += responding(federation.hub, model)
            value = np.full(used.site.size, np.nan)  # of a species whose folds may not be told
            for fold in range(folds):
                # ranks below the largest are scored in copies of the batch
                scored = {
                    part: found
                    for (block, kind, part), found in kept.items()
                    if block % KEPT == batch and kind == fold and part <= most
                }
                if scored:
                    at, judged = scored[max(scored)]
                    value[at] = judged
            table[column] = value
        parts.append(pd.DataFrame(table))
        program.left_out = None
    return pd.concat(parts, ignore_index=True)
