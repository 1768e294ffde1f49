"""The part of the page that answers: hidden where scripts do not run."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from fedmiss.report.analysis import Analysis
from fedmiss.report.findings import Findings
from fedmiss.report.question import stored
from fedmiss.report.sections import Section
from fedmiss.report.style import Plot


def build(findings: Findings, plots: dict[str, Plot]) -> Section | None:
    """Return the section, or None where two years cannot be compared."""
    if not askable(findings):
        return None
    data = stored(findings, _places(findings, plots.get("map")))
    values = {"data": in_script(data), "sites": data["sites"] is not None}
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
    xy = fig.axes[0].transData.transform(table[["longitude", "latitude"]].to_numpy(dtype=float))
    xy = xy * 72.0 / fig.dpi
    high = 72.0 * fig.get_figheight()
    return {
        int(site): (round(float(x), 1), round(high - float(y), 1))
        for site, (x, y) in zip(table["site_index"], xy, strict=True)
    }
