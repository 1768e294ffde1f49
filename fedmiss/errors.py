"""Errors that a user can act on.

    FedmissError            exit code 1
    |-- ConfigError         2  the settings or options ask for something impossible
    |-- InputError          1  a file or folder given by the user cannot be used
    |   `-- SchemaError     1  a table does not follow its schema
    |-- BusyError           1  another process makes the same output
    |-- DomainError         1  a statistic left the domain of the M-step
    |-- UplinkError         1  a worker's message is damaged or of another run
    `-- EngineError         1  the machine that carries the messages failed

Every message says what happened, where, the value, the limit and the next move, on one line first.
"""

from __future__ import annotations

import errno
import unicodedata
from collections.abc import Sequence
from typing import Any


class FedmissError(Exception):
    """Base of all errors raised on purpose; ``fields`` keeps what a caller needs beside the sentence, as near names.

    Examples
    --------
    >>> import fedmiss
    >>> try:
    ...     fedmiss.files.read_manifest("no-such-folder")
    ... except fedmiss.FedmissError as error:
    ...     print(type(error).__name__)
    InputError
    """

    exit_code = 1

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.fields = fields


class ConfigError(FedmissError):
    """The settings ask for something impossible or unknown.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.ReportSettings(rule="mine")
    Traceback (most recent call last):
        ...
    fedmiss.errors.ConfigError: --rule is 'mine' (must be pecbms or rtrim).
    """

    exit_code = 2


class InputError(FedmissError):
    """A file or folder that the user named cannot be used.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.fit_trim(["a"], [2001], [-1])
    Traceback (most recent call last):
        ...
    fedmiss.errors.InputError: site a at time 2001: the count -1 is negative.
    """


class SchemaError(InputError):
    """A table does not follow its schema."""


class BusyError(FedmissError):
    """Another process makes the same output."""


class DomainError(FedmissError):
    """A statistic left the domain of the M-step ``T``."""


class UplinkError(FedmissError):
    """A worker's message is damaged, of another size, or of another run."""


class EngineError(FedmissError):
    """The machine that carries the messages failed or is not installed."""


def listed(words: Sequence[str], most: int) -> str:
    """Join words with commas for a message; dots stand for those after the first ``most``."""
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def several(n: int, one: str) -> str:
    """A number with its word: ``1 site``, ``2,000 sites``."""
    return f"{n:,} {one}{'' if n == 1 else 's'}"


def shown(text: str) -> str:
    """A text of somebody else for a screen: what would steer the screen, end the line, or turn it, is a question mark."""

    def steers(c: str) -> bool:
        return (
            unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
            or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        )

    return "".join("?" if steers(c) else c for c in text[:400])


def in_words(error: BaseException) -> str:
    """Say an error in one line; empty for one that nobody has words for (a mistake in the program)."""
    if isinstance(error, FedmissError):
        return str(error)
    short = (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, ImportError) and "failed to map segment" in str(error))
        or (isinstance(error, RuntimeError) and "can't start new thread" in str(error))
    )
    if not short:
        return ""
    told = f" ({error})" if str(error) else ""
    return (
        f"the memory of this machine, or the limit set for this process, is used up{told}. Close other programs, raise the "
        "limit, run one species at a time (--jobs 1), or choose fewer records (--species, --start, --state)."
    )


def plain(text: str) -> str:
    """Return a text without case and accents."""
    split = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in split if not unicodedata.combining(letter))


def fold(name: str) -> str:
    """Return a name without case, accents of its letters, and the number of blanks between its words (``_`` is one)."""
    return " ".join(plain(name.replace("_", " ")).split())
