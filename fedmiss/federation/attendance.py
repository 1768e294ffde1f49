"""Who is there in a round: a cohort whose member is away keeps its last sums, and the others go on.

The workers of FedEM (Dieuleveut et al. 2021, algorithm 1) are here **cohorts**: three to five organisations that mask among
themselves, or single ones where nothing is masked. A cohort answers when all its members have; no sum is ever formed over a
changing set, so no difference of two sums tells what one organisation has. One organisation, the chair, says in its frame
of the round which frames count; all others wait for that frame, so all use the same sums. The chair can leave cohorts out,
half of them at most, and do nothing else: what it says is signed, and kept in its journal. Where it says two things, those
who see frames of both stop at the next exchange. Who comes back goes through the rounds that it missed, from the frames
that lie there, and is waited for as long as it does.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedmiss.errors import ConfigError
from fedmiss.federation.gather import packed, unpacked
from fedmiss.federation.masks import FEWEST


class Latest(Protocol):
    """What is asked of the carrier of frames."""

    def latest(self, name: str) -> int:
        """The last exchange of which a frame of this organisation has come, -1 for none."""


def cohorts_of(names: Sequence[str], *, masks: bool) -> tuple[tuple[str, ...], ...]:
    """Cohorts of three to five organisations, in the order of their names; without masks each one is its own.

    Examples
    --------
    >>> cohorts_of(["a", "b", "c", "d", "e", "f", "g"], masks=True)
    (('a', 'b', 'c', 'd'), ('e', 'f', 'g'))
    """
    ordered = sorted(names)
    if not masks:
        return tuple((n,) for n in ordered)
    many = max(1, len(ordered) // FEWEST)
    least, more = divmod(len(ordered), many)
    out, at = [], 0
    for i in range(many):
        size = least + (i < more)
        out.append(tuple(ordered[at : at + size]))
        at += size
    return tuple(out)


class Absence:
    """The rule by which rounds go on without some.

    Parameters
    ----------
    cohorts : names of their members (:func:`cohorts_of`)
    chair : the organisation that says who is there; while it is away all wait
    seconds : how long somebody is waited for who was there before, or is coming back

    Raises
    ------
    ConfigError    the chair is not among the organisations
    """

    def __init__(self, cohorts: Sequence[tuple[str, ...]], chair: str, seconds: float) -> None:
        self.cohorts, self.chair, self.seconds = tuple(cohorts), chair, seconds
        names = sorted(n for c in self.cohorts for n in c)
        if chair not in names:
            raise ConfigError(
                f"the chair {chair!r} is not among the organisations ({', '.join(names)}); name one of them."
            )
        self._seen: dict[str, tuple[int, float]] = {}  # last frame of each, and when it was first seen

    def whole(self, names: Collection[str]) -> list[tuple[str, ...]]:
        """Cohorts whose members are all among these names."""
        return [c for c in self.cohorts if all(n in names for n in c)]

    def waiting(
        self, carrier: Latest, exchange: int, now: Callable[[], float] = time.monotonic
    ) -> Callable[[Mapping[str, bytes]], frozenset[str] | None]:
        """For the chair: a function of the frames that have come; it returns whose count, or None to wait on.

        Somebody is waited for ``seconds`` after the last sign of it: it was there in the round before, or shows frames of
        rounds that it missed. Half of the cohorts must be there: a chair that is cut off does not go on alone.
        """
        begun = now()

        def overdue(name: str) -> bool:
            shown = carrier.latest(name)
            # after a restart of the chair: it may be coming back
            latest, since = self._seen.get(name, (min(shown, exchange - 1), begun))
            if latest >= exchange - 1:
                since = max(since, begun)  # it was there: its time begins with this exchange
            if shown > latest:
                latest, since = shown, now()
            self._seen[name] = (latest, since)
            return now() - since > self.seconds

        def enough(frames: Mapping[str, bytes]) -> frozenset[str] | None:
            there = {*frames, self.chair}
            for name in there:
                self._seen[name] = (exchange, begun)
            whole = self.whole(there)
            gone = [any([overdue(n) for n in c if n not in there]) for c in self.cohorts if c not in whole]
            if 2 * len(whole) < len(self.cohorts) or not all(gone):
                return None
            return frozenset(n for c in whole for n in c) - {self.chair}

        return enough


@dataclass(frozen=True, slots=True)
class Attendance:
    """Whose frames count in an exchange, with the digests of these frames; that of the chair itself, which says so, is 0."""

    frames: Mapping[str, bytes]

    @classmethod
    def of(cls, frames: Mapping[str, bytes], absence: Absence) -> Attendance:
        """From the frames of the others that count."""
        digests = {n: cls.digest(raw) for n, raw in frames.items()}
        digests[absence.chair] = bytes(16)
        return cls({n: digests[n] for c in absence.whole(digests) for n in c})

    def holds(self, absence: Absence) -> bool:
        """Whether these are whole cohorts, and half of them at least."""
        whole = absence.whole(self.frames)
        return 2 * len(whole) >= len(absence.cohorts) and sum(map(len, whole)) == len(self.frames)

    @staticmethod
    def digest(frame: bytes) -> bytes:
        """Sixteen bytes of a frame."""
        return hashlib.blake2b(frame, digest_size=16).digest()

    def as_bytes(self) -> bytes:
        """As they stand before the chair's answer."""
        return packed(0, self.frames)

    @classmethod
    def read(cls, raw: bytes) -> tuple[Attendance, bytes]:
        """Who is there, and what follows.

        Raises
        ------
        ValueError    the bytes are cut
        """
        _, frames, rest = unpacked(raw)
        return cls(frames), rest
