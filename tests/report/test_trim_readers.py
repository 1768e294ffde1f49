"""Files for rtrim hold for the rules of rtrim's own readers: what they read is what the tables say, whatever the base."""

import re

import numpy as np
import pandas as pd
import pytest

from fedmiss.report.build import build_report
from fedmiss.report.settings import ReportSettings
from fedmiss.report.trim import TrimSettings, fit_trim
from fedmiss.report.trim.files import Shown, out_text
from tests.report.trim_readers import Tof


@pytest.mark.slow
@pytest.mark.parametrize("base", [None, pytest.param("2011", marks=pytest.mark.nightly), "2009-2012"])
def test_the_report_files_are_read_as_they_are_meant(folders, tmp_path, base):
    page = build_report(**folders, out=tmp_path / "r", settings=ReportSettings(base=base, date="2026-01-02"))
    exchange = page.parent / "exchange"
    table = pd.read_csv(exchange / "totals.csv")
    tof = Tof(next(exchange.glob("*.out")).read_text())
    assert tof.version() == "3.61"
    assert (tof.n("Site"), tof.n("Time")) == (40, len(table))
    rows = np.array(tof.indices())
    np.testing.assert_array_equal(rows[:, 0], table["year"])
    ratio = table["total"] / table["total"].iloc[0]
    np.testing.assert_allclose(rows[:, 1], ratio, atol=6e-5)
    np.testing.assert_allclose(rows[:, 3], ratio, atol=6e-5)
    assert rows[0, 2] == rows[0, 4] == 0
    assert (rows[1:, 2] > 0).all()
    own = table["year"].between(2009, 2012) if base == "2009-2012" else table["year"] == int(base or 2008)
    np.testing.assert_allclose(table["index"], table["total"] / table.loc[own, "total"].mean(), rtol=1e-12)
    totals = np.array(tof.totals())
    np.testing.assert_allclose(totals[:, 1], table["total"], atol=6e-3)
    np.testing.assert_allclose(totals[:, 4], table["se"], atol=6e-3)
    assert tof.method() == "federated EM"
    assert tof.overdispersion() > 0
    for which in ("MODEL", "IMPUTED"):
        slope = tof.slope(which)
        assert list(slope) == ["Additive", "std.err.", "Multiplicative"]
        assert slope["Additive"] == pytest.approx(-0.04, abs=1e-4)
        assert slope["Multiplicative"] == pytest.approx(np.exp(slope["Additive"]), abs=1e-4)


@pytest.mark.parametrize("model", [1, 2, 3])
@pytest.mark.parametrize(
    ("base", "rule"), [(None, "rtrim"), (2003, "rtrim"), (None, "trim"), (None, "pecbms")]
)
def test_files_of_trim_are_read_as_they_are_meant(model, base, rule):
    site = [s for s in "abcd" for _ in range(6)]
    time = list(range(2000, 2006)) * 4
    count = [3 + (7 * i) % 11 + i % 6 for i in range(24)]
    fit = fit_trim(site, time, count, TrimSettings(model=model, overdispersion=True))
    text = out_text(fit, "skylark", Shown(rule, base))
    tof = Tof(text)
    assert (tof.version(), tof.n("Site"), tof.n("Time")) == ("3.61", 4, 6)
    rows, index = np.array(tof.indices()), fit.index("imputed")
    np.testing.assert_allclose(rows[:, 3], index["index"], atol=6e-5)
    np.testing.assert_allclose(rows[:, 4], index["se"], atol=6e-5)
    np.testing.assert_allclose(np.array(tof.totals())[:, 3], fit.totals()["total"], atol=0.51)
    assert tof.overdispersion() == pytest.approx(fit.sigma2, abs=6e-4)
    chi2, ratio, aic = tof.goodness()
    known = fit.goodness_of_fit()
    np.testing.assert_allclose([chi2[0], ratio[0]], known["statistic"], atol=6e-3)
    assert chi2[1] == ratio[1] == fit.df
    assert aic[0] == pytest.approx(abs(fit.aic), abs=6e-3)  # its readers lose the sign
    for name, which in (("MODEL", "model"), ("IMPUTED", "imputed")):
        row = fit.overall(which, rule=rule).iloc[0]
        assert tof.slope(name)["Additive"] == pytest.approx(row["slope"], abs=6e-5)
        assert re.search(rf"OVERALL SLOPE {name}[^:]*: (.*)", text)[1].rstrip(" *") == row["label"]
