"""Sums of how late observers' visits are, and of the squares: exact ones tell each one's, and who came to one block."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import answers
from fedmiss.federation.hub.crossval import FOLDS, WHOLE
from fedmiss.federation.hub.job import JobResult
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped

YEARS = 8
SITES = 12  # of each organisation
# The years in which each observer of three organisations counts all of his sites; the second and third have seven observers.
OUT = (
    ((0, 1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 7), (2, 3, 4, 5, 6, 7), (2, 4, 5, 6, 7)),
    ((0, 1, 2, 3, 4, 5, 6, 7), (1, 2, 5), (2, 3, 5, 6, 7), (4, 5, 7)),
    ((0, 1, 2, 3, 4, 5, 6, 7), (1, 2, 4, 5, 6, 7), (3, 5, 6, 7)),
)
MODEL = CountSettings(rank=0, observers=True, learning=True, slopes=False)
LATE = 2.0**32  # digits of the field under masks


def job_of(folder, *, once: int = 0, **more) -> tuple[Tapped, dict, JobResult]:
    """A job of three organisations with a survey a year; ``once``: so many visits of the last two by newcomers."""
    rng = np.random.default_rng(4)
    level = 1.5 + 0.6 * rng.normal(size=3 * SITES)
    groups = []
    for k, observers in enumerate(OUT):
        site, year, who = [], [], []
        for o, years in enumerate(observers):
            for j in range(o, SITES, len(observers)):
                site += [3 * j + k] * len(years)
                year += years
                who += [o] * len(years)
        at = rng.permutation(len(who))[: once if k else 0]
        observer = np.array(who)
        observer[at] = len(observers) + np.arange(at.size)
        mean = np.exp(level[site] + rng.normal(0, 0.4, len(observers) + once)[observer])
        groups.append(Group.of(f"owner-{k}", site, year, rng.poisson(mean).astype(float), observer))
    ids = np.array([f"S{j}" for j in range(3 * SITES)], dtype=object)
    panel = GroupPanel.of(3 * SITES, YEARS, groups, (np.full(YEARS, 6), 2000 + np.arange(YEARS)), ids)
    models = [MODEL, CountSettings(rank=0, slopes=False)] if more else [MODEL]
    return tapped(panel, folder, models, least=5, **more)


def told(tap: Tapped) -> dict[tuple[int, int], np.ndarray]:
    """Sums over the others' observers at the end of every fit, by batch and number."""
    out = {}
    for q, a in tap.of(msg.Solve):
        if q.observers:
            sums = sum(np.rint(one.observers * LATE) for one in a[1:]) / LATE
            out |= {(q.batch, int(f)): row for f, row in zip(q.fits, sums, strict=True)}
    return out


def late_of(programs: dict) -> np.ndarray:
    """How late each observer of the others comes."""
    used = [programs[f"owner-{k}"].used for k in (1, 2)]
    return np.concatenate(
        [[one.experience[one.observer == o, 1][0] for o in np.unique(one.observer)] for one in used]
    )


def means() -> np.ndarray:
    """All that the mean of some of the years can be, about the middle."""
    years = range(YEARS)
    some = [np.mean(c) for n in range(1, YEARS + 1) for c in combinations(years, n)]
    return np.unique(np.round(some, 9)) - (YEARS - 1) / 2


def sets(values: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of all sets (m, n) of so many values, and of their squares."""
    at = np.stack(np.meshgrid(*[np.arange(values.size)] * n, indexing="ij"), axis=-1).reshape(-1, n)
    some = values[at[(np.diff(at, axis=1) >= 0).all(axis=1)]]
    return some.sum(axis=1), (some**2).sum(axis=1)


def coded(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One number of two, to five digits."""
    return (np.rint(first * 1e5).astype(np.int64) << 32) + np.rint(second * 1e5).astype(np.int64)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "whole years"])
def test_of_seven_observers_the_mean_year_of_each_would_be_told(exact, tmp_path, monkeypatch):
    """Of 380 million sets of seven means some thirty have the exact sums."""
    if exact:
        monkeypatch.setattr(answers, "_in_years", lambda program, number, sums: sums)
    tap, programs, _ = job_of(tmp_path)
    number, first, second = list(told(tap).values())[-1][[1, 5, 6]]
    assert number == 7
    late = late_of(programs)
    true = late.sum(), (late**2).sum()
    three, four = (sets(means(), n) for n in (3, 4))
    if exact:  # threes and fours meet in the middle; each set of seven in at most 35 ways
        np.testing.assert_allclose([first, second], true, atol=1e-8)
        left, here = coded(first - three[0], second - three[1]), np.sort(coded(*four))
        assert (np.searchsorted(here, left, "right") - np.searchsorted(here, left)).sum() < 2000
    else:
        some = np.random.default_rng(0).choice(four[0].size, 400, replace=False)
        sums, squares = (a[:, None] + b[some] for a, b in zip(three, four, strict=True))
        good = (np.abs(sums - first) < 2) & (np.abs(second - squares - 3) < 1)
        assert good.sum() > 100_000


def test_whole_years_change_the_way_of_a_fit_and_not_its_end(tmp_path, monkeypatch):
    rounded = job_of(tmp_path / "rounded")[2].members[0].state
    monkeypatch.setattr(answers, "_in_years", lambda program, number, sums: sums)
    exact = job_of(tmp_path / "exact")[2].members[0].state
    for name, atol in (("T", 0.005), ("mu", 0.005), ("kappa", 0.005)):
        np.testing.assert_allclose(getattr(rounded, name), getattr(exact, name), atol=atol)


def test_a_fold_does_not_tell_how_late_those_are_whom_it_leaves_out(tmp_path):
    """Two came once: a fit without their cell told of how many it is, and its sums lacked the year of each."""
    tap, programs, _ = job_of(tmp_path, once=1, folds=2, by="cell")
    left_out = [
        int(o)
        for k in (1, 2)
        for used in [programs[f"owner-{k}"].used]
        for fold in [programs[f"owner-{k}"].fold_of("cell", 2, 0, used)]
        for o in np.unique(used.observer)
        if np.unique(fold[used.observer == o]).size < 2
    ]
    assert left_out == [len(OUT[k]) for k in (1, 2)]
    sums = told(tap)
    folds = [row for (batch, _), row in sums.items() if batch == FOLDS]
    assert len(folds) == 2
    for row in folds:
        np.testing.assert_array_equal(row[[1, 5, 6]], sums[WHOLE, 0][[1, 5, 6]])


def test_folds_by_observer_have_no_sums_over_few_of_them(tmp_path, monkeypatch):
    """Of two observers its sums would tell the effects (``test_observers.py``)."""
    with pytest.raises(ConfigError, match="folds hold out observers"):
        job_of(tmp_path / "named", folds=2, by="observer")
    monkeypatch.setattr("tests.attacks.test_late.MODEL", CountSettings(rank=1, slopes=False))
    for by in ("cell", "observer"):
        tap, *_ = job_of(tmp_path / by, folds=2, by=by, structure=())
        assert any(q.observers for q, _ in tap.of(msg.Solve)) == (by == "cell")
