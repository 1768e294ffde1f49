"""Everybody's frame to everybody: the one thing that a network does for a study, and how a relay does it.

``restore`` and ``some_of`` are the whole transport. A frame is bytes that its reader checks (:mod:`.member`): what carries
it may lose, repeat, delay or reorder frames, and learns their sizes. An exchange is over when the frames of all are there,
or of those whom the chair of a round names (:mod:`.attendance`).
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fedmiss.errors import EngineError

_HEAD = struct.Struct("<IH")
_ONE = struct.Struct("<HI")
OVER = b"fedmiss: this organisation has its result"
STOPPED = b"fedmiss: this organisation has stopped"
WORKING = b"fedmiss: this organisation is at work"
PING = b"fedmiss: the relay waits for others"
# seconds until a relay is told that there is nothing new yet: no engine can end a call that waits
PAUSE = 5.0
SILENCE = 40.0  # seconds without a word of the relay after which it is gone: its engine has ended this job


# of the frames that are here: whose are wanted
Enough = Callable[[Mapping[str, bytes]], frozenset[str] | None]


class Gather(Protocol):
    """What carries frames between organisations."""

    def restore(self, exchange: int, frame: bytes) -> None:
        """Show a frame to the others; again, where it is one of the journal that another may not have received."""

    def some_of(self, exchange: int, have: Mapping[str, bytes], enough: Enough) -> dict[str, bytes]:
        """Look until the frames are there that ``enough`` names, and return them by name, the own one with them.

        Parameters
        ----------
        have : the own frame by its name, where it has been made
        enough : is given the frames that are here, and names those that are wanted; None to look on
        """

    def latest(self, name: str) -> int:
        """The last exchange of which a frame of this organisation has come, -1 where nobody can tell."""


def packed(exchange: int, frames: Mapping[str, bytes]) -> bytes:
    """Frames of one exchange as bytes."""
    out = [_HEAD.pack(exchange, len(frames))]
    for name in sorted(frames):
        raw = name.encode()
        out += [_ONE.pack(len(raw), len(frames[name])), raw, frames[name]]
    return b"".join(out)


def unpacked(raw: bytes) -> tuple[int, dict[str, bytes], bytes]:
    """The number of an exchange, its frames, and what follows them.

    Raises
    ------
    ValueError    the bytes are cut
    """
    try:
        exchange, n = _HEAD.unpack_from(raw)
        at, frames = _HEAD.size, {}
        for _ in range(n):
            a, b = _ONE.unpack_from(raw, at)
            at += _ONE.size
            if at + a + b > len(raw):
                raise ValueError("cut")
            frames[raw[at : at + a].decode()] = raw[at + a : at + a + b]
            at += a + b
    except (struct.error, UnicodeDecodeError):
        raise ValueError("cut") from None
    return exchange, frames, raw[at:]


class Board:
    """Organisations as threads of one process: frames lie on a board that all of them see."""

    def __init__(self, names: Sequence[str], patience: float = 600.0) -> None:
        self.names, self.patience = tuple(sorted(names)), patience
        self.frames: dict[int, dict[str, bytes]] = {}
        self._changed = threading.Condition()

    def seat(self, name: str) -> Gather:
        """One organisation's place at the board."""
        board = self

        class Place:
            def restore(self, exchange: int, frame: bytes) -> None:
                with board._changed:
                    board.frames.setdefault(exchange, {})[name] = frame
                    board._changed.notify_all()

            def some_of(self, exchange: int, have: Mapping[str, bytes], enough: Enough) -> dict[str, bytes]:
                return board._some_of(exchange, enough)

            def latest(self, name: str) -> int:
                return max((e for e, here in board.frames.items() if name in here), default=-1)

        return Place()

    def _some_of(self, exchange: int, enough: Enough) -> dict[str, bytes]:
        until = time.monotonic() + self.patience
        with self._changed:
            here = self.frames.setdefault(exchange, {})
            while (names := enough(here)) is None or not names <= here.keys():
                if time.monotonic() > until:
                    raise EngineError(
                        f"exchange {exchange}: no frame from {', '.join(n for n in self.names if n not in here)}."
                    )
                self._changed.wait(0.05)  # also when nothing comes: a rule may have a clock of its own
            return {n: here[n] for n in names}


class RelayGone(EngineError):
    """Nobody asks for frames any more."""


