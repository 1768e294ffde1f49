"""Where sites are seldom visited, the products that begin a factor would tell single counts: so they are not asked for."""

from itertools import combinations

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement, answers
from fedmiss.federation.hub import job, support
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.crossval import WHOLE
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import JOB, SETTINGS, Tapped, clubs_of
from tests.models.panels import calendar

L, J = 36, 100
MEMBER = 0  # whose sites are 0, 3, 6, ...


def seldom(seed: int) -> tuple[GroupPanel, np.ndarray]:
    """Counts (J, L) of three organisations in years, NaN where nobody was: three or four visits a site."""
    rng = np.random.default_rng(seed)
    y = np.full((J, L), np.nan)
    level, year = 1 + 0.8 * rng.normal(size=J), 0.3 * rng.normal(size=L)
    for j in range(J):
        t = rng.choice(L, rng.integers(3, 5), replace=False)
        y[j, t] = rng.poisson(np.exp(level[j] + year[t]))
    site, month = np.nonzero(~np.isnan(y))
    groups = [
        Group.of(f"owner-{k}", site[own], month[own], y[site, month][own])
        for k in range(3)
        for own in [site % 3 == k]
    ]
    return GroupPanel.of(J, L, groups, (np.full(L, 6), 1980 + np.arange(L))), y


def told(panel: GroupPanel, folder, *, least: int = 5) -> tuple[list, np.ndarray, tuple[str, ...]]:
    """Products (V, sum of the others), and what the months expect beside the site's own level; notes of the result."""
    tap = Tapped({name: club.program() for name, club in clubs_of(panel, folder).items()})
    model = CountSettings(rank=1, slopes=False)
    result = run_job(
        Link(tap, JOB[:8], SETTINGS), JobSpec(DataSpec(jointly=True, minimum=least), [model], bootstrap=0)
    )
    asked = list(zip(tap.asked, tap.told, strict=True))
    products = [
        (q.V[0], q.unit[0] * sum(a.product[0] for i, a in enumerate(answers) if i != MEMBER))
        for q, answers in asked
        if isinstance(q, msg.Product)
    ]
    end = next(q for q, _ in asked if isinstance(q, msg.Predict))
    return products, np.exp(end.T[0, :, 0] + 0.5 * end.D[0, :, 0]), result.facts.notes


def gram(products: list, pairs: np.ndarray) -> np.ndarray:
    """R'R of the others (L, L) by least squares, zero but for ``pairs`` of months that a site of theirs was visited in."""
    at = np.argwhere(np.tril(pairs))
    V, W = (np.hstack(part) for part in zip(*products, strict=True))
    L = len(pairs)
    A = np.zeros((L, V.shape[1], len(at)))
    for k, (s, t) in enumerate(at):
        A[s, :, k] = V[t]
        A[t, :, k] = V[s]
    G, found = np.zeros(pairs.shape), np.linalg.lstsq(A.reshape(-1, len(at)), W.ravel())[0]
    G[at[:, 0], at[:, 1]] = G[at[:, 1], at[:, 0]] = found
    return G


def counts_of(G: np.ndarray, at: tuple[int, ...], expected: np.ndarray) -> np.ndarray:
    """Three counts of a site from the products of its residuals: the whole numbers that one level of the site explains."""
    a, b, c = at
    first = np.sqrt(abs(G[a, b] * G[a, c] / G[b, c]))
    residual, tried = np.array([first, G[a, b] / first, G[a, c] / first]), []
    for sign in (1.0, -1.0):
        for count in range(400):
            level = (count - sign * residual[0]) / expected[a]
            y = sign * residual + level * expected[list(at)]
            if level > 0 and np.rint(y).min() >= 0:
                tried.append((np.abs(y - np.rint(y)).max(), np.rint(y)))
    return min(tried, key=lambda one: one[0])[1] if tried else np.full(3, -1.0)


def found(panel: GroupPanel, y: np.ndarray, folder, **rule) -> tuple[int, int]:
    """Sites of the others whose three counts the attack finds, of how many that were alone in three pairs of months."""
    products, expected, _ = told(panel, folder, **rule)
    seen = (~np.isnan(y[np.arange(J) % 3 != MEMBER])).astype(int)
    times = seen.T @ seen
    G, right, tried = gram(products, times > 0), 0, 0
    for j in np.flatnonzero(np.arange(J) % 3 != MEMBER):
        alone = [
            at
            for at in combinations(np.flatnonzero(~np.isnan(y[j])), 3)
            if all(times[pair] == 1 and abs(G[pair]) > 1e-6 for pair in combinations(at, 2))  # else withheld
        ]
        if alone:
            tried += 1
            right += bool((counts_of(G, alone[0], expected) == y[j, list(alone[0])]).all())
    return right, tried


