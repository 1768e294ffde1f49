"""Sums over observers come before any rule: exact ones told how often and when one went who alone is told from his sites."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import program
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import tapped
from tests.federation.owners import dealt

J, L = 60, 48


def told(folder, *, apart: bool) -> tuple[list[float], list[float]]:
    """How often and in which month one went who alone is told from his sites, or alone is not: as followed, and the truth.

    Of the sums of two others; ``SupportSums.visits`` say how many visits they made in each month.
    """
    rng = np.random.default_rng(4)
    site, month = np.nonzero(rng.random((J, L)) < 0.5)
    others = (site // 3 if apart else site // 6) + site % 3 * J  # an observer of each site, or of two
    who = np.where((site == 1) | ((site == 4) & apart), 3 * J, others)
    y = rng.poisson(np.exp(1 + 0.5 * rng.normal(size=J)[site])).astype(float)
    tap, programs, _ = tapped(dealt((J, L), site, month, y, observer=who), folder, [CountSettings(rank=0)])
    middle = programs["owner-1"].axis.months.mean()
    sums = sum(a.observers for a in tap.of(msg.Axes)[-1][1][1:])
    often, late = sums[3], 12.0 * sums[4]
    if not apart:
        visits = sum(a.visits[0] for a in tap.of(msg.Support)[-1][1][1:])
        often, late = sums[0] - often, visits @ (programs["owner-1"].axis.months - middle) - late
    used = programs["owner-1"].used
    his = used.stamp[used.apart == apart]
    return [often, late / max(often, 1.0)], [his.size, his.mean() - middle]


@pytest.mark.parametrize("apart", [True, False])
def test_how_often_and_when_a_single_observer_went_would_be_told(apart, tmp_path, monkeypatch):
    found, true = told(tmp_path / "rounded", apart=apart)
    assert abs(found[0] - true[0]) > 20
    monkeypatch.setattr(program.GroupProgram, "_roughly", lambda self, about: about[2:])
    np.testing.assert_allclose(*told(tmp_path / "exact", apart=apart), atol=0.01)
