"""Every number on the page is found in its HTML and recomputed from the CSV files beside it; one without a source fails."""

import re
import shutil
from html import unescape

import numpy as np
import pandas as pd
import pytest

from fedmiss.atomic import read_json
from fedmiss.report.build import build_report
from fedmiss.report.many import build_index
from fedmiss.report.settings import ReportSettings
from tests.blank import draw_nothing
from tests.report.conftest import DATE, World, make_folders
from tests.report.page import NUMBER, Page, Sentences, agrees
from tests.report.sources import MONTHS, Sources, csv

TICK = re.compile(rf"^(?:{NUMBER}|1 0 (?:− )?\d+)?(?:\s?%| km)?$")  # also a power of ten


COMPARED = {
    "visits and birds": "number of visits, and {unit}",
    "visits and trend": "number of visits, and trend",
    "first visit and trend": "time of the first visit, and trend",
    "last visit and trend": "time of the last visit, and trend",
}


def table_specs(s: Sources, one_trend: bool) -> dict:
    """Return caption -> (rows of the CSV in the order of the page, what each column of the page shows).

    A column is words (``"name"``) or numbers (``["name", ...]``; ``name#`` exactly, ``name%`` a share as percent).
    """
    t = s.tables
    cv = t.get("cv", pd.DataFrame(columns=["model", "rank", "n", "deviance", "log_rmse", "total_bias"]))
    sums = cv.assign(**{m: cv[m] * cv["n"] for m in ("deviance", "log_rmse", "total_bias")})
    sums = sums.groupby(["candidate", "model", "rank"], as_index=False, dropna=False)[
        ["n", "deviance", "log_rmse", "total_bias"]
    ].sum() if len(cv) else sums  # fmt: skip
    for m in ("deviance", "log_rmse", "total_bias"):
        sums[m] = sums[m] / sums["n"]
    sites = t["sites"].sort_values("mean_total", ascending=False, kind="stable").head(150)
    sites = sites.assign(
        name="site " + sites["site_index"].astype(str)
        if "coarse_map" in s.facts
        else sites["site_name"].astype(object).fillna(sites["site_id"].astype(str)),
    )
    where = ["region"] if sites["region"].notna().any() else []
    own = [] if one_trend else [["percent_per_year"], ["percent_lo", "percent_hi"], "trend_class"]
    trend = [["from_year#", "to_year#"], ["percent_per_year"], ["percent_lo", "percent_hi"], "trend_class"]
    windows = t["windows"].assign(alert=t["windows"]["alert"].astype(object).fillna("none"))
    regions = t["regions"].sort_values("share", ascending=False, kind="stable").head(60)
    why = ["reason"] if regions["reason"].nunique(dropna=False) > 1 else []
    return {
        "Trend and alerts by window": (windows, [
            None, ["percent_per_year"], ["percent_lo", "percent_hi"], "trend_class", ["change_percent"],
            ["change_lo", "change_hi"], "alert",
        ]),
        "Trend by period": (t["periods"], [
            "period", *trend,
        ]),
        "Do visits follow what was found?": (
            t["visits"].dropna(subset="correlation").assign(
                compared=t["visits"]["compared"].map(COMPARED).str.replace("{unit}", s.manifest["settings"]["unit"]),
                clear=t["visits"]["clear"].map({True: "yes", False: "no"})
            ),
            ["compared", ["n_sites#"], ["correlation"], "clear"],
        ),
        "Counted and fitted, year by year": (t["fitted"], [["year#"], ["visits#"], ["counted#"], ["fitted"], ["ratio"]]),
        "Yearly totals and indices": (t["yearly"], [
            ["year#"], ["total"], ["total_lo", "total_hi"], ["index"], ["index_lo", "index_hi"],
            ["cells_observed#", "cells#"], ["imputed_share%"],
        ]),
        "Trend by region": (regions, ["region", ["n_sites#"], ["share%"], *trend, *why]),
        "Regions": (regions, ["region", ["n_sites#"], ["share%"]]),
        "Sites": (sites, ["name", *where, ["cells_observed#"], ["years_counted#"], ["mean_total"], *own]),
        "Cross-validation": (sums, [
            None, ["rank#"], ["deviance"], ["log_rmse"], ["total_bias"], ["n#"],
        ]),
        "Structure that was tried": (
            t["trials"].assign(
                yes=t["trials"]["taken"].map({True: "yes", False: "no"}), trend=100 * np.expm1(t["trials"]["shift"])
            ),
            ["what", "judged_by", ["gain%"], ["error%"], "yes", ["trend"]],
        ),
        "From the source to the panel, step by step": (t["flow"], ["step", ["rows#"], "note"]),
        "Groups of observers": (t["groups"], ["group", ["visits#"], ["counted#"], ["cells#"]]),
    }  # fmt: skip