@pytest.mark.slow
def test_products_would_tell_single_counts_where_sites_are_seldom_visited(tmp_path, monkeypatch):
    """To a member that knows which sites were visited when; so a study does without patterns there."""
    panel, y = seldom(1)
    monkeypatch.setattr(agreement, "COLUMNS", 0)  # the rule of too few visited sites stops patterns here, too
    products, _, notes = told(panel, tmp_path / "rule")
    assert not products
    assert any("no pattern is fitted" in note for note in notes)
    monkeypatch.setattr(job, "release_pairs", lambda link, panel, months, **how: (panel, []))
    right, tried = found(panel, y, tmp_path / "none")
    assert tried >= 20
    assert right > 0.8 * tried


def spied(monkeypatch) -> dict[tuple[int, int, str], np.ndarray]:
    """Residuals (J, L) by batch, fit and organisation, of the last product of each."""
    true = {}

    def product(program, batch, question):
        cells = batch.cells
        for fit in question.fits:
            R = np.zeros((program.J, question.V.shape[1]))
            at = np.repeat(np.arange(program.J), np.diff(cells.ptr)), cells.col
            R[at] = batch.y[fit] - batch.E[fit] * np.exp(batch.eta[fit])
            true[question.batch, int(fit), program.name] = R
        return answers.product(program, batch, question)

    monkeypatch.setitem(answers.ANSWER, msg.Product, product)
    return true


def years_of(sites: int, share: float) -> GroupPanel:
    """Fourteen years of counts of three organisations, at random ``share`` of the sites each."""
    rng = np.random.default_rng(1)
    seen = rng.random((sites, 14)) < share
    y = rng.poisson(np.exp(1.0 + rng.normal(size=(sites, 1)) + 0.3 * np.sin(np.arange(14))), seen.shape)
    site, year = np.nonzero(seen)
    groups = [
        Group.of(f"owner-{k}", site[own], year[own], y[site, year][own].astype(float))
        for k in range(3)
        for own in [site % 3 == k]
    ]
    return GroupPanel.of(sites, 14, groups, (np.full(14, 6), 1990 + np.arange(14)))


def in_folds(panel: GroupPanel, folder, monkeypatch, folds: int) -> tuple[dict, dict, dict, tuple[str, ...]]:
    """By batch and fit: residuals of each organisation, R'R of the others as a member finds it, released pairs; notes."""
    true, tap = spied(monkeypatch), Tapped({n: club.program() for n, club in clubs_of(panel, folder).items()})
    candidates = [CountSettings(rank=rank, slopes=False) for rank in (0, 1)]
    order = JobSpec(DataSpec(jointly=True, minimum=5), candidates, folds=folds, by="cell", bootstrap=0)
    notes = run_job(Link(tap, JOB[:8], SETTINGS), order).facts.notes
    products: dict[tuple[int, int], list] = {}
    released = {}
    for q, told_by in zip(tap.asked, tap.told, strict=True):
        if isinstance(q, msg.Product):
            for i, fit in enumerate(q.fits):
                others = sum(a.product[i] for k, a in enumerate(told_by) if k != MEMBER)
                products.setdefault((q.batch, int(fit)), []).append((q.V[i], q.unit[i] * others))
                released[q.batch, int(fit)] = (
                    q.pairs == 1 if q.pairs.size else np.ones((panel.L, panel.L), bool)
                )
    residuals = {at: [true[(*at, f"owner-{k}")] for k in range(3)] for at in products}
    found = {
        at: gram(given, released[at] & (both_of(residuals[at][1:]) > 0)) for at, given in products.items()
    }
    return residuals, found, released, notes


def both_of(residuals: list[np.ndarray]) -> np.ndarray:
    """How many sites have residuals in both of two months."""
    return sum(seen.T @ seen for seen in ((R != 0).astype(int) for R in residuals))


