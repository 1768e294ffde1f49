"""A region's expected counts, month by month, are equations of what is expected at each of its sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

from fedmiss.federation import messages as msg
from fedmiss.federation import rules
from fedmiss.federation.hub import support
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, clubs_of, tapped
from tests.federation.owners import dealt

J, L, LEAST = 60, 72, 5


def job_of(theirs: list[int], folder, least: int) -> tuple[Tapped, dict, tuple[str, ...]]:
    """A job of three organisations; in the north the first has three sites, and the others ``theirs``."""
    rng, t = np.random.default_rng(2), np.arange(L)
    site, slope = 0.8 * rng.normal(size=(J, 1)), 0.2 * rng.normal(size=(J, 1))
    # rare, or alike in their trends, they would be told together only
    site[1:3, 0], slope[1:3, 0] = 1.0, (0.3, -0.3)
    level = 1 + site + 0.3 * np.sin(2 * np.pi * t / 12) + slope * (t / 12 - 3)
    seen = rng.random((J, L)) < 0.5
    site, month = np.nonzero(seen)
    y = rng.poisson(np.exp(level) * rng.gamma(3, 1 / 3, (J, L)))[seen].astype(float)
    region = np.where(np.isin(np.arange(J), [0, 3, 6, *theirs]), "north", "south").astype(object)
    panel = dealt((J, L), site, month, y, region=region)
    tap, programs, result = tapped(panel, folder, [CountSettings(rank=0)], least=least)
    return tap, programs, tuple(result.facts.regions)


@pytest.mark.parametrize(("theirs", "kept"), [([1, 2, 4, 5], False), ([1, 2, 4, 5, 7], True)])
def test_a_region_has_the_least_number_of_sites_without_any_organisation(tmp_path, theirs, kept):
    assert ("north" in job_of(theirs, tmp_path, LEAST)[2]) == kept


def test_months_of_a_region_would_tell_what_is_expected_at_each_of_two_sites(tmp_path):
    """To a member whose own sites are the rest of the region; months' coefficients are known to all."""
    tap, programs, regions = job_of([1, 2], tmp_path, 2)
    q, answers = next((q, a) for q, a in tap.of(msg.Totals) if not q.drawn)
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
    np.testing.assert_allclose(found[order[0]], np.array(true)[order[1]], rtol=1e-3)


def without_a_visit(held, kind: str):
    """Visits of a club that lists one site more, of no region: in a frame, or seen once without a number."""
    more = replace(held, site_id=np.append(held.site_id, ["lone"]), region=np.append(held.region, [""]))
    if kind == "frame":
        return replace(more, frame=True)
    once = more.take(np.append(np.arange(held.site.size), [0]))
    once.site[-1], once.count[-1], once.detected[-1] = held.site_id.size, np.nan, True
    return once


@pytest.mark.parametrize("kind", ["frame", "X"])
@pytest.mark.parametrize("rule", [False, True])
def test_regions_would_leave_of_the_whole_one_site_that_no_visit_of_takes_part(
    kind, rule, tmp_path, monkeypatch
):
    """Whoever reads the joint result would have what is expected there, hence its covariates."""
    if not rule:
        monkeypatch.setattr(
            support, "kept_regions", lambda *of: rules.kept_regions(*of[:2], np.r_[0, of[2][1:]], *of[3:])
        )
    rng = np.random.default_rng(2)
    site, at = np.nonzero(rng.random((J, L)) < 0.5)
    y = rng.poisson(np.exp(1 + 0.8 * rng.normal(size=J))[site]).astype(float)
    names = np.array(["north", "south", "west"], dtype=object)[rng.integers(0, 3, J)]
    clubs = clubs_of(dealt((J, L), site, at, y, region=names), tmp_path)
    clubs["owner-1"].visits = without_a_visit(clubs["owner-1"].visits, kind)
    tap, _, result = tapped(clubs, tmp_path, [CountSettings(rank=0)])
    regions = len(result.facts.regions)
    left = result.totals[0] - result.totals[1 : 1 + regions].sum(axis=0)
    q = next(q for q, _ in tap.of(msg.Totals) if not q.drawn)
    month = np.exp(q.mu[0] + q.T[0, :, 0] + 0.5 * q.D[0, :, 0]) * q.smear[0]
    assert regions == (2 if rule else 3)
    assert (left > 5 * month).all() if rule else (left < 3 * month).all()  # of at least five sites, or of one
