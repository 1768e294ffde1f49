"""Which structure of the model pays, decided by held-out data: features of sites, observers, slopes of sites.

Whole sites are held out to judge what the prior of a site may follow (how often it was visited, its covariates, its
region, a smooth over the places), each site counting once: that is what a feature is for. Cells are held out to judge
observer effects and slopes of sites. All steps start from the chosen distribution at rank 0, side by side. A step is taken
where it predicts clearly better; features that are taken one by one are then tried together.

People go where birds are: then a site that was hardly visited has fewer birds than the mean site, which its few visits
cannot say. Where visits have other reasons (nest sites that are counted because they are few; sites listed because the
species was seen) such a regression is flat or harmful, hence the trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.bootstrap import effective_observers
from fedmiss.federation.hub.crossval import cross_validate
from fedmiss.federation.hub.features import agree_features
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.hub.steps import known_line
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES, IN_WORDS

__all__ = ["features_of", "try_structure"]

# Standard errors by which held-out data must be predicted better. Half a one for features, which switch themselves off where
# they say nothing, and cost nothing (benchmarks/structure_truth.py). Two for the others.
CLEAR, CLEARLY = 0.5, 2.0
FEWEST_SITES = 20  # fewer sites are too few for a regression over sites
FEWEST_OBSERVERS = 5.0  # effective number of observers
BATCH = 2000  # first of the trials' batches


@dataclass(frozen=True, slots=True)
class _Trial:
    """Gain in the mean deviance of held-out data as a share, its standard error, and whether it is clear."""

    gain: float
    error: float

    def clear(self, errors: float = CLEARLY) -> bool:
        return self.gain > errors * self.error

    @property
    def words(self) -> str:
        return f"{100 * abs(self.gain):.1f} % {'better' if self.gain > 0 else 'worse'}"


def features_of(
    link: Link, panel: Panel, settings: Sequence[CountSettings], tried: Sequence[str] | None = None
) -> Panel:
    """The panel with the features that settings name or that are tried, agreed on where they were not yet."""
    named = {f for s in settings for f in s.features}
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
    taken, said = _features(link, panel, plain, features, folds=folds, by=by, seed=seed)
    steps = _steps(panel, plain)
    settings = replace(best, features=taken)
    near = [replace(c, features=taken) for c in choice.near]
    if steps:
        if by == "auto":
            by = folds_like_gaps(link, panel)
        tried = _compare(link, panel, plain, list(steps.values()), folds=folds, by=by, seed=seed)
        parts = []
        for (name, step), trial in zip(steps.items(), tried, strict=True):
            if trial.clear():
                change = {"observers": step.observers} if name == "observers" else {"slopes": step.slopes}
                settings = replace(settings, **change)  # type: ignore[arg-type]
                near = [replace(c, **change) for c in near]  # type: ignore[arg-type]
            what = "effects of observers" if name == "observers" else "no slopes of sites"
            parts.append(f"{what} ({trial.words}, {_verdict(taken=trial.clear())})")
        said.append(f"Judged by held-out visits: {', '.join(parts)}.")
    if panel.features is not None and taken:
        said += [_sentence(n) for n in panel.features.notes]
    words = " ".join(["", *said]) if said else ""
    return panel, replace(choice, best=settings, near=tuple(near), advice=choice.advice + words)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _features(
    link: Link, panel: Panel, plain: CountSettings, wanted: Sequence[str], *, folds: int, by: str, seed: int
) -> tuple[tuple[str, ...], list[str]]:
    """Try the features one by one, then those that help together."""
    known = panel.features
    there = [f for f in wanted if known is not None and known.columns.get(f, np.zeros(0)).size]
    if not there or panel.J < FEWEST_SITES:
        return (), []
    if panel.least > 1:
        by = folds_like_gaps(link, panel) if by == "auto" else by
    else:
        by = "site"
    alone = [replace(plain, features=(f,)) for f in there]
    trials = dict(zip(there, _compare(link, panel, plain, alone, folds=folds, by=by, seed=seed), strict=True))
    good = sorted(
        (f for f in there if trials[f].clear(CLEARLY if f == "visits" else CLEAR)),
        key=lambda f: -trials[f].gain,
    )
    taken = tuple(good[:1])
    together = tuple(f for f in FEATURES if f in good)
    if len(good) > 1:
        first, both = replace(plain, features=taken), replace(plain, features=together)
        (trial,) = _compare(link, panel, first, [both], folds=folds, by=by, seed=seed)
        taken = together if trial.gain > 0 else taken
    what = "sites left out of the fit" if by == "site" else "held-out visits"
    parts = [f"{IN_WORDS[f]} ({trials[f].words}, {_verdict(taken=f in taken)})" for f in there]
    return taken, [f"What the expectation for a site may follow, judged by {what}: {', '.join(parts)}."]


def _verdict(*, taken: bool) -> str:
    return "taken" if taken else "not taken"


def _steps(panel: Panel, plain: CountSettings) -> dict[str, CountSettings]:
    """Steps away from the plain model that do not concern the features of sites."""
    steps: dict[str, CountSettings] = {}
    if not plain.observers and effective_observers(panel) >= FEWEST_OBSERVERS:
        steps["observers"] = replace(plain, observers=True)
    if known_line(panel, plain).size:
        steps["slopes"] = replace(plain, slopes=False)
    return steps


def _compare(
    link: Link,
    panel: Panel,
    plain: CountSettings,
    others: Sequence[CountSettings],
    *,
    folds: int,
    by: str,
    seed: int,
) -> list[_Trial]:
    """Paired gains over folds of other settings over ``plain``."""
    table = cross_validate(
        link, panel, [plain, *others], folds=folds, by=by, seed=seed, first_batch=BATCH
    ).table
    wide = table.pivot(index="fold", columns="candidate", values="deviance")
    base = float(wide[0].mean())
    out = []
    for i in range(1, len(others) + 1):
        gain = (wide[0] - wide[i]).dropna()
        error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else np.inf
        out.append(
            _Trial(
                float(gain.mean()) / base if base > 0 and len(gain) else 0.0,
                error / base if base > 0 else np.inf,
            )
        )
    return out
