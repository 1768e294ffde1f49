"""Where sites are seldom visited, the products that begin a factor would tell single counts: so they are not asked for."""

from itertools import combinations

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import agreement, answers
from fedmiss.federation.hub import job
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import tapped
from tests.federation.owners import dealt

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
    plan = DataSpec(jointly=True, minimum=least)
    tap, _, result = tapped(panel, folder, [CountSettings(rank=1, slopes=False)], plan)
    products = [
        (q.V[0], q.unit[0] * sum(a.product[0] for i, a in enumerate(answers) if i != MEMBER))
        for q, answers in tap.of(msg.Product)
    ]
    end = tap.of(msg.Predict)[0][0]
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
    assert tried >= 8  # a year in which the others went to three sites is withheld
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


@pytest.mark.slow
def test_of_no_more_sites_than_columns_products_tell_every_residual(tmp_path, monkeypatch):
    """Three owners stand behind most pairs, but R'R has the rank of the others' sites: so no pattern is fitted there."""
    months, sites, rng = 120, 27, np.random.default_rng(1)
    seen = rng.random((sites, months)) < 0.65
    mean = np.exp(1.0 + rng.normal(size=(sites, 1)) + 0.3 * np.sin(np.arange(months) / 2))
    y = rng.poisson(mean * rng.gamma(2.0, 0.5, seen.shape)).astype(float)
    site, month = np.nonzero(seen)
    panel = dealt((sites, months), site, month, y[site, month])
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
