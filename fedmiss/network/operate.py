"""The loops of `join` and `run`: start the engine, start it again when it dies, and end when the job is done."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedmiss.errors import ConfigError, EngineError
from fedmiss.files import read_json
from fedmiss.network.engine import Control, engine_of
from fedmiss.network.hub import STATUS, status, waiting
from fedmiss.network.kits import Kit
from fedmiss.network.outbox import REFUSALS
from fedmiss.network.preflight import check_certificate, check_port, check_version, reach
from fedmiss.network.site import start
from fedmiss.network.study import Study, job_hash, read_roster, read_study
from fedmiss.owner import remove_state
from fedmiss.progress import interrupt

__all__ = ["join", "run", "stop_on_request"]

Say = Callable[[str], None]


def join(kit: Kit, data: Path, *, say: Say = print, look: bool = False) -> None:
    """Take part in the approved job until it is done; a killed engine is started again."""
    stop_on_request()
    check_version(kit, str(read_json(kit.folder / "kit.json").get("version", "")))
    engine, carrier = kit.folder / "engine", engine_of(kit.study)
    parts = [engine / "startup" / n for n in ("rootCA.pem", "client.crt", "client.key")]
    if kit.done.exists() and not _listens(kit, parts):
        return
    check_certificate(parts[1])
    start(kit, data, look=look)
    log = kit.private / "engine.log"
    process: subprocess.Popen[bytes] | None = None
    said, deaths, begun, stay = "", 0, 0.0, Stay(kit, lambda: _listens(kit, parts))
    end_leftovers(engine)
    refusals = kit.private / REFUSALS
    told = _size(refusals)
    try:
        while True:
            if _size(refusals) > told:
                with open(refusals, "rb") as stream:
                    stream.seek(told)
                    new = stream.read()
                told += len(new)
                for line in new.decode(errors="replace").splitlines():
                    say(f"{kit.name}: {line}")
            if stay.over():
                return
            if process is None or process.poll() is not None:
                if process is not None:
                    end(process)  # its children may be alive
                    deaths = deaths + 1 if time.monotonic() - begun < QUICK else 0
                    _not_too_often(deaths, log)
                    say(
                        f"{kit.name}: the engine ended and is started again. Its last line in {log}: {last_line(log)}"
                    )
                try:
                    reach(kit.study.host, kit.study.port, parts[0], parts[1], parts[2])
                except EngineError as error:
                    if str(error) != said:
                        say(f"{error} Waiting for it.")
                        said = str(error)
                    time.sleep(2)
                    continue
                process, begun = carrier.start_site(kit.folder, kit.name, log), time.monotonic()
                say(
                    f"{kit.name}: connected to {kit.study.host} port {kit.study.port}; waiting for questions."
                )
            time.sleep(0.5)
    finally:
        end(process)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Stay:
    """Whether an organisation may leave: the hub has its result, or has been away long after the last answer.

    Before the hub reports its result, it may be killed while answers of others are missing. It is then started again, and
    needs all organisations.
    """

    def __init__(self, kit: Kit, listens: Callable[[], bool]) -> None:
        self.kit, self.listens = kit, listens
        self.until = self.away = 0.0

    def over(self) -> bool:
        """Check what the engine's end has recorded, and whether the hub listens."""
        done = self.kit.done.exists()
        if not done and not self.kit.answered.exists():
            return False
        now, there = time.monotonic(), self.listens()
        if done:
            self.until = self.until or now + LINGER
            return now > self.until or not there
        self.away = 0.0 if there else self.away or now
        return bool(self.away) and now - self.away > RETURN


def _listens(kit: Kit, parts: list[Path]) -> bool:
    try:
        reach(kit.study.host, kit.study.port, parts[0], parts[1], parts[2])
        return True
    except (EngineError, ConfigError):
        return False


LINGER = 120.0  # seconds that a site stays when its job is done and the hub still listens
RETURN = 300.0  # seconds that a site with all answered waits for a hub that left without a farewell
ENGINES = (b"nvflare.private.fed.app", b"fedmiss.network.flower")  # modules that engines are started as
QUICK, OFTEN = 20.0, 5  # give up on an engine that dies within so many seconds, so many times in a row


def last_line(log: Path) -> str:
    """The last line of an engine's log."""
    lines = [x for x in log.read_text(errors="replace").splitlines() if x.strip()] if log.exists() else []
    return lines[-1][:300] if lines else "nothing"


def _not_too_often(deaths: int, log: Path) -> None:
    if deaths >= OFTEN:
        raise EngineError(
            f"the engine dies as soon as it is started, {deaths} times now. Its last line in {log}: {last_line(log)}"
        )


