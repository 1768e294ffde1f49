"""The whole job: agreement, choice of the model, fit, totals, bootstrap, and word to the groups.

It knows the groups only through the link, so it runs in process, over a network, and again from a journal, with the same
bits. `fedmiss fit` and a study run this one: what differs is what they keep of its stages (:class:`Stages`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import Agreement, DataSpec, agree, folds_like_gaps
from fedmiss.federation.hub.bootstrap import effective_observers, lockstep_size, replicates, totals_of
from fedmiss.federation.hub.coefficients import slope_by_abundance, structure_facts
from fedmiss.federation.hub.crossval import Known
from fedmiss.federation.hub.members import FittedModel
from fedmiss.federation.hub.onward import Before, before_of, begun_beside, choice_of, fit_onward
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.hub.structure import check_slopes, choose_model, features_of
from fedmiss.federation.hub.support import release_pairs, released_months
from fedmiss.federation.link import Link
from fedmiss.folders import JointFacts, ModelFacts
from fedmiss.models.lowrank.choice import Choice, model_name
from fedmiss.models.lowrank.families import SCALES
from fedmiss.models.lowrank.settings import CountSettings

FIRST_REPLICATES = 1


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is to be computed.

    ``candidates`` to choose from, one for no choice; ``folds``, ``by``, ``one_se`` of the cross-validation; ``bootstrap``
    number of replicates, 0 for none; ``seed`` of everything that is random at the hub; ``structure``: features of sites to
    try, observers, occupancy and slopes with them (:mod:`.structure`), None for no trial; ``average``: average the ranks
    that folds cannot tell from the best one; ``before``: models of an earlier job to go on from, nothing is chosen then
    (:mod:`.onward`).
    """

    plan: DataSpec
    candidates: Sequence[CountSettings]
    folds: int = 5
    by: str = "auto"
    one_se: bool = False
    bootstrap: int = 200
    seed: int = 0
    structure: tuple[str, ...] | None = None
    average: bool = True
    before: tuple[Before, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class JobResult:
    """What the hub knows in the end.

    ``members``: the chosen fit, and those that are averaged with it; ``totals`` (R + 1, L) expected birds, all sites first,
    then each region; ``draws`` (B, R + 1, L) replicates of them;
    ``trace`` (rounds,) root mean square moves; ``facts`` of the models and of what was agreed.
    """

    agreement: Agreement
    choice: Choice
    members: Sequence[FittedModel]
    totals: F64
    draws: F64
    trace: F64
    facts: JointFacts


# called after each round of the first fit with (round, root mean square move)
Watch = Callable[[int, float], None]


# the choice, and its members with the months that their fits begin with
Chosen = tuple[Choice, Sequence[Before]]


class Stages:
    """What is done around the stages of a job: here nothing, since the journal of a study holds every exchange."""

    def choice(self, choose: Callable[[Callable[[int], None] | None], Chosen]) -> Chosen:
        """Choose the model; ``choose`` takes what is called with the number of scores so far."""
        return choose(None)

    def known(self, models: Sequence[Before]) -> None:
        """Hear what a later job can go on from: once models are chosen, and once they are fitted."""

    def fit(self, fit: Callable[[Watch | None], list[FittedModel]]) -> list[FittedModel]:
        """Fit the members."""
        return fit(None)

    def draws(self, numbers: range, draw: Callable[[], F64]) -> F64:
        """Draw these replicates: their totals (n, R + 1, L)."""
        return draw()

    def drawn(self, places: Sequence[tuple[int, int]]) -> None:
        """Hear which (batch, fit) the replicates are that were just drawn, before the groups forget them."""


def run_job(
    link: Link,
    order: JobSpec,
    stages: Stages | None = None,
    begun: tuple[Agreement, Panel] | None = None,
) -> JobResult:
    """Run a job to its end.

    Parameters
    ----------
    stages : what is done around its stages
    begun : what was agreed on already, the features of sites that models may need included

    Raises
    ------
    EngineError    a group is missing
    """
    stages = stages or Stages()
    agreement, panel = begun or _agreed(link, order)
    link.stage = "cross-validation"
    if _released_by_fold(order, panel):
        _folds(link, panel, order)
    choice = Choice(pd.DataFrame(), pd.DataFrame(), order.candidates[0], "")
    models: Sequence[Before] = order.before or [Before(choice.best)]
    if order.before:
        choice = choice_of(order.before)
    elif len(order.candidates) > 1:

        def choose(watch: Callable[[int], None] | None) -> Chosen:
            known: Known = {}
            _, choice = choose_model(
                link, panel, order.candidates, folds=order.folds, by=order.by, seed=order.seed, one_se=order.one_se,
                structure=order.structure, watch=watch, known=known,
            )  # fmt: skip
            wanted = choice.members if order.average else (choice.best,)
            return choice, begun_beside(wanted, known, agreement.months)

        choice, models = stages.choice(choose)
    link.stage = "fit"
    moves: list[float] = []
    stages.known(
        order.before or [Before(model.settings) for model in models]
    )  # others may be at another round

    def fit(watch: Watch | None) -> list[FittedModel]:
        def heard(rounds: int, move: float) -> None:
            moves.append(move)
            if watch is not None:
                watch(rounds, move)

        return fit_onward(link, panel, models, agreement.months, watch=heard)

    members = stages.fit(fit)
    stages.known([before_of(member, agreement.months) for member in members])
    link.stage = "bootstrap"
    draws = _draws(link, order, panel, members, stages)
    link.stage = "end"
    facts = _facts(link, order, agreement, panel, choice, members)
    trace = np.array(moves)
    words = [
        msg.Outcome(
            member.batch, json.dumps(facts.as_results() | own, sort_keys=True), agreement.months,
            member.state.T, member.state.D, trace,
        )
        for member, own in zip(members, facts.members, strict=True)
    ]  # fmt: skip
    # Of several models the mean of their totals (equal weights: "Choice and average" of the guide's model page).
    totals = totals_of(link, panel, [(member.batch, [member.state]) for member in members], more=words)
    return JobResult(agreement, choice, members, np.mean(totals, axis=0)[0], draws, trace, facts)


def _agreed(link: Link, order: JobSpec) -> tuple[Agreement, Panel]:
    """The first exchanges of a job: axes, and the features of sites that its models may need."""
    link.stage = "agree"
    agreement = agree(link, order.plan)
    named = [before.settings for before in order.before] or list(order.candidates)
    for place, who, wanted in (
        (3, "observers who can be told from the site", any(s.observers for s in named)),
        (2, "observers who are new", any(s.learning for s in named)),
    ):
        if agreement.panel.least and wanted and not agreement.panel.observers[place]:
            raise ConfigError(
                f"the model has effects of observers, and fewer than {agreement.panel.least} sites or "
                f"{agreement.panel.contributors} groups, or too large a share of one, have {who}, or without one of them "
                f"these are too few{' or of few habits' if place == 2 else ''}: their sums would be of few. "
                f"{'Make the revision without --from' if order.before else 'Leave observers out of the study'}."
            )
    if (
        _released_by_fold(order, agreement.panel)
        and order.by == "observer"
        and any(s.observers for s in named)
    ):
        raise ConfigError(
            "the model has effects of observers, and folds hold out observers: a fold's sums would be of few of them. Use "
            "folds by cell or block (folds_by), or leave observers out of the study."
        )
    if not order.before:  # a model of more years goes on without what it had of slopes
        check_slopes(agreement.panel, named)
    panel = features_of(link, agreement.panel, named, None if order.before else order.structure)
    if panel.least and panel.L > 1 and any(model.rank for model in named):
        panel, notes = release_pairs(link, panel, agreement.months)
        agreement = replace(agreement, notes=(*agreement.notes, *notes))
    return agreement, panel


def preview_job(link: Link, order: JobSpec) -> tuple[Agreement, np.ndarray]:
    """The job's first exchanges only: the agreement, and which months (L,) take part in cross-validation (1 or 0).

    The questions are those that :func:`run_job` begins with, so the job goes on from here.
    """
    agreement, panel = _agreed(link, order)
    months = np.zeros(0, np.uint8)
    if _released_by_fold(order, panel):
        link.stage = "cross-validation"
        months = _folds(link, panel, order)
    return agreement, months


def _released_by_fold(order: JobSpec, panel: Panel) -> bool:
    """Whether a model is chosen, and least numbers hold for sums over groups."""
    return len(order.candidates) > 1 and not order.before and panel.least > 0


def _folds(link: Link, panel: Panel, order: JobSpec) -> np.ndarray:
    """Months (L,) that take part in cross-validation, 1 or 0; of all months empty."""
    by = folds_like_gaps(link, panel) if order.by == "auto" else order.by
    return released_months(link, panel, by=by, folds=order.folds, seed=order.seed)


def _draws(link: Link, order: JobSpec, panel: Panel, members: Sequence[FittedModel], stages: Stages) -> F64:
    """Replicates in blocks; every block has batches of its own, so that groups can tell their parts apart."""
    size = lockstep_size(panel, max(member.state.p for member in members))
    parts = [np.zeros((0, len(panel.rows), panel.L))]
    for block, first in enumerate(range(0, order.bootstrap, size)):
        numbers = range(first, min(first + size, order.bootstrap))
        batch = FIRST_REPLICATES + block * len(members)

        def draw(numbers: range = numbers, batch: int = batch) -> F64:
            totals, places = replicates(link, panel, members, numbers, seed=order.seed, batch=batch)
            stages.drawn(places)
            link.ask([msg.Close(np.arange(batch, batch + len(members)))])
            return totals

        parts.append(stages.draws(numbers, draw))
    return np.concatenate(parts)


def _model_facts(member: FittedModel) -> ModelFacts:
    """Facts of one of the models that are averaged."""
    settings, state = member.settings, member.state
    estimated = bool(np.isfinite(state.tau).all())  # variances; fixed time effects have none
    return ModelFacts(
        family=settings.family,
        scale=settings.scale,
        model=model_name(settings),
        effects=settings.effects,
        dispersion_model=settings.dispersion,
        time=settings.time,
        rank=state.rank,
        slopes=state.slopes,
        features=list(settings.features),
        abundance=slope_by_abundance(state),
        occupancy=state.chain.tolist(),
        penalty=settings.penalty,
        mu=state.mu,
        phi=state.phi,
        dispersion=state.dispersion if np.isfinite(state.dispersion) else None,
        negbin_size=state.size if np.isfinite(state.size) else None,
        edf=state.edf if np.isfinite(state.edf) else None,
        smear=state.calibration,
        lognormal=SCALES[settings.scale].log,
        site_variances=state.tau.tolist() if estimated else None,
        month_variances=state.noise.tolist() if estimated else None,
        converged=state.converged,
        stop_reason=state.stop_reason,
        rounds=state.rounds,
    )


def _facts(
    link: Link,
    order: JobSpec,
    agreement: Agreement,
    panel: Panel,
    choice: Choice,
    members: Sequence[FittedModel],
) -> JointFacts:
    best, state = choice.best, members[0].state
    # of features that were tried the choice's advice says it
    named = panel.features.notes if panel.features and best.features and not choice.trials else ()
    observers, without = best.observers and not state.observers_left_out, []
    if best.observers and not observers:
        without = [
            "effects of observers are left out of the model: the finds are too few, or lie in too few flocks, to tell "
            "observers apart."
        ]
    less = ""
    if state.rank < best.rank and not state.away:
        less = f" Patterns asked for: {best.rank}; fitted: {state.rank}, since this panel bears no more."
    return JointFacts.of_members(
        [_model_facts(member) for member in members],
        species=order.plan.species,
        method="fast",
        terms=list(agreement.terms),
        blanks=list(agreement.blanks),
        kappa=state.kappa[: panel.K].tolist(),
        learning=float(state.kappa[panel.K]) if best.learning else None,
        skill=float(state.kappa[panel.K + 1]) if best.learning else None,
        standard_effort=agreement.standard_effort,
        observer_effects=observers,
        observer_sd=(1.0 / state.ridge) ** 0.5 if observers else None,
        n_groups=len(link.names),
        n_counted=panel.visits,
        n_sites_all=panel.J,
        n_months=panel.L,
        bootstrap=order.bootstrap,
        sites_redrawn=effective_observers(panel) < 2 or None,
        regions=list(panel.regions),
        withheld_visits=agreement.withheld,
        advice=choice.advice + less,
        **structure_facts(panel, choice, state),
        cv_summary=json.loads(choice.summary.to_json(orient="records")) if len(choice.summary) else [],
        notes=[*agreement.notes, *named, *without],
    )
