"""A panel with a frame, from the table of sites to the page."""

import numpy as np
import pandas as pd
import pytest

from fedmiss.etl.ingest import ingest
from fedmiss.etl.panel import make_panel
from fedmiss.etl.settings import IngestSettings, PanelSettings
from fedmiss.files import read_manifest
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.settings import FitSettings
from fedmiss.report.build import build_report
from fedmiss.report.settings import ReportSettings
from fedmiss.rng import rng_for
from tests.folders import frame

SQUARES, YEARS = 60, 8
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Sixty squares, thirty of them counted; numbers follow the height."""
    folder, rng = tmp_path_factory.mktemp("frame"), rng_for(4, "frame")
    height = rng.normal(size=SQUARES)
    level = 1.5 + 0.9 * height + 0.2 * rng.normal(size=SQUARES)
    rows = ["site,year,count"]
    for j in range(30):
        rows += [
            f"q{j:02d},{2001 + y},{rng.poisson(np.exp(level[j] - 0.05 * y))}"
            for y in range(YEARS)
            if rng.random() < 0.7
        ]
    (folder / "counts.csv").write_text("\n".join(rows) + "\n")
    table = ["site_id,height,flat,latitude,longitude"]
    table += [f"q{j:02d},{height[j]:.4f},7,{50 + j // 10 / 10},{10 + j % 10 / 10}" for j in range(SQUARES)]
    (folder / "squares.csv").write_text("\n".join(table) + "\n")
    ingest([folder / "counts.csv"], folder / "records", settings=IngestSettings())
    settings = PanelSettings(sites="frame", site_table=str(folder / "squares.csv"))
    panel = make_panel(folder / "records", folder / "panel", settings)
    chosen = FitSettings(rank=0, model="negbin", structure="covariates", bootstrap=40)
    fit = fit_panel(panel, folder / "fit", chosen)
    imputed = impute_panel(panel, fit, folder / "imputed")
    build_report(panel, fit, imputed, folder / "report", ReportSettings())
    return folder, level


def test_the_page_sets_the_area_beside_the_visited_sites(walk):
    folder = walk[0]
    text = (folder / "report" / "index.html").read_text()
    assert "The area is 60 sites, of which 30 were visited" in text
    assert "At the visited sites alone the trend is" in text
    assert "What is expected at a site follows its height" in text
    row = pd.read_csv(folder / "report" / "tables" / "visited.csv").iloc[0]
    assert row["region"] == "visited sites"
    assert row["n_sites"] == 30
    imputed = frame(folder / "imputed" / "imputed")
    went = imputed["site_index"] < 30
    share = imputed.loc[went, "expected"].sum() / imputed["expected"].sum()
    assert row["share"] == pytest.approx(share, rel=1e-5)
    assert "30 never visited" in text, "in the words for who does not see the map"


def test_a_fit_says_which_covariate_it_leaves_out(walk):
    warnings = read_manifest(walk[0] / "fit", "fit")["warnings"]
    assert any("flat is the same at all visited sites" in said for said in warnings)


def test_totals_of_visited_sites_are_a_part_of_those_of_the_area(walk):
    folder = walk[0]
    draws = frame(folder / "fit" / "draws")
    wide = draws.pivot_table(index=["draw", "month_index"], columns="region", values="total")
    assert sorted(wide) == ["all", "visited sites"]
    assert (wide["visited sites"] < wide["all"]).all()
    rest = (wide["all"] - wide["visited sites"]).unstack("month_index").sum(axis=1)
    seen = wide["visited sites"].unstack("month_index").sum(axis=1)
    assert np.log(rest).std() > np.log(seen).std(), "what nobody counted is less well known"


def test_squares_that_nobody_visited_follow_their_height(walk):
    folder, level = walk
    imputed = frame(folder / "imputed" / "imputed")
    total = np.log(imputed.groupby("site_index")["expected"].mean().to_numpy())[30:]
    assert np.corrcoef(total, level[30:])[0, 1] > 0.9
    cells = imputed[imputed["site_index"] >= 30]
    truth = np.exp(level[cells["site_index"]] - 0.05 * cells["month_index"])
    inside = (truth >= cells["expected_lower"]) & (truth <= cells["expected_upper"])
    assert inside.groupby(cells["site_index"]).mean().mean() > 0.8
    facts = read_manifest(folder / "fit", "fit")["results"]
    assert facts["features"] == ["covariates"]
    assert facts["site_covariates"] == ["height"]
    assert 0.7 < facts["explained"]["covariates"] <= 1.0
