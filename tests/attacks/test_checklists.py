"""Numbers of checklists of the others' sites, of which everything that is known of a community's counts follows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement

import numpy as np
import pytest

from fedmiss.community.outputs import STEPS, steps_of
from fedmiss.federation import messages as msg
from tests.community.test_study import CLUBS, split, terms_of, together
from tests.community.worlds import lists_of, world

J, S, MOST, LEAST = 24, 5, 12, 3
OTHERS = np.arange(J) % 3 > 0


def sets_of(total: float, logs: float, sites: np.ndarray, off: float) -> int:
    """How many sets of numbers of checklists have this sum, this sum of logarithms, and so many sites of each step."""
    steps = steps_of(np.arange(1.0, MOST + 1))
    parts = []
    for step, n in enumerate(sites.astype(int)):
        sets = list(combinations_with_replacement(np.flatnonzero(steps == step) + 1.0, n))
        parts.append(np.array([(sum(one), np.log(one).sum()) for one in sets]).reshape(-1, 2))
    first, second = ((a[:, None] + b[None]).reshape(-1, 2) for a, b in (parts[:2], parts[2:]))
    return sum(
        int(((second[:, 0] == total - a) & (np.abs(second[:, 1] - logs + b) <= off)).sum()) for a, b in first
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Checklists of all sites; of each club what it knew at the end, and its sums for the joint tables.

    Ten checklists or more have four sites of east, and one of each of the others.
    """
    folder, w = tmp_path_factory.mktemp("checklists"), world(1, J=J, S=S, rank=0)
    w.eta[:] += 1.0
    w.visits[:] = np.minimum(w.rng.integers(1, MOST + 1, J), 9)
    w.visits[[0, 3, 6, 9, 1, 2]] = 10, 12, 11, 10, 10, 11
    table, sums = lists_of(w, folder / "all.csv"), {name: [] for name in CLUBS}

    def hear(name: str) -> Callable:
        return lambda member: sums[name].extend(
            a.sums for a in member.answers if isinstance(a, msg.SpeciesSums)
        )

    terms = terms_of(sorted(table["species"].unique()), model="presence", rank=0, effort="none")
    done = together(split(table, folder), terms, folder / "job", **{n: {"told": hear(n)} for n in CLUBS})
    return w.visits, done, sums


def test_numbers_of_checklists_of_the_others_are_not_told(ran):
    """Sixteen sites: with exact sums of logarithms all that is told fits few sets."""
    visits, _, sums = ran
    sites, steps, _, told = (
        sum(parts) for parts in zip(*(sums[n][-4:] for n in ("north", "west")), strict=True)
    )
    true = visits[OTHERS]
    assert told[-1] == true.sum()
    assert steps[: len(STEPS)].tolist() == np.bincount(steps_of(true), minlength=len(STEPS)).tolist()
    assert sets_of(true.sum(), np.log(true).sum(), steps[: len(STEPS)], 1e-7) < 20
    # each of the others' sums is rounded
    off = 1.0 if (sites[-2:] == np.rint(sites[-2:])).all() else 1e-7
    assert abs(sites[-1] - np.log(true).sum()) <= off
    assert sets_of(true.sum(), sites[-1], steps[: len(STEPS)], off) > 1000


def test_a_number_of_checklists_that_two_sites_of_the_others_have_is_not_told_of(ran):
    """A member's own part taken off, the deviance of the two were left."""
    visits, done, _ = ran
    step = steps_of(visits)
    assert np.bincount(step[OTHERS], minlength=len(STEPS))[-1] == 2
    for name, club in done.items():
        others = np.bincount(step[np.arange(J) % 3 != CLUBS.index(name)], minlength=len(STEPS))
        kept = club.step_sites > 0
        assert kept.any()
        assert (others[kept] >= LEAST).all()
        assert not club.step_gains[~kept].any()
