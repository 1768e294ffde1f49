"""Which structure of the model pays, decided by held-out data: features of sites, observers, occupancy, slopes of sites.

Whole sites are held out to judge what the prior of a site may follow (how often it was visited, its covariates, its
region, a smooth over the places), each site counting once: that is what a feature is for. Cells are held out to judge
observer effects, occupancy and slopes of sites. All steps start from the first candidate's distribution at rank 0, beside
the cross-validation. A step is taken where it predicts clearly better; features that are taken one by one are then tried
together.

Lines of regions are taken unless they predict clearly worse. Reports give a trend of each region: without lines of their own
regions that differ are drawn to one trend, with intervals that know nothing of it, and sites left out, whose levels scatter,
hardly show that (benchmarks/region_trends.py). Where regions are alike their variance says so.

The slope follows how many birds a site has without a trial: the total is mostly of the sites with most birds, and held-out
cells, most of which are of others, hardly show that these change in another way. Where they do not, its variance says so
(benchmarks/skylark_worlds.py, benchmarks/one_colony.py).

People go where birds are: then a site that was hardly visited has fewer birds than the mean site, which its few visits
cannot say. Where visits have other reasons (nest sites that are counted because they are few; sites listed because the
species was seen) such a regression is flat or harmful, hence the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.begin import known_line
from fedmiss.federation.hub.bootstrap import effective_observers, totals_of
from fedmiss.federation.hub.crossval import KEPT, Contest, Known, cross_validate, score_folds
from fedmiss.federation.hub.features import WHY, agree_features
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.choice import HELD_OUT, Choice, Trial, choose
from fedmiss.models.lowrank.families import FAMILIES, SCALES
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES, IN_WORDS, OF_SLOPES, UNTRIED

# Standard errors by which held-out data must be predicted better. Half a one for features, which switch themselves off where
# they say nothing, and cost nothing (benchmarks/structure_truth.py); one for observers, who are few; two for the others.
ENOUGH = {
    "visits": 2.0, "covariates": 0.5, "regions": 0.5, "smooth": 0.5, "observers": 1.0, "occupancy": 2.0, "slopes": 2.0,
}  # fmt: skip
NOT_WORSE = -2.0  # the same for lines of regions that have trends of their own in reports
MOST_LOST = -0.05  # of the deviance, whatever the error, as of ranks that are averaged
MANY_REGIONS = 20  # more are taken where they predict better: sums of k^2 numbers cross in every round
FEWEST_SITES = 20  # fewer sites are too few for a regression over sites
FEWEST_OBSERVERS = 2.0  # effective number of observers
FEWEST_NEW = 20.0  # experience that is lacking, over visits
BATCH, AWAY = 2000, 100  # first of the trials' batches; those of the next kind of trial begin so much later
STEPS = {f: f"what is expected at a site follows {words}" for f, words in IN_WORDS.items() if f in ENOUGH} | {
    "observers": "effects of observers",
    "occupancy": "sites that are empty in some years",
    "slopes": "no slopes of sites",
}


def _clear(trial: Trial, panel: Panel) -> bool:
    # "Choice and average" of the guide's model page.
    if trial.what == "regions" and len(panel.regions) <= MANY_REGIONS:
        # one fold that goes wrong makes the error as large as the loss
        return trial.gain > max(NOT_WORSE * trial.error, MOST_LOST)
    return trial.gain > ENOUGH[trial.what] * trial.error


def features_of(
    link: Link, panel: Panel, settings: Sequence[CountSettings], tried: Sequence[str] | None = None
) -> Panel:
    """The panel with the features that settings name or that are tried, agreed on where they were not yet."""
    named = {feature for one in settings for feature in (*one.features, *one.responses)}
    known = set(panel.features.columns) if panel.features is not None else set()
    if named - known:
        panel = agree_features(link, panel, sorted(named | known), strict=True)
    elif tried and panel.features is None and panel.J >= FEWEST_SITES:
        panel = agree_features(link, panel, tried)
    return panel


def check_slopes(panel: Panel, settings: Sequence[CountSettings]) -> None:
    """Raise ConfigError where a model names a feature of slopes, and the years are too few for any."""
    # a model that is to have no slopes has none to follow it; years that are too few are a surprise
    lineless = [one for one in settings if one.slopes and not known_line(panel, one).size]
    if idle := [feature for one in lineless for feature in one.features if feature in OF_SLOPES]:
        raise ConfigError(WHY[idle[0]])


def choose_model(
    link: Link,
    panel: Panel,
    candidates: Sequence[CountSettings],
    *,
    folds: int = 5,
    by: str = "auto",
    seed: int = 0,
    one_se: bool = False,
    inverse_size: float = 0.0,
    structure: Sequence[str] | None = None,
    watch: Callable[[int], None] | None = None,
    known: Known | None = None,
) -> tuple[Panel, Choice]:
    """Choose a candidate by cross-validation, and with ``structure`` (features to try) its structure.

    The structure is tried with the first candidate's distribution beside the cross-validation, and again where another wins.
    Returns the panel that knows the features, and the choice. ``known`` is given what all visits come to beside the folds,
    for the fit of the choice to begin with: at every rank by the first candidate's distribution, also with sites that may be
    empty (in a study without slopes too), and with each other step at rank 0. A model that was not fitted has what its rank
    came to without the structure.
    """
    if structure is None:
        choice = cross_validate(
            link, panel, candidates, folds=folds, by=by, seed=seed, one_se=one_se, inverse_size=inverse_size,
            watch=watch, known=known,
        )  # fmt: skip
        return panel, choice
    by = folds_like_gaps(link, panel) if by == "auto" else by
    plan = None  # trials have the family's own deviance
    if not inverse_size:
        panel, plan = _plan(link, panel, candidates[0], structure, by, known=candidates)
    tables, tried = _tried(
        link,
        panel,
        plan,
        [Contest(candidates, by)],
        folds=folds,
        seed=seed,
        inverse_size=inverse_size,
        watch=watch,
        known=known,
        most=max(each.rank for each in candidates),
    )
    choice = choose(tables[0], candidates, by=by, one_se=one_se, visits=panel.visits)
    if plan is None or _plain(choice.best) != plan.plain:
        panel, taken = try_structure(
            link, panel, choice, folds=folds, by=by, seed=seed, features=structure, known=known
        )
    else:
        taken = _taken(link, panel, choice, plan, tried, folds=folds, seed=seed)
    if known is not None:
        _begin_near(choice.members, taken.members, known)
    return panel, taken


def _begin_near(plain: Sequence[CountSettings], models: Sequence[CountSettings], known: Known) -> None:
    """Give models that were not fitted what their rank came to without the structure, but for sites that may be empty."""
    for without, model in zip(plain, models, strict=True):
        near = replace(without, occupancy=model.occupancy)
        if model not in known and near in known:
            known[model] = known[near]


def try_structure(
    link: Link,
    panel: Panel,
    choice: Choice,
    *,
    folds: int,
    by: str = "auto",
    seed: int,
    features: Sequence[str] = FEATURES,
    known: Known | None = None,
) -> tuple[Panel, Choice]:
    """Try each step of the structure; return the panel that knows the features, and the choice. ``known``: see above."""
    if not choice.best.season:
        return panel, choice
    by = folds_like_gaps(link, panel) if by == "auto" else by
    panel, plan = _plan(link, panel, choice.best, features, by)
    most = max(model.rank for model in choice.members)
    _, tried = _tried(link, panel, plan, [], folds=folds, seed=seed, known=known, most=most)
    assert plan is not None
    return panel, _taken(link, panel, choice, plan, tried, folds=folds, seed=seed)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is tried from the ``plain`` model: ``features`` one by one, and other ``steps``, with what each changes.

    ``whole``: what folds hold out to judge features. Whole sites; under least numbers for sums over groups they hold out
    cells, as they do ``by`` for the other steps: whole sites would leave too few of them behind a sum, and how often a site
    was visited is not told to other organisations. ``known``: the plain model is scored among the candidates.
    """

    plain: CountSettings
    features: tuple[str, ...]
    steps: Mapping[str, Mapping[str, Any]]
    whole: str
    by: str
    known: bool

    @property
    def models(self) -> dict[str, CountSettings]:
        """The plain model with each feature, or with each step."""
        alone = {feature: replace(self.plain, features=(feature,)) for feature in self.features}
        return alone | {name: replace(self.plain, **step) for name, step in self.steps.items()}


