"""Who comes into a job that goes on from another would tell from its months what somebody who has left it had."""

from __future__ import annotations

import numpy as np

from fedmiss.federation import messages as msg
from fedmiss.federation.hub.job import Stages, run_job
from fedmiss.federation.hub.onward import read_before, written
from fedmiss.federation.hub.season import SeriesPrior
from fedmiss.federation.hub.state import evolve
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import JOB, SETTINGS, Tapped, clubs_of, order
from tests.federation.owners import owned

MODEL = CountSettings(rank=0, dispersion="negbin")


def job(clubs, names, before=()):
    """Questions and answers of a job's rounds, and what a later job can go on from."""
    tap, kept, stages = Tapped({n: clubs[n].program() for n in names}), [], Stages()
    stages.known = kept.append
    run_job(Link(tap, JOB[:8], SETTINGS), order([MODEL], bootstrap=0, before=before), stages)
    return tap.of(msg.Solve), kept[-1]


def test_who_comes_would_have_the_sums_of_who_left(tmp_path):
    """Of every month, of a job in which it had no part."""
    clubs = clubs_of(owned(5, n=2500, J=80, L=60, size=2.0, seed=5), tmp_path)
    stay, left, comes = ["owner-0", "owner-1", "owner-2"], "owner-3", "owner-4"
    rounds, kept = job(clubs, [*stay, left])
    true = rounds[-1][1][3].months[0, :, 0]
    before = read_before(written(kept), "study.json")[0]
    rounds, _ = job(clubs, [*stay, comes], (before,))
    others = sum(answer.months[0, :, 0] for answer in rounds[0][1][:3])  # of the sum its own part is known
    at = before.months
    season, year, step, noise = before.series[0]
    prior = SeriesPrior.of(at % 12 + 1, at // 12, 1.0, effect=True)
    prior = evolve(prior, season=season, year=year, step=step, noise=noise)
    spread = prior.B @ (prior.variances()[:, None] * prior.B.T) + noise * np.eye(at.size)
    found = np.linalg.solve(spread, before.T[:, 0]) - others  # the sums of all four were what the prior asks
    assert np.corrcoef(found, true)[0, 1] > 0.9
