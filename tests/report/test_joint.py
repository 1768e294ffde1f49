"""The joint report: the words and numbers of a local one, as far as its data bear them, and nothing of any site."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmiss.atomic import read_json, write_json
from fedmiss.errors import InputError
from fedmiss.files import read_manifest, write_manifest
from fedmiss.report.changes import over_window, smooth_index, window_trends
from fedmiss.report.findings import ONE_TREND
from fedmiss.report.inputs import read_inputs
from fedmiss.report.joint import JointSource, analyse_joint, caveats, headline, joint_report
from fedmiss.report.language import UNTRANSLATED
from fedmiss.report.sections import index
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.words import MINUS
from fedmiss.report.years import month_table
from fedmiss.tables import write_table

from .conftest import World, make_folders

STAMPS = 12 * 2001 + np.arange(12 * 14)


def facts(**more):
    return {
        "species": "Ardea alba", "method": "fast", "standard_effort": "one visit", "observer_effects": False,
        "observer_sd": None, "n_groups": 3, "n_counted": 3000, "n_months": STAMPS.size, "bootstrap": 60,
        "family": "poisson", "scale": "raw", "model": "negative binomial", "effects": True, "dispersion_model": "negbin",
        "rank": 1, "penalty": None, "mu": 1.0, "phi": 1.0, "dispersion": 1.2, "negbin_size": 2.0, "edf": 40.0, "smear": 1.0,
        "site_variances": [1.0], "month_variances": [1.0], "converged": True, "stop_reason": "", "rounds": 20,
        "terms": [], "blanks": [], "kappa": [], "n_sites_all": 57.0, "regions": ["North", "South"], "notes": [],
        "withheld_visits": 12, "ledger": {"exchanges": 150, "bytes_up": 3_000_000, "bytes_down": 6_000_000},
    } | more  # fmt: skip


def result_of(
    folder, *, slope=-0.06, visits=None, counted=20.0, sigma=0.05, regions=("North", "South"), finds=5.0, uncounted=0.0,
    **more,
):  # fmt: skip
    """Write the joint result of a study whose totals fall by ``slope`` a year."""
    rng = np.random.default_rng(3)
    L = STAMPS.size
    level = np.exp(slope * (STAMPS / 12 - 2008) + 0.3 * np.sin(2 * np.pi * STAMPS / 12))
    parts = [400 * level, 200 * level * np.exp(0.02 * (STAMPS / 12 - 2008))][: len(regions)]
    totals = [sum(parts), *parts] if parts else [400 * level]
    labels = ["all", *regions]
    shocks = ((rng.standard_normal((60, 1)), rng.standard_normal((60, L))) for _ in totals)
    draws = [t * np.exp(sigma * whole + sigma * own) for t, (whole, own) in zip(totals, shocks, strict=True)]
    visits = np.full(L, 18.0) if visits is None else visits
    folder.mkdir()
    write_json(
        folder / "totals.json",
        {
            "months": STAMPS.tolist(), "regions": labels, "totals": [t.tolist() for t in totals],
            "visits": visits.tolist(),
            "finds": (np.broadcast_to(finds, L) * (visits > 0) * (np.broadcast_to(counted, L) > 0)).tolist(),
            "uncounted": np.broadcast_to(uncounted, L).tolist(),
        },
    )  # fmt: skip
    frames = [
        pd.DataFrame(
            {
                "draw": np.repeat(np.arange(60, dtype=np.int32), L), "region": label,
                "month_index": np.tile(np.arange(L, dtype=np.int32), 60), "total": d.ravel(),
            }
        )
        for label, d in zip(labels, draws, strict=True)
    ]  # fmt: skip
    write_table(pd.concat(frames, ignore_index=True), folder / "draws.parquet", "draws")
    seen = np.flatnonzero(visits > 0)
    visited = {
        "month_index": seen.astype(np.int32), "weight": visits[seen], "counted": np.broadcast_to(counted, L)[seen].copy(),
        "fitted": np.maximum(np.broadcast_to(counted, L)[seen], 1e-3), "variance": np.full(seen.size, 100.0),
        "effort": np.zeros(seen.size), "effort_square": np.zeros(seen.size),
    }  # fmt: skip
    write_table(pd.DataFrame(visited), folder / "visited.parquet", "visited")
    settings = {
        "organisations": ["alpha", "beta", "gamma"], "masks": True, "minimum": 5, "contributors": 3, "share": 0.85,
        "exchanges": 1000, "species": "of the study", "model": {"rank": 7},
    }  # fmt: skip
    write_manifest(
        folder, "joint", settings=settings, inputs={"job": "35856c3e2739245a" * 4},
        results=facts(regions=list(regions), **more), warnings=["12 visits were withheld."],
    )  # fmt: skip
    return folder


def findings(folder, **settings):
    return analyse_joint(JointSource.read(folder, {}), ReportSettings(**settings))


def test_it_says_what_a_local_report_says_of_the_same_totals(tmp_path):
    a = findings(result_of(tmp_path / "r"))
    raw = read_json(tmp_path / "r" / "totals.json")
    series = MonthlySeries.of(raw["totals"][0], month_table(STAMPS), a.data.draws["all"], raw["visits"])
    own = series.trend().iloc[0]
    for name in ("slope", "slope_se", "percent_lo", "percent_hi", "trend_class", "slope_se_sampling"):
        assert a.trend[name] == own[name], name
    assert a.trend["trend_class"] in ("moderate decline", "strong decline")
    said = headline(a).sentence
    assert f"{abs(a.trend['percent_per_year']):.1f} % per year" in said
    # Visits of years that are left out are behind the fit too, so no number of years stands beside all visits.
    assert headline(a).support == (
        "It rests on 3,000 visits with a count, of alpha, beta and gamma together. Index and trend are of 14 of 14 years."
    )
    windows = window_trends(a)
    assert list(windows["window"]) == ["all years", "10 years", "5 years"]
    assert windows["alert"].iloc[0]  # six per cent a year over thirteen years
    rows = a.regions.set_index("region")
    assert rows["share"].sum() == pytest.approx(1.0)
    assert rows.loc["South", "slope"] - rows.loc["North", "slope"] == pytest.approx(0.02, abs=1e-6)


def test_the_page_has_the_sections_that_its_data_bear(tmp_path):
    page = joint_report(result_of(tmp_path / "r"), tmp_path / "out", {})
    html = page.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}%", " %")
    sections, figures = (re.findall(rf'<{x}(\w+)"', html) for x in ('section id="', 'figure id="fig-'))
    assert sections == "headline question index season model study reading".split()
    assert figures == "trend smoothed regions season monthly".split()
    for caption in (
        "Trend and alerts by window",
        "Yearly totals and indices",
        "Counted and fitted, year by year",
    ):
        assert f"<caption>{caption}</caption>" in html
    for name in re.findall(r'href="([^"#][^"]*)"', html):
        assert name == "data:," or (page.parent / name).exists(), name
    assert "<dt>Exchanges between the groups, whole job</dt><dd>150</dd>" in html  # made, not allowed
    # the sites of a region are not known, and not said to be none
    assert "(0)" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert {p.name for p in (page.parent / "exchange").iterdir()} == {
        "totals.csv", "totals.parquet", "covariance.csv", "Ardea_alba.ocv",
    }  # fmt: skip
    forms = {path.suffix for path in (page.parent / "tables").iterdir()}
    assert (forms, "(CSV), yearly totals" in html, "parquet" in html) == ({".csv"}, True, False)
    trend = (
        (page.parent / "tables" / "trend.csv").read_text().splitlines()[1]
    )  # of one row, and of six digits as others
    assert max(len(digits.lstrip("0")) for digits in re.findall(r"\.(\d+)", trend)) <= 6
    manifest = read_manifest(page.parent, "joint_report")
    assert manifest["results"]["headline"] in html


def test_it_says_that_totals_are_low_where_visits_are_fitted_too_low(tmp_path):
    """Studies do not scale their fits to the counts by default: their totals were up to 23 % too low, without a word."""
    a = findings(result_of(tmp_path / "r"))
    for factor, said in ((0.85, "more than 10 % below"), (1.15, "more than 10 % above"), (0.95, None)):
        off = replace(
            a, data=replace(a.data, visited=a.data.visited.assign(fitted=lambda t, f=factor: f * t["fitted"]))
        )
        found = [line for line in caveats(off) if "At the visits that were made the fitted total" in line]
        assert [said in line for line in found] == ([] if said is None else [True])


def test_it_says_when_intervals_of_regions_hold_that_they_have_one_line(tmp_path):
    """They covered 73 % of true trends, and the page said it of regions only that counts hardly tell apart."""
    one = findings(result_of(tmp_path / "one"))
    own = findings(result_of(tmp_path / "own", slopes=True, features=["regions"]))
    notes = [index._regions(a).note for a in (one, own)]
    assert "one line for all regions" in notes[0]
    assert "do not cover that." in notes[0]
    assert "hardly tell regions apart" in notes[1]
    assert "the intervals allow for that." in notes[1]
    blank = replace(one, regions=one.regions.assign(percent_lo=np.nan, percent_hi=np.nan))
    assert "interval" not in index._regions(blank).note


@pytest.mark.slow
def test_without_regions_years_or_birds(tmp_path):
    """A year without a released month is named and left out; few birds give no class; none gives no trend."""
    visits = np.full(STAMPS.size, 18.0)
    visits[24:36] = 0
    a = findings(result_of(tmp_path / "gap", regions=(), visits=visits))
    assert not a.yearly.set_index("year").loc[2003, "used"]
    assert any(c.startswith("2003 lacks any month with the least numbers") for c in caveats(a))
    page = joint_report(tmp_path / "gap", tmp_path / "page", {}).read_text(encoding="utf-8")
    assert "2003 (left out)" in page
    assert "(no count)" not in page
    few = findings(result_of(tmp_path / "few", counted=0.1))
    assert not few.classified
    assert "birds were counted; a class needs 20" in headline(few).sentence
    none = findings(result_of(tmp_path / "none", counted=0.0))
    assert headline(none).verdict == "Never found"
    assert none.yearly["total_lo"].isna().all()
    joint_report(tmp_path / "none", tmp_path / "nothing", {})


@pytest.mark.slow
def test_one_trend_is_not_repeated_by_region(tmp_path):
    a = findings(result_of(tmp_path / "r", rank=0))
    assert set(a.regions["trend_class"]) == {"not classified"}
    assert (a.regions["reason"] == ONE_TREND).all()
    html = joint_report(tmp_path / "r", tmp_path / "out", {}).read_text(encoding="utf-8")
    assert "All regions share one trend in this model" in html
    assert "fig-regions" not in html


@pytest.mark.slow
def test_the_title_names_the_months_that_enter(tmp_path):
    visits = np.full(STAMPS.size, 18.0)
    visits[:12] = visits[-3:] = 0.0
    page = joint_report(result_of(tmp_path / "r", visits=visits), tmp_path / "j", {}).read_text()
    first, last = (f"{stamp // 12}-{stamp % 12 + 1:02d}" for stamp in STAMPS[[12, -4]])
    assert f"{first} to {last} · " in page


def test_the_title_of_an_own_report_names_no_months_of_others(tmp_path):
    """Its months are those of all organisations, of which its first ones may have been left out."""
    data = read_inputs(**make_folders(tmp_path, World()))
    assert data.period == "2008-01 to 2021-12"
    later = replace(data, cells=data.cells[data.cells["month_index"] >= 30])
    assert later.period == "2010-07 to 2021-12"


def test_the_page_is_translated_whole(tmp_path):
    advice = "Taken after trials on held-out data: sites that are empty in some years, no slopes of sites."
    result = result_of(tmp_path / "r", rank=0, advice=advice)
    page = joint_report(result, tmp_path / "j", {}, ReportSettings(language="de"))
    assert '<html lang="de">' in page.read_text(encoding="utf-8")
    assert not (page.parent / UNTRANSLATED).exists()


@pytest.mark.slow
def test_sites_that_nobody_visited_stand_beside_the_visited_ones(tmp_path):
    result = result_of(tmp_path / "r", regions=("North", "visited sites"), rank=1)
    page = joint_report(result, tmp_path / "out", {})
    html = page.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}%", " %")
    assert "sites, visited and not; the numbers of those that nobody visited, 67 % of the total" in html
    assert "counts twice" in html
    row = pd.read_csv(page.parent / "tables" / "visited.csv")
    assert row["region"].to_list() == ["visited sites"]
    assert pd.read_csv(page.parent / "tables" / "regions.csv")["region"].to_list() == ["North"]
    german = joint_report(tmp_path / "r", tmp_path / "german", {}, ReportSettings(language="de"))
    assert "besuchte und nicht besuchte; die Zahlen der nie besuchten" in german.read_text(encoding="utf-8")


def other(folder, **values):
    """The result with other values in its totals, as if it had been made so; None leaves a value out."""
    raw = read_json(folder / "totals.json") | values
    write_json(folder / "totals.json", {k: v for k, v in raw.items() if v is not None})
    manifest = read_manifest(folder)
    write_manifest(folder, "joint", **{k: manifest[k] for k in ("settings", "inputs", "results", "warnings")})
    return folder


def test_a_damaged_result_is_named(tmp_path):
    """A number of it that was changed went into the page."""
    folder = other(result_of(tmp_path / "r"), regions=["North", "South", "East"])
    with pytest.raises(InputError, match=r"totals\.json names the regions North, South, East"):
        JointSource.read(folder, {})
    (folder / "totals.json").write_text((folder / "totals.json").read_text().replace("North", "Nerth"))
    with pytest.raises(
        InputError, match=r"is damaged: .*; remove .*, and `fedmiss federation join` makes it"
    ):
        JointSource.read(folder, {})


def test_it_says_what_a_local_report_says_of_visits_without_a_number(tmp_path):
    """A study whose finds are mostly X had a page without a word of it; by how much the trend moves is from closed form."""
    year = STAMPS // 12
    more = np.where(year < 2008, 0.0, 3.0)
    uncounted = {"more": more, "alike": 3.0, "all": 6.0, "presence": more}
    said = {}
    for name, without in uncounted.items():
        family = "bernoulli" if name == "presence" else "poisson"
        result = result_of(tmp_path / name, finds=6.0, uncounted=without, family=family)
        said[name] = " ".join(caveats(findings(result)))
    # Of 252 visits of a year 72 found, 36 of them without a number in the later years; n - x = 216.
    slope = np.polyfit(np.arange(14), np.repeat([0.0, np.log((36.5 / 72.5) * (252 / 216))], 7), 1)[0]
    moved = f"{100 * np.expm1(slope):.1f} % per year".replace("-", MINUS)
    assert "252 of the 1,008 visits that found the species have no number (X)" in said["more"]
    assert f"moves the trend by about {moved}" in said["more"]
    assert "None of the 1,008 visits that found the species has a number" in said["all"]
    for name in ("alike", "presence"):
        assert "number (X)" not in said[name]


def test_finds_without_a_number_may_lie_in_years_in_which_none_was_counted(tmp_path):
    counted, finds = (np.where(STAMPS // 12 < 2004, 0.0, full) for full in (20.0, 6.0))
    for without in (0.0, 3.0):
        folder = result_of(tmp_path / str(without), counted=counted, uncounted=without)
        other(folder, finds=(finds + without).tolist())
        said = caveats(findings(folder))
        assert any("found the species: how near to 0" in each for each in said) == (without == 0)


WITHOUT_FINDS = {"finds": None, "uncounted": None}  # as results were made before they had them


def test_a_result_made_before_it_had_finds_is_read(tmp_path):
    a = findings(other(result_of(tmp_path / "r"), **WITHOUT_FINDS))
    assert a.classified
    assert not any("found the species" in said for said in caveats(a))


def test_a_result_of_presence_made_before_that_has_its_finds(tmp_path):
    finds = np.where(STAMPS // 12 == 2008, 18.0, 5.0)
    a = findings(other(result_of(tmp_path / "r", counted=finds, family="bernoulli"), **WITHOUT_FINDS))
    (doubt,) = (c for c in caveats(a) if c.startswith("216 of 216 visits of 2008 found the species"))
    # with sites known, a scheme that visits the same ones each year is not doubted
    assert doubt.endswith(
        "This page knows no sites: where the same ones were visited as often as ever, no visit lacks. The own page of each "
        "organisation compares them."
    )


def test_it_says_what_a_local_report_says_of_thin_and_strange_visits(tmp_path):
    """No absences, finds in few visits, other months than before, years that found nothing."""
    a = findings(result_of(tmp_path / "few", finds=np.arange(STAMPS.size) % 9 == 0))
    assert not a.classified
    assert "19 visits found the species; a class needs 20" in headline(a).sentence
    assert not any("absence" in said for said in caveats(a))
    full = findings(result_of(tmp_path / "full", finds=18.0))
    assert any("No visit in this panel records an absence" in said for said in caveats(full))
    month, year = STAMPS % 12, STAMPS // 12
    visits = np.where((month < 6) == (year < 2008), 30.0, 2.0)
    moved = caveats(findings(result_of(tmp_path / "moved", visits=visits)))
    assert any("of the counts lie in other months of the year than before" in said for said in moved)
    counted = np.where(year < 2004, 0.0, 20.0)
    none = caveats(findings(result_of(tmp_path / "none", counted=counted)))
    assert any(said.startswith("None of the 648 visits of 2001 to 2003 found the species") for said in none)
    apart = np.where((month < 6) == (year < 2008), 30.0, 0.0)
    b = findings(result_of(tmp_path / "apart", visits=apart))
    assert "7 of 14 years have a month of the year in common" in headline(b).sentence
    usual = " ".join(caveats(findings(result_of(tmp_path / "usual"))))
    assert not any(words in usual for words in ("other months", "found the species", "absence", "(X)"))


def test_a_window_of_one_year_has_no_change_and_no_row(tmp_path):
    a = findings(result_of(tmp_path / "r"))
    used = a.years.year[a.years.used]
    between = (used[-1] - 12 < a.years.year) & (a.years.year < used[-1])
    lone = a.whole._replace(series=a.series.without(between))
    windows = window_trends(replace(a, whole=lone, trend=lone.trend(a.settings)))
    assert list(windows["window"]) == ["all years"]
    assert np.isnan(over_window(-3.0, 0))


def test_the_band_of_the_smoothed_index_holds_the_error_of_its_base(tmp_path):
    """A level that is not known moves base and curve alike; a base that is not known moves the curve against it."""
    a = findings(result_of(tmp_path / "r"))
    rng = np.random.default_rng(3)
    totals, months = a.series.totals, a.series.months
    shared = totals * np.exp(rng.normal(0, 0.3, (200, 1)))
    level = replace(a.series, draws=shared)
    curve = smooth_index(replace(a, whole=a.whole._replace(series=level)))
    np.testing.assert_allclose(curve["smooth_lo"], curve["smooth_hi"])
    first = (months["year"] == a.years.year[a.years.used][0]).to_numpy()
    base = replace(a.series, draws=np.where(first, shared, totals))
    curve = smooth_index(replace(a, whole=a.whole._replace(series=base)))
    assert np.log(curve["smooth_hi"] / curve["smooth"]).iloc[-1] == pytest.approx(1.96 * 0.3, rel=0.2)
