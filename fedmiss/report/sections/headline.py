"""What was found, in one sentence, and what to know before using it."""

from __future__ import annotations

from fedmiss.report.analysis import Analysis
from fedmiss.report.prose import caveats, headline, latest
from fedmiss.report.sections import Section
from fedmiss.report.style import Plot

__all__ = ["build"]


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the headline with the trend figure."""
    return Section(
        "headline",
        "What was found",
        {"headline": headline(a), "latest": latest(a), "caveats": caveats(a), "figure": plots["trend"]},
    )
