"""Parse TRIM's own output files into numbers with the digits that they were printed with."""

from __future__ import annotations

import re


def number(text):
    """Return the value and one unit of its last printed digit."""
    return float(text), 10.0 ** -len(text.partition(".")[2])


def table_after(text, title, width):
    """Rows of ``width`` numbers after the last place where ``title`` stands; headings between are skipped."""
    at = text.rfind(title)
    assert at >= 0, f"no section {title}"
    rows = []
    for line in text[at + len(title) :].splitlines()[1:]:
        words = line.split()
        if words and all(re.fullmatch(r"-?\d+(\.\d+)?", w) for w in words) and len(words) in (width, 3):
            rows.append(words)
        elif rows:
            break
    return rows


def block(text, title):
    """The first line of numbers after a title."""
    at = text.find(title)
    assert at >= 0, f"no section {title}"
    return re.search(r"^\s+(-?\d[-\d. ]*)$", text[at:], re.M)[1].split()
