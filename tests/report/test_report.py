"""The report folder: reproducible, self-contained, true to its tables, and honest about thin data."""

import gc
import html
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.files import read_manifest, write_manifest
from fedmiss.report.analysis import ReportSettings, analyse
from fedmiss.report.build import build_report
from fedmiss.report.classes import by_limits, classify, student_quantile
from fedmiss.report.exchange import read_ocv, read_out_totals, write_exchange
from fedmiss.report.inputs import Source, read_inputs
from fedmiss.report.prose import caveats, headline, limits
from fedmiss.report.sections.headline import _stretches
from fedmiss.report.sections.index import build as indices
from fedmiss.report.sections.model import build as model_section
from fedmiss.report.sections.places import build as places
from fedmiss.report.tables import report_tables
from fedmiss.tables import load_schema, read_table, write_table
from tests.folders import content

from .conftest import World, analysed, make_folders
from .trim_readers import Tof

DATE = "2026-01-02"


def text_of(page: Path) -> str:
    raw = page.read_text(encoding="utf-8")
    raw = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", raw, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", raw)))


@pytest.mark.parametrize("rule", ["pecbms", "rtrim"])
def test_a_site_has_the_class_of_the_interval_beside_it(full, rule):
    n = len(full.sites)
    table = pd.DataFrame(
        {
            "site_index": np.arange(n),
            "slope": np.linspace(-0.12, 0.12, n),
            "slope_se": np.resize([0.01, 0.05], n),
        }
    )
    data = replace(full.data, site_trends=table)
    sites = places(analyse(data, replace(full.settings, rule=rule)), {}).values["sites"]
    assert len(sites.rows) == n
    for row in sites.rows:
        if row[-2].text == "n/a":  # the species was never found there
            continue
        lo, hi = (
            1 + float(each.replace("\u2212", "-").rstrip(" %")) / 100 for each in row[-2].text.split(" to ")
        )
        rounded = {by_limits(lo + off, hi + off) for off in (-6e-4, 0.0, 6e-4)}
        assert row[-1].text in rounded | {"not classified"}


def test_no_trend_of_a_site_is_known_better_than_the_scatter_of_years_lets_all_be_known(full):
    """Good and bad years are common to the sites. A map of a flat irruptive species was full of strong increases."""
    year = full.months["year"].to_numpy()
    fluctuating = np.exp(0.5 * np.random.default_rng(0).normal(size=np.ptp(year) + 1))[year - year.min()]
    draws = {name: values * fluctuating for name, values in full.data.draws.items()}
    data = replace(full.data, expected=full.data.expected * fluctuating, draws=draws)
    sites, t = (a := analyse(data, full.settings)).sites, a.trend
    slopes = data.site_trends.sort_values("site_index")["slope_se"].to_numpy()
    scatter = t["slope_se"] ** 2 - t["slope_se_sampling"] ** 2
    assert scatter > 0
    known = sites["slope_se"].notna()
    assert known.any()
    np.testing.assert_allclose(sites["slope_se"][known] ** 2, slopes[known] ** 2 + scatter, rtol=1e-6)
    of_all = classify(
        t["slope"], t["slope_se"], t["n_years"], t["rule"], student_quantile(0.95, t["n_years"] - 2)
    )
    assert of_all.name == t["trend_class"]
    alike = data.site_trends.assign(slope=t["slope"], slope_se=t["slope_se_sampling"])
    classes = analyse(replace(data, site_trends=alike), full.settings).sites["trend_class"]
    assert set(classes) - {"not classified"} == {t["trend_class"]}
    narrow = analyse(data, replace(full.settings, convention="trim")).sites["slope_se"]
    np.testing.assert_array_equal(narrow[known], slopes[known])


def test_where_all_sites_together_have_no_class_no_site_has_one(full, monkeypatch):
    monkeypatch.setattr("fedmiss.report.analysis.thin_counts", lambda *_: ["too few counts"])
    a = analyse(full.data, full.settings)
    assert not a.classified
    assert set(a.sites["trend_class"]) == {"not classified"}
    assert "no site has one" in places(a, {}).values["sites"].note


