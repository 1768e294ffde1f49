"""`join`: an organisation takes part, by a shared folder, or by an engine that is started again when it dies."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmiss.atomic import read_object, write_json
from fedmiss.errors import ConfigError, EngineError, InputError, listed
from fedmiss.federation.circle import frame_label
from fedmiss.network.engine import engine_of, need
from fedmiss.network.folder import Folder, check_folder, place_of
from fedmiss.network.hold import on_hold
from fedmiss.network.kits import Kit, sleeper
from fedmiss.network.member import party_of, start, take_part
from fedmiss.network.method import function_of
from fedmiss.network.outbox import REFUSALS, holder
from fedmiss.network.preflight import check_certificate, check_connection, check_version
from fedmiss.network.processes import (
    QUICK,
    Say,
    alone,
    end,
    end_leftovers,
    last_line,
    not_too_often,
    stop_on_request,
)
from fedmiss.network.status import status, waiting
from fedmiss.progress import progress
from fedmiss.system import open_to_others

STILL = 60.0  # seconds without an exchange after which `join` says so
LINGER = 120.0  # seconds that an organisation stays when its job is done and the relay still listens
SHARED = "folder.json"  # where the shared folder lies


def join(
    kit: Kit,
    data: Path,
    *,
    say: Say = print,
    look: bool = False,
    preview: bool = False,
    folder: Path | None = None,
    report: Path | None = None,
) -> Path:
    """Take part in the approved job until it is done; return the joint result (or the file of the preview).

    Parameters
    ----------
    folder : the folder that all organisations share, where the study has one; by default that of the last time
    report : where the own report is to be, which must not be in that folder
    """
    stop_on_request()
    check_version(kit)
    if kit.study.method and kit.approval() is not None:
        # now: an engine begins the job when all are there, who would then wait
        function_of(str(kit.study.method["run"]))
    out = kit.preview if preview else kit.result
    if kit.private.is_dir() and open_to_others(kit.private):  # copied by a way that keeps no rights
        kit.private.chmod(0o700)
    if kit.study.engine == "folder":
        _join_folder(kit, data, folder, report, say=say, look=look, preview=preview)
    else:
        with alone(kit.folder / "engine", "`fedmiss federation join`"):
            _join_engine(kit, data, out, say=say, look=look, preview=preview)
    return out


def _join_folder(
    kit: Kit, data: Path, folder: Path | None, report: Path | None, *, say: Say, look: bool, preview: bool
) -> None:
    at = kit.private / SHARED
    if folder is None and not at.exists():
        raise ConfigError(
            f"study {kit.study.name} is carried by a folder that all organisations share. Name yours: "
            f"fedmiss federation join {kit.folder} {data} --folder FOLDER"
        )
    if folder is None:
        folder = Path(read_object(at, "folder")["folder"])
        if not folder.exists():
            raise InputError(
                f"the shared folder of the last time, {folder}, is not there now. Connect its drive; or, if it was moved or "
                "has another name, say the same with --folder FOLDER: the job goes on.",
                path=str(folder),
            )
    there = check_folder(folder, kit.folder, data, report)
    write_json(at, {"folder": str(there)})
    done = kit.result.exists() and not preview
    party = party_of(kit)
    now: dict[str, Any] = {}  # stage and exchanges, which the status's file has once a second only

    def told_of_others() -> None:
        before = {place_of(kit.study.name, line["job"]) for line in kit.history()}
        if others := [name for name in shared.others_here() if name not in before]:
            say(
                f"  the folder also has {listed(others, 4)}: another study, revision, roster or version "
                "of fedmiss. Compare the numbers of your jobs."
            )

    def told(missing: Sequence[str]) -> None:
        waiting(kit.private, kit.job.hex(), kit.study.organisations, missing, **now)
        if missing:
            say(
                f"{kit.name}: waiting for {', '.join(missing)} in {there}; Ctrl-C stops here, and the same command goes on "
                "later."
            )
            for line in shared.closed_here():
                say(f"  {line}")
            told_of_others()
        else:
            say(f"{kit.name}: all are there; going on.")

    shared = Folder(
        there, kit.name, kit.study.organisations, kit.study.name, kit.job, told=told,
        genuine=lambda name, exchange, raw: party.verified(name, frame_label(kit.job, name, exchange), raw),
        sleep=sleeper(kit, say),
    )  # fmt: skip
    if done:  # the others may wait in a revision that this kit has not yet
        say(f"{kit.name}: job {kit.job.hex()[:12]}, revision {kit.study.revision}, was done before.")
        told_of_others()
        if not kit.journal.exists():
            return  # with a journal it goes through the job again: the others may lack its last frames
    with progress(f"{kit.name}: exchanges of study {kit.study.name}") as shown:

        def watch(stage: str, exchanges: int) -> None:
            now.update(stage=stage, exchanges=exchanges)
            shown(exchanges)

        look_on = holder(kit, say) if look else None
        take_part(kit, data, shared, look=look_on, preview=preview, watch=watch)


def _join_engine(kit: Kit, data: Path, out: Path, *, say: Say, look: bool, preview: bool) -> None:
    """Start the engine; when it is killed, start it again."""
    engine, carrier = kit.folder / "engine", engine_of(kit.study)
    parts = [engine / "startup" / n for n in ("rootCA.pem", "client.crt", "client.key")]
    if lost := [path for path in parts if not path.exists()]:
        raise InputError(
            f"there is no {lost[0]}, which came with the kit of {kit.name!r}. Put the folder engine of the kit that the "
            "proposer sent in its place; keys and journals stay good.",
            path=str(lost[0]),
        )
    end_leftovers(engine)
    if out.exists() and not _listens(kit, parts):
        return
    need(kit.study.engine)  # before it waits for a relay
    check_certificate(parts[1], name=kit.name)
    start(kit, data, look=look, preview=preview)
    log = kit.private / "engine.log"
    process: subprocess.Popen[bytes] | None = None
    stay = ExitPolicy(out, lambda: _listens(kit, parts))
    said, held, deaths, begun, looked = "", "", 0, 0.0, 0.0
    refusals, still = kit.private / REFUSALS, Stillness(kit.job.hex())
    told = _size(refusals)
    try:
        while True:
            if _size(refusals) > told:
                with open(refusals, "rb") as stream:
                    stream.seek(told)
                    new = stream.read()
                told += len(new)
                raise EngineError(f"{kit.name}: {new.decode(errors='replace').splitlines()[-1]}")
            if stay.over():
                return
            # The engine's process holds the message, and its words go into the log.
            if look and (waits := on_hold(kit)) != held:
                held = waits
                if waits:
                    say(waits)
            if line := still.line(status(kit.private), waits=bool(held)):
                say(f"{kit.name}: {line}")
            if process is None or process.poll() is not None:
                if process is not None:
                    end(process)  # its children may be alive
                    deaths = deaths + 1 if time.monotonic() - begun < QUICK else 0
                    not_too_often(deaths, log)
                    say(
                        f"{kit.name}: the engine ended and is started again. Its last line in {log}: {last_line(log)}"
                    )
                try:
                    check_connection(kit.study.host, kit.study.port, parts[0], parts[1], parts[2])
                except EngineError as error:
                    if str(error) != said:
                        say(f"{error} Waiting for it.")
                        said = str(error)
                    time.sleep(2)
                    continue
                process, begun = carrier.start_member(kit.folder, kit.name, log), time.monotonic()
                looked, said = begun, ""
                say(
                    f"{kit.name}: connected to {kit.study.host} port {kit.study.port}; the job begins when all are there."
                )
            elif still.most < 0 and time.monotonic() - looked > STILL:  # the engine tries on, without a word
                looked, before, said = time.monotonic(), said, _away(kit, parts)
                if said != before:
                    say(f"{said} Waiting for it." if said else f"{kit.name}: the relay answers again.")
            time.sleep(0.5)
    finally:
        end(process)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Stillness:
    """Says once that a job that has begun does not go on, and once that it does again: the engine says nothing of it."""

    def __init__(self, job: str) -> None:
        self.job, self.said = job, False
        self.most, self.since = -1, time.monotonic()

    def line(self, now: Mapping[str, Any], *, waits: bool) -> str:
        """What to say of this status; ``waits``: a message is on hold here."""
        at, moment = int(now.get("exchanges", -1)), time.monotonic()
        if waits or now.get("job") != self.job or now.get("state") not in ("running", "waiting"):
            self.since = moment
        elif at > self.most:  # else it is gone through again
            on, self.said, self.most, self.since = self.said, False, at, moment
            return "going on." if on else ""
        elif self.most >= 0 and not self.said and moment - self.since > STILL:
            self.said = True
            return (
                f"no exchange has ended for {STILL:.0f} s: the relay, the way to it or another organisation is away, or one "
                "computes for long. Nothing is lost; `fedmiss federation run` says at the relay who is missing."
            )
        return ""


class ExitPolicy:
    """Whether an organisation may leave: it has its result, and the relay has brought its last frame to the others."""

    def __init__(self, out: Path, listens: Callable[[], bool]) -> None:
        self.out, self.listens = out, listens
        self.until = 0.0

    def over(self) -> bool:
        """Check whether the result is there, and whether the relay listens."""
        if not self.out.exists():
            return False
        now = time.monotonic()
        self.until = self.until or now + LINGER
        return now > self.until or not self.listens()


def _listens(kit: Kit, parts: list[Path]) -> bool:
    return not _away(kit, parts)


def _away(kit: Kit, parts: list[Path]) -> str:
    """Why the relay cannot be reached now; blank where it can."""
    try:
        check_connection(kit.study.host, kit.study.port, parts[0], parts[1], parts[2])
        return ""
    except (EngineError, ConfigError) as error:
        return str(error)
