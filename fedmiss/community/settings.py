"""The settings of ``fedmiss community``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.structure import effort_words
from fedmiss.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class CommunitySettings(Settings):
    """How all species of a site are fitted together.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.community.CommunitySettings(rank=2).rank
    2
    """

    model: str = setting(
        "counts",
        "counts (negative binomial) or presence (found or not on a list).",
        among=("counts", "presence"),
    )
    rank: int | Literal["auto"] = setting(
        "auto", "Number of axes: auto (by left-out site x species cells) or a number.", low=0
    )
    max_rank: int = setting(5, "Most axes that auto tries.", low=0, high=20)
    min_sites: int = setting(3, "Least number of sites at which a species was found.", low=1)
    site_table: str | None = setting(
        None, "CSV of the sites' covariates: species respond to them, each in its own way."
    )
    effort: str = setting("auto", "auto, none, or any of duration,distance,observers.")
    season: str = setting(
        "auto",
        "auto (how common each species is in each quarter of the year, where left-out counts are predicted clearly "
        "better so) or none.",
        among=("auto", "none"),
    )
    fedmissem: bool = setting(
        False,
        "Fit the paper's algorithm 7 too, and score both on the same left-out cells: minutes, no intervals.",
    )
    folds: int = setting(5, "Folds of the choice.", low=2, high=50)
    seed: int = setting(0, "Seed of folds and draws.", low=0)
    title: str = setting("All species together", "Title of the page.")

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        effort_words(self.effort)

    def most_axes(self, S: int) -> int:
        """Return the most axes that ``S`` species can bear.

        Raises ConfigError: more are asked for.
        """
        most = (S - 1) // 2
        if self.rank != "auto" and self.rank > most:
            raise ConfigError(
                f"rank {self.rank} needs {2 * self.rank + 1} species or more; there are {S} (at most rank "
                f"{most}). Lower --rank or --min-sites."
            )
        return most