def test_sites_without_a_region_are_told_where_regions_do_not_add_up(full):
    """The shares of the regions summed to 87 %, and the page did not say why."""
    said = "Sites without a region are in none of them."
    assert full.regions["share"].sum() == pytest.approx(1.0)
    assert said not in indices(full, {}).values["regions"].note
    assert said in indices(replace(full, regions=full.regions.iloc[1:]), {}).values["regions"].note


@pytest.mark.parametrize(
    ("facts", "allowed"),
    [
        ({"slopes": True, "features": ["visits", "regions"]}, True),
        ({"slopes": True, "features": ["visits"]}, False),
        ({"slopes": False, "features": ["regions"]}, False),
    ],
)
def test_intervals_of_regions_allow_for_trends_drawn_together_only_where_regions_have_lines(
    full, monkeypatch, facts, allowed
):
    before = type(full.data).fact
    monkeypatch.setattr(
        type(full.data), "fact", lambda self, name, default=None: facts.get(name, before(self, name, default))
    )
    note = indices(full, {}).values["regions"].note
    assert ("the intervals allow for that" in note) is allowed
    assert ("the intervals do not cover that" in note) is not allowed


def with_part(a, first, last, lo, hi):
    """The analysis with one more period, that is stable."""
    part = a.periods.iloc[[0]].assign(period=f"{first} to {last}", from_year=first, to_year=last)
    part = part.assign(trend_class="stable", percent_lo=lo, percent_hi=hi)
    return replace(a, periods=pd.concat([a.periods, part], ignore_index=True))


@pytest.mark.parametrize(("lo", "hi", "differs"), [(-6.0, 1.0, False), (-1.0, 2.0, True)])
def test_a_part_differs_from_the_whole_where_its_interval_excludes_the_trend(full, lo, hi, differs):
    a = with_part(full, 2008, 2014, lo, hi)
    assert a.trend["percent_per_year"] == pytest.approx(-3.92, abs=0.01)
    assert bool(_stretches(a)) == differs


@pytest.mark.parametrize(("support", "said"), [(0.13, False), (0.5, True), (0.9, True)])
def test_a_part_is_a_finding_where_half_of_the_replicates_bend(full, support, said):
    """A bend in 13 % of the replicates stood among the first findings, as sure as any."""
    points = pd.DataFrame({"year": [2014], "support": [support]})
    a = with_part(replace(full, points=points), 2014, 2021, -1.0, 2.0)
    assert ("2014 to 2021: stable" in _stretches(a)) == said
    bends = str(indices(a, {}).values["bends"])  # in its section either way
    assert ("may bend in 2014" if support < 0.5 else "bends in 2014") in bends


def without_finds(full, years, share=1.0):
    """The analysis as if nothing was found in these years, of whose totals a share is left; and their visits."""
    at = full.data.months["year"].isin(years).to_numpy()
    cells = full.data.cells.copy()
    inside = at[cells["month_index"]]
    cells.loc[inside, ["n_detected", "count_sum"]] = 0
    expected = full.data.expected * np.where(at, share, 1.0)
    a = analyse(replace(full.data, cells=cells, expected=expected), full.settings)
    return a, f"{cells.loc[inside, 'n_visits'].sum():,} visits"


@pytest.mark.parametrize("end", [slice(0, 4), slice(-4, None)])
def test_years_at_an_end_that_found_nothing_are_named_and_no_base(full, end):
    gone = np.unique(full.data.months["year"])[end]
    a, visits = without_finds(full, gone)
    said = f"None of the {visits} of {gone[0]} to {gone[-1]} found the species"
    assert sum(each.startswith(said) for each in caveats(a)) == 1
    assert int(a.yearly.attrs["base"][0]) not in gone
    assert not any(each.startswith("None of") for each in caveats(full))


@pytest.mark.parametrize(("share", "named"), [(0.03, True), (0.6, False)])
@pytest.mark.parametrize("place", [-1, 5])
def test_a_single_year_that_found_nothing_and_fell_is_named(full, place, share, named):
    """The last of 20 years had only zeros, decided the windows, and no sentence said so."""
    gone = np.unique(full.data.months["year"])[place]
    a, visits = without_finds(full, [gone], share)
    assert (
        sum(each.startswith(f"None of the {visits} of {gone} found the species") for each in caveats(a))
        == named
    )


