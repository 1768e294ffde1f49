"""Sums of how late observers' visits are, and of the squares: exact ones tell each of five, and who came to one block."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import answers
from fedmiss.federation.hub.job import JobResult
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped

YEARS = 8
SITES = 12  # of each organisation
# The years in which each observer of three organisations counts all of his sites; the second and third have five observers.
OUT = (
    ((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7), (2, 3, 4, 5, 6, 7)),
    ((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 3), (2, 3, 5, 6, 7)),
    ((0, 1, 2, 3, 4, 5, 6, 7), (1, 2, 4, 5, 6, 7)),
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


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "whole years"])
def test_of_five_observers_the_mean_year_of_each_would_be_told(exact, tmp_path, monkeypatch):
    if exact:
        monkeypatch.setattr(answers, "_in_years", lambda program, number, sums: sums)
    tap, programs, _ = job_of(tmp_path)
    number, first, second = list(told(tap).values())[-1][[1, 5, 6]]
    assert number == 5
    z = means()
    two, three = (np.array(np.meshgrid(*[z] * n)).reshape(n, -1).T for n in (2, 3))
    two, three = (x[(np.diff(x, axis=1) >= 0).all(axis=1)] for x in (two, three))
    if exact:  # pairs and triples meet in the middle
        left = np.column_stack([first - three.sum(axis=1), second - (three**2).sum(axis=1)])
        here = np.column_stack([two.sum(axis=1), (two**2).sum(axis=1)])
        at = {tuple(row): i for i, row in enumerate(np.rint(here * 1e5).astype(int).tolist())}
        found = {
            tuple(np.round(np.sort(np.r_[three[i], two[at[row]]]), 5))
            for i, row in enumerate(map(tuple, np.rint(left * 1e5).astype(int).tolist()))
            if row in at
        }
        assert tuple(np.round(np.sort(late_of(programs)), 5)) in found
        assert len(found) < 50
    else:
        some = three[np.random.default_rng(0).choice(len(three), 1000, replace=False)]
        sums = some.sum(axis=1)[:, None] + two.sum(axis=1)
        squares = (some**2).sum(axis=1)[:, None] + (two**2).sum(axis=1)
        good = (np.abs(sums - first) < 2) & (np.abs(second - squares - 3) < 1)
        assert good.sum() > 1000


def test_whole_years_change_the_way_of_a_fit_and_not_its_end(tmp_path, monkeypatch):
    rounded = job_of(tmp_path / "rounded")[2].members[0].state
    monkeypatch.setattr(answers, "_in_years", lambda program, number, sums: sums)
    exact = job_of(tmp_path / "exact")[2].members[0].state
    for name, atol in (("T", 0.005), ("mu", 0.005), ("kappa", 0.001)):
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
    folds = [row for (batch, _), row in sums.items() if batch >= 1000]
    assert len(folds) >= 2
    for row in folds:
        np.testing.assert_array_equal(row[[1, 5, 6]], sums[0, 0][[1, 5, 6]])


def test_folds_by_observer_have_no_sums_over_few_of_them(tmp_path, monkeypatch):
    """Of two observers its sums would tell the effects (``test_observers.py``)."""
    with pytest.raises(ConfigError, match="folds hold out observers"):
        job_of(tmp_path / "named", folds=2, by="observer")
    monkeypatch.setattr("tests.attacks.test_late.MODEL", CountSettings(rank=1, slopes=False))
    for by in ("cell", "observer"):
        tap, *_ = job_of(tmp_path / by, folds=2, by=by, structure=())
        assert any(q.observers for q, _ in tap.of(msg.Solve)) == (by == "cell")
