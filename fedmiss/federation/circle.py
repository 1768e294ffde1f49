"""An organisation among the others of a study: what it shows them, what it takes from them, and its journal.

Nobody sends questions. Each organisation runs the same job; what its own copy asks it answers from its own records, masks,
signs, and shows to the others (:mod:`.gather`). From everybody's answers all copies compute the same sums, and so the same
next question. So nobody must be trusted with questions, and these things hold:

- a frame is signed by its organisation and encrypted for the roster: what carries it learns sizes and times;
- masks are bound to the job, the roster, the exchange, the outline of the question (:mod:`.outline`), and a digest of all
  frames so far: where organisations have seen different frames, or ask different things, nothing can be added up, and the
  next comparison says who differs;
- an answer's digest is on the disk before the answer goes, and everybody's frames before they are used. A restart runs
  the job again from there. So two messages never go out under one mask. The first frame commits to what an organisation
  answers from: a kit that was put back from before the job, and is given other data, has other masks too;
- where the study has agreed on it, a round goes on without a cohort whose member is away (:mod:`.attendance`).
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError, EngineError, UplinkError, shown
from fedmiss.federation.attendance import Absence, Attendance
from fedmiss.federation.gather import Gather, packed, unpacked
from fedmiss.federation.journal import Journal
from fedmiss.federation.masks import U64, Masks, Party, fixed
from fedmiss.federation.messages import PROTOCOL
from fedmiss.federation.outline import Outline, outline_of
from fedmiss.parsing import parse_json
from fedmiss.version import __version__

MOST_BYTES = 1 << 28
_START, _MINE, _ALL, _HERE = 1, 2, 3, 4  # kinds of records
_ENTRY = struct.Struct("<dIQ16s")  # time, exchange, bytes of the frame, its digest
_KEYS = 0  # the number of the first frame: version, and the common key, sealed for each of the others


class Ended(EngineError):
    """The journal has no more exchanges."""


def frame_label(job: bytes, name: str, exchange: int) -> bytes:
    """What a signature is for: job, organisation and exchange."""
    return b"\0".join([b"fedmiss frame", job, name.encode(), str(exchange).encode()])


@dataclass(frozen=True, slots=True)
class Entry:
    """One exchange of a journal: when this organisation's frame was ready, its size, and the sizes of the others' frames."""

    exchange: int
    time: float
    bytes_up: int
    bytes_down: int


def entries(journal: Journal) -> Iterator[Entry]:
    """Exchanges of a journal; of one that waits for the others' frames the last."""
    waiting: Entry | None = None
    for kind, body in journal.records():
        if kind == _MINE:
            when, exchange, size, _ = _ENTRY.unpack(body)
            waiting = Entry(exchange, when, size, 0)
        elif kind == _ALL and waiting is not None:
            yield replace(waiting, bytes_down=sum(map(len, unpacked(body)[1].values())))
            waiting = None
    if waiting is not None:
        yield waiting


