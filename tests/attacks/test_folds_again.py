"""A revision with another number of folds would tell single visits: what lies between a fifth and a quarter is few."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import folds as drawn
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.keys import seed_key
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, clubs_of, tapped
from tests.federation.owners import dealt

J, L = 120, 24
MODELS = [CountSettings(rank=0, slopes=False), CountSettings(rank=0, slopes=False, dispersion="negbin")]
OTHERS, NUMBERS = ("owner-1", "owner-2"), (5, 4)


def job_of(folds: int, folder) -> Tapped:
    """What crossed in a job of three organisations about the same records, with their own secrets as in every revision."""
    rng = np.random.default_rng(3)
    site, month = np.nonzero(rng.random((J, L)) < 0.4)
    y = rng.poisson(np.exp(2 + 0.8 * rng.normal(size=J))[site]).astype(float)
    plan = DataSpec(jointly=True, minimum=5)
    clubs = clubs_of(dealt((J, L), site, month, y), folder)
    return tapped(clubs, folder, MODELS, plan, folds=folds, by="cell")[0]


def before(tap: Tapped, folds: int) -> np.ndarray:
    """Visits and birds (2, folds + 1, L) of the others in the first 0, 1, .. folds, as a member has them from the sums."""
    support = next(a for q, a in tap.of(msg.Support) if q.folds)
    visits = sum(one.visits for one in support[1:])
    opened = next(q for q in tap.asked if isinstance(q, msg.Open) and q.weights == "fold")
    first = next(a for q, a in tap.of(msg.Solve) if q.batch == opened.batch)
    # gradient and curvature of a Poisson month are birds less those expected, and those expected
    left_in = sum(one.months[:, :, :2].sum(axis=2) for one in first[1:])
    birds = left_in.sum(axis=0) / (folds - 1) - left_in
    return np.pad(np.cumsum([visits, birds], axis=1), ((0, 0), (1, 0), (0, 0)))


def released(tap: Tapped) -> np.ndarray:
    """Months that take part in cross-validation."""
    return next(q.released for q in tap.asked if isinstance(q, msg.Open) and q.weights == "fold") == 1


def between(taps: list[Tapped]) -> list[tuple[float, list[float]]]:
    """For each month where one visit lies between a fifth and a quarter: its birds as told, and the true counts there."""
    fifth, quarter = (before(tap, folds)[:, 1] for tap, folds in zip(taps, NUMBERS, strict=True))
    visits, birds = quarter - fifth
    out = []
    for at in np.flatnonzero((visits == 1) & released(taps[0]) & released(taps[1])):
        true: list[float] = []
        for name in OTHERS:
            program = taps[0].programs[name]
            used = program.need()
            inside, beyond = (program.fold_of("cell", k, 0, used)[used.month == at] == 0 for k in NUMBERS)
            counts = used.count[used.month == at]
            true += [*counts[beyond & ~inside], *-counts[inside & ~beyond]]
        out.append((float(birds[at]), true))
    return out


@pytest.mark.parametrize("rule", [False, True])
def test_folds_of_a_revision_do_not_lie_inside_those_before(rule, tmp_path, monkeypatch):
    """Each job keeps the least numbers; what one fold has more than the other is one visit, and its birds were told."""
    if not rule:  # one draw for any number of folds
        monkeypatch.setattr(drawn, "seed_key", lambda *words: seed_key(*words[:4]))
    told = between([job_of(folds, tmp_path / str(folds)) for folds in NUMBERS])
    right = [len(true) == 1 and birds == pytest.approx(true[0], abs=1e-3) for birds, true in told]
    assert not any(right) if rule else len(right) >= 3 and all(right)
