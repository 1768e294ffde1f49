"""A federation in one process that goes on where it was stopped.

The hub is a function of the answers that it gets: with the same answers again it comes to the same place. So the answers of
a stage are kept, and with them what the groups' fits had come to. A rerun gives the hub the answers, which costs little, and
the groups compute only what comes after. Questions that make or close a group's state are asked again in truth.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedmiss.atomic import read_checked, write_checked
from fedmiss.errors import EngineError, InputError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import decode, encode
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.link import InProcess
from fedmiss.owner import empty_part
from fedmiss.parsing import parse_json
from fedmiss.version import __version__

PAUSE = 5.0  # seconds of work that a stop can lose
SHARE = 20.0  # and at most one part in so many of the time goes into keeping it
ROUNDS = (msg.Solve, msg.Predict, msg.Score, msg.Product, msg.SiteTime)
NUMBERS = (*ROUNDS, msg.Totals)  # their answers follow from the rounds before, which are not done again
STATE = "groups.npz"


class Resumable(InProcess):
    """Groups in this process; between :meth:`stage` and its end their rounds survive the process.

    Parameters
    ----------
    programs : of the groups, by name
    """

    def __init__(self, programs: Mapping[str, GroupProgram]) -> None:
        super().__init__(programs)
        self.groups = dict(programs)
        self._folder: Path | None = None
        self._end()

    def _end(self) -> None:
        self._folder = None
        self._kept: list[bytes] = []  # answers to be given again: a hash of what was asked, and the frames
        self._new: list[bytes] = []  # answers that are not yet on the disk
        self._parts: list[tuple[int, str]] = []  # first exchange and hash of the files of answers
        self._count = self._base = 0
        self._state: dict[str, np.ndarray] = {}
        self._told: Callable[[], None] = lambda: None

    @contextmanager
    def stage(self, folder: Path, exchange: int, told: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Keep the exchanges of a stage in ``folder``; gives the number of its first exchange.

        Parameters
        ----------
        exchange : number of the next exchange; one that was kept is higher where earlier stages are not done again
        told : called when all that was kept has been used, before the first new question
        """
        self._end()
        self._folder, self._base, self._told = folder, exchange, told
        # damaged, or of another version
        with suppress(OSError, InputError, ValueError, KeyError, IndexError):
            self._load()
        if not self._kept:
            empty_part(folder)
        self._since, self._cost = time.monotonic(), 0.0
        try:
            yield self._base
        finally:
            self._end()

    def ask(self, frame: bytes) -> dict[str, bytes]:
        """Answers that were kept, or new ones."""
        if self._folder is None:
            return super().ask(frame)
        questions = decode(frame, None, asks=True, who="the hub")[1]
        rounds = all(isinstance(question, ROUNDS) for question in questions)
        some = any(isinstance(question, NUMBERS) for question in questions)
        at, self._count = self._count, self._count + 1
        if at < len(self._kept):
            replies = self._again(at, frame, rounds=rounds, some=some)
            if self._count == len(self._kept):
                self._restore()
                self._told()
            return replies
        replies = super().ask(frame)
        # one that only makes or closes state is asked again at a restart: its answer is not needed
        self._new.append(_digest(frame) + (_pack(replies, self.names) if some else b""))
        if rounds and self._due(time.monotonic() - self._since):
            self.save()
        return replies

    def _due(self, seconds: float) -> bool:
        return seconds >= max(PAUSE, SHARE * self._cost)

    def _again(self, at: int, frame: bytes, *, rounds: bool, some: bool) -> dict[str, bytes]:
        body, self._kept[at] = self._kept[at], b""
        if body[:16] != _digest(frame):
            assert self._folder is not None
            empty_part(self._folder)
            raise EngineError(
                f"the unfinished work in {self._folder} is of another version of a library, and cannot be continued; it was "
                "removed. Run the same command again."
            )
        if not some:
            return super().ask(frame)
        # what makes or closes state is done again; its numbers come with the last state
        if not rounds and (rest := _without_numbers(frame)):
            super().ask(rest)
        return _unpack(body[16:], self.names)

    def save(self) -> None:
        """Write down the new answers, then what the groups have come to: the second file makes the first valid."""
        if self._folder is None or not self._new:
            return
        begun = time.monotonic()
        first = self._count - len(self._new)
        answers = b"".join(len(one).to_bytes(8, "little") + one for one in self._new)
        write_checked(self._folder / _part(first), answers)
        self._parts.append((first, hashlib.sha256(answers).hexdigest()))
        state: dict[str, Any] = {
            f"{i}/{number}/{name}": array
            for i, group in enumerate(self.names)
            for number, batch in self.groups[group].batches.items()
            for name, array in batch.changing().items()
        }
        about = {"version": versions(), "base": self._base, "count": self._count, "parts": self._parts}
        state["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, **state)
        write_checked(self._folder / STATE, buffer.getvalue())
        self._new = []
        self._since = time.monotonic()
        self._cost = self._since - begun

    def _load(self) -> None:
        assert self._folder is not None
        if not (self._folder / STATE).exists():
            return
        with np.load(io.BytesIO(read_checked(self._folder / STATE))) as file:
            state = {name: file[name] for name in file.files}
        about = parse_json(state.pop("about").tobytes().decode())
        if about["version"] != versions():
            raise ValueError(about["version"])
        kept: list[bytes] = []
        for first, seal in about["parts"]:
            raw = read_checked(self._folder / _part(first))
            if first != len(kept) or hashlib.sha256(raw).hexdigest() != seal:
                raise ValueError(first)
            kept += _records(raw)
        if len(kept) != about["count"]:
            raise ValueError(len(kept))
        # last, and at once: what cannot be read changes nothing
        parts, base = [(first, seal) for first, seal in about["parts"]], max(self._base, about["base"])
        self._kept, self._state, self._base, self._parts = kept, state, base, parts

    def _restore(self) -> None:
        """Bring the groups' fits to where they were."""
        for i, group in enumerate(self.names):
            for number, batch in self.groups[group].batches.items():
                start = f"{i}/{number}/"
                before = {k[len(start) :]: v for k, v in self._state.items() if k.startswith(start)}
                if before:
                    batch.restore(before)
        self._state = {}
        self._since = time.monotonic()


def _without_numbers(frame: bytes) -> bytes:
    """The questions of a frame that make or close state; empty where there are none."""
    envelope, questions = decode(frame, None, asks=True, who="the hub")
    rest = [question for question in questions if not isinstance(question, NUMBERS)]
    return encode(rest, envelope) if rest else b""


def versions() -> str:
    """What unfinished work was made with: another version may round, or choose, in another way."""
    return f"fedmiss {__version__}, form 10, numpy {np.__version__}"


def _part(first: int) -> str:
    return f"answers-{first:06d}.bin"


def _records(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        n = int.from_bytes(raw[at : at + 8], "little")
        yield raw[at + 8 : at + 8 + n]
        at += 8 + n


def _digest(frame: bytes) -> bytes:
    """Hash what is asked."""
    return hashlib.blake2b(frame, digest_size=16).digest()


def _pack(replies: Mapping[str, bytes], names: Sequence[str]) -> bytes:
    return b"".join(len(replies[name]).to_bytes(8, "little") + replies[name] for name in names)


def _unpack(body: bytes, names: Sequence[str]) -> dict[str, bytes]:
    return dict(zip(names, _records(body), strict=True))
