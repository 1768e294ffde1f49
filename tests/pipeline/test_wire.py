"""``--method wire``: the penalised optimum, reached through dithered messages and absences."""

from __future__ import annotations

import pytest

from fedmiss.compressors import RandK
from fedmiss.compressors.registry import compressor_of
from fedmiss.errors import ConfigError, DomainError
from fedmiss.files import read_manifest
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.settings import FitSettings
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from fedmiss.tables import read_table


def written(tmp, seed):
    made = simulate_panel(30, 24, 0.5, rank=1, seed=seed, observers=12, groups=3)
    return write_panel(made, tmp / "panel", start="2012-01", settings={})


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    return written(tmp_path_factory.mktemp("sim"), 5)


@pytest.mark.parametrize("seed", [5, 7])
def test_the_wire_reaches_the_solvers_optimum(seed, tmp_path):
    """On any panel: both start along the residual's leading singular vectors, so they climb down into one optimum."""
    panel, objective = written(tmp_path, seed), {}
    for name, more in (
        ("fast", {"penalty": 2.0, "bootstrap": 0}),
        ("wire", {"method": "wire", "penalty": 2.0, "rounds": 150, "levels": 0}),
        ("dithered", {"method": "wire", "penalty": 2.0, "rounds": 300, "levels": 64, "participation": 0.8}),
    ):
        settings = FitSettings(model="quasi", rank="1", seed=seed, **more)
        folder = fit_panel(panel, tmp_path / name, settings)
        results = read_manifest(folder, "fit")["results"]
        objective[name] = results["objective"]
        if name != "fast":
            trace = read_table(folder / "trace.parquet", "trace").to_pandas()
            assert trace["bytes_up"].sum() == results["bytes_up"] > 0
            assert results["method"] == "wire"
    least = abs(objective["fast"])
    assert objective["wire"] == pytest.approx(objective["fast"], abs=1e-4 * least)
    assert objective["dithered"] == pytest.approx(objective["fast"], abs=1e-3 * least)


def test_the_wire_needs_a_model(panel, tmp_path):
    with pytest.raises(ConfigError, match="--method wire needs a --model"):
        fit_panel(panel, tmp_path / "x", FitSettings(method="wire", rank="1"))


@pytest.mark.parametrize(
    ("method", "default", "other"),
    [("wire", "dithering:levels=64,block=9", "topk:k=300"), ("fedmissem", "dithering:levels=64", "natural")],
)
def test_a_compressor_by_name_sends_what_it_says(panel, tmp_path, method, default, other):
    """The default written out gives its bits (9: one triangle of rank 2); another name sends other messages."""
    factors, results = {}, {}
    for name, more in (
        ("default", {"levels": 64}),
        ("written", {"compressor": default}),
        ("other", {"compressor": other}),
    ):
        settings = FitSettings(method=method, model="log1p", rank=2, rounds=30, **more)
        folder = fit_panel(panel, tmp_path / name, settings)
        results[name] = read_manifest(folder, "fit")["results"]
        factors[name] = (folder / "month_factors.parquet").read_bytes()
    assert factors["default"] == factors["written"] != factors["other"]
    assert results["default"]["bytes_up"] == results["written"]["bytes_up"] != results["other"]["bytes_up"]
    assert (results["written"]["compressor"], results["other"]["compressor"]) == (default, other)


def test_a_compressor_that_is_too_noisy_for_the_normal_equations_is_refused(panel, tmp_path):
    settings = FitSettings(method="wire", model="log1p", rank=2, rounds=60, compressor="natural")
    with pytest.raises(DomainError, match="--method wire diverged: its objective went from"):
        fit_panel(panel, tmp_path / "x", settings)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("compressor", "message"),
    [
        ("gzip", "there is no compressor 'gzip'; known are"),
        ("randk", "compressor 'randk': missing a required argument: 'k'"),
        ("randk:k=many", "'k=many' is no setting"),
        ("natural:k=3", "compressor 'natural': got an unexpected keyword argument 'k'"),
        ("randk:k=inf", "k=inf must be a whole number"),
        ("dithering:levels=2.5", "levels=2.5 must be a whole number"),
        ("dithering:levels=8,levels=400", "levels is given twice"),
    ],
)
def test_a_compressor_that_is_none_is_refused(panel, tmp_path, compressor, message):
    settings = FitSettings(method="wire", model="log1p", rank=2, compressor=compressor)
    with pytest.raises(ConfigError, match=message):
        fit_panel(panel, tmp_path / "x", settings)
    assert not (tmp_path / "x").exists()


def test_numbers_of_compressors_as_people_write_them():
    assert compressor_of("randk:k=2e2") == compressor_of(" randk : k = 200.0 ") == RandK(k=200)
    assert compressor_of("dithering:levels=8,norm=inf").norm == float("inf")


@pytest.mark.parametrize(
    ("method", "compressor", "message"),
    [
        ("fedmissem", "topk:k=50", "needs an unbiased compressor"),
    ],
)
def test_a_compressor_that_the_method_cannot_use_is_refused(panel, tmp_path, method, compressor, message):
    settings = FitSettings(method=method, model="log1p", rank=2, compressor=compressor)
    with pytest.raises(ConfigError, match=message):
        fit_panel(panel, tmp_path / "x", settings)
