"""What people do write where a number is needed, and what they should write."""

from __future__ import annotations

import re

import polars as pl

from fedmiss.etl.sources import Source
from fedmiss.etl.spreadsheets import serial_date


def refuse_thousands(
    source: Source, column: str, text: pl.Series, lines: pl.Series, *, points: bool = True
) -> None:
    """Refuse a column whose every comma, or point, may stand before thousands: 1,234, or 1.250 beside 12.

    0,125 can be a decimal comma only. Decimals have zeros at their end in all values of a column, or in none: points are
    decimal ones where no value ends so, or none is a whole number, and wherever ``points`` is False.
    """
    points = points and text.str.contains(r"\.\d\d0$").any() and text.str.contains(r"^-?\d+$").any()
    for sign, name in ((",", "comma"), (".", "point"))[: 1 + points]:
        signs = text.str.contains(rf"^-?\d+[{sign}]\d+$")
        # One value that cannot be thousands (0,125 or 12,5) shows that the sign is a decimal one throughout.
        if signs.any() and text.str.contains(rf"^-?[1-9]\d{{0,2}}[{sign}]\d{{3}}$").filter(signs).all():
            first = int(signs.arg_max() or 0)
            whole, decimal = (text[first].replace(sign, other) for other in ("", "."))
            raise source.fault(
                lines[first],
                column,
                f"{text[first]!r} may be thousands or a decimal {name}; write {whole} or {float(decimal):g}.",
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
