"""Which checklists to keep: filters with closed ranges as they are typed, named presets, and what each means exactly.

A blank in a filtered column drops the checklist. Distance counts as 0 for the protocol 'Stationary', whatever
stands in the column (Best Practices, both editions); speed is distance over duration, and a duration of 0 has
no speed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from fedmiss.errors import ConfigError
from fedmiss.settings import Settings, setting

Range = tuple[float | None, float | None]
Words = tuple[str, ...]
EPOCH = date(1970, 1, 1)
where = partial(setting, panel="Where")
when = partial(setting, panel="When and how")


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


@dataclass(frozen=True, slots=True)
class Filters(Settings):
    """Filters on checklists; a filter that is not given keeps every checklist.

    Ranges are (lowest, highest), both included, None for an open end; ``start`` is in minutes after midnight. The
    season is two month-days and may wrap over New Year.
    """

    countries: Words = where((), "Country code or name.", flags=("--country",))
    states: Words = where((), "State code or name.", flags=("--state",))
    counties: Words = where((), "County code or name.", flags=("--county",))
    bcrs: Words = where((), "Code of a Bird Conservation Region.", flags=("--bcr",))
    bbox: tuple[float, float, float, float] | None = where(
        None,
        "west,south,east,north in degrees; west above east crosses the 180th meridian.",
        read=four_numbers,
    )
    polygon: str | None = where(None, "GeoJSON file with polygons (WGS84).", typed=Path)
    localities: Words = where((), "Locality id.", flags=("--locality",))
    hotspots_only: bool = where(False, "Hotspots only.", flags=("--hotspots",))
    first_date: str | None = when(None, "First date, as 2015-01-01.", flags=("--start",))
    last_date: str | None = when(None, "Last date, included.", flags=("--end",))
    last_years: int | None = when(None, "Number of last calendar years of the data.", low=1)
    years: tuple[int, ...] = when(
        (), "Calendar year; repeat for more.", low=1800, high=2199, flags=("--year",)
    )
    last_edited: tuple[str | None, str | None] = when(
        (None, None), "Last edit of the checklist, as 2020-01-01..2021-12-31.", read=date_range
    )
    season: tuple[str, str] | None = when(None, "Window of any year, as 11-15..02-15.", read=season_window)
    start: Range = when(
        (None, None), "Start time, as 05:00..10:30, both ends included.", flags=("--time",), read=clock_range
    )
    protocols: Words = when((), "Protocol, as Traveling; repeat for more.", flags=("--protocol",))
    projects: Words = when((), "eBird project code; repeat for more.", flags=("--project",))
    complete_only: bool = when(False, "Complete checklists only.", flags=("--complete",))
    duration: Range = when(
        (None, None), "Minutes, as 5..300.", read=partial(number_range, option="--duration")
    )
    distance: Range = when(
        (None, None), "Kilometres, as 0..10.", read=partial(number_range, option="--distance")
    )
    max_speed: float | None = when(None, "Largest speed, kilometres per hour.", low=0)
    party: Range = when(
        (None, None), "Maximum observers.", flags=("--max-observers",), typed=int, read=lambda n: (None, n)
    )
    observers: Words = when((), "Observer id to keep.", flags=("--observer",))
    without_observers: Words = when((), "Observer id to leave out.", flags=("--without-observer",))

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        for name in ("start", "duration", "distance", "party"):
            low, high = getattr(self, name)
            if low is not None and high is not None and low > high:
                raise ConfigError(f"the range of {name} is empty: {low:g} is above {high:g}; swap the two.")
        day_of(self.first_date, "--start")
        day_of(self.last_date, "--end")
        for edge in self.last_edited:
            day_of(edge, "last edited")
        low, high = self.last_edited
        if low and high and low > high:
            raise ConfigError(f"the range of last edits is empty: {low} is after {high}; swap the two.")
        if self.first_date and self.last_date and self.first_date > self.last_date:
            raise ConfigError(
                f"the first date {self.first_date} is after the last {self.last_date}; swap them."
            )
        if self.season:
            for edge in self.season:
                day_of(f"2000-{edge}", "season")
        if self.bbox is not None:
            west, south, east, north = self.bbox
            if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
                raise ConfigError(
                    f"the box {self.bbox} is not west,south,east,north in degrees (longitude -180..180, latitude "
                    "-90..90, south below north); for example -125,45,-117,49."
                )


def day_of(text: str | None, what: str) -> int | None:
    """Return the days since 1970 of an ISO date; None for none."""
    if text is None:
        return None
    # only as it is printed: Python also reads 20240531 and weeks, which do not sort as dates do
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        with suppress(ValueError):
            return (date.fromisoformat(text) - EPOCH).days
    shown = text[5:] if what == "season" else text
    raise ConfigError(f"{shown!r} is not a date ({what}); write it as 2024-05-31 (season: 05-31).")


PRESETS = {
    # Strimas-Mackey et al., Best Practices for Using eBird Data, version 1 (2020), section 2.5
    "best-practices-v1": Filters(
        protocols=("Stationary", "Traveling"), complete_only=True, duration=(None, 300.0),
        distance=(None, 5.0), party=(None, 10.0), last_years=10,
    ),
    # the same, version 2 (2023): complete lists are a condition of its zero-filling
    "best-practices-v2": Filters(
        protocols=("Stationary", "Traveling"),
        complete_only=True,
        duration=(None, 360.0),
        distance=(None, 10.0),
        max_speed=100.0,
        party=(None, 10.0),
    ),
}  # fmt: skip


def preset(name: str, **changes: Any) -> Filters:
    """Return a named set of filters, with some of them changed.

    Raises
    ------
    ConfigError : an unknown name
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}.", preset=name)
    return replace(PRESETS[name], **changes)