def check_cell(row: pd.Series, shows, text: str, sort: str | None) -> None:
    """Hold one cell against its row of the CSV."""
    if isinstance(shows, str):
        value = row[shows]
        assert text == ("" if pd.isna(value) else str(value)), (shows, text, value)
        return
    names = [n.rstrip("#%") for n in shows]
    values = [row[n] * (100 if shown.endswith("%") else 1) for n, shown in zip(names, shows, strict=True)]
    if np.isnan(np.asarray(values, dtype=float)).all():
        assert text in ("n/a", "", "estimated"), (shows, text)
        return
    if text == "none":
        assert [*values, row["n_years"]] == [-1, -1, 0], shows
        return
    if text == "n/a":  # no number without its interval
        assert np.isnan(row["percent_lo"]), (shows, text)
        return
    if text == "base":
        assert values == [100, 100]
        return
    said = re.findall(NUMBER, text)
    if names[0] == "from_year" and values[0] == values[1]:  # one year is named once
        names, values, shows = names[:1], values[:1], shows[:1]
    assert len(said) == len(values), (shows, text)
    for printed, value, shown in zip(said, values, shows, strict=True):
        assert agrees(printed, value, whole=shown.endswith("#")), (shows, text, value)
    if sort is not None:
        assert float(sort) == pytest.approx(row[names[0]], rel=1e-5, abs=1e-4), (shows, sort)


def check_tables(page: Page, s: Sources) -> int:
    """Hold every cell of every table against its CSV file; return how many numbers there were."""
    one_trend = s.facts["one_trend"] == 1
    specs, n = table_specs(s, one_trend), 0
    for caption, rows in page.tables.items():
        assert caption in specs, f"the table {caption!r} has no source"
        frame, columns = specs[caption]
        assert len(rows) - 1 == len(frame), caption
        for cells, (_, row) in zip(rows[1:], frame.iterrows(), strict=True):
            assert len(cells) == len(columns), caption
            for (text, sort), shows in zip(cells, columns, strict=True):
                n += len(re.findall(NUMBER, text))
                if shows is not None:
                    check_cell(row, shows, text, sort)
                elif caption.startswith("Trend and"):
                    assert text == f"{row['window']} ({row['from_year']} to {row['to_year']})"
                else:
                    assert text.removesuffix(" (chosen)").removesuffix(" (averaged with it)") == row["model"]
    return n


def joined(page: Page) -> list[tuple[str, str]]:
    """Return the texts of the page, a name of a list of facts with its value."""
    out: list[tuple[str, str]] = []
    for tag, text in page.blocks:
        if tag == "dd" and out and out[-1][0] == "dt":
            out[-1] = ("dl", f"{out[-1][1]}: {text}")
        else:
            out.append((tag, text))
    return out


def check_mark(text: str, t: dict[str, pd.DataFrame]) -> bool:
    """Hold the words of a mark of a figure against the row of its table; False where the text is no mark."""
    found = re.fullmatch(r"(\d{4}-\d\d|\d{4}|[A-Z][a-z]{2}): (.*)", text)
    if not found:
        return False
    when, words = found.groups()
    said, values = re.findall(NUMBER, words), ["total", "lo", "hi"]
    if len(when) == 7:
        row = t["monthly"].set_index("month").loc[when]
    elif when.isalpha():
        row = t["season"].set_index("month_of_year").loc[MONTHS.index(when) + 1]
    elif "smoothed" in words:
        row, values = t["smooth_index"].set_index("year").loc[int(when)], ["smooth", "smooth_lo", "smooth_hi"]
        assert agrees(said.pop(), row["index"]), text
    elif "indicator" in t:
        row, values = t["indicator"].set_index("year").loc[int(when)], ["index", "lo", "hi"]
    else:
        row, values = t["yearly"].set_index("year").loc[int(when)], ["index", "index_lo", "index_hi"]
        if "imputed" in words:
            assert (
                agrees(said.pop(), 100 * row["imputed_share"])
                if "n/a" not in words
                else np.isnan(row["imputed_share"])
            )
        assert row["used"] == ("no index" not in words), text
    assert len(said) in (0, 1, 3), text
    assert all(agrees(p, row[v]) for p, v in zip(said, values, strict=False)), text
    return True


