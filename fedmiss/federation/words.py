"""Messages in plain words: for people who want to read what crosses, and for the page on privacy."""

from __future__ import annotations

from collections.abc import Mapping

from fedmiss.federation.messages import ANSWERS, QUESTIONS, Answer, Message, words

__all__ = ["describe_kinds", "privacy_table"]


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
    return lines


def _fields(kind: type[Message]) -> list[str]:
    out = []
    for name, text, shape, unit in words(kind):
        measure = ", ".join(x for x in (shape, unit) if x)
        out.append(f"{name}: {text}" + (f" [{measure}]" if measure else ""))
    return out


def privacy_table() -> str:
    """Markdown table of everything that can leave a group, made from the types of the answers."""
    rows = ["| message | field | what it holds | shape | unit |", "|---|---|---|---|---|"]
    for kind in ANSWERS:
        assert issubclass(kind, Answer)
        for i, (name, text, shape, unit) in enumerate(words(kind)):
            label = f"`{kind.__name__}`: {kind.about}" if i == 0 else ""
            rows.append(f"| {label} | `{name}` | {text} | {shape} | {unit} |")
    return "\n".join(rows)
