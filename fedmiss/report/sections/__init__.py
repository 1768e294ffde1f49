"""The sections of the page, in order. Each module has ``build(findings, plots) -> Section | None``; all are pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedmiss.report.words import percent, records

if TYPE_CHECKING:
    from fedmiss.report.findings import Findings

__all__ = [
    "ORDER", "Cell", "Column", "HtmlTable", "Section", "cell", "change_cell", "range_cell", "reasons", "table_of",
    "trend_columns",
]  # fmt: skip

ORDER = ("headline", "question", "index", "season", "places", "model", "data", "reading")


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, and the number it sorts by (None: by its text)."""

    text: str
    sort: float | None = None


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of the page."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""

    def is_text(self, column: int) -> bool:
        """Return True when a column holds words, so that it is set flush left."""
        return bool(self.rows) and self.rows[0][column].sort is None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page, rendered from ``reports/species/sections/<id>.html.j2``.

    The template has the ``findings``, the ``plots`` by name, and ``values``.
    ``scripted``: hidden, until a script of the page shows it.
    """

    id: str
    title: str
    values: dict[str, object] = field(default_factory=dict)
    scripted: bool = False


def cell(words: Callable[[float], str], value: float) -> Cell:
    """Return a number as ``words`` writes it, sorted by itself."""
    return Cell(words(value), float(value))


def range_cell(lo: float, hi: float, words: Callable[[float], str] = percent) -> Cell:
    """Return an interval, sorted by its lower limit; n/a where it is not known."""
    if not (math.isfinite(lo) and math.isfinite(hi)):
        return Cell("n/a", math.nan)
    return Cell(f"{words(lo)} to {words(hi)}", lo)


Column = tuple[str, Callable[[Any], Cell]]  # its head, and what makes its cell of a row (see ``records``)


def table_of(caption: str, frame: pd.DataFrame, columns: Sequence[Column], note: str = "") -> HtmlTable:
    """Return a table with a row for each row of ``frame``."""
    rows = [[make(row) for _, make in columns] for row in records(frame)]
    return HtmlTable(caption, [head for head, _ in columns], rows, note)


def change_cell(findings: Findings, value: float, lo: float) -> Cell:
    """Return a change; n/a where its interval, with the limit ``lo``, is not known although intervals were asked for."""
    return Cell(percent(value) if math.isfinite(lo) or not findings.n_draws else "n/a", value)


def trend_columns(findings: Findings) -> list[Column]:
    """Return the columns of every table of trends: change per year, its interval and class."""
    return [
        ("Change per year", lambda r: change_cell(findings, r.percent_per_year, r.percent_lo)),
        ("95 % interval", lambda r: range_cell(r.percent_lo, r.percent_hi)),
        ("Class", lambda r: Cell(str(r.trend_class))),
    ]


def reasons(table: pd.DataFrame) -> str:
    """Return why rows of a table have no class, each reason once; empty where all have one."""
    return "; ".join(sorted({str(reason) for reason in table["reason"] if reason}))
