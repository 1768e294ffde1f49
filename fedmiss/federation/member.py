"""An organisation's end of a study: it runs the job itself, and adds up everybody's answers.

Nobody sends questions. Each organisation runs the same job; what its own copy asks it answers from its own records,
masks, signs, and shows to the others (:mod:`.gather`). From everybody's answers all copies compute the same sums, and so
the same next question. So nobody must be trusted with questions, and these things hold:

- a frame is signed by its organisation and encrypted for the roster: what carries it learns sizes and times;
- masks are bound to the job, the roster, the exchange, the outline of the question (:mod:`.outline`), and a digest of all
  frames so far: where organisations have seen different frames, or ask different things, nothing can be added up, and the
  next comparison says who differs;
- an answer's digest is on the disk before the answer goes, and everybody's frames before they are used. A restart runs
  the job again from there. So two messages never go out under one mask.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmiss.errors import ConfigError, EngineError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import Envelope, decode, refuses
from fedmiss.federation.gather import Gather, packed, unpacked
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.journal import Journal
from fedmiss.federation.masks import Masks, Party
from fedmiss.federation.outline import Outline, outline_of
from fedmiss.parsing import parse_json
from fedmiss.version import __version__

__all__ = ["MOST_BYTES", "Ended", "Entry", "Member", "digest_of", "entries", "frame_label"]

MOST_BYTES = 1 << 28
_START, _MINE, _ALL = 1, 2, 3  # kinds of records
_ENTRY = struct.Struct("<dIQ16s")  # time, exchange, bytes of the frame, its digest
_KEYS = 0  # the number of the first frame: version, and the common key, sealed for each of the others
Look = Callable[[int, list[msg.Message], list[msg.Answer]], None]


class Ended(EngineError):
    """The journal has no more exchanges."""


def frame_label(job: bytes, name: str, exchange: int) -> bytes:
    """What a signature is for: job, organisation and exchange."""
    return b"\0".join([b"fedmiss frame", job, name.encode(), str(exchange).encode()])


def digest_of(visits: Visits) -> bytes:
    """Digest of what a group holds: a journal is of one state of the data."""
    h = hashlib.blake2b(digest_size=16)
    for x in (
        visits.site,
        visits.month,
        visits.count,
        visits.detected,
        visits.observer,
        visits.effort,
        visits.weight,
    ):
        h.update(np.ascontiguousarray(x).tobytes())
    for texts in (visits.site_id, visits.region, visits.checklist):
        h.update(b"\0".join(str(t).encode() for t in texts) if texts is not None else b"-")
    return h.digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One exchange of a journal: when this organisation's frame was ready, its size, and the sizes of the others' frames."""

    exchange: int
    time: float
    bytes_up: int
    bytes_down: int


def entries(journal: Journal) -> Iterator[Entry]:
    """Exchanges of a journal that are over."""
    when, size = 0.0, 0
    for kind, body in journal.records():
        if kind == _MINE:
            when, _, size, _ = _ENTRY.unpack(body)
        elif kind == _ALL:
            exchange, frames, _ = unpacked(body)
            yield Entry(exchange, when, size, sum(map(len, frames.values())))


