"""Texts of users are drawn as they are, and are text on pages and in files."""

import json
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from fedmiss.report.analysis import analyse
from fedmiss.report.build import write_report
from fedmiss.report.html import environment
from fedmiss.report.inputs import read_inputs
from fedmiss.report.settings import ReportSettings
from fedmiss.report.style import figure, style, svg_text

HOSTILE = ["$\\frac0$", "$^{0$", "\\\\", "a_b", "100 %", "\U0001f426", "x" * 40]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_is_drawn_as_it_is_written(name):
    with style():
        fig = figure()
        axes = fig.add_subplot(title=name, xlabel=name)
        axes.plot([0, 1], [0, 1], label=name)
        axes.set_xticks([0], [name])
        axes.text(0.5, 0.5, name)
        axes.legend()
    assert svg_text(fig).count(f">{name}</text>") >= 5


NAMES = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a & b \"quoted\" 'so'", "$\\frac0$ {{ 7 * 7 }} {% raw %}",
    "line\nbreak\ttab", "\u202eevif", "\U0001f426" * 3, "x" * 300, "</title></svg>", "=1+1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("one_name", [False, True], ids=["each its own", "all alike"])
def test_every_figure_and_table_takes_any_text_of_a_users(folders, tmp_path, one_name):
    """Names of species, sites, regions, groups, the unit, the credit: on the page they are text, and no file is broken."""
    data = read_inputs(**folders)
    sites, k = data.sites.copy(), len(NAMES)
    names = [NAMES[0 if one_name else i % k] for i in range(len(sites))]
    groups = data.groups.assign(group=[NAMES[i % k] for i in range(len(data.groups))])
    regions = {r: f"{r} {NAMES[i % k]}" for i, r in enumerate(data.region_names())}
    sites = sites.assign(site_id=[f"{n} {i}" for i, n in enumerate(names)], site_name=names)
    sites["region"] = sites["region"].map(regions)
    panel, fit = (
        dict(m)
        | {
            "results": m["results"] | {"species": NAMES[1], "common_name": NAMES[0]},
            "terms": {"citation": NAMES[8], "licence": NAMES[2]},
            "warnings": NAMES,
            "flow": [{"step": n, "rows": 3, "note": n} for n in NAMES],
        }
        for m in (data.panel, data.fit)
    )
    draws = {regions.get(r, r): d for r, d in data.draws.items()}
    of = {g: tuple(regions[r] for r in v) for g, v in data.group_regions.items()}
    hostile = replace(data, sites=sites, groups=groups, panel=panel, fit=fit, draws=draws, group_regions=of)
    settings = ReportSettings(title=NAMES[8], unit=NAMES[1], author=NAMES[0], date="2026-01-02")
    write_report(analyse(hostile, settings), tmp_path)
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    tags = Counter(tag for tag, _ in Tags.of(html))
    assert tags["script"] == 2  # the page's own, and what it holds
    held = html.split('id="question-data">')[1].split("</script>")[0]
    assert not set("<>&") & set(held)
    assert json.loads(held)["sites"]["name"] == names
    marks = sum(tag == "rect" and dict(attrs).get("class") == "h" for tag, attrs in Tags.of(html))
    assert tags["title"] - marks == tags["main"] == 1
    assert tags["img"] == 0
    assert not any("onerror" in dict(attrs) for _, attrs in Tags.of(html))
    assert "{{ 7 * 7 }}" in html
    for svg in (tmp_path / "figures").glob("*.svg"):
        ElementTree.parse(svg)
    for table in (tmp_path / "tables").glob("*.csv"):
        assert not any(line.startswith("=1+1") for line in table.read_text(encoding="utf-8").splitlines())


class Tags(HTMLParser):
    """Every tag of a page with its attributes, as a browser would see them."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, attrs))

    @classmethod
    def of(cls, html):
        tags = cls()
        tags.feed(html)
        return tags.seen


def test_control_characters_of_a_name_are_not_on_a_page():
    """A site called S, NUL, ESC, x was written so into the page, which no page may hold."""
    page = (
        environment()
        .from_string("<td>{{ name }}</td>{{ mark }}")
        .render(name="S\0\x1b\x85x\ty<", mark=Markup("<b>"))
    )
    assert page == "<td>S\ufffd\ufffd\ufffdx\ty&lt;</td><b>"
