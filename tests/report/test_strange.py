"""Thin and strange data go through the whole chain; the page says what can be said, and no number lacks its interval."""

import re
from datetime import date
from html import unescape
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.ingest import ingest
from fedmiss.etl.panel import PanelSettings, make_panel
from fedmiss.etl.settings import IngestSettings
from fedmiss.files import read_manifest
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.results import open_fit
from fedmiss.pipeline.settings import FitSettings
from fedmiss.report import figures
from fedmiss.report.analysis import ReportSettings
from fedmiss.report.build import build_report
from fedmiss.report.coverage import thin_counts
from fedmiss.report.inputs import read_inputs
from fedmiss.report.prose import basis, caveats
from fedmiss.report.question import site_years

from .conftest import analysed
from .page import Page


def visits(sites=30, years=8, each=12, seed=0):
    """Rows (observer, site, day, count) of a species that declines by 3 % a year."""
    rng = np.random.default_rng(seed)
    level, rows = rng.normal(1, 0.8, sites), []
    for j in range(sites):
        for y in range(years):
            for _ in range(each):
                m = int(rng.integers(1, 13))
                mean = np.exp(level[j] + 0.5 * np.sin(m / 2) - 0.03 * y)
                n = int(rng.poisson(mean * rng.gamma(2, 0.5)))
                rows.append([f"o{rng.integers(15)}", f"s{j}", date(2010 + y, m, int(rng.integers(1, 28))), n])
    return rows


def one_each():
    rng = np.random.default_rng(5)
    return [
        [o, s, d.replace(year=2010 + int(rng.integers(8))), n] for o, s, d, n in visits(250, 1, 1, seed=3)
    ]


def changed(rows, change):
    return [[*r[:3], change(*r)] for r in rows]


def as_found(o, s, d, n):
    return "X" if n else 0


WHOLE = visits()
OFTEN = ("one site", "all zeros", "a season that shifts")  # in CI; the others before a release
CASES = {
    "two years": ([r for r in WHOLE if r[2].year < 2012], "No trend class", "two years cannot tell a trend"),
    "one year": ([r for r in WHOLE if r[2].year < 2011], "No trend", "1 complete year with enough counts"),
    "one site": (visits(1, 8, 40), "No trend class", "1 site was counted in two or more years"),
    "all zeros": (changed(WHOLE, lambda *r: 0), "Never found", "no index and no trend to report"),
    "all X": (
        changed(WHOLE, as_found), "", "nothing can be said of numbers",
    ),
    "one huge count": (
        changed(WHOLE, lambda o, s, d, n: 100_000 if (o, s, d) == tuple(WHOLE[1000][:3]) else n),
        "No trend class", "of all birds counted are from the site s10 in 2013-10",
    ),
    "a year without visits": (
        [r for r in WHOLE if r[2].year != 2013], "", "2013 has no count and is left out of index and trend",
    ),
    "a season that shifts": ([r for r in WHOLE if (r[2].month <= 6) == (r[2].year < 2014)],
                             "No trend class", "a change of the season in which was counted cannot be told"),
    "one visit each": (one_each(), "No trend class", "0 sites were counted in two or more years"),
    "a thin first year": (
        [r for r in WHOLE if r[2].year > 2010] + [r for r in WHOLE if (r[2].year, r[2].month) == (2010, 1)][:2],
        "", "2010 has fewer than 5 site-months at 3 sites counted",
    ),
}  # fmt: skip


def panel_of(rows, root, **more):
    """The panel of rows (observer, site, day, count or X)."""
    root.mkdir(exist_ok=True)
    lines = [f"{o},{s},{d},Testa testa,{n},50,{5 + int(s[1:]) / 100}" for o, s, d, n in rows]
    head = "observer,site,date,species,count,latitude,longitude"
    (root / "t.csv").write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    settings = IngestSettings(column_map={"auto": ""}, **more)
    ingest([root / "t.csv"], root / "records", settings, keep_cache=False)
    return make_panel(root / "records", root / "panel", PanelSettings())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in OFTEN else pytest.mark.nightly) for c in CASES]
)
def test_strange_data_give_a_report_that_says_what_it_can(case, tmp_path):
    rows, verdict, sentence = CASES[case]
    panel = panel_of(rows, tmp_path)
    fit = fit_panel(panel, tmp_path / "fit", FitSettings(bootstrap=20, folds=2, max_rank=1))
    imputed = impute_panel(panel, fit, tmp_path / "imputed")
    page = build_report(panel, fit, imputed, tmp_path / "report", ReportSettings(date="2026-01-02"))
    html = page.read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))
    assert sentence in text
    if verdict:
        assert f"<strong>{verdict}</strong>" in html
    results = read_manifest(page.parent, "report")["results"]
    if verdict:
        assert results["trend_class"] == "not classified"
    assert not re.search(r"\bnan\b", text)
    assert "no interval available" not in text
    for head, *rows in ([[text for text, _ in row] for row in table] for table in Page(html).tables.values()):
        for i, (name, beside) in enumerate(pairwise(head)):
            if name.startswith(("Change", "Index", "Total,")) and beside.startswith("95"):
                assert all(row[i + 1] != "n/a" or row[i] == "n/a" for row in rows), (case, head)
    yearly = pd.read_parquet(page.parent / "tables" / "yearly.parquet")
    assert yearly.loc[yearly["used"], "index_lo"].notna().all()


