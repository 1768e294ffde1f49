"""The message that an organisation holds back until its custodian releases it (`join --look`)."""

from __future__ import annotations

from fedmiss.errors import InputError
from fedmiss.network.kits import Kit

HELD = "held.txt"  # the message on hold, in words and numbers


def releases(kit: Kit) -> str:
    """What the files of releases begin with: of one job, so that none lets a message of another one go."""
    return f"released-{kit.job.hex()[:16]}-"


def held(kit: Kit) -> tuple[str, str]:
    """The file that releases the message on hold, and that message in words; both blank where none of this job is held."""
    try:
        said = (kit.private / HELD).read_text(encoding="utf-8")
    except FileNotFoundError:  # the process that holds it may remove it at any moment
        said = ""
    # The file of the release stands in the first line: what is released is what is shown, and of this job.
    go, _, text = said.partition("\n")
    return (go, text) if go.startswith(releases(kit)) else ("", "")


def on_hold(kit: Kit) -> str:
    """Say which message waits for its release, where it can be read, and what sends it; blank where none does."""
    go, _ = held(kit)
    if not go or (kit.private / go).exists():
        return ""
    return (
        f"{kit.name}: exchange {go.removeprefix(releases(kit))} is on hold. Read it in {kit.private / HELD}; "
        f"`fedmiss federation outbox {kit.folder} PANEL --release` sends it."
    )


def release(kit: Kit) -> str:
    """Release the held message; return its text."""
    go, text = held(kit)
    if not go:
        raise InputError(f"{kit.name!r} holds no message now. `join --look` holds them.")
    (kit.private / go).touch()
    return text
