"""A group's program as it runs at an organisation: journaled, for one approved job only, with masks.

It wraps :class:`GroupProgram`, which answers, in the guarantees that organisations need:

- only frames of the approved job, in the order of their exchanges, and none above a size; every question as the study has it
  (``guard``); anything else is refused and leaves no trace in the job;
- masks are bound to all questions so far, as they were received: of organisations that were asked different things the hub
  adds up noise;
- question and digest of the answer are on the disk before the answer goes. A restart answers the journal's questions
  again, which brings the program to where it was; the same question gets the same bytes. So two messages never go out
  under one mask;
- what goes out can be read before it goes (``look``), and after (:func:`told_journal`).
"""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedmiss.errors import ConfigError, EngineError, FedmissError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import HEADER, Envelope, decode, encode, refuses
from fedmiss.federation.group.guard import QuestionGuard
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.journal import Journal
from fedmiss.federation.masks import Masks, Party
from fedmiss.version import __version__

__all__ = ["MOST_BYTES", "Entry", "SiteProgram", "digest_of", "entries"]

MOST_BYTES = 1 << 28
_START, _DONE = 1, 2  # kinds of records
_ENTRY = struct.Struct("<dQ16s")  # time, bytes of the answer, its digest


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


class Entry:
    """One exchange in a site's journal: when, the question's frame, size and digest of the answer."""

    __slots__ = ("bytes_up", "digest", "question", "time")

    def __init__(self, body: bytes) -> None:
        self.time, self.bytes_up, self.digest = _ENTRY.unpack_from(body)
        self.question = body[_ENTRY.size :]


def entries(journal: Journal) -> Iterator[Entry]:
    """Exchanges of a site's journal."""
    for kind, body in journal.records():
        if kind == _DONE:
            yield Entry(body)


# each group has its own copy of these: its sealed key, places among its own hashes
_OWN = (msg.OpenKey, msg.Shared, msg.Drop)


def transcript_of(before: bytes, frame: bytes, envelope: Envelope, questions: Sequence[msg.Message]) -> bytes:
    """Digest of all questions up to a frame: the same at all groups that were asked the same."""
    if any(isinstance(q, _OWN) for q in questions):
        common = [q for q in questions if not isinstance(q, _OWN)]
        kinds = ",".join(type(q).__name__ for q in questions).encode()
        frame = kinds + b"\0" + encode(common, envelope)
    return hashlib.blake2b(before + hashlib.blake2b(frame).digest(), digest_size=32).digest()


