"""What an organisation has approved: everything that questions of its job may contain, as values."""

from __future__ import annotations

from dataclasses import dataclass

from fedmiss.models.lowrank.settings import CountSettings

__all__ = ["MOST_EXCHANGES", "MOST_NODES", "Approved"]

MOST_EXCHANGES = 1000  # of a job that does not say; an ordinary one has some 200
MOST_NODES = 12  # values of the dispersion in one question: a table of more could be taken apart into visits


@dataclass(frozen=True, slots=True)
class Approved:
    """An approved job.

    Attributes
    ----------
    names : of all groups, sorted;  seal : whether they make a common key over the wire
    species, season, months, effort, detections, duplicates : what visits take part; ``months`` None for the union
    minimum, contributors, share : the rule for released sums
    candidates, folds, by, seed : of the choice of the model;  bootstrap : number of replicates
    exchanges : most questions, the first included
    """

    names: tuple[str, ...]
    seal: bool
    species: str
    season: tuple[int, ...]
    months: tuple[int, ...] | None
    effort: str | tuple[str, ...]
    detections: bool
    duplicates: bool
    minimum: int
    contributors: int
    share: float
    candidates: tuple[CountSettings, ...]
    folds: int
    by: str
    seed: int
    bootstrap: int
    exchanges: int = MOST_EXCHANGES
