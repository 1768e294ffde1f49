"""How a study stands at one of its ends: what `fedmiss federation status` reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmiss.atomic import read_object, write_json
from fedmiss.errors import InputError

STATUS = "status.json"


class Usage:
    """Seconds of all processes that have worked on a job: a process that begins goes on from the last one's."""

    def __init__(self, path: Path) -> None:
        # The wall clock may be set back while a job runs, the monotonic one may not.
        self.path, self.begun = path, time.monotonic()
        try:
            self.before = float(read_object(path)["seconds"])
        except (InputError, KeyError, TypeError, ValueError):  # none yet, or damaged: no reason to stop a job
            self.before = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all processes."""
        return self.before + time.monotonic() - self.begun

    def write(self) -> None:
        """Write them after every exchange: a kill loses one at most."""
        write_json(self.path, {"seconds": self.seconds})


class Status:
    """What `fedmiss federation status` reads: written at most once a second."""

    def __init__(self, path: Path, job: str, names: Sequence[str]) -> None:
        self.path, self.last = path, 0.0
        self.values: dict[str, object] = {
            "job": job,
            "state": "running",
            "organisations": list(names),
            "missing": [],
        }
        self.write()

    def write(self, **values: object) -> None:
        """Update the values and write them now."""
        self.values |= values | {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        write_json(self.path, self.values)
        self.last = time.monotonic()

    def going(self, stage: str, exchanges: int) -> None:
        """Record an exchange."""
        self.values |= {"stage": stage, "exchanges": exchanges}
        # At most once a second: an exchange may take less than writing a file does.
        if time.monotonic() - self.last > 1.0:
            self.write()

    def away(self, names: Sequence[str]) -> None:
        """Record the organisations that do not answer; none when all are back."""
        self.write(missing=list(names), state="waiting" if names else "running")


def status(folder: Path) -> dict[str, Any]:
    """Return how a study stands at the relay (``STUDY/hub``) or at an organisation (``KIT/private``)."""
    path = folder / STATUS
    return read_object(path) if path.exists() else {"state": "not begun", "missing": []}


def waiting(hub: Path, job: str, names: Sequence[str], missing: Sequence[str], **now: Any) -> None:
    """Record who has not joined, before the first exchange or after a restart, or ``now`` amid the job."""
    before = status(hub)
    known = {k: before[k] for k in ("stage", "exchanges") if k in before and before.get("job") == job}
    Status(hub / STATUS, job, names).write(
        **(known | now), state="waiting" if missing else "running", missing=list(missing)
    )
