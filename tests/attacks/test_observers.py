"""Sums over observers of effects and of their squares tell the effects of two."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped
from tests.models.panels import calendar

J, L, LEAST = 60, 24, 5


def job_of(
    observers: tuple[int, int, int], folder, least: int, new: tuple[int, ...] = ()
) -> tuple[Tapped, dict]:
    """A job of three organisations with so many observers each, who share their sites; of ``new`` the last come later."""
    rng = np.random.default_rng(4)
    level = 1 + 0.8 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * np.arange(L) / 12)
    site, month = np.nonzero(rng.random((J, L)) < 0.6)
    groups = []
    for k, n in enumerate(observers):
        at = site % 3 == k
        who = rng.integers(0, n, at.sum())
        if new:
            late = who >= n - new[k]
            who[late & (month[at] < 12)] = 0
        mean = np.exp(level[site[at], month[at]] + rng.normal(0, 0.5, n)[who])
        groups.append(Group.of(f"owner-{k}", site[at], month[at], rng.poisson(mean).astype(float), who))
    ids = np.array([f"S{j}" for j in range(J)], dtype=object)
    panel = GroupPanel.of(J, L, groups, calendar(L), ids)
    settings = CountSettings(rank=0, observers=True, learning=bool(new))
    return tapped(panel, folder, [settings], least=least)[:2]


def test_two_observers_of_the_others_would_be_told(tmp_path):
    tap, programs = job_of((6, 1, 1), tmp_path, 2)
    q, answers = [(q, a) for q, a in tap.of(msg.Solve) if a[0].observers.any()][-1]
    squares, number, known, effects, *_ = (
        sum(np.rint(a.observers[0] * 2.0**32) for a in answers[1:]) * 2.0**-32
    )
    squares -= (number - known) / q.ridge[0]  # their variances
    apart = np.sqrt(max(2.0 * squares - effects**2, 0.0))
    found = [(effects - apart) / 2.0, (effects + apart) / 2.0]
    true = sorted(float(programs[f"owner-{k}"].batches[q.batch].effects[0, 0]) for k in (1, 2))
    np.testing.assert_allclose(found, true, atol=0.02)


@pytest.mark.parametrize(("observers", "used"), [((6, 2, 2), False), ((6, 3, 2), True)])
def test_effects_of_observers_need_the_least_number_without_any_organisation(tmp_path, observers, used):
    if used:
        assert any(a[0].observers.any() for _, a in job_of(observers, tmp_path, LEAST)[0].of(msg.Solve))
    else:
        with pytest.raises(ConfigError, match="effects of observers"):
            job_of(observers, tmp_path, LEAST)


@pytest.mark.parametrize(("new", "used"), [((2, 2, 3), False), ((2, 3, 3), True)])
def test_new_observers_need_the_least_number_without_any_organisation(tmp_path, new, used):
    """The curvature of what they lack and how late they come is a sum over them: of one it is his mean year."""
    if used:
        assert any(a[0].effort.any() for _, a in job_of((8, 8, 8), tmp_path, LEAST, new)[0].of(msg.Solve))
    else:
        with pytest.raises(ConfigError, match="observers who are new"):
            job_of((8, 8, 8), tmp_path, LEAST, new)
