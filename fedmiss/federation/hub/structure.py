"""Which structure of the model pays, decided by held-out data: features of sites, observers, occupancy, slopes of sites.

Whole sites are held out to judge what the prior of a site may follow (how often it was visited, its covariates, its
region, a smooth over the places), each site counting once: that is what a feature is for. Cells are held out to judge
observer effects, occupancy and slopes of sites. All steps start from the chosen distribution at rank 0, side by side. A
step is taken where it predicts clearly better; features that are taken one by one are then tried together.

People go where birds are: then a site that was hardly visited has fewer birds than the mean site, which its few visits
cannot say. Where visits have other reasons (nest sites that are counted because they are few; sites listed because the
species was seen) such a regression is flat or harmful, hence the trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.bootstrap import effective_observers, totals_of
from fedmiss.federation.hub.crossval import cross_validate
from fedmiss.federation.hub.features import agree_features
from fedmiss.federation.hub.members import fit_all
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.hub.steps import known_line
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.choice import HELD_OUT, Choice, Trial, model_name
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES, IN_WORDS

__all__ = ["features_of", "try_structure"]

# Standard errors by which held-out data must be predicted better. Half a one for features, which switch themselves off where
# they say nothing, and cost nothing (benchmarks/structure_truth.py); one for observers, who are few; two for the others.
ENOUGH = {
    "visits": 2.0, "covariates": 0.5, "regions": 0.5, "smooth": 0.5, "observers": 1.0, "occupancy": 2.0, "slopes": 2.0,
}  # fmt: skip
FEWEST_SITES = 20  # fewer sites are too few for a regression over sites
FEWEST_OBSERVERS = 2.0  # effective number of observers
FEWEST_NEW = 20.0  # experience that is lacking, over visits
BATCH = 2000  # first of the trials' batches
STEPS = {f: f"what is expected at a site follows {words}" for f, words in IN_WORDS.items()} | {
    "observers": "effects of observers",
    "occupancy": "sites that are empty in some years",
    "slopes": "no slopes of sites",
}


def _clear(t: Trial) -> bool:
    return t.gain > ENOUGH[t.what] * t.error


def features_of(
    link: Link, panel: Panel, settings: Sequence[CountSettings], tried: Sequence[str] | None = None
) -> Panel:
    """The panel with the features that settings name or that are tried, agreed on where they were not yet."""
    named = {f for s in settings for f in (*s.features, *s.responses)}
    known = set(panel.features.columns) if panel.features is not None else set()
    if named - known:
        panel = agree_features(link, panel, sorted(named | known), strict=True)
    elif tried and panel.features is None and panel.J >= FEWEST_SITES:
        panel = agree_features(link, panel, tried)
    return panel


def try_structure(
    link: Link,
    panel: Panel,
    choice: Choice,
    *,
    folds: int,
    by: str = "auto",
    seed: int,
    features: Sequence[str] = FEATURES,
) -> tuple[Panel, Choice]:
    """Try each step of the structure; return the panel that knows the features, and the choice.

    Under least numbers for sums over groups folds hold out cells, also for features: whole sites would leave too few of them
    behind a sum, and how often a site was visited is not told to other organisations.
    """
    best = choice.best
    if not best.season:
        return panel, choice
    plain = replace(best, rank=0, features=())
    panel = features_of(link, panel, [choice.best], features)
    by = folds_like_gaps(link, panel) if by == "auto" else by
    whole = "site" if panel.least <= 1 else by
    taken, trials = _features(link, panel, plain, features, folds=folds, by=whole, seed=seed)
    change: dict[str, Any] = {"features": taken}
    steps = _steps(panel, plain)
    tried = _compare(
        link, panel, plain, {n: replace(plain, **s) for n, s in steps.items()}, folds=folds, by=by, seed=seed,
        known=_known_scores(choice, plain),
    )  # fmt: skip
    for name, trial in tried.items():
        trials.append(trial._replace(taken=_clear(trial)))
        if trials[-1].taken:
            change |= steps[name]
    best = replace(best, **change)
    others = [_turned(best, t, plain, steps) for t in trials]
    trials = [
        t._replace(what=STEPS[t.what], shift=shift)
        for t, shift in zip(trials, _shifts(link, panel, best, trials, others), strict=True)
    ]
    near = tuple(replace(c, **change) for c in choice.near)
    said = [
        f"Taken after trials on held-out data: {', '.join(t.what for t in trials if t.taken) or 'none of these'}."
    ]
    said += panel.features.notes if panel.features is not None and taken else ()
    words = " ".join(["", *(_sentence(n) for n in said)]) if trials else ""
    return panel, replace(choice, best=best, near=near, advice=choice.advice + words, trials=tuple(trials))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _features(
    link: Link, panel: Panel, plain: CountSettings, wanted: Sequence[str], *, folds: int, by: str, seed: int
) -> tuple[tuple[str, ...], list[Trial]]:
    """Try the features one by one, then those that help together."""
    known = panel.features
    there = [f for f in wanted if known is not None and known.columns.get(f, np.zeros(0)).size]
    if not there or panel.J < FEWEST_SITES:
        return (), []
    alone = {f: replace(plain, features=(f,)) for f in there}
    trials = _compare(link, panel, plain, alone, folds=folds, by=by, seed=seed)
    good = [f for f in there if _clear(trials[f])]
    good.sort(key=lambda f: -trials[f].gain)
    taken = tuple(good[:1])
    together = tuple(f for f in FEATURES if f in good)
    if len(good) > 1:
        first, both = replace(plain, features=taken), replace(plain, features=together)
        if _compare(link, panel, first, {"both": both}, folds=folds, by=by, seed=seed)["both"].gain > 0:
            taken = together
    return taken, [trials[f]._replace(taken=f in taken) for f in there]


def _steps(panel: Panel, plain: CountSettings) -> dict[str, dict[str, Any]]:
    """Steps away from the plain model that do not concern the features of sites: what each changes."""
    steps: dict[str, dict[str, Any]] = {}
    apart = panel.observers[3] > 0  # in a table without observers they are the sites
    if apart and not plain.observers and effective_observers(panel) >= FEWEST_OBSERVERS:
        steps["observers"] = {"observers": True, "learning": bool(panel.observers[2] >= FEWEST_NEW)}
    counts = FAMILIES[plain.family].counts and plain.scale == "raw"
    if known_line(panel, plain).size and counts and not plain.occupancy:
        steps["occupancy"] = {"occupancy": True}
    if known_line(panel, plain).size:
        steps["slopes"] = {"slopes": False}
    return steps


def _turned(
    best: CountSettings, trial: Trial, plain: CountSettings, steps: Mapping[str, Mapping[str, Any]]
) -> CountSettings:
    """The chosen model without a step that it has, or with one that it has not."""
    if trial.what in FEATURES:
        return replace(best, features=tuple(f for f in FEATURES if (f in best.features) != (f == trial.what)))
    step = steps[trial.what]
    return replace(best, **({name: getattr(plain, name) for name in step} if trial.taken else step))


def _shifts(
    link: Link, panel: Panel, best: CountSettings, trials: Sequence[Trial], others: Sequence[CountSettings]
) -> list[float | None]:
    """What each step adds to the slope of the totals: fits of all visits at rank 0, with it less without it."""
    if not trials or panel.calendar is None:
        return [None] * len(trials)
    batches = range(BATCH, BATCH + 1 + len(others))
    members = fit_all(link, panel, [replace(s, rank=0) for s in (best, *others)], batches)
    totals = totals_of(link, panel, [(m.batch, [m.state]) for m in members])
    link.ask([msg.Close(np.array(batches))])
    base, *slopes = (slope_of(t[0, 0], *panel.calendar) for t in totals)
    return [(1 if t.taken else -1) * (base - s) for t, s in zip(trials, slopes, strict=True)]


def slope_of(totals: F64, month: I64, year: I64) -> float:
    """Slope of log monthly totals on the year, within months of the year, so that a part of a year changes nothing."""
    of = month[:, None] == np.unique(month)
    within = np.stack([np.log(np.maximum(totals, 1e-12)), year.astype(float)])
    y, x = within - (within @ of / of.sum(axis=0)) @ of.T
    return float(x @ y / max(x @ x, 1e-12))


def _known_scores(choice: Choice, plain: CountSettings) -> pd.DataFrame | None:
    """The rows of the plain model in the table of the choice before, which has the same folds; None where it has none."""
    if choice.best.features or not len(choice.table):
        return None
    rows = choice.table[(choice.table["model"] == model_name(plain)) & (choice.table["rank"] == 0)]
    return rows if len(rows) else None


def _compare(
    link: Link,
    panel: Panel,
    plain: CountSettings,
    others: Mapping[str, CountSettings],
    *,
    folds: int,
    by: str,
    seed: int,
    known: pd.DataFrame | None = None,
) -> dict[str, Trial]:
    """Paired gains over folds of other settings over ``plain``, whose scores may be ``known``."""
    if not others:
        return {}
    candidates = [*([plain] if known is None else []), *others.values()]
    table = cross_validate(link, panel, candidates, folds=folds, by=by, seed=seed, first_batch=BATCH).table
    wide = [rows.set_index("fold")["deviance"] for _, rows in table.groupby("candidate")]
    first = wide.pop(0) if known is None else known.set_index("fold")["deviance"]
    base = float(first.mean())
    out = {}
    for name, deviance in zip(others, wide, strict=True):
        gain = (first - deviance).dropna()
        able = base > 0 and len(gain) > 1
        error = float(gain.std(ddof=1) / np.sqrt(len(gain))) / base if able else 1.0
        out[name] = Trial(name, f"{HELD_OUT[by]} left out", float(gain.mean()) / base if able else 0.0, error)
    return out
