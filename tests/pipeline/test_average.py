"""The average of ranks through the folders: written, read, resumed, a group's own part, and said on the page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmiss.federation.hub import job
from fedmiss.federation.results import AverageFit, CountFit
from fedmiss.files import read_manifest
from fedmiss.models.lowrank import choice
from fedmiss.pipeline.fit_folder import read_fit
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.own import own_report
from fedmiss.pipeline.results import open_fit
from fedmiss.pipeline.settings import FitSettings
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from tests.folders import frame
from tests.pipeline.test_resume import cut_off, until

pytestmark = pytest.mark.usefixtures("blank_figures")
AVERAGE = FitSettings(model="quasi", max_rank=1, folds=2, structure="none", bootstrap=24, own=True)


@pytest.fixture(scope="module")
def panel(tmp_path_factory) -> Path:
    made = simulate_panel(24, 36, 0.3, rank=1, seed=5, observers=12, groups=3)
    return write_panel(made, tmp_path_factory.mktemp("sim") / "panel", start="2012-01", settings={})


@pytest.fixture(autouse=True)
def both_ranks(monkeypatch):
    """Whatever the folds say, the other rank is near."""
    monkeypatch.setattr(choice, "_near", lambda table, summary, chosen: [1 - chosen])


@pytest.fixture
def fit(panel, tmp_path, both_ranks) -> Path:
    return fit_panel(panel, tmp_path / "fit", AVERAGE)


@pytest.mark.slow
def test_a_folder_with_an_average_reads_back_as_the_mean_of_its_members(panel, fit, tmp_path):
    manifest, read = read_fit(fit)
    assert isinstance(read, AverageFit)
    members = manifest["results"]["members"]
    assert sorted(m["rank"] for m in members) == [0, 1]
    assert manifest["results"]["rank"] == members[0]["rank"] == read.settings.rank
    alone = []
    for m in members:
        settings = FitSettings(model="quasi", rank=m["rank"], bootstrap=0)
        manifest_alone, one = read_fit(fit_panel(panel, tmp_path / f"rank{m['rank']}", settings))
        assert isinstance(one, CountFit)
        assert len(manifest_alone["results"]["members"]) == 1
        alone.append(one.expected())
    np.testing.assert_array_equal(read.expected(), np.mean([one.expected() for one in read.fits], axis=0))
    np.testing.assert_allclose(read.expected(), np.mean(alone, axis=0), rtol=0.05)  # those begin from nothing
    np.testing.assert_array_equal(open_fit(panel, fit).expected, read.expected())
    imputed = frame(impute_panel(panel, fit, tmp_path / "imputed") / "imputed")
    np.testing.assert_array_equal(imputed["expected"].to_numpy().reshape(24, 36), read.expected())
    single = fit_panel(panel, tmp_path / "single", replace(AVERAGE, average=False))
    assert isinstance(read_fit(single)[1], CountFit)
    assert not (single / "members").exists()


@pytest.mark.slow
def test_an_average_that_was_cut_off_goes_on(panel, fit, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "lockstep_size", lambda *a: 10)
    cut_off(monkeypatch, job, "replicates", panel, tmp_path / "cut", AVERAGE, until(15))
    cut = fit_panel(panel, tmp_path / "cut", AVERAGE)
    for name in ("draws.parquet", "site_trends.parquet", "members/2/site_factors.parquet", "visited.parquet"):
        assert (cut / name).read_bytes() == (fit / name).read_bytes(), name
    assert read_manifest(cut, verify=True)["files"].keys() == read_manifest(fit, verify=True)["files"].keys()


@pytest.mark.slow
def test_a_groups_own_part_of_an_average_has_its_sites_numbers(panel, fit, tmp_path):
    own_report(panel, fit, "g01", tmp_path / "own")
    whole = frame(impute_panel(panel, fit, tmp_path / "imputed") / "imputed")
    own = frame(tmp_path / "own" / "imputed" / "imputed")
    both = own.merge(whole, on=["site_id", "month"], suffixes=("", "_whole"))
    assert len(both) == len(own)
    np.testing.assert_allclose(both["expected"], both["expected_whole"], rtol=1e-12)
    copied = (tmp_path / "own" / "fit", fit)
    for name in ("cv.parquet", "trace.parquet", "members/2/month_factors.parquet"):
        assert len({(folder / name).read_bytes() for folder in copied}) == 1, name
