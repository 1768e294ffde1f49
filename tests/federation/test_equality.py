"""The federated answer is the pooled one: fit, cross-validation and bootstrap, own sites and shared ones."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import InputError
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.group.panel import stamps_of, visits_of
from fedmiss.federation.group.visits import Visits, unite
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.bootstrap import totals_of
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.simulate.panels import simulate_panel

from .owners import largest, owned, pooled, renumbered

NEGBIN = CountSettings(rank=2, dispersion="negbin")


@pytest.mark.parametrize(("owners", "shared"), [(1, 0.0), *((n, s) for n in (3, 10) for s in (0.0, 0.4))])
@pytest.mark.parametrize("rank", [0, 2])  # a fit of rank 2 begins as one of rank 1
def test_monthly_totals_equal_the_pooled_ones(owners, shared, rank):
    panel = owned(owners, J=30, L=24, n=600, shared=shared, size=2.0, seed=rank)
    settings = CountSettings(rank=rank, dispersion="negbin")
    one = LocalFederation.of_panel(panel)
    a = one.fit(settings)
    b = LocalFederation.of_panel(panel.pooled()).fit(settings)
    assert a.fit.sweeps == b.fit.sweeps
    assert largest(a.expected().sum(axis=0), b.expected().sum(axis=0)) < 1e-10
    assert len(one.programs) == (1 if shared else owners)  # groups that share sites are one


@pytest.mark.parametrize(
    "settings",
    [
        CountSettings(rank=1, dispersion="quasi"),
        CountSettings(rank=1, family="gaussian", scale="log1p"),
        CountSettings(rank=1, family="bernoulli"),
        CountSettings(rank=1, dispersion="negbin", season=False),
        CountSettings(rank=1, dispersion="negbin", observers=True),
    ],
    ids=["quasi", "log1p", "bernoulli", "no season", "observers"],
)
@pytest.mark.parametrize("effort", [False, True])
def test_every_family_with_and_without_effort(settings, effort):
    panel = owned(3, effort=effort, seed=4)
    a, b = fit_counts(panel, settings), fit_counts(panel.pooled(), settings)
    assert largest(a.expected().sum(axis=0), b.expected().sum(axis=0)) < 1e-10
    np.testing.assert_allclose(a.aux.kappa, b.aux.kappa, rtol=1e-9)
    # effects of observers stay at home, and change nothing
    np.testing.assert_allclose(np.concatenate(a.aux.observer), b.aux.observer[0], rtol=1e-8, atol=1e-12)


def test_a_checklist_of_two_groups_counts_once_in_the_pooled_panel_too():
    ids = np.array([f"c{k}" for k in range(12)])
    site, month = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    a = Group.of("a", site, month, np.arange(12.0), checklist=ids)
    b = Group.of("b", site[:5], month[:5], np.arange(5.0), checklist=ids[:5], exposure=np.ones(5))
    panel = GroupPanel.of(4, 3, [b, a])
    once, *twice = (
        fit_counts(one, CountSettings(rank=0, season=False))
        for one in (GroupPanel.of(4, 3, [a]), panel, panel.pooled())
    )
    for fit in twice:
        assert fit.n_counted == once.n_counted == 12
        np.testing.assert_allclose(fit.expected(), once.expected(), rtol=1e-9)


def test_the_whole_default_job():
    panel = owned(3, size=2.0, n=700, seed=6)
    apart, together = LocalFederation.of_panel(panel), pooled(panel)
    tables = []
    for federation in (apart, together):
        choice = federation.cross_validate(default_candidates(NEGBIN, max_rank=2), folds=3)
        federation.fit(choice.best)
        draws = federation.replicates(range(6), seed=0)
        tables.append((choice, draws))
    (choice, draws), (reference, other) = tables
    assert choice.best == reference.best
    assert choice.advice == reference.advice
    for column in ("n", "deviance", "log_rmse", "total_bias"):
        np.testing.assert_allclose(choice.table[column], reference.table[column], rtol=1e-9)
    assert largest(draws.totals, other.totals) < 1e-10
    np.testing.assert_allclose(draws.slopes, other.slopes, rtol=1e-8, atol=1e-12)


@pytest.mark.slow
def test_results_do_not_depend_on_how_sites_are_numbered():
    panel = owned(3, size=2.0, seed=7)
    order = np.random.default_rng(1).permutation(panel.J)
    again = renumbered(panel, order)
    # secrets come from the visits, whose order has changed: give both the same
    secrets = {group.name: group.name.encode() for group in panel.groups}
    a, b = (LocalFederation.of_panel(one, secrets=secrets) for one in (panel, again))
    for f in (a, b):
        f.fit(NEGBIN)
    folds = [f.cross_validate([NEGBIN], folds=3, by="cell").table for f in (a, b)]
    np.testing.assert_allclose(folds[0]["deviance"], folds[1]["deviance"], rtol=1e-8)
    c, d = a.replicates([3], seed=0), b.replicates([3], seed=0)
    np.testing.assert_allclose(c.slopes[0][order], d.slopes[0], rtol=1e-7, atol=1e-10)


def test_groups_that_share_sites_are_one_through_others_too_and_observers_stay_two():
    """a and b meet at site 1, b and c at site 2: one group of three; d and e have sites of their own."""
    visits = {"a": [0, 1, 1], "b": [1, 2], "c": [2, 3], "d": [4, 5], "e": [6]}
    rng = np.random.default_rng(0)
    of = {name: (sites, range(len(sites)), rng.poisson(4, len(sites))) for name, sites in visits.items()}
    groups = [Group.of(name, *columns, [0] * len(columns[0])) for name, columns in of.items()]
    panel = GroupPanel.of(8, 3, groups)
    federation = LocalFederation.of_panel(panel)
    assert federation.groups_of == {"a, b, c": ["a", "b", "c"], "d": ["d"], "e": ["e"]}
    # nobody visited site 7: the first by name has it
    assert federation.at["a, b, c"].tolist() == [0, 1, 2, 3, 7]
    one = federation.programs["a, b, c"].need()
    assert np.unique(one.observer).size == 3
    pairs = sorted(zip(federation.at["a, b, c"][one.site].tolist(), one.count.tolist(), strict=True))
    expected = [(s, y) for g in groups[:3] for s, y in zip(g.site.tolist(), g.count.tolist(), strict=True)]
    assert pairs == sorted(expected)


def test_what_groups_bring_of_their_sites_and_visits_stays_theirs_when_they_are_one():
    """Exposures, weights, covariates and regions of two groups with one site in common, visit by visit."""
    a = visits_at([0, 1], exposure=np.array([2.0, 3.0]), covariates={"height": np.array([1.0, 2.0])})
    b = visits_at([0, 1], covariates={"wood": np.array([7.0, 8.0])}, frame=True)
    held, at, parts, dropped = unite({"a": a, "b": b}, {"a": np.array([0, 1]), "b": np.array([1, 2])}, 3)
    one = held["a, b"]
    assert (list(held), parts, dropped) == (["a, b"], {"a, b": ["a", "b"]}, 0)
    assert at["a, b"].tolist() == [0, 1, 2]
    assert one.site.tolist() == [0, 1, 1, 2]
    assert one.exposure.tolist() == [2.0, 3.0, 1.0, 1.0]
    assert one.observer.tolist() == [0, 1, 2, 3]
    assert one.frame
    np.testing.assert_array_equal(one.covariates["height"], [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(one.covariates["wood"], [np.nan, 7.0, 8.0])  # b knows it of the common site


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"species": "Larus canus"}, "group 'b' holds 'Larus canus', group 'a' ''"),
        ({"calendar": True}, "group 'b' has calendar months, unlike group 'a'"),
        ({"effort": np.zeros((2, 1))}, "group 'b' has 1 effort covariates, group 'a' 0"),
    ],
    ids=["species", "calendar", "effort"],
)
def test_groups_of_another_kind_are_not_made_one_but_refused_by_name(more, words):
    a, b = visits_at([0, 1]), replace(visits_at([0, 1]), **more)
    if "species" in more:
        a, words = replace(a, species="Larus fuscus"), words.replace("''", "'Larus fuscus'")
    with pytest.raises(InputError, match=words):
        LocalFederation({"a": a, "b": b}, dict.fromkeys("ab", np.arange(2)), 2, DataSpec())


def check_own_totals(federation, panel, fit):
    """Own totals of each group are those of the sites that it visited."""
    totals_of(federation.link, federation.hub, [(0, [federation.members[0].state])])
    for part, own in zip(federation.groups_of.values(), federation.programs.values(), strict=True):
        for name, total in zip(part, own.own_totals[0, 0], strict=True):
            sites = np.unique(next(g.site for g in panel.groups if g.name == name))
            np.testing.assert_allclose(total, fit.expected()[sites].sum(axis=0), rtol=1e-9)


def test_many_groups_with_sites_of_their_own_are_few_programs_and_one_fit():
    """Own totals stay those of each group; with a least number the groups stay apart, since it is theirs."""
    panel = owned(40, J=80, n=1200, seed=12)
    held, at = visits_of(panel)
    federation = LocalFederation(held, at, panel.J, DataSpec(months=stamps_of(panel)), own=True)
    assert len(federation.programs) == 14  # three groups each, since 40 / 16 is rounded up
    assert [name for part in federation.groups_of.values() for name in part] == sorted(held)
    fit = federation.fit(NEGBIN)
    pooled = LocalFederation.of_panel(panel.pooled()).fit(NEGBIN)
    np.testing.assert_allclose(fit.expected(), pooled.expected(), rtol=1e-8)
    check_own_totals(federation, panel, fit)
    apart = LocalFederation(held, at, panel.J, DataSpec(months=stamps_of(panel), minimum=2))
    assert list(apart.programs) == sorted(held)


def test_a_groups_own_totals_are_those_of_the_sites_that_it_visited():
    """Sites that nobody visited are dealt to the first group, and stand in no group's own report."""
    panel = owned(3, J=20, shared=0.4, n=300, seed=11)
    wide = GroupPanel.of(30, panel.L, panel.groups, panel.calendar, np.arange(30).astype(str).astype(object))
    held, at = visits_of(wide)
    federation = LocalFederation(held, at, wide.J, DataSpec(months=stamps_of(wide)), own=True)
    fit = federation.fit(NEGBIN)
    check_own_totals(federation, wide, fit)


