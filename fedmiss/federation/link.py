"""The hub's end of the wire: one exchange at a time, checked, summed over groups, and written into the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from fedmiss.errors import ConfigError, DomainError, EngineError, FedmissError, InputError, UplinkError, shown
from fedmiss.federation.codec import Envelope, decode, encode
from fedmiss.federation.ledger import Ledger
from fedmiss.federation.masks import combined, masked_fields
from fedmiss.federation.messages import ANSWERS, Answer, Months, Question, Refusal, why_not_finite


class Responder(Protocol):
    """A group's program, seen from outside: bytes in, bytes out."""

    def answer(self, frame: bytes) -> bytes:
        """Answer one frame of questions."""


class Transport(Protocol):
    """A machine that carries frames. It knows nothing of what is in them."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the groups, sorted."""

    def ask(self, frame: bytes) -> dict[str, bytes]:
        """Carry a frame to every group and bring the answers back; a group that is missing has none."""


class InProcess:
    """All groups in this process: the default engine. It carries the bytes that a network would carry."""

    def __init__(self, programs: Mapping[str, Responder]) -> None:
        self.programs = {name: programs[name] for name in sorted(programs)}
        self.names: Sequence[str] = tuple(self.programs)

    def ask(self, frame: bytes) -> dict[str, bytes]:
        """Ask one group after the other."""
        return {name: program.answer(frame) for name, program in self.programs.items()}


class Link:
    """Asks questions of all groups and returns their answers in the order of the groups' names.

    Parameters
    ----------
    transport : carries the bytes
    job, settings : 8 bytes each, in every frame
    watch : called after every exchange with (stage, exchanges so far)
    masked : whether groups mask their sums: then answers that are sums come back as one, of all groups together
    """

    def __init__(
        self,
        transport: Transport,
        job: bytes,
        settings: bytes,
        watch: Callable[[str, int], None] | None = None,
        *,
        masked: bool = False,
    ) -> None:
        self.masked = masked
        self.transport, self.job, self.settings, self.watch = transport, job, settings, watch
        self.names = tuple(transport.names)
        self.ledger = Ledger()
        # what was asked of the visits on the agreed axes, by question
        self.known: dict[tuple[object, ...], Any] = {}
        self.exchange = 0
        self.stage = "agree"

    def ask(self, questions: Sequence[Question]) -> list[dict[str, Answer]]:
        """One exchange: the same questions to all groups.

        Returns
        -------
        for every question the answers by group, groups in the order of their names; under masks sums are one answer

        Raises
        ------
        EngineError    a group is missing, or refuses
        UplinkError    an answer is damaged, not finite, of another kind or from another exchange; it names the group
        """
        exchange = self.exchange
        envelope = Envelope(self.job, self.settings, exchange)
        frame = encode(questions, envelope)
        replies = self.transport.ask(frame)
        down = dict.fromkeys(self.names, len(frame))
        up = {name: len(replies.get(name, b"")) for name in self.names}
        up, down = getattr(self.transport, "travelled", (up, down))  # a study's questions do not travel
        self.ledger.record(self.stage, down, up)
        missing = [name for name in self.names if name not in replies]
        if missing:
            raise EngineError(
                f"exchange {exchange} ({self.stage}): no answer from {', '.join(missing)}. Start it again; the job goes "
                "on from its last finished step.",
                groups=missing,
            )
        answers: list[dict[str, Answer]] = [{} for _ in questions]
        kinds: Counter[str] = Counter()
        for name in self.names:
            who = f"group {name!r}"
            got = decode(replies[name], envelope, asks=False, who=who)[1]
            for refusal in got:
                if isinstance(refusal, Refusal):
                    said = shown(refusal.text) if self.masked else refusal.text
                    text = said if f"group {name!r}" in said else f"{who}: {said}"
                    raise _ERRORS.get(refusal.code, EngineError)(text, group=name)
            if len(got) != len(questions):
                raise UplinkError(
                    f"{who} gave {len(got)} answers to {len(questions)} questions at exchange {exchange}. "
                    "Install the same fedmiss on all sides.",
                    group=name,
                )
            for i, (question, answer) in enumerate(zip(questions, got, strict=True)):
                assert isinstance(answer, Answer)
                _check(answer, question, who, exchange, masked=self.masked)
                answers[i][name] = answer
                kinds[type(question).__name__] += 1
                kinds[type(answer).__name__] += 1
        if self.masked:
            answers = [combined(one) for one in answers]
        differences = getattr(self.transport, "differences", None)  # of a study that compresses
        if differences is not None:
            _same_months(answers)
            answers = differences.expand(questions, answers)
        self.exchange += 1
        self.ledger.kinds.update(kinds)
        if self.watch:
            self.watch(self.stage, self.exchange)
        return answers