@pytest.mark.slow
def test_settings_of_a_simulated_panel_are_no_facts_of_a_fit():
    fit, panel = {"results": {"observer_sd": None}}, {"settings": {"observer_sd": 0.5, "n_groups": 3}}
    source = SimpleNamespace(manifests=(fit, panel))
    assert Source.fact(source, "observer_sd") is None
    assert Source.fact(source, "n_groups") == 3


@pytest.mark.slow
def test_the_same_report_twice_has_the_same_bytes(folders, report, tmp_path):
    again = build_report(**folders, out=tmp_path / "again", settings=ReportSettings(date=DATE)).parent
    assert content(again) == content(report)


def test_garbage_is_collected_again_after_a_report_and_after_one_that_failed(folders, report):
    assert gc.isenabled()
    with pytest.raises(ConfigError, match="exists"):
        build_report(**folders, out=report)
    assert gc.isenabled()


def test_every_figure_is_there_three_times_and_every_table_twice(report):
    names = {p.stem for p in (report / "figures").iterdir()}
    assert names == {
        "trend", "smoothed", "monthly", "season", "heatmap", "map", "regions", "cv", "convergence", "share"
    }  # fmt: skip
    for name in names - {"share"}:  # a picture for links
        for ending in ("svg", "png", "csv"):
            assert (report / "figures" / f"{name}.{ending}").stat().st_size > 50
    tables = {p.stem for p in (report / "tables").iterdir()}
    for name in tables:
        parquet = pd.read_parquet(report / "tables" / f"{name}.parquet")
        csv = pd.read_csv(report / "tables" / f"{name}.csv")
        assert list(parquet.columns) == list(csv.columns)
        assert len(parquet) == len(csv)


def test_replicates_give_the_intervals_of_the_yearly_table(report):
    draws = pd.read_parquet(report / "tables" / "draws.parquet")
    yearly = pd.read_parquet(report / "tables" / "yearly.parquet").set_index("year")
    spread = draws.groupby("year")["total"].agg(lambda t: np.log(t).std(ddof=1))
    want = np.log(yearly["total_hi"] / yearly["total"]) / 1.959963984540054
    np.testing.assert_allclose(spread, want, rtol=1e-9)


def test_the_page_asks_nothing_of_any_server_and_every_figure_has_words(report):
    page = (report / "index.html").read_text(encoding="utf-8")
    outside = re.sub(r'xmlns(:\w+)?="[^"]*"|<!DOCTYPE[^>]*>', "", page)
    assert not re.findall(r'(?:src|href|action|srcset)\s*=\s*"(?:https?:)?//', outside)
    assert not re.findall(r"@import|url\((?!#)|fetch\(|XMLHttpRequest", outside)
    figures = re.findall(r"<svg\b[^>]*>", page)
    assert len(figures) == 9
    for tag in figures:
        assert 'role="img"' in tag
        assert len(re.search(r'aria-label="([^"]+)"', tag)[1]) > 20
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"', page):
        assert target in ids
    for link in re.findall(r'href="(figures/[^"]+)"', page):
        assert (report / link).exists()


def test_numbers_of_the_tables_are_those_of_the_matrix(full, report):
    a = full
    last = a.yearly[a.yearly["used"]].iloc[-1]
    assert last["total"] == pytest.approx(a.data.expected[:, -12:].sum() / 12)
    results = read_manifest(report, "report")["results"]
    assert results["slope"] == pytest.approx(-0.04, rel=1e-6)
    assert results["trend_class"] == "moderate decline"
    table = read_table(report / "tables" / "monthly.parquet", "report_monthly").to_pandas()
    np.testing.assert_allclose(table["total"], a.data.expected.sum(axis=0))
    seen = np.where(a.data.observed, a.data.expected, 0).sum(axis=0)
    np.testing.assert_allclose(table["imputed_share"], 1 - seen / table["total"])


