"""Features of sites in the prior: equations, scales, limits, where they are taken; and that groups do not matter."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.group.covariates import expanded
from fedmiss.federation.group.features import feature_sums, log_visits
from fedmiss.federation.group.panel import stamps_of
from fedmiss.federation.hub import features as hub_features
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.coefficients import feature_step, start_coefficients
from fedmiss.federation.hub.features import SiteFeatures, agree_features, covariates_of
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.triangle import from_triangle, to_triangle
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.rng import rng_for
from tests.designs import simulate_design

from .owners import COVARIATES, PLAIN, country, panel_of

SETTINGS = replace(PLAIN, features=("visits",))


def federation_of(p, by="none", features=("visits",)):
    federation = LocalFederation.of_panel(panel_of(p, by))
    federation.ask_features([replace(PLAIN, features=features)])
    return federation


def scale_of(federation):
    """Mean and deviation of log visits: what turns the groups' own numbers into the feature."""
    z = np.concatenate([p.log_visits[~p.unvisited] for p in federation.programs.values()])
    f = np.concatenate([p.features[~p.unvisited, 0] for p in federation.programs.values()])
    slope, mean = np.polyfit(f, z, 1)
    return mean, slope


def test_the_equations_are_the_derivatives_of_the_marginal_likelihood():
    """Site j says y_j ~ N(m_j, tau + 1/H_j), m = F B: gradient and curvature in B by differences of its logarithm."""
    rng = np.random.default_rng(0)
    n, k, tau = 50, 3, 0.7
    F, H, y, B = rng.normal(size=(n, k)), rng.gamma(2.0, 2.0, n), rng.normal(size=n), rng.normal(size=k)
    C = 1.0 / (H + 1.0 / tau)
    P = C * (H * y + F @ B / tau)
    batch = SimpleNamespace(
        site_mean=P[None, :, None], site_cov=C[None, :, None, None], site_prior=(F @ B)[None, :, None],
        tau=np.array([[tau]]), major=[-1], F=F, B=B[None, :, None], of_slopes=np.zeros(k, bool),
    )  # fmt: skip
    sums, distances = feature_sums(batch, np.array([0]), 1)

    def log_likelihood(b):
        return float((-0.5 * (y - F @ b) ** 2 / (tau + 1.0 / H)).sum())

    step = 1e-4 * np.eye(k)
    gradient = [(log_likelihood(B + d) - log_likelihood(B - d)) / 2e-4 for d in step]
    np.testing.assert_allclose(sums[0, :k], gradient, rtol=1e-6)
    w, wide = 1.0 / (tau + 1.0 / H), np.column_stack([F, np.ones(n)])  # the last is the constant
    np.testing.assert_allclose(from_triangle(sums[0, k + 1 :], k + 1), (wide * w[:, None]).T @ wide)
    np.testing.assert_allclose(distances[0, 0], ((P - F @ B) ** 2).sum())


def test_a_fit_ends_where_the_posterior_of_the_coefficients_is_stationary():
    """Sum f (P - M) / tau = B / rho, and MacKay's rho = sum B^2 / (k - tr(cov) / rho) where it is inside its limits."""
    visits, _, covariates = country(3)
    federation = LocalFederation.of_panel(panel_of(visits, "site", covariates))
    fit = federation.fit(COVARIATES)
    state, gradient = fit.state, 0.0
    q = state.features
    for program in federation.programs.values():
        b = program.batches[0]
        away = (b.site_mean - b.site_prior)[0, :, 0]
        gradient = gradient + b.F.T @ away / state.tau[0]
    weight = np.sqrt(np.diag(q.cov[0]))  # in standard errors of the coefficients
    assert np.abs(weight * (gradient - q.B[:, 0] / q.rho[0, 0])).max() < 0.05
    known = (1 - np.diag(q.cov[0]) / q.rho[0, 0]).sum()
    np.testing.assert_allclose(q.rho[0, 0], (q.B[:, 0] ** 2).sum() / known, rtol=0.05)


