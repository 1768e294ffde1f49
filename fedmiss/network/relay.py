"""`run`: a study's relay, whose engine is started again when it dies, until all organisations have their results."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from fedmiss.errors import ConfigError, EngineError, FedmissError
from fedmiss.network.engine import Control, engine_of, still_there
from fedmiss.network.kits import job_hash, read_roster
from fedmiss.network.preflight import check_certificate, check_connection, check_port
from fedmiss.network.processes import (
    Say,
    alone,
    end,
    end_leftovers,
    last_line,
    not_too_often,
    stop_on_request,
)
from fedmiss.network.status import STATUS, Status, status, waiting
from fedmiss.network.study import Study, read_study
from fedmiss.owner import remove_state

# seconds between two looks at who takes part in a job that begins; so many without somebody end it
CHECK, IDLE = 5.0, 4


def run(folder: Path, *, say: Say = print) -> None:
    """Run a study's relay until all organisations have their results, continuing an earlier run.

    Raises
    ------
    EngineError    an organisation stopped, or nothing went on for as long as the study's patience
    """
    stop_on_request()
    hub, study = folder / "hub", read_study(folder)
    if study.engine == "folder":
        raise ConfigError(
            f"study {study.name} is carried by a folder that all organisations share, so there is no relay to run. Each of "
            "them says: fedmiss federation join KIT PANEL --folder FOLDER"
        )
    job_id = _job_of(folder, hub, study)
    with alone(hub / "engine", "`fedmiss federation run`"):
        if (now := status(hub)).get("state") == "done" and now.get("job") == job_id:
            end_leftovers(hub / "engine")  # else one that was killed at the very end keeps the port
            return
        check_certificate(hub / "engine" / "startup" / "server.crt")
        _run_relay(hub, study, job_id, say)


def _job_of(folder: Path, hub: Path, study: Study) -> str:
    """The job of a relay's folder, whose two copies of the study must be one: a revision may have reached one only."""
    job = job_hash(study, read_roster(hub, study))
    inner = read_study(hub)
    roster = read_roster(folder, study) if (folder / "roster.json").exists() else read_roster(hub, study)
    if inner != study or job_hash(inner, roster) != job:
        raise ConfigError(
            f"{folder} is at revision {study.revision} of the study, {hub} at revision {inner.revision}, or with another "
            f"roster. Put study.json and roster.json of the proposer into both."
        )
    return job.hex()


def _run_relay(hub: Path, study: Study, job_id: str, say: Say) -> None:
    log = hub / "engine.log"
    remove_state(hub / STATUS)
    end_leftovers(hub / "engine")
    if not still_there(hub, study, job_id):  # it was killed just before it could say so
        Status(hub / STATUS, job_id, study.organisations).write(state="done")
        return
    check_port(study.port)
    carrier = engine_of(study)
    process = carrier.start_relay(hub, log)
    admin: Control | None = None
    try:
        before, since, deaths = -1, time.monotonic(), 0
        while time.monotonic() - since < max(study.patience, 60.0):
            if process.poll() is not None:
                end(process)
                deaths += 1
                not_too_often(deaths, log)
                say(f"the engine ended and is started again. Its last line in {log}: {last_line(log)}")
                _close(admin)
                process, admin = carrier.start_relay(hub, log), None
            admin = admin or _session(hub, study, process)
            if admin is None:
                continue
            deaths = 0
            try:
                names = still_there(hub, study, job_id)
                _all_there(admin, hub, study, say, names)
                # what the status says from here on is of this job of the engine
                waiting(hub, job_id, study.organisations, [])
                job = admin.submit(names)
            except FedmissError:
                raise
            except Exception:  # the session broke; with the server, it is started again
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                    continue
                raise
            all_there = "all organisations" if names == study.organisations else ", ".join(names)
            say(f"{all_there} {'is' if len(names) == 1 else 'are'} connected; job {job[:8]} is under way.")
            _watch(admin, job, process, hub, say)
            now = status(hub)
            if now.get("state") == "done":
                return
            error = now.get("error", "")
            if now.get("state") == "stopped":
                raise EngineError(str(error))
            say("the engine was interrupted; the job goes on.")
            _ended(admin, job)  # two jobs of the engine would take each other's journals
            if (reached := int(now.get("exchanges", 0))) > before:
                before, since = reached, time.monotonic()
        raise EngineError(
            f"nothing went on for {study.patience:.0f} s; {log} says why. The same command goes on later."
        )
    finally:
        _close(admin)
        end(process)


