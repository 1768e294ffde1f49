"""What the page on privacy gives up: fitted totals of months are equations of the levels of single sites."""

from __future__ import annotations

import numpy as np

from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import JOB, SETTINGS, clubs_of
from tests.federation.owners import owned
from tests.federation.test_least_numbers import Tapped


def test_fitted_totals_tell_birds_of_sites_that_are_fewer_than_months(tmp_path):
    """To a member that knows how often each site of the others was visited in each month; at rank 0, without slopes."""
    programs = {n: c.program() for n, c in clubs_of(owned(3, n=1200, J=45, L=60, seed=8), tmp_path).items()}
    tap, model = Tapped(programs), CountSettings(rank=0, slopes=False)
    run_job(Link(tap, JOB[:8], SETTINGS), JobSpec(DataSpec(jointly=True), [model], bootstrap=0))
    asked = zip(tap.asked, tap.told, strict=True)
    end, answers = next((q, a) for q, a in asked if isinstance(q, msg.Predict) and q.months)
    fitted = sum(answer.months[0, :, 2] for answer in answers[1:])  # of all less those of owner-0
    visits, birds = [], []
    for used in (programs[name].used for name in ("owner-1", "owner-2")):
        for j in np.unique(used.site):
            visits.append(np.bincount(used.month[used.site == j], minlength=60))
            birds.append(used.count[used.site == j].sum())
    month = np.exp(end.mu[0] + end.T[0, :, 0] + 0.5 * end.D[0, :, 0])
    expected = np.array(visits) * month
    level = np.linalg.lstsq(expected.T, fitted)[0]
    # the equation that a site's effect solves: birds less those that are expected = phi effect / tau
    mean, tau, phi = level * expected.sum(axis=1), end.tau[0, 0], end.phi[0]
    effect = np.log(level) - 0.5 / (mean / phi + 1 / tau)
    np.testing.assert_array_equal(np.rint(mean + phi * effect / tau), birds)
    assert len(birds) == 36
