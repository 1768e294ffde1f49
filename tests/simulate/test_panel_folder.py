"""A simulated panel on disk: the contract of a panel folder, with groups that are closed in themselves."""

import numpy as np
import polars as pl
import pytest

from fedmiss.errors import ConfigError
from fedmiss.files import read_manifest
from fedmiss.simulate.panel_folder import SPECIES_NAME, write_panel
from fedmiss.simulate.panels import simulate_panel
from fedmiss.simulate.truth import read_expected
from fedmiss.tables import read_table


@pytest.fixture(scope="module")
def panel():
    return simulate_panel(
        40, 30, 0.4, kind="preferential", seed=2, observers=25, groups=4, visits=900, effort_sd=0.3
    )


@pytest.fixture(scope="module")
def folder(panel, tmp_path_factory):
    return write_panel(panel, tmp_path_factory.mktemp("panel") / "p", start="2003-11")


def frame(path, schema):
    return pl.from_arrow(read_table(path, schema))


def test_folder_holds_the_panel(panel, folder):
    manifest = read_manifest(folder, "panel")
    assert manifest["terms"]["licence"] == "CC0"
    groups = sorted(p.name for p in (folder / "groups").iterdir())
    assert groups == list(manifest["results"]["groups"]) == ["g01", "g02", "g03", "g04"]
    visits = [
        frame(folder / "groups" / g / "visits.parquet", "visits").with_columns(group=pl.lit(g))
        for g in groups
    ]
    every = pl.concat(visits)
    assert every["checklist_id"].n_unique() == every.height == 900 == manifest["results"]["n_visits"]
    assert every.group_by("observer_id").agg(pl.col("group").n_unique())["group"].max() == 1
    got = every.sort("checklist_id")
    for column, values in (
        ("site_index", panel.site_index),
        ("month_index", panel.month_index),
        ("count", panel.y),
        ("duration_minutes", 60 * panel.effort),
    ):
        assert np.array_equal(got[column].to_numpy(), values), column
    assert (got["detected"] == (got["count"] > 0)).all()
    months = frame(folder / "months.parquet", "months")
    assert months["month"].to_list()[:3] == ["2003-11", "2003-12", "2004-01"]
    stamp = got.join(months, on="month_index")["month"]
    assert (got.join(months, on="month_index")["date"].dt.strftime("%Y-%m") == stamp).all()
    assert manifest["results"]["birds"] == panel.y.sum()


def test_cells_are_the_sums_of_the_visits(folder):
    for group in (folder / "groups").iterdir():
        visits = frame(group / "visits.parquet", "visits")
        cells = frame(group / "cells.parquet", "cells").sort("site_index", "month_index")
        want = (
            visits.group_by("site_index", "month_index")
            .agg(
                n_visits=pl.len(),
                n_counted=pl.col("count").count(),
                n_detected=pl.col("detected").sum(),
                count_sum=pl.col("count").sum(),
            )
            .sort("site_index", "month_index")
        )
        assert cells.rows() == want.rows()


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
def test_truth_read_back_is_the_panels(family, tmp_path):
    panel = simulate_panel(12, 20, 0.5, family=family, rank=3, seed=4, observers=9, groups=2)
    folder = write_panel(panel, tmp_path / "p")
    sites = frame(folder / "sites.parquet", "sites")["site_id"].to_list()
    months = frame(folder / "months.parquet", "months")["month"].to_list()
    expected = read_expected(folder / "truth", SPECIES_NAME, sites, months)
    assert np.allclose(expected, panel.expected, rtol=1e-12)
    test = frame(folder / "truth" / "truth_test.parquet", "truth_test")
    at = expected[test["site_index"].to_numpy(), test["month_index"].to_numpy()]
    assert np.allclose(at, test["expected"].to_numpy(), rtol=1e-12)
    assert np.array_equal(test["count"].to_numpy(), panel.y_test)


def test_bad_settings_write_nothing(tmp_path):
    with pytest.raises(ConfigError, match="gaussian"):
        write_panel(simulate_panel(10, 12, 0.5, family="gaussian"), tmp_path / "p")
    with pytest.raises(ConfigError, match="'soon'"):
        write_panel(simulate_panel(10, 12, 0.5), tmp_path / "p", start="soon")
    assert list(tmp_path.iterdir()) == []