class Seat:
    """An organisation's end of a relay that asks it: its job runs in a thread, and waits here for everybody's frames.

    A relay that was started again knows nothing, and brings nothing: then the answer holds the last two frames, of which the
    others may need the earlier one. While the job goes through its journal, nothing is shown: the relay would take a frame
    of the journal for the place where this organisation is, and wait there for frames that nobody has any more.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._posts: dict[int, bytes] = {}
        self._replaying = True
        self._got: tuple[int, dict[str, bytes]] = (-1, {})
        self._end = b""
        self._heard = time.monotonic()

    def some_of(self, exchange: int, have: Mapping[str, bytes], enough: Enough) -> dict[str, bytes]:
        """Leave the frame for the relay, and wait until it brings those of all others: a relay brings no others."""
        frame = have[self.name]
        with self._changed:
            self._replaying = False
            self._posts = {k: v for k, v in self._posts.items() if k == exchange - 1} | {exchange: frame}
            self._changed.notify_all()
            self._heard = time.monotonic()
            while not self._changed.wait_for(lambda: self._got[0] == exchange, 1.0):
                if time.monotonic() - self._heard > SILENCE:
                    raise RelayGone(f"exchange {exchange}: the relay has been silent for {SILENCE:.0f} s.")
            return self._got[1] | {self.name: frame}

    def latest(self, name: str) -> int:
        """Nobody can tell here."""
        return -1

    def restore(self, exchange: int, frame: bytes) -> None:
        """Keep a frame of the journal."""
        with self._changed:
            self._posts = {k: v for k, v in self._posts.items() if k == exchange - 1} | {exchange: frame}

    def end(self, done: bool) -> None:
        """Nothing more comes from here: the job is done, or has stopped."""
        with self._changed:
            self._end = OVER if done else STOPPED
            self._changed.notify_all()

    def answer(self, raw: bytes) -> bytes:
        """Take what the relay brings; return the last frames, once there is one that the relay does not have."""
        with self._changed:
            self._heard = time.monotonic()
            if raw == PING:
                return WORKING
            exchange = self._got[0] if raw == WORKING else -1
            if raw and raw != WORKING:
                exchange, frames, _ = unpacked(raw)
                if exchange not in self._posts:
                    exchange = -1  # this end was started again: the relay learns where it is
                elif exchange > self._got[0]:
                    self._got = (exchange, frames)
                    self._changed.notify_all()
            there = self._changed.wait_for(
                lambda: self._end or (not self._replaying and max(self._posts, default=-1) > exchange), PAUSE
            )
            self._heard = time.monotonic()
            if not there:
                return WORKING
            posts = sorted(self._posts.items())
            if exchange >= 0 and not self._end:
                posts = posts[-1:]  # the relay has the frame before
            return b"".join(packed(k, {"": v}) for k, v in posts) + self._end


class Relay:
    """The middle of a star: it brings everybody's frames to all others, and can read none of them."""

    def __init__(
        self, names: Sequence[str], watch: Callable[[int, Sequence[str]], None] | None = None
    ) -> None:
        self.names, self.watch = tuple(sorted(names)), watch
        self._frames: dict[int, dict[str, bytes]] = {}
        self._at: dict[str, int] = {}  # the exchange that each waits for
        self._working: set[str] = set()  # who has the frames that it waited for
        self.ended: dict[str, bool] = {}  # who has its result, who has stopped

    def kept(self) -> bytes:
        """The last exchange and who has its result, for a relay that begins when those have left; blank before that.

        Whoever has its result has shown a frame of the last exchange, and no other exchange is wanted any more.
        """
        done = {n: b"" for n in self.names if self.ended.get(n)}
        if not done:
            return b""
        last = max(self._frames, default=0)
        return packed(last, done) + packed(last, self._frames.get(last, {}))

    def restore(self, kept: bytes) -> None:
        """Go on from :meth:`kept` of an earlier relay."""
        if kept:
            last, done, rest = unpacked(kept)
            self.ended |= dict.fromkeys(done, True)
            self._frames[last] = unpacked(rest)[1]

    def run(
        self, ask: Callable[[Mapping[str, bytes]], Mapping[str, bytes]], pause: Callable[[], None]
    ) -> None:
        """Go on until all have their results.

        Parameters
        ----------
        ask : carries one packet to each organisation named, and brings the answers of those that gave one
        pause : called when somebody did not answer, before it is asked again
        """
        while len(self.ended) < len(self.names):
            asked = self._next()
            if not asked:
                break
            waiting = [n for n in self.names if n not in asked and n not in self.ended]
            asked |= dict.fromkeys(waiting, PING)  # so that they know that somebody is there
            replies = ask(asked)
            for name, raw in replies.items():
                if asked[name] != PING:
                    self._take(name, raw)
            missing = [n for n in asked if n not in replies]
            if self.watch is not None:
                self.watch(min(self._at.values(), default=0), missing)
            if missing:
                pause()
        if stopped := [n for n in self.names if not self.ended.get(n, True)]:
            raise EngineError(
                f"{', '.join(stopped)} stopped before the end, after a preview, or for a reason that stands on the own "
                "screen there. When they join again, run this again: the job goes on."
            )

    def waited_for(self) -> list[str]:
        """Who is at work, or holds a message, while somebody has shown its frame; nobody where all are at work."""
        there = {n for n in self.names if n not in self.ended}
        return sorted(self._working) if self._working != there else []

    def _next(self) -> dict[str, bytes]:
        """What each organisation is brought now; those that wait for others are left alone."""
        out = {}
        for name in self.names:
            if name in self.ended:
                continue
            if name in self._working:
                out[name] = WORKING
                continue
            if name not in self._at:
                out[name] = b""
                continue
            here = self._frames.get(self._at[name], {})
            if len(here) == len(self.names):
                out[name] = packed(self._at[name], {n: frame for n, frame in here.items() if n != name})
            for other in self.names:  # one that is ahead has shown this frame to an earlier relay
                if other not in here and other not in self.ended and self._at.get(other, -1) > self._at[name]:
                    out[other] = b""
        return out

    def _take(self, name: str, raw: bytes) -> None:
        self._working.discard(name)
        if raw == WORKING:
            self._working.add(name)
            return
        try:
            while raw and raw not in (OVER, STOPPED):
                exchange, frames, raw = unpacked(raw)
                self._frames.setdefault(exchange, {})[name] = frames[""]
                self._at[name] = exchange
        except (ValueError, KeyError):
            self._at.pop(name, None)  # damaged on the way: it is asked again
            return
        if raw:
            self.ended[name] = raw == OVER
        oldest = min(self._at.get(n, 0) for n in self.names)
        for old in [k for k in self._frames if k < oldest - 1]:
            del self._frames[old]
