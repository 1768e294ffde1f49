"""Catalogues of gettext as text (``.po``): read, and written.

Only what a page needs: no plurals, since numbers are slots. Entries that a tool marked fuzzy or obsolete do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Entry", "parse_po", "write_po"]

_LINE = re.compile(r'(msgctxt|msgid|msgstr)?\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One sentence: its English, its translation (a blank if there is none), its context, and its line in the file."""

    english: str
    other: str
    context: str = ""
    line: int = 0


def parse_po(text: str) -> Iterator[Entry]:
    """Read the entries of a catalogue, in order; the header is the entry with a blank English.

    Raises
    ------
    ValueError    a line that no catalogue has; the message names it
    """
    parts: dict[str, str] = {}
    word, fuzzy, begun = "", False, 0
    for number, raw in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], start=1):
        line = raw.strip()
        starts = line.startswith(("msgctxt", "msgid")) and "msgstr" in parts
        if "msgstr" in parts and (starts or not line or line.startswith("#")):
            if not fuzzy:
                yield Entry(parts.get("msgid", ""), parts["msgstr"], parts.get("msgctxt", ""), begun)
            parts, word, fuzzy, begun = {}, "", False, 0
        if not line or line.startswith("#"):
            fuzzy = fuzzy or (line.startswith("#,") and "fuzzy" in line)
            continue
        found = _LINE.fullmatch(line)
        if found is None or not (found[1] or word):
            raise ValueError(f"line {number} is {line[:60]!r}, which no .po file has")
        word, begun = found[1] or word, begun or number
        parts[word] = parts.get(word, "") + re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[1]), found[2])
    if parts:
        raise ValueError(f"the last entry (line {begun}) has no msgstr")


def write_po(entries: Iterable[Entry], head: dict[str, str]) -> str:
    """Return a catalogue as text, with its header."""
    header = "".join(f"{key}: {value}\n" for key, value in head.items())
    out = ['msgid ""\nmsgstr ""\n' + "".join(f"{_quoted(line)}\n" for line in header.splitlines(True))]
    for e in entries:
        flag = "#, python-brace-format\n" if "{1}" in e.english else ""
        context = f"msgctxt {_quoted(e.context)}\n" if e.context else ""
        out.append(f"{flag}{context}msgid {_quoted(e.english)}\nmsgstr {_quoted(e.other)}\n")
    return "\n".join(out)


def _quoted(text: str) -> str:
    for sign, word in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(sign, word)
    return f'"{text}"'
