"""Algorithm 7: the sparse form against a dense one, and against the direct solver; its M-step; its minibatches."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, Late, Minibatch, Roster, SemVr, Spider, revise, run
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError, InputError
from fedmiss.models.lowrank import paper_step
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import family_of
from fedmiss.models.lowrank.paper import FedMissEM, thresholded_svd
from fedmiss.models.lowrank.paper_step import MStep, fit_observed
from tests.core.one_by_one import same_everywhere

from .panels import simulate

FAMILIES = ("gaussian", "poisson", "bernoulli")


def one_visit_per_cell(panel, L):
    """Keep the first visit of each group to each cell: then sums over visits are sums over cells."""
    out = []
    for g in panel.groups:
        first = np.unique(g.site.astype(np.int64) * L + g.month, return_index=True)[1]
        out.append(Group.of(g.name, g.site[first], g.month[first], g.count[first], g.observer[first]))
    return GroupPanel.of(panel.J, panel.L, out, panel.calendar)


def setting(family, penalty=0.5, rank=2, **kw):
    panel, _ = simulate(J=15, L=8, n=90, family=family, groups=3, level=0.2, **kw)
    panel = one_visit_per_cell(panel, panel.L)
    model = FedMissEM(panel, family=family, rank=rank, penalty=penalty)
    rows = model.rows(panel)
    return panel, model, [rows[k] for k in sorted(rows)]


def em_step(model, data, S, carry, gamma):
    theta = model.T(S, carry)
    H = np.mean([model.s_bar(theta, r) for r in data], axis=0) - S
    return theta, H, S + gamma * H, model.advance(carry, theta, gamma)


def dense_statistic(model, S, carry):
    out = carry["A"] @ carry["B"].T
    out[model.row, model.col] += S
    return out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gamma", [pytest.param(1.0, marks=pytest.mark.slow), 0.3])
def test_sparse_form_is_the_dense_algorithm(family, gamma):
    _, model, data = setting(family)
    S, carry = np.zeros(model.q), model.carry_start(np.zeros(model.q))
    dense = dense_statistic(model, S, carry)
    for _ in range(60):  # longer than it takes to recompress the companion once
        theta, H, S, carry = em_step(model, data, S, carry, gamma)
        M = family_of(family).mean(theta.U @ theta.V.T)
        s_bar = np.zeros_like(M)
        for rows in data:
            s_c = M.copy()
            at = rows[:, 0].astype(int)
            s_c[model.row[at], model.col[at]] = rows[:, 1]  # Y_c on Omega_c, psi' elsewhere
            s_bar += s_c / len(data)
        before = carry
        dense_h = s_bar - dense
        dense = dense + gamma * dense_h
        np.testing.assert_allclose(dense_statistic(model, S, before), dense, atol=1e-8)
    theta, H, S, after = em_step(model, data, S, carry, gamma)
    M = family_of(family).mean(theta.U @ theta.V.T)
    h = dense_statistic(model, S, after) - dense
    assert model.h_norm2(H, carry, theta) == pytest.approx((h**2).sum() / gamma**2, rel=1e-4, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_em_never_raises_the_objective_and_ends_where_the_direct_solver_does(family):
    panel, model, data = setting(family, penalty=1.0)
    S, carry = np.zeros(model.q), model.carry_start(np.zeros(model.q))
    values = []
    for _ in range(500):
        theta, H, S, carry = em_step(model, data, S, carry, 1.0)
        values.append(model.objective(theta, data))
    assert max(np.diff(values)) <= 1e-9 * abs(values[-1])
    U, V, best = fit_observed(panel, family=family, rank=2, penalty=3 * 1.0)
    assert values[-1] == pytest.approx(best / 3, rel=1e-6)
    np.testing.assert_allclose(theta.U @ theta.V.T, U @ V.T, atol=2e-3)
    assert model.h_norm2(H, carry, theta) < 1e-6


@pytest.mark.parametrize("shape", [(70, 60), (60, 70), (9, 5)])
def test_thresholded_svd_by_lanczos_equals_dense(shape):
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(shape[0], 3)), rng.normal(size=(shape[1], 3))
    E = sp.random_array(shape, density=0.1, rng=rng, format="csr")
    got = thresholded_svd(A, B, E, 2, 0.7)
    P, s, Qt = np.linalg.svd(A @ B.T + E.toarray(), full_matrices=False)
    np.testing.assert_allclose(got.U @ got.V.T, (P[:, :2] * (s[:2] - 0.7)) @ Qt[:2], atol=1e-7)
    np.testing.assert_allclose(got.U.T @ got.U, got.V.T @ got.V, atol=1e-7)


def test_vectorised_plain_and_resumed_runs_have_the_same_bits(tmp_path):
    _, model, data = setting("gaussian")
    settings = {"gamma": 0.3, "participation": Bernoulli(0.6), "oracle": Minibatch(10), "seed": 3}
    algo = FedEM(model, Dithering(levels=4), Roster.of([len(rows) for rows in data]), **settings)
    same_everywhere(algo, data, np.zeros(model.q), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [Identity(), Dithering(levels=8)])
def test_compressed_partial_runs_reach_the_same_optimum(compressor):
    panel, model, data = setting("gaussian", penalty=1.0)
    rows = model.rows(panel)
    roster = Roster.of({name: len(row) for name, row in rows.items()})
    algo = FedEM(model, compressor, roster, gamma=0.2, participation=Bernoulli(0.5), seed=1)
    result = run(algo, LocalEngine(rows), np.zeros(model.q), stop=3000)
    best = fit_observed(panel, family="gaussian", rank=2, penalty=3.0)[2]
    assert model.objective(result.theta, data) == pytest.approx(best / 3, rel=1e-4)
    assert result.trace["h_norm2"][-1] < 1e-8


# ---- the M-step ends at a minimum, and a minibatch counts as its setting says -------------------------------------------


def problem(family, rank, seed, J=24, L=11):
    """A start and a statistic psi'(U V') + sparse residuals, as the server holds it."""
    rng, kind = np.random.default_rng(seed), family_of(family)
    U, V = 0.5 * rng.standard_normal((J, rank)), 0.5 * rng.standard_normal((L, rank))
    mean = kind.mean(U @ V.T)
    seen = rng.random((J, L)) < 0.3
    drawn = rng.poisson(mean) if family == "poisson" else rng.random((J, L)) < mean
    sparse = np.where(seen, 0.5 * (drawn - mean), 0.0)
    left, s, right = np.linalg.svd(mean, full_matrices=False)
    return kind, U, V, left * s, right.T, sparse


def dense(kind, U, V, S, penalty):
    """Objective and gradient, with every matrix formed."""
    E = U @ V.T
    D = kind.mean(E) - S
    value = (kind.psi(E) - S * E).sum() + 0.5 * penalty * ((U**2).sum() + (V**2).sum())
    return value, D @ V + penalty * U, D.T @ U + penalty * V


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("penalty", [0.02, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_zero_to_rounding_and_the_objective_has_not_risen(family, rank, penalty, seed):
    kind, U, V, A, B, sparse = problem(family, rank, seed)
    S = A @ B.T + sparse
    u, v = MStep(kind, penalty, sp.csr_array(sparse), A, B).minimise(U, V)
    value, gu, gv = dense(kind, u, v, S, penalty)

    def terms(U, V):
        mean = kind.mean(U @ V.T)
        return np.hypot(np.linalg.norm(mean @ V), np.linalg.norm(mean.T @ U))

    scale = max(terms(U, V), terms(u, v))
    assert np.hypot(np.linalg.norm(gu), np.linalg.norm(gv)) <= 3e-12 * scale
    assert value <= dense(kind, U, V, S, penalty)[0]


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("block", [2_000_000, 60])
def test_one_side_is_what_both_sides_give_for_it(monkeypatch, family, block):
    monkeypatch.setattr(paper_step, "BLOCK", block)
    kind, U, V, A, B, sparse = problem(family, 2, 0)
    step = MStep(kind, 0.1, sp.csr_array(sparse), A, B)
    for side in (0, 1):
        np.testing.assert_allclose(step._slope(U, V, side), step.gradient(U, V)[side], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(step._curvature(U, V, (side,))[0], step._curvature(U, V)[side], rtol=1e-12)


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("seed", range(3))
def test_the_minimum_is_that_of_a_plain_minimiser_of_the_dense_objective(family, seed):
    """Both start at the M-step's answer moved a little, so that they are in one valley."""
    kind, U, V, A, B, sparse = problem(family, 1, seed, J=7, L=5)
    S, shape = A @ B.T + sparse, (U.shape, V.shape)
    u, v = MStep(kind, 0.1, sp.csr_array(sparse), A, B).minimise(U, V)

    def split(x):
        return x[: U.size].reshape(shape[0]), x[U.size :].reshape(shape[1])

    def f(x):
        value, gu, gv = dense(kind, *split(x), S, 0.1)
        return value, np.concatenate([gu.ravel(), gv.ravel()])

    x = np.concatenate([u.ravel(), v.ravel()])
    moved = x + 0.02 * np.random.default_rng(seed).standard_normal(x.size)
    found = minimize(f, moved, jac=True, method="BFGS", options={"gtol": 1e-9})
    p, q = split(found.x)
    assert abs(found.fun - f(x)[0]) <= 1e-9 * (1 + abs(found.fun))
    np.testing.assert_allclose(u @ v.T, p @ q.T, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
@pytest.mark.parametrize(("batch", "weight"), [(None, "m"), (5, "b"), (10_000, "m")])
def test_a_minibatch_has_the_mean_that_its_setting_says(family, batch, weight):
    """full: the whole statistic; paper: b / m of it. The tolerance is five standard errors of the mean of the draws."""
    rng, cells = np.random.default_rng(1), np.arange(80)
    kinds = {"poisson": lambda n: rng.poisson(2.0, n), "bernoulli": lambda n: rng.random(n) < 0.4}
    draw = kinds.get(family, rng.standard_normal)
    held = [rng.permutation(cells)[:n] for n in (23, 41)]
    groups = [Group.of(f"g{c}", k // 8, k % 8, draw(k.size).astype(float)) for c, k in enumerate(held)]
    panel = GroupPanel.of(10, 8, groups)
    model = FedMissEM(panel, family=family, rank=1)
    rng, draws, b = np.random.default_rng(0), 4000, 5
    for name, whole in model.rows(panel).items():
        rows = model.rows(panel, batch)[name]
        m = len(whole)
        full = model.s_bar(model.start, whole)
        got = np.array([model.s_bar(model.start, rows[rng.integers(0, m, b)]) for _ in range(draws)])
        want = full if weight == "m" else full * b / m
        error = got.std(axis=0, ddof=1) / np.sqrt(draws)
        assert (np.abs(got.mean(axis=0) - want) <= 5 * error + 1e-12).all()
        assert m > 2 * b


@pytest.mark.parametrize(
    "oracle", [Spider(4, 5), Late(Minibatch(4)), SemVr(4, 5)], ids=["vr", "late", "semvr"]
)
def test_oracles_that_need_the_statistic_alone_are_refused_at_once(oracle):
    """A TypeError at the second round, or when a checkpoint was resumed."""
    panel, _ = simulate(J=6, L=4, n=30, family="gaussian", groups=2)
    model = FedMissEM(panel, family="gaussian", rank=1)
    roster = Roster.of({name: len(r) for name, r in model.rows(panel).items()})
    with pytest.raises(ConfigError, match="needs a model whose T depends on S only"):
        FedEM(model, Identity(), roster, gamma=0.5, oracle=oracle)


def test_a_run_that_grows_beyond_all_sense_ends_with_the_next_move():
    """The mean of a Poisson count is bounded far away: all numbers stayed finite, and the run ended as done."""
    _, model, data = setting("poisson")
    algo = FedEM(
        model, Dithering(levels=1), Roster.of([len(rows) for rows in data]), gamma=0.5,
        participation=Bernoulli(0.6), oracle=Minibatch(5),
    )  # fmt: skip
    with pytest.raises(DomainError, match=r"round \d+: .* diverged with gamma=0.5. Lower gamma \(try 0.1\)"):
        run(algo, LocalEngine(data), np.zeros(model.q), stop=60)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda rows: rows[:, :2], r"worker '1': its rows have the shape \(\d+, 2\)"),
        (lambda rows: np.add(rows, [1000, 0, 0]), "worker '1': row 0 is of the cell 10"),
    ],
)
def test_rows_of_another_panel_are_refused_and_their_owner_is_named(spoil, said):
    _, model, data = setting("gaussian")
    algo = FedEM(model, Identity(), Roster.of([len(rows) for rows in data]), gamma=0.5)
    with pytest.raises(InputError, match=said):
        run(algo, LocalEngine([data[0], spoil(data[1]), data[2]]), np.zeros(model.q), stop=1)


