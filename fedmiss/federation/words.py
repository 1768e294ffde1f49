"""Messages in plain words: for people who want to read what crosses, and for the page on privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from fedmiss.federation.masks import masked_fields
from fedmiss.federation.messages import ANSWERS, QUESTIONS, Answer, Message, words


def describe_kinds(counts: Mapping[str, int]) -> list[str]:
    """Lines about every kind of message that was sent, answers first: how many, what for, and what each field holds."""
    lines: list[str] = []
    for title, kinds in (("What groups sent", ANSWERS), ("What the hub sent", QUESTIONS)):
        lines.append(title)
        for kind in kinds:
            n = counts.get(kind.__name__, 0)
            if n:
                lines += [
                    f"  {kind.__name__} ({n:,}): {kind.about}",
                    *(f"      {line}" for line in _fields(kind)),
                ]
    known = {kind.__name__ for kind in (*ANSWERS, *QUESTIONS)}
    if gone := {name: n for name, n in counts.items() if n and name not in known}:
        said = ", ".join(f"{name} ({n:,})" for name, n in sorted(gone.items()))
        lines.append(
            f"Sent by the version that made the fit, and no longer: {said}. Fields are named as this version has them."
        )
    return lines


def _fields(kind: type[Message]) -> list[str]:
    out = []
    for name, text, shape, unit in words(kind):
        measure = ", ".join(part for part in (shape, unit) if part)
        out.append(f"{name}: {text}" + (f" [{measure}]" if measure else ""))
    return out


def privacy_table() -> str:
    """Markdown of everything that can leave a group, made from the types of the answers: a line for each field."""
    lines: list[str] = []
    for kind in ANSWERS:
        assert issubclass(kind, Answer)
        hidden = masked_fields(kind)
        lines += [*([""] if lines else []), f"**`{kind.__name__}`**: {kind.about}", ""]
        for name, text, shape, unit in words(kind):
            measure = ", ".join(part for part in (shape, unit) if part)
            clear = next(field.metadata["clear"] for field in fields(kind) if field.name == name)
            seen = "" if name in hidden else f"; **clear**: {clear}"
            lines.append(f"- `{name}`{f' [{measure}]' if measure else ''}: {text}{seen}")
    return "\n".join(lines)


def told(message: Message) -> list[str]:
    """One message in words and numbers: what every field means, and what is in it."""
    lines = [f"{type(message).__name__}: {message.about}"]
    hidden = masked_fields(type(message)) if isinstance(message, Answer) else {}
    for name, text, shape, unit in words(type(message)):
        measure = ", ".join(part for part in (shape, unit) if part)
        how = "" if not isinstance(message, Answer) else "masked" if name in hidden else "in clear"
        note = "; ".join(part for part in (measure, how) if part)
        lines.append(f"  {name}: {text}" + (f" [{note}]" if note else ""))
        lines.append(f"      = {_value(getattr(message, name))}")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        few = ", ".join(f"{x:.6g}" if value.dtype.kind == "f" else str(x) for x in value.ravel()[:8].tolist())
        size = " x ".join(map(str, value.shape)) or "1"
        spread = ""
        if value.size > 8 and value.dtype.kind == "f":
            spread = f" ... (from {value.min():.6g} to {value.max():.6g}, sum {value.sum():.6g})"
        elif value.size > 8:
            spread = " ..."
        return f"{size} numbers: {few}{spread}" if value.size else "nothing"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "nothing"
    text = str(value)
    return text if len(text) <= 300 else text[:300] + f" ... ({len(text):,} characters)"
