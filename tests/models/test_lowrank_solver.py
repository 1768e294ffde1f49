"""The direct solver of algorithm 7's objective: derivatives, a duality gap, equal answers for any groups; strange panels."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.special import xlogy

from fedmiss.errors import ConfigError, InputError
from fedmiss.federation.calls import fit_counts
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import family_of
from fedmiss.models.lowrank.paper import FedMissEM
from fedmiss.models.lowrank.paper_step import Observed, balance, fit_observed
from fedmiss.models.lowrank.settings import CountSettings

from .panels import simulate, split

FAMILIES = ("gaussian", "poisson", "bernoulli")


def sums(panel):
    """(y, E) dense, over all groups."""
    g = panel.pooled().groups[0]
    y, E = np.zeros((panel.J, panel.L)), np.zeros((panel.J, panel.L))
    np.add.at(y, (g.site, g.month), g.weight * g.count)
    np.add.at(E, (g.site, g.month), g.weight)
    return y, E


def dense(panel, family, penalty):
    """The objective as a function of U and V, with every matrix formed."""
    y, E, kind = *sums(panel), family_of(family)
    return lambda U, V: (
        (E * kind.psi(U @ V.T) - y * (U @ V.T)).sum() + 0.5 * penalty * ((U**2).sum() + (V**2).sum())
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_value_gradient_and_curvature_are_those_of_the_dense_objective(family):
    panel, _ = simulate(J=7, L=5, n=40, family=family, groups=2)
    y, E = sums(panel)
    at = E > 0
    ptr = np.r_[0, np.cumsum(at.sum(axis=1))]
    sparse = [sp.csr_array((x[at], np.nonzero(at)[1], ptr), shape=(7, 5)) for x in (y, E)]
    step, f = Observed(family_of(family), 0.3, *sparse), dense(panel, family, 0.3)
    rng = np.random.default_rng(0)
    U, V, P, Q = (0.4 * rng.normal(size=(n, 2)) for n in (7, 5, 7, 5))
    h = 1e-4

    def along(a, b):
        return (
            f(U + a * h * P, V + a * h * Q) if b is None else step.gradient(U + a * h * P, V + a * h * Q)[b]
        )

    assert step.value(U, V) == pytest.approx(f(U, V), rel=1e-12)
    gU, gV, _ = step.gradient(U, V)
    slope = (along(1, None) - along(-1, None)) / (2 * h)
    assert (gU * P).sum() + (gV * Q).sum() == pytest.approx(slope, abs=1e-5)
    for side, out in enumerate(step._times(U, V)((P, Q))):
        np.testing.assert_allclose(out, (along(1, side) - along(-1, side)) / (2 * h), atol=1e-6)
        np.testing.assert_allclose(step._slope(U, V, side), (gU, gV)[side], atol=1e-12)
    for i, block in enumerate(step._curvature(U, V)[0]):  # the blocks are the Hessian's, for one site alone
        for k in range(2):
            one = np.zeros_like(U)
            one[i, k] = 1.0
            np.testing.assert_allclose(block[k], step._times(U, V)((one, 0 * V))[0][i], rtol=1e-6, atol=1e-6)


def conjugate(family, s, E):
    """Convex conjugate of E psi at s."""
    p = np.clip(s / E, 0.0, 1.0)
    return {
        "gaussian": lambda: s**2 / (2 * E),
        "poisson": lambda: xlogy(s, s / E) - s,
        "bernoulli": lambda: E * (xlogy(p, p) + xlogy(1 - p, 1 - p)),
    }[family]()


def gap(panel, family, penalty, U, V):
    """(primal, dual) of the nuclear-norm problem at U V': t R, t = min(1, penalty / ||R||_2), is dual feasible.

    P(M) = sum E psi(M) - y M + penalty ||M||_*, D(Z) = - sum f*(y - Z) for ||Z||_2 <= penalty, R = y - E psi'(M).
    """
    y, E, kind, M = *sums(panel), family_of(family), U @ V.T
    R = y - E * kind.mean(M)
    t = min(1.0, penalty / np.linalg.norm(R, 2))
    seen = E > 0
    return dense(panel, family, penalty)(U, V), -conjugate(family, (y - t * R)[seen], E[seen]).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_duality_gap_closes_where_the_rank_is_large_enough(family):
    panel, _ = simulate(family=family, n=300)
    U, V, value = fit_observed(panel, family=family, rank=12, penalty=2.0, tol=1e-11)
    primal, dual = gap(panel, family, 2.0, U, V)
    assert value == pytest.approx(primal, rel=1e-12)
    assert -1e-9 <= primal - dual <= 1e-6 * abs(primal)
    rng = np.random.default_rng(0)
    for _ in range(5):  # any other point lies above the dual bound, and its own bound below the optimum
        other = gap(panel, family, 2.0, 0.3 * rng.normal(size=U.shape), 0.3 * rng.normal(size=V.shape))
        assert other[0] >= primal - 1e-9
        assert other[1] <= primal + 1e-9


def test_full_gaussian_panel_is_the_thresholded_svd():
    rng = np.random.default_rng(3)
    Y = rng.normal(size=(3, 2)) + 1.0
    s, t = np.divmod(np.arange(6), 2)
    P, sv, Qt = np.linalg.svd(Y, full_matrices=False)
    for lam in (0.0, 0.4, 10.0):
        U, V, _ = fit_observed(
            GroupPanel.of(3, 2, [Group.of("a", s, t, Y.ravel())]), family="gaussian", rank=2, penalty=lam
        )
        np.testing.assert_allclose(U @ V.T, (P * np.maximum(sv - lam, 0)) @ Qt, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_ten_groups_give_the_pooled_fit_at_a_minimum(family):
    panel, _ = simulate(J=60, family=family, groups=10, observers=40, n=500)
    (U, V, value), (u, v, _) = (
        fit_observed(p, family=family, rank=2, penalty=1.0) for p in (panel, panel.pooled())
    )
    np.testing.assert_allclose(U @ V.T, u @ v.T, atol=1e-8)
    f, rng = dense(panel, family, 1.0), np.random.default_rng(0)
    for _ in range(20):  # no direction nearby is lower: a minimum, not the saddle at U V' = 0
        assert f(U + 1e-3 * rng.normal(size=U.shape), V + 1e-3 * rng.normal(size=V.shape)) > value


def test_certain_detections_do_not_end_in_a_division_by_zero():
    month = np.tile(np.arange(6), 4)
    panel = GroupPanel.of(
        4, 6, [Group.of("a", np.repeat(np.arange(4), 6), month, (month != 2).astype(float))]
    )
    for rank in (1, 2):
        assert fit_observed(panel, family="bernoulli", rank=rank)[2] < 1e-3  # separated: the loss goes to 0


def test_balance_keeps_the_product_and_lowers_the_ridge():
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(9, 3)), 5 * rng.normal(size=(6, 3))
    u, v = balance(U, V)
    np.testing.assert_allclose(u @ v.T, U @ V.T, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, v.T @ v, atol=1e-10)
    assert (u**2).sum() + (v**2).sum() == pytest.approx(2 * np.linalg.svd(U @ V.T)[1].sum())


def test_order_of_groups_and_names_of_observers_do_not_matter():
    whole = simulate(groups=1)[0].groups[0]
    panel = split(40, 24, whole.site, whole.month, whole.count, whole.observer, whole.site % 4)
    turned = GroupPanel.of(panel.J, panel.L, list(reversed(panel.groups)), panel.calendar)
    renamed = replace(
        panel, groups=tuple(replace(g, observer=g.n_observers - 1 - g.observer) for g in panel.groups)
    )
    settings = CountSettings(rank=1, observers=True)
    first = fit_counts(panel, settings).expected()
    np.testing.assert_array_equal(fit_counts(turned, settings).expected(), first)
    np.testing.assert_allclose(fit_counts(renamed, settings).expected(), first, rtol=1e-7)


def test_empty_rows_columns_and_zero_sites_have_defined_answers():
    s, t, y = np.array([0, 0, 1, 1, 3]), np.array([0, 1, 0, 1, 0]), np.array([3.0, 5.0, 0.0, 0.0, 2.0])
    panel = GroupPanel.of(5, 4, [Group.of("a", s, t, y)], (np.array([1, 2, 3, 4]), np.array([2000] * 4)))
    expected = fit_counts(panel, CountSettings(rank=2)).expected()
    assert np.isfinite(expected).all()
    assert (expected >= 0).all()
    assert expected[1].max() < expected[0].min()  # the site of zeros stays below the site of birds


@pytest.mark.slow
def test_one_enormous_count_is_fitted_without_overflow():
    panel, _ = simulate()
    g = panel.groups[0]
    count = g.count.copy()
    count[0] = 1e9
    panel = replace(panel, groups=(replace(g, count=count), *panel.groups[1:]))
    fit = fit_counts(panel, CountSettings(rank=2))
    assert np.isfinite(fit.expected()).all()


def test_separation_in_bernoulli_stays_finite():
    s, t = np.divmod(np.arange(40), 8)
    y = (s > 1).astype(float)  # sites 0, 1 never, sites 2-4 always
    panel = GroupPanel.of(5, 8, [Group.of("a", s, t, y)])
    fit = fit_counts(panel, CountSettings(family="bernoulli", rank=1))
    p = fit.expected()
    assert (p[:2] < 0.3).all()
    assert (p[2:] > 0.7).all()


def test_bad_counts_are_told():
    with pytest.raises(InputError, match=r"visit 1: the count is nan"):
        Group.of("a", [0, 1], [0, 0], [1.0, np.nan])
    panel = GroupPanel.of(2, 1, [Group.of("north", [0, 1], [0, 0], [1.0, -2.0])])
    with pytest.raises(ConfigError, match=r"'north' has the count -2"):
        fit_counts(panel, CountSettings(rank=0))
    with pytest.raises(InputError, match=r"site index 5 is outside 0\.\.1"):
        fit_counts(GroupPanel.of(2, 1, [Group.of("a", [0, 5], [0, 0], [1.0, 2.0])]), CountSettings(rank=0))
    with pytest.raises(InputError, match="nothing to fit"):
        GroupPanel.of(2, 1, [Group.of("a", [], [], [])])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"site": [0.5, 1]}, "visit 0: the site is 0.5"),  # it was cut to site 0
        ({"site": [2**32, 1]}, "visit 0: the site is 4.29497e+09"),  # as was this one
        ({"month": [0, float("nan")]}, "visit 1: the month is nan"),
        ({"site": ["a", "b"]}, "a site is no number"),
        ({"name": 3}, "the name of a group is 3 (must be text)"),  # a fit of it ended in a traceback
        ({"observer": [0, -1]}, "visit 1: the observer is -1"),
        ({"observer": [0]}, "observer has the shape (1,), and there are 2 counts"),
        ({"effort": np.array([[0.0], [np.inf]])}, "visit 1: the effort is inf"),
        ({"effort": np.zeros(2)}, "effort has the shape (2,); give a row for each visit"),
        ({"effort": np.zeros((3, 1))}, "effort has the shape (3, 1), and there are 2 counts"),
        ({"weight": [1, -1]}, "visit 1: the weight is -1"),
        ({"weight": [np.nan, 1]}, "visit 0: the weight is nan"),
        ({"exposure": [1, 0]}, "visit 1: the exposure is 0 (must be a number above 0)"),
        ({"exposure": [1, 1, 1]}, "exposure has the shape (3,)"),
        ({"count": np.array(["2020-01-01"] * 2, "M8[D]")}, "a count is no number"),  # 18,262 birds
        ({"count": np.ma.masked_array([1.0, 9.0], [False, True])}, "a count is no number"),  # 9 birds
        ({"site": np.ma.masked_array([0, 1], [False, True])}, "a site is no number"),
        ({"site": [[0, 1]], "month": [[0, 0]], "count": [[1, 2]]}, "no plain columns"),
    ],
)
def test_a_group_takes_no_column_that_would_be_read_as_another(given, words):
    with pytest.raises(InputError, match=re.escape(words)):
        Group.of(**{"name": "a", "site": [0, 1], "month": [0, 0], "count": [1.0, 2.0], **given})


def test_a_panel_takes_what_is_known_of_all_its_sites_and_months():
    groups = [Group.of("a", [0, 1], [0, 1], [1.0, 2.0])]
    for given, words in (
        ({"site_id": np.array(["x"])}, "site_id has the shape (1,), the panel 2 sites"),
        ({"region": np.array(["x"] * 3)}, "region has the shape (3,)"),
        ({"covariates": {"height": np.array([1.0, np.inf])}}, "the covariate 'height' is infinite at site 1"),
        ({"calendar": ([12, 13], [2000, 2000])}, "the month of the year 13"),
        # Each was a category of its own, that no site had: the column was left out without a word.
        ({"covariates": {"height": np.array([1, None], object)}},
         "the covariate 'height' has 1 at site 0; give numbers"),
        ({"covariates": {"wood": np.array(["yes", None], object)}},
         "the covariate 'wood' has None at site 1"),
        ({"covariates": {"day": np.array(["2020-01-01"] * 2, "M8[D]")}}, "the covariate 'day' has "),
        ({"region": np.array(["x", np.nan], object)}, "region has nan at site 1"),
        ({"calendar": ([2000, 2000], [1, 2])}, "months come first"),
        ({"calendar": ([1, 2], [2000, 2000.5])}, "the calendar has 2000.5"),
        ({"J": -2}, "the panel has -2 sites"),
        ({"L": 0}, "the panel has 0 months"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=re.escape(words)):
            GroupPanel.of(**{"J": 2, "L": 2, "groups": groups, **given})
    # A data frame has no truth value.
    table = pd.DataFrame({"height": [3.0, 4.0]}, index=["x", "y"])
    assert GroupPanel.of(2, 2, groups, covariates=table).covariates["height"].tolist() == [3.0, 4.0]
    # Lists and generators are what they hold.
    panel = GroupPanel.of(2, 2, (one for one in groups), calendar=([1, 2], [2000, 2000]))
    assert fit_counts(panel, CountSettings(rank=0)).expected().shape == (2, 2)


def test_groups_and_panels_can_be_compared_reweighted_and_keep_their_months():
    group, months = Group.of("a", [0, 1], [0, 1], [1.0, 2.0]), np.array([1, 2])
    panel = GroupPanel.of(2, 2, [group], (months, np.array([2000, 2000])))
    months[:] = 12  # an array of the user's own
    assert panel.calendar[0].tolist() == [1, 2]
    assert group in [Group.of("b", [0], [0], [1.0]), group]  # raised "truth value of an array"
    assert panel != GroupPanel.of(2, 2, [group])
    for weight in ([1.0], [1.0, np.nan]):
        with pytest.raises(InputError, match="weight"):
            group.reweighted(np.array(weight))


NEGBIN = {"dispersion": "negbin"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *(({"rank": rank}, r"rank is .* whole number") for rank in (1.5, "2", True)),
        ({"responses": ("covariates",), "season": True}, "season=False"),
        ({"responses": ("covariates",), "season": False, "features": ("visits",)}, "without features"),
        ({"responses": ("trees",), "season": False}, "'trees' is unknown"),
        ({"inverse_size": 0.5}, "needs negbin"), ({"inverse_size": -1.0} | NEGBIN, "0 or more"),
        ({"occupancy": True, "season": False} | NEGBIN, "occupancy needs"),
        ({"occupancy": True, "family": "gaussian", "scale": "log1p", "dispersion": "none"},
         "occupancy needs"),
        ({"learning": True}, "needs effects of observers"),
    ],
)  # fmt: skip
def test_what_settings_of_counts_cannot_be(wrong, said):
    with pytest.raises(ConfigError, match=said):
        CountSettings(**wrong).check()


@pytest.mark.parametrize(
    ("family", "odd", "words"), [("poisson", -3, "0 or more"), ("bernoulli", 5, "0 to 1")]
)
def test_counts_that_a_family_cannot_have_are_refused(family, odd, words):
    """FedMissEM gave factors of 1e142, with warnings of numpy alone."""
    y = np.array([1.0, 0.0, odd, 1.0])
    panel = GroupPanel.of(2, 2, [Group.of("a", [0, 0, 1, 1], [0, 1, 0, 1], y)])
    said = rf"group 'a' has the count {odd} at site 1, month 0; for the {family} family it must be {words}\."
    with pytest.raises(InputError, match=said):
        fit_observed(panel, family=family, rank=1, penalty=0.5)
    with pytest.raises(InputError, match=said):
        FedMissEM(panel, family=family, rank=1).rows(panel)
    assert fit_observed(panel, family="gaussian", rank=1, penalty=0.5)
