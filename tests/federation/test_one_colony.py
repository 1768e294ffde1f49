"""A site with more than half of all birds has a slope of its own: the prior of the others' slopes is not its prior."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.federation.calls import bootstrap, fit_counts
from fedmiss.federation.group import answers
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.group.own_lines import own_lines
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.own_lines import MAJOR
from fedmiss.models.lowrank.settings import CountSettings

YEARS, SIZE = 12, 5.0
T = np.arange(YEARS) - (YEARS - 1) / 2
X = T / np.sqrt((T**2).mean())  # the known line
SETTINGS = CountSettings(rank=0, dispersion="negbin", inverse_size=1.0 / SIZE)


def colony(birds: float, own: float = -0.1, owners: int = 1) -> GroupPanel:
    """Expected counts themselves, without noise: 30 sites of 20 birds without a trend, and one that has its own."""
    mean = np.tile(20.0, (31, YEARS))
    mean[7] = birds * np.exp(own * T)
    site, year = (x.ravel() for x in np.indices(mean.shape))
    groups = [
        Group.of(f"g{k}", site[at], year[at], mean[site[at], year[at]])
        for k, at in ((k, site % owners == k) for k in range(owners))
    ]
    return GroupPanel.of(31, YEARS, groups, (np.full(YEARS, 6), 2001 + np.arange(YEARS)))


def slope_of(totals: np.ndarray) -> np.ndarray:
    return np.polyfit(T, np.log(totals).T, 1)[0]


def test_its_slope_is_what_its_own_counts_and_its_own_prior_say():
    fit = fit_counts(colony(2000.0), SETTINGS)
    q, step = fit.posterior, np.sqrt((T**2).mean())
    line = np.polyfit(X, q.T[:, 0], 1)[0]
    # Each year says 1 / (1 / mean + 1 / size) of the logarithm of its mean.
    told = float((X**2 / (1.0 / (2000.0 * np.exp(-0.1 * T)) + 1.0 / SIZE)).sum())
    expected = line + (-0.1 * step - line) * told / (told + 1.0 / (q.tau[1] + MAJOR))
    np.testing.assert_allclose(line + q.P[7, 1], expected, atol=0.02)
    assert q.tau[1] < 1e-3  # and it does not make the others' slopes differ
    assert abs(slope_of(fit.expected().sum(axis=0)) + 0.1) < abs(slope_of(fit.expected()[7]) + 0.1) + 0.03


def test_a_site_with_less_than_half_goes_with_the_others():
    """Where sites are many and alike their slopes are, and one that is not large says little against that."""
    large, small = (fit_counts(colony(birds), SETTINGS).posterior for birds in (1000.0, 550.0))
    assert large.P[7, 1] < 3.0 * small.P[7, 1] < 0.0


@pytest.mark.parametrize(
    ("times", "what"), [(np.eye(YEARS)[-1] * 300, "a flock"), (np.full(YEARS, 0.001), "few birds")]
)
def test_a_flock_that_came_once_and_few_birds_are_no_reason(times, what):
    """Half of all birds is soon one site's where a species is rare; its slope would run where no count holds it."""
    panel = colony(20.0, own=0.0)
    group = panel.groups[0]
    rest = 1.0 if what == "a flock" else 0.00001
    count = np.where(group.site == 7, 2000.0 * times[group.month], 20.0 * rest)
    rare = GroupPanel.of(panel.J, panel.L, [replace(group, count=count)], panel.calendar)
    assert count[group.site == 7].sum() > count.sum() / 2, what
    assert not fit_counts(rare, SETTINGS).lines.more.any()


@pytest.mark.parametrize("owners", [2, 3])
def test_whose_site_it_is_does_not_matter(owners):
    whole, parts = (fit_counts(colony(2000.0, owners=n), SETTINGS) for n in (1, owners))
    np.testing.assert_allclose(parts.expected(), whole.expected(), rtol=1e-8)
    assert (parts.lines.more > 0).tolist() == (whole.lines.more > 0).tolist() == [j == 7 for j in range(31)]


def test_replicates_draw_its_slope_from_its_own_prior(monkeypatch):
    panel = colony(2000.0)
    whole = fit_counts(panel, SETTINGS)
    perturb, drawn = answers._perturb_prior, []

    def watched(program, batch, fits, p):
        before = batch.site_prior[fits, :, 1].copy()
        perturb(program, batch, fits, p)
        drawn.append(batch.site_prior[fits, :, 1] - before)

    monkeypatch.setattr(answers, "_perturb_prior", watched)
    slopes = bootstrap(panel, whole, draws=200).slopes[:, 7]
    posterior = np.sqrt(whole.posterior.C[7, 1, 1]) / np.sqrt((T**2).mean())
    # Its observer's counts are weighed anew in each, and a weight near 0 leaves its prior: hence the middle of them.
    assert abs(np.median(slopes) - slope_of(whole.expected()[7])) < 0.3 * posterior
    low, high = np.quantile(slopes, [0.16, 0.84])
    assert 0.6 * posterior < (high - low) / 2 < 1.6 * posterior
    variance = np.concatenate(drawn).var(axis=0)
    others = np.delete(variance, 7).mean()
    # A standard error of the variance of 200 normal draws is a tenth of it.
    np.testing.assert_allclose(variance[7], others + MAJOR, rtol=0.4)
    assert others < 0.3 * MAJOR


def test_fits_of_one_batch_have_other_sites_of_most_birds():
    """Without a fold's visits the colony may hold less than half: totals of that fit take the variance of all others."""
    panel = colony(2000.0)
    group = panel.groups[0]
    at = group.month < 9  # beyond, lines have a variance
    group = Group.of("g0", group.site[at], group.month[at], group.count[at])
    panel = GroupPanel.of(panel.J, YEARS, [group], panel.calendar)
    federation = LocalFederation.of_panel(panel)
    federation.fit(SETTINGS)
    (program,) = federation.programs.values()
    batch = program.batches[0]
    both = SimpleNamespace(
        slopes=True, tau=np.array([[1.0, 0.01], [1.0, 0.01]]), major=np.array([7, -1]), cells=batch.cells,
        own_lines=lambda f, year: batch.own_lines(0, year), common_slopes=lambda f: batch.common_slopes(0),
    )  # fmt: skip
    both.prior_variances = lambda f, p: Batch.prior_variances(both, f, p)
    with_colony, without = (own_lines(program, both, drawn=False)(f)[2] for f in range(2))
    expected = np.where(np.arange(31) == 7, 1.0 + MAJOR / 0.01, 1.0)
    np.testing.assert_allclose(with_colony[:, -1] / without[:, -1], expected)
