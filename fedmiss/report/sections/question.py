"""The part of the page that answers: hidden where scripts do not run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from markupsafe import Markup

from fedmiss.report.analysis import Analysis
from fedmiss.report.basemap import on_map
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.findings import Findings
from fedmiss.report.language import read_catalog
from fedmiss.report.question import stored
from fedmiss.report.sections import Section
from fedmiss.report.style import Plot

# What the script says, each for itself in the page so that a catalogue translates it; ①, ② and ③ are what it puts in.
WORDS = (
    "n/a", "all", "base", "Year", "Index", "choose", "logarithms", "no interval", "no count", "not used", "① to ②",
    "① per year", "① a visit", "① % interval", "① % interval ②", "slope ①", "standard error ①", "All but ①",
    "without ① site", "without ① sites", "counted ①", "expected ①", "index ① (②)", "index (① = ②)", "Index, ① = ②",
    "Index, ① = ②; bars: ③ % interval; orange: straight trend of the chosen years.", "Arrow keys move from year to year.",
    "The axis ends at five times the largest index; intervals go on beyond it.",
    "Yearly index with its interval, and the straight trend.", "Counts and fitted line of ①", "① (not held by the page)",
    "Rule: ①, with the scatter of years.", "Rule: ①, without the scatter of years.", "No answer", "No trend class",
    "No class: ①.", "Left out (press to take back):", "Leave this site out", "Take this site back",
    "no class (counted in too few years, no interval, or no class of all sites together)",
    "there is ① complete year with counts; a class needs ②",
    "there are ① complete years with counts; a class needs ②", "the total of some year is not positive",
    "the total of some year is not positive in some replicate",
    "no bootstrap replicates were made, so no interval is available",
    "there are ① bootstrap replicates; an interval needs ②",
    "the total of some year is less than a millionth of the largest, which counts cannot tell from ①",
    "strong increase", "moderate increase", "stable", "uncertain", "moderate decline", "strong decline", NOT_CLASSIFIED,
)  # fmt: skip


def build(findings: Findings, plots: dict[str, Plot]) -> Section | None:
    """Return the section, or None where two years cannot be compared."""
    if not askable(findings):
        return None
    data = stored(findings, _places(findings, plots.get("map")))
    refused = {source["refuse"] for source in data["sources"]} - {None}
    own = [data["unit"], *data["said"].values(), *data["notes"], *sorted(refused)]
    spoken = read_catalog(findings.settings.language) if findings.settings.language else None
    values = {
        "data": in_script(data),
        "sites": data["sites"] is not None,
        "words": (*WORDS, *own),
        "spoken": spoken,
    }
    return Section("question", "Ask this report", values, scripted=True)


def askable(findings: Findings) -> bool:
    """Return True where two years can be compared."""
    return findings.found and int(findings.years.used.sum()) >= 2 and bool(findings.yearly.attrs["base"])


def in_script(data: Any) -> Markup:
    """Return JSON that cannot end the script element that holds it, whatever names are in it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _places(findings: Findings, plot: Plot | None) -> dict[int, tuple[float, float]]:
    """Return where each site stands on the map, in the units of its SVG (points from the upper left corner)."""
    if plot is None or not isinstance(findings, Analysis):
        return {}
    table = findings.sites[findings.sites["latitude"].notna() & findings.sites["longitude"].notna()]
    fig = plot.figure
    places = np.column_stack([on_map(table["longitude"]), table["latitude"]])
    xy = fig.axes[0].transData.transform(places)
    xy = xy * 72.0 / fig.dpi
    high = 72.0 * fig.get_figheight()
    return {
        int(site): (round(float(x), 1), round(high - float(y), 1))
        for site, (x, y) in zip(table["site_index"], xy, strict=True)
    }