@pytest.mark.parametrize(
    "settings",
    [
        NEGBIN, CountSettings(rank=1, observers=True), CountSettings(rank=0, family="bernoulli"),
        CountSettings(rank=0, dispersion="negbin", occupancy=True),
    ],
    ids=["negbin", "observers", "bernoulli", "occupancy"],
)  # fmt: skip
def test_groups_that_share_sites_have_the_bits_of_one_group(settings):
    panel = owned(3, J=30, L=36, n=500, shared=0.5, size=2.0, seed=12)
    one, whole = fit_counts(panel, settings), fit_counts(panel.pooled(), settings)
    np.testing.assert_array_equal(one.expected(), whole.expected())
    np.testing.assert_array_equal(np.concatenate(one.aux.observer), whole.aux.observer[0])


def visits_at(site, **more):
    site = np.asarray(site, np.int32)
    m, J = site.size, int(site.max()) + 1
    return Visits(
        site_id=np.arange(J).astype(str).astype(object), site=site, month=np.arange(m), count=np.ones(m),
        detected=np.ones(m, bool), observer=np.arange(m, dtype=np.int32), effort=np.zeros((m, 0)), weight=np.ones(m),
        region=np.full(J, "", object), given=True, calendar=False, **more,
    )  # fmt: skip


@pytest.mark.slow
def test_sites_that_groups_keep_apart_count_in_each():
    panel = owned(3, shared=0.3, size=2.0, n=1500, seed=8)
    one, apart = LocalFederation.of_panel(panel), LocalFederation.of_panel(panel, apart=True)
    assert (len(one.programs), len(apart.programs)) == (1, 3)
    owners = sum(np.bincount(np.unique(g.site), minlength=panel.J) for g in panel.groups)
    assert (one.hub.J, apart.hub.J) == (panel.J, owners.sum() + (owners == 0).sum())
    assert np.isfinite(apart.fit(NEGBIN).expected()).all()
    own = owned(3, shared=0.0, size=2.0, seed=8)  # without shared sites there is no difference at all
    c, d = (LocalFederation.of_panel(own, apart=a).fit(NEGBIN).expected() for a in (True, False))
    np.testing.assert_array_equal(c, d)


