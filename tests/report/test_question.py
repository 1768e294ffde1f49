"""A reader's question is answered in the browser as Python answers it."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.folders import ALL
from fedmiss.report.analysis import analyse
from fedmiss.report.build import write_report
from fedmiss.report.inputs import read_inputs
from fedmiss.report.joint import JointSource, analyse_joint, joint_report
from fedmiss.report.question import NO_DRAWS, Choice, answer, stored
from fedmiss.report.settings import ReportSettings
from fedmiss.rng import rng_for

from .test_browser import CHROMIUM, FLAGS
from .test_joint import result_of

DATE = ReportSettings(date="2026-01-02")
NUMBERS = ("slope", "slope_se", "percent_per_year", "percent_lo", "percent_hi")
WORDS = ("trend_class", "reason", "n_years", "from_year", "to_year")


def uneven(folders, *, kind="plain"):
    """The panel with years that scatter about their line, so that every part of the interval counts."""
    data, rng = read_inputs(**folders), rng_for(5, "uneven years")
    year = data.months["year"].to_numpy() - data.months["year"].min()
    factor = np.exp(rng.normal(0, 0.15, year.max() + 1))[year]
    draws = {name: d * factor for name, d in data.draws.items()}
    observed = data.observed.copy()
    regions = data.region_names()
    if (
        kind == "hard"
    ):  # a region with replicates that are not positive, one with a shorter season, one hardly counted
        draws[regions[0]] = draws[regions[0]] - 1.001 * draws[regions[0]].min()
        draws[ALL] = draws[ALL] - 0.9 * draws[ALL].min()
        observed[
            np.ix_(
                (data.sites["region"] == regions[1]).to_numpy(), (data.months["month_of_year"] > 9).to_numpy()
            )
        ] = False
        observed[np.ix_((data.sites["region"] == regions[2]).to_numpy(), year < 6)] = False
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
    script = """<script>window.addEventListener("load", function () {
      var asked = %s, slowest = 0, plain = function (k, v) { return typeof v === "number" && !isFinite(v) ? null : v; };
      var out = asked.map(function (c) {
        var t = performance.now(), a = fedmissQuestion.answer(c);
        slowest = Math.max(slowest, performance.now() - t);
        return a;
      });
      var pre = document.createElement("pre");
      pre.id = "answers";
      pre.textContent = JSON.stringify({ answers: out, slowest: slowest }, plain);
      document.body.appendChild(pre);
    });</script></body>""" % json.dumps(raw)
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", script, 1), encoding="utf-8")
    run = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    seen = re.search(r'<pre id="answers">(.*?)</pre>', run.stdout, re.DOTALL)
    assert seen, run.stderr[-2000:]
    return json.loads(html.unescape(seen[1]))


def held_against_python(a, asked, got) -> dict[str, int]:
    """Compare; return how often each kind of answer was met."""
    met = dict.fromkeys(("error", "interval", "scatter", "class", "left"), 0)
    for c, theirs in zip(asked, got, strict=True):
        try:
            ours = answer(a, c)
        except ConfigError as error:
            assert theirs == {"error": str(error)}, c
            met["error"] += 1
            continue
        for column, name in (("index", "index"), ("index_lo", "lo"), ("index_hi", "hi")):
            values = np.array(theirs[name], dtype=float)
            np.testing.assert_allclose(
                values, ours.index[column], rtol=1e-9, atol=1e-9, err_msg=f"{c} {column}"
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
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("kind", "n"), [("plain", 1000), ("hard", 400), ("joint", 200)])
def test_the_browser_answers_as_python(kind, n, folders, tmp_path):
    if kind == "joint":
        result_of(tmp_path / "result")
        a = analyse_joint(JointSource.read(tmp_path / "result", {}), DATE)
        page = joint_report(tmp_path / "result", tmp_path / "report", {}, DATE)
    else:
        a = analyse(uneven(folders, kind=kind), DATE)
        (tmp_path / "report").mkdir()
        write_report(a, tmp_path / "report")
        page = tmp_path / "report" / "index.html"
    asked = choices(a, n)
    got = asked_in_browser(page, a, asked, tmp_path)
    met = held_against_python(a, asked, got["answers"])
    assert got["slowest"] < 100, "milliseconds"
    wanted = {
        "plain": ("interval", "scatter", "class", "left"),
        "hard": ("error", "interval", "left"),
        "joint": ("interval", "class"),
    }
    assert all(met[k] > n // 20 for k in wanted[kind]), met


def test_the_answer_to_no_question_is_the_report(folders):
    a = analyse(uneven(folders), DATE)
    same = answer(a, Choice())
    for name in (*NUMBERS, *WORDS):
        assert same.trend[name] == a.trend[name]
    np.testing.assert_array_equal(same.index["index"], a.yearly["index"])
    for region, part in a.parts.items():  # the whole is the sum of a region and of all but it
        rest = answer(a, Choice(region=region, without=True))
        np.testing.assert_allclose(rest.index["total"] + part.series.yearly, a.yearly["total"], rtol=1e-12)
    inside = np.flatnonzero(a.data.sites["region"] == region)[:2]
    less = answer(a, Choice(region=region, left_out=frozenset(inside.tolist())))
    np.testing.assert_allclose(
        less.index["total"], part.series.yearly - (a.data.expected[inside] @ a.years.W.T).sum(axis=0)
    )
    assert np.isnan(less.trend["percent_lo"])
    with pytest.raises(ConfigError, match="take one back"):
        answer(a, Choice(left_out=frozenset(range(a.n_sites))))
    with pytest.raises(ConfigError, match="choose another"):
        answer(a, Choice(base=(1900, 1901)))