@pytest.mark.slow
@pytest.mark.parametrize(("share", "patterns"), [(0.27, False), (0.5, True)])
def test_what_folds_train_on_keeps_the_least_numbers_of_two_months(share, patterns, tmp_path, monkeypatch):
    """Five sites or more were visited in both months, and often one of them is left where two folds hold out half."""
    panel, off = years_of(150, share), np.tri(14, k=-1, dtype=bool)

    def thin(folder):
        """Of pairs of few sites in a fold the number; products of a single site of the others, and of them found; notes."""
        residuals, found, released, notes = in_folds(panel, folder, monkeypatch, folds=2)
        few = single = right = 0
        for at in [at for at in found if at[0] < WHOLE]:
            n, groups = both_of(residuals[at]), sum(both_of([R]) > 0 for R in residuals[at])
            few += int((released[at] & off & (n > 0) & ((n < 5) | (groups < 3))).sum())
            R = np.vstack(residuals[at][1:])
            for s, t in np.argwhere(released[at] & off & (both_of([R]) == 1)):
                single += 1
                right += abs(found[at][s, t] - R[:, s] @ R[:, t]) < 1e-6 * np.abs(found[at]).max()
        return few, single, right, notes

    few, single, _, notes = thin(tmp_path / "rule")
    assert (few, single) == (0, 0)
    assert any("in those that a fold trains on" in note for note in notes) != patterns
    whole = support.release_pairs
    monkeypatch.setattr(job, "release_pairs", lambda link, panel, months, **how: whole(link, panel, months))
    few, single, right, _ = thin(tmp_path / "whole")
    assert few >= 10
    assert single >= (1 if patterns else 20)
    assert right == single


@pytest.mark.slow
def test_the_whole_less_a_fold_is_no_more_than_a_guess_of_a_single_site(tmp_path, monkeypatch):
    """Not closed: the fold's fit has other residuals of the sites that it trains on, too."""
    residuals, found, released, _ = in_folds(years_of(200, 0.3), tmp_path, monkeypatch, folds=5)
    (all_of_them,) = [at for at in found if at[0] == WHOLE]
    R, guess = np.vstack(residuals[all_of_them][1:]), []
    for at in [at for at in found if at[0] < WHOLE]:
        trained = np.vstack(residuals[at][1:])
        held_out = both_of([R]) - both_of([trained])
        for s, t in np.argwhere(released[at] & np.tri(14, k=-1, dtype=bool) & (held_out == 1)):
            (j,) = np.flatnonzero((R[:, s] * R[:, t] != 0) & (trained[:, s] * trained[:, t] == 0))
            guess.append((found[all_of_them][s, t] - found[at][s, t], R[j, s] * R[j, t]))
    guessed, true = np.array(guess).T
    assert len(true) >= 10
    assert (np.abs(guessed - true) < 0.05 * np.abs(true)).mean() < 0.1
    assert np.median(np.abs(guessed / true - 1)) > 1.0


@pytest.mark.slow
def test_of_no_more_sites_than_columns_products_tell_every_residual(tmp_path, monkeypatch):
    """Three owners stand behind most pairs, but R'R has the rank of the others' sites: so no pattern is fitted there."""
    months, sites, rng = 120, 27, np.random.default_rng(1)
    seen = rng.random((sites, months)) < 0.65
    mean = np.exp(1.0 + rng.normal(size=(sites, 1)) + 0.3 * np.sin(np.arange(months) / 2))
    y = rng.poisson(mean * rng.gamma(2.0, 0.5, seen.shape)).astype(float)
    site, month = np.nonzero(seen)
    groups = [
        Group.of(f"owner-{k}", site[own], month[own], y[site, month][own])
        for k in range(3)
        for own in [site % 3 == k]
    ]
    panel = GroupPanel.of(sites, months, groups, calendar(months))
    products, _, notes = told(panel, tmp_path / "rule")
    assert not products
    assert any("visited 18 sites or fewer in the mean of the months" in note for note in notes)
    monkeypatch.setattr(agreement, "COLUMNS", 0)
    true = spied(monkeypatch)
    products, _, notes = told(panel, tmp_path / "none")
    assert products
    assert not any("no pattern" in note for note in notes)
    V, W = (np.hstack(part) for part in zip(*products, strict=True))
    R = np.vstack([true[0, 0, name] for name in ("owner-1", "owner-2")])
    R = R[np.abs(R).sum(axis=1) > 0]
    known = V.T @ W
    G = W @ np.linalg.pinv(0.5 * (known + known.T), rcond=1e-10, hermitian=True) @ W.T
    np.testing.assert_allclose(G, R.T @ R, atol=1e-6 * np.abs(G).max())
    size, span = (part[..., -len(R) :] for part in np.linalg.eigh(G))
    for own in R:
        elsewhere = span[own == 0]  # a site's residuals are in the span, and zero where it was not visited
        found = span @ np.linalg.eigh(elsewhere.T @ elsewhere)[1][:, 0]
        found /= np.sqrt((found @ span) ** 2 @ (1.0 / size))  # r' G^+ r = 1
        assert min(np.abs(found - own).max(), np.abs(found + own).max()) < 1e-4 * np.abs(own).max()