@pytest.mark.parametrize("gradient", [0.0, 1.0, 60.0])
def test_the_effective_number_of_coefficients_is_the_trace_of_the_hat_matrix_while_variances_move(gradient):
    """tr((A + 1 / rho)^-1 A) at the variances of the step, whether rho falls or rises; a draw's answer has its size."""
    k, rho = 6, 0.1
    rng = rng_for(1, "trace")
    root = rng.normal(size=(40, k))
    A = root.T @ root
    # the constant, which only takes part, knows nothing here
    whole = np.block([[A, np.zeros((k, 1))], [np.zeros((1, k)), np.zeros((1, 1))]])
    columns = np.arange(k)
    agreed = SiteFeatures({"covariates": columns}, (), np.zeros(k), np.eye(k))
    panel = SimpleNamespace(features=agreed)
    begin = start_coefficients(panel, ("covariates",), 1.0, slopes=False)
    state = SimpleNamespace(features=begin, unit=1.0)
    after = feature_step(state, np.r_[np.full(k, gradient), 0.0, to_triangle(whole)], learn=True)
    assert (after.rho[0, 0] > rho) == (gradient == 60.0)
    np.testing.assert_allclose(after.edf, np.trace(np.linalg.solve(A + np.eye(k) / rho, A)), rtol=1e-9)
    drawn = after.drawn(rng_for(2, "trace"))
    assert np.linalg.norm(drawn.B - after.B) <= 2 * np.linalg.norm(drawn.prior)


@pytest.mark.parametrize(
    "features", [("visits",), ("covariates", "smooth"), FEATURES[:-1]]
)  # there is no effort
def test_the_fit_does_not_depend_on_the_groups(features):
    visits, _, covariates = country(2, J=60, years=4)
    rng = rng_for(2, "places")
    covariates |= {"longitude": rng.random(60), "latitude": 45 + rng.random(60)}
    regions = np.where(np.arange(60) % 2, "east", "west")
    one, many = (
        LocalFederation.of_panel(replace(panel_of(visits, by, covariates), region=regions)).fit(
            replace(PLAIN, features=features)
        )
        for by in ("none", "site")
    )
    np.testing.assert_allclose(many.expected(), one.expected(), rtol=1e-8)
    assert one.state.features.k > 0


def test_the_unit_of_a_covariate_does_not_matter():
    visits, _, covariates = country(4, J=60, years=4)
    fits = []
    for factor, shift in ((1.0, 0.0), (3.28, -5.0)):
        other = covariates | {"elevation": shift + factor * covariates["elevation"]}
        fits.append(fit_counts(panel_of(visits, "site", other), COVARIATES))
    np.testing.assert_allclose(fits[1].expected(), fits[0].expected(), rtol=1e-6)


@pytest.mark.slow
def test_sites_that_nobody_visited_are_predicted_better_by_their_covariates():
    """Covariates that explain half of the variance between sites: at least a fifth of the deviance at hidden sites."""
    gains = []
    for seed in range(4):
        visits, gone, covariates = country(seed)
        federation = LocalFederation.of_panel(panel_of(visits, "site", covariates))
        plain, with_them = (
            POISSON.deviance(visits.expected[gone], federation.fit(s).expected()[gone]).mean()
            for s in (PLAIN, COVARIATES)
        )
        gains.append(1 - with_them / plain)
    assert np.mean(gains) > 0.2


def test_a_value_far_outside_counts_as_one_at_the_edge():
    visits, gone, covariates = country(5)
    far = covariates["elevation"].copy()
    far[np.flatnonzero(gone)[:2]] = [20_000.0, 40_000.0]
    expected = fit_counts(
        panel_of(visits, "site", covariates | {"elevation": far, "habitat": np.full(120, "farm", object)}),
        COVARIATES,
    ).expected()
    np.testing.assert_allclose(expected[0], expected[1], rtol=1e-6)
    assert expected[0].mean() < 20 * expected[~gone].mean()


def test_gaps_stand_at_the_mean_and_are_said():
    """A site without a value is expected like one whose features are the mean; a group without the column has gaps."""
    visits, _, covariates = country(6, J=60, years=4)
    height = covariates["elevation"].copy()
    height[:10] = np.nan
    federation = LocalFederation.of_panel(panel_of(visits, "none", {"elevation": height}))
    federation.fit(COVARIATES)
    (program,) = federation.programs.values()
    b = program.batches[0]
    np.testing.assert_allclose(b.F[program.visited].mean(axis=0), 0.0, atol=1e-12)
    assert np.ptp(b.F[:10], axis=0).max() == 0.0
    assert any("10 of 60 sites have no elevation" in n for n in federation.hub.features.notes)


