"""The count model's job at one organisation: what its own copy asks, answered from its own records (:mod:`.circle`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedmiss.errors import EngineError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import Circle
from fedmiss.federation.codec import Envelope, decode, refuses
from fedmiss.federation.differences import Differences
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.masks import Masks, masked_fields

Look = Callable[[int, list[msg.Message], list[msg.Answer]], None]


class Member:
    """The transport of one organisation's own copy of a job.

    Parameters
    ----------
    program : answers from the organisation's records; its ``settings`` are those of the job
    circle : the organisation's place among the others
    look : called with questions and answers, before masks, before they go; raises to keep them back
    compress : whether months' sums go as differences, see :mod:`.differences`
    """

    def __init__(
        self, program: GroupProgram, circle: Circle, look: Look | None = None, *, compress: bool = False
    ) -> None:
        self.program, self.circle, self.look = program, circle, look
        bits = masked_fields(msg.Months)["months"] if isinstance(circle.party, Masks) else None
        self.differences = Differences(len(circle.names), program.secret, bits) if compress else None
        self.names: Sequence[str] = circle.names
        self.questions: list[msg.Message] = []
        self.answers: list[msg.Answer] = []  # of the last exchange, before masks
        self._bound = b""
        program.protect, program.party = self._protect, circle.party

    @property
    def travelled(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes of the last exchange: from each organisation, and to each."""
        return self.circle.travelled

    def ask(self, frame: bytes) -> dict[str, bytes]:
        """Answer what this copy of the job asks, and return the answers of all."""
        _, self.questions = decode(frame, None, asks=True, who="the job")
        self._bound = self.circle.begin(self.questions)
        answer = self.program.answer(frame)
        if refuses(answer):
            raise self.program.refusal or EngineError(
                f"{self.circle.name!r} cannot answer exchange {self.circle.exchange}."
            )
        return self.circle.share(answer)

    def _protect(self, answers: list[msg.Answer], envelope: Envelope) -> list[msg.Answer]:
        self.answers = answers
        if self.look is not None and not self.circle.replaying:
            self.look(self.circle.exchange, self.questions, answers)
        for a in answers:
            _finite(a, self.circle.name)
        if self.differences is not None:
            answers = self.differences.shrink(self.questions, answers, self.circle.exchange)
        if not isinstance(self.circle.party, Masks):
            return list(answers)
        return self.circle.party.hide(answers, self.circle.exchange, self._bound)


def _finite(answer: msg.Answer, name: str) -> None:
    """Masks would hide that a number is not finite: the organisation looks itself."""
    for field in type(answer).__dataclass_fields__:
        value = getattr(answer, field)
        if isinstance(value, float | np.ndarray) and not np.isfinite(np.asarray(value, dtype=float)).all():
            raise UplinkError(
                f"{name!r} would have sent a number that is not finite in "
                f"{type(answer).__name__}.{field}. {msg.why_not_finite(type(answer))}."
            )
