"""How to read the page, and what it cannot tell."""

from __future__ import annotations

from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import least_words
from fedmiss.report.findings import Findings
from fedmiss.report.prose import limits
from fedmiss.report.sections import Section
from fedmiss.report.style import Plot


def build(analysis: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the closing section."""
    return closing(analysis, least_words(analysis))


def closing(findings: Findings, least: str) -> Section:
    """Return the closing section; ``least`` says what a year needs to enter index and trend."""
    return Section(
        "reading", "How to read this, and what it cannot tell", {"limits": limits(findings), "least": least}
    )
