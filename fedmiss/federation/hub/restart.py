"""The hub's end of a network that fails: answers are kept, and questions asked again until all have answered."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedmiss.errors import ConfigError, EngineError
from fedmiss.federation.codec import refuses, whole
from fedmiss.federation.journal import Journal
from fedmiss.federation.link import Transport

__all__ = ["Journaled"]

_START, _EXCHANGE = 1, 2


class Journaled:
    """A transport whose answers survive the hub: a job that is run again gets those that came, then goes on.

    Parameters
    ----------
    inner : carries the frames; a group that did not answer is missing from its reply
    job : hash of the job
    journal : file of the hub's journal
    patience : seconds to go on asking a group that does not answer
    pause : seconds before it is asked again
    told : called with the names of groups that do not answer, and with () when all have
    """

    def __init__(
        self,
        inner: Transport,
        job: bytes,
        journal: Path,
        *,
        patience: float = 600.0,
        pause: float = 1.0,
        told: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self.inner, self.names = inner, tuple(inner.names)
        self.patience, self.pause, self.told = patience, pause, told
        self.journal = Journal(journal)
        start = job + json.dumps(self.names).encode()
        self._kept: list[bytes] = []
        for kind, body in self.journal.records():
            if kind == _START and body != start:
                self.journal.close()
                raise ConfigError(
                    f"{journal} is the journal of another job or roster; run its study, or move it away."
                )
            if kind == _EXCHANGE:
                self._kept.append(body)
        if not self._kept:
            self.journal.append((_START, start))
        self.replayed = 0

    def ask(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Answers of all groups: those of the journal, or new ones, on the disk before they are used."""
        asked = _digest(frames)
        if self.replayed < len(self._kept):
            body = self._kept[self.replayed]
            self._kept[self.replayed] = b""
            self.replayed += 1
            if body[:16] != asked:
                raise EngineError(
                    f"exchange {self.replayed - 1} is asked in other words than before the restart. "
                    "Another version of fedmiss "
                    "or of a library? Begin a new revision of the study."
                )
            return _unpack(body[16:], self.names)
        replies = self._gather(frames)
        if len(replies) == len(frames) and not any(map(refuses, replies.values())):
            self.journal.append((_EXCHANGE, asked + _pack(replies, self.names)))
            self._kept.append(b"")
            self.replayed += 1
        return replies

    def _gather(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        replies: dict[str, bytes] = {}
        until = time.monotonic() + self.patience
        away: tuple[str, ...] = ()
        while True:
            rest = {name: frame for name, frame in frames.items() if name not in replies}
            got = self.inner.ask(rest)
            replies |= {name: raw for name, raw in got.items() if whole(raw, frames[name])}
            missing = tuple(name for name in frames if name not in replies)
            if self.told is not None and missing != away:
                self.told(missing)
            away = missing
            if not missing or time.monotonic() >= until:
                return replies
            time.sleep(self.pause)

    def close(self) -> None:
        """Let go of the journal."""
        self.journal.close()


def _digest(frames: Mapping[str, bytes]) -> bytes:
    h = hashlib.blake2b(digest_size=16)
    seen: dict[int, bytes] = {}  # the same frame goes to all groups: hash it once
    for name in sorted(frames):
        frame = frames[name]
        one = seen.setdefault(id(frame), b"") or hashlib.blake2b(frame, digest_size=16).digest()
        seen[id(frame)] = one
        h.update(name.encode() + b"\0" + one)
    return h.digest()


def _pack(replies: Mapping[str, bytes], names: Sequence[str]) -> bytes:
    return b"".join(len(replies[n]).to_bytes(8, "little") + replies[n] for n in names)


def _unpack(body: bytes, names: Sequence[str]) -> dict[str, bytes]:
    out, at = {}, 0
    for name in names:
        n = int.from_bytes(body[at : at + 8], "little")
        out[name] = body[at + 8 : at + 8 + n]
        at += 8 + n
    return out