def _plain(settings: CountSettings) -> CountSettings:
    return replace(settings, rank=0, features=())


def _plan(
    link: Link,
    panel: Panel,
    best: CountSettings,
    wanted: Sequence[str],
    by: str,
    known: Sequence[CountSettings] = (),
) -> tuple[Panel, _Plan | None]:
    """What can be tried, and the panel that knows the features; None where months have no seasons."""
    if not best.season:
        return panel, None
    panel, plain = features_of(link, panel, [best], wanted), _plain(best)
    columns = {} if panel.features is None else panel.features.columns
    there = tuple(
        feature
        for feature in wanted
        if feature in ENOUGH and columns.get(feature, np.zeros(0)).size and panel.J >= FEWEST_SITES
    )
    # A fold of a few whole sites has less than a least number in every month.
    whole = "site" if max(panel.least, panel.own_least) <= 1 else by
    return panel, _Plan(plain, there, _steps(panel, plain, by), whole, by, plain in known)


def _tried(
    link: Link,
    panel: Panel,
    plan: _Plan | None,
    contests: Sequence[Contest],
    *,
    folds: int,
    seed: int,
    known: Known | None = None,
    most: int = 0,
    **more: Any,
) -> tuple[list[pd.DataFrame], dict[str, Trial]]:
    """Scores of contests, and beside them the trials of a plan: each with what it adds to the slope of the totals.

    The slopes are those of fits of all visits, of the plain model with the step and without. ``known``: as in
    :func:`choose_model`, up to the rank ``most``.
    """
    if plan is None:
        return score_folds(link, panel, contests, folds=folds, seed=seed, known=known, **more), {}
    models = plan.models
    if not (contests or models):
        return [], {}
    scores = contests[0] if contests and plan.known else None
    of_features = [plan.plain, *(models[feature] for feature in plan.features)] if plan.features else []
    of_steps = (
        [*([] if scores else [plan.plain]), *(models[name] for name in plan.steps)] if plan.steps else []
    )
    trials = [
        Contest(candidates, held, BATCH + i * AWAY)
        for i, (candidates, held) in enumerate([(of_features, plan.whole), (of_steps, plan.by)])
        if candidates
    ]
    slopes: dict[int, float] = {}
    whole = [plan.plain, *models.values()] if models and panel.calendar is not None else []
    begins: list[CountSettings | None] = [plan.plain, models.get("occupancy")]
    if whole and panel.least and {"occupancy", "slopes"} <= plan.steps.keys():
        # Between organisations rounds cost more than work: the choice may take both steps, and begins where they end.
        both = replace(models["slopes"], occupancy=True)
        begins.append(both)
        whole.append(both)
    ranks = [0 if known is None or model not in begins else most for model in whole]

    def ended(fits: list[tuple[int, list[MonthState]]], close: msg.Close) -> None:
        assert panel.calendar is not None
        for (batch, (state,)), totals in zip(fits, totals_of(link, panel, fits, more=[close]), strict=True):
            # As the report's: a month without a visit is no part of the trend, and without this step may be anything.
            at = np.ones(panel.L, dtype=np.bool_) if state.counted is None else state.counted
            slopes[batch % KEPT] = slope_of(totals[0, 0, at], *(each[at] for each in panel.calendar))

    tables = score_folds(
        link, panel, [*contests, *trials], folds=folds, seed=seed, **more,
        whole=[
            (BATCH + 2 * AWAY + i, replace(settings, rank=rank))
            for i, (settings, rank) in enumerate(zip(whole, ranks, strict=True))
        ],
        ended=ended, known=known,
    )  # fmt: skip
    base, *others = [slopes[batch] for batch in sorted(slopes)] or [0.0]
    shifts: list[float | None] = [slope - base for slope in others[: len(models)]] or [None] * len(models)
    scored, rest = tables[: len(contests)], tables[len(contests) :]
    out: dict[str, Trial] = {}
    if of_features:
        out |= _gains(rest.pop(0), plan.features, plan.whole)
    if of_steps:
        plain = scored[0][scored[0]["candidate"] == scores.candidates.index(plan.plain)] if scores else None
        out |= _gains(rest.pop(0), list(plan.steps), plan.by, plain)
    return scored, {name: out[name]._replace(shift=shift) for name, shift in zip(models, shifts, strict=True)}


