"""NVFLARE carries the frames: provisioned kits, mutual TLS, the Collab API. Nothing here reads a frame.

The job that is submitted names two classes of this module and nothing else: no code travels. Each end reads its settings
from its own folder, which the environment variable ``FEDMISS_KIT`` (``FEDMISS_HUB``) names. Measured with NVFLARE 2.9.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from fedmiss.network.engine import Responding, log_to, need, relay, spawn
from fedmiss.network.nvflare_kits import ADMIN, job_folder, place_admin, place_storage
from fedmiss.network.nvflare_kits import provision as provision  # an engine's, as the others
from fedmiss.network.study import Study
from fedmiss.owner import remove_state

ENDS = ("FINISHED", "FAILED", "ABORTED", "ABANDONED")

TIMEOUT = 3600.0  # seconds for one answer: a long bootstrap exchange of a large panel
PULSE, GONE = 5.0, 2  # a site without a sign of life in GONE tries of PULSE seconds counts as gone


# -- both ends, started by the engine ------------------------------------------------------------------------


def _collab() -> Any:
    # NVFLARE is an optional extra, and has no types.
    return importlib.import_module("nvflare.collab").collab


class SiteApp:
    """An organisation's end inside the engine: bytes in, bytes out."""

    def __init__(self) -> None:
        self._program: Any = None

    def ready(self) -> None:
        """Compile and replay before the engine reports this site as ready."""
        self._program = Responding(os.environ["FEDMISS_KIT"])

    def alive(self) -> bool:
        """Report that this end is alive, also while it computes."""
        return True

    def answer(self, frame: bytes) -> bytes:
        """Answer one frame."""
        out: bytes = self._program.answer(bytes(frame))
        return out


class HubApp:
    """The relay inside the engine."""

    def main(self) -> None:
        """Bring everybody's frames to everybody; a failure stays in the study's status, and `run` tries again."""
        relay(Path(os.environ["FEDMISS_HUB"]), _Carrier(_collab()).ask)


class _Carrier:
    """Asks all sites at once through the Collab API, and notices one that has died by asking whether it is alive."""

    def __init__(self, collab: Any) -> None:
        self.clients = {c.name: c for c in collab.clients}
        self.names: Sequence[str] = tuple(sorted(self.clients))
        self.pool = ThreadPoolExecutor(8 * len(self.names))

    def ask(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Carry frames; a site that fails or is gone is missing from the reply."""
        jobs = {
            name: self.pool.submit(self._call, name, "answer", TIMEOUT, frame)
            for name, frame in frames.items()
        }
        silent = dict.fromkeys(jobs, 0)
        while wait(jobs.values(), PULSE)[1]:
            for name, job in list(jobs.items()):
                if not job.done():
                    silent[name] = 0 if self._call(name, "alive", PULSE) else silent[name] + 1
                    if silent[name] >= GONE:
                        del jobs[name]
        return {name: raw for name, job in jobs.items() if isinstance(raw := job.result(), bytes)}

    def _call(self, name: str, what: str, timeout: float, *frame: bytes) -> Any:
        try:
            return getattr(self.clients[name](timeout=timeout), what)(*frame)
        except Exception:  # the engine logs its error; the study's status names who is missing
            return None


def _mark() -> None:
    """Publish the methods above to the engine, where it is installed."""
    collab = _collab()
    SiteApp.ready = collab.init(SiteApp.ready)  # type: ignore[method-assign]
    SiteApp.alive = collab.publish(SiteApp.alive)  # type: ignore[method-assign]
    SiteApp.answer = collab.publish(SiteApp.answer)  # type: ignore[method-assign]
    HubApp.main = collab.main(HubApp.main)  # type: ignore[method-assign]


if "nvflare" in sys.modules:
    _mark()


# -- processes -----------------------------------------------------------------------------------------------


def start_member(kit: Path, name: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the engine at an organisation."""
    need("nvflare")
    more = {"FEDMISS_KIT": str(kit.resolve())}
    return _start(
        "client.client_train", kit / "engine", "fed_client.json", [f"uid={name}", f"org={name}"], more, log
    )


def start_relay(hub: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the engine at the relay."""
    need("nvflare")
    place_storage(hub / "engine")
    place_admin(hub / "admin")
    more = {"FEDMISS_HUB": str(hub.resolve())}
    return _start("server.server_train", hub / "engine", "fed_server.json", ["org=hub"], more, log)


def _start(
    module: str, engine: Path, config: str, more: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    for name in ("pid.fl", "shutdown.fl", "restart.fl"):
        remove_state(engine / name)
    words = [f"nvflare.private.fed.app.{module}", "-m", str(engine.resolve()), "-s", config, "--set"]
    return spawn([*words, "secure_train=true", *more, "config_folder=config"], log, environment)


class Admin:
    """The session of whoever runs the relay with its own server."""

    def __init__(self, hub: Path, study: Study) -> None:
        self.study, self.names = study, study.organisations
        log_to(hub / "engine.log")
        api = importlib.import_module("nvflare.fuel.flare_api.flare_api")
        self.session = api.new_secure_session(ADMIN, str((hub / "admin").resolve()), timeout=20.0)

    def connected(self) -> list[str]:
        """Names of connected organisations: those that answer now, since the engine lists one that is gone for minutes."""
        return sorted(c.name for c in self.session.get_system_info().client_info if self._told(c.name))

    def _told(self, name: str) -> list[dict[str, Any]]:
        """What an organisation's engine says of its jobs; nothing where it does not answer."""
        try:
            told = self.session.get_client_job_status([name]) or []
        except Exception:  # of a computer that sleeps, or has left; the session stays
            return []
        return [one for one in told if one.get("status") != "no_reply"]

    def submit(self, names: Sequence[str]) -> str:
        """Submit the study's job (settings of the engine, no code) to these organisations; return its number."""
        self.names = tuple(names)
        with tempfile.TemporaryDirectory(prefix="fedmiss-") as tmp:
            return self.submit_folder(job_folder(self.study, Path(tmp) / self.study.name, names))

    def submit_folder(self, folder: Path) -> str:
        """Submit a job's files; return its number."""
        return str(self.session.submit_job(str(folder)))

    def over(self, job: str) -> bool:
        """Whether a job has ended."""
        return any(word in self.state(job).upper() for word in ENDS)

    def state(self, job: str) -> str:
        """Return the engine's name for the state of a job."""
        return str(self.session.get_job_meta(job).get("status", ""))

    def idle(self, job: str) -> list[str]:
        """Names of organisations that do not answer, or whose engine has no part in a job that others' engines run."""
        told = {n: self._told(n) for n in self.names}
        there = [n for n in self.names if any(one.get("job_id") == job for one in told[n])]
        return [n for n in self.names if not told[n] or (there and n not in there)]

    def abort(self, job: str) -> None:
        """End a job of the engine."""
        self.session.abort_job(job)

    def close(self) -> None:
        """End the session."""
        self.session.close()


def control(hub: Path, study: Study) -> Admin:
    """Open a session with the relay's server."""
    return Admin(hub, study)
