"""A revision whose folds were drawn as those before would tell single visits, though each job keeps the least numbers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import JOB, Tapped, clubs_of, tapped
from tests.federation.owners import dealt

J, L, AFTER = 120, 24, hashlib.sha256(b"its revision").digest()
MODELS = [CountSettings(rank=0, slopes=False), CountSettings(rank=0, slopes=False, dispersion="negbin")]
PLAN = DataSpec(jointly=True, minimum=5)


def visits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sites, months, counts; each site is one organisation's."""
    rng = np.random.default_rng(3)
    site, month = np.nonzero(rng.random((J, L)) < 0.4)
    return site, month, rng.poisson(np.exp(2 + 0.8 * rng.normal(size=J))[site]).astype(float)


def job_of(seen: tuple[np.ndarray, ...], folds: int, job: bytes, folder) -> Tapped:
    """What crossed in a job of three organisations, whose secrets are the same in every revision."""
    clubs = clubs_of(dealt((J, L), *seen), folder)
    return tapped(clubs, folder, MODELS, PLAN, folds=folds, by="cell", job=job)[0]


def of_folds(tap: Tapped) -> np.ndarray:
    """Visits and birds (2, folds, L) of the others in each fold, as a member has them from the sums of all; else NaN."""
    support = next(a for q, a in tap.of(msg.Support) if q.folds)
    opened = next(q for q in tap.asked if isinstance(q, msg.Open) and q.weights == "fold")
    first = next(a for q, a in tap.of(msg.Solve) if q.batch == opened.batch)
    # gradient and curvature of a Poisson month are its birds less those expected, and those expected
    left_in = sum(one.months[:, :, :2].sum(axis=2) for one in first[1:])
    birds = left_in.sum(axis=0) / (opened.folds - 1) - left_in
    return np.where(opened.released == 1, [sum(one.visits for one in support[1:]), birds], np.nan)


def told(more: np.ndarray, counts: list[list[float]]) -> list[bool]:
    """Of each month with one visit more (2, n, L: visits, birds): whether its birds are one of the month's ``counts``."""
    one = np.argwhere(more[0] == 1)
    return [bool(np.isclose(counts[at], more[1, fold, at], atol=1e-3).any()) for fold, at in one]


@pytest.fixture
def as_before(monkeypatch):
    """Draws that follow from the secret alone."""

    def draw():
        monkeypatch.setattr(GroupProgram, "source", property(lambda self: self.secret))

    return draw


@pytest.mark.parametrize("rule", [False, True])
def test_a_quarter_does_not_hold_a_fifth_and_a_visit(rule, tmp_path, as_before):
    """Four folds after five, nobody's records changed."""
    if not rule:
        as_before()
    seen = visits()
    fifth, quarter = (
        job_of(seen, folds, job, tmp_path / str(folds)) for folds, job in ((5, JOB), (4, AFTER))
    )
    more = (of_folds(quarter)[:, 0] - of_folds(fifth)[:, 0])[:, None]
    counts: list[list[float]] = [[] for _ in range(L)]
    for name in ("owner-1", "owner-2"):
        used = fifth.programs[name].need()
        first, second = (
            tap.programs[name].fold_of("cell", k, 0, used) for tap, k in ((fifth, 5), (quarter, 4))
        )
        for at, count in zip(
            *(x[(second == 0) & (first > 0)] for x in (used.month, used.count)), strict=True
        ):
            counts[at].append(count)
    right = told(more, counts)
    assert np.mean(right) < 0.5 if rule else len(right) >= 3 and all(right)


@pytest.mark.parametrize("rule", [False, True])
def test_folds_do_not_take_late_records_of_a_member_apart(rule, tmp_path, as_before):
    """Three more visits in each month, whose sum the difference of two jobs tells; of each fold it was one of them."""
    if not rule:
        as_before()
    site, month, y = visits()
    rng, late = np.random.default_rng(4), np.zeros(site.size, bool)
    for at in range(L):
        late[rng.choice(np.flatnonzero((month == at) & (site % 3 == 1)), 3, replace=False)] = True
    taps = [
        job_of((site[some], month[some], y[some]), 5, job, tmp_path / job.hex()[:4])
        for some, job in ((~late, JOB), (late | True, AFTER))
    ]
    more = of_folds(taps[1]) - of_folds(taps[0])
    right = told(more, [y[late & (month == at)].tolist() for at in range(L)])
    assert np.mean(right) < 0.5 if rule else len(right) > 20 and all(right)
