"""Mixtures against textbook formulas, the M-step as an optimum, likelihoods that rise, and the edges of the domain."""

import numpy as np
import pytest

from fedmiss.core.testing import check_model
from fedmiss.errors import ConfigError, DomainError, InputError
from fedmiss.models.gmm import GMM, GMMParams, random_rows, second_moment
from tests.oracles.reference import gmm_em_step, gmm_statistic

KINDS = ("known", "tied", "full", "diag")


def case(kind, seed=0, G=3, d=2, m=90):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(m, d)) + 2.5 * rng.normal(size=(G, d))[np.arange(m) % G]
    L = rng.normal(size=(G, d, d))
    full = L @ L.transpose(0, 2, 1) + np.eye(d)
    Sigma = {"known": full[0], "tied": full[0], "full": full, "diag": np.einsum("gii->gi", full)}[kind].copy()
    model = GMM(G, d, kind, Sigma=full[0], YY=second_moment(rows))
    return model, rows, GMMParams(np.array([0.2, 0.5, 0.3]), rows[:G].copy(), Sigma, kind)


def covariances(theta):
    G = len(theta.pi)
    if theta.covariance in ("known", "tied"):
        return [theta.Sigma] * G
    return [np.diag(v) for v in theta.Sigma] if theta.covariance == "diag" else list(theta.Sigma)


def dense_log_likelihood(theta, rows):
    d = rows.shape[1]
    total = np.zeros(len(rows))
    for pi, mu, C in zip(theta.pi, theta.mu, covariances(theta), strict=True):
        r = rows - mu
        norm = np.sqrt((2 * np.pi) ** d * np.linalg.det(C))
        total += pi * np.exp(-0.5 * np.einsum("ji,ik,jk->j", r, np.linalg.inv(C), r)) / norm
    return np.log(total).mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "m"), [(0, 90), pytest.param(3, 150, marks=pytest.mark.slow)])
def test_the_laws_of_a_model(kind, seed, m):
    """Among them: T is the argmin of the surrogate, and EM never lowers the log-likelihood."""
    check_model(*case(kind, seed, m=m))


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_likelihood_is_the_density_written_out(kind):
    model, rows, theta = case(kind)
    assert model.log_likelihood(theta, rows) == pytest.approx(dense_log_likelihood(theta, rows), rel=1e-12)
    r, _ = model.responsibilities(theta, rows)
    np.testing.assert_allclose(r.sum(axis=1), 1, rtol=1e-13)
    np.testing.assert_allclose(r.mean(axis=0), model.s_bar(theta, rows)[:3], rtol=1e-12)


def test_the_statistic_and_one_em_step_are_the_textbooks():
    for kind in ("known", "tied"):
        model, rows, theta = case(kind)
        S = model.s_bar(theta, rows)
        np.testing.assert_allclose(S, gmm_statistic(theta.pi, theta.mu, theta.Sigma, rows), rtol=1e-11)
        pi, mu, Sigma = gmm_em_step(theta.pi, theta.mu, theta.Sigma, rows, tied=kind == "tied")
        new = model.T(S)
        np.testing.assert_allclose(new.pi, pi, rtol=1e-11)
        np.testing.assert_allclose(new.mu, mu, rtol=1e-10)
        np.testing.assert_allclose(new.Sigma, Sigma, rtol=1e-9, atol=1e-11)


def test_nested_covariances_agree_where_they_coincide():
    """With d = 1 full and diagonal are one model; with G = 1 tied and full are one."""
    rng = np.random.default_rng(1)
    rows = np.r_[rng.normal(size=(40, 1)) - 2, rng.normal(size=(60, 1)) + 1]
    mu = np.array([[-1.0], [1.0]])
    full, diag = GMM(2, 1, "full"), GMM(2, 1, "diag")
    a = GMMParams(np.array([0.5, 0.5]), mu, np.ones((2, 1, 1)), "full")
    b = GMMParams(np.array([0.5, 0.5]), mu, np.ones((2, 1)), "diag")
    for _ in range(10):
        a, b = full.T(full.s_bar(a, rows)), diag.T(diag.s_bar(b, rows))
    np.testing.assert_allclose(a.Sigma[:, 0], b.Sigma, rtol=1e-10)
    y = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3))
    one = GMMParams(np.ones(1), y[:1], np.eye(3), "tied")
    tied = GMM(1, 3, "tied", YY=second_moment(y)).T(GMM(1, 3, "tied", YY=second_moment(y)).s_bar(one, y))
    np.testing.assert_allclose(tied.Sigma, np.cov(y.T, bias=True), rtol=1e-10)
    np.testing.assert_allclose(tied.mu[0], y.mean(axis=0), rtol=1e-12)