def _taken(
    link: Link,
    panel: Panel,
    choice: Choice,
    plan: _Plan,
    tried: Mapping[str, Trial],
    *,
    folds: int,
    seed: int,
) -> Choice:
    """The choice with the steps that predict clearly better."""
    taken = _features(link, panel, plan, tried, folds=folds, seed=seed)
    change: dict[str, Any] = {}
    trials = [tried[feature]._replace(taken=feature in taken) for feature in plan.features]
    for name, step in plan.steps.items():
        trials.append(tried[name]._replace(taken=_clear(tried[name], panel)))
        if trials[-1].taken:
            change |= step
    trials = [trial._replace(what=STEPS[trial.what]) for trial in trials]
    best = replace(choice.best, **change)
    change["features"] = (*taken, *_untried(panel, best))
    near = tuple(replace(other, **change) for other in choice.near)
    steps = ", ".join(trial.what for trial in trials if trial.taken)
    said = [f"Taken after trials on held-out data: {steps or 'nothing of what was tried'}."]
    said += panel.features.notes if panel.features is not None and taken else ()
    words = " ".join(["", *(_sentence(note) for note in said)]) if trials else ""
    return replace(
        choice,
        best=replace(choice.best, **change),
        near=near,
        advice=choice.advice + words,
        trials=tuple(trials),
    )


