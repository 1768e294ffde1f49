"""FL-SAEM: chains against closed forms and quadrature, aggregation against EM, compression against its expected figures."""

import warnings

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, poisson

from fedmiss.compressors import Dithering, Identity, TopK
from fedmiss.core import Bernoulli, FedEM, FullBatch, Remembered, Roster, SaemSteps, em, run
from fedmiss.core.testing import check_model, check_oracle
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError
from fedmiss.experiments.saem import errors
from fedmiss.models.saem.algorithm import Smoothed, fed_saem, louis
from fedmiss.models.saem.chains import Chains, Langevin, Laplace, kappa, langevin_variance, quantize
from fedmiss.models.saem.counts import Counts, Visits, simulate_counts
from fedmiss.models.saem.months import (
    GaussMonths,
    Months,
    PoissonMonths,
    first_statistics,
    poisson_normal,
    simulate_months,
)
from tests.core.one_by_one import LossyEngine, PlainEngine, same_everywhere

# ---- the chain -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "levels", "g"),
    [
        (1, None, 0.2), (20, None, 0.8), (20, 1, 0.2), (20, 1, 0.8), (20, 4, 0.8), (400, 1, 0.05),
        (400, 4, 0.2),
    ],
)  # fmt: skip
def test_the_bias_of_the_unadjusted_chain_is_the_formula(d, levels, g):
    """Second moment over v of chains on N(0, v) in blocks of d, one block a chain."""
    rng, v, kernel, seen = np.random.default_rng(0), 2.5, Langevin(g, levels, adjust=False), []
    z = np.sqrt(v) * rng.standard_normal((max(8000 // d, 40), d))
    for k in range(360):
        z, _ = kernel.move(rng, z, np.full(d, v), lambda at: (-0.5 * at * at / v, -at / v), np.array([0]))
        if k >= 60:
            seen.append((z * z).mean() / v)
    assert np.mean(seen) == pytest.approx(langevin_variance(g, d, levels), rel=0.03)


def test_the_formula_has_the_published_values():
    expected = {(1, None, 0.2): 1.0526, (1, None, 0.8): 1.25, (20, 1, 0.2): 1.221, (20, 1, 0.8): 3.620}
    for (d, levels, g), value in (expected | {(400, 1, 0.2): 5.01}).items():
        assert langevin_variance(g, d, levels) == pytest.approx(value, rel=0.01)
    assert langevin_variance(0.8, 20, 4) == pytest.approx(1.319, abs=0.01)
    assert langevin_variance(0.8, 400, 1) == np.inf
    assert kappa(400) == pytest.approx(np.sqrt(800 / np.pi), rel=2e-3)


def check_posterior(model, theta, rows, kernel, *, M, steps, burn, seed, limit=4.0):
    """Moments of M chains are those of the E-step, to ``limit`` standard errors between chains; the share accepted."""
    rng, state, shares = np.random.default_rng(seed), model.latent_start(rows, M), []
    mean = np.zeros((M, model.q))
    for k in range(burn + steps):
        state, share = model.move(theta, rows, state, kernel, rng)
        shares.append(share)
        if k >= burn:
            mean += model.unit_totals(rows, state).sum(axis=1) / len(rows) / steps
    exact, error = model.s_bar(theta, rows), mean.std(axis=0, ddof=1) / np.sqrt(M)
    moving = error > 1e-12
    np.testing.assert_allclose(mean.mean(axis=0)[~moving], exact[~moving], atol=1e-10)
    z = (mean.mean(axis=0) - exact)[moving] / error[moving]
    assert np.abs(z).max() < limit
    return np.mean(shares), moving.sum()


@pytest.mark.slow
@pytest.mark.parametrize("levels", [None, 4, 1])
def test_the_adjusted_chain_keeps_the_posterior_whatever_the_quantizer(levels):
    """Model A: posterior means and second moments per month."""
    rows = simulate_months(1, 12, 4, counts=False, seed=1)[0]
    model, theta = GaussMonths(4), Months(np.array([1.0, 0.0, -1.0, 2.0]), np.array([0.5, 1.0, 2.0, 0.3]))
    kernel = Langevin(0.5, levels)
    assert check_posterior(model, theta, rows, kernel, M=200, steps=300, burn=100, seed=2)[1] == 8


@pytest.fixture(scope="module")
def months():
    counts = simulate_months(3, 20, 6, seed=1)
    counts[0, 0] = 500.0
    counts[1, 1] = 0.0
    model = PoissonMonths(6)
    return model, model.T(first_statistics(model, counts).mean(axis=0)), counts.reshape(-1, 6)


@pytest.mark.slow
def test_laplace_proposals_keep_the_posterior_of_counts_of_0_and_of_500_and_are_accepted(months):
    assert check_posterior(*months, Laplace(), M=40, steps=200, burn=20, seed=0)[0] > 0.9


@pytest.mark.slow
def test_a_laplace_step_leaves_little_of_langevins_correlation(months):
    model, theta, rows = months
    left = {}
    for kernel in (Laplace(), Langevin()):
        rng, state, seen = np.random.default_rng(1), model.latent_start(rows, 30), []
        for k in range(120):
            state, _ = model.move(theta, rows, state, kernel, rng)
            if k >= 20:
                seen.append(state["z"])
        z = np.array(seen) - np.mean(seen, axis=(0, 1))
        left[type(kernel)] = float((z[1:] * z[:-1]).mean() / (z * z).mean())
    assert left[Langevin] > 0.7
    assert left[Laplace] < 0.2


def test_quantizing_one_number_is_the_identity_and_zero_stays_zero():
    rng = np.random.default_rng(0)
    g, u = rng.normal(size=(5, 7)), rng.random((5, 7))
    alone = np.arange(7)
    for levels in (1, 3):
        np.testing.assert_allclose(quantize(g, u, levels, alone), g, rtol=1e-14)
    assert not quantize(np.zeros((2, 4)), u[:2, :4], 2, np.array([0, 2])).any()
    many = np.mean([quantize(g, rng.random(g.shape), 2, np.array([0, 3])) for _ in range(4000)], axis=0)
    assert np.abs(many - g).max() < 5 * np.linalg.norm(g, axis=1).max() / 2 / np.sqrt(4000)


@pytest.mark.parametrize("seed", range(2))
def test_acceptance_on_counts_is_that_of_the_guide(seed):
    model, rows = PoissonMonths(20), simulate_months(10, 12, 20, seed=seed).reshape(-1, 20)
    S = model.s_bar(Months(np.full(20, 0.8), np.full(20, 0.5)), rows)
    for _ in range(20):
        S = model.s_bar(model.T(S), rows)
    for levels, share in ((None, 0.94), (4, 0.71), (1, 0.22)):
        rng, state, shares = np.random.default_rng(seed), model.latent_start(rows, 1), []
        for _ in range(80):
            state, accepted = model.move(model.T(S), rows, state, Langevin(0.25, levels), rng)
            shares.append(accepted)
        assert np.mean(shares[30:]) == pytest.approx(share, abs=0.04)


def test_a_chain_that_leaves_the_numbers_names_the_remedy():
    data, model, roster, V = problem(2, 5, 3, seed=0)
    estep = Chains(5, 1, Langevin(50.0, adjust=False, precondition=False))
    algo = fed_saem(model, roster, Identity(), how="server", estep=estep)
    words = r"worker '\d', round \d+: .*lower its step"
    for engine in (LocalEngine, PlainEngine):
        with pytest.raises(DomainError, match=words), np.errstate(all="ignore"):
            run(algo, engine(data), V.mean(axis=0), stop=20, init="zero")


# ---- models --------------------------------------------------------------------------------------------------------


def moment(p, y, log_e, mu, var):
    def f(z):
        return z**p * poisson.pmf(y, np.exp(log_e + z)) * norm.pdf(z, mu, var**0.5)

    return quad(f, -25, 12, limit=500, points=[mu, np.log(y + 0.5) - log_e], epsabs=0)[0]


@pytest.mark.slow
def test_quadrature_is_that_of_scipy():
    for cell in ((0, 0.0, -1.0, 0.5), (3, 0.7, 1.0, 2.0), (400, 0.0, 2.0, 0.3), (0, 2.0, 1.0, 4.0)):
        values = [moment(p, *cell) for p in range(3)]
        log_p, z, z2 = poisson_normal(*map(np.array, cell))
        assert log_p == pytest.approx(np.log(values[0]), abs=1e-6)
        assert z == pytest.approx(values[1] / values[0], abs=2e-6)
        assert z2 == pytest.approx(values[2] / values[0], rel=1e-5)
    # The worst of its range by its own words: a zero, much effort, a variance of 4.
    values = [moment(p, 0, 2.0, -4.0, 4.0) for p in range(3)]
    log_p, z, z2 = poisson_normal(*map(np.array, (0, 2.0, -4.0, 4.0)))
    assert 1e-6 < abs(log_p - np.log(values[0])) < 1e-5
    assert max(abs(z - values[1] / values[0]), abs(z2 - values[2] / values[0])) < 2e-4


@pytest.mark.slow
@pytest.mark.parametrize("model", [GaussMonths(6), PoissonMonths(6)], ids=["gauss", "poisson"])
def test_models_a_and_b_obey_the_laws(model):
    """Among them: EM of model B never lowers its log-likelihood."""
    rows = simulate_months(1, 15, 6, counts=isinstance(model, PoissonMonths), seed=3)[0]
    theta = Months(np.zeros(6), np.ones(6))
    check_model(model, rows, theta)
    D = np.random.default_rng(0).normal(size=(3, 12))
    theta = Months(np.linspace(-2, 3, 6), np.linspace(0.1, 2, 6))
    np.testing.assert_allclose(model.from_wire(theta, model.to_wire(theta, D)), D, rtol=1e-10)
    with pytest.raises(DomainError, match="month 2 of 6 is -1"):
        model.T(np.r_[np.ones(6), 2.0, 0.0, 2, 2, 2, 2])


def test_twice_the_exposure_at_half_the_rate_is_the_same_likelihood():
    rows, model = simulate_months(1, 30, 5, seed=4)[0], PoissonMonths(5)
    theta = model.T(model.s_bar(Months(np.zeros(5), np.ones(5)), rows))
    exposed = np.stack([rows, np.full_like(rows, 2.0)], axis=-1)
    moved = Months(theta.beta - np.log(2.0), theta.tau2)
    assert model.log_likelihood(moved, exposed) == pytest.approx(model.log_likelihood(theta, rows), rel=1e-9)


@pytest.mark.parametrize("observers", [0, 5])
def test_model_c_m_step_is_least_squares_and_coordinates_invert(observers):
    data = simulate_counts(3, 15, 6, observers=observers, seed=5)
    rng = np.random.default_rng(0)
    one = data[0]
    rows = Visits.of(one.site, one.month, one.y, one.observer, None, rng.normal(size=(len(one), 2)))
    model = Counts(6, r=1, d=2, observers=bool(observers))
    state = model.latent_start(rows, 3)
    S = model.statistic(rows, state)
    assert S.shape == (model.q,) == (6 * (4 * 5 // 2 + 4) + 3,)
    theta = model.T(S)
    u = state["u"][0][rows.site]
    e = state["z"][0] - (state["o"][0][rows.observer] if observers else 0)
    month = np.eye(6)[rows.month]
    X = np.hstack([month, month * u[:, None], rows.x])
    fit, *_ = np.linalg.lstsq(X, e, rcond=None)
    np.testing.assert_allclose(np.r_[theta.beta, theta.w[:, 0], theta.kappa], fit, atol=1e-8)
    assert theta.s2 == pytest.approx(np.mean((e - X @ fit) ** 2), rel=1e-9)
    if observers:
        assert theta.tau2_o == pytest.approx(np.mean(state["o"][0] ** 2))
    D = rng.normal(size=(2, model.q))
    np.testing.assert_allclose(model.from_wire(theta, model.to_wire(theta, D)), D, rtol=1e-8, atol=1e-9)
    totals = model.unit_totals(rows, state).sum(axis=1)
    np.testing.assert_allclose(totals.mean(axis=0) / len(rows), S, rtol=1e-12)
    v = model.vector(theta)
    best = model.complete(v, S)
    for i in range(len(v)):
        for h in (1e-3, -1e-3):
            assert model.complete(v + h * np.eye(len(v))[i], S) <= best + 1e-12  # T is the argmax


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "M", "steps"),
    [pytest.param(Langevin(0.5), 100, 400, marks=pytest.mark.nightly), (Laplace(), 60, 200)],
)
def test_gibbs_and_chains_of_model_c_agree_with_nested_quadrature(kernel, M, steps):
    rows, model = simulate_counts(1, 10, 6, seed=6)[0], Counts(6)
    theta = model.T(model.statistic(rows, model.latent_start(rows, 1)))
    moving = check_posterior(model, theta, rows, kernel, M=M, steps=steps, burn=100, seed=1, limit=4.5)[1]
    assert moving >= 6 * 3 + 1


def test_impossible_models_are_refused():
    for make, words in (
        (lambda: Counts(4, r=5), "rank"), (lambda: Chains(0), "K=0"), (lambda: Langevin(-1.0), "gamma=-1"),
        (lambda: Langevin(levels=0), "levels=0"), (lambda: Visits.of([0], [1], [-2.0]), "negative"),
        (lambda: SaemSteps(cap=0.0), "cap"), (lambda: Langevin(over="month"), "month"), (lambda: Laplace(2.0), "df=2"),
        (lambda: Counts(3, r=2).s_bar(None, simulate_counts(1, 4, 3)[0]), "no quadrature"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            make()


# ---- aggregation ---------------------------------------------------------------------------------------------------


def problem(n, sites, L, seed):
    """Counts of model B, the model, its roster, and the first statistics of the workers."""
    data, model = simulate_months(n, sites, L, seed=seed), PoissonMonths(L)
    return data, model, Roster.of([sites] * n), first_statistics(model, data)


def test_an_exact_e_step_without_averaging_is_em():
    data, model, roster, V = problem(4, 10, 5, seed=7)
    S = V.mean(axis=0)
    algo = fed_saem(model, roster, Identity(), how="server", estep=FullBatch(), steps=SaemSteps(10**6))
    np.testing.assert_allclose(
        run(algo, LocalEngine(data), S, stop=15).server.S_hat,
        em(model, data, roster, S, rounds=15)[0],
        rtol=1e-10,
    )


def test_the_three_orders_agree_when_all_answer_and_nothing_is_compressed():
    data, model, roster, V = problem(4, 10, 5, seed=8)
    found = [
        run(
            fed_saem(model, roster, Identity(), how=how, steps=SaemSteps(10), estep=Chains(2, 2), seed=3),
            LocalEngine(data), V.mean(axis=0), stop=40, init=V if how == "memory" else "zero",
        ).server.S_hat
        for how in ("server", "memory", "error")
    ]  # fmt: skip
    np.testing.assert_allclose(found[1], found[0], rtol=1e-10)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-10)


def test_a_worker_smooths_by_its_own_number_of_answers_from_what_the_server_knows():
    data, model, roster, V = problem(3, 6, 4, seed=1)
    who, rho = Bernoulli(0.5), SaemSteps(1, 0.7, cap=0.3)
    settings = {"estep": FullBatch(), "steps": rho, "participation": who, "seed": 2}
    algo = fed_saem(model, roster, Identity(), how="memory", **settings)
    result = run(algo, LocalEngine(data), V.mean(axis=0), stop=12, init=V)
    G, answers = V.copy(), [0] * 3
    for k in range(12):
        theta = model.T(G.mean(axis=0))
        for c in who.active(2, k, 3):
            G[c] += rho(answers[c]) * (model.s_bar(theta, data[c]) - G[c])
            answers[c] += 1
    np.testing.assert_allclose(result.server.S_hat, G.mean(axis=0), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["server", "memory", "error"])
def test_chains_give_the_same_bits_on_every_engine_and_after_a_resume(how, tmp_path):
    data = simulate_counts(4, 8, 5, observers=3, seed=9)
    model, roster = Counts(5, observers=True), Roster.of([len(r) for r in data], "pooled")
    V = first_statistics(model, data)
    compressor = Identity() if how == "server" else TopK(12)
    who = Remembered(Bernoulli(0.6)) if how != "server" else Bernoulli(0.6)
    algo = fed_saem(
        model, roster, compressor, how=how, steps=SaemSteps(5, cap=0.2), participation=who, seed=4
    )
    settings = {"init": V if how == "memory" else "zero"}
    same_everywhere(algo, data, roster.weights @ V, tmp_path, stop=16, **settings)
    lossy = LossyEngine(data, loss=0.3, seed=1)
    lost = run(algo, lossy, roster.weights @ V, stop=30, **settings)
    if how != "error":
        np.testing.assert_allclose(lost.server.V, roster.weights @ lossy.V, atol=1e-12)


def test_the_oracles_obey_their_laws():
    data, model, _, V = problem(3, 6, 4, seed=1)
    for oracle in (Chains(2, 2), Smoothed(Chains(1, 1), SaemSteps(2)), Smoothed(FullBatch(), SaemSteps(2))):
        check_oracle(oracle, model, list(data), V.mean(axis=0))


def relative(S, exact):
    return np.linalg.norm(S - exact) / np.linalg.norm(exact)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1.0, pytest.param(0.5, marks=pytest.mark.nightly)])
def test_compression_has_the_expected_figures(p):
    """Exact statistics of model A, gamma = 0.2, 2,000 rounds: what keeps a memory converges, the report's Top-k does not."""
    data = simulate_months(10, 40, 20, counts=False, seed=0)
    model, roster = GaussMonths(20), Roster.of([40] * 10)
    S_0 = first_statistics(model, data).mean(axis=0)
    exact = em(model, data, roster, S_0, rounds=4000, tol=1e-28)[0]
    who = Bernoulli(p) if p < 1 else None

    def end(compressor, *, memory="field", kept=False, gamma=0.2):
        part = {} if who is None else {"participation": Remembered(who) if kept else who}
        algo = FedEM(model, compressor, roster, gamma, memory=memory, seed=1, **part)
        return relative(run(algo, LocalEngine(data), S_0, stop=2000).server.S_hat, exact)

    assert end(Identity()) < 1e-8
    assert end(TopK(10), kept=True) < 1e-8  # EF21
    if p == 1.0:
        assert end(Dithering(1)) < 1e-8
        for gamma in (0.2, 0.02):  # the report, Top-k of the statistic itself: off by what it never sends
            assert end(TopK(10), memory="bare", kept=True, gamma=gamma) > 0.3


def test_a_noisy_round_is_warned_of():
    model, roster = PoissonMonths(50), Roster.of([4] * 6)
    with pytest.warns(UserWarning, match=r"omega/\(n p\)"):
        fed_saem(model, roster, Dithering(1), how="server", participation=Bernoulli(0.25))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed_saem(model, roster, Dithering(4), how="server")
    with pytest.raises(ConfigError, match="how='both'"):
        fed_saem(model, roster, Identity(), how="both")


# ---- convergence and standard errors -------------------------------------------------------------------------------


def to_the_mle(*shape, seed):
    """As ``problem``, with the mean of the first statistics and the maximum-likelihood estimate by quadrature."""
    data, model, roster, V = problem(*shape, seed=seed)
    S_0 = V.mean(axis=0)
    return data, model, roster, S_0, model.T(em(model, data, roster, S_0, rounds=600, tol=1e-24)[0])


@pytest.mark.mc
def test_the_distance_to_the_mle_falls_like_one_over_root_rounds():
    data, model, roster, S_0, truth = to_the_mle(10, 40, 20, seed=0)
    at, distance = (100, 200, 400, 800, 1600), []
    for seed in range(4):
        algo = fed_saem(
            model, roster, Identity(), how="server", estep=Chains(5, 1), steps=SaemSteps(50, 0.7), seed=seed
        )
        result = run(
            algo, LocalEngine(data), S_0, stop=1601, init="zero",
            observe=lambda server, down: {"beta": errors(model, server.S_hat, truth)[0]},
        )  # fmt: skip
        distance.append(result.trace["beta"][list(at)])
    mean = np.mean(distance, axis=0)
    slope = np.polyfit(np.log(at), np.log(mean), 1)[0]
    assert -0.65 < slope < -0.3
    assert mean[3] < 0.053 / 5


@pytest.mark.slow
def test_saem_comes_near_the_mle_and_without_averaging_does_not():
    data, model, roster, S_0, truth = to_the_mle(6, 30, 8, seed=2)
    start = errors(model, S_0, truth)
    ends = []
    for a in (0.7, 0.0):
        algo = fed_saem(
            model, roster, Identity(), how="server", estep=Chains(5, 2), steps=SaemSteps(60, a), seed=1
        )
        end = run(algo, LocalEngine(data), S_0, stop=300, init="zero").server.S_hat
        ends.append(errors(model, end, truth))
    assert ends[0][1] < 0.3 * start[1]
    assert ends[0][1] < ends[1][1]
    assert ends[0][0] < 0.03


@pytest.mark.slow
def test_standard_errors_of_louis_are_those_of_the_likelihood():
    data, model, _, _, theta = to_the_mle(4, 30, 3, seed=3)
    v, h = model.vector(theta), 1e-3

    def value(x):
        return sum(30 * model.log_likelihood(Months(x[:3], x[3:]), rows) for rows in data)

    def bend(a, b):
        return (value(v + a + b) - value(v + a - b) - value(v - a + b) + value(v - a - b)) / (4 * h * h)

    E = h * np.eye(6)
    se = np.sqrt(np.diag(np.linalg.inv([[-bend(a, b) for a in E] for b in E])))
    found = np.sqrt(np.diag(louis(model, theta, data, rounds=150)))
    np.testing.assert_allclose(found, se, rtol=0.1)
    with pytest.raises(ConfigError, match="observed information"):
        louis(model, Months(theta.beta + 5, theta.tau2 * 30), data, rounds=20)
