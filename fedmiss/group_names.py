"""Folder names of groups: one for each name, safe on every file system, and readable back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from string import ascii_letters, ascii_uppercase
from urllib.parse import quote, unquote

NOBODY = "unknown"  # folder of rows that name no group
MOST = 150  # characters; file systems take 255 bytes, and temporary names want some of them
_WINDOWS = {"con", "prn", "aux", "nul", *(f"{name}{i}" for name in ("com", "lpt") for i in range(1, 10))}


def group_folders(names: Iterable[str | None]) -> dict[str | None, str]:
    """Return a folder name for each distinct name; two names never get one folder.

    Letters, digits and inner ``- _ .`` stay; everything else is percent-encoded UTF-8, as in web addresses. Names that
    differ in case only would be one folder on some file systems: all but the first get their capitals encoded. A long
    name is cut and ends with ``~`` and its SHA-256, which no other name can contain.
    """
    out: dict[str | None, str] = {}
    taken: set[str] = {NOBODY}
    for name in sorted(set(names), key=lambda n: (n is not None, n or "")):
        if name is None:
            out[name] = NOBODY
            continue
        folder = _encoded(name, "")
        for more in (ascii_uppercase, ascii_letters):
            if folder.casefold() in taken:
                folder = _encoded(name, more)
        taken.add(folder.casefold())
        out[name] = folder
    return out


def _encoded(name: str, more: str) -> str:
    text = quote(name, safe="").replace("~", "%7E")
    text = "".join(
        f"%{ord(letter):02X}" if letter in more and not _inside(text, i) else letter
        for i, letter in enumerate(text)
    )
    if not text:
        return "%"
    for edge in (len(text) - 1, 0):
        if text[edge] in ".-_":
            text = text[:edge] + f"%{ord(text[edge]):02X}" + text[edge + 1 :]
    if text.partition(".")[0].casefold() in _WINDOWS:
        text = f"%{ord(text[0]):02X}{text[1:]}"
    if len(text) > MOST:
        text = f"{text[: MOST - 65]}~{hashlib.sha256(name.encode()).hexdigest()}"
    return text


def _inside(text: str, at: int) -> bool:
    """Whether a character belongs to a percent sign before it."""
    return "%" in text[max(0, at - 2) : at]


def group_name(folder: str) -> str:
    """Return the name that a group's folder stands for; of a long name its beginning."""
    return "" if folder == "%" else unquote(folder.partition("~")[0])