def unexplained(page: Page, s: Sources, *, quoted=(), unit="birds") -> tuple[list[str], int]:
    """Return the texts with a number that no sentence of the sources explains, and how many numbers were explained.

    ``quoted``: texts that the page repeats word for word from the panel (credit, notes of the import).
    """
    known = Sentences(s.sentences(unit), s.all_values())
    lost, n = [], 0
    for tag, text in joined(page):
        if tag == "text" and TICK.match(text):
            continue  # the label of an axis
        if tag == "title" and check_mark(text, s.tables):
            n += 1
            continue
        before = len(re.findall(NUMBER, text))
        for words in quoted:
            text = text.replace(words, " ")
        rest = known.left(text)
        if re.search(r"\d", rest):
            lost.append(f"<{tag}> {rest.strip()}")
        n += before
    return lost, n


def checked(report, folders, unit="birds") -> tuple[list[str], int, int]:
    """The texts of a page without a source, and how many numbers of its words and of its tables have one."""
    panel_manifest, fit_manifest = (read_json(folders[name] / "manifest.json") for name in ("panel", "fit"))
    html = (report / "index.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}%", " %")
    page, s = Page(html), Sources(report)
    quoted = [w for m in (panel_manifest, fit_manifest) for w in m.get("warnings", [])]
    quoted += [str(v).rstrip(".") for v in s.manifest["terms"].values()]
    quoted += [str(fit_manifest["results"].get("stop_reason"))]
    quoted = sorted((q for q in quoted if re.search(r"\d", q)), key=len, reverse=True)
    lost, in_words = unexplained(page, s, quoted=quoted, unit=unit)
    return lost, in_words, check_tables(page, s)


