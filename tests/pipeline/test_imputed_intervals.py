"""Imputed cells with intervals and draws: what is held out is covered, and draws have the laws of the intervals."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss import FitSettings, ImputeSettings, SiteMonthImputer, fit_panel, impute_panel, open_fit
from fedmiss.errors import ConfigError
from fedmiss.pipeline.fit_folder import read_fit
from fedmiss.pipeline.panels import open_panel
from fedmiss.pipeline.plans import base_settings, federation_of
from fedmiss.report.analysis import analyse
from fedmiss.report.inputs import read_inputs
from fedmiss.report.settings import ReportSettings
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from tests.folders import frame

BARE = {"model": "quasi", "structure": "none"}  # nothing is chosen: these laws are not about the choice
LIMITS = ("expected_lower", "expected_upper", "lower", "upper")


def _world(folder, seed=3):
    """40 sites, 24 months, half of the cells seen; the truth of all cells."""
    p = simulate_panel(40, 24, 0.5, seed=seed, groups=2)
    return p, write_panel(p, folder / "panel")


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intervals")
    p, panel = _world(folder)
    fit = fit_panel(panel, folder / "fit", FitSettings(rank=1, bootstrap=0, **BARE))
    imputed = impute_panel(panel, fit, folder / "imputed", ImputeSettings(draws=60))
    return p, panel, fit, imputed


def test_the_table_has_intervals_that_hold_the_expected_count(chain):
    _, panel, fit, imputed = chain
    table = frame(imputed / "imputed")
    assert table[list(LIMITS)].notna().all().all()
    assert (table["expected_lower"] <= table["expected"]).all()
    assert (table["expected"] <= table["expected_upper"]).all()
    # scatter comes on top: one visit's count varies more than its expectation
    assert (table["upper"] >= np.floor(table["expected_upper"])).all()
    assert (table["lower"] == np.rint(table["lower"])).all()
    opened = open_fit(panel, fit).imputed()
    for name in ("expected", *LIMITS):
        np.testing.assert_array_equal(opened[name], table[name])


def test_draws_have_the_moments_and_the_quantiles_of_the_intervals(chain):
    """Over draws: mean log expectation and its standard deviation, and the share of counts inside the interval."""
    _, _, _, imputed = chain
    table = frame(imputed / "imputed")
    draws = frame(imputed / "draws", "imputed_draws")
    n, cells = 60, len(table)
    assert len(draws) == n * cells
    assert sorted(draws["draw"].unique()) == list(range(n))
    log = np.log(draws["expected"].to_numpy().reshape(n, cells))
    middle = 0.5 * np.log(table["expected_lower"] * table["expected_upper"])
    sd = np.log(table["expected_upper"] / table["expected_lower"]) / (2 * 1.96)
    z = (log.mean(axis=0) - middle) / (sd / np.sqrt(n))
    # months are drawn once for all sites: their errors do not average out over cells
    assert abs(z.mean()) < 0.6
    assert 0.85 < (log.std(axis=0, ddof=1) / sd).mean() < 1.15
    counts = draws["count"].to_numpy().reshape(n, cells)
    inside = (counts >= table["lower"].to_numpy()) & (counts <= table["upper"].to_numpy())
    assert 0.945 < inside.mean() < 0.995


def test_draws_do_not_depend_on_their_number_and_follow_the_seed(chain, tmp_path):
    _, panel, fit, imputed = chain
    few = impute_panel(panel, fit, tmp_path / "few", ImputeSettings(draws=3))
    a = frame(imputed / "draws", "imputed_draws")
    b = frame(few / "draws", "imputed_draws")
    np.testing.assert_array_equal(a["count"][: len(b)], b["count"])
    other = impute_panel(panel, fit, tmp_path / "other", ImputeSettings(draws=3, seed=1))
    c = frame(other / "draws", "imputed_draws")
    assert (b["count"] != c["count"]).any()
    result = open_fit(panel, fit)
    np.testing.assert_array_equal(result.draw_counts(3).ravel(), b["count"])
    for number in (2.5, "x", True):
        with pytest.raises(ConfigError, match=r"draw_counts: number is .* \(must be an? "):
            result.draw_counts(number)


@pytest.mark.parametrize("n_sites", [3, 12])
def test_a_fit_read_in_python_has_the_class_of_its_page_and_the_reason_for_none(tmp_path, n_sites):
    panel = write_panel(simulate_panel(n_sites, 84, 0.6, seed=2), tmp_path / "panel")
    fit = fit_panel(panel, tmp_path / "fit", FitSettings(rank=0, bootstrap=20, **BARE))
    page = analyse(read_inputs(panel, fit, impute_panel(panel, fit, tmp_path / "imputed")), ReportSettings())
    told = open_fit(panel, fit).trend().iloc[0]
    for name in ("trend_class", "reason", "n_years", "percent_lo"):
        assert told[name] == page.trend[name], name
    assert ("counted in two or more years" in told["reason"]) == (n_sites < 5)


def test_a_species_that_was_never_found_has_no_class_whatever_the_base(tmp_path):
    p = simulate_panel(6, 24, 0.6, seed=3)
    panel = write_panel(replace(p, y=0 * p.y), tmp_path / "panel")
    species = open_fit(panel, fit_panel(panel, tmp_path / "fit", FitSettings(rank=0, bootstrap=0, **BARE)))
    for base in (None, 2000):
        trend, index = species.trend(base).iloc[0], species.index(base)
        assert trend["trend_class"] == "not classified"
        # Nor an index or a change, as in the report: they would be those of the model.
        assert trend[["slope", "percent_per_year"]].isna().all()
        assert index["index"].isna().all()
        assert not index["used"].any()
    assert "not classified, 0 visits found the species" in species._repr_html_()
    species.plot_index()


@pytest.mark.slow
def test_hidden_counts_are_covered():
    """Whole process on ten panels: 92 to 98.5 % of counts in cells that nobody saw lie inside their intervals."""
    from fedmiss import CountSettings, Group, GroupPanel, fit_counts
    from fedmiss.federation.results import AverageFit

    inside, total = 0, 0
    for seed in range(10):
        p = simulate_panel(60, 36, 0.35, seed=seed, groups=1)
        out = np.random.default_rng(seed).random(p.y.size) < 0.25
        j, t = p.site_index, p.month_index
        group = Group.of("all", j[~out], t[~out], p.y[~out])
        fit = fit_counts(GroupPanel.of(60, 36, [group]), CountSettings(rank=2, dispersion="negbin"))
        band = AverageFit(fit.fits).interval()
        y, at = p.y[out], (j[out], t[out])
        inside += int(((y >= band.lower[at]) & (y <= band.upper[at])).sum())
        total += int(out.sum())
    assert 0.92 < inside / total < 0.985


def test_the_paper_s_algorithm_refuses_a_rank_that_no_matrix_of_the_panel_has(tmp_path):
    """It fitted rank 8, "as asked for"."""
    panel = write_panel(simulate_panel(20, 8, 0.6, seed=2, groups=2), tmp_path / "panel")
    with pytest.raises(
        ConfigError, match=r"--rank is 9 \(must be at most 8, the lesser of \d+ sites and 8 months"
    ):
        fit_panel(panel, tmp_path / "fit", FitSettings(method="fedmissem", rank=9, rounds=2))


def test_methods_without_errors_leave_the_limits_empty(tmp_path):
    p = simulate_panel(20, 12, 0.6, seed=2, groups=2)
    panel = write_panel(p, tmp_path / "panel")
    fit = fit_panel(panel, tmp_path / "fit", FitSettings(method="fedmissem", rank=1, rounds=20))
    table = frame(impute_panel(panel, fit, tmp_path / "i") / "imputed")
    assert table[list(LIMITS)].isna().all().all()
    assert open_fit(panel, fit).imputed()["lower"].isna().all()
    fixed = fit_panel(panel, tmp_path / "fixed", FitSettings(time="fixed", bootstrap=0))
    table = frame(impute_panel(panel, fixed, tmp_path / "k") / "imputed")
    assert table[list(LIMITS)].isna().all().all()
    with pytest.raises(ConfigError, match="only fits of --method fast"):
        impute_panel(panel, fit, tmp_path / "j", ImputeSettings(draws=2))
    assert not (tmp_path / "j").exists()
    with pytest.raises(ConfigError, match="--seed does nothing"):
        ImputeSettings(seed=3)


def test_the_imputer_draws_completed_matrices():
    """Observed counts stay; the mean over draws is the filled value; rows with fewer counts vary more."""
    rng = np.random.default_rng(0)
    mean = np.exp(1.5 + rng.normal(0, 0.7, 80)[:, None] + rng.normal(0, 0.3, 20)[None, :])
    X = rng.poisson(mean).astype(float)
    X[rng.random(X.shape) < 0.3] = np.nan
    X[:20, 1:] = np.nan  # one count each, at most
    imputer = SiteMonthImputer(rank=0, dispersion="none").fit(X)
    draws = imputer.draw(X, 300, random_state=4)
    seen = np.isfinite(X)
    np.testing.assert_array_equal(draws[:, seen], np.tile(X[seen], (300, 1)))
    filled = imputer.transform(X)
    np.testing.assert_allclose(draws[:, 20:][:, ~seen[20:]].mean(), filled[20:][~seen[20:]].mean(), rtol=0.05)
    spread = draws.std(axis=0) / np.sqrt(np.maximum(filled, 1e-9))
    assert spread[:20][~seen[:20]].mean() > 1.3 * spread[20:][~seen[20:]].mean()
    np.testing.assert_array_equal(imputer.draw(X, 2, random_state=4), draws[:2])
    with pytest.raises(ValueError, match="number is 0"):
        imputer.draw(X, 0)


def test_ends_of_the_sites_own_lines_go_through_the_folders(tmp_path):
    """Expected counts and limits beyond the visits of a site are the same before and after the fit was written."""
    panel = write_panel(
        simulate_panel(24, 72, 0.03, rank=0, seed=5, groups=2), tmp_path / "panel", start="2012-01"
    )
    settings = FitSettings(rank=0, model="quasi", bootstrap=0)
    table = frame(
        impute_panel(panel, fit_panel(panel, tmp_path / "fit", settings), tmp_path / "imputed") / "imputed"
    )
    here = federation_of(open_panel(panel), settings).fit(base_settings(settings))
    assert here.lines is not None
    assert (here.lines.bend() != 0).mean() > 0.2
    np.testing.assert_allclose(table["expected"], here.expected().ravel(), rtol=1e-9)
    limits = here.interval()
    for name in ("lower", "upper", "expected_lower", "expected_upper"):
        np.testing.assert_allclose(table[name], getattr(limits, name).ravel(), rtol=1e-9)


@pytest.mark.slow
def test_empty_sites_go_through_the_folders(tmp_path):
    """Probability of presence, expected counts and limits are the same before and after the fit was written."""
    _, panel = _world(tmp_path)
    settings = FitSettings(rank=0, model="quasi", bootstrap=3, occupancy=True)
    fit = fit_panel(panel, tmp_path / "fit", settings)
    imputed = impute_panel(panel, fit, tmp_path / "imputed", ImputeSettings(draws=2))
    table = frame(imputed / "imputed")
    manifest, read = read_fit(fit)
    np.testing.assert_allclose(read.expected(), table["expected"].to_numpy().reshape(read.J, read.L))
    here = federation_of(open_panel(panel), settings).fit(base_settings(settings))
    np.testing.assert_allclose(table["occupied"], here.present().ravel(), atol=1e-9)
    np.testing.assert_allclose(table["expected"], here.expected().ravel(), rtol=1e-9)
    assert len(manifest["results"]["occupancy"]) == 3
