"""Starts of several factors, of residuals that hardly differ, are together more equations than counts; one start is not."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import answers
from fedmiss.federation.hub import crossval
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.crossval import WHOLE
from fedmiss.federation.hub.fit import fit_path
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.hub.state import Start
from fedmiss.federation.link import InProcess, Link
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import JOB, SETTINGS, clubs_of, tapped
from tests.federation.owners import dealt

J, L, RANKS = 60, 20, 3  # sites of three organisations, 20 of each
LAST = "owner-2"
TRIES, ROUNDS = 8, 40
CHANCE = 1e-9  # sum of squares below which all equations hold


def panel_of(seed: int) -> GroupPanel:
    """Counts of three organisations, at nearly all sites in nearly all months."""
    rng = np.random.default_rng([seed, J, L])
    t, own = np.arange(L), rng.normal(size=(J, 1))
    wave = 0.5 * np.sin(2 * np.pi * (t / 12 + rng.random()))
    eta = 1 + 0.7 * rng.normal(size=(J, 1)) + 0.4 * np.sin(2 * np.pi * t / 12) + 0.1 * rng.normal(size=L)
    eta += own * wave
    seen = rng.random((J, L)) < 0.95
    site, month = np.nonzero(seen)
    y = rng.poisson(np.exp(eta) * rng.gamma(4.0, 0.25, (J, L)))[seen].astype(float)
    return dealt((J, L), site, month, y)


def starts(folder, monkeypatch) -> tuple[int, list, np.ndarray]:
    """How many starts there were; of those of all visits V, residuals and expected counts of the last; its counts, NaN."""
    seen: dict[tuple[int, int, int], list] = {}

    def product(program, batch, q):
        for i, at_fit in enumerate(q.fits):
            cells = batch.cells
            at = np.repeat(np.arange(program.J), np.diff(cells.ptr)), cells.col
            expected, counted = np.zeros((2, program.J, L))
            expected[at], counted[at] = batch.E[at_fit] * np.exp(batch.eta[at_fit]), batch.y[at_fit]
            if program.name == LAST:
                key = q.batch, int(at_fit), int(batch.rank[at_fit])
                seen.setdefault(key, [[], counted - expected, expected])[0].append(q.V[i])
        return answers.product(program, batch, q)

    monkeypatch.setitem(answers.ANSWER, msg.Product, product)
    programs = {n: c.program() for n, c in clubs_of(panel_of(2), folder).items()}
    models = [CountSettings(rank=rank, dispersion="quasi", slopes=False) for rank in range(RANKS + 1)]
    order = JobSpec(DataSpec(jointly=True, minimum=5), models, by="cell", bootstrap=0)
    result = run_job(Link(InProcess(programs), JOB[:8], SETTINGS), order)
    assert not any("no pattern" in note for note in result.facts.notes)
    used, counts = programs[LAST].used, np.full((J // 3, L), np.nan)
    counts[used.site, used.month] = used.count
    return len(seen), [one for at, one in sorted(seen.items()) if at[0] == WHOLE], counts


def solved(known: list, counts: np.ndarray) -> np.ndarray:
    """Counts of the last organisation that agree with its part of the starts, and with sums of sites and months.

    All others together know these, which cells were visited, and from the rounds what is expected of each. Levenberg and
    Marquardt's method, from what is expected and a random error of its size.
    """
    site, month = np.nonzero(~np.isnan(counts))
    n, one = site.size, np.arange(site.size)
    linear = np.zeros((L + J // 3, n))
    linear[month, one] = linear[L + site, one] = 0.3
    sums = linear @ counts[site, month]
    parts = []
    for vectors, R, expected in known:
        V = np.linalg.qr(np.hstack(vectors))[0]
        parts.append((V, R.T @ (R @ V), 1.0 / np.sqrt(np.diag(R.T @ R) + 1.0)[:, None], expected))

    def equations(x):
        lacking, slopes = [linear @ x - sums], [linear]
        for V, W, weight, expected in parts:
            r = np.zeros(counts.shape)
            r[site, month] = x - expected[site, month]
            T = r @ V
            lacking.append(((r.T @ T - W) * weight).ravel())
            slope = r[site].T[:, None, :] * V[month].T[None]
            slope[month, :, one] += T[site]
            slopes.append((slope * weight[:, :, None]).reshape(-1, n))
        return np.concatenate(lacking), np.vstack(slopes)

    expected = np.mean([part[3] for part in parts], axis=0)[site, month]
    sd = np.sqrt(expected + 0.3)
    for seed in range(TRIES):
        x = expected + sd * np.random.default_rng(seed).normal(size=n)
        (e, slope), damping = equations(x), 1.0
        for _ in range(ROUNDS):
            H, found = (slope * sd).T @ (slope * sd), False
            while damping < 1e9 and not found:
                step = np.linalg.solve(H + damping * 0.01 * np.trace(H) / n * np.eye(n), -sd * (slope.T @ e))
                tried, steep = equations(x + sd * step)
                found = tried @ tried < e @ e
                if found:
                    x, e, slope = x + sd * step, tried, steep
                damping = damping / 6 if found else damping * 4
            if e @ e < CHANCE:
                return x
            if not found:
                break
    raise AssertionError("no counts were found at which all equations hold")


@pytest.mark.slow
def test_starts_of_several_ranks_would_tell_all_counts_and_the_one_of_a_job_does_not(tmp_path, monkeypatch):
    """Of 20 sites, to all others together, who know which cells were visited; least number 5."""
    once, known, counts = starts(tmp_path / "rule", monkeypatch)
    true = counts[~np.isnan(counts)]
    assert (once, len(known)) == (1, 1)
    assert (np.rint(solved(known, counts)) == true).mean() < 0.25  # what is expected is right at one of five
    monkeypatch.setattr(Start, "tell", lambda start, found: None)  # each factor has a start of its own
    monkeypatch.setattr(crossval, "fit_path", lambda *a, waits, **named: fit_path(*a, **named))
    often, known, counts = starts(tmp_path / "none", monkeypatch)
    assert (often, len(known)) == (6 * RANKS, RANKS)
    assert (np.rint(solved(known, counts)) == true).all()


def test_a_revision_under_another_seed_is_no_other_start(tmp_path):
    """Vectors of its own would be 18 columns more of the same residuals, for whoever proposes revisions."""
    first = []
    for seed in (0, 7):
        models = [CountSettings(rank=rank, slopes=False, seed=seed) for rank in (0, 1)]
        tap, _, _ = tapped(panel_of(2), tmp_path / str(seed), models, by="cell", seed=seed)
        first.append(tap.of(msg.Product)[0][0].V)
    np.testing.assert_array_equal(*first)