def test_another_roster_needs_a_new_run():
    """The server's companion began anew: after 200 rounds the field was as long as in the first one again."""
    panel, _ = simulate(J=6, L=4, n=30, family="gaussian", groups=2)
    model = FedMissEM(panel, family="gaussian", rank=1)
    rows = model.rows(panel)
    roster = Roster.of({name: len(r) for name, r in rows.items()})
    algo, engine = FedEM(model, Identity(), roster, gamma=1.0), LocalEngine(rows)
    result = run(algo, engine, np.zeros(model.q), stop=3)
    with pytest.raises(ConfigError, match="begin a new one, from the theta that was reached"):
        revise(algo, result.server, engine.V, roster, {})


@pytest.mark.parametrize(("site", "month"), [(0, 4), (3, 0), (-1, 0), (0, -1)])
def test_a_visit_outside_the_panel_is_no_visit_of_another_cell(site, month):
    """A month too many was counted as the first of the next site."""
    with pytest.raises(InputError, match=r"index .* is outside 0\.\."):
        GroupPanel.of(3, 4, [Group.of("a", [site, 1, 2], [month, 1, 2], [1.0, 2.0, 3.0])])


@pytest.mark.parametrize("bad", [{"rank": -1}, {"rank": 1.5}, {"penalty": -0.1}, {"penalty": np.nan}])
def test_a_rank_or_a_penalty_that_cannot_be_is_refused(bad):
    """A penalty below 0 raised singular values, and a rank below 0 was an error of numpy."""
    panel = one_visit_per_cell(*simulate(J=4, L=3, n=20, family="gaussian", groups=2)[:1], 3)
    for fit in (FedMissEM, fit_observed):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            fit(panel, **({"family": "gaussian", "rank": 1} | bad))
