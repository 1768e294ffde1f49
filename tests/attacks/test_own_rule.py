"""A custodian who asks for more of his own sites than in the job before shows by the difference what he would leave out."""

from __future__ import annotations

import hashlib

import numpy as np

from fedmiss.federation.fit_tables import visited_totals
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import InProcess, Link
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for
from tests.federation.network import JOB, SETTINGS, clubs_of
from tests.models.panels import calendar

J, L, OWNERS, OWN = 90, 24, 5, 5
AFTER = hashlib.sha256(b"its revision").digest()


def counted(own: int, job: bytes, folder) -> tuple[np.ndarray, np.ndarray]:
    """Visits and birds (2, L) of all, as the joint result has them; and those of the second of five organisations."""
    rng = rng_for(1, "own rule")
    site, month = np.nonzero(rng.random((J, L)) < 0.25)
    y = rng.poisson(np.exp(1 + 0.8 * rng.normal(size=J))[site]).astype(float)
    groups = [
        Group.of(f"owner-{k}", *(x[site % OWNERS == k] for x in (site, month, y))) for k in range(OWNERS)
    ]
    ids = np.array([f"S{j}" for j in range(J)], dtype=object)
    clubs = clubs_of(GroupPanel.of(J, L, groups, calendar(L), ids), folder, job=job)
    programs = {name: club.program() for name, club in clubs.items()}
    programs["owner-1"].own_sites = own
    spec = JobSpec(
        DataSpec(jointly=True, minimum=5),
        [CountSettings(rank=0, slopes=False, dispersion="negbin")],
        bootstrap=0,
    )
    result = run_job(Link(InProcess(programs), job[:8], SETTINGS), spec)
    table = visited_totals([(m.state, m.settings) for m in result.members])
    mine = groups[1]
    theirs = [np.bincount(mine.month, minlength=L), np.bincount(mine.month, mine.count, L)]
    return np.array([table["weight"], table["counted"]]), np.array(theirs)


def test_months_that_a_new_rule_leaves_out_follow_exactly_from_the_job_without_it(tmp_path):
    (before, mine), (after, _) = (
        counted(own, job, tmp_path / str(own)) for own, job in ((0, JOB), (OWN, AFTER))
    )
    few = mine[0] < OWN  # each site is visited once a month
    assert few.sum() > 5
    np.testing.assert_allclose((before - after)[:, few], mine[:, few], atol=1e-4)
