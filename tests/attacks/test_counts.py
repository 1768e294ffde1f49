"""What the page on privacy gives up: where the others' sites are few, all rounds of a fit together tell every single count.

The levels of sites in a round follow from its curvatures, the weights of their visits from the levels, and the sums of
weighted counts by month, and by site from its step, are then linear in the counts: of the negative binomial too.
"""

import numpy as np
import pytest
from scipy.optimize import least_squares

from fedmiss.federation import messages as msg
from fedmiss.federation.group.answers import ANSWER
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import tapped
from tests.federation.owners import dealt

J, L = 12, 48
UNIT = 2.0**-32  # of a masked number of ``Months``
EXACT, SCORE = 1e6, 3e4  # weights of equations: sums by month, and scores of sites, which lose digits


def clubs(seed: int, visited: float) -> GroupPanel:
    """Counts of three organisations: each site is visited in this share of the months, once."""
    rng = np.random.default_rng(seed)
    level, month = 1.0 + rng.normal(size=J), 0.3 * np.sin(np.arange(L) / 2) + 0.1 * rng.normal(size=L)
    seen = rng.random((J, L)) < visited
    y = rng.poisson(np.exp(level[:, None] + month) * rng.gamma(2.0, 0.5, (J, L))).astype(float)
    site, at = np.nonzero(seen)
    return dealt((J, L), site, at, y[site, at])


def told(panel: GroupPanel, folder, settings: CountSettings):
    """Questions, sums of the two others, and their visits and birds (sites, months), which the attacker has not."""
    tap, programs, _ = tapped(panel, folder, [settings])
    months = next(q for q in tap.asked if isinstance(q, msg.Axes)).months.size
    visits, birds = [], []
    for used in (programs[name].used for name in ("owner-1", "owner-2")):
        for j in np.unique(used.site):
            own = used.site == j
            visits.append(np.bincount(used.month[own], minlength=months).astype(float))
            birds.append(np.bincount(used.month[own], used.count[own], minlength=months))
    return list(zip(tap.asked, tap.told, strict=True)), np.array(visits), np.array(birds)


