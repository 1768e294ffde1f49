"""Numbers as a person writes them, and the values of figures in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

_UP = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MINUS = "−"  # the typographic minus sign, as wide as a plus


def number(value: float | None, digits: int = 3) -> str:
    """Round to significant digits, with thousands separated: 12,300; 0.0123; n/a for a missing number; 1.2 × 10⁻⁷."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    power = _power(value, digits)
    if power < -4 or power > 14:
        power = _power(value, max(digits - 1, 1))  # one digit less is shown
        text = f"{value / 10.0**power:.{max(digits - 2, 0)}f} × 10{str(power).translate(_UP)}"
    else:
        places = digits - 1 - power
        text = f"{round(value, places):,.{max(places, 0)}f}"
    return text.replace("-", MINUS)


def _power(value: float, digits: int) -> int:
    """Power of ten of the value as it is rounded: 0.9999 is 1.00."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def count(value: float | None) -> str:
    """Return a whole number with thousands separated."""
    return "n/a" if value is None or not math.isfinite(value) else f"{round(value):,}".replace("-", MINUS)


def share(value: float | None) -> str:
    """Return a share of 1 as a percentage; small ones keep two digits, so 0.2 % is not 0 %."""
    if value is None or not math.isfinite(value):
        return "n/a"
    percents = 100.0 * value
    if 0 < percents < 0.01:
        return "less than 0.01 %"
    if 99 < percents < 100:  # 99.6 % imputed is not all of it
        return f"{min(percents, 99.9):.1f} %" if percents < 99.95 else f"{min(percents, 99.99):.2f} %"
    if percents >= 9.95 or percents == 0:
        return f"{percents:.0f} %"
    return f"{percents:.1f} %" if percents >= 1 else f"{percents:.2g} %"


def percent(value: float | None) -> str:
    """Return a signed percentage with one decimal: +3.4 %, −0.2 %; large ones with three digits.

    With two decimals near 0 and near 5, the limits of classes: −5.02 % is not within them.
    """
    if value is None or not math.isfinite(value):
        return "n/a"
    if -100.0 < value <= -99.95:  # what is left of almost nothing is not nothing
        return f"{MINUS}{min(-value, 99.99):.2f} %"
    if abs(value) >= 1000:
        return f"{'+' if value > 0 else ''}{number(value)} %"
    text = f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.{1 if abs(value) >= 0.05 else 2}f}"
    text = f"{value:+.2f}" if text in ("-5.0", "+5.0") else text
    text = "0.0" if text in ("-0.00", "+0.00") else text  # a rounded nought has no sign
    return text.replace("-", MINUS) + " %"


def interval_words(lo: float | None, hi: float | None, words: Callable[[float | None], str] = percent) -> str:
    """Return an interval in words: ``95 % interval −3.4 % to −2.7 %``, or that there is none."""
    if lo is None or hi is None or not (math.isfinite(lo) and math.isfinite(hi)):
        return "no interval available"
    return f"95 % interval {words(lo)} to {words(hi)}"


def per_year(value: float, lo: float | None, hi: float | None) -> str:
    """Return a yearly change with its interval: ``−3.0 % per year (95 % interval −3.4 % to −2.7 %)``."""
    return f"{percent(value)} per year ({interval_words(lo, hi)})"


def quantity(value: float, lo: float | None, hi: float | None, unit: str) -> str:
    """Return a number with unit and interval: ``1,230 birds (95 % interval 1,100 to 1,400)``."""
    return f"{number(value)} {unit} ({interval_words(lo, hi, number)})"


def year_list(years: list[str]) -> str:
    """Return ascending years in words: ``2004``, ``2004, 2006 and 2009``; six or more on end ``7 years (2004 to 2010)``."""
    if len(years) > 5 and int(years[-1]) - int(years[0]) == len(years) - 1:
        return f"{len(years)} years ({years[0]} to {years[-1]})"
    return years[0] if len(years) == 1 else ", ".join(years[:-1]) + " and " + years[-1]


def left_out(years: Iterable[object], one: str, several: str, what: str) -> list[str]:
    """Return the sentence that years lack something and are left out; none without such years.

    ``one``, ``several``: what one year, or several, do: ``lacks``, ``lack``.
    """
    named = [str(year) for year in years]
    if not named:
        return []
    does, is_ = (one, "is") if len(named) == 1 else (several, "are")
    return [f"{year_list(named)} {does} {what} and {is_} left out of index and trend."]


def records(table: pd.DataFrame) -> list[Any]:
    """Return the rows as named tuples, for reading column by column; the column ``index`` as ``index_``."""
    return list(table.rename(columns={"index": "index_"}).itertuples())


# -- the values of figures, mark by mark: what a page shows where a reader points ----------------------------


def with_limits(value: float, lo: float, hi: float) -> str:
    """Return a number, and its limits in brackets where they are known and no point."""
    known = np.isfinite(lo) and np.isfinite(hi) and not np.isclose(lo, hi)  # the base has no interval
    return number(value) + (f" ({number(lo)} to {number(hi)})" if known else "")


def marks(table: pd.DataFrame, at: str, words: Callable[[Any], str]) -> list[tuple[float, str]]:
    """Return where each row stands on the axis, by its column ``at``, and its values in ``words``."""
    return [(float(getattr(row, at)), words(row)) for row in records(table)]
