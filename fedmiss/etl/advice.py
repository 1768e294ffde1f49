"""What people do write where a number is needed, and what they should write."""

from __future__ import annotations

import re

import polars as pl

from fedmiss.etl.sources import Source
from fedmiss.etl.spreadsheets import serial_date

__all__ = ["advice", "refuse_thousands"]


def refuse_thousands(source: Source, column: str, text: pl.Series, lines: pl.Series) -> None:
    """Refuse a column whose every comma may stand before thousands, as in 1,234; 0,125 can be a decimal comma only."""
    commas = text.str.contains(r"^-?\d+,\d+$")
    # One value that cannot be thousands (0,125 or 12,5) shows that the comma is a decimal one throughout.
    if not commas.any() or not text.str.contains(r"^-?[1-9]\d{0,2},\d{3}$").filter(commas).all():
        return
    source.refuse(
        commas,
        lines,
        column,
        lambda row: f"{text[row]!r} may be thousands or a decimal comma; write it without the comma.",
    )


_RANGE = re.compile(r"(\d+)\s*(?:-|\u2013|to|bis)\s*(\d+)")
_ABOUT = re.compile(r"(?:c|ca|circa|about|around|approx|etwa|env|~)[. ]*\s*(\d+)|(\d+)\s*\?", re.IGNORECASE)
_LIMIT = re.compile(r"[<>\u2264\u2265+]=?\s*(\d+)|(\d+)\s*\+")


def advice(key: str, text: str) -> str:
    """Say what to write for a value that people do write where a number is needed; blank for any other."""
    text = text.strip()
    if key in ("year", "date") and (day := serial_date(text)):
        return f"it is the date {day} as Excel counts days; write {day[:4] if key == 'year' else day}"
    if key != "count":
        return ""
    else_missing = "else NA (--missing takes a value as NA)"
    if found := _RANGE.fullmatch(text):
        middle = (int(found[1]) + int(found[2])) // 2
        return f"a range needs your choice: write one number, as its middle {middle}; {else_missing}"
    if found := _ABOUT.fullmatch(text):
        return f"if the estimate is to count, write {found[1] or found[2]}; {else_missing}"
    if found := _LIMIT.fullmatch(text):
        return f"it is a limit: write {found[1] or found[2]} if so many were counted; {else_missing}"
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}( .*)?", text):
        return "it is a date, which spreadsheets make of ranges such as 10-12: look what was written, and write one number"
    return ""