def test_a_placeholder_date_and_uncounted_birds_are_told_by_the_panel(tmp_path):
    few = visits(6, 3, 4)
    rows = [*few, ["o1", "s1", date(1900, 1, 1), 2]]
    stray = read_manifest(panel_of(rows, tmp_path / "stray", repeats="max"))["warnings"]
    assert any("1 of 73 visits (1900-01-01) lies 110 years apart" in w and "--start" in w for w in stray)
    found = read_manifest(panel_of(changed(few, as_found), tmp_path / "x", repeats="max"))["warnings"]
    assert any("counted on none of them (all are X)" in w for w in found)
    assert not any("apart from all others" in w for w in found)
    with pytest.raises(InputError, match="none records an absence"):
        panel_of(changed(few, lambda *r: "X"), tmp_path / "only x", repeats="max")


@pytest.mark.parametrize(
    "given", [{"model": "quasi"}, {"model": "log1p"}, {"method": "fedmissem"}, {"method": "saem"}]
)
def test_no_model_of_counts_is_fitted_where_nothing_was_counted(given, tmp_path):
    panel = panel_of(changed(visits(6, 3, 4), as_found), tmp_path, repeats="max")
    with pytest.raises(ConfigError, match="presence and absence are fitted then"):
        fit_panel(panel, tmp_path / "fit", FitSettings(**given))
    assert not (tmp_path / "fit").exists()


def test_presence_needs_no_numbers(tmp_path):
    rows, made = visits(12, 6, 12), []
    some = np.random.default_rng(1).random(len(rows)) < 0.3
    number = {"numbers": [n for *_, n in rows], "X": [as_found(*row) for row in rows]}
    number["some"] = [n if kept or not n else "X" for n, kept in zip(number["numbers"], some, strict=True)]
    for name, counts in number.items():
        told = [[*row[:3], n] for row, n in zip(rows, counts, strict=True)]
        panel = panel_of(told, tmp_path / name, repeats="max")
        fit, imputed = (panel.with_name(part) for part in ("fit", "imputed"))
        fit_panel(panel, fit, FitSettings(model="bernoulli", rank=0, bootstrap=20, structure="none"))
        impute_panel(panel, fit, imputed)
        made.append(analysed(read_inputs(panel, fit, imputed), trim=True))
    a, b, _ = made
    assert a.coverage.birds_counted > b.coverage.birds_counted == 0
    same = ["year", "used", "total", "index", "cells_observed", "sites_observed", "imputed_share"]
    trim = ["year", "trim", "trim_se"]
    whole = ["n_observed", "n_zeros", "share_imputed_total", "sites_repeated", "median_cells_per_year"]
    for one, counts in zip(made, number.values(), strict=True):
        pd.testing.assert_frame_equal(a.yearly[same], one.yearly[same])
        assert [getattr(a.coverage, name) for name in whole] == [
            getattr(one.coverage, name) for name in whole
        ]
        assert one.coverage.n_observed == len(one.data.cells)
        assert one.coverage.uncounted_slope == pytest.approx(0.0, abs=1e-9)  # presence takes every find
        assert basis(one).startswith(f"It rests on {len(rows)} visits by")
        # what is said of numbers is of the visits that have one
        held = [n for n in counts if n != "X"]
        assert one.coverage.n_counted == len(held) == one.data.groups["counted"].sum()
        # beside chances of presence stands the share of visits that found it, however many birds they counted
        years = site_years(one)
        assert years["visits"].sum() == len(rows)
        finds = sum(n != 0 for n in counts)
        assert (years["visits"] * years["mean_count"].fillna(0.0)).sum() == pytest.approx(finds)
        for table, other in ((a.weeks, one.weeks), (a.beside.table[trim], one.beside.table[trim])):
            assert len(table) > 5
            pd.testing.assert_frame_equal(table, other)
        assert "TRIM takes the share of visits with a find" in figures.beside(one).caption
        assert "largest count" not in set(one.influential["what"])
        assert list(thin_counts(one.coverage, one.data, 6)) == list(thin_counts(a.coverage, a.data, 6))
        # occupied but overlooked ones are in no total
        if not one.coverage.birds_counted:
            assert any("at how many sites a visit finds the species" in said for said in caveats(one))
    np.testing.assert_array_equal(open_fit(panel, fit).observed, b.data.observed)