def test_kept_rounds_are_of_one_state_of_all_that_groups_hold():
    """Also of weights, exposures and checklists, which the secrets of groups in memory do not follow from."""
    p = simulate_panel(12, 12, 0.5, seed=1)
    group = Group.of("a", p.site_index, p.month_index, p.y)
    ones = np.ones(group.count.size)
    names = ones.astype(str).astype(object)
    others = [{}, {"weight": 2 * group.weight}, {"exposure": 2 * ones}, {"checklist": names}]
    panels = [GroupPanel.of(12, 12, [replace(group, **change)]) for change in others]
    assert len({LocalFederation.of_panel(panel).link.job for panel in panels}) == 4


def test_a_row_that_sums_visits_is_those_visits():
    rng = np.random.default_rng(3)
    J, S = 25, 14
    n = rng.integers(1, 5, (J, S))
    eta = rng.normal(size=J)[:, None] + rng.normal(size=S) + np.outer(rng.normal(size=J), rng.normal(size=S))
    j, s = np.repeat(np.indices((J, S)).reshape(2, -1), n.ravel(), axis=1)
    y = rng.poisson(np.exp(eta[j, s])).astype(float)
    summed = np.zeros((J, S))
    np.add.at(summed, (j, s), y)
    at, of = np.indices((J, S)).reshape(2, -1)
    sums = Group.of("all", at, of, summed.ravel(), exposure=n.ravel().astype(float))
    settings = CountSettings(rank=1, dispersion="none")
    each, whole = (
        fit_counts(GroupPanel.of(J, S, [group]), settings) for group in (Group.of("all", j, s, y), sums)
    )
    np.testing.assert_allclose(whole.expected(), each.expected(), rtol=1e-6)
