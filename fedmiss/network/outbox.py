"""What an organisation is asked and sends, for its custodian: before sending (held), after (outbox), in bytes (ledger)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmiss.errors import FedmissError, InputError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import Envelope, decode
from fedmiss.federation.ledger import Ledger
from fedmiss.federation.words import told
from fedmiss.files import atomic_file
from fedmiss.network.kits import Kit
from fedmiss.network.site import journal_entries, program_of_copy
from fedmiss.owner import remove_state

__all__ = ["HELD", "REFUSALS", "holder", "ledger_of", "note_refusal", "outbox", "release"]

REFUSALS = "refusals.txt"  # why questions were refused
HELD = "held.txt"  # the held message, in words and numbers
_GO = "released"


def holder(kit: Kit, pause: float = 0.3) -> Callable[[int, list[msg.Message], list[msg.Answer]], None]:
    """Hold every message until the custodian releases it: write it in words, and wait for a file."""

    def look(exchange: int, questions: list[msg.Message], answers: list[msg.Answer]) -> None:
        go = kit.private / f"{_GO}-{kit.job.hex()[:16]}-{exchange}"
        if go.exists():
            return
        lines = [
            f"exchange {exchange} of job {kit.job.hex()[:16]}",
            *_conversation(questions, answers),
        ]
        with atomic_file(kit.private / HELD) as tmp:
            tmp.touch(mode=0o600)
            tmp.write_text("\n".join([str(exchange), *lines]) + "\n", encoding="utf-8")
        while not go.exists():
            time.sleep(pause)
        remove_state(kit.private / HELD)

    return look


def _conversation(questions: Sequence[msg.Message], answers: Sequence[msg.Answer]) -> list[str]:
    """Each question, then what the organisation answers to it."""
    lines = []
    for question, answer in zip(questions, answers, strict=True):
        for who, message in (("asked", question), ("answered", answer)):
            first, *rest = told(message)
            lines += [f"{who} {first}", *rest]
    return lines


def note_refusal(kit: Kit, error: Exception) -> str:
    """Write down, with the time, why a question was refused, for the organisation's own screen; return the line."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    line = f"{when} a question was refused: {str(error) if isinstance(error, FedmissError) else repr(error)}"
    with open(
        os.open(kit.private / REFUSALS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
    ) as log:
        log.write(line + "\n")
    return line


def release(kit: Kit) -> str:
    """Release the held message; return its text."""
    path = kit.private / HELD
    if not path.exists():
        raise InputError(f"{kit.name!r} holds no message now. `join --look` holds them.")
    exchange, _, text = path.read_text(encoding="utf-8").partition("\n")
    (kit.private / f"{_GO}-{kit.job.hex()[:16]}-{int(exchange)}").touch()
    return text


def outbox(kit: Kit, data: Path, *, first: int = 0, last: int | None = None) -> list[str]:
    """Every question and what the organisation has answered for this job, in words and numbers, as it was before masks.

    The journal keeps the questions; the answers are computed again from the data, which gives the same ones.

    Parameters
    ----------
    first : first exchange to show;  last : how many of the last exchanges to show, None for all
    """
    program = program_of_copy(kit, data)
    lines: list[str] = []
    kept: list[msg.Answer] = []

    def keep(answers: list[msg.Answer], envelope: Envelope) -> list[msg.Answer]:
        kept[:] = answers
        return answers

    program.protect = keep
    all_of_them = journal_entries(kit)
    if last is not None:
        first = max(first, len(all_of_them) - last)
    for number, entry in enumerate(all_of_them):
        program.answer(entry.question)
        if number < first:
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
        lines.append(
            f"--- exchange {number}, {when}: {entry.bytes_up:,} bytes out, {len(entry.question):,} in"
        )
        lines += _conversation(decode(entry.question, None, asks=True, who="the hub")[1], kept)
    return lines


def ledger_of(kit: Kit) -> tuple[Ledger, list[tuple[int, float, int, int, str]]]:
    """Return the ledger of what was sent, and (exchange, time, bytes out, bytes in, kinds) of every exchange."""
    ledger, lines = Ledger(), []
    for number, entry in enumerate(journal_entries(kit)):
        questions = decode(entry.question, None, asks=True, who="the hub")[1]
        kinds = ", ".join(dict.fromkeys(type(q).__name__ for q in questions))
        ledger.record("all", {kit.name: len(entry.question)}, {kit.name: entry.bytes_up})
        lines.append((number, entry.time, entry.bytes_up, len(entry.question), kinds))
    return ledger, lines
