"""Rounds tell sums of products of effort and of how late observers come: where habits are few, they tell each observer's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement
from fedmiss.federation.group.visits import effort_columns
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, clubs_of, tapped
from tests.federation.owners import dealt
from tests.models.panels import calendar

J, L = 60, 48
LEAST = 5
DIGITS = 2.0**30  # of the field under masks
MINUTES = np.arange(5, 125, 5)
GRID = np.stack(np.meshgrid(MINUTES, np.arange(0.5, 10.5, 0.5), np.arange(1, 7)), axis=-1).reshape(-1, 3)


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


def lacking(H: np.ndarray, habits: np.ndarray) -> np.ndarray:
    """Share (n,) of each one's products (n, k) of columns and a constant that is outside what the sums H span."""
    pairs = np.triu_indices(H.shape[1])
    spans = H[:, *pairs] / H[:, -1:, -1]
    _, size, rows = np.linalg.svd(spans, full_matrices=False)
    rows = rows[size > 1e-7 * size[0]]
    columns = np.column_stack([habits, np.ones(len(habits))])
    products = columns[:, pairs[0]] * columns[:, pairs[1]]
    products /= np.linalg.norm(products, axis=1, keepdims=True)
    return ((products - products @ rows.T @ rows) ** 2).sum(axis=1)


def curvatures(tap: Tapped, e: int) -> np.ndarray:
    """The others' sums (n, e, e) of products of effort's columns and a constant in all rounds, to the digits of masks."""
    sums = [
        np.rint(a[1].effort * DIGITS) + np.rint(a[2].effort * DIGITS)
        for q, a in tap.of(msg.Solve)
        if q.effort
    ]
    return (np.concatenate(sums)[:, e:] / DIGITS).reshape(-1, e, e)


def test_habits_and_mean_years_of_few_observers_would_be_told(tmp_path, monkeypatch):
    """Two terms, how late and a constant have ten products; the others have eight observers, or twelve."""

    def ratio(observers: int, folder) -> float:
        tap, habits, others = job_of(observers, folder)
        H = curvatures(tap, 6)[:, [0, 1, 3, 5]][:, :, [0, 1, 3, 5]]  # not what they lack, nor the year
        return float(np.median(lacking(H, others)) / np.median(lacking(H, habits)))

    with pytest.raises(ConfigError, match="observers who are new"):
        job_of(4, tmp_path / "rule")
    assert ratio(6, tmp_path / "more") < 100
    monkeypatch.setattr(agreement, "_kinds", lambda columns: 9.0)
    assert ratio(4, tmp_path / "none") > 1e6


def with_terms(observers: int, folder) -> tuple[msg.Axes, np.ndarray, np.ndarray]:
    """The axes agreed on where each of so many observers of an organisation goes as long, far, with as many.

    And minutes, km and people of a grid that are in what the others' sums span, and those of the others' observers.
    """
    rng = np.random.default_rng(4)
    site, month = np.nonzero(rng.random((36, 24)) < 0.7)
    who = site // 3 % observers
    each = rng.permutation(len(GRID))[: 3 * observers]
    x = GRID[each[who + observers * (site % 3)]]  # minutes, km, people
    y = rng.poisson(np.exp(1 + 0.5 * rng.normal(size=36)[site] + 0.3 * np.log(x[:, 0] / 60.0))).astype(float)
    clubs = clubs_of(dealt((36, 24), site, month, y, observer=who), folder)
    for k, club in enumerate(clubs.values()):
        club.visits = replace(club.visits, effort=x[site % 3 == k], given=False)
    tap, _, _ = tapped(clubs, folder, [CountSettings(rank=0)], least=LEAST, bootstrap=20)
    axes = [q for q in tap.asked if isinstance(q, msg.Axes)][-1]
    K = len(axes.terms)
    grid = effort_columns(GRID, axes.terms, ())
    outside = lacking(curvatures(tap, K + 1), grid)
    return axes, GRID[outside < 1e-10], GRID[each[observers:]]


def test_minutes_and_km_of_few_observers_would_be_told(tmp_path, monkeypatch):
    """Three terms and a constant have ten products; the others have eight observers, or ten."""
    assert with_terms(4, tmp_path / "rule")[0].terms == ("duration", "distance")
    axes, found, _ = with_terms(5, tmp_path / "more")
    assert axes.terms == ("duration", "distance", "observers")
    assert len(found) == len(GRID)
    monkeypatch.setattr(agreement, "_kinds", lambda columns: 9.0)
    axes, found, true = with_terms(4, tmp_path / "none")
    assert axes.terms == ("duration", "distance", "observers")
    assert sorted(found.tolist()) == sorted(true.tolist())


def test_effort_stays_where_two_count_by_a_protocol_and_a_third_has_more_sites(tmp_path):
    """Kinds of visits are as many as products there: shares are of sites, of which the third has less than half."""
    rng = np.random.default_rng(4)
    own = np.repeat(np.arange(3), (100, 60, 60))
    site, month = np.nonzero(rng.random((own.size, 24)) < 0.5)
    free, n = own[site] == 0, site.size
    minutes = np.where(free, rng.integers(10, 180, n), rng.choice([5, 10], n))
    km = np.where(free, rng.integers(0, 60, n) / 10.0, rng.choice([0.0, 0.5], n))
    x = np.column_stack([minutes, km, np.ones(n)])
    y = rng.poisson(np.exp(1 + 0.3 * np.log(minutes / 60.0))).astype(float)
    who = rng.integers(0, 15, n)
    panel = dealt((own.size, 24), site, month, y, owner=own[site], observer=who)
    clubs = clubs_of(panel, tmp_path)
    for k, club in enumerate(clubs.values()):
        club.visits = replace(club.visits, effort=x[own[site] == k], given=False)
    tap, _, result = tapped(clubs, tmp_path, [CountSettings(rank=0)], least=LEAST, bootstrap=1)
    assert result.agreement.notes == ()
    assert [q for q in tap.asked if isinstance(q, msg.Axes)][-1].terms == ("duration", "distance")
