"""By month a fit tells sums of means, of their squares and of weights: of three sites each one's, hence their counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import least_squares

from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped
from tests.federation.owners import dealt

J, L = 90, 36
THIN = np.arange(2, L, 3)  # months in which the others went to few sites, once each
MODEL = CountSettings(rank=0, slopes=False, dispersion="negbin")


KINDS = (lambda q: isinstance(q, msg.Predict) and q.months, lambda q: isinstance(q, msg.Solve))


def job_of(
    sites: int, seed: int, folder, models=(MODEL,), often: int = 1, **more
) -> tuple[Tapped, list[np.ndarray]]:
    """A job of three organisations; what crossed, and the others' counts of every thin month, ``often`` at each site."""
    rng = np.random.default_rng(seed)
    there, owner = rng.random((J, L)) < 0.5, np.arange(J) % 3
    for month in THIN:
        there[owner > 0, month] = False
        for k, n in ((1, (sites + 1) // 2), (2, sites // 2)):
            there[rng.choice(np.flatnonzero(owner == k), n, replace=False), month] = True
    site, month = np.repeat(np.nonzero(there), often, axis=1)
    level = np.exp(1 + 0.8 * rng.normal(size=J))
    y = rng.poisson(level[site] * rng.gamma(2, 0.5, site.size)).astype(float)
    plan = DataSpec(jointly=True, minimum=5, share=0.95)
    tap, _, _ = tapped(dealt((J, L), site, month, y), folder, models, plan, **more)
    return tap, [np.sort(y[(month == at) & (owner[site] > 0)]) for at in THIN]


def ends(tap: Tapped) -> tuple:
    """Questions of the last round and of the fit's end, and the others' sums by month of both."""
    asked = list(zip(tap.asked, tap.told, strict=True))
    end, last = (max(i for i, (q, _) in enumerate(asked) if kind(q)) for kind in KINDS)
    return asked[last][0], asked[end][0], *(sum(a.months[0] for a in asked[i][1][1:]) for i in (last, end))


def counts_of(at: int, last, end, rounds: np.ndarray, sums: np.ndarray, n: int) -> tuple[np.ndarray, float]:
    """The counts of a month's ``n`` sites, and the chance of a guess among those that have their sum."""
    moved = last.mu[0] - end.mu[0] + last.T[0, at, 0] - end.T[0, at, 0]
    moved += 0.5 * (last.D[0, at, 0] - end.D[0, at, 0])
    moved, size, then = np.exp(moved + end.shift[0, 0]), end.inverse_size[0], last.inverse_size[0]
    (residuals, curvature), (_, counted, fitted, variance) = rounds[at, :2], sums[at, :4]

    def lacking(v):
        mean = np.exp(v)
        before = moved * mean
        told = [mean.sum(), (mean + size * mean**2).sum(), (before / (1.0 + then * before)).sum()]
        return 1e3 * (np.array(told) - [fitted, variance, curvature])

    starts = np.log(fitted / n) + np.random.default_rng(at).normal(0, 0.6, (12, n))
    found = min(
        (least_squares(lacking, x, xtol=1e-15, ftol=1e-15, gtol=1e-15) for x in starts), key=lambda e: e.cost
    )
    weight = 1.0 / (1.0 + then * moved * np.exp(found.x))
    tried = np.array([c for c in product(range(round(counted) + 1), repeat=n) if sum(c) == round(counted)])
    best = tried[np.abs(tried @ weight - residuals - curvature).argmin()]
    return np.sort(best), 1.0 / len(np.unique(np.sort(tried), axis=0))


@pytest.mark.parametrize(("sites", "released"), [(3, False), (4, True)])
def test_a_month_in_which_the_others_went_to_three_sites_is_withheld(sites, released, tmp_path):
    sums = ends(job_of(sites, 1, tmp_path)[0])[3]
    assert ((sums[THIN, 0] > 0) == released).all()


@pytest.mark.parametrize(("by", "often", "folds", "went"), [("cell", 1, 2, 9), ("visit", 3, 3, 4)])
def test_what_a_fold_leaves_in_of_a_month_is_of_four_sites_of_the_others_too(
    by, often, folds, went, tmp_path, monkeypatch
):
    """Of two folds each is told the sums of the other; a site whose visits lie in several folds is one site."""
    left_in = {agreement.SITES_LEFT: np.zeros(0), 0: np.zeros(0)}
    models = (MODEL, replace(MODEL, rank=1))
    for least, seed in product(left_in, range(3 if by == "visit" else 1)):
        monkeypatch.setattr(agreement, "SITES_LEFT", least)
        tap, _ = job_of(went, seed, tmp_path / f"{least} {seed}", models, often, folds=folds, by=by)
        opened = next(q for q in tap.asked if isinstance(q, msg.Open) and q.weights == "fold")
        kept, fewest = opened.released == 1, np.full(L, np.inf)
        for fold in range(folds):
            sites = np.zeros(L)
            for name in ("owner-1", "owner-2"):
                program = tap.programs[name]
                used = program.need()
                here = program.fold_of(by, folds, opened.seed, used) != fold
                cells = np.unique(used.month[here].astype(int) * program.J + used.site[here])
                sites += np.bincount(cells // program.J, minlength=L)
            fewest = np.minimum(fewest, sites)
        left_in[least] = np.append(left_in[least], fewest[THIN][kept[THIN]])
    with_rule, without = left_in.values()
    assert with_rule.size or by == "visit"
    assert with_rule.min(initial=4) >= 4 > without.min()


@pytest.mark.slow
@pytest.mark.parametrize(("sites", "share"), [(2, 0.8), (3, 0.3)])
def test_counts_of_a_month_s_two_or_three_sites_would_be_told(sites, share, tmp_path, monkeypatch):
    """Without a word of who went where. Of four sites they are found as often as by chance."""
    monkeypatch.setattr(agreement, "SITES_LEFT", 0)
    got = []
    for seed in range(2):
        tap, true = job_of(sites, seed, tmp_path / str(seed))
        for at, counts in zip(THIN, true, strict=True):
            found, chance = counts_of(at, *ends(tap), sites)
            # else a guess is nearly as good
            got += [((found == counts).all(), chance)] if chance <= 0.2 else []
    right, chance = np.mean(got, axis=0)
    assert right > share > 3 * chance
