"""What an organisation sends, for its custodian: before sending (held), after (outbox), and in bytes (ledger)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedmiss.errors import InputError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import Envelope, decode
from fedmiss.federation.ledger import Ledger
from fedmiss.federation.words import told
from fedmiss.files import atomic_file
from fedmiss.network.kits import Kit
from fedmiss.network.site import journal_entries, program_of_copy
from fedmiss.owner import remove_state

__all__ = ["HELD", "holder", "ledger_of", "outbox", "release"]

HELD = "held.txt"  # the held message, in words and numbers
_GO = "released"


def holder(kit: Kit, pause: float = 0.3) -> Callable[[int, list[msg.Answer]], None]:
    """Hold every message until the custodian releases it: write it in words, and wait for a file."""

    def look(exchange: int, answers: list[msg.Answer]) -> None:
        go = kit.private / f"{_GO}-{kit.job.hex()[:16]}-{exchange}"
        if go.exists():
            return
        lines = [
            f"exchange {exchange} of job {kit.job.hex()[:16]}",
            *(line for a in answers for line in told(a)),
        ]
        with atomic_file(kit.private / HELD) as tmp:
            tmp.touch(mode=0o600)
            tmp.write_text("\n".join([str(exchange), *lines]) + "\n", encoding="utf-8")
        while not go.exists():
            time.sleep(pause)
        remove_state(kit.private / HELD)

    return look


def release(kit: Kit) -> str:
    """Release the held message; return its text."""
    path = kit.private / HELD
    if not path.exists():
        raise InputError(f"{kit.name!r} holds no message now. `join --look` holds them.")
    exchange, _, text = path.read_text(encoding="utf-8").partition("\n")
    (kit.private / f"{_GO}-{kit.job.hex()[:16]}-{int(exchange)}").touch()
    return text


def outbox(kit: Kit, data: Path, *, first: int = 0, last: int | None = None) -> list[str]:
    """Every message that the organisation has sent for this job, in words and numbers, as it was before masks.

    The journal keeps the questions; the answers are computed again from the data, which gives the same ones.
    """
    program = program_of_copy(kit, data)
    lines: list[str] = []
    kept: list[msg.Answer] = []

    def keep(answers: list[msg.Answer], envelope: Envelope) -> list[msg.Answer]:
        kept[:] = answers
        return answers

    program.protect = keep
    for number, entry in enumerate(journal_entries(kit)):
        shown = first <= number and (last is None or number <= last)
        program.answer(entry.question)
        if not shown:
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
        lines.append(
            f"--- exchange {number}, {when}: {entry.bytes_up:,} bytes out, {len(entry.question):,} in"
        )
        for answer in kept:
            lines += told(answer)
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
