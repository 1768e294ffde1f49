"""What crossed the wall: exchanges and bytes, counted on the bytes themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Line:
    """Sums of one stage or kind of message."""

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def add(self, up: int, down: int) -> None:
        """Count one exchange."""
        self.exchanges += 1
        self.bytes_up += up
        self.bytes_down += down


@dataclass(slots=True)
class Ledger:
    """Exchanges and bytes of a job: in all, by stage, by group, and messages by kind.

    ``bytes_up`` are those of all groups' answers, ``bytes_down`` those of all questions; a question to ten groups counts
    ten times. ``kinds`` counts messages by the name of their type.
    """

    total: Line = field(default_factory=Line)
    stages: dict[str, Line] = field(default_factory=dict)
    groups: dict[str, Line] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)

    def record(self, stage: str, down: Mapping[str, int], up: Mapping[str, int]) -> None:
        """Count one exchange: lengths of the frames to and from every group, whatever becomes of them."""
        self.total.add(sum(up.values()), sum(down.values()))
        self.stages.setdefault(stage, Line()).add(sum(up.values()), sum(down.values()))
        for name, n in down.items():
            self.groups.setdefault(name, Line()).add(up.get(name, 0), n)

    def clear(self) -> None:
        """Start to count again."""
        self.total, self.stages, self.groups, self.kinds = Line(), {}, {}, Counter()

    def as_dict(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self.total) | {
            "stages": {k: asdict(v) for k, v in self.stages.items()},
            "groups": {k: asdict(v) for k, v in self.groups.items()},
            "messages": dict(sorted(self.kinds.items())),
        }