@pytest.mark.parametrize(
    ("kind", "lo", "hi", "said"),
    [
        ("moderate decline", -6.0, -2.0, "has declined moderately from 2008 to 2021"),
        ("uncertain", -6.0, 2.0, "room for a decline of more than 5 % per year,"),
        ("uncertain", -2.0, 7.0, "room for an increase of more than 5 % per year,"),
        ("uncertain", -6.0, 7.0,
         "decline of more than 5 % per year and for an increase of more than 5 % per year,"),
    ],
)  # fmt: skip
def test_headline_follows_the_class_and_says_what_is_not_excluded(full, kind, lo, hi, said):
    limits = pd.Series({"trend_class": kind, "percent_lo": lo, "percent_hi": hi})
    a = replace(full, trend=limits.combine_first(full.trend))
    got = headline(a)
    assert got.verdict == kind.capitalize()
    assert said in got.sentence
    assert "95 % interval" in got.sentence
    assert not any("No visit" in c for c in caveats(a))


@pytest.mark.slow
def test_a_bare_panel_is_told_as_it_is(bare_report):
    out = bare_report
    words = text_of(out / "index.html")
    assert "No trend class" in words
    assert "no bootstrap replicates were made" in words
    assert "No visit in this panel records an absence" in words
    assert "Effort does not enter the model" in words
    assert "Jan to Jun" in words
    assert "2021 lacks some months of the season" in words
    for kind in ("increased", "declined", "has been stable"):
        assert kind not in words
    assert not (out / "exchange").exists()
    drawn = {p.stem for p in (out / "figures").glob("*.svg")}
    assert drawn == {"trend", "monthly", "season", "smoothed", "heatmap", "map"}


def test_no_number_stands_without_its_interval_or_the_word_that_there_is_none(bare_report):
    """Every fitted quantity in the running text carries an interval, or says that none is available."""
    words = text_of(bare_report / "index.html")
    for hit in re.finditer(r"% per year(?! without)", words):
        after = words[hit.end() : hit.end() + 40]
        if "±" in words[hit.start() - 12 : hit.start()]:
            continue  # the thresholds of the rule
        assert "(no interval available)" in after or "(95 % interval" in after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"n_sites": 4, "seen": 0.9}, "4 sites were counted in two or more years"),
        ({"n_years": 4, "first": 2018}, "4 complete years"),
        ({"seen": 0.014}, "site-months with a count"),
    ],
)
def test_thin_panels_get_no_class(tmp_path, change, expected):
    a = analysed(make_folders(tmp_path, World(regions=0, cv=False, trace=False, **change)))
    assert not a.classified
    assert expected in a.trend["reason"]
    assert headline(a).verdict == "No trend class"


@pytest.mark.slow
def test_years_that_no_site_links_get_no_class(tmp_path):
    data = read_inputs(**make_folders(tmp_path, World(regions=0)))
    first = data.months["year"].to_numpy()[data.cells["month_index"]] < 2015
    early = data.cells["site_index"] < 20
    cells = data.cells[first == early].reset_index(drop=True)
    a = analysed(replace(data, cells=cells))
    assert "only 7 of 14 years are linked" in a.trend["reason"]


@pytest.mark.slow
def test_coarse_map_hides_places(small, tmp_path):
    out = build_report(**small, out=tmp_path / "r", settings=ReportSettings(date=DATE, coarse_map=0.5)).parent
    sites = pd.read_parquet(out / "tables" / "sites.parquet")
    assert np.allclose(sites["latitude"] % 0.5, 0)
    assert set(sites["site_id"]) == {"withheld"}
    exact = read_inputs(**small).sites
    for path in [p for p in out.rglob("*") if p.suffix in (".html", ".csv", ".svg", ".json")]:
        text = path.read_text(encoding="utf-8")
        assert "Pond" not in text, path
        assert "L00003" not in text, path
        for value in exact["latitude"][:10]:
            assert f"{value:.4f}" not in text, path


