"""A region's expected counts, month by month, are equations of what is expected at each of its sites."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import JOB, SETTINGS, Tapped, clubs_of
from tests.models.panels import calendar

J, L, LEAST = 60, 72, 5


def job_of(theirs: list[int], folder, least: int) -> tuple[Tapped, dict, tuple[str, ...]]:
    """A job of three organisations; in the north the first has three sites, and the others ``theirs``."""
    rng, t = np.random.default_rng(2), np.arange(L)
    level = 1 + 0.8 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * t / 12)
    level = level + 0.2 * rng.normal(size=(J, 1)) * (t / 12 - 3)
    seen = rng.random((J, L)) < 0.5
    site, month = np.nonzero(seen)
    y = rng.poisson(np.exp(level) * rng.gamma(3, 1 / 3, (J, L)))[seen].astype(float)
    groups = [Group.of(f"owner-{k}", site[at], month[at], y[at]) for k in range(3) for at in [site % 3 == k]]
    region = np.where(np.isin(np.arange(J), [0, 3, 6, *theirs]), "north", "south").astype(object)
    ids = np.array([f"S{j}" for j in range(J)], dtype=object)
    panel = GroupPanel.of(J, L, groups, calendar(L), ids, region)
    programs = {name: club.program() for name, club in clubs_of(panel, folder).items()}
    for program in programs.values():
        program.minimum = least
    tap = Tapped(programs)
    plan = DataSpec(jointly=True, minimum=LEAST)
    result = run_job(Link(tap, JOB[:8], SETTINGS), JobSpec(plan, [CountSettings(rank=0)], bootstrap=0))
    return tap, programs, tuple(result.facts.regions)


@pytest.mark.parametrize(
    ("theirs", "kept"), [([1, 2], False), ([1, 2, 4, 5], False), ([1, 2, 4, 5, 7], True)]
)
def test_a_region_has_the_least_number_of_sites_without_any_organisation(tmp_path, theirs, kept):
    assert ("north" in job_of(theirs, tmp_path, LEAST)[2]) == kept


def test_months_of_a_region_would_tell_what_is_expected_at_each_of_two_sites(tmp_path):
    """To a member whose own sites are the rest of the region; months' coefficients are known to all."""
    tap, programs, regions = job_of([1, 2], tmp_path, 2)
    q, answers = next(
        (q, a) for q, a in zip(tap.asked, tap.told, strict=True) if isinstance(q, msg.Totals) and not q.drawn
    )
    x = next(q.line for q in tap.asked if isinstance(q, msg.Open))
    sums = sum(np.rint(a.totals[0, 1 + regions.index("north")] * 2.0**30) for a in answers[1:]) * 2.0**-30
    month = np.exp(q.mu[0] + q.T[0, :, 0] + 0.5 * q.D[0, :, 0]) * q.smear[0]
    powers = np.stack([np.ones(L), x, x**2])

    def lacking(v):
        return 1e6 * (np.log(np.exp(v.reshape(2, 3) @ powers).sum(axis=0)) - np.log(sums / month))

    ends = []
    for seed in range(40):  # most starts creep
        start = np.random.default_rng(seed).normal(0, [0.5, 0.1, 0.01], (2, 3))
        start[:, 0] += np.log((sums / month).mean() / 2)
        ends.append(least_squares(lacking, start.ravel(), max_nfev=200, xtol=1e-15, ftol=1e-15, gtol=1e-15))
        if ends[-1].cost < 1e-5:
            break
    found = month * np.exp(min(ends, key=lambda end: end.cost).x.reshape(2, 3) @ powers)
    true = []
    for name, site in (("owner-1", "S1"), ("owner-2", "S2")):
        batch, j = programs[name].batches[q.batch], list(programs[name].visits.site_id).index(site)
        at, cov = batch.site_mean[0, j], batch.site_cov[0, j]
        both = np.stack([np.ones(L), x])
        true.append(month * np.exp(at @ both + 0.5 * np.einsum("al,ab,bl->l", both, cov, both)))
    order = [np.argsort([one.mean() for one in series]) for series in (found, true)]
    np.testing.assert_allclose(found[order[0]], np.array(true)[order[1]], rtol=0.02)