def test_constant_and_collinear_covariates_do_no_harm():
    visits, _, covariates = country(7, J=60, years=4)
    height = covariates["elevation"]
    same = covariates | {"flat": np.full(60, 7.0), "again": 2 * height, "once more": 1 - height}
    federation = LocalFederation.of_panel(panel_of(visits, "site", same))
    plain = fit_counts(panel_of(visits, "site", covariates), COVARIATES)
    fit = federation.fit(COVARIATES)
    assert fit.state.converged
    assert any("flat is the same at all visited sites" in n for n in federation.hub.features.notes)
    np.testing.assert_allclose(np.log(fit.expected()), np.log(plain.expected()), atol=0.3)


def test_too_many_covariates_are_refused():
    visits, _, _ = country(8, J=30, years=3)
    many = {f"x{i}": np.arange(30.0) ** (i % 3) + i for i in range(200)}
    with pytest.raises(ConfigError, match=r"make 400 features .* at most 60"):
        fit_counts(panel_of(visits, "none", many), COVARIATES)


def test_the_order_of_the_features_does_not_matter(monkeypatch):
    """A feature named after the smooth one took a knot's column, and the smooth its own."""
    visits, _, covariates = country(2, J=60, years=3)
    rng, fits = rng_for(2, "places"), []
    covariates |= {"longitude": rng.random(60), "latitude": 45 + rng.random(60)}
    for order in (FEATURES, FEATURES[::-1]):
        for room in ("coefficients", "features"):
            monkeypatch.setattr(f"fedmiss.federation.hub.{room}.FEATURES", order)
        settings = replace(PLAIN, features=("visits", "covariates", "smooth"))
        fits.append(fit_counts(panel_of(visits, "none", covariates), settings).expected())
    np.testing.assert_allclose(*fits, rtol=1e-6)


