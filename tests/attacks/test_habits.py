"""Rounds tell sums of products of effort and of how late observers come: where habits are few, they tell each observer's."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped
from tests.models.panels import calendar

J, L = 60, 48
LEAST = 5
DIGITS = 2.0**30  # of the field under masks
MINUTES = np.arange(5, 125, 5)


def job_of(observers: int, folder) -> tuple[Tapped, np.ndarray, np.ndarray]:
    """Three organisations whose observers always go as long and as far, six of the first and so many of each of the others.

    Returns what crossed, and of each observer of the others, and of made-up ones, two terms of effort and how late.
    """
    rng = np.random.default_rng(4)
    level = 1 + 0.8 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * np.arange(L) / 12)
    site, month = np.nonzero(rng.random((J, L)) < 0.6)
    groups = []
    for k, n in enumerate((6, observers, observers)):
        at = np.flatnonzero(site % 3 == k)
        first = np.r_[0, rng.integers(13, 20, n - 1)]
        last = np.r_[L, first[1:] + rng.integers(10, L, n - 1)]
        who = np.array([rng.choice(np.flatnonzero((first <= t) & (t <= last))) for t in month[at]])
        x = np.log(rng.choice(MINUTES, (n, 2)) / 60.0)[who]
        mean = np.exp(level[site[at], month[at]] + rng.normal(0, 0.5, n)[who] + 0.3 * x.sum(axis=1))
        groups.append(Group.of(f"owner-{k}", site[at], month[at], rng.poisson(mean).astype(float), who, x))
    ids = np.array([f"S{j}" for j in range(J)], dtype=object)
    model = CountSettings(rank=0, observers=True, learning=True, max_sweeps=80)
    panel = GroupPanel.of(J, L, groups, calendar(L), ids)
    tap, programs, _ = tapped(panel, folder, [model], least=LEAST, bootstrap=10)
    used = [programs[f"owner-{k}"].used for k in (1, 2)]
    habits = np.concatenate(
        [np.unique(np.column_stack([u.effort, u.experience[:, 1]]), axis=0) for u in used]
    )
    other = np.log(rng.choice(MINUTES, (200, 2)) / 60.0)
    return tap, habits, np.column_stack([other, rng.uniform(-2, 2, 200)])


def lacking(tap: Tapped, habits: np.ndarray) -> float:
    """Share of the products (n, 3) of habits with each other and a constant that is outside what the others' sums span."""
    e, at = 6, [0, 1, 3, 5]  # columns: two terms, what is lacking, how late, the year, and a constant
    sums = [
        np.rint(a[1].effort * DIGITS) + np.rint(a[2].effort * DIGITS)
        for q, a in tap.of(msg.Solve)
        if q.effort
    ]
    H = (np.concatenate(sums)[:, e:] / DIGITS).reshape(-1, e, e)[:, at][:, :, at]
    pairs = np.triu_indices(len(at))
    spans = H[:, *pairs] / H[:, -1:, -1]
    _, size, rows = np.linalg.svd(spans, full_matrices=False)
    rows = rows[size > 1e-7 * size[0]]
    columns = np.column_stack([habits, np.ones(len(habits))])
    products = columns[:, pairs[0]] * columns[:, pairs[1]]
    products /= np.linalg.norm(products, axis=1, keepdims=True)
    return float(np.median(((products - products @ rows.T @ rows) ** 2).sum(axis=1)))


def test_habits_and_mean_years_of_few_observers_would_be_told(tmp_path, monkeypatch):
    """Two terms, how late and a constant have ten products; the others have eight observers, or twelve."""
    with pytest.raises(ConfigError, match="observers who are new"):
        job_of(4, tmp_path / "rule")
    tap, habits, others = job_of(6, tmp_path / "more")
    assert lacking(tap, habits) > 0.01 * lacking(tap, others)
    monkeypatch.setattr(agreement, "_habits", lambda used, live: 1.0)
    tap, habits, others = job_of(4, tmp_path / "none")
    assert lacking(tap, others) > 1e6 * lacking(tap, habits)
