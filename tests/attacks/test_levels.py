"""What the page on privacy gives up: fitted totals of months are equations of the levels of single sites."""

import numpy as np
import pytest
from scipy.optimize import least_squares

from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import tapped
from tests.federation.owners import owned


def told(folder, J: int, L: int, n: int, *, slopes: bool):
    """The end of a fit of rank 0; its fitted totals without those of owner-0; visits (sites, L) and birds of the others."""
    panel, models = owned(3, n=n, J=J, L=L, seed=8), [CountSettings(rank=0, slopes=slopes)]
    tap, programs, _ = tapped(panel, folder, models, DataSpec(jointly=True))
    end, answers = next((q, a) for q, a in tap.of(msg.Predict) if q.months)
    fitted = sum(answer.months[0, :, 2] for answer in answers[1:])
    visits, birds = [], []
    for used in (programs[name].used for name in ("owner-1", "owner-2")):
        for j in np.unique(used.site):
            visits.append(np.bincount(used.month[used.site == j], minlength=L))
            birds.append(used.count[used.site == j].sum())
    month = np.exp(end.mu[0] + end.T[0, :, 0] + 0.5 * end.D[0, :, 0])
    line = next(q for q in tap.asked if isinstance(q, msg.Open)).line
    return end, fitted, np.array(visits) * month, np.array(birds), line


def test_fitted_totals_tell_birds_of_sites_that_are_fewer_than_months(tmp_path):
    """To a member that knows how often each site of the others was visited in each month; at rank 0, without slopes."""
    end, fitted, expected, birds, _ = told(tmp_path, 45, 60, 1200, slopes=False)
    level = np.linalg.lstsq(expected.T, fitted)[0]
    # the equation that a site's effect solves: birds less those that are expected = phi effect / tau
    mean, tau, phi = level * expected.sum(axis=1), end.tau[0, 0], end.phi[0]
    effect = np.log(level) - 0.5 / (mean / phi + 1 / tau)
    np.testing.assert_array_equal(np.rint(mean + phi * effect / tau), birds)
    assert len(birds) > 20  # of 45 sites those of the two others


@pytest.mark.slow
def test_slopes_of_sites_only_double_the_unknowns(tmp_path):
    end, fitted, visits, birds, x = told(tmp_path, 30, 120, 1500, slopes=True)
    tau, phi, J = end.tau[0], end.phi[0], len(birds)

    def expected(v):
        level, slope = v[:J, None], v[J:, None]
        m = visits * np.exp(level + slope * x)
        for _ in range(2):  # a site's covariance follows from what is expected of it
            a, b, c = m.sum(axis=1) / phi + 1 / tau[0], m @ x / phi, m @ x**2 / phi + 1 / tau[1]
            var = (c[:, None] - 2 * b[:, None] * x + a[:, None] * x**2) / (a * c - b**2)[:, None]
            m = visits * np.exp(level + slope * x + 0.5 * var)
        return m

    def lacking(v):
        prior = v / np.repeat(np.sqrt(tau), J)
        return np.r_[1e3 * (expected(v).sum(axis=0) - fitted) / np.sqrt(fitted + 1), 1e-2 * prior]

    end_of = least_squares(lacking, np.zeros(2 * J), max_nfev=200).x
    found = expected(end_of).sum(axis=1) + phi * end_of[:J] / tau[0]
    np.testing.assert_array_equal(np.rint(found), birds)
