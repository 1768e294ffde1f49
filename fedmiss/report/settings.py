"""The settings of a report; light to import, because the command line makes its options of them."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedmiss.errors import ConfigError
from fedmiss.settings import Settings, setting

RULES = ("pecbms", "rtrim")
CONVENTIONS = ("long-term", "trim")


def base_range(base: str | int) -> tuple[int, int]:
    """Return the first and last year of a base: ``"2010"``, ``"2005-2010"``.

    Raises ConfigError when it is not a year or a range of years.
    """
    text = str(base).strip()
    parts = text.split("-")
    if not (1 <= len(parts) <= 2 and all(part.strip().isdecimal() for part in parts)):
        raise ConfigError(f"the base {text!r} is not a year or a range of years; write 2010 or 2005-2010.")
    first, last = int(parts[0]), int(parts[-1])
    if first > last:
        raise ConfigError(f"the base {text} ends before it begins; write --base {last}-{first}.")
    return first, last


class Least(NamedTuple):
    """The least that must be counted in a year of the index: site-months of the season, and sites.

    Five counts of a species with the usual overdispersion know a year's level to some 45 %, and three sites keep one site
    from being the year. The base needs twice as much, because its error is in every index. A panel with few sites asks for
    half of what there is.
    """

    cells: int = 5
    sites: int = 3

    @property
    def base(self) -> Least:
        """What a year needs to be taken as the base."""
        return Least(2 * self.cells, 2 * self.sites)

    def of(self, n_sites: int, n_months: int) -> Least:
        """Return what is asked of a panel of so many sites, with so many months in its season."""
        half = -(-n_sites // 2)
        return Least(min(self.cells, max(1, -(-n_sites * n_months // 2))), min(self.sites, max(1, half)))


@dataclass(frozen=True, slots=True)
class ReportSettings(Settings):
    """What the user of a report may choose.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.ReportSettings(base="2010", unit="nests").unit
    'nests'
    """

    base: str | None = setting(
        None, "Base of the index: a year or a range, 2010 or 2005-2010.", shown="first complete year"
    )
    rule: str = setting("pecbms", "Rule of the trend classes: pecbms or rtrim.", among=RULES)
    convention: str = setting(
        "long-term",
        "Error of the trend: long-term (with the scatter of years) or trim (without it, as in TRIM).",
        among=CONVENTIONS,
    )
    min_counts: int = setting(
        Least().cells,
        "Minimum of counted site-months in a year of the index; twice as many in its base.",
        low=1,
    )
    min_sites: int = setting(
        Least().sites, "Minimum of counted sites in a year of the index; twice as many in its base.", low=1
    )
    date: str | None = setting(
        None, "Date printed on the report, YYYY-MM-DD; set it to get the same bytes again.", shown="today"
    )
    span: float | None = setting(
        None, "Span of the LOESS curve, 0 to 1.", above=0, high=1, shown="by cross-validation"
    )
    coarse_map: float = setting(
        0.0,
        "Round positions of sites to this many degrees, and withhold their names (0: exact).",
        low=0,
        high=10,
    )
    title: str | None = setting(None, "Title of the page.", shown="the species")
    unit: str = setting("birds", "What was counted: birds, nests, pairs, territories, or any word.")
    trim: bool = setting(False, "Also show TRIM's index (model 3) of the same counts.")
    free_sites: bool = setting(
        False, "Sites were taken up without regard to the species, so late first visits say nothing of it."
    )
    photo: str | None = setting(None, "A picture (JPEG or PNG) for the top of the page.")
    photo_credit: str = setting("", "Who took the picture, and its licence.")
    language: str | None = setting(
        None,
        "Language of the page: de, or a catalogue (.po); sentences without a translation stay English and are listed.",
    )
    author: str = setting("", 'Who publishes the report, for "cite as".')
    url: str = setting("", "Address of the published report, for links and share images.")

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.date is not None:
            try:
                dt.date.fromisoformat(self.date)
            except ValueError:
                raise ConfigError(f"--date is {self.date!r}; write it as YYYY-MM-DD.") from None
        if self.base is not None:  # here, not after the fit that a recipe makes first
            base_range(self.base)
        if self.language is not None and not Path(self.language).suffix and not os.path.exists(self.language):
            from fedmiss.report.language import known_language

            known_language(self.language)
        if not self.unit.strip() or len(self.unit) > 40:
            raise ConfigError(f"--unit is {self.unit!r}; give a word, as nests.")

        if self.photo_credit and self.photo is None:
            raise ConfigError(
                "--photo-credit does nothing here: there is no --photo. Leave --photo-credit out."
            )

    @property
    def least(self) -> Least:
        """What must be counted in a year of the index."""
        return Least(self.min_counts, self.min_sites)
