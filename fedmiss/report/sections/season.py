"""The seasonal profile."""

from __future__ import annotations

from fedmiss.report.findings import Findings
from fedmiss.report.sections import Section
from fedmiss.report.style import Plot


def build(findings: Findings, plots: dict[str, Plot]) -> Section | None:
    """Return the section, or None when the season has one month."""
    if "season" not in plots:
        return None
    return Section("season", "Through the year", {"beside": plots.get("weeks") or plots["monthly"]})
