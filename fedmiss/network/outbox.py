"""What an organisation is asked and sends, for its custodian: before sending (held), after (outbox), in bytes (ledger)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmiss.atomic import atomic_file
from fedmiss.errors import ConfigError, FedmissError
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import Entry, entries
from fedmiss.federation.ledger import Ledger
from fedmiss.federation.member import Member
from fedmiss.federation.words import told
from fedmiss.network.hold import HELD, on_hold, releases
from fedmiss.network.kits import Kit
from fedmiss.network.member import again_with, opened_journal, replay
from fedmiss.owner import remove_state
from fedmiss.system import open_own

REFUSALS = "stops.txt"  # why the job stopped


def holder(
    kit: Kit, say: Callable[[str], None] | None = None, pause: float = 0.3
) -> Callable[[int, list[msg.Message], list[msg.Answer]], None]:
    """Hold every message until the custodian releases it: write it in words, ``say`` so, and wait for a file."""

    def look(exchange: int, questions: list[msg.Message], answers: list[msg.Answer]) -> None:
        # The file of the release is named by job and exchange: a release of one message lets no other go.
        go = kit.private / f"{releases(kit)}{exchange}"
        if go.exists():
            return
        lines = [f"exchange {exchange} of job {kit.job.hex()[:16]}", *_conversation(questions, answers)]
        with atomic_file(kit.private / HELD) as tmp:
            # Only its owner may read it, before anything is in it: these are the organisation's numbers without masks.
            tmp.touch(mode=0o600)
            tmp.write_text("\n".join([go.name, *lines]) + "\n", encoding="utf-8")
        if say is not None and (waits := on_hold(kit)):
            say(waits)
        # A file, and no socket: the custodian releases from another process, perhaps after a restart of this one.
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
    """Write down, with the time, why the job stopped, for the organisation's own screen; return the line."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    why = str(error) if isinstance(error, FedmissError) else repr(error)
    if isinstance(error, OSError):  # a write through an open file names none
        why = (
            f"{error.filename or kit.private}: {error.strerror or error}. Free some space or get the right to write there; "
            "then join again: the job goes on."
        )
    line = f"{when} the job stopped: {why}"
    with open(
        open_own(kit.private / REFUSALS, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8"
    ) as log:
        log.write(line + "\n")
    return line


def outbox(kit: Kit, data: Path, *, first: int = 0, last: int | None = None) -> list[str]:
    """Every question and what the organisation has answered for this job, in words and numbers, as it was before masks.

    The job is gone through again from the journal, which gives the same questions and the same answers.

    Parameters
    ----------
    first : first exchange to show;  last : how many of the last exchanges to show, None for all

    Raises
    ------
    ConfigError    the study runs a method of its own: its frames are in no words that fedmiss knows
    """
    if kit.study.method:
        raise ConfigError(
            f"the study runs {kit.study.method['run']}, and only that function knows what its frames say; read it. "
            f"`fedmiss federation ledger {kit.folder}` shows when they went, and their sizes."
        )
    done = list(entries(opened_journal(kit)))
    if last is not None:
        first = max(first, len(done) - last)
    lines: list[str] = []

    def show(member: Member, questions: Sequence[msg.Message]) -> None:
        number = member.circle.exchange - 1
        if number >= first and number < len(done):
            lines.append(_line(done[number]))
            lines.extend(_conversation(questions, member.answers))

    if kit.study.community:
        again_with(kit, data, lambda member: show(member, member.questions))
    else:
        replay(kit, data, show)
    # Exchange 0 has no questions: it brings the version and the keys.
    if first == 0 and done:
        lines[:0] = [
            _line(done[0]),
            "version of fedmiss; a digest of data and secret, to which masks are bound; the key that frames are encrypted "
            "with, sealed for each organisation",
        ]
    if len(done) > 1 and not done[-1].bytes_down:
        lines += [
            _line(done[-1]),
            "the others' frames have not all come; when they have, its words stand here",
        ]
    return lines


def _line(e: Entry) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.time))
    return f"--- exchange {e.exchange}, {when}: {e.bytes_up:,} bytes out, {e.bytes_down:,} in"


def ledger_of(kit: Kit) -> tuple[Ledger, list[tuple[int, float, int, int]]]:
    """Return the ledger of what was sent, and (exchange, time, bytes out, bytes in) of every exchange."""
    ledger, lines = Ledger(), []
    journal = opened_journal(kit)
    for e in entries(journal):
        ledger.record("all", {kit.name: e.bytes_down}, {kit.name: e.bytes_up})
        lines.append((e.exchange, e.time, e.bytes_up, e.bytes_down))
    journal.close()
    return ledger, lines
