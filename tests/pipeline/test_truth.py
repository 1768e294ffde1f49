"""Simulated eBird files through the whole chain, scored against the truth that made them."""

import numpy as np
import pytest

from fedmiss.simulate.truth import read_expected
from fedmiss.tables import read_table
from tests.cli.terminal import fedmiss
from tests.folders import frame

RECIPE = """
species = "American Wigeon"
[ingest]
files = "sim/ebd_sim.txt"
sampling = "sim/ebd_sim_sampling.txt"
complete = true
[panel]
sites = "{sites}"
[fit]
model = "negbin"
rank = 1
bootstrap = 20
"""


@pytest.mark.slow
@pytest.mark.parametrize("kept", [pytest.param("seen", marks=pytest.mark.nightly), "all"])
def test_fitted_totals_against_the_truth(tmp_path, kept):
    """200,000 records: monthly totals follow the truth, and their sum is near it, at the sites with a detection.

    Measured: total 1.15 of the truth when only such sites are in the panel, 1.02 when all are (the others then
    pull sites with few visits down); correlation of monthly totals 0.94. The bounds leave room for other seeds.
    """
    assert fedmiss("simulate", "--records", 200_000, "--seed", 1, "--out", tmp_path / "sim").code == 0
    (tmp_path / "trend.toml").write_text(RECIPE.format(sites=kept), encoding="utf-8")
    done = fedmiss("run", tmp_path / "trend.toml")
    assert done.code == 0, done.err
    out = tmp_path / "trend-out"
    sites = frame(out / "panel" / "sites")
    months = frame(out / "panel" / "months")
    truth = read_expected(
        tmp_path / "sim" / "truth", "Mareca americana", list(sites["site_id"]), list(months["month"])
    )
    imputed = (
        read_table(out / "imputed" / "imputed.parquet", "imputed")["expected"].to_numpy().reshape(truth.shape)
    )
    seen = np.zeros(len(sites), dtype=bool)
    for group in (out / "panel" / "groups").iterdir():
        visits = frame(group / "visits")
        seen[visits.loc[visits["detected"], "site_index"]] = True
    assert seen.all() == (kept == "seen")
    fitted, true = imputed[seen].sum(axis=0), truth[seen].sum(axis=0)
    ratio = np.log(fitted / true)
    print(
        f"sites {kept}: total {fitted.sum() / true.sum():.3f} of the truth at sites with a detection, "
        f"{imputed.sum() / truth.sum():.3f} at all of the panel; correlation {np.corrcoef(fitted, true)[0, 1]:.3f}, "
        f"sd of the log ratio {ratio.std():.3f}"
    )
    assert 0.8 < fitted.sum() / true.sum() < 1.25
    assert np.corrcoef(fitted, true)[0, 1] > 0.85
    assert ratio.std() < 0.3