def _same_months(answers: Sequence[Mapping[str, Answer]]) -> None:
    """Refuse months' sums of another shape or kind than the others' by the group's name."""
    for named in answers:
        first: np.ndarray | None = None
        for group, answer in named.items():
            x = getattr(answer, "months", None)
            if not isinstance(answer, Months) or not isinstance(x, np.ndarray):
                continue
            first = x if first is None else first
            if (x.shape, x.dtype) != (first.shape, first.dtype):
                raise UplinkError(
                    f"group {group!r} sent months' sums of another shape or kind than the others. Give all sides the same "
                    "settings.",
                    group=group,
                )


_ERRORS: dict[str, type[FedmissError]] = {
    e.__name__: e for e in (ConfigError, InputError, DomainError, UplinkError)
}
_KINDS: dict[str, type] = {
    "np.ndarray": np.ndarray, "float": float, "int": int, "bool": bool, "str": str, "tuple[str, ...]": tuple,
}  # fmt: skip
_TYPES = {k: [(f.name, _KINDS[str(f.type)]) for f in fields(k)] for k in ANSWERS}
_NUMBERS = {k: [f.name for f in fields(k) if f.type in ("np.ndarray", "float")] for k in ANSWERS}
_MASKED = {k: masked_fields(k) for k in ANSWERS}


def _check(answer: Answer, question: Question, who: str, exchange: int, *, masked: bool) -> None:
    kind, want = type(answer).__name__, question.answer
    if type(answer) is not want:
        raise UplinkError(
            f"{who} answered {type(question).__name__} with {kind} at exchange {exchange}, expected {want.__name__}. "
            "Install the same fedmiss on all sides.",
            who=who,
        )
    hidden = _MASKED[type(answer)] if masked else {}
    for name, wanted in _TYPES[type(answer)]:
        if name in hidden:
            wanted = np.ndarray
        if not isinstance(getattr(answer, name), wanted):
            raise UplinkError(
                f"{who} sent {type(getattr(answer, name)).__name__} in {kind}.{name} at exchange {exchange}, expected "
                f"{wanted.__name__}. Install the same fedmiss on all sides.",
                who=who,
            )
    for name in _NUMBERS[type(answer)]:
        value = getattr(answer, name)
        # an infinite or missing number makes the sum so: one pass without a mask
        whole = value if isinstance(value, float) else float(value.sum()) if value.dtype.kind == "f" else 0.0
        if not math.isfinite(whole) and not np.isfinite(value).all():
            bad = np.asarray(value)[~np.isfinite(value)].ravel()[0]
            raise UplinkError(
                f"{who} sent {bad} in {kind}.{name} at exchange {exchange} (every number must be finite). "
                f"{why_not_finite(type(answer))}; nothing of this exchange was used.",
                who=who,
            )


def total(answers: Mapping[str, Answer], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Sum a field over groups, in the order of their names; an answer of another shape is refused by the group's name."""
    # Addition of floating numbers depends on the order: by name, all copies of the job have the same bits.
    out = np.zeros(shape)
    for group, answer in answers.items():
        value = np.asarray(getattr(answer, name))
        if value.shape != shape:
            raise UplinkError(
                f"group {group!r} sent {type(answer).__name__}.{name} of shape {value.shape}, expected {shape}. Give all "
                "sides the same settings.",
                group=group,
            )
        out += value
    return out
