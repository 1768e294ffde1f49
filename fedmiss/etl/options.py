"""Read the values of command-line options: ranges, windows, boxes, column maps."""

from __future__ import annotations

import re

from fedmiss.errors import ConfigError

__all__ = ["clock_range", "date_range", "four_numbers", "number_range", "parse_map", "season_window"]

Range = tuple[float | None, float | None]


def _halves(text: str, option: str, example: str) -> tuple[str, str]:
    low, dots, high = text.partition("..")
    if not dots:
        raise ConfigError(f"{option} {text!r} is not a range; write it as {example}.")
    return low.strip(), high.strip()


def number_range(text: str, option: str) -> Range:
    """Read '5..300', '..300' or '5..'."""
    halves = _halves(text, option, "5..300 (either end may be left out)")
    try:
        low, high = (float(half) if half else None for half in halves)
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} holds something that is no number; write it as 5..300."
        ) from None
    return low, high


def clock_range(text: str) -> Range:
    """Read '05:00..10:30' as minutes after midnight."""
    out: list[float | None] = []
    for half in _halves(text, "--time", "05:00..10:30"):
        match = re.fullmatch(r"(\d{1,2}):(\d{2})", half)
        if half and (not match or int(match[1]) > 23 or int(match[2]) > 59):
            raise ConfigError(f"--time {text!r}: {half!r} is not a time of day; write it as 05:00..10:30.")
        out.append(int(match[1]) * 60.0 + int(match[2]) if match else None)
    return out[0], out[1]


def date_range(text: str) -> tuple[str | None, str | None]:
    """Read '2020-01-01..2021-12-31'."""
    low, high = _halves(text, "--last-edited", "2020-01-01..2021-12-31 (either end may be left out)")
    return low or None, high or None


def season_window(text: str) -> tuple[str, str]:
    """Read '11-15..02-15'."""
    low, high = _halves(text, "--season", "11-15..02-15 (month-day)")
    if not all(re.fullmatch(r"\d{2}-\d{2}", half) for half in (low, high)):
        raise ConfigError(f"--season {text!r} must be two month-day dates, as 11-15..02-15.")
    return low, high


def four_numbers(text: str) -> tuple[float, float, float, float]:
    """Read 'west,south,east,north'."""
    try:
        west, south, east, north = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--bbox {text!r} must be four numbers west,south,east,north, as -125,45,-117,49."
        ) from None
    return west, south, east, north


def parse_map(text: str | None) -> dict[str, str] | None:
    """Read 'observer=who,site=plot'; 'auto' asks for the proposed map."""
    if text is None:
        return None
    if text.strip() == "auto":
        return {"auto": ""}
    out: dict[str, str] = {}
    for part in text.split(","):
        key, sign, column = part.partition("=")
        if not sign or not key.strip() or not column.strip():
            raise ConfigError(
                f"--map: {part!r} is not name=column; write it as observer=who,site=plot,date=day."
            )
        if key.strip() in out:
            raise ConfigError(f"--map names {key.strip()!r} twice; give each name one column.")
        out[key.strip()] = column.strip()
    return out
