"""What the visits say against a trend: sums by year and warnings of a lack of fit; effort that was not what was recorded."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.fit_tables import visited_totals
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.report.fitted import effort_caution, fitted_years, lack_of_fit, no_clear_miss, sensitivity
from fedmiss.report.sections.model import _fitted
from fedmiss.rng import rng_for
from tests.designs import simulate_design


def data(counted, fitted, variance=None, months=3):
    """Inputs with ``months`` months a year, each with a third of the year's birds."""
    years = len(counted)
    month = np.arange(years * months)
    per = lambda x: np.repeat(np.asarray(x, float) / months, months)  # noqa: E731
    columns = {"weight": np.full(years, 30.0), "counted": counted, "fitted": fitted}
    columns["variance"] = fitted if variance is None else variance
    visited = pd.DataFrame({"month_index": month} | {name: per(value) for name, value in columns.items()})
    return visited, pd.DataFrame({"year": 2010 + month // months})


def test_months_are_added_up_to_years():
    table = fitted_years(*data([100, 120, 90, 0], [110, 100, 90, 10]))
    np.testing.assert_allclose(table["counted"], [100, 120, 90, 0])
    np.testing.assert_allclose(table["ratio"], [100 / 110, 1.2, 1.0, 0.0])
    np.testing.assert_allclose(table["ratio_se"], np.array([110, 100, 90, 10]) ** -0.5)
    assert fitted_years(None, pd.DataFrame()).empty


def test_a_drift_is_told_with_its_direction():
    x = np.arange(10)
    down = lack_of_fit(fitted_years(*data(1000 * np.exp(-0.04 * x), np.full(10, 840.0))))
    up = lack_of_fit(fitted_years(*data(840 * np.exp(0.04 * (x - 4.5)), np.full(10, 840.0))))
    assert "30 % below" in down
    assert "the change per year may be too high" in down
    assert "% above" in up
    assert "the change per year may be too low" in up


def test_one_year_that_is_missed_is_named():
    fitted = np.full(8, 400.0)
    counted = fitted.copy()
    counted[4] = 280.0
    said = lack_of_fit(fitted_years(*data(counted, fitted)), "nests")
    assert "2014" in said
    assert "counted and fitted nests" in said


def test_a_level_of_all_years_is_no_miss_of_single_ones():
    """Where sites are there for a find all years are counted above what is fitted, which takes no index away."""
    fitted, level = np.full(8, 400.0), np.full(8, 500.0)
    assert lack_of_fit(fitted_years(*data(level, fitted))) == ""
    level[4] = 700.0
    assert "the counts of 2014 by" in lack_of_fit(fitted_years(*data(level, fitted)))
    level[4] = 390.0  # a fifth below the others' level, and as fitted
    assert lack_of_fit(fitted_years(*data(level, fitted))) == ""


def test_ratios_far_from_one_are_never_called_a_good_fit():
    far = fitted_years(*data([144, 78.3, 138, 100], np.full(4, 100.0), np.full(4, 2500.0)))
    near = fitted_years(*data([104, 98, 101, 100], np.full(4, 100.0)))
    assert lack_of_fit(far) == lack_of_fit(near) == ""
    assert "more than a fifth away from 1" in no_clear_miss(far)
    assert "away from 1" not in no_clear_miss(near)
    assert no_clear_miss(near.head(2)) == ""  # no drift is looked for in two years


@pytest.mark.nightly
def test_noise_is_no_lack_of_fit():
    rng = np.random.default_rng(0)
    said = [
        bool(lack_of_fit(fitted_years(*data(rng.poisson(60, 10), np.full(10, 60.0))))) for _ in range(400)
    ]
    assert np.mean(said) < 0.08  # at the nominal 4.6 % of a two-sided two standard errors, and its own error


# -- closed forms, and that errors in effort are covered -----------------------------------------------------


def findings(visited, powers, *, slope=-0.02, se=0.01, years=8, family="poisson"):
    """What the functions read of a report."""
    months = pd.DataFrame({"year": 2010 + np.arange(12 * years) // 12})
    percents = 100 * np.expm1(slope + se * np.array([0.0, -2.0, 2.0]))
    return SimpleNamespace(
        trend={
            "slope": slope, "percent_per_year": percents[0], "percent_lo": percents[1], "percent_hi": percents[2],
        },
        years=SimpleNamespace(year=2010 + np.arange(years), used=np.ones(years, bool)),
        months=months,
        data=SimpleNamespace(visited=visited, effort=powers, fact=lambda name, default=None: family),
    )  # fmt: skip


def visits(power, growth, sd, years=8, n=4000):
    """Sums of months in which recorded log effort grows and scatters as given."""
    rng = rng_for(0, "effort")
    x = growth * (np.arange(12 * years) // 12)[:, None] + sd * rng.normal(size=(12 * years, n))
    e = power * x
    return pd.DataFrame(
        {
            "month_index": np.arange(12 * years), "weight": float(n), "effort": e.sum(axis=1),
            "effort_square": (e**2).sum(axis=1),
        }
    )  # fmt: skip


def test_the_shift_is_that_of_attenuation():
    """Recorded effort of variance w within months, off by .5: the power is too small by the factor (w - .25) / w."""
    power, growth, sd = 0.3, 0.06, 0.8
    table = sensitivity(findings(visits(power, growth, sd), {"log(hours)": power})).set_index("what")
    reliable = 1 - 0.25 / sd**2
    off = table.loc["recorded effort off by half"]
    shift = np.log1p(off["percent_per_year"] / 100) - np.log1p(
        table.loc["as reported", "percent_per_year"] / 100
    )
    assert shift == pytest.approx(-power * growth * (1 / reliable - 1), rel=0.1)
    # Standard error of the slope: 96 means of 4,000 visits over eight years, whose variance is (8^2 - 1) / 12.
    error = power * sd / np.sqrt(4000 * 96 * 63 / 12)
    assert np.log1p(off["effort_percent"] / 100) == pytest.approx(power * growth, abs=4 * error)
    # the interval holds both
    assert off["percent_lo"] < table.loc["as reported", "percent_lo"]
    assert off["percent_hi"] == table.loc["as reported", "percent_hi"]
    grew = table.loc["effort grew by 1 % a year that nobody recorded", "percent_per_year"]
    assert (1 + grew / 100) * 1.01 == pytest.approx(1 + table.loc["as reported", "percent_per_year"] / 100)


@pytest.mark.parametrize(
    ("power", "growth", "family", "said"),
    [
        (0.3, 0.06, "poisson", True),
        (0.3, 0.0, "poisson", False),
        (0.02, 0.05, "poisson", False),
        (0.3, 0.06, "bernoulli", False),
        (18.0, 0.06, "gaussian", False),  # birds, no power
    ],
)
def test_it_is_said_where_effort_moves_the_trend(power, growth, family, said):
    a = findings(visits(power, growth, 0.8), {"log(hours)": power, "log(hours) unknown": 0.1}, family=family)
    assert bool(effort_caution(a)) is said
    assert np.isfinite(sensitivity(a)["effort_percent"]).all() == (family == "poisson")
    if said:
        assert "grew" in effort_caution(a)[0]


def test_without_effort_nothing_is_said_of_recorded_effort():
    for a in (findings(None, {"log(hours)": 0.3}), findings(visits(0.3, 0.06, 0.8), {}), findings(None, {})):
        assert "recorded effort off by half" not in set(sensitivity(a)["what"])
        assert effort_caution(a) == []
    assert sensitivity(findings(None, {}, slope=np.nan)).empty


def test_counts_scatter_about_the_fitted_ones_as_their_variance_says_on_the_scale_of_logarithms():
    rng, ratios = rng_for(0, "scatter"), []
    J, L, n = 40, 24, 6000
    for _ in range(3):
        s, t = rng.integers(0, J, n), rng.integers(0, L, n)
        eta = 3 + rng.normal(0, 0.6, J)[s] + rng.normal(0, 0.4, L)[t]
        y = np.maximum(np.exp(eta + rng.normal(0, 0.6, n)) - 1, 0)
        settings = CountSettings(rank=0, family="gaussian", scale="log1p")
        fit = fit_counts(GroupPanel.of(J, L, [Group.of("all", s, t, y)]), settings)
        table = visited_totals([(fit.state, fit.settings)])
        ratios.append(((y - fit.expected()[s, t]) ** 2).sum() / table["variance"].sum())
    assert 0.85 < np.mean(ratios) < 1.15


@pytest.mark.slow
def test_effort_that_was_recorded_with_error_is_covered():
    """Effort grows and is recorded with an error of .5: the trend is too high, is said to be doubtful, and the interval
    holds the truth."""
    held, naive, said = [], [], []
    for seed in range(20):
        p = simulate_design("random", seed, trend=0.0)
        x = p.log_effort + 0.5 * rng_for(seed, "error").standard_normal(p.log_effort.size)
        L = p.year.size
        group = Group.of("all", p.site, p.month, p.count, p.observer, effort=x[:, None])
        panel = GroupPanel.of(len(p.expected), L, [group], (np.arange(L) % 12 + 1, p.year))
        federation = LocalFederation.of_panel(panel)
        fit = federation.fit(CountSettings(rank=0, dispersion="negbin"))
        table = pd.DataFrame(visited_totals([(fit.state, fit.settings)]))
        yearly = fit.expected().sum(axis=0).reshape(-1, 12).sum(axis=1)
        slope = np.polyfit(np.arange(8), np.log(yearly), 1)[0]
        months = findings(table, {"log(hours)": float(fit.aux.kappa[0])}, slope=slope, se=0.02)
        off = sensitivity(months).set_index("what").loc["recorded effort off by half"]
        truth = 100 * np.expm1(p.slope)
        held.append(off["percent_lo"] < truth < off["percent_hi"])
        naive.append(slope - p.slope)
        said.append(bool(effort_caution(months)))
    assert np.mean(naive) > 0.02
    assert np.mean(held) >= 0.85
    assert np.mean(said) >= 0.8


def test_a_page_of_presence_counts_visits_and_no_sites():
    """A site that was visited ten times counted ten times among "sites with a find"."""
    visited, months = data([3.0, 4, 5], np.array([3.0, 4, 5]))
    facts = {"family": "bernoulli"}
    held = SimpleNamespace(visited=visited, fact=lambda name, default=None: facts.get(name, default))
    findings = SimpleNamespace(data=held, months=months, unit="sites with a find")
    assert _fitted(findings).columns[2:4] == ["Visits that found the species", "Fitted number of them"]
    facts["family"] = "poisson"
    findings.unit = "nests"
    assert _fitted(findings).columns[2:4] == ["Counted nests", "Fitted nests"]