def test_exchange_files_hold_the_totals_and_their_covariance(full, report):
    a = full
    year, total, cov = a.covariance
    table = pd.read_csv(report / "exchange" / "totals.csv")
    np.testing.assert_allclose(table["total"], total)
    np.testing.assert_allclose(table["se"], np.sqrt(np.diag(cov)))
    assert table.loc[0, ["index", "index_se"]].tolist() == [1.0, 0.0]
    full = pd.read_csv(report / "exchange" / "covariance.csv", index_col="year")
    np.testing.assert_allclose(full.to_numpy(), cov)
    np.testing.assert_allclose(read_ocv(report / "exchange" / "Ardea_testa.ocv"), cov, atol=6e-5)
    out = read_out_totals(report / "exchange" / "Ardea_testa.out")
    assert out["time"].tolist() == year.tolist()
    np.testing.assert_allclose(out["imputed"], total, atol=0.006)
    np.testing.assert_allclose(out["imputed_se"], np.sqrt(np.diag(cov)), atol=0.006)


@pytest.mark.parametrize("rule", ["pecbms", "rtrim"])
@pytest.mark.parametrize("convention", ["long-term", "trim"])
def test_page_and_exchange_file_give_one_slope_error_and_class(full, tmp_path, rule, convention):
    """Scatter of years makes the long-term class uncertain; the file must not say that of the totals alone."""
    trend = full.series.trend(rule=rule, convention=convention).iloc[0].copy()
    if convention == "long-term":
        trend["slope_se"], trend["trend_class"], trend["label"] = 0.3, "uncertain", "Uncertain"
    write_exchange(replace(full, trend=trend), tmp_path)
    text = (tmp_path / "Ardea_testa.out").read_text()
    for part in ("MODEL", "IMPUTED"):
        block = re.search(rf"OVERALL SLOPE {part}.*?\n[ \t]*(\n|$)", text, re.DOTALL)[0].splitlines()
        assert block[0].endswith(f": {trend['label']}")
        slope, se = (float(v) for v in block[2].split()[:2])
        assert (slope, se) == pytest.approx((trend["slope"], trend["slope_se"]), abs=6e-5)
    assert Tof(text).n("Time") == 14


def test_folders_of_other_panels_are_refused(folders, tmp_path):
    other = make_folders(tmp_path / "other", World(n_sites=7))
    with pytest.raises(InputError, match=r"imputed was not imputed from .*fit, but from another fit or"):
        read_inputs(folders["panel"], folders["fit"], other["imputed"])
    with pytest.raises(InputError, match=r"fit was not fitted on .*panel: their tables differ"):
        read_inputs(folders["panel"], other["fit"], folders["imputed"])
    with pytest.raises(InputError, match="'panel', but a 'fit' is needed"):
        read_inputs(folders["panel"], folders["panel"], folders["imputed"])
    broken = shutil.copytree(folders["panel"], tmp_path / "broken")
    shutil.rmtree(broken / "groups")
    with pytest.raises(InputError, match=r"cells\.parquet is missing"):
        read_inputs(broken, folders["fit"], folders["imputed"])


def test_a_matrix_with_holes_is_refused(folders, tmp_path):
    bad = shutil.copytree(folders["imputed"], tmp_path / "imputed")
    table = read_table(bad / "imputed.parquet", "imputed").to_pandas()
    table.loc[5, "expected"] = np.inf
    write_table(table, bad / "imputed.parquet", "imputed")
    with pytest.raises(InputError, match=r"imputed.parquet is damaged.*`fedmiss impute"):
        read_inputs(folders["panel"], folders["fit"], bad)
    write_manifest(bad, "imputed", settings={}, inputs=read_manifest(bad)["inputs"])
    with pytest.raises(InputError, match="no finite value for site 0, month 5"):
        read_inputs(folders["panel"], folders["fit"], bad)


