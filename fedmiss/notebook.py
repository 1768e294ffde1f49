"""What a result shows of itself in a notebook: a heading and a small table, escaped."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from html import escape

MOST = 12  # rows, so that an output stays short


def card(title: str, facts: Mapping[str, object]) -> str:
    """Return HTML: a heading, and a row for each fact that is known (not None and not blank).

    Parameters
    ----------
    title : what it is
    facts : name -> value; numbers are rounded to four digits, several values are joined, long texts are cut
    """
    known = [(name, value) for name, value in facts.items() if value is not None and value != ""]
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(_words(value))}</td></tr>'
        for name, value in known[:MOST]
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{rows}</table>"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    if isinstance(value, numbers.Real):
        return f"{float(value):.4g}"
    if isinstance(value, tuple | list):
        more = f", ... ({len(value)} in all)" if len(value) > 5 else ""
        return ", ".join(map(_words, value[:5])) + more
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