def test_places_on_both_sides_of_the_date_line_are_near():
    """The smooth put them at the two ends of the world, where it knew nothing of places within each."""
    rng = rng_for(4, "fiji")
    east, latitude = rng.uniform(-2, 2, 150), rng.uniform(-19, -16, 150)
    level = 2 - east**2
    site, month = np.divmod(np.arange(100 * 24), 24)  # the last 50 sites are never visited
    one = Group.of("g", site, month, rng.poisson(np.exp(level[site])).astype(float), site * 0)
    calendar = (np.arange(24) % 12 + 1, 2000 + np.arange(24) // 12)
    near = []
    for longitude in (east, np.where(east < 0, 180 + east, east - 180)):
        places = {"longitude": longitude, "latitude": latitude}
        panel = GroupPanel.of(150, 24, [one], calendar, covariates=places)
        fit = fit_counts(panel, replace(PLAIN, features=("smooth",)))
        near.append(np.corrcoef(np.log(fit.expected()[100:].sum(axis=1)), level[100:])[0, 1])
    assert min(near) > 0.9, near


@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_that_cannot_be_made_is_refused_by_name(feature, dated):
    """Abundance did nothing without a word where the years are too few for slopes."""
    site, month = np.divmod(np.arange(30 * 24), 24)
    one = Group.of("g", site, month, np.ones(site.size), site)
    calendar = (np.arange(24) % 12 + 1, 2000 + np.arange(24) // 12) if dated else None
    even = GroupPanel.of(30, 24, [one], calendar)
    with pytest.raises(ConfigError, match=rf"feature\s+{feature}"):
        fit_counts(even, replace(PLAIN, features=(feature,)))


def test_a_category_that_one_group_alone_has_is_zero_elsewhere():
    """Its column is 0 at the other groups' sites, whose habitat is known, and not a gap."""
    table = expanded(
        {"habitat": np.array(["marsh", "", "farm"], dtype=object), "height": np.array([1, 2, 3])}
    )
    np.testing.assert_array_equal(table["habitat: marsh"], [1.0, np.nan, 0.0])
    assert sorted(table) == ["habitat: farm", "habitat: marsh", "height"]
    visits, _, _ = country(9, J=60, years=4)
    # marshes are those of group g0
    habitat = np.where(np.arange(60) % 3 == 0, "marsh", "farm").astype(object)
    pooled = fit_counts(panel_of(visits, "none", {"habitat": habitat}), COVARIATES)
    dealt = fit_counts(panel_of(visits, "site", {"habitat": habitat}), COVARIATES)
    np.testing.assert_allclose(dealt.expected(), pooled.expected(), rtol=1e-8)


ELEVATION = country(10, J=90, years=4, hidden=0.0)[2]["elevation"]
SITE = np.arange(90)


def jointly(table, minimum=5):
    """A federation of 90 sites, every third of one group, under a least number; and what is asked and answered."""
    panel = panel_of(country(10, J=90, years=4, hidden=0.0)[0], "site", table)
    plain = LocalFederation.of_panel(panel)
    plan = DataSpec(months=stamps_of(panel), jointly=True, minimum=minimum)
    federation = LocalFederation({n: p.held for n, p in plain.programs.items()}, plain.at, 90, plan)
    ask, seen = federation.link.ask, []

    def asked(questions):
        answers = ask(questions)
        seen.extend(zip(questions, answers, strict=True))
        return answers

    federation.link.ask = asked
    return federation, seen


def agreed(federation, features=("covariates",)):
    """Names of the columns, and the notes."""
    got = agree_features(federation.link, federation.hub, features).features
    return list(map(str, got.made)), got.notes


def test_features_with_too_few_sites_or_groups_behind_them_are_left_out_under_least_numbers():
    """With least numbers for sums over groups: a habitat of 4 sites, or of one group, gives no sum of its own."""
    habitat = np.full(90, "farm", dtype=object)
    habitat[:40] = "forest"
    habitat[40:44] = "cliff"
    habitat[SITE % 6 + 100 * (SITE < 45) == 0] = "harbour"  # of group g0 alone
    federation, _ = jointly({"habitat": habitat, "elevation": ELEVATION})
    names, notes = agreed(federation, ("covariates", "smooth", "regions"))
    assert names == ["elevation", "elevation squared", "habitat forest"]  # farms are what is left
    assert any("cliff" in n and "harbour" in n for n in notes)
    with pytest.raises(ConfigError, match="does not tell how often sites were visited"):
        next(iter(federation.programs.values())).reply(msg.SiteVisits())


def test_no_sum_of_a_covariate_is_asked_for_that_too_few_stand_behind():
    """Of a covariate that one site has, the sum is its value: of a place, the place."""
    alone, pair, scarce, few = np.full((4, 90), np.nan)
    alone[:1], pair[SITE % 3 < 2], scarce[:4] = (
        47.1,
        3.0,
        2.0,
    )  # one site of g0; two organisations; four sites
    few[(SITE % 3 > 0) | (SITE < 4)] = 9.0  # g0 has it at two sites, below its own least number
    table = {"elevation": ELEVATION, "alone": alone, "pair": pair, "scarce": scarce, "few": few}
    federation, seen = jointly(table)
    federation.programs["g0"].axis = replace(federation.programs["g0"].axis, minimum=3)
    _, notes = agreed(federation)
    first, _, second = (q for q, _ in seen if isinstance(q, msg.Covariates))
    assert (set(first.names), first.unit.size) == (set(table), 0)
    assert second.names == ("elevation",)
    assert any("have, or differ in, alone, few, pair, scarce: left out" in note for note in notes)


def test_a_feature_that_one_site_sets_apart_gives_no_sum_of_it():
    """A number that only one site has otherwise, two categories and two heights that differ at one, three that do.

    By a difference of sums all members would have that site's coefficient.
    """
    one, again = np.full(90, 3.0), ELEVATION * 3.0 + 1.0
    one[7] = 47.1
    again[3] += 1.0
    table = {
        "elevation": ELEVATION, "elevation2": again, "one": one, "area": np.where(SITE < 20, 0.0, 1.0),
        "habitat": np.where(SITE < 40, "reed", "farm").astype(object),
        "status": np.where(SITE < 41, "kept", "lost").astype(object),
        "wet": np.where(SITE < 20, "a", np.where(SITE < 41, "b", "c")).astype(object),  # a or b: reed, but for one
    }  # fmt: skip
    federation, seen = jointly(table)
    names, _ = agreed(federation)
    assert names == ["area", "elevation", "elevation squared", "habitat farm"]
    asked = [q for q, _ in seen]
    assert all(q.names != tuple(table) or not q.unit.size for q in asked if isinstance(q, msg.Covariates))
    told = [q.kept.sum() for q in asked if isinstance(q, msg.Features) and q.kept.size and q.behind.size]
    assert told == [len(names)]


def test_who_has_too_large_a_share_leaves_no_sum_of_the_others_alone(monkeypatch):
    """Two categories agree but for 15 sites, 13 of them of g0, which withholds its sums: two are left."""
    monkeypatch.setattr(hub_features, "_thinly_crossed", lambda *a: None)  # else no sums are asked for
    other = np.isin(SITE, [*range(0, 39, 3), 1, 2])
    habitat = np.where(SITE % 2, "farm", "reed").astype(object)
    status = np.where((SITE % 2 > 0) ^ other, "lost", "kept").astype(object)
    federation, seen = jointly({"elevation": ELEVATION, "habitat": habitat, "status": status})
    names, _ = agreed(federation)
    assert names == ["elevation", "elevation squared", "habitat farm"]
    sums = [
        {n: a.sums for n, a in told.items()} for _, told in seen if isinstance(told["g0"], msg.FeatureSums)
    ]
    first, last = (one for one in sums if one["g0"].size)
    k = last["g1"].size
    np.testing.assert_allclose(first["g1"][:k], last["g1"], rtol=1e-12)
    assert np.median(np.abs(first["g0"]) / np.abs(first["g1"])) > 1e3  # noise: one number may be small
    assert np.abs(last["g0"]).max() < 90.0


def test_a_gap_at_one_site_sets_it_apart_too():
    """Two categories of the same sites, but that the second is blank at one: a gap counts as the mean, neither 0 nor 1."""
    habitat = np.where(SITE < 54, "reed", np.where(SITE < 72, "farm", "wood")).astype(object)
    status = np.where(SITE < 54, "kept", "lost").astype(object)
    status[0] = ""
    federation, _ = jointly({"habitat": habitat, "status": status})
    assert agreed(federation)[0] == ["habitat farm", "habitat reed"]  # wood is what is left


@pytest.mark.parametrize(("kind", "least", "left"), [("few", 5, False), ("few", 2, True), ("most", 5, True)])
def test_a_custodian_keeps_sums_that_rest_on_few_of_its_own_sites(kind, least, left):
    """With an own least number of 5: a habitat that the organisation has at 3 sites, or lacks at 3, is not used."""
    habitat = np.where(SITE % 2 == 0, "farm", "forest").astype(object)
    if kind == "few":
        own = SITE[::3]
        habitat[own] = "farm"
        habitat[own[:3]] = "forest"
    federation, _ = jointly({"habitat": habitat, "elevation": ELEVATION}, minimum=2)
    for program in federation.programs.values():
        program.axis = replace(program.axis, minimum=least)
    names, _ = agreed(federation)
    assert "habitat forest" not in names  # what farms leave
    assert ("habitat farm" in names) is left
    assert "elevation" in names


def test_draws_of_a_site_that_nobody_visited_hold_the_variance_between_sites_and_of_the_coefficients():
    """The log of its total has, over replicates, at least the variance tau; and draws of B have about their covariance."""
    visits, _, covariates = country(11, J=80, years=4)
    panel = panel_of(visits, "site", covariates)
    federation = LocalFederation.of_panel(panel)
    fit = federation.fit(COVARIATES)
    assert np.isfinite(federation.replicates(range(60), seed=3).totals).all()
    own = [fit.state.features.drawn(rng_for(3, "prior-noise", k)).B[:, 0] for k in range(60)]
    spread = np.std(own, axis=0) / np.sqrt(np.diag(fit.state.features.cov[0]))
    # a start moves by cov / rho times a draw of the prior: less than the posterior's spread, which the data add to
    assert (spread < 1.3).all()
    assert (spread > 0).all()


def test_sites_that_nobody_visited_change_nothing_at_the_others():
    """A frame of any size: the variance between sites is that of visited ones, and they are fitted as without it."""
    visits, _, covariates = country(14, J=60, years=4, hidden=0.0)
    kept = visits.site < 40
    part = SimpleNamespace(
        site=visits.site[kept], month=visits.month[kept], count=visits.count[kept], observer=visits.observer[kept],
        year=visits.year, expected=visits.expected,
    )  # fmt: skip
    without = SimpleNamespace(**{**vars(part), "expected": visits.expected[:40]})
    small = fit_counts(panel_of(without, "site"), PLAIN)
    large = fit_counts(panel_of(part, "site"), PLAIN)
    np.testing.assert_allclose(large.expected()[:40], small.expected(), rtol=1e-9)
    np.testing.assert_allclose(large.posterior.tau, small.posterior.tau, rtol=1e-9)
    np.testing.assert_allclose(large.posterior.P[40:], 0.0, atol=3e-3)  # but for the last round's common part
    height = covariates["elevation"]
    known = {"elevation": np.r_[height[:40], np.full(20, height[:40].mean())]}
    centred = fit_counts(panel_of(part, "site", known), COVARIATES).expected()
    alone = fit_counts(panel_of(without, "site", {"elevation": height[:40]}), COVARIATES).expected()
    np.testing.assert_allclose(np.log(centred[:40]), np.log(alone), atol=0.05)


# -- how often sites were visited --------------------------------------------------------------------------------


def test_a_fit_that_follows_visits_does_not_depend_on_the_groups():
    p = simulate_design("preferred", 2, sites=40, years=5, visits=800)
    one, sites, observers = (federation_of(p, by).fit(SETTINGS) for by in ("none", "site", "observer"))
    np.testing.assert_allclose(sites.expected(), one.expected(), rtol=1e-8)
    np.testing.assert_allclose(observers.expected(), one.expected(), rtol=1e-8)
    assert one.state.features.B[0, 0] > 0.4
    assert (one.state.features.B[:, 1:] == 0).all(), "visits speak for the effect, not for the slope"


def test_a_group_without_a_site_changes_nothing():
    """A club whose visits are all elsewhere: its sums are zeros, also where the prior follows the number of visits."""
    p = simulate_design("preferred", 2, sites=30, years=4, visits=500)
    panel = panel_of(p, "site")
    none = Group.of("g9", p.site[:0], p.month[:0], p.count[:0], p.observer[:0])
    with_it = GroupPanel.of(panel.J, panel.L, [*panel.groups, none], panel.calendar)
    one, other = (LocalFederation.of_panel(each).fit(SETTINGS).expected() for each in (panel, with_it))
    np.testing.assert_allclose(other, one, rtol=1e-9)


def test_a_site_without_a_counted_visit_has_the_prior_of_the_mean_site():
    """The scale is that of the visited sites, and the others stand at 0; both ways of dealing visits say the same."""
    p = simulate_design("preferred", 1)
    seen = ~np.isin(p.site, (3, 17))
    rest = SimpleNamespace(
        **{k: getattr(p, k)[seen] for k in ("site", "month", "count", "observer")},
        year=p.year,
        expected=p.expected,
    )
    visits = np.bincount(rest.site, minlength=len(p.expected))
    want = np.log(visits[visits > 0] + 0.5)
    for by in ("none", "site", "observer"):
        federation = federation_of(rest, by)
        np.testing.assert_allclose(scale_of(federation), [want.mean(), want.std()], rtol=1e-9)
    federation = federation_of(rest)
    (program,) = federation.programs.values()
    z = log_visits(program, np.array([want.mean(), want.std()]))
    assert z[[3, 17]].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(z[visits > 0], (want - want.mean()) / want.std(), rtol=1e-9)
    low = federation.fit(SETTINGS).expected().mean(axis=1)
    assert low[[3, 17]].min() > np.quantile(low, 0.1), "not at the bottom, where the line ends"


def test_a_note_that_others_read_names_no_organisation_without_a_covariate():
    """Members alone know who has which: notes of a study stand in its joint report."""
    has = SimpleNamespace(site_covariates=("elevation",), magnitudes=np.array([10]))
    lacks = SimpleNamespace(site_covariates=(), magnitudes=np.zeros(0))
    of_one_person, of_a_study = [], []
    covariates_of({"north": has, "south": lacks}, of_one_person)
    covariates_of({"north": has, "south": lacks, "west": lacks}, of_a_study, jointly=True)
    assert of_one_person == [
        "group 'south' has no covariate 'elevation'; its sites count as the mean of the others."
    ]
    assert of_a_study == [
        "an organisation has no covariate 'elevation'; its sites count as the mean of the others."
    ]