def _untried(panel: Panel, best: CountSettings) -> tuple[str, ...]:
    """Features that are taken without a trial; those of slopes where counts have slopes to follow them."""
    columns = {} if panel.features is None else panel.features.columns
    follow = (FAMILIES[best.family].counts or SCALES[best.scale].log) and known_line(panel, best).size
    return tuple(f for f in UNTRIED if columns.get(f, np.zeros(0)).size and (follow or f not in OF_SLOPES))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _features(
    link: Link, panel: Panel, plan: _Plan, tried: Mapping[str, Trial], *, folds: int, seed: int
) -> tuple[str, ...]:
    """Features that help: the best one, or all that do where they predict better together; with them lines of regions."""
    good = [feature for feature in plan.features if _clear(tried[feature], panel)]
    others = sorted((f for f in good if f != "regions"), key=lambda feature: -tried[feature].gain)
    if len(others) < 2:
        return tuple(good)
    best = tuple(feature for feature in good if feature in ("regions", others[0]))
    pair = [replace(plan.plain, features=features) for features in (best, tuple(good))]
    (table,) = score_folds(link, panel, [Contest(pair, plan.whole, BATCH)], folds=folds, seed=seed)
    return tuple(good) if _gains(table, ["both"], plan.whole)["both"].gain > 0 else best


def _steps(panel: Panel, plain: CountSettings, by: str) -> dict[str, dict[str, Any]]:
    """Steps away from the plain model that do not concern the features of sites: what each changes."""
    steps: dict[str, dict[str, Any]] = {}
    # In a table without observers they are the sites. A fold that holds out observers has sums over few of them.
    apart = panel.observers[3] > 0 and not (panel.least and by == "observer")
    if apart and not plain.observers and effective_observers(panel) >= FEWEST_OBSERVERS:
        steps["observers"] = {"observers": True, "learning": bool(panel.observers[2] >= FEWEST_NEW)}
    if known_line(panel, plain).size:
        if FAMILIES[plain.family].counts and not plain.occupancy:
            steps["occupancy"] = {"occupancy": True}
        steps["slopes"] = {"slopes": False}
    return steps


def slope_of(totals: F64, month: I64, year: I64) -> float:
    """Slope of log monthly totals on the year, within months of the year, so that a part of a year changes nothing."""
    # A month of the year is a level of its own: means within it are taken off (the partialled-out regression).
    of = month[:, None] == np.unique(month)
    within = np.stack([np.log(np.maximum(totals, 1e-12)), year.astype(float)])
    y, x = within - (within @ of / of.sum(axis=0)) @ of.T
    return float(x @ y / max(x @ x, 1e-12))


def _gains(
    table: pd.DataFrame, names: Sequence[str], by: str, first: pd.DataFrame | None = None
) -> dict[str, Trial]:
    """Paired gains over folds of the candidates of a table over its first one, or over that of ``first``."""
    # by their numbers: folds of whole sites may hold out nothing that a least number lets be told
    there = range(len(names) + (first is None))
    wide = [table[table["candidate"] == one].set_index("fold")["deviance"] for one in there]
    plain = wide.pop(0) if first is None else first.set_index("fold")["deviance"]
    base = float(plain.mean())
    out = {}
    for name, deviance in zip(names, wide, strict=True):
        # Paired over folds: what folds have in common falls out of the difference.
        gain = (plain - deviance).dropna()
        able = base > 0 and len(gain) > 1
        error = float(gain.std(ddof=1) / np.sqrt(len(gain))) / base if able else 1.0
        out[name] = Trial(name, f"{HELD_OUT[by]} left out", float(gain.mean()) / base if able else 0.0, error)
    return out