class SiteProgram:
    """Answers the hub of one approved job, and no other.

    Parameters
    ----------
    program : the group's program; its ``settings`` are those of the job
    job : hash of the approved job (32 bytes); frames carry its first eight
    journal : the job's journal; opened anew, its exchanges are answered again
    party : the group among the others; as :class:`Masks` its sums are masked, as plain :class:`Party` they are not
    look : called with questions and answers, before masks, before they go; raises to keep them back
    guard : compares every question with the approved study
    refused : called with the reason of every refusal: the group's own screen and log

    Raises
    ------
    ConfigError    the journal is of another job or version, or the data have changed since it was begun
    """

    def __init__(
        self,
        program: GroupProgram,
        job: bytes,
        journal: Path,
        *,
        party: Party | None = None,
        look: Callable[[int, list[msg.Message], list[msg.Answer]], None] | None = None,
        guard: QuestionGuard | None = None,
        refused: Callable[[Exception], None] | None = None,
    ) -> None:
        # many parameters: what the custodian approved, and whom the program tells
        self.program, self.job, self.look = program, job, look
        self.masks = party if isinstance(party, Masks) else None
        program.protect, program.party = self._protect, party
        self.guard, self.refused = guard, refused
        self.transcript = self._bound = (
            b""  # digest of the questions that were answered; with those that are being answered
        )
        self._busy = threading.Lock()
        self.exchange = -1  # the last one answered
        self._frame, self._answer = b"", b""
        self._replaying = True
        self._asked: list[msg.Message] = []
        self.journal = Journal(journal)
        try:
            self._replay()
        except BaseException:
            self.journal.close()  # a refusal must not keep the journal's lock
            raise
        self._replaying = False

    # -- answering -------------------------------------------------------------------------------------------

    def answer(self, frame: bytes) -> bytes:
        """Answer one frame; what cannot be answered is refused by a code."""
        with self._busy:
            try:
                admitted = self._admit(frame)
                if admitted is None:
                    return self._answer
                envelope, questions = admitted
                self._asked = questions
                guard = self.guard and self.guard.after(questions)
                self._bound = transcript_of(self.transcript, frame, envelope, questions)
                out = self.program.answer(frame)
                if refuses(out):  # the reason may go away with a restart: it is no part of the job
                    if self.refused is not None and self.program.refusal is not None:
                        self.refused(self.program.refusal)
                    return out
                entry = _ENTRY.pack(time.time(), len(out), hashlib.blake2b(out, digest_size=16).digest())
                self.journal.append((_DONE, entry + frame))
            except FedmissError as error:
                self.program.refusal = error
                if self.refused is not None:
                    self.refused(error)
                code = type(error).__name__
                at = Envelope(
                    self.job[:8], frame[12:20] if len(frame) >= HEADER else bytes(8), self._number(frame)
                )
                return encode(
                    [msg.Refusal(code, f"{code}; the reason stands on the group's own screen.")], at
                )
            self.exchange, self._frame, self._answer = envelope.exchange, frame, out
            self.guard, self.transcript = guard, self._bound
            return out

    @staticmethod
    def _number(frame: bytes) -> int:
        return struct.unpack_from("<I", frame, 20)[0] if len(frame) >= HEADER else 0

    def _admit(self, frame: bytes) -> tuple[Envelope, list[msg.Message]] | None:
        """Envelope and questions of a frame that is next; None for the last one again; everything else raises."""
        name = self.program.name
        if len(frame) > MOST_BYTES:
            raise UplinkError(
                f"a question of {len(frame):,} bytes came to {name!r} (limit {MOST_BYTES:,}). Is this the hub?"
            )
        if self.exchange >= 0 and frame == self._frame:
            return None
        envelope, questions = decode(frame, None, asks=True, who="the hub")
        if envelope.job != self.job[:8]:
            raise UplinkError(
                f"a question of job {envelope.job.hex()} came to {name!r}, whose custodian approved {self.job[:8].hex()}. "
                "Approve that job first, or stop it."
            )
        if envelope.settings != self.program.settings:
            raise ConfigError(
                f"the hub's settings have the digest {envelope.settings.hex()}, {name!r} approved "
                "others. Give all sides the "
                "same study."
            )
        if envelope.exchange != self.exchange + 1:
            raise UplinkError(
                f"{name!r} has answered exchange {self.exchange} of this job; another question of "
                f"exchange {envelope.exchange} "
                "is not answered: each exchange is answered once, to the same roster, in order."
            )
        return envelope, questions

    def _protect(self, answers: list[msg.Answer], envelope: Envelope) -> list[msg.Answer]:
        if self.look is not None and not self._replaying:
            self.look(envelope.exchange, self._asked, answers)
        for a in answers:
            _finite(a, self.program.name)
        return (
            list(answers) if self.masks is None else self.masks.hide(answers, envelope.exchange, self._bound)
        )

    # -- restarting ------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        name = self.program.name
        start = b"\0".join([self.job, digest_of(self.program.held), __version__.encode()])
        first = True
        for kind, body in self.journal.records():
            if first:
                if kind != _START or body != start:
                    raise ConfigError(
                        f"{self.journal.path} is the journal of another job, of another version of "
                        "fedmiss, or of other data "
                        f"of {name!r}. A job goes on with the data that it was begun with; else begin a new revision."
                    )
                first = False
                continue
            entry = Entry(body)
            envelope, questions = decode(entry.question, None, asks=True, who="the hub")
            self.guard = self.guard and self.guard.after(questions)
            self._bound = transcript_of(self.transcript, entry.question, envelope, questions)
            out = self.program.answer(entry.question)
            if hashlib.blake2b(out, digest_size=16).digest() != entry.digest:
                raise EngineError(
                    f"{name!r} does not give the same answer to exchange {self.exchange + 1} as before its restart. Another "
                    "processor or another version of a library? Begin a new revision of the study."
                )
            self.exchange, self._frame, self._answer = self.exchange + 1, entry.question, out
            self.transcript = self._bound
        if first:
            self.journal.append((_START, start))

    def close(self) -> None:
        """Let go of the journal."""
        self.journal.close()


def _finite(answer: msg.Answer, name: str) -> None:
    """Masks would hide from the hub that a number is not finite: the group looks itself."""
    for field in type(answer).__dataclass_fields__:
        value = getattr(answer, field)
        if isinstance(value, float | np.ndarray) and not np.isfinite(np.asarray(value, dtype=float)).all():
            raise UplinkError(
                f"{name!r} would have sent a number that is not finite in "
                f"{type(answer).__name__}.{field}. {msg.why_not_finite(type(answer))}."
            )