def levels(E: np.ndarray, line: np.ndarray, wanted: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Levels of sites at which their expected counts (sites, months) add up to those ``wanted`` by month."""
    scale = 1.0 / np.sqrt(wanted + 1e-3)
    end = least_squares(
        lambda x: ((E * np.exp(line + x[:, None])).sum(axis=0) - wanted) * scale,
        start,
        jac=lambda x: (E * np.exp(line + x[:, None])).T * scale[:, None],
        method="lm", xtol=1e-15, ftol=1e-15, gtol=1e-15,
    )  # fmt: skip
    return end.x


def share_of(
    y: np.ndarray, E: np.ndarray, m: np.ndarray, A: np.ndarray, phi: float, inverse_size: float
) -> np.ndarray:
    """What sites take of their steps (``kernels._share``), where their counts are known nearly."""
    res = y - m
    bends = np.where(res > m, res * inverse_size * m / np.maximum(E + inverse_size * m, 1e-300), 0.0)
    return 1.0 / (1.0 + A * bends.sum(axis=1) / phi)


def equations(asked, n: np.ndarray, birds: np.ndarray):
    """Linear equations of the counts of visited cells: matrix, sums, weights; and the expected counts at the end.

    ``birds`` (sites, months): what the attacker holds the counts for, of which the length of the steps follows.
    """
    cells = np.argwhere(n > 0)
    site, month = cells.T
    P, C, w, old, rows = np.zeros(len(n)), np.zeros(len(n)), np.ones_like(n), False, []
    eta = np.zeros_like(n)
    for q, answers in asked:
        if isinstance(q, msg.Predict) and q.months:
            counted = sum(a.months[0, :, 1] for a in answers[1:])
            rows += [((month == t) * 1.0, counted[t], EXACT) for t in np.unique(month)]
        if not isinstance(q, msg.Solve):
            continue
        sums = np.rint(sum(a.months[0] for a in answers[1:]) / UNIT) * UNIT
        line, tau, phi = q.mu[0] + q.T[0, :, 0] + 0.5 * q.D[0, :, 0], q.tau[0, 0], q.phi[0]
        P = P - q.shift[0, 0]
        if q.begin:
            eta = line + (P + 0.5 * C)[:, None]
        if (q.begin or q.refill[0]) and q.inverse_size[0] > 0:
            new = 1.0 / (1.0 + np.exp(eta) * q.inverse_size[0])
            w, old = (np.sqrt(w * new) if old else new), True
        E = w * n
        cell = E * np.exp(line + (P + 0.5 * C)[:, None])
        m = cell.sum(axis=1)
        A = 1.0 / (m / phi + 1.0 / tau)
        share = share_of(w * birds, E, cell, A, phi, q.inverse_size[0])
        C = C + np.minimum(1.0, 2.0 / (1.0 + np.maximum(C, A) * (1.0 - A / tau))) * (A - C)
        before, P = P, levels(E, line + 0.5 * C[:, None], sums[:, 1], P)
        eta = line + (P + 0.5 * C)[:, None]
        # Newton's step of a site: step / (share A) = (counted - m) / phi - P / tau
        counted = m + phi * ((P - before) / (share * A) + before / tau)
        short = np.abs(P - before) < 0.999 * FAMILIES["poisson"].max_step
        rows += [(np.where(site == j, w[site, month], 0.0), counted[j], SCORE) for j in np.flatnonzero(short)]
        rows += [(np.where(month == t, w[site, month], 0.0), sums[t].sum(), EXACT) for t in np.unique(month)]
    return (*(np.array(part) for part in zip(*rows, strict=True)), np.exp(eta)[site, month])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_rounds_of_the_negative_binomial_tell_every_count_where_the_others_have_few_sites(seed, tmp_path):
    """Eight sites of two others in 48 months; least number 5. Who knows only what is expected is seldom right."""
    settings = CountSettings(rank=0, slopes=False, dispersion="negbin")
    asked, visits, birds = told(clubs(seed, 0.67), tmp_path, settings)
    guess = np.zeros_like(visits)
    for _ in range(4):
        A, sums, weight, mean = equations(asked, visits, guess)
        spread = np.sqrt(mean + 0.5 * mean**2) + 0.2
        found = mean + spread * np.linalg.lstsq(
            np.vstack([A * spread * weight[:, None], np.eye(mean.size)]),
            np.r_[(sums - A @ mean) * weight, np.zeros(mean.size)],
        )[0]  # fmt: skip
        guess[visits > 0] = np.maximum(found, 0.0)
    true = birds[visits > 0]
    assert true.size > 150
    assert (np.rint(mean) == true).mean() < 0.4
    assert (np.rint(found) == true).mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("sites", "visited", "told_all"), [(60, 0.3, True), (48, 0.67, False)])
def test_who_knows_the_levels_is_told_all_counts_where_fewer_sites_are_visited_in_a_month_than_rounds_are_made(
    sites, visited, told_all, tmp_path, monkeypatch
):
    """Forty sites of two others, 12 of them visited in a month, and 17 rounds; of 32 sites 21 are."""
    monkeypatch.setitem(globals(), "J", sites)
    at: dict[str, list[np.ndarray]] = {"owner-1": [], "owner-2": []}

    solved = ANSWER[msg.Solve]

    def solve(program, batch, q):
        out = solved(program, batch, q)
        at.get(program.name, []).append(batch.site_mean[0, :, 0].copy())
        return out

    monkeypatch.setitem(ANSWER, msg.Solve, solve)
    settings = CountSettings(rank=0, slopes=False, dispersion="negbin")
    asked, visits, birds = told(clubs(1, visited), tmp_path, settings)
    known = iter([np.concatenate(both) for both in zip(*at.values(), strict=True)])
    monkeypatch.setitem(globals(), "levels", lambda E, line, wanted, start: next(known))
    A, sums, weight, mean = equations(asked, visits, birds)
    spread = np.sqrt(mean + 0.5 * mean**2) + 0.2
    scaled = A * spread * weight[:, None]
    H, lacking = scaled.T @ scaled + np.eye(mean.size), (sums - A @ mean) * weight
    found = mean + spread * np.linalg.solve(H, scaled.T @ lacking)
    sure = spread * np.sqrt(np.diag(np.linalg.inv(H))) < 0.2
    right = (np.rint(found) == birds[visits > 0]).mean()
    assert (sure.mean() > 0.95) == told_all
    assert right > 0.95 or not told_all