class Circle:
    """One organisation's place in a study.

    Parameters
    ----------
    party : the organisation and its keys, among the others; as :class:`Masks` its sums are masked
    journal : the job's journal: a file, or one that is open for reading
    gather : carries the frames; None to go through the journal again and no further
    held : digest of what is answered from, which nobody can guess: a journal is of one state of it
    exchanges : most exchanges of the job
    watch : called with the number of every exchange that is over
    absence : the rule by which rounds go on without some; None to wait for everybody

    Raises
    ------
    ConfigError    the journal is of another job, version or state of the data; another organisation has another version
    """

    def __init__(
        self,
        party: Party,
        journal: Path | Journal,
        gather: Gather | None,
        held: bytes = b"",
        *,
        exchanges: int = 100_000,
        watch: Callable[[int], None] = lambda exchange: None,
        absence: Absence | None = None,
    ) -> None:
        self.watch = watch
        self.party, self.gather, self.held, self.most = party, gather, held, exchanges
        self.name, self.names = party.name, tuple(sorted(party.roster))
        # bytes from each, and to each, at last
        self.travelled: tuple[dict[str, int], dict[str, int]] = {}, {}
        self.exchange = 0  # of the next frame: the first one is that of keys
        self.absence = absence if absence is not None and len(absence.cohorts) > 1 else None
        self.cohorts = self.absence.cohorts if self.absence else (self.names,)
        self.left_out = dict.fromkeys(self.names, 0)  # rounds that went on without each
        self._said: dict[int, bytes] = {}  # by exchange who was there, where this organisation says so
        self.replayed, self.key = 0, b""
        self.transcript = hashlib.blake2b(b"fedmiss " + party.context, digest_size=32).digest()
        self._mine = outline_of([])
        self.journal = journal if isinstance(journal, Journal) else Journal(journal)
        try:
            self._kept = self._read()
            self._agree()
        except BaseException:
            self.journal.close()  # a refusal must not keep the journal's lock
            raise

    # -- one exchange ----------------------------------------------------------------------------------------

    def begin(self, asks: Sequence[Any], also: str = "") -> bytes:
        """Begin an exchange about what the own copy of the job asks, as dataclasses; return what masks are bound to.

        ``also`` are words without a comma that must be equal at all.
        """
        if self.exchange > self.most:
            raise ConfigError(
                f"the job of {self.name!r} asks for exchange {self.exchange} (the approved study allows {self.most}). Ask "
                "the proposer for a new study with more (exchanges in study.toml), if it needs them."
            )
        mine = outline_of(asks)
        self._mine = replace(mine, kinds=(*mine.kinds, also)) if also else mine
        bound = self.transcript + self._mine.exact + ",".join(self._mine.kinds).encode()
        return hashlib.blake2b(bound, digest_size=32).digest()

    def share(self, answer: bytes, *, all_needed: bool = True) -> dict[str, bytes]:
        """Show the answer to what was begun; return the answers of all, by name.

        Where not all are needed, and the study says so, those of the cohorts that are there: perhaps not the own one.

        Raises
        ------
        EngineError    another organisation has seen other frames, or asks something else
        UplinkError    a frame cannot be read, or is not signed by its organisation
        """
        chair = None if all_needed or self.absence is None else self.absence.chair
        head = self.transcript + self._mine.as_bytes()
        said, have = self._attendance() if chair == self.name else (b"", {})
        got = self._exchanged(head + said + answer, chair, have)
        theirs = {other: self._opened(other, raw) for other, raw in got.items() if other != self.name}
        self._compare(self._mine, {other: (seen, outline) for other, (seen, outline, _) in theirs.items()})
        replies = {other: raw for other, (_, _, raw) in theirs.items()} | {self.name: said + answer}
        here = self.names
        if chair is not None:
            attendance, replies[chair] = Attendance.read(replies[chair])
            here = tuple(sorted(attendance.frames))
            for name in set(self.names) - set(here):
                self.left_out[name] += 1
        self._advance(got)
        return {n: replies[n] for n in here}

    def add_up(self, asks: Sequence[Any], x: F64, bits: int = 32) -> F64:
        """The sum over all organisations of arrays of one shape: all that any of them learns, where there are masks.

        ``bits`` binary digits after the point are kept.
        """
        return self._added(asks, x, bits, (self.names,), all_needed=True)[self.names]

    def add_up_here(self, asks: Sequence[Any], x: F64, bits: int = 32) -> dict[tuple[str, ...], F64]:
        """Sums over the cohorts that are there, by the names of their members; with one cohort it is :meth:`add_up`."""
        return self._added(asks, x, bits, self.cohorts, all_needed=False)

    def _added(
        self, asks: Sequence[Any], x: F64, bits: int, cohorts: Sequence[tuple[str, ...]], *, all_needed: bool
    ) -> dict[tuple[str, ...], F64]:
        x = np.asanyarray(x)
        if x.dtype.kind not in "biuf" or np.ma.is_masked(x):
            what = "numbers that are masked out" if np.ma.is_masked(x) else str(x.dtype)
            raise ConfigError(
                f"exchange {self.exchange}: {self.name!r} adds up {what}; only real numbers are added up. Nothing was sent. "
                "Give 0 for what takes no part, and the parts of complex numbers one by one."
            )
        bound = self.begin(
            asks, f"a sum of {'x'.join(map(str, x.shape)) or 1} numbers to {bits} binary digits"
        )
        whole = fixed(x, bits, len(self.names), f"what {self.name!r} adds up")
        if isinstance(self.party, Masks):
            among = next(c for c in cohorts if self.name in c)
            whole = whole + self.party.stream(self.exchange, whole.size, bound, among).reshape(whole.shape)
        replies = self.share(np.ascontiguousarray(whole).tobytes(), all_needed=all_needed)
        for name, raw in replies.items():
            if len(raw) != 8 * whole.size:
                raise UplinkError(
                    f"{name} sent {len(raw) // 8} numbers to a sum of {whole.size}. Give all sides the same settings.",
                    group=name,
                )
        out: dict[tuple[str, ...], F64] = {}
        for cohort in (c for c in cohorts if c[0] in replies):
            total: U64 = np.sum(
                [np.frombuffer(replies[n], np.uint64) for n in cohort], axis=0, dtype=np.uint64
            )
            out[cohort] = total.view(np.int64).astype(np.float64).reshape(whole.shape) * 2.0**-bits
        return out

    def _compare(self, mine: Outline, theirs: Mapping[str, tuple[bytes, Outline]]) -> None:
        """Raise unless all have seen the same frames, and ask the same."""
        name, at = self.name, f"exchange {self.exchange}"
        if other := [n for n, (seen, _) in theirs.items() if seen != self.transcript]:
            raise EngineError(
                f"{at}: {', '.join(other)} and {name} have seen different frames before it. Somebody sent two frames under "
                "one number, or a kit was copied. Nothing of this exchange was used; begin a new revision of the study.",
                groups=other,
            )
        apart = {n: words for n, (_, outline) in theirs.items() if (words := mine.differs(outline))}
        if not apart:
            return
        first = next(iter(apart))
        odd = name if len(apart) > len(theirs) / 2 and len(theirs) > 1 else first
        raise EngineError(
            f"{at}: the copy of {odd} of the job asks something else than the others' ({first} here: {apart[first]}). "
            "Nothing of this exchange was used. Compare versions of fedmiss, numpy and the study's own package, whose "
            f"settings may not follow from own data, at {', '.join([name, *apart])}; then begin a new revision of the "
            "study.",
            groups=list(apart),
        )

    # -- frames ----------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """The first frame: versions must be equal, and the first organisation by name hands out the key of frames.

        What each answers from is bound to all masks by it, without being told.
        """
        party, name, first, sealed = self.party, self.name, self.names[0], {}
        if name == first:
            self.key = party.common_key()
            sealed = {n: party.seal(n, self.key).hex() for n in self.names if n != name}
        held = hashlib.blake2b(self.held + party.context, digest_size=16).hexdigest()
        # Else the first one could hand out two keys, and others would be blamed for frames that cannot be read.
        key = self._key_digest()
        body = {"version": __version__, "protocol": PROTOCOL, "held": held, "sealed": sealed, "key": key}
        got = self._exchanged(json.dumps(body).encode())
        for other, raw in got.items():
            if other == name:
                continue
            try:
                said = parse_json(self._verified(other, raw).decode())
                version, keys = str(said["version"]), dict(said["sealed"])
                if version == __version__ and other == first:
                    self.key = party.unseal(other, bytes.fromhex(str(keys[name])))
                    if said["key"] != self._key_digest():
                        raise ValueError("another key than it has shown to all")
            except (ValueError, KeyError, TypeError):
                raise self._strange(other) from None
            if version != __version__:
                raise ConfigError(
                    f"{other} runs fedmiss {shown(version)}, {name} {__version__}. Install the same version everywhere."
                )
        self._advance(got)

    def _key_digest(self) -> str:
        """What shows that all have the same common key, and tells nothing of it: it is drawn from 128 bits."""
        return hashlib.blake2b(b"common key" + self.key + self.party.context, digest_size=16).hexdigest()

    def _attendance(self) -> tuple[bytes, dict[str, bytes]]:
        """Who is there in this exchange, as this organisation says to the others, and the frames that it has seen of them.

        It is said once, also after a restart; then no frames are here yet.
        """
        number, absence = self.exchange, self.absence
        got: dict[str, bytes] = {}
        assert absence is not None
        if number not in self._said:
            self.journal_open()
            assert self.gather is not None
            got = self.gather.some_of(number, {}, absence.waiting(self.gather, number))
            said = Attendance.of(got, absence)
            self.journal.append((_HERE, packed(number, {"": said.as_bytes()})))
            self._said[number] = said.as_bytes()
        return self._said[number], got

    def _there(self, chair: str | None, frames: Mapping[str, bytes]) -> frozenset[str]:
        """Whose frames count, as the chair says, all without one; the chair alone while its frame is missing.

        Raises
        ------
        EngineError    the chair has seen another frame of somebody than lies here
        """
        if chair is None:
            return frozenset(self.names)
        if chair not in frames:
            return frozenset({chair})
        assert self.absence is not None
        raw = self._opened(chair, frames[chair])[2]
        try:
            said, _ = Attendance.read(raw)
            if not said.holds(self.absence):
                raise ValueError("other names than of whole cohorts, or too few")
        except ValueError:
            raise self._strange(chair) from None
        for name, digest in said.frames.items():
            if name in frames and name != chair and Attendance.digest(frames[name]) != digest:
                raise EngineError(
                    f"exchange {self.exchange}: {chair} and {self.name} have seen different frames of {name}. Its kit was "
                    "copied, or its journal was lost. Ask it; then begin a new revision of the study.",
                    groups=[name],
                )
        return frozenset({*said.frames, chair})

    def _exchanged(
        self, body: bytes, chair: str | None = None, have: Mapping[str, bytes] = MappingProxyType({})
    ) -> dict[str, bytes]:
        """Sign and encrypt; write it down; show it to all; write down what came.

        ``chair`` says whose frames count, None for those of all; ``have`` are frames of others that came already.
        """
        name, number = self.name, self.exchange
        label = self._label(name)
        raw = self.party.sign(label, body if number == _KEYS else self.party.lock(self.key, label, body))
        if len(raw) > MOST_BYTES:  # the others would pass it over
            raise ConfigError(
                f"the frame of {name!r} for exchange {number} has {len(raw):,} bytes (limit {MOST_BYTES:,}). Ask the "
                "proposer for a new study about fewer months or regions, or of a lower rank."
            )
        digest = hashlib.blake2b(raw, digest_size=16).digest()
        kept = self._kept.pop(0) if self._kept else None
        if kept is None:
            self.journal_open()
            self.journal.append((_MINE, _ENTRY.pack(time.time(), number, len(raw), digest)))
        elif kept[0] != digest:
            raise EngineError(
                f"{name!r} does not give the same answer to exchange {number} as before its restart. Another "
                "processor, another version of a library, or a function of the study's own that was changed or draws "
                "without a seed? Begin a new revision of the study."
            )
        if self.gather is not None:
            self.gather.restore(number, raw)
        if kept is not None and kept[1] is not None:
            others = unpacked(kept[1])[1]
            self.replayed += 1
        else:
            self.journal_open()
            assert self.gather is not None
            got = self.gather.some_of(number, {**have, name: raw}, lambda got: self._there(chair, got))
            others = {n: got[n] for n in self.names if n != name and n in got}
            if lacking := self._there(chair, {**others, name: raw}) - {*others, name}:
                raise EngineError(  # else the journal would hold an exchange that nobody can go through
                    f"exchange {number}: what carries the frames brought none of {', '.join(sorted(lacking))}. Ask who runs "
                    "it, and join again: the job goes on.",
                    groups=sorted(lacking),
                )
            for other, frame in others.items():
                self._verified(other, frame)  # what is written down is genuine
            self.journal.append((_ALL, packed(number, others)))
        got = {**others, name: raw}
        self.travelled = (
            {n: len(got.get(n, b"")) for n in self.names},
            {n: sum(len(f) for o, f in got.items() if o != n) for n in self.names},
        )
        return {n: got[n] for n in self._there(chair, got)}

    def journal_open(self) -> None:
        """Raise at the end of a journal that is only read."""
        if self.gather is None:
            raise Ended(f"the journal of {self.name!r} ends at exchange {self.exchange}.")

    def _advance(self, got: Mapping[str, bytes]) -> None:
        h = hashlib.blake2b(self.transcript, digest_size=32)
        for name in self.names:
            h.update(hashlib.blake2b(got.get(name, b"")).digest())
        self.transcript = h.digest()
        self.exchange += 1
        self.watch(self.exchange)

    def _label(self, name: str) -> bytes:
        return frame_label(self.party.context, name, self.exchange)

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
    def replaying(self) -> bool:
        """Whether the next frame is in the journal already."""
        return bool(self._kept)

    def _read(self) -> list[tuple[bytes, bytes | None]]:
        """Of every exchange in the journal the digest of the own frame, and the others' frames where they had come."""
        name = self.name
        start = b"\0".join([self.party.context, self.held, __version__.encode()])
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
            elif kind == _HERE:
                exchange, said, _ = unpacked(body)
                self._said[exchange] = said[""]
        if not begun:
            self.journal_open()
            self.journal.append((_START, start))
        return kept

    def close(self) -> None:
        """Let go of the journal."""
        self.journal.close()
