"""``--method saem``: the chains agree with quadrature, and the default fit with the chains, on small panels."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.files import read_manifest
from fedmiss.models.saem.chains import Langevin
from fedmiss.models.saem.counts import Counts, ShiftedCounts, simulate_counts
from fedmiss.pipeline.fit_folder import read_fit
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.results import open_fit
from fedmiss.pipeline.saem import posterior_of_sites
from fedmiss.pipeline.settings import FitSettings
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from tests.folders import frame


def folder(tmp, panel):
    return write_panel(panel, tmp / "panel", start="2012-01", settings={})


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    made = simulate_panel(
        60, 12, 0.9, rank=0, seed=2, observers=12, groups=3, family="negbin", size=10.0, effort_sd=0.0
    )
    return folder(tmp_path_factory.mktemp("saem"), made)


@pytest.mark.slow
@pytest.mark.nightly
def test_totals_and_sites_agree_with_the_default_fit_of_rank_0(panel, tmp_path):
    """Tolerance: 2 % between seeds is Monte Carlo; 6 % in a month and 2.5 % root mean square against the default.

    A month's own standard error is about 8 % here, so the approximations are far below what the data can tell.
    """
    _, fast = read_fit(
        fit_panel(panel, tmp_path / "fast", FitSettings(model="negbin", rank="0", bootstrap=0))
    )
    found = []
    for seed, p in ((0, 1.0), (1, 0.5)):
        out = fit_panel(
            panel, tmp_path / f"saem{seed}", FitSettings(method="saem", seed=seed, participation=p)
        )
        manifest, fit = read_fit(out)
        found.append(fit)
        results = manifest["results"]
        assert results["method"] == "saem"
        assert "NaN" not in (out / "manifest.json").read_text()  # which JSON does not have
        assert results["overdispersion"] == pytest.approx(
            np.log1p(1 / 10.0), abs=3 * results["standard_errors"]["overdispersion"]
        )
        # 1/sqrt(2 * 60) = 0.09 with the effects seen
        assert 0.05 < results["standard_errors"]["site_sd"] < 0.2
        trace = frame(out / "trace")
        assert len(trace) == 900
        assert trace["bytes_up"].sum() == results["bytes_up"] > 0
    totals = [np.log(f.expected().sum(axis=0)) for f in (fast, *found)]
    sites = [f.theta.a - f.theta.a.mean() for f in (fast, *found)]
    assert np.abs(totals[1] - totals[2]).max() < 0.02
    assert np.abs(totals[0] - totals[1]).max() < 0.06
    assert np.sqrt(np.mean((totals[0] - totals[1]) ** 2)) < 0.025
    assert np.sqrt(np.mean((sites[0] - sites[1]) ** 2)) < 0.02 < 0.05 * sites[0].std()
    assert len(open_fit(panel, tmp_path / "saem0").totals()) == 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Counts, ShiftedCounts])
def test_posteriors_of_sites_are_those_of_quadrature(kind):
    rows = simulate_counts(1, 12, 8, seen=0.6, seed=3)[0]
    model = kind(8, level=True)
    theta = model.T(model.statistic(rows, model.latent_start(rows, 1)))
    assert np.ptp(theta.w) == 0  # one loading for all months
    u, weight, *_ = model._quadrature(theta, rows)
    mean = weight @ u
    sd = np.sqrt(weight @ u**2 - mean**2)
    found, cov = posterior_of_sites(model, theta, rows, rounds=400, M=8)
    assert np.abs((found[:, 0] - mean) / sd).max() < 0.12
    np.testing.assert_allclose(np.sqrt(cov[:, 0, 0]), sd, rtol=0.12)


def test_workers_of_two_seeds_share_no_draws():
    rows = simulate_counts(1, 6, 4, seen=0.8, seed=3)[0]
    model = ShiftedCounts(4, level=True)
    theta = model.T(model.statistic(rows, model.latent_start(rows, 1)))
    second, first = (
        posterior_of_sites(model, theta, rows, rounds=2, M=1, seed=seed, worker=worker)[0]
        for seed, worker in ((0, 1), (1, 0))
    )
    assert not np.array_equal(second, first)


@pytest.mark.slow
def test_shifts_make_a_sticky_chain_move():
    """Small overdispersion: autocorrelation of u over 10 steps is above 0.8 without shifts, below 0.3 with them."""
    rows, lag = simulate_counts(1, 20, 8, seen=0.8, seed=4)[0], 10
    left = {}
    for kind in (Counts, ShiftedCounts):
        model = kind(8, level=True)
        theta = replace(model.T(model.statistic(rows, model.latent_start(rows, 1))), s2=0.01)
        rng, state, seen = np.random.default_rng(5), model.latent_start(rows, 10), []
        for k in range(700):
            state, _ = model.move(theta, rows, state, Langevin(), rng)
            if k >= 100:
                seen.append(state["u"])
        u = np.array(seen) - np.mean(seen, axis=(0, 1))
        left[kind] = (u[lag:] * u[:-lag]).mean() / (u * u).mean()
    assert left[Counts] > 0.8
    assert left[ShiftedCounts] < 0.3


def test_the_m_step_with_a_level_is_the_argmax_and_keeps_the_other_loadings_free():
    rows = simulate_counts(1, 20, 5, seen=0.9, seed=6)[0]
    model = Counts(5, r=2, level=True)
    S = model.statistic(rows, model.latent_start(rows, 2))
    theta = model.T(S)
    assert np.ptp(theta.w[:, 0]) == 0 < np.ptp(theta.w[:, 1])
    v = model.vector(theta)
    assert v.shape == (5 + 5 + 1 + 1,)
    best = model.complete(v, S)
    for i in range(len(v)):
        for h in (1e-3, -1e-3):
            assert model.complete(v + h * np.eye(len(v))[i], S) < best
    with pytest.raises(ConfigError, match="level=True with r=0"):
        Counts(4, r=0, level=True)


def test_what_chains_cannot_fit_is_refused(panel, tmp_path):
    for settings, words in (({"rounds": 3}, "--rounds is 3"), ({"rank": "11"}, "--rank 11: at most 4")):
        with pytest.raises(ConfigError, match=words):
            fit_panel(panel, tmp_path / "x", FitSettings(method="saem", **settings))
    big = simulate_panel(900, 24, 1.0, rank=0, seed=1, observers=9, groups=2)
    with pytest.raises(
        ConfigError, match=r"21,600 counted visits \(at most 20,000\).*fewer months or sites.*--method fast"
    ):
        fit_panel(folder(tmp_path, big), tmp_path / "y", FitSettings(method="saem"))
    few = simulate_panel(30, 24, 0.5, rank=0, seed=1, observers=9, groups=2)
    none = replace(few, y=np.where(few.month_index == 5, 0.0, few.y))
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"1 of 24 months have zero birds in all visits \(first 2012-06\)"):
        fit_panel(folder(tmp_path / "none", none), tmp_path / "y", FitSettings(method="saem"))
    assert not (tmp_path / "y").exists()


@pytest.mark.nightly
@pytest.mark.slow
def test_an_interrupted_fit_goes_on_to_the_same_bits(panel, tmp_path, monkeypatch):
    import fedmiss.pipeline.saem as module

    settings = FitSettings(method="saem", rounds=40, rank="1", observers=True)
    whole = read_manifest(fit_panel(panel, tmp_path / "whole", settings), "fit")["results"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "louis", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit_panel(panel, tmp_path / "cut", settings)
    again = read_manifest(fit_panel(panel, tmp_path / "cut", settings), "fit")["results"]
    for key in ("overdispersion", "site_variances", "observer_sd", "bytes_up"):
        assert again[key] == whole[key]
    assert whole["observer_sd"] > 0
