"""`join` and `run`: take part by a shared folder; or start an engine, again when it dies, until the job is done."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmiss.atomic import read_object, write_json
from fedmiss.errors import BusyError, ConfigError, EngineError, FedmissError, InputError, listed
from fedmiss.federation.circle import frame_label
from fedmiss.locks import locked
from fedmiss.network.engine import Control, engine_of, need, still_there
from fedmiss.network.folder import Folder, check_folder, place_of
from fedmiss.network.kits import Kit, job_hash, read_roster, sleeper
from fedmiss.network.member import party_of, start, take_part
from fedmiss.network.method import function_of
from fedmiss.network.outbox import REFUSALS, holder, on_hold
from fedmiss.network.preflight import check_certificate, check_connection, check_port, check_version
from fedmiss.network.status import STATUS, Status, status
from fedmiss.network.study import Study, read_study
from fedmiss.owner import remove_state
from fedmiss.progress import interrupt, progress
from fedmiss.system import command_lines, end_tree, kill, on_request_to_end, open_to_others

Say = Callable[[str], None]


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
        with _alone(kit.folder / "engine", "`fedmiss federation join`"):
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
        waiting(kit.private, kit.job.hex(), kit.study, missing, **now)
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
                    _not_too_often(deaths, log)
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


@contextlib.contextmanager
def _alone(engine: Path, what: str) -> Iterator[None]:
    """Hold an engine's folder: two processes would end each other's engines as leftovers.

    Raises
    ------
    EngineError    another process runs there
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(engine))
        except BusyError as error:
            raise EngineError(
                f"{engine.parent} is at work: {what} runs here already{error.fields.get('owner', '')}. Leave it, or "
                "end it first."
            ) from None
        yield


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


STILL = 60.0  # seconds without an exchange after which `join` says so
GOING = 5.0  # seconds in which an engine that was ended must be gone
LINGER = 120.0  # seconds that an organisation stays when its job is done and the relay still listens
ENGINES = (b"nvflare.private.fed.app",)  # modules that engines are started as
SHARED = "folder.json"  # where the shared folder lies
# seconds between two looks at who takes part in a job that begins; so many without somebody end it
CHECK, IDLE = 5.0, 4
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
        on_request_to_end(interrupt, ["SIGTERM"])()


def end_leftovers(engine: Path) -> None:
    """End engines of this very folder that outlived the `join` or `run` that had started them (kill -9)."""
    mark = str(engine.resolve()).encode()
    until = time.monotonic() + GOING
    while left := [n for n, w in command_lines() if mark in w and any(x.startswith(ENGINES) for x in w)]:
        for number in left:
            with contextlib.suppress(OSError):
                kill(number)
        if time.monotonic() > until:  # of another user: whoever starts next says what is in the way
            return
        time.sleep(0.1)  # it keeps its port until it is gone


def end(process: subprocess.Popen[bytes] | None) -> None:
    """End an engine and its children."""
    if process is not None:
        end_tree(process)


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
    with _alone(hub / "engine", "`fedmiss federation run`"):
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
                _not_too_often(deaths, log)
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
                waiting(hub, job_id, study, [])
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
                waiting(hub, job, study, [])
            return
        if missing != before:
            waiting(hub, job, study, missing)
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


def waiting(hub: Path, job: str, study: Study, missing: Sequence[str], **now: Any) -> None:
    """Record who has not joined, before the first exchange or after a restart, or ``now`` amid the job."""
    before = status(hub)
    known = {k: before[k] for k in ("stage", "exchanges") if k in before and before.get("job") == job}
    Status(hub / STATUS, job, study.organisations).write(
        **(known | now), state="waiting" if missing else "running", missing=list(missing)
    )