def stop_on_request() -> None:
    """Let SIGTERM do what Ctrl-C does: end the engine too. Only the main thread may set signals."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def end_leftovers(engine: Path) -> None:
    """End engines of this very folder that outlived the `join` or `run` that had started them (kill -9)."""
    mark, table = str(engine.resolve()).encode(), Path("/proc")
    for entry in table.iterdir() if table.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if mark in words and any(w.startswith(ENGINES) for w in words):
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue


def end(process: subprocess.Popen[bytes] | None) -> None:
    """End an engine and its children."""
    if process is None:
        return
    for what in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, what)
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    _end_group(process.pid)


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def run(folder: Path, *, say: Say = print, preview: bool = False) -> Path:
    """Run a study to its end, continuing an earlier run; return the folder of its result (or the file of its preview).

    Raises
    ------
    EngineError    an organisation refused, or there was no progress for as long as the study's patience
    """
    stop_on_request()
    hub, study = folder / "hub", read_study(folder)
    job_id = job_hash(study, read_roster(hub, study)).hex()[:16]
    out = hub / (f"preview-{job_id}.json" if preview else f"result-{job_id}")
    if out.exists():
        return out
    check_certificate(hub / "engine" / "startup" / "server.crt")
    log = hub / "engine.log"
    remove_state(hub / STATUS)
    end_leftovers(hub / "engine")
    check_port(study.port)
    carrier = engine_of(study)
    process = carrier.start_hub(hub, log, preview=preview)
    admin: Control | None = None
    try:
        before, since, deaths = -1, time.monotonic(), 0
        while time.monotonic() - since < max(study.patience, 60.0):
            if process.poll() is not None:
                end(process)
                deaths += 1
                _not_too_often(deaths, log)
                say(f"the engine ended and is started again. Its last line in {log}: {last_line(log)}")
                _close(admin)
                process, admin = carrier.start_hub(hub, log, preview=preview), None
            admin = admin or _session(hub, study, process)
            if admin is None:
                continue
            deaths = 0
            _all_there(admin, hub, study, say)
            job = admin.submit()
            say(f"all organisations are connected; job {job[:8]} is under way.")
            if _watch(admin, job, process, out, say):
                return out
            error = status(hub).get("error", "")
            if status(hub).get("state") == "stopped" and "no answer from" not in error:
                raise EngineError(str(error))
            say(f"the job stopped ({error or 'the engine was interrupted'}); it goes on from its journals.")
            if (reached := int(status(hub).get("exchanges", 0))) > before:
                before, since = reached, time.monotonic()
        raise EngineError(
            f"nothing went on for {study.patience:.0f} s; {log} says why. The same command goes on later."
        )
    finally:
        _close(admin)
        end(process)


def _close(admin: Control | None) -> None:
    try:
        if admin is not None:
            admin.close()
    except Exception:  # the server may have ended
        pass


def _session(hub: Path, study: Study, process: subprocess.Popen[bytes]) -> Control | None:
    """Open a session when the server listens. A session that is tried earlier leaves threads that never stop trying."""
    own = ("admin", "client") if (hub / "admin").is_dir() else ("engine", "server")
    parts = [hub / own[0] / "startup" / n for n in ("rootCA.pem", f"{own[1]}.crt", f"{own[1]}.key")]
    for _ in range(120):
        if process.poll() is not None:
            return None
        try:
            reach(study.host, study.port, parts[0], parts[1], parts[2])
            return engine_of(study).control(hub, study)
        except EngineError:
            time.sleep(0.5)
        except ConfigError:
            raise
        except Exception:  # the server listens but does not answer yet; its own log says more
            time.sleep(1)
    return None


def _all_there(admin: Control, hub: Path, study: Study, say: Say) -> None:
    """Wait until all organisations are connected, saying and recording who is missing when that changes."""
    job = job_hash(study, read_roster(hub, study)).hex()
    before: list[str] | None = None
    until = time.monotonic() + study.patience
    while True:
        there = admin.connected()
        missing = [n for n in study.organisations if n not in there]
        if not missing:
            if before:
                waiting(hub, job, study, [])
            return
        if missing != before:
            waiting(hub, job, study, missing)
            say(f"waiting for {', '.join(missing)} to join.")
            before = missing
        if time.monotonic() > until:
            raise EngineError(
                f"{', '.join(missing)} did not join within {study.patience:.0f} s. Ask them; or go on without them by a new "
                f"revision that all others approve: fedmiss federation revise STUDY --without {missing[0]}"
            )
        time.sleep(1)


def _watch(admin: Control, job: str, process: subprocess.Popen[bytes], out: Path, say: Say) -> bool:
    """Whether the submitted job ended with a result."""
    last, since = None, 0.0
    while process.poll() is None:
        time.sleep(0.5)
        now = status(out.parent)
        if out.exists():  # it is still telling the organisations
            since = since or time.monotonic()
            if now.get("state") in ("done", "previewed") or time.monotonic() - since > 30.0:
                return True
            continue
        if now.get("missing") and now["missing"] != last:
            say(f"no answer from {', '.join(now['missing'])}; asking again.")
        last = now.get("missing")
        try:
            if admin.over(job):
                return out.exists()
        except Exception:  # the session broke with the server
            return out.exists()
    return out.exists()