@pytest.mark.parametrize("which", ["report", pytest.param("bare_report", marks=pytest.mark.slow)])
def test_every_number_on_the_page_has_its_source(which, request):
    folders = request.getfixturevalue("folders" if which == "report" else "bare")
    lost, in_words, in_tables = checked(request.getfixturevalue(which), folders)
    assert lost == [], "\n".join(lost)
    assert in_words > 60
    assert in_tables > 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("index.html", "It rests on ", "It rests on 17 happy "),  # a number without a source
        ("index.html", " of the total comes from", "0 of the total comes from"),
        ("index.html", "</figcaption>", " In 1999 there were more.</figcaption>"),
        ("index.html", 'aria-label="Map of 4', 'aria-label="Map of 5'),
        *((f"tables/{name}.csv", column, 3) for name, column in {
            "windows": "change_percent", "sites": "mean_total", "groups": "visits", "facts": "value", "yearly": "total",
            "regions": "percent_per_year", "periods": "percent_lo",
        }.items()),
    ],
)  # fmt: skip
def test_a_number_without_a_source_and_a_table_that_says_otherwise_are_found(
    report, folders, tmp_path, file, old, new
):
    copy = shutil.copytree(report, tmp_path / "report")
    if file == "index.html":
        text = (copy / file).read_text(encoding="utf-8")
        assert old in text
        (copy / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    else:
        frame = csv(copy / file)
        frame[old] += new
        frame.to_csv(copy / file, index=False)
    try:
        lost, _, _ = checked(copy, folders)
    except AssertionError:
        return  # a number disagrees with its table
    assert lost  # or no sentence explains it


def test_facts_agree_with_the_tables_that_know_them_too(report):
    s = Sources(report)
    v, f = s.values(), s.facts
    for fact, name in {
        "sites": "sites", "months": "months", "cells": "cells", "cells_counted": "cells_counted", "groups": "groups",
        "visits": "visits", "visits_with_count": "visits_with_count", "years": "years", "years_used": "years_used",
        "months_without_count": "months_unseen", "sites_in_two_years": "sites_repeated",
        "sites_with_coordinates": "map_all", "bootstrap_replicates": "replicates",
    }.items():  # fmt: skip
        assert f[fact] == v[name], fact
    assert 100 * f["share_total_imputed"] == pytest.approx(v["share_imputed"], rel=1e-4)
    assert 100 * f["share_cells_counted"] == pytest.approx(v["share_cells"], rel=1e-4)


def test_windows_follow_from_the_yearly_table(report):
    s = Sources(report)
    w = s.tables["windows"]
    assert list(w["window"]) == ["all years", "10 years", "5 years"]
    for r in w.itertuples():
        years = s.years[s.years["used"] & s.years["year"].between(r.from_year, r.to_year)]
        slope = np.polyfit(years["year"], np.log(years["total"]), 1)[0]
        steps = r.to_year - r.from_year
        assert r.percent_per_year == pytest.approx(100 * np.expm1(slope), rel=1e-4)
        assert r.change_percent == pytest.approx(100 * np.expm1(slope * steps), rel=1e-4)
        assert r.window == "all years" or steps == int(r.window.split()[0])


def test_sites_and_smooth_follow_from_the_yearly_table(report):
    s = Sources(report)
    used = s.years[s.years["used"]]
    assert s.tables["sites"]["mean_total"].sum() == pytest.approx(used["total"].mean(), rel=1e-5)
    c = s.tables["smooth_index"]
    np.testing.assert_allclose(c["index"], used["index"], rtol=1e-5)
    assert ((c["smooth_lo"] < c["smooth"]) & (c["smooth"] < c["smooth_hi"])).all()
    # a smooth of a nearly straight course is the course: its ends give the change of the whole
    slope = np.polyfit(c["year"], np.log(c["index"]), 1)[0]
    course = np.exp(slope * (c["year"].iloc[-1] - c["year"].iloc[0]))
    assert c["smooth"].iloc[-1] / c["smooth"].iloc[0] == pytest.approx(course, rel=0.15)


def test_index_page_and_indicator_are_their_tables(report, bare_report, tmp_path):
    """The page of many species, from index.csv and indicator.csv and the species' yearly tables."""
    folder = build_index(
        [report, bare_report], tmp_path / "many", failures={"Corvus corax": "no counts"}, date="2026-01-02"
    ).parent
    html = unescape((folder / "index.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}%", " %"))
    page, table, whole = Page(html), csv(folder / "index.csv"), csv(folder / "indicator.csv")
    linear = csv(folder / "indicator_trends.csv")
    values = Sources(report)._head() | {
        "species": len(table), "failed": 1, "last": whole["index"].iloc[-1], "lo": whole["lo"].iloc[-1],
        "hi": whole["hi"].iloc[-1], "last_year": whole["year"].iloc[-1], "first_year": whole["year"].iloc[0],
        "n": whole["n_species"].max(), "n_min": whole["n_species"].min(),
    }  # fmt: skip
    kinds = table["trend_class"]
    values |= {
        "down": kinds.str.contains("decline").sum(), "up": kinds.str.contains("increase").sum(),
        "stable": (kinds == "stable").sum(), "uncertain": (kinds == "uncertain").sum(),
        "unclassed": (kinds == "not classified").sum(),
    }  # fmt: skip
    limits = table[["percent_per_year", "percent_lo", "percent_hi"]].abs().to_numpy().ravel()
    values["same"] = table["species"].value_counts().max()
    values["reach"] = np.clip(np.ceil(np.quantile(limits[np.isfinite(limits)], 0.9)), 5, 50)
    sentences = [
        "fedmiss {#v1}.{#v2}.{#v3}", "{#species} species, {#failed} failed · made on {#d1}-{#d2}-{#d3}",
        "Of {#species} species: {#down} {_}, {#up} {_}, {#stable} {_} stable, {#uncertain} uncertain, "
        "{#unclassed} without a class. {#failed} failed; see below.",
        "of {#n_min} to {#n} species, each with", "of {#n} species, each with", "weight: {last} in {#last_year}",
        "(95 % interval {lo} to {hi})", "with {#first_year} = 100",
        "{_} {_} has {#same} reports here",
        "Indicator of {#species} species.", "indicator ({#first_year} = 100)", "its 95 % interval",
        "from −{#reach} to +{#reach} % per year", "in 72 to 88 % of simulated worlds, for 95 %",
    ]  # fmt: skip
    by_year: dict[int, list[float]] = {}
    for r in linear.itertuples():
        values |= {
            f"t{r.Index}": r.percent_per_year,
            f"tl{r.Index}": r.percent_lo,
            f"th{r.Index}": r.percent_hi,
        }
        limits_said = f" ({{tl{r.Index}}} % to {{th{r.Index}}} %)" if np.isfinite(r.percent_lo) else ""
        sentences.append(f"From {r.from_year} to {r.to_year}: {{t{r.Index}}} % per year{limits_said}")
    for r in table.itertuples():
        values[f"p{r.Index}"] = r.percent_per_year
        sentences.append(f"{{p{r.Index}}} % per year")
        y = csv(folder / r.folder / "tables" / "yearly.csv")
        y = y[y["used"]]
        for year, index in zip(y["year"], y["index"], strict=True):
            by_year.setdefault(int(year), []).append(index)
        values |= {f"i{r.Index}": y["index"].iloc[0], f"j{r.Index}": y["index"].iloc[-1]}
        sentences.append(
            f"index {y['year'].iloc[0]} to {y['year'].iloc[-1]}: {{i{r.Index}}} to {{j{r.Index}}}"
        )
    lost = []
    for tag, text in joined(page):
        if tag == "svg[aria-label]" and text.endswith("per year"):
            assert any(agrees(text.split()[0], v) for v in table["percent_per_year"]), text
        elif tag == "svg[aria-label]" and text.startswith("index "):
            said = re.findall(NUMBER, text)
            assert any(
                agrees(said[2], values[f"i{k}"]) and agrees(said[3], values[f"j{k}"])
                for k in range(len(table))
            ), text
        elif tag == "title" and re.match(r"\d{4}: [\d,.]+$", text):  # a year of a species' line
            year, said = text.split(": ")
            assert any(agrees(said, v) for v in by_year[int(year)]), text
        elif not (tag == "text" and TICK.match(text)) and not (
            tag == "title" and check_mark(text, {"indicator": whole})
        ):
            rest = Sentences(sentences[: -2 * len(table)], values).left(text)
            lost += [rest] if re.search(r"\d", rest) else []
    assert lost == []
    shows = [None, None, None, ["percent_per_year"], ["percent_lo", "percent_hi"], "trend_class", ["from_year#", "to_year#"],
             ["n_sites#"], ["n_counted#"], ["share_observed%"], ["share_imputed_total%"]]  # fmt: skip
    for cells, (_, row) in zip(page.tables["Species by trend"][1:], table.iterrows(), strict=True):
        for (text, sort), column in zip(cells, shows, strict=True):
            if column is not None:
                check_cell(row, column, text, sort)


SPRING = {"season": (4, 5), "last_months": 2}
MAY = {"season": (5,), "last_months": 1}
OTHERS = {  # name -> the world, and the settings
    "hexagons": ({"n_sites": 450, "n_years": 8}, {}),
    "hexagons by visits": ({"n_sites": 450, "n_years": 8, "rank": 0}, {"coarse_map": 0.01}),
    "means on the map, few replicates": ({"rank": 0, "n_draws": 12, "occupied": True}, {"trim": True}),
    "too thin for a class": ({"n_years": 3, "seen": 0.02, "n_draws": 0}, {}),
    "four sites": ({"n_sites": 4, "regions": 0, "slope": 0.06}, {"coarse_map": 0.1, "rule": "rtrim"}),
    "regions without a year, more than are listed": (
        {"n_sites": 140, "n_years": 9, "regions": 70, "seen": 0.03, **MAY}, {}
    ),
    "a year of finds only": ({"n_sites": 30, "n_years": 9, "seen": 0.5, "finds_only": 2008, **SPRING}, {}),
    "a base of three years": ({"n_years": 26, "n_sites": 20, **MAY}, {"base": "2010-2012", "unit": "pairs"}),
}  # fmt: skip
NIGHTLY = ("hexagons", "too thin for a class", "four sites")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in OTHERS]
)
def test_every_number_of_other_reports(name, tmp_path, monkeypatch):
    world, settings = OTHERS[name]
    draw_nothing(monkeypatch)
    folders = make_folders(tmp_path, World(**world))
    made = ReportSettings(date=DATE, **settings)
    report = build_report(**folders, out=tmp_path / "report", settings=made).parent
    lost, _, _ = checked(report, folders, made.unit)
    assert lost == [], "\n".join(lost)


@pytest.mark.slow
def test_every_number_of_the_demo(tmp_path, monkeypatch):
    """The page that a newcomer sees first: nests, no zeros, TRIM beside, years without a count."""
    from fedmiss.pipeline.demo import run_demo

    draw_nothing(monkeypatch)
    out = tmp_path / "demo"
    run_demo(out)
    folders = {"panel": out / "panel", "fit": out / "fit"}
    lost, in_words, in_tables = checked(out / "report", folders, unit="nests")
    assert lost == [], "\n".join(lost)
    assert in_words > 150
    assert in_tables > 1000