class Member:
    """The transport of one organisation's own copy of a job.

    Parameters
    ----------
    program : answers from the organisation's records; its ``settings`` are those of the job
    party : the organisation among the others; as :class:`Masks` its sums are masked, as plain :class:`Party` they are not
    journal : the job's journal: a file, or one that is open for reading
    gather : carries the frames; None to go through the journal again and no further
    exchanges : most exchanges of the job
    look : called with questions and answers, before masks, before they go; raises to keep them back

    Raises
    ------
    ConfigError    the journal is of another job, version or state of the data
    """

    def __init__(
        self,
        program: GroupProgram,
        party: Party,
        journal: Path | Journal,
        gather: Gather | None,
        *,
        exchanges: int = 100_000,
        look: Look | None = None,
    ) -> None:
        self.program, self.party, self.gather, self.look = program, party, gather, look
        self.names: Sequence[str] = tuple(sorted(party.roster))
        self.most = exchanges
        self.travelled: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.exchange = 0  # of the next frame: the first one is that of keys
        self.replayed = 0
        self.key = b""
        self.transcript = self._bound = hashlib.blake2b(b"fedmiss " + party.context, digest_size=32).digest()
        self.questions: list[msg.Message] = []
        self.answers: list[msg.Answer] = []  # of the last exchange, before masks
        program.protect, program.party = self._protect, party
        self.journal = journal if isinstance(journal, Journal) else Journal(journal)
        try:
            self._kept = self._read()
            self._agree()
        except BaseException:
            self.journal.close()  # a refusal must not keep the journal's lock
            raise

    # -- the job asks ----------------------------------------------------------------------------------------

    def ask(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Answer what this copy of the job asks, and return the answers of all."""
        name = self.program.name
        if self.exchange > self.most:
            raise ConfigError(
                f"the job of {name!r} asks for exchange {self.exchange} (the approved study allows {self.most}). Ask "
                "the others to approve a revision with more, if the model needs them."
            )
        _, self.questions = decode(frames[name], None, asks=True, who="the job")
        mine = outline_of(self.questions)
        bound = self.transcript + mine.exact + ",".join(mine.kinds).encode()
        self._bound = hashlib.blake2b(bound, digest_size=32).digest()
        answer = self.program.answer(frames[name])
        if refuses(answer):
            raise self.program.refusal or EngineError(f"{name!r} cannot answer exchange {self.exchange}.")
        body = self.transcript + mine.as_bytes() + answer
        got = self._exchanged(body)
        theirs = {other: self._opened(other, raw) for other, raw in got.items() if other != name}
        self._compare(mine, {other: (seen, outline) for other, (seen, outline, _) in theirs.items()})
        replies = {other: raw for other, (_, _, raw) in theirs.items()} | {name: answer}
        self._advance(got)
        return {n: replies[n] for n in self.names}

    def _compare(self, mine: Outline, theirs: Mapping[str, tuple[bytes, Outline]]) -> None:
        """Raise unless all have seen the same frames, and ask the same."""
        name, at = self.program.name, f"exchange {self.exchange}"
        other = [n for n, (seen, _) in theirs.items() if seen != self.transcript]
        if other:
            raise EngineError(
                f"{at}: {', '.join(other)} and {name} have seen different frames before it. Somebody sent two frames under "
                "one number, or a kit was copied. Nothing of this exchange was used; begin a new revision of the study.",
                groups=other,
            )
        apart = {n: words for n, (_, outline) in theirs.items() if (words := mine.differs(outline))}
        if not apart:
            return
        first = next(iter(apart))
        who = (
            f"the copy of {name}"
            if len(apart) > len(theirs) / 2 and len(theirs) > 1
            else f"the copy of {first}"
        )
        raise EngineError(
            f"{at}: {who} of the job asks something else than the others' ({first} here: {apart[first]}). Nothing of this "
            f"exchange was used. Compare versions of fedmiss and numpy at {', '.join([name, *apart])}; then begin a new "
            "revision of the study.",
            groups=list(apart),
        )

    def _protect(self, answers: list[msg.Answer], envelope: Envelope) -> list[msg.Answer]:
        self.answers = answers
        if self.look is not None and not self._replaying:
            self.look(self.exchange, self.questions, answers)
        for a in answers:
            _finite(a, self.program.name)
        if not isinstance(self.party, Masks):
            return list(answers)
        return self.party.hide(answers, self.exchange, self._bound)

    # -- frames ----------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """The first frame: versions must be equal, and the first organisation by name hands out the key of frames."""
        party, name = self.party, self.program.name
        first = self.names[0]
        sealed = {}
        if name == first:
            self.key = party.common_key()
            sealed = {n: party.seal(n, self.key).hex() for n in self.names if n != name}
        body = json.dumps({"version": __version__, "protocol": msg.PROTOCOL, "sealed": sealed}).encode()
        got = self._exchanged(body)
        for other, raw in got.items():
            if other == name:
                continue
            try:
                said = parse_json(self._verified(other, raw).decode())
                version, keys = str(said["version"]), dict(said["sealed"])
                if version == __version__ and other == first:
                    self.key = party.unseal(other, bytes.fromhex(str(keys[name])))
            except (ValueError, KeyError, TypeError):
                raise self._strange(other) from None
            if version != __version__:
                raise ConfigError(
                    f"{other} runs fedmiss {version}, {name} {__version__}. Install the same version everywhere."
                )
        self._advance(got)

    def _exchanged(self, body: bytes) -> dict[str, bytes]:
        """Sign and encrypt; write it down; show it to all; write down what came."""
        name, number = self.program.name, self.exchange
        raw = self.party.sign(self._label(name), self._cipher(name, body))
        digest = hashlib.blake2b(raw, digest_size=16).digest()
        kept = self._kept.pop(0) if self._kept else None
        if kept is None:
            self.journal_open()
            self.journal.append((_MINE, _ENTRY.pack(time.time(), number, len(raw), digest)))
        elif kept[0] != digest:
            raise EngineError(
                f"{name!r} does not give the same answer to exchange {number} as before its restart. Another "
                "processor or another version of a library? Begin a new revision of the study."
            )
        if self.gather is not None:
            self.gather.restore(number, raw)
        if kept is not None and kept[1] is not None:
            others = unpacked(kept[1])[1]
            self.replayed += 1
        else:
            self.journal_open()
            assert self.gather is not None
            got = self.gather.all_of(number, raw)
            others = {n: got[n] for n in self.names if n != name}
            for other, frame in others.items():
                self._verified(other, frame)  # what is written down is genuine
            self.journal.append((_ALL, packed(number, others)))
        self.travelled = (
            {n: len(others.get(n, raw)) for n in self.names},
            {
                n: sum(len(f) for o, f in others.items() if o != n) + (len(raw) if n != name else 0)
                for n in self.names
            },
        )
        return {**others, name: raw}

    def journal_open(self) -> None:
        """Raise at the end of a journal that is only read."""
        if self.gather is None:
            raise Ended(f"the journal of {self.program.name!r} ends at exchange {self.exchange}.")

    def _advance(self, got: Mapping[str, bytes]) -> None:
        h = hashlib.blake2b(self.transcript, digest_size=32)
        for name in self.names:
            h.update(hashlib.blake2b(got[name]).digest())
        self.transcript = h.digest()
        self.exchange += 1

    def _label(self, name: str) -> bytes:
        return frame_label(self.party.context, name, self.exchange)

    def _cipher(self, name: str, body: bytes) -> bytes:
        return body if self.exchange == _KEYS else self.party.lock(self.key, self._label(name), body)

    def _verified(self, name: str, raw: bytes) -> bytes:
        """What an organisation has signed, still encrypted."""
        if len(raw) > MOST_BYTES:
            raise UplinkError(
                f"{name} sent {len(raw):,} bytes (limit {MOST_BYTES:,}). Is this its fedmiss?", group=name
            )
        return self.party.verified(name, self._label(name), raw)

    def _opened(self, name: str, raw: bytes) -> tuple[bytes, Outline, bytes]:
        """Of an organisation's frame: the digest of the frames it has seen, its outline, its answers."""
        try:
            body = self.party.unlock(self.key, self._label(name), self._verified(name, raw))
            if len(body) < 32:
                raise ValueError("cut")
            outline, answer = Outline.read(body[32:])
            return body[:32], outline, answer
        except ValueError:
            raise self._strange(name) from None

    def _strange(self, name: str) -> UplinkError:
        return UplinkError(
            f"{name} signed a frame of exchange {self.exchange} that cannot be read. Install the same fedmiss everywhere, "
            "and begin a new revision of the study.",
            group=name,
        )

    # -- restarting ------------------------------------------------------------------------------------------

    @property
    def _replaying(self) -> bool:
        return bool(self._kept)

    def _read(self) -> list[tuple[bytes, bytes | None]]:
        """Of every exchange in the journal the digest of the own frame, and the others' frames where they had come."""
        name = self.program.name
        start = b"\0".join([self.party.context, digest_of(self.program.held), __version__.encode()])
        kept: list[tuple[bytes, bytes | None]] = []
        begun = False
        for kind, body in self.journal.records():
            if not begun and (kind != _START or body != start):
                raise ConfigError(
                    f"{self.journal.path} is the journal of another job, of another version of fedmiss, or of other data "
                    f"of {name!r}. A job goes on with the data that it was begun with; else begin a new revision."
                )
            begun = True
            if kind == _MINE:
                kept.append((_ENTRY.unpack(body)[3], None))
            elif kind == _ALL:
                kept[-1] = (kept[-1][0], body)
        if not begun:
            self.journal_open()
            self.journal.append((_START, start))
        return kept

    def close(self) -> None:
        """Let go of the journal."""
        self.journal.close()


def _finite(answer: msg.Answer, name: str) -> None:
    """Masks would hide that a number is not finite: the organisation looks itself."""
    for field in type(answer).__dataclass_fields__:
        value = getattr(answer, field)
        if isinstance(value, float | np.ndarray) and not np.isfinite(np.asarray(value, dtype=float)).all():
            raise UplinkError(
                f"{name!r} would have sent a number that is not finite in "
                f"{type(answer).__name__}.{field}. {msg.why_not_finite(type(answer))}."
            )
