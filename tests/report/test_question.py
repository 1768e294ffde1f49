"""A reader's question is answered in the browser as Python answers it."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.folders import ALL
from fedmiss.report import question
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.figures import trend
from fedmiss.report.inputs import read_inputs
from fedmiss.report.joint import JointSource, analyse_joint, joint_report
from fedmiss.report.language import languages, write_po
from fedmiss.report.many import build_index
from fedmiss.report.prose import _SAID
from fedmiss.report.question import (
    NO_BASE,
    NO_DRAWS,
    NO_SITE,
    OTHER_SEASON,
    Choice,
    answer,
    site_years,
    stored,
)
from fedmiss.report.sections.places import build as places
from fedmiss.report.sections.question import WORDS as QUESTION_WORDS
from fedmiss.report.settings import ReportSettings
from fedmiss.resources import resource
from fedmiss.rng import rng_for
from fedmiss.tables import read_table

from .browser import in_browser, needs_browser
from .conftest import analysed, page_of
from .test_joint import result_of
from .test_language_sentences import lacking

DATE = ReportSettings(date="2026-01-02")
NUMBERS = ("slope", "slope_se", "percent_per_year", "percent_lo", "percent_hi")
WORDS = ("trend_class", "reason", "n_years", "from_year", "to_year")


def uneven(folders, *, kind="plain"):
    """The panel with years that scatter about their line, so that every part of the interval counts."""
    data, rng = read_inputs(**folders), rng_for(5, "uneven years")
    year = data.months["year"].to_numpy() - data.months["year"].min()
    factor = np.exp(rng.normal(0, 0.15, year.max() + 1))[year]
    if kind == "gone":  # a year without birds
        factor[year == 9] *= 1e-8
    draws = {name: d * factor for name, d in data.draws.items()}
    observed = data.observed.copy()
    regions = data.region_names()
    if kind == "hard":
        # A region with replicates that are not positive, one with a shorter season, one hardly counted.
        draws[regions[0]] = draws[regions[0]] - 0.97 * draws[regions[0]].mean(axis=0)
        draws[ALL] = draws[ALL] - 0.9 * draws[ALL].min()
        late, home = (data.months["month_of_year"] > 9).to_numpy(), data.sites["region"].to_numpy()
        observed[np.ix_(home == regions[1], late)] = False
        observed[np.ix_(home == regions[2], year < 6)] = False
    return replace(data, expected=data.expected * factor, draws=draws, observed=observed)


def choices(a, n: int, seed: int = 1) -> list[Choice]:
    rng, used = rng_for(seed, "choices"), a.years.year[a.years.used]
    sites = stored(a)["sites"]
    regions, out = [ALL, *a.parts], []
    for _ in range(n):
        base, window = (tuple(sorted(int(y) for y in rng.choice(used, 2))) for _ in range(2))
        base = (base[0], base[0]) if rng.random() < 0.5 else base
        left = rng.choice(sites["index"], int(rng.integers(1, 6))) if sites and rng.random() < 0.3 else []
        out.append(
            Choice(
                region=str(rng.choice(regions)), without=bool(rng.random() < 0.3), base=base, window=window,
                rule=str(rng.choice(["pecbms", "rtrim"])), convention=str(rng.choice(["long-term", "trim"])),
                left_out=frozenset(int(j) for j in left),
            )
        )  # fmt: skip
    return out


def asked_in_browser(page, a, asked, tmp_path) -> dict:
    data = stored(a)
    number = {s["name"]: k for k, s in enumerate(data["sources"])}
    place = {j: k for k, j in enumerate(data["sites"]["index"])} if data["sites"] else {}
    raw = [
        {"region": number[c.region], "without": c.without and c.region != ALL, "base": c.base, "window": c.window,
         "rule": c.rule, "convention": c.convention, "left": sorted(place[j] for j in c.left_out)}
        for c in asked
    ]  # fmt: skip
    script = """
      var asked = ASKED, times = [];
      var out = asked.map(function (c) {
        var t = performance.now(), a = fedmissQuestion.answer(c);
        times.push(performance.now() - t);
        return a;
      });
      return { answers: out, times: times };
    """
    return in_browser(page, script.replace("ASKED", json.dumps(raw)), tmp_path)


def held_against_python(a, asked, got) -> dict[str, int]:
    """Compare; return how often each kind of answer was met."""
    met = dict.fromkeys(("error", "interval", "scatter", "class", "left"), 0)
    for c, theirs in zip(asked, got, strict=True):
        problem, ours = "", None
        try:
            ours = answer(a, c)
        except ConfigError as error:
            problem = str(error)
        if ours is None:
            assert theirs == {"error": problem}, c
            met["error"] += 1
            continue
        for column, name in (("index", "index"), ("index_lo", "lo"), ("index_hi", "hi")):
            values = np.array(theirs[name], dtype=float)
            np.testing.assert_allclose(
                values, ours.yearly[column], rtol=1e-9, atol=1e-9, err_msg=f"{c} {column}"
            )
        for name in NUMBERS:
            value = np.nan if theirs[name] is None else theirs[name]
            np.testing.assert_allclose(value, ours.trend[name], rtol=1e-9, atol=1e-9, err_msg=f"{c} {name}")
        for name in WORDS:
            assert theirs[name] == ours.trend[name], (c, name)
        met["interval"] += bool(np.isfinite(ours.trend["percent_lo"]))
        met["scatter"] += bool(ours.trend["year_sd"] > 0 and c.convention == "long-term")
        met["class"] += ours.trend["trend_class"] != "not classified"
        met["left"] += ours.trend["reason"] == NO_DRAWS
    return met


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize(("kind", "n"), [("plain", 1000), ("hard", 400), ("gone", 200), ("joint", 200)])
def test_the_browser_answers_as_python(kind, n, folders, tmp_path):
    if kind == "joint":
        result_of(tmp_path / "result")
        a = analyse_joint(JointSource.read(tmp_path / "result", {}), DATE)
        page = joint_report(tmp_path / "result", tmp_path / "report", {}, DATE)
    else:
        a = analysed(uneven(folders, kind=kind))
        page = page_of(a, tmp_path)
    asked = choices(a, n)
    got = asked_in_browser(page, a, asked, tmp_path)
    met = held_against_python(a, asked, got["answers"])
    assert np.quantile(got["times"], 0.99) < 100, "milliseconds; the machine may be busy once"
    wanted = {
        "plain": ("interval", "scatter", "class", "left"), "hard": ("error", "interval", "left"),
        "gone": ("interval",), "joint": ("interval", "class"),
    }  # fmt: skip
    assert all(met[k] > n // 20 for k in wanted[kind]), met


def test_the_answer_to_no_question_is_the_report(folders):
    a = analysed(uneven(folders))
    same = answer(a, Choice())
    for name in (*NUMBERS, *WORDS):
        assert same.trend[name] == a.trend[name]
    np.testing.assert_array_equal(same.yearly["index"], a.yearly["index"])
    for region, part in a.parts.items():  # the whole is the sum of a region and of all but it
        rest = answer(a, Choice(region=region, without=True))
        np.testing.assert_allclose(rest.yearly["total"] + part.series.yearly, a.yearly["total"], rtol=1e-12)
    inside = np.flatnonzero(a.data.sites["region"] == region)[:2]
    less = answer(a, Choice(region=region, left_out=frozenset(inside.tolist())))
    np.testing.assert_allclose(
        less.yearly["total"], part.series.yearly - (a.data.expected[inside] @ a.years.W.T).sum(axis=0)
    )
    assert np.isnan(less.trend["percent_lo"])
    with pytest.raises(ConfigError, match="take one back"):
        answer(a, Choice(left_out=frozenset(range(a.n_sites))))
    with pytest.raises(ConfigError, match="choose another"):
        answer(a, Choice(base=(1900, 1901)))


WALK = """
  var at = function (id) { return document.getElementById(id); }, out = {};
  var set = function (id, value) { at(id).value = value; at(id).dispatchEvent(new Event("change", { bubbles: true })); };
  var said = function () { return at("ask-answer").textContent.trim(); };
  out.first = said();
  set("ask-from", "2014"); out.window = said(); set("ask-base", "2016"); set("ask-region", "1"); out.region = said();
  at("ask").reset();
  return (function () {
    var map = document.querySelector("#fig-map svg"), m = map.getScreenCTM(), p = fedmissQuestion.data.sites.at[3];
    map.dispatchEvent(new MouseEvent("click", { clientX: m.a * p[0] + m.e, clientY: m.d * p[1] + m.f, bubbles: true }));
    out.site = at("site-said").textContent; out.marks = at("site-figure").querySelectorAll(".h").length;
    at("site-out").click(); out.without = said(); out.why = at("ask-why").textContent; out.chip = at("ask-left").textContent;
    out.inside = at("ask-left").querySelectorAll("img, script, b").length + at("site-said").children.length;
    var svg = document.querySelector("#fig-trend svg"), tip = document.querySelector(".tip");
    svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" })); out.tip = tip.textContent;
    out.live = document.querySelectorAll("[role=status]").length;
    out.named = Array.from(document.querySelectorAll("select, button, input")).filter(function (e) {
      return !(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute("aria-label"); }).length;
    out.wide = document.documentElement.scrollWidth - window.innerWidth; out.shown = !at("question").hidden;
    return out;
  })();
"""


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("width", [400, 1200])
def test_a_reader_walks_through_the_page(width, folders, tmp_path):
    """Years, base, region and site are chosen with hostile names about; all is said in words, and nothing runs."""
    bad = "<img src=x onerror=alert(1)><script>errors.push('ran')</script>"
    data = uneven(folders)
    sites = data.sites.assign(site_name=[f"{bad} {j}" for j in range(len(data.sites))])
    names = {r: f"{r}{bad}" for r in data.region_names()}
    draws = {names.get(n, n): d for n, d in data.draws.items()}
    of = {g: tuple(names[r] for r in v) for g, v in data.group_regions.items()}
    own = pd.DataFrame({"site_index": sites["site_index"], "slope": -0.0976, "slope_se": 0.051})
    sites = sites.assign(region=sites["region"].map(names))
    data = replace(data, sites=sites, draws=draws, group_regions=of, site_trends=own)
    a = analysed(data)
    page = page_of(a, tmp_path)
    got = in_browser(page, WALK, tmp_path, width)
    assert a.trend["trend_class"] in got["first"].lower()
    assert "2014 to 2021" in got["window"]
    assert "onerror" in got["region"]
    assert got["site"].startswith(bad)
    assert f"(95 % interval {places(a, {}).values['sites'].rows[0][-2].text})" in got["site"]
    assert got["marks"] == a.years.year.size
    assert "without 1 site" in got["without"]
    assert NO_DRAWS in got["why"]
    assert bad in got["chip"]
    assert got["inside"] == got["named"] == 0
    assert got["tip"].startswith("2008: index 100")
    assert got["live"] >= 3
    assert got["shown"]
    assert got["wide"] <= 0


@pytest.mark.browser
@needs_browser
def test_the_axis_of_an_answer_ends_as_that_of_the_printed_figure(folders, tmp_path):
    """A year with an interval of hundreds of times the index pressed all other years to the ground."""
    data = read_inputs(**folders)
    last = np.flatnonzero(data.months["year"] == data.months["year"].max())
    draws = {name: draw.copy() for name, draw in data.draws.items()}
    for draw in draws.values():
        draw[::2, last] *= 1000.0
    a = analysed(replace(data, draws=draws))
    script = """
      var svg = document.querySelector("#ask-figure svg"), grid = Array.from(svg.querySelectorAll("text[text-anchor=end]"));
      return [document.getElementById("ask-caption").textContent, grid.map(function (t) { return t.textContent; })];
    """
    caption, ticks = in_browser(page_of(a, tmp_path), script, tmp_path)
    assert "The axis ends at five times the largest index" in caption
    assert "The axis ends at five times the largest index" in trend(a).caption
    assert float(ticks[-1].replace(",", "")) <= 5 * a.yearly["index"].max()


@pytest.mark.browser
@needs_browser
def test_species_are_compared_with_another_base(report, bare_report, tmp_path):
    page = build_index([report, bare_report], tmp_path / "index", date="2026-01-02")
    walk = """var s = document.getElementById("compare-base");
      var read = function () { return Array.from(document.querySelectorAll("tr[data-class]")).map(function (r) {
        return parseFloat(r.cells[1].dataset.sort); }); };
      var was = read(), html = document.querySelector("tbody").innerHTML;
      s.value = "2012"; s.dispatchEvent(new Event("change")); var now = read();
      s.value = ""; s.dispatchEvent(new Event("change"));
      return { was: was, now: now, back: read(), same: document.querySelector("tbody").innerHTML === html };"""
    got = in_browser(page, walk, tmp_path)
    assert got["back"] == got["was"]
    listed = read_table(page.parent / "index.parquet", "report_index").to_pandas()["folder"]
    for folder, value in zip(listed, got["now"], strict=True):
        y = read_table(page.parent / folder / "tables" / "yearly.parquet", "report_yearly").to_pandas()
        y = y[y["used"]].set_index("year")["total"]
        assert value == pytest.approx(100 * y.iloc[-1] / y[2012], rel=1e-12)


def test_a_large_panel_has_a_page_of_bounded_size(folders, monkeypatch):
    """What does not fit is left out, and the page says so."""
    a = analysed(uneven(folders))
    monkeypatch.setattr(question, "SITE_BYTES", 5 * (27 * a.years.year.size + 60))
    monkeypatch.setattr(question, "REGION_BYTES", 1)
    held = stored(a)
    largest = a.sites["mean_total"].nlargest(5).index
    assert held["sites"]["index"] == sorted(largest)
    first = max(a.parts, key=lambda name: a.parts[name].series.totals.sum())
    assert [s["name"] for s in held["sources"]] == [ALL, first]
    assert held["absent"] == sorted(set(a.parts) - {first})
    assert len(site_years(a)) == 5 * a.years.year.size
    assert any("1 largest of 3 regions" in n for n in held["notes"])
    assert any("5 largest of 40 sites" in n for n in held["notes"])
    coarse = analysed(uneven(folders), coarse_map=0.1)
    assert site_years(coarse)["mean_count"].isna().all()
    assert stored(coarse)["sites"]["name"][0].startswith("site ")


@pytest.mark.parametrize("language", languages())
def test_whatever_the_script_says_is_translated(language):
    """The answer to a reader of a German page was English, and not in ``untranslated.po``."""
    ask, arithmetic = (
        resource("reports", f"{n}.js").read_text(encoding="utf-8") for n in ("ask", "question")
    )
    said = set(re.findall(r'say\("([^"]+)"', ask)) | {"Take this site back", *_SAID, NOT_CLASSIFIED}
    said |= {c for pair in re.findall(r'say\([^"()]+ \? "([^"]+)" : "([^"]+)"', ask) for c in pair}
    reasons = arithmetic[arithmetic.index("var reason = ") : arithmetic.index("var because")]
    said |= set(re.findall(r'"((?:the|there|no) [^"]+)"', reasons))
    assert len(said) > 45
    assert said <= set(QUESTION_WORDS), said - set(QUESTION_WORDS)
    assert not lacking(language, *QUESTION_WORDS, NO_DRAWS, NO_BASE, NO_SITE, OTHER_SEASON)


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize(("decimal", "group"), [("·", ""), (",", "\u202f"), ("'", "&")])
def test_the_script_writes_numbers_with_the_signs_of_the_catalogue(folders, tmp_path, decimal, group):
    """They were the browser's for the language, beside others in the text of the same page."""
    head = {"Language": "de", "X-Decimal": decimal, "X-Group": group}
    (tmp_path / "own.po").write_text(write_po([], head), encoding="utf-8")
    data = read_inputs(**folders)
    large = replace(
        data, expected=data.expected * 1e4, draws={name: 1e4 * draw for name, draw in data.draws.items()}
    )
    a = analysed(large, language=str(tmp_path / "own.po"))
    page = page_of(a, tmp_path)
    script = """
      var at = function (id) { return document.getElementById(id); };
      at("site-pick").value = "0"; at("site-pick").dispatchEvent(new Event("change"));
      return [at("ask-answer").textContent, Array.from(at("site-figure").querySelectorAll("text")).map(function (t) {
        return t.textContent; }).join(" ")];
    """
    answer, axis = in_browser(page, script, tmp_path)
    assert re.search(rf"\d{re.escape(decimal)}\d+ % per year", answer), answer
    assert re.search(rf"\b\d+{re.escape(group)}000\b", axis), axis
