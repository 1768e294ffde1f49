"""By month a sum of effort and a sum of its squares are told: of two visits each one's own, of four whole minutes'."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement, ends
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped
from tests.federation.owners import dealt

J, L, THIN = 60, 24, 5  # the month in which the others went to few sites
MINUTES = np.arange(5, 245, 5)  # of visits, as they are written down


def job_of(theirs: list[int], folder) -> tuple[Tapped, dict, msg.Question, np.ndarray]:
    """A job of three organisations: what crossed, the programs, the question at the end, the others' sums of the month."""
    rng = np.random.default_rng(4)
    level = 1 + 0.8 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * np.arange(L) / 12)
    there = rng.random((J, L)) < 0.6
    there[:, THIN] = False
    there[[*range(0, 30, 3), *theirs], THIN] = True
    site, month = np.nonzero(there)
    x = np.log(rng.choice(MINUTES, (site.size, 1)) / 60.0)
    y = rng.poisson(np.exp(level[site, month] + 0.5 * x[:, 0])).astype(float)
    panel = dealt((J, L), site, month, y, effort=x)
    tap, programs, _ = tapped(panel, folder, [CountSettings(rank=0)])
    q, answers = [(q, a) for q, a in tap.of(msg.Predict) if q.months][-1]
    return tap, programs, q, sum(a.months[0, THIN] for a in answers[1:])


@pytest.mark.parametrize(("theirs", "released"), [([1, 2, 4], False), ([1, 2, 4, 5], True)])
def test_a_month_in_which_the_others_made_three_visits_is_withheld(tmp_path, theirs, released):
    assert (job_of(theirs, tmp_path)[3][0] > 0) == released


def test_of_two_visits_the_effort_of_each_would_be_told(tmp_path, monkeypatch):
    monkeypatch.setattr(agreement, "SITES_LEFT", 0)
    monkeypatch.setattr(ends, "COARSE", 2.0**-24)
    _, programs, q, sums = job_of([1, 2], tmp_path)
    apart = np.sqrt(2.0 * sums[5] - sums[4] ** 2)
    used = [programs[name].used for name in ("owner-1", "owner-2")]
    true = [float(one.effort[one.month == THIN, 0] @ [q.kappa[0, 0]]) for one in used]
    np.testing.assert_allclose(np.sort([sums[4] - apart, sums[4] + apart]) / 2.0, np.sort(true), atol=1e-5)


@pytest.mark.parametrize("coarse", [2.0**-24, None], ids=["exact", "rounded"])
def test_of_four_visits_the_minutes_of_each_would_be_told(coarse, tmp_path, monkeypatch):
    if coarse is not None:
        monkeypatch.setattr(ends, "COARSE", coarse)
    _, programs, q, sums = job_of([1, 2, 4, 5], tmp_path)
    used = [programs[name].used for name in ("owner-1", "owner-2")]
    true = np.sort(np.concatenate([60.0 * np.exp(one.effort[one.month == THIN, 0]) for one in used]))
    tried = np.array(list(combinations_with_replacement(MINUTES, 4)))
    effect = q.kappa[0, 0] * np.log(tried / 60.0)
    lacking = np.abs(np.stack([effect.sum(axis=1), (effect**2).sum(axis=1)]) - sums[4:6, None]).max(axis=0)
    if coarse is not None:
        np.testing.assert_allclose(tried[lacking < 1e-5], true[None])
    else:  # both organisations round: this many are as good as the true ones
        assert (lacking < 2.0 * ends.COARSE).sum() > 100


def test_small_squares_of_effort_are_not_rounded_away(tmp_path, monkeypatch):
    """The nearest quarter of each was 0: recorded effort then seemed to be the same at all visits of a month."""
    sums = []
    for coarse in (2.0**-24, 8.0):
        monkeypatch.setattr(ends, "COARSE", coarse)
        tap = job_of([1, 2, 4, 5], tmp_path / str(coarse))[0]
        told = [a for q, a in tap.of(msg.Predict) if q.months][-1]
        sums.append(np.concatenate([a.months[0, :, 5] for a in told]))
    exact, rounded = sums
    assert np.median(exact) < 4.0
    # of n numbers that go up or down by chance the error of the sum is at most 8 / 2 sqrt(n)
    assert abs(rounded.sum() - exact.sum()) < 3.5 * 4.0 * np.sqrt(exact.size)
    assert rounded.sum() > 0.4 * exact.sum()
