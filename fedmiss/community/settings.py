"""The settings of ``fedmiss community``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedmiss.models.lowrank.structure import effort_words
from fedmiss.settings import Setting, Settings


@dataclass(frozen=True, slots=True)
class CommunitySettings(Settings):
    """How all species of a site are fitted together.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.community.CommunitySettings(rank=2).rank
    2
    """

    model: Annotated[
        str,
        Setting(
            "counts (negative binomial) or presence (found or not on a list).", among=("counts", "presence")
        ),
    ] = "counts"
    rank: Annotated[
        int | Literal["auto"],
        Setting("Number of axes: auto (by left-out site x species cells) or a number.", low=0),
    ] = "auto"
    max_rank: Annotated[int, Setting("Most axes that auto tries.", low=0, high=20)] = 5
    min_sites: Annotated[int, Setting("Least number of sites at which a species was found.", low=1)] = 3
    site_table: Annotated[
        str | None, Setting("CSV of the sites' covariates: species respond to them, each in its own way.")
    ] = None
    effort: Annotated[str, Setting("auto, none, or any of duration,distance,observers.")] = "auto"
    season: Annotated[
        str,
        Setting(
            "auto (how common each species is in each quarter of the year, where left-out counts are predicted clearly "
            "better so) or none.",
            among=("auto", "none"),
        ),
    ] = "auto"
    fedmissem: Annotated[
        bool,
        Setting(
            "Fit the paper's algorithm 7 too, and score both on the same left-out cells: minutes, no intervals."
        ),
    ] = False
    folds: Annotated[int, Setting("Folds of the choice.", low=2, high=50)] = 5
    seed: Annotated[int, Setting("Seed of folds and draws.", low=0)] = 0
    title: Annotated[str, Setting("Title of the page.")] = "All species together"

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        effort_words(self.effort)
