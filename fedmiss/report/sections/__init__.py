"""The sections of the page, in order. Each module has ``build(findings, plots) -> Section | None``; all are pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedmiss.report.words import percent, records

__all__ = ["ORDER", "Cell", "HtmlTable", "Section", "cell", "range_cell", "table_of"]

ORDER = ("headline", "question", "index", "season", "places", "model", "data", "reading")


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, and the number it sorts by (None: by its text)."""

    text: str
    sort: float | None = None


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of the page; ``file`` is where all of it lies, without its ending."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    file: str = ""
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


def table_of(
    caption: str,
    frame: pd.DataFrame,
    columns: Sequence[tuple[str, Callable[[Any], Cell]]],
    file: str = "",
    note: str = "",
) -> HtmlTable:
    """Return a table with a row for each row of ``frame``.

    Parameters
    ----------
    columns : the head of each column, and what makes its cell of a row (see ``records``)
    """
    rows = [[make(row) for _, make in columns] for row in records(frame)]
    return HtmlTable(caption, [head for head, _ in columns], rows, file, note)
