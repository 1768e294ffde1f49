"""Laws of the community model: groups, exposure, responses, rank, left-out scores, intervals."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.special import polygamma

from fedmiss.community import associations as drawn
from fedmiss.community.associations import associations
from fedmiss.community.model import (
    ROUNDS,
    Cells,
    Community,
    Effort,
    _best,
    _clear,
    cell_deviance,
    cells_of,
    fit_community,
)
from fedmiss.community.outputs import _of_cells, axes_of, left_out_scores, richness
from fedmiss.community.paper import fit_paper
from fedmiss.community.season import Season, _with, season_of
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.tables import response_rows, tables_of
from fedmiss.errors import ConfigError
from fedmiss.etl.community import read_lists
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.hub import fit as rounds
from fedmiss.federation.results import AverageFit, Posterior, moments
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.families import POISSON
from fedmiss.models.lowrank.settings import CountSettings
from tests.community.worlds import cells_with, lists_of, records_of, seasonal, world

COUNTS = CountSettings(rank=1, dispersion="none", season=False, slopes=False)


def with_size(c, rank, inverse_size):
    """A community whose 1 / size is held."""
    settings = replace(COUNTS, rank=rank, dispersion="negbin", inverse_size=inverse_size)
    return Community(fit_counts(c.panel({}, None), settings), None, (), c, {}, (), None)


@pytest.mark.parametrize("seed", range(3))
def test_responses_are_those_of_the_truth_within_their_errors(seed):
    w = world(seed, J=150, S=25, rank=0, covariate=True, most=1)
    c, _, _ = w.cells()
    settings = replace(COUNTS, rank=0, dispersion="negbin", responses=("covariates",))
    q = fit_counts(c.panel({"x": w.x}, None), settings).posterior
    assert q is not None
    # features are in standard deviations
    made, error = (q.T[:, 1] / w.x.std(), np.sqrt(q.D[:, 1, 1]) / w.x.std())
    z = (made - w.responses) / error
    # a response that all species have in common is the sites' level as well: take the mean out of both
    z = z - z.mean()
    assert 0.6 < np.sqrt((z**2).mean()) < 1.4
    assert np.corrcoef(made, w.responses)[0, 1] > 0.95


@pytest.mark.parametrize("values", [("open", "wood"), ("open", "reeds", "wood")])
def test_responses_to_values_of_a_category_are_known_as_well_as_what_they_differ_by(values):
    """The values of a category are 1 at every site together, so that each alone had an interval of plus or minus 1."""
    rng, (J, S) = np.random.default_rng(4), (120, 15)
    kind = np.array(values, dtype=object)[np.arange(J) % len(values)]
    likes = rng.normal(0, 0.6, (len(values), S))
    likes -= likes.mean(axis=0)
    eta = rng.normal(0.5, 1.0, S) + rng.normal(0, 0.3, (J, 1)) + likes[np.arange(J) % len(values)]
    made = fit_community(
        cells_with(rng.poisson(4 * np.exp(eta)), 4),
        CommunitySettings(rank=0, folds=2),
        covariates={"kind": kind},
    )
    assert made.responses == tuple(f"kind {value}" for value in values)
    table = response_rows(made, axes_of(made), np.arange(S).astype(object))
    for value, truth in zip(values, likes, strict=True):
        part = table[table["covariate"] == f"kind {value}"]
        assert (part["upper"] - part["lower"]).max() < 0.8
        # the sites' own levels have what all species have in common
        away = part["response"] - truth - (part["response"] - truth).mean()
        assert (np.abs(away) < (part["upper"] - part["lower"]) / 2).mean() > 0.8


def test_intervals_of_responses_hold_that_a_covariate_goes_with_scores_by_chance():
    """Given the scores they held 78 % of these true responses."""
    J, S, inside = 80, 12, []
    for seed in range(6):
        rng = np.random.default_rng([6, seed])
        W, U, n, x = rng.normal(0, 1.2, S), rng.normal(size=J), rng.integers(4, 12, J), rng.normal(size=J)
        responses = rng.normal(0, 0.5, S)
        eta = rng.normal(size=S) + rng.normal(0, 0.3, (J, 1)) + np.outer(U, W)
        eta += np.outer((x - x.mean()) / x.std(), responses)
        y = rng.poisson(n[:, None] * np.exp(eta) * rng.gamma(1.5, 1 / 1.5, (J, S)))
        made = fit_community(cells_with(y, n), CommunitySettings(rank=1, folds=2), covariates={"x": x})
        table = response_rows(made, axes_of(made), np.arange(S).astype(object))
        table = table[table["covariate"] == "x"]
        inside += ((table["lower"] <= responses) & (responses <= table["upper"])).tolist()
    assert len(inside) == 6 * S
    assert np.mean(inside) > 0.87


@pytest.mark.slow
def test_groups_make_no_difference():
    w = world(5, J=40, S=14, rank=1, covariate=True)
    c, _, _ = w.cells(0.2)
    s = CommunitySettings(rank=1, folds=2)
    one = fit_community(c, s, covariates={"x": w.x})
    ten = fit_community(c, s, covariates={"x": w.x}, groups=np.array([f"g{j % 10}" for j in range(40)]))
    assert one.responses == ten.responses
    np.testing.assert_allclose(ten.fit.expected(), one.fit.expected(), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("hide", [0.8, *(pytest.param(h, marks=pytest.mark.nightly) for h in (0.5, 0.95))])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_chosen_rank_is_never_worse_than_none(hide, rank):
    w = world(11, J=150, S=40, rank=rank, covariate=True)
    c, y, hidden = w.cells(hide)
    chosen = fit_community(c, covariates={"x": w.x})
    none = fit_community(c, CommunitySettings(rank=0), covariates={"x": w.x})
    a, b = (POISSON.deviance(y, w.visits[:, None] * f.fit.expected())[hidden].mean() for f in (chosen, none))
    assert a <= 1.01 * b
    if rank and hide == 0.5:
        assert a < 0.8 * b
    assert (chosen.fit.expected() < 50 * y.max()).all()


@pytest.mark.slow
@pytest.mark.parametrize("hide", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("rank", [0, 2])
def test_presence_of_few_species_is_never_predicted_worse_than_without_axes(hide, rank):
    w = world(3, J=150, S=6, rank=rank)
    found = w.rng.binomial(w.visits[:, None], 1 / (1 + np.exp(-w.eta - 0.5)))
    n = np.repeat(w.visits[:, None], 6, axis=1)
    hidden = w.rng.random(n.shape) < hide
    j, s = np.nonzero(~hidden)
    weight = np.r_[found[j, s], (n - found)[j, s]].astype(float)
    c = Cells(150, 6, np.r_[j, j], np.r_[s, s], np.repeat([1.0, 0.0], j.size), None, weight).take(weight > 0)
    value = {}
    for r in ("auto", 0, 1, 2):
        chance = fit_community(c, CommunitySettings(model="presence", rank=r)).fit.expected()
        p = np.clip(chance, 1e-9, 1 - 1e-9)
        value[r] = -(found * np.log(p) + (n - found) * np.log(1 - p))[hidden].mean()
    assert value["auto"] <= 1.01 * value[0]
    assert max(value[1], value[2]) <= 1.02 * value[0], "an axis too many costs little"


@pytest.mark.slow
def test_without_structure_no_axis_is_taken():
    c, _, _ = world(2, J=60, S=12, rank=0).cells()
    assert fit_community(c, CommunitySettings(folds=3)).rank == 0


def test_sites_and_species_without_a_count_stay_at_their_prior():
    w = world(4, J=40, S=14, rank=1)
    c, y, _ = w.cells()
    keep = (c.site != 7) & (c.species != 3)
    made = fit_community(c.take(keep), CommunitySettings(rank=1))
    e = made.fit.expected()
    assert np.isfinite(e).all()
    assert e[7].max() < 10 * e.max(axis=0).max()
    assert e[:, 3].max() <= y.max()


def test_a_rank_that_so_few_species_cannot_bear_is_refused():
    c, _, _ = world(0, J=20, S=8, rank=0).cells()
    with pytest.raises(ConfigError, match=r"rank 4 needs 9 species or more; there are 8 \(at most rank 3\)"):
        fit_community(c, CommunitySettings(rank=4))


@pytest.mark.parametrize("own", ["x squared", "habitat wood"])
def test_two_responses_of_one_name_are_refused(own):
    """A table of responses had two rows of one name, and nobody could say which was which."""
    w = world(3, J=20, S=6, rank=0, covariate=True)
    known = {"x": w.x, "habitat": np.where(w.x > 0, "wood", "farm"), own: np.arange(20.0)}
    with pytest.raises(ConfigError, match=f"'{own}' names two things .* another name"):
        fit_community(w.cells()[0], CommunitySettings(rank=0), covariates=known)


def test_more_axes_are_taken_only_where_clearly_better():
    tried = [replace(COUNTS, rank=r) for r in (0, 1, 2)]

    def picked(*deviance, log=((0.5, 0.5, 0.5),) * 3):
        rows = [
            {"candidate": k, "fold": f, "deviance": d[f], "log_rmse": e[f]}
            for k, (d, e) in enumerate(zip(deviance, log, strict=True))
            for f in range(3)
        ]
        made = Choice.__new__(Choice)
        object.__setattr__(made, "table", pd.DataFrame(rows))
        best = _best(made, tried, range(3))
        return best.rank, _clear(made, 0, best.rank)

    # the smaller of two alike
    assert picked([1.0, 1.1, 1.2], [0.5, 0.6, 0.7], [0.4999, 0.6, 0.7]) == (1, True)
    assert picked([1.0, 1.1, 1.2], [0.5, 0.6, 0.7], [0.3, 0.4, 0.5]) == (2, True)
    one = ([1.0, 1.1, 1.2], [0.2, 1.4, 1.6], [1.1, 1.2, 1.3])
    assert picked(*one) == (1, False), "one fold decides nothing"
    assert picked(*one, log=([0.5, 0.5, 0.5], [0.3, 0.3, 0.3], [0.5, 0.5, 0.5])) == (1, True)
    worse = ([1.0, 1.1, 1.2], [1.1, 1.2, 1.3], [1.1, 1.2, 1.3])
    assert picked(*worse, log=([0.5, 0.5, 0.5], [0.3, 0.3, 0.3], [0.3, 0.3, 0.3])) == (0, False)


def test_the_deviance_of_a_cell_is_zero_where_the_mean_is_the_count():
    y = np.array([0.0, 1.0, 7.0])
    for inverse in (0.0, 0.4):
        np.testing.assert_allclose(cell_deviance(y, np.maximum(y, 1e-13), inverse, "poisson"), 0.0, atol=1e-9)
        assert (cell_deviance(y, y + 1.0, inverse, "poisson") > 0).all()
    assert cell_deviance(np.array([1.0]), np.array([0.25]), 0.0, "bernoulli") == pytest.approx(2 * np.log(4))


# --- what follows from it


@pytest.fixture(scope="module")
def fitted():
    w = world(8, J=120, S=25, rank=2)
    c, _, _ = w.cells()
    return w, fit_community(c, CommunitySettings(rank=2, folds=2))


def test_axes_are_a_turn_of_the_factors(fitted):
    _, c = fitted
    axes, q = axes_of(c), c.fit.posterior
    U = q.P[:, -2:] - q.P[:, -2:].mean(axis=0)
    np.testing.assert_allclose(axes.scores @ axes.loadings.T, U @ q.T[:, -2:].T, atol=1e-9)
    np.testing.assert_allclose(axes.scores.mean(axis=0), 0.0, atol=1e-9)
    square = axes.loadings.T @ axes.loadings
    assert square[0, 0] >= square[1, 1]
    assert abs(square[0, 1]) < 1e-8 * square[0, 0]
    np.testing.assert_allclose(axes.share.sum(), 1.0)
    # variance 1 of the sites: means and what is not known of them
    spread = (axes.scores**2).mean(axis=0) + (axes.scores_se**2).mean(axis=0)
    np.testing.assert_allclose(spread, 1.0, atol=1e-6)


def test_every_species_has_the_birds_that_were_counted():
    """One factor of all birds, that of the commonest, expected up to 21 % more of others than were counted."""
    rng, shape = np.random.default_rng(6), (120, 20)
    eta = rng.normal(-1.0, 1.0, 20) + rng.normal(size=(120, 2)) @ rng.normal(0, 0.8, (2, 20))
    n = rng.integers(1, 9, 120).astype(float)
    y = rng.poisson(n[:, None] * np.exp(eta) * rng.gamma(1.5, 1 / 1.5, shape)).astype(float)
    fit = fit_community(cells_with(y, n), CommunitySettings(rank=2)).fit
    enough = y.sum(axis=0) > 50
    ratio = (fit.expected() * n[:, None]).sum(axis=0)[enough] / y.sum(axis=0)[enough]
    assert np.abs(ratio - 1.0).max() < 0.06, ratio.round(3)


def test_calibration_has_no_part_in_the_scores_without_a_species(fitted):
    _, c = fitted
    assert np.ptp(c.raised) > 0.03
    q = c.posterior
    plain = replace(q, T=np.column_stack([q.T[:, 0] - c.raised, q.T[:, 1:]]))
    as_fitted = replace(c, fit=replace(c.fit, posterior=plain), raised=np.zeros(c.cells.S))
    both = (left_out_scores(fit, axes_of(c)) for fit in (c, as_fitted))
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_gains_are_those_of_fits_without_the_cells_left_out(fitted, monkeypatch):
    monkeypatch.setattr(rounds, "TOL", rounds.FOLD_TOL)
    _, c = fitted
    g = c.gains
    assert len(g) == c.cells.count.size
    for fold in range(2):
        out = (g["fold"] == fold).to_numpy()
        part = g[~out]
        columns = (part[name].to_numpy() for name in ("site", "species", "count", "visits", "weight"))
        train = Cells(c.cells.J, c.cells.S, *columns)
        fit = fit_counts(train.panel({}, None), replace(c.fit.settings, max_sweeps=ROUNDS))
        test = g[out]
        mean = fit.expected()[test["site"], test["species"]] * test["visits"].to_numpy()
        judged = cell_deviance(test["count"].to_numpy(), np.maximum(mean, 1e-3), c.widest, "poisson")
        np.testing.assert_allclose(test["chosen"], judged, rtol=1e-5, atol=1e-8)
    assert g["chosen"].sum() < 0.9 * g["none"].sum()


@pytest.mark.parametrize("model", ["counts", "presence"])
def test_a_gain_compares_both_models_also_where_they_are_ranks_of_one_path(model, monkeypatch):
    """Then the lower rank is scored in a copy of the batch; its deviance was told as 0, and the gain as -5e14."""
    monkeypatch.setattr("fedmiss.community.model.SIZES", (1.0,))
    w = world(4, J=60, S=10, rank=1)
    c, y, _ = w.cells()
    if model == "presence":
        j, s = np.tile(np.indices(y.shape).reshape(2, -1), 2)
        found = w.rng.binomial(12, 1 / (1 + np.exp(-w.eta))).ravel().astype(float)
        n = np.concatenate([found, 12 - found])
        c = Cells(*y.shape, j, s, np.repeat([1.0, 0.0], y.size), None, n).take(n > 0)
    g = fit_community(c, CommunitySettings(model=model, rank=1, folds=2)).gains
    assert np.isfinite(g[["none", "chosen"]]).all(axis=None)
    assert 0.3 < g["chosen"].sum() / g["none"].sum() < 1.0


def test_the_seed_of_the_settings_is_that_of_all_draws(fitted, monkeypatch):
    """Richness and associations were drawn from seed 0 whatever --seed said."""
    monkeypatch.setattr(
        drawn, "_refit", lambda c, axes, truth, rng: (axes.loadings * rng.uniform(0.8, 1.2), 0.0)
    )
    _, c = fitted
    other = replace(c, fit=replace(c.fit, settings=replace(c.fit.settings, seed=1)))
    again, one, two = (
        np.concatenate([*richness(fit, visits=3.0), *np.vstack(drawn.associations(fit, axes_of(fit)))])
        for fit in (c, c, other)
    )
    np.testing.assert_array_equal(again, one)
    parts = np.split(two == one, [3 * c.cells.J])
    assert not any(part.all() for part in parts)


def test_intervals_of_loadings_hold_what_made_up_fits_err_by_together(fitted, monkeypatch):
    """Of a loading given the scores, they held 83 % of true loadings: all of them may stand too high."""
    _, c = fitted
    axes, turn = axes_of(c), np.array([[0.6, 0.8], [-0.8, 0.6]])
    shift = iter(np.tile([0.3, -0.3], 50))
    # a fit may find the same axes the other way round, or turned: that is no error
    monkeypatch.setattr(drawn, "_refit", lambda c, axes, t, rng: ((t.loadings + next(shift)) @ turn, 0.0))
    _, half = drawn.drawn_of(c, axes)
    assert half.shape == axes.loadings.shape
    assert 0.3 < np.sqrt((half**2).mean()) < 1.0
    monkeypatch.setattr(drawn, "_refit", lambda c, axes, t, rng: (t.loadings @ turn, 0.0))
    np.testing.assert_allclose(drawn.drawn_of(c, axes)[1], 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
def test_intervals_of_loadings_hold_the_truth(rank):
    J, S, inside = 80, 12, []
    for seed in range(3):
        rng = np.random.default_rng([5, seed, rank])
        W, U, n = rng.normal(0, 0.7, (S, rank)), rng.normal(size=(J, rank)), rng.integers(2, 9, J)
        eta = rng.normal(size=S) + rng.normal(0, 0.3, (J, 1)) + U @ W.T
        y = rng.poisson(n[:, None] * np.exp(eta) * rng.gamma(1.5, 1 / 1.5, (J, S)))
        made = with_size(cells_with(y, n), rank, 1 / 1.5)
        axes = axes_of(made)
        _, half = drawn.drawn_of(made, axes)
        truth = drawn._turned(W @ np.linalg.cholesky(np.cov(U.T, ddof=0).reshape(rank, rank)), axes.loadings)
        inside.append(np.abs(axes.loadings - truth) <= half)
    assert np.mean(inside) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "effort"), [(4.0, 1.0), pytest.param(0.5, 1.0, marks=pytest.mark.nightly), (1.0, 0.2)]
)
def test_intervals_of_associations_hold_the_truth(size, effort):
    """Where 1 / size is held at half its true value too; an effort of 1 is one to four standard visits at a site."""
    J, S, rng = 150, 20, np.random.default_rng([12, round(10 * size)])
    W, n = rng.normal(0, 0.7, (S, 2)), rng.integers(1, 5, J) * effort
    eta = rng.normal(size=S) + rng.normal(0, 0.3, (J, 1)) + rng.normal(size=(J, 2)) @ W.T
    y = rng.poisson(n[:, None] * np.exp(eta) * rng.gamma(size, 1 / size, (J, S)))
    truth = W @ W.T + polygamma(1, size) * np.eye(S)
    truth /= np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    a, b = np.triu_indices(S, 1)
    for held in (0.5 / size, 1.0 / size):
        made = with_size(cells_with(y, n), 2, held)
        estimate, low, high = associations(made, axes_of(made))
        np.testing.assert_allclose(estimate, estimate.T)
        inside = ((truth >= low) & (truth <= high))[a, b].mean()
        assert 0.88 <= inside, (held, inside)
        assert (high - low)[a, b].mean() < 0.45 / effort**0.5
        assert np.sqrt(((estimate - truth)[a, b] ** 2).mean()) < 0.12 / effort**0.5


@pytest.mark.slow
def test_scores_without_a_species_are_those_of_a_fit_without_it(fitted):
    _, c = fitted
    axes = axes_of(c)
    left = list(left_out_scores(c, axes))
    for s in (0, 11):
        keep = c.cells.species != s
        cells = c.cells.take(keep)
        less = replace(cells, S=c.cells.S - 1, species=cells.species - (cells.species > s))
        fit = fit_community(less, CommunitySettings(rank=2, folds=2)).fit
        alone = axes_of(replace(c, fit=fit, cells=less))
        # the axes are known up to a turn: regress one set on the other
        turn, *_ = np.linalg.lstsq(alone.scores, left[s], rcond=None)
        assert np.corrcoef((alone.scores @ turn).ravel(), left[s].ravel())[0, 1] > 0.99


def test_what_a_species_says_of_a_site_is_the_derivative_of_its_expected_log_likelihood():
    rng = np.random.default_rng(0)
    P, T = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    e, count = rng.uniform(1, 3, 4), rng.poisson(2.0, 4)
    C, D = (np.einsum("nab,ncb->nac", A, A) for A in (rng.normal(0, 0.3, (n, 3, 3)) for n in (4, 5)))
    q = Posterior(0.2, P, C, T, D, np.ones(3), np.zeros((5, 3)), np.ones(3))
    aux = SimpleNamespace(size=np.inf, phi=1.0)
    community = SimpleNamespace(fit=SimpleNamespace(settings=SimpleNamespace(family="poisson"), aux=aux))

    def told(P):
        eta, var = (x[:, 2] for x in moments(replace(q, P=P), slice(None)))
        return count * eta - e * np.exp(eta + var / 2)

    eta, var = (x[:, 2] for x in moments(q, slice(None)))
    cells = Cells(4, 5, np.arange(4), np.full(4, 2), count, e, np.ones(4))
    gradient, _ = _of_cells(community, q, cells, 2, eta, var)
    slope = [(told(P + h) - told(P - h)) / 2e-5 for h in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(gradient, np.transpose(slope), rtol=1e-6, atol=1e-8)


def test_its_own_counts_have_no_part_in_the_scores_without_a_species(fitted):
    """Counts of one species that are turned upside down leave its left-out scores, and move those with it."""
    _, c = fitted
    axes = axes_of(c)
    s = int(np.argmax(np.abs(axes.loadings[:, 0])))
    before = list(left_out_scores(c, axes))[s]
    after = list(left_out_scores(replace(c, cells=c.cells.take(c.cells.species != s)), axes))[s]
    with_it = np.corrcoef(axes.scores[:, 0], before[:, 0])[0, 1]
    assert with_it < 0.9999
    np.testing.assert_allclose(after, axes.scores, atol=1e-6)  # nothing to take out: the scores themselves


@pytest.mark.nightly
@pytest.mark.slow
def test_held_out_counts_are_within_their_intervals():
    inside, n = 0.0, 0
    for seed in (21, 22):
        w = world(seed, J=150, S=40, rank=2, covariate=True)
        c, y, hidden = w.cells(0.5)
        made = fit_community(c, covariates={"x": w.x})
        fit, rng, k = AverageFit((made.fit,)), np.random.default_rng(seed), made.fit.aux.size
        drawn = []
        for _ in range(150):
            mean = w.visits[:, None] * np.exp(np.minimum(fit.draw(rng)(slice(None)), 20))
            drawn.append(rng.poisson(rng.gamma(k, mean / k)))
        # a count has no quantile of 2.5 %: its place among the draws, ties at random, is uniform where intervals hold
        place = (np.array(drawn) < y).mean(axis=0) + rng.random(y.shape) * (np.array(drawn) == y).mean(axis=0)
        inside += ((place > 0.025) & (place < 0.975))[hidden].sum()
        n += hidden.sum()
    assert 0.93 < inside / n < 0.97


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "rank"), [(0.5, 1), (2.0, 1), (1.0, 0)])
def test_richness_is_right_where_the_fit_takes_counts_for_too_even(seed, size, rank):
    """1 / size is one of few values tried, here a quarter of the true one; cells with a bird say how many there are."""
    J, S, rng = 100, 30, np.random.default_rng([seed, 78])
    n = rng.integers(1, 5, J)
    eta = rng.normal(-1, 1, S) + rng.normal(0, 0.3, (J, 1))
    eta = eta + rng.normal(size=(J, rank)) @ rng.normal(0, 0.8, (rank, S))
    y = rng.poisson(n[:, None] * np.exp(eta) * rng.gamma(size, 1 / size, (J, S)))
    made = with_size(cells_with(y, n), rank, 0.25 / size)
    found = (rng.poisson(2 * np.exp(eta) * rng.gamma(size, 1 / size, (J, S))) > 0).sum(axis=1)
    expected, low, high = richness(made, visits=2.0)
    assert abs((expected - found).mean()) < 0.06 * found.mean()
    assert 0.88 <= ((found >= low) & (found <= high)).mean()


def test_cells_of_presence_are_the_lists_with_and_without(tmp_path):
    w = world(3, J=20, S=8, rank=0)
    table = lists_of(w, tmp_path / "lists.csv")
    lists = read_lists(records_of(table, tmp_path))
    c = cells_of(lists, Effort(np.ones(lists.site.size)), "presence")
    total = np.zeros((c.J, c.S))
    np.add.at(total, (c.site, c.species), c.weight)
    np.testing.assert_array_equal(total, np.repeat(lists.visits[:, None], c.S, axis=1))
    found = table.groupby(["site", "species"]).size()
    some = c.take(c.count == 1)
    for j, s, n in zip(some.site, some.species, some.weight, strict=True):
        assert found[lists.sites["site_id"][int(j)], lists.species[s]] == n


@pytest.mark.parametrize("model", ["counts", "presence"])
def test_algorithm_7_is_judged_on_the_same_cells_and_ends_at_its_optimum(model):
    """On counts of one factor, which the paper's model can have: near the truth, and at the solver's optimum."""
    rng = np.random.default_rng(2)
    J, S = 40, 8
    u, v = rng.uniform(0.5, 1.5, J), rng.uniform(0.5, 1.5, S)
    truth = np.outer(u, v)
    if model == "counts":
        c = cells_with(rng.poisson(np.exp(truth) * 20), 20)
    else:
        found = rng.binomial(20, 1 / (1 + np.exp(-truth)))
        j, s = np.tile(np.indices((J, S)).reshape(2, -1), 2)
        n = np.concatenate([found.ravel(), 20 - found.ravel()]).astype(float)
        c = Cells(J, S, j, s, np.repeat([1.0, 0.0], J * S), None, n).take(n > 0)
    made = fit_community(c, CommunitySettings(model=model, rank=0, folds=2))
    p = fit_paper(made, max_rank=0)
    assert p.objective == pytest.approx(p.optimum, rel=1e-3)
    assert np.corrcoef((p.theta.U @ p.theta.V.T).ravel(), truth.ravel())[0, 1] > 0.8
    assert p.deviance < 1.3 * p.none
    g = made.gains
    again = g["weight"] * cell_deviance(
        g["count"].to_numpy(), np.full(len(g), 1.0 if model == "counts" else 0.5), made.widest,
        made.fit.settings.family,
    )  # fmt: skip
    assert p.deviance < again.sum() / g["weight"].sum(), "better than no model at all"


def test_quarters_are_taken_where_they_pay_and_mend_what_sites_were_not_visited_in():
    lists, effort, cells, factor, eta = seasonal(0, 1.2)
    season, mended = season_of(lists, effort, cells, folds=5, seed=0)
    assert season.taken
    assert season.gain > 0.05
    assert np.corrcoef(np.log(season.factor).ravel(), np.log(factor).ravel())[0, 1] > 0.85
    settings = CountSettings(rank=0, dispersion="negbin", season=False, slopes=False)
    wrong = [np.log(fit_counts(c.panel({}, None), settings).expected()) - eta for c in (cells, mended)]
    assert (wrong[1] ** 2).mean() < 0.9 * (wrong[0] ** 2).mean()
    # the effort of a list is what it was where all quarters are alike
    np.testing.assert_allclose(_with(cells, *_alike(lists, effort)).exposure, cells.exposure)


def test_the_usual_number_of_visits_is_that_of_the_lists_whatever_the_season():
    lists, effort, cells, factor, _ = seasonal(0, 1.2)
    exposure, _ = _alike(lists, effort)
    fit = fit_community(_with(cells, exposure, factor), CommunitySettings(rank=0, folds=2))
    usual = tables_of(lists, fit, effort, season=Season(factor, True, None)).usual
    assert usual == np.round(np.exp(np.log(np.maximum(lists.visits, 1.0)).mean()))


def _alike(lists, effort):
    parts = [lists.summed(effort.weight, lists.month % 12 // 3 == k)[1] for k in range(4)]
    return np.stack(parts, axis=2), np.ones((lists.S, 4))


def test_quarters_that_do_not_differ_are_not_taken():
    lists, effort, cells, _, _ = seasonal(3, 0.0)
    season, same = season_of(lists, effort, cells, folds=5, seed=0)
    assert not season.taken
    assert same is cells
    assert (season.factor == 1).all()
