"""What a message is: a frozen question or answer, every field of which says in words what it holds and how it is hidden."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


def described(
    words: str, shape: str = "", unit: str = "", *, bits: int | None = None, clear: str = ""
) -> Any:
    """Describe a field; of an answer also how it is hidden.

    ``bits``: the job needs only its sum over groups, which is masked with so many binary digits after the point (see
    ``masks``). ``clear``: why it cannot be masked, and what it tells. A field of an answer needs one of them.
    """
    return field(metadata={"words": words, "shape": shape, "unit": unit, "bits": bits, "clear": clear})


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Base of all messages; ``about`` says in words what a message of this kind is for."""

    about: ClassVar[str] = ""


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Message):
    """What a group sends."""


@dataclass(frozen=True, slots=True, eq=False)
class Question(Message):
    """What the job asks; ``answer`` is the kind that answers it."""

    answer: ClassVar[type[Answer]]