def test_unequal_workers_and_several_thetas_in_one_call():
    model, rows, theta = case("full")
    other = model.T(model.s_bar(theta, rows))
    parts = [rows[:10], rows[10:60], rows[60:]]
    got = model.s_bar_mixed([theta, other], np.array([1, 0, 1]), parts, np.array([0, 1, 2]), None)
    expected = [model.s_bar(t, p) for t, p in zip((other, theta, other), parts, strict=True)]
    assert np.array_equal(got, expected)
    many = np.repeat(rows[None], 4000, axis=0)  # large enough for the threaded kernel
    whole = model.s_bar_many(theta, many, np.arange(4000), None)
    assert np.array_equal(whole[[0, 3999]], [model.s_bar(theta, rows)] * 2)


def test_the_edges_of_the_domain_are_named():
    model, rows, theta = case("known")
    S = model.s_bar(theta, rows)
    S[1] = -0.02
    with pytest.raises(DomainError, match=r"component 2 of 3 has mass -0\.02"):
        model.T(S)
    for kind, words in (
        ("tied", "common covariance"),
        ("full", "component . of 3"),
        ("diag", "component . of 3"),
    ):
        model, rows, theta = case(kind)
        S = model.s_bar(theta, rows)
        model.T(S)  # inside
        S[3:5] *= 30.0
        with pytest.raises(DomainError, match=rf"{words}.*smallest eigenvalue -"):
            model.T(S)
    with pytest.raises(ConfigError, match="needs YY"):
        GMM(2, 2, "tied")
    with pytest.raises(ConfigError, match="'round'"):
        GMM(2, 2, "round")


@pytest.mark.parametrize("d", [1, 3])
def test_rows_of_other_columns_are_refused(d):
    """The compiled loop read and wrote beside its arrays: numbers of other memory came into the statistic."""
    model, _, theta = case("known")
    for use in (model.s_bar, model.log_likelihood):
        with pytest.raises(
            InputError, match=rf"the rows have the shape .*, {d}\), the mixture d=2 coordinates"
        ):
            use(theta, np.ones((5, d)))


@pytest.mark.parametrize(("kind", "other"), [("full", "known"), ("diag", "tied"), ("known", "full")])
def test_a_parameter_of_another_covariance_is_refused(kind, other):
    """GMMParams says "known" where nothing is given: second moments were zeros then, and T told a negative eigenvalue."""
    model, rows, theta = case(kind)
    _, _, wrong = case(other)
    with pytest.raises(
        ConfigError, match=rf"theta has covariance='{other}'.*GMMParams\(pi, mu, Sigma, '{kind}'"
    ):
        model.s_bar(wrong, rows)
    with pytest.raises(ConfigError, match="Sigma"):
        model.s_bar(GMMParams(theta.pi, np.ones((3, 3)), np.eye(3), "known"), rows)


def test_far_rows_do_not_overflow():
    model, rows, theta = case("known")
    rows = np.r_[rows, [[1e4, -1e4]]]
    S = model.s_bar(theta, rows)
    assert np.isfinite(S).all()
    assert S[:3].sum() == pytest.approx(1, rel=1e-12)


def test_initial_means_are_rows():
    rows = np.random.default_rng(0).normal(size=(400, 2))
    mu = random_rows(rows, 4, 7)
    assert all((rows == m).all(axis=1).any() for m in mu)
    assert np.array_equal(mu, random_rows(rows, 4, 7))


def test_the_common_covariance_takes_masses_as_they_are():
    """Compression and absences leave masses that do not sum to 1: Sigma needs s1, the weights need s1 / sum s1."""
    YY = 5.0 * np.eye(2)
    model = GMM(2, 2, "tied", YY=YY)
    s1, mu = np.array([0.5, 0.3]), np.array([[1.0, 0.5], [-1.0, 0.2]])
    theta = model.T(np.r_[s1, (s1[:, None] * mu).ravel()])
    np.testing.assert_allclose(theta.pi, s1 / 0.8, rtol=1e-13)
    np.testing.assert_allclose(theta.mu, mu, rtol=1e-13)
    expected = YY - sum(s * np.outer(m, m) for s, m in zip(s1, mu, strict=True))
    np.testing.assert_allclose(theta.Sigma, expected, rtol=1e-13)