def test_settings_and_folders_are_checked_before_anything_is_written(folders, tmp_path):
    with pytest.raises(ConfigError, match="'2026-13-01'"):
        ReportSettings(date="2026-13-01")
    with pytest.raises(ConfigError, match="base 1900"):
        build_report(**folders, out=tmp_path / "r", settings=ReportSettings(base="1900", date=DATE))
    assert not (tmp_path / "r").exists()
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="not made by fedmiss"):
        build_report(**folders, out=tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").exists()


@pytest.mark.slow
def test_one_site_one_year_one_month_is_a_report_too(tmp_path):
    world = World(n_sites=1, n_years=1, season=(5,), last_months=1, seen=1.0, regions=0, coordinates=0.0)
    f = make_folders(tmp_path, world)
    page = build_report(**f, out=tmp_path / "r", settings=ReportSettings(date=DATE))
    words = text_of(page)
    assert "no trend to report" in words
    assert "No site has coordinates" in words
    assert "It speaks of the one site" in words
    assert not re.search(r"\b1 (sites|groups)", words)


def test_a_model_of_rank_0_gives_no_class_to_regions_and_sites(tmp_path):
    world = World(rank=0, n_sites=12, n_years=8, season=(4, 5), last_months=2, trace=False, seen=0.6)
    a = analysed(make_folders(tmp_path, world))
    assert set(a.sites["trend_class"]) == set(a.regions["trend_class"]) == {"not classified"}
    assert a.classified
    assert any("gives all sites and regions one trend" in c for c in caveats(a))
    # Without slopes no site has one, however many birds it has.
    assert not any("a trend of its own" in c for c in caveats(a))


def refitted(folders, tmp_path, **facts):
    """The analysis of the folders, the fit with other facts."""
    fit = shutil.copytree(folders["fit"], tmp_path / "fit")
    before = read_manifest(fit)
    write_manifest(fit, "fit", settings={}, inputs=before["inputs"], results=before["results"] | facts)
    return analysed(read_inputs(folders["panel"], fit, folders["imputed"]))


def test_a_site_with_most_of_the_birds_is_not_said_to_share_the_trend_of_all_others(folders, tmp_path):
    a = refitted(
        folders, tmp_path, rank=0, slopes=True, features=[], family="poisson", site_variances=[0.8, 1e-4], members=[],
        large_site=True,
    )  # fmt: skip
    assert any("gives all sites but the one with most birds one trend" in c for c in caveats(a))
    assert a.regions["reason"].str.contains("all sites but the one with most birds").all()
    for note in places(a, {}).values["sites"].note, indices(a, {}).values["regions"].note:
        assert "All sites but the one with most birds share one trend in this model" in note
    words = model_section(a, {}).values["words"]
    assert "all sites but the one with most birds rise and fall together" in words
    assert "each has a trend of its own" not in words


@pytest.mark.parametrize("more", [{"occupancy": [0.9, 0.1, 0.1]}, {"members": [{"rank": 0}, {"rank": 1}]}])
def test_sites_that_may_be_empty_or_differ_in_one_model_are_not_said_to_go_together(folders, tmp_path, more):
    facts = {"rank": 0, "slopes": False, "features": [], "members": [], "large_site": False}
    words = model_section(refitted(folders, tmp_path, **facts | more), {}).values["words"]
    assert "every month its own. " in words
    assert "all sites rise and fall together" not in words


@pytest.mark.parametrize("hidden", [0, 1, 1317])
def test_a_month_whose_visits_a_study_withheld_is_not_said_to_have_had_none(full, hidden):
    """A member with counts in 15 years read that these had none, at any of its sites."""
    flow = [*full.data.flow, {"step": "visits withheld", "rows": -hidden, "note": ""}]
    data = replace(full.data, imputed=full.data.imputed | {"flow": flow})
    a = replace(full, data=data, coverage=replace(full.coverage, months_unseen=2))
    (said,) = [one for one in caveats(a) if "no count at any site" in one]
    assert said.endswith(
        {
            0: "imputed whole.",
            1: "imputed whole. 1 visit was withheld.",
            1317: "imputed whole. 1,317 visits were withheld.",
        }[hidden]
    )


@pytest.mark.parametrize(("shift", "said"), [(0.003, True), (0.0001, False)])
def test_no_step_is_said_to_change_the_trend_by_nothing(full, shift, said):
    fit = {
        **full.data.fit,
        "results": full.data.fit["results"] | {"trials": [["slopes", "whole sites", 0.1, 0.1, True, shift]]},
    }
    words = model_section(replace(full, data=replace(full.data, fit=fit)), {}).values["words"]
    assert ("'slopes' changes the trend most, by +0.3 % per year" in words) == said
    assert ("changes the trend most" in words) == said


def test_of_one_site_nothing_is_said_of_others(folders, tmp_path):
    one = dict(
        rank=0,
        slopes=True,
        features=[],
        family="poisson",
        site_variances=[0.8, 1e-4],
        members=[],
        large_site=True,
    )
    a = refitted(folders, tmp_path, **one)
    a = replace(a, whole=a.whole._replace(n_sites=1))
    assert "Every month has its own level." in model_section(a, {}).values["words"]
    said = " ".join([*caveats(a), places(a, {}).values["sites"].note])
    assert "The trend of the one site is that of the whole." in said
    assert "share one trend" not in said
    assert "in use gives all sites" not in said


def test_a_total_of_some_months_is_not_said_to_be_of_the_season(full):
    yearly = full.yearly
    for complete in (True, False):
        a = replace(full, yearly=yearly.assign(complete=[*yearly["complete"].iloc[:-1], complete]))
        note = indices(a, {}).values["yearly"].note
        assert ("of an incomplete year is of the months it has" in note) != complete


def test_manifest_of_a_fit_without_converging_warns(folders, tmp_path):
    a = refitted(folders, tmp_path, converged=False, stop_reason="500 rounds")
    assert any("did not converge" in c and "500 rounds" in c for c in caveats(a))
    assert headline(a).verdict == "Moderate decline, provisional since the fit has not converged"


def test_tables_follow_their_schemas_to_the_column(full):
    for name, (schema, table) in report_tables(full).items():
        listed = [c["name"] for c in load_schema(schema).columns]
        assert sorted(listed) == sorted(table.columns), name


@pytest.mark.slow
def test_a_report_of_yearly_counts_speaks_of_no_month(tmp_path):
    from fedmiss.etl.ingest import IngestSettings, ingest
    from fedmiss.etl.panel import PanelSettings, make_panel
    from fedmiss.pipeline.fitting import fit_panel
    from fedmiss.pipeline.imputing import impute_panel
    from fedmiss.pipeline.settings import FitSettings

    cells = [(s, y) for s in range(12) for y in range(2010, 2020) if (s + y) % 6]
    rows = [f"S{s},{y},{(s + 2) * 3 + (y - 2010) + s * y % 4}" for s, y in cells]
    (tmp_path / "t.csv").write_text("site,year,count\n" + "\n".join(rows) + "\n")
    ingest([tmp_path / "t.csv"], tmp_path / "rec", IngestSettings(species=("Wren",)), keep_cache=False)
    panel, fit, imputed = (tmp_path / n for n in ("panel", "fit", "imputed"))
    make_panel(tmp_path / "rec", panel, PanelSettings(groups=1))
    fit_panel(panel, fit, FitSettings(model="quasi", rank="0", bootstrap=20))
    impute_panel(panel, fit, imputed)
    page = build_report(panel, fit, imputed, tmp_path / "r", ReportSettings(date=DATE, trim=True))
    words = text_of(page)
    note = "there is no month: the counts are yearly, and stand in June of their year"
    words = words.replace(note, "").replace("predictors and months", "")  # technical reason of the stop
    for word in ("month", "Jun", "season", "observers in"):
        assert word not in words, word
    assert "site-years were counted" in words
    assert "TRIM beside fedmiss" in words
    assert not (tmp_path / "r" / "figures" / "monthly.svg").exists()


@pytest.mark.parametrize(
    ("facts", "whose"), [({}, "observers"), ({"sites_redrawn": True}, "sites"), ({"n_observers": 0}, "sites")]
)
def test_the_page_says_whose_weights_the_replicates_draw(full, facts, whose):
    data = full.data
    panel = {**data.panel, "results": data.panel["results"] | facts}
    a = replace(full, data=replace(data, panel=panel))
    assert f"with other weights for the {whose};" in model_section(a, {}).values["words"]
    assert any(f"({whose} are redrawn inside each group)" in said for said in limits(a))
