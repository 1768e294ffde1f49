"""A member that lies about its own sums keeps a fit going, and counts follow from more rounds than an honest fit has.

It adds to its own sums of the months a gradient and a curvature that outweigh everybody's, so that the months go where it
likes, up to the most rounds of a fit (``max_sweeps``, 500 by default). It knows each site's visits by month, as in
:mod:`.test_counts`, and neither the sites' levels nor a count.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group.answers import ANSWER
from fedmiss.models.lowrank.settings import CountSettings

from . import test_counts
from .test_counts import clubs, equations, told

ROUNDS = 60
WEIGHT, REACH, SPREAD = 3e4, 2.0, 0.5  # of what is added; how far a month goes in a round, and about what


def right(folder, monkeypatch, *, lies):
    """Share of the others' counts that are worked out, what a guess of each site's mean gives, rounds, visits a month."""
    monkeypatch.setattr(test_counts, "J", 48)  # 32 of them the others
    solved, rng, rounds = ANSWER[msg.Solve], np.random.default_rng(5), [0]

    def answer(program, batch, question):
        out = solved(program, batch, question)
        if program.name != "owner-0":
            return out
        rounds[0] += 1
        if not lies:
            return out
        months = out.months.copy()
        wanted = 0.5 + SPREAD * rng.normal(size=months.shape[1])
        step = np.clip(wanted - (question.mu[0] + question.T[0, :, 0]), -REACH, REACH)
        months[0, :, 0] += WEIGHT * step
        months[0, :, 1] += WEIGHT
        return replace(out, months=months)

    monkeypatch.setitem(ANSWER, msg.Solve, answer)
    settings = CountSettings(rank=0, slopes=False, dispersion="negbin", max_sweeps=ROUNDS)
    asked, visits, birds = told(clubs(1, 0.67), folder, settings)
    true, found = birds[visits > 0], np.zeros_like(visits)
    for _ in range(3):  # the expectations that the equations are weighted by follow from the counts found
        A, sums, weight, mean = equations(asked, visits, found)
        s = np.sqrt(mean + 0.5 * mean**2) + 0.2
        left = np.vstack([A * s * weight[:, None], np.eye(mean.size)])
        z = np.linalg.lstsq(left, np.r_[(sums - A @ mean) * weight, np.zeros(mean.size)], rcond=None)[0]
        found[visits > 0] = np.maximum(mean + s * z, 0.0)
    share = np.mean(np.rint(found[visits > 0]) == true)
    return share, np.mean(np.rint(mean) == true), rounds[0], (visits > 0).sum(axis=0).mean()


@pytest.mark.slow
def test_who_lies_learns_every_count_where_honest_rounds_tell_next_to_none(tmp_path, monkeypatch):
    share, guess, rounds, visited = right(tmp_path, monkeypatch, lies=True)
    assert (share, rounds) == (1.0, ROUNDS)
    assert guess < 0.2
    assert 17 < visited < ROUNDS  # more than an honest fit has rounds


@pytest.mark.slow
def test_an_honest_member_has_no_such_rounds(tmp_path, monkeypatch):
    share, _, rounds, visited = right(tmp_path, monkeypatch, lies=False)
    assert rounds < visited
    assert share < 0.5
