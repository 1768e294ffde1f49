"""A group's own report: its sites only, and the numbers that the common report has for them."""

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.files import read_manifest, write_manifest
from fedmiss.pipeline.fitting import _with_names, fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.own import own_report
from fedmiss.pipeline.settings import FitSettings
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from tests.folders import frame

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.mark.slow
def test_the_own_report_has_the_groups_sites_and_their_numbers(tmp_path):
    made = simulate_panel(30, 36, 0.08, rank=1, seed=5, observers=12, groups=3)
    panel = write_panel(made, tmp_path / "panel", start="2012-01", settings={})
    old = read_manifest(panel, "panel")
    kept = {name: old[name] for name in ("settings", "inputs", "results", "flow", "terms")}
    write_manifest(panel, "panel", **kept, warnings=["one count, 9,999 birds at Secret Pond"])
    settings = FitSettings(model="quasi", rank="1", bootstrap=20)
    plain = fit_panel(panel, tmp_path / "plain", settings)
    group = sorted(p.name for p in (panel / "groups").iterdir())[0]
    with pytest.raises(ConfigError, match="again with --own"):
        own_report(panel, plain, group, tmp_path / "none")
    fit = fit_panel(panel, tmp_path / "fit", FitSettings(model="quasi", rank="1", bootstrap=20, own=True))
    with pytest.raises(ConfigError, match="no group 'nobody'"):
        own_report(panel, fit, "nobody", tmp_path / "none")
    page = own_report(panel, fit, group, tmp_path / "own", unit="nests")
    assert "Total, nests" in (page / "index.html").read_text()
    assert f": own sites of {group}</h1>" in (page / "index.html").read_text()

    visits = frame(panel / "groups" / group / "visits")
    every = frame(panel / "sites")
    mine = sorted(every["site_id"].iloc[visits["site_index"].unique()])
    others = set(every["site_id"]) - set(mine)
    assert others, "the panel must have sites that the group has not"
    sites = frame(tmp_path / "own" / "panel" / "sites")
    assert sorted(sites["site_id"]) == mine
    text = (page / "index.html").read_text()
    names = set(every.loc[every["site_id"].isin(others), "site_name"]) | others
    assert not [n for n in names if f">{n}<" in text]
    assert "Secret Pond" in read_manifest(fit, "fit")["warnings"][0]
    texts = [path for path in (tmp_path / "own").rglob("*") if path.suffix in (".json", ".html", ".csv")]
    assert not [path for path in texts if "Secret Pond" in path.read_text()], (
        "a warning may name a site of others"
    )

    impute_panel(panel, fit, tmp_path / "imputed")
    whole = frame(tmp_path / "imputed" / "imputed")
    own = frame(tmp_path / "own" / "imputed" / "imputed")
    both = own.merge(whole, on=["site_id", "month"], suffixes=("", "_whole"))
    assert len(both) == len(own) == len(mine) * 36
    np.testing.assert_allclose(both["expected"], both["expected_whole"], rtol=1e-12)
    tables = ("draws", "month_factors", "site_factors", "site_trends", "trace")
    assert sorted(path.stem for path in (tmp_path / "own" / "fit").rglob("*.parquet")) == sorted(tables)
    assert len(frame(tmp_path / "own" / "fit" / "site_trends")) == len(mine)
    draws = frame(tmp_path / "own" / "fit" / "draws")
    centre = draws.groupby("month_index")["total"].median().to_numpy()
    point = own.groupby("month_index")["expected"].sum().to_numpy()
    assert np.abs(np.log(centre / point)).mean() < 0.3


def test_notes_call_groups_by_their_names_all_at_once():
    """One after the other, in any order, a name that is another group's folder was renamed again."""
    folders = ["%252541", "%2541", "a"]
    note = "group '%252541' has none; group '%2541' never saw the species. group 'a' alone"
    assert _with_names(note, folders) == (
        "group '%2541' has none; group '%41' never saw the species. group 'a' alone"
    )


def test_a_language_that_is_not_there_is_refused_first(tmp_path):
    with pytest.raises(ConfigError, match="--language: there is no file"):
        own_report(tmp_path / "panel", tmp_path / "fit", "g01", tmp_path / "own", language="klingon.po")