def _close(admin: Control | None) -> None:
    if admin is not None:
        with contextlib.suppress(Exception):  # the server may have ended
            admin.close()


def _session(hub: Path, study: Study, process: subprocess.Popen[bytes]) -> Control | None:
    """Open a session when the server listens. A session that is tried earlier leaves threads that never stop trying."""
    own = ("admin", "client") if (hub / "admin").is_dir() else ("engine", "server")
    parts = [hub / own[0] / "startup" / n for n in ("rootCA.pem", f"{own[1]}.crt", f"{own[1]}.key")]
    for _ in range(120):
        if process.poll() is not None:
            return None
        try:
            check_connection(study.host, study.port, parts[0], parts[1], parts[2], here=True)
            return engine_of(study).control(hub, study)
        except EngineError:
            time.sleep(0.5)
        except ConfigError:
            raise
        except Exception:  # the server listens but does not answer yet; its own log says more
            time.sleep(1)
    return None


def _all_there(admin: Control, hub: Path, study: Study, say: Say, names: Sequence[str] = ()) -> None:
    """Wait until these organisations, or all, are connected, saying and recording who is missing when that changes."""
    names = names or study.organisations
    job = job_hash(study, read_roster(hub, study)).hex()
    before: list[str] | None = None
    until = time.monotonic() + study.patience
    while True:
        there = admin.connected()
        missing = [n for n in names if n not in there]
        if not missing:
            if before:
                waiting(hub, job, study.organisations, [])
            return
        if missing != before:
            waiting(hub, job, study.organisations, missing)
            say(f"waiting for {', '.join(missing)} to join.")
            before = missing
        if time.monotonic() > until:
            why = f"{', '.join(missing)} did not join within {study.patience:.0f} s."
            if len(names) < len(study.organisations):
                raise EngineError(
                    f"{why} The others have their results, and their last frames lie here. Run this again when "
                    f"{', '.join(missing)} can join."
                )
            raise EngineError(
                f"{why} Ask them; or go on without them by a new "
                f"revision that all others approve: fedmiss federation revise STUDY --without {missing[0]}"
            )
        time.sleep(1)


def _watch(admin: Control, job: str, process: subprocess.Popen[bytes], hub: Path, say: Say) -> None:
    """Wait until the submitted job is over, saying who does not answer.

    A site that leaves or is started again while the engine sets the job up has no part in it, and the engine would wait for
    it: that job is ended. Once the relay asks, it notices such sites itself.
    """
    last, first, idle, checked = None, status(hub), 0, time.monotonic()
    while process.poll() is None:
        time.sleep(0.5)
        now = status(hub)
        if now.get("state") in ("done", "stopped", "interrupted"):
            return
        if now.get("missing") and now["missing"] != last:
            say(f"waiting for {', '.join(now['missing'])}.")
        last = now.get("missing")
        try:
            if admin.over(job):
                return
            if now == first and time.monotonic() - checked > CHECK:
                names, checked = admin.idle(job), time.monotonic()
                idle = idle + 1 if names else 0
                if idle >= IDLE:
                    say(
                        f"{', '.join(names)} has no part in job {job[:8]}: it left, or was started again, while it began."
                    )
                    admin.abort(job)
                    return
        except Exception:  # the session broke with the server
            return


def _ended(admin: Control, job: str, seconds: float = 60.0) -> None:
    """Wait until the engine has ended a job."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if admin.over(job):
                return
        except Exception:  # the session broke with the server
            return
        time.sleep(0.5)
