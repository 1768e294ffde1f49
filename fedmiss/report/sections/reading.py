"""How to read the page, and what it cannot tell."""

from __future__ import annotations

from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import least_words
from fedmiss.report.prose import limits
from fedmiss.report.sections import Section
from fedmiss.report.style import Plot

__all__ = ["build"]


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the closing section."""
    return Section(
        "reading",
        "How to read this, and what it cannot tell",
        {
            "limits": limits(a),
            "least": least_words(a),
            "rule": a.settings.rule,
            "convention": a.settings.convention,
            "unit": a.unit,
            "cell": a.cell,
            "yearly": a.yearly_counts,
            "classified": a.classified,
            "n_draws": a.n_draws,
        },
    )
