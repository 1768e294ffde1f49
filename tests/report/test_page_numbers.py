"""Every number on the page follows from the tables that lie beside it."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

from fedmiss.report.words import count, number, per_year, percent, share


@pytest.fixture(scope="module")
def made(report):
    page = (report / "index.html").read_text(encoding="utf-8")
    tables = {p.stem: pd.read_parquet(p) for p in (report / "tables").glob("*.parquet")}
    return page, tables


def plain(html):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html))).strip()


def table_of(page, caption):
    """Texts of the cells of the table with this caption, row by row."""
    found = next(t for t in re.findall(r"<table.*?</table>", page, re.S) if f"<caption>{caption}" in t)
    return [
        [plain(c) for c in re.findall(r"<td.*?</td>", r, re.S)]
        for r in re.findall(r"<tr>.*?</tr>", found, re.S)
    ][1:]


def interval(lo, hi, words=number):
    return f"{words(lo)} to {words(hi)}" if np.isfinite(lo) else "n/a"


def test_yearly_table(made):
    page, t = made
    rows = table_of(page, "Yearly totals and indices")
    assert len(rows) == len(t["yearly"])
    for row, r in zip(rows, t["yearly"].itertuples(), strict=True):
        base = np.isclose(r.index_lo, r.index_hi)
        assert row[1:] == [
            number(r.total),
            interval(r.total_lo, r.total_hi),
            number(t["yearly"].loc[r.Index, "index"]),
            "base" if base else interval(r.index_lo, r.index_hi),
            f"{count(r.cells_observed)} of {count(r.cells)}",
            share(r.imputed_share),
        ]


def test_window_table_and_its_arithmetic(made):
    page, t = made
    w = t["windows"]
    rows = table_of(page, "Trend and alerts by window")
    assert [r[0].split(" (")[0] for r in rows] == list(w["window"]) == ["all years", "10 years", "5 years"]
    for row, r in zip(rows, w.itertuples(), strict=True):
        assert row[0].endswith(f"({r.from_year} to {r.to_year})")
        assert row[1:3] == [percent(r.percent_per_year), interval(r.percent_lo, r.percent_hi, percent)]
        assert row[4:6] == [percent(r.change_percent), interval(r.change_lo, r.change_hi, percent)]
        assert (row[3], row[6]) == (r.trend_class, r.alert or "none")
        years = t["yearly"][t["yearly"]["used"] & t["yearly"]["year"].between(r.from_year, r.to_year)]
        slope = np.polyfit(years["year"], np.log(years["total"]), 1)[0]
        assert r.percent_per_year == pytest.approx(100 * (np.exp(slope) - 1), rel=1e-9)
        steps = r.to_year - r.from_year
        assert r.change_percent == pytest.approx(100 * (np.exp(slope * steps) - 1), rel=1e-9)
        if r.window != "all years":
            assert steps == int(r.window.split()[0])


def test_headline_is_the_trend_table(made):
    page, t = made
    r = t["trend"].iloc[0]
    words = plain(page)
    assert per_year(r["percent_per_year"], r["percent_lo"], r["percent_hi"]) in words
    assert f"from {r['from_year']} to {r['to_year']}" in words
    assert (
        f"{percent(r['change_percent'])} (95 % interval {percent(r['change_lo'])} to {percent(r['change_hi'])})"
        in words
    )
    used = t["yearly"][t["yearly"]["used"]]
    base = used[used["year"] == int(r["base"])].iloc[0]
    assert r["change_percent"] == pytest.approx(100 * (used["total"].iloc[-1] / base["total"] - 1), rel=1e-9)
    assert percent(r["percent_per_year"]) == table_of(page, "Trend and alerts by window")[0][1]
    weighted = (used["imputed_share"] * used["total"]).sum() / used["total"].sum()
    assert f"{share(weighted)} of the total comes from site-months that were not" in words


def test_site_table_and_map(made, report):
    page, t = made
    sites = t["sites"].sort_values("mean_total", ascending=False, kind="stable")
    rows = table_of(page, "Sites")
    for row, r in zip(rows, sites.itertuples(), strict=True):
        assert row[2:6] == [
            count(r.cells_observed),
            count(r.years_counted),
            number(r.mean_total),
            percent(r.percent_per_year),
        ]
        assert row[7] == r.trend_class
    drawn = pd.read_csv(report / "figures" / "map.csv")
    classes = drawn["trend_class"].value_counts()
    label = re.search(r'aria-label="(Map of [^"]+)"', page)[1]
    for name, n in classes.items():
        assert f"{n} {name}" in label
    used = t["yearly"][t["yearly"]["used"]]
    assert sites["mean_total"].sum() == pytest.approx(used["total"].mean(), rel=1e-9)


def test_smoothed_figure_is_its_table_and_passes_through_the_index(made, report):
    _, t = made
    s = t["smooth_index"]
    drawn = pd.read_csv(report / "figures" / "smoothed.csv")
    np.testing.assert_allclose(drawn["smooth"], s["smooth"], rtol=1e-5)
    used = t["yearly"][t["yearly"]["used"]]
    np.testing.assert_allclose(s["index"], used["index"], rtol=1e-12)
    assert ((s["smooth_lo"] < s["smooth"]) & (s["smooth"] < s["smooth_hi"])).all()
    # a smooth of a nearly straight course is the course: its ends give the change of the whole
    assert s["smooth"].iloc[-1] / s["smooth"].iloc[0] == pytest.approx(
        np.exp(np.polyfit(s["year"], np.log(s["index"]), 1)[0] * (s["year"].iloc[-1] - s["year"].iloc[0])),
        rel=0.15,
    )
