"""NVFLARE carries the frames: provisioned kits, mutual TLS, the Collab API. Nothing here looks into a frame.

The job that is submitted names two classes of this module and nothing else: no code travels. Each end reads its settings
from its own folder, which the environment variable ``FEDMISS_KIT`` (``FEDMISS_HUB``) names. Measured with NVFLARE 2.9.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from fedmiss.errors import EngineError
from fedmiss.network.study import Study

__all__ = ["HubApp", "SiteApp", "provision", "start_hub", "start_site", "submit"]

ADMIN = "coordinator@fedmiss.org"
HERE = "fedmiss.network.nvflare"
ALLOWED = [
    "nvflare.collab.runtime.controller.CollabController", "nvflare.collab.runtime.executor.CollabExecutor",
    f"{HERE}.HubApp", f"{HERE}.SiteApp",
]  # fmt: skip
TIMEOUT = 3600.0  # seconds for one answer: a long bootstrap exchange of a large panel
PULSE, GONE = 5.0, 2  # a site that does not say in so many tries of so many seconds that it is alive is gone


def _need() -> None:
    try:
        importlib.import_module("nvflare")
    except ImportError:
        raise EngineError(
            "the engine nvflare is not installed. Say: pip install 'fedmiss[nvflare]' (NVFLARE 2.9), "
            "in an environment of its own."
        ) from None


# -- both ends, started by the engine ------------------------------------------------------------------------


def _collab() -> Any:
    return importlib.import_module("nvflare.collab").collab


class SiteApp:
    """An organisation's end inside the engine: bytes in, bytes out."""

    def __init__(self) -> None:
        self._program: Any = None
        self._done = Path()

    def ready(self) -> None:
        """Compile and replay before the engine says that this site is there."""
        from fedmiss.network.kits import open_kit
        from fedmiss.network.outbox import holder
        from fedmiss.network.site import DATA, program_of, warm_up

        kit = open_kit(os.environ["FEDMISS_KIT"])
        warm_up()
        self._done = kit.private / f"{kit.job.hex()[:16]}.done"
        local = json.loads((kit.private / DATA).read_text())
        for attempt in range(
            60
        ):  # the job before this one may still be ending, with the journal in its hands
            try:
                self._program = program_of(kit, Path(local["data"]), holder(kit) if local["look"] else None)
                return
            except EngineError as error:
                if attempt == 59 or not error.fields.get("busy"):
                    raise
                time.sleep(0.5)

    def alive(self) -> bool:
        """Say that this end is there, also while it works."""
        return True

    def answer(self, frame: bytes) -> bytes:
        """Answer one frame."""
        out: bytes = self._program.answer(bytes(frame))
        if self._program.program.result is not None:
            self._done.touch()
        return out


class HubApp:
    """The coordinator's end inside the engine."""

    def main(self) -> None:
        """Run the study's job; a failure stays in the study's status, and the coordinator's process tries again."""
        from fedmiss.network.hub import preview_study, run_study

        end = preview_study if os.environ.get("FEDMISS_PREVIEW") else run_study
        end(Path(os.environ["FEDMISS_HUB"]), _Carrier(_collab()), patience=GONE * PULSE)


class _Carrier:
    """Asks all sites at once through the Collab API, and notices one that has died by asking whether it is alive."""

    def __init__(self, collab: Any) -> None:
        self.clients = {c.name: c for c in collab.clients}
        self.names: Sequence[str] = tuple(sorted(self.clients))
        self.carried = {"bytes_up": 0, "bytes_down": 0}
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
        got = {name: raw for name, job in jobs.items() if isinstance(raw := job.result(), bytes)}
        self.carried["bytes_down"] += sum(map(len, frames.values()))
        self.carried["bytes_up"] += sum(map(len, got.values()))
        return got

    def _call(self, name: str, what: str, timeout: float, *frame: bytes) -> Any:
        try:
            return getattr(self.clients[name](timeout=timeout), what)(*frame)
        except Exception:  # the engine's own words are in its log; who is missing is said by the study
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


# -- kits ----------------------------------------------------------------------------------------------------


def provision(study: Study, out: Path) -> None:
    """Make certificates and addresses for the hub and every organisation."""
    _need()
    people: list[dict[str, Any]] = [
        {
            "name": study.host,
            "type": "server",
            "org": "hub",
            "fed_learn_port": study.port,
            "admin_port": study.port,
        },
        *({"name": n, "type": "client", "org": n} for n in study.organisations),
        {"name": ADMIN, "type": "admin", "org": "hub", "role": "project_admin"},
    ]
    impl = "nvflare.lighter.impl"
    project = {
        "api_version": 3, "name": study.name, "description": study.species, "participants": people,
        "builders": [
            {"path": f"{impl}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{impl}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{impl}.cert.CertBuilder"},
            {"path": f"{impl}.signature.SignatureBuilder"},
        ],
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fedmiss-") as tmp:
        path = Path(tmp) / "project.yml"
        path.write_text(json.dumps(project))  # JSON is YAML
        done = _run(["nvflare.lighter.provision", "-p", str(path), "-w", tmp])
        made = Path(tmp) / study.name / "prod_00"
        if not made.is_dir():
            raise EngineError(
                f"NVFLARE could not make the kits: {done.strip().splitlines()[-1] if done.strip() else 'no reason given'}."
            )
        for name in study.organisations:
            shutil.move(made / name, out / "kits" / name / "engine")
            _policy(out / "kits" / name / "engine")
        shutil.move(made / study.host, out / "hub" / "engine")
        _policy(out / "hub" / "engine")
        shutil.move(made / ADMIN, out / "hub" / "admin")
        shutil.move(Path(tmp) / study.name / "state", out / "hub" / "certificates")


def _policy(engine: Path) -> None:
    """No code from outside, two classes of ours only, whoever asks; and no log leaves: logs hold what errors say of data."""
    local = engine / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": ALLOWED,
        "allow_log_streaming": False,
    }
    resources["components"] = [
        c for c in resources["components"] if c["id"] not in ("site_log_streamer", "log_receiver")
    ]
    (local / "resources.json").write_text(json.dumps(resources, indent=1))
    rights = dict.fromkeys(("submit_job", "manage_job", "view", "operate"), "any")
    rights |= dict.fromkeys(
        ("download_job", "clone_job", "shell_commands", "byoc", "server-predeployed-flwr"), "none"
    )
    policy = {"format_version": "1.0", "permissions": {"project_admin": rights}}
    (local / "authorization.json").write_text(json.dumps(policy, indent=1))


def _storage(engine: Path) -> None:
    """Keep the engine's jobs in the study's folder, wherever that lies now, not in a common one of the system."""
    path = engine / "local" / "resources.json"
    at = json.dumps(str((engine / "storage").resolve()))[1:-1]
    path.write_text(
        re.sub(
            r'("root_dir"|"uri_root"): "[^"]*/(snapshot|jobs)-storage"',
            rf'\1: "{at}/\2-storage"',
            path.read_text(),
        )
    )


def _run(module_and_args: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *module_and_args],
        capture_output=True,
        text=True,
        env=_environment({}),
        timeout=300,
    )
    return done.stdout + done.stderr


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **more}


# -- processes -----------------------------------------------------------------------------------------------


def start_site(kit: Path, name: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the engine at an organisation."""
    _need()
    more = {"FEDMISS_KIT": str(kit.resolve())}
    return _start(
        "client.client_train", kit / "engine", "fed_client.json", [f"uid={name}", f"org={name}"], more, log
    )


def start_hub(hub: Path, log: Path, *, preview: bool = False) -> subprocess.Popen[bytes]:
    """Start the engine at the hub."""
    _need()
    _storage(hub / "engine")
    more = {"FEDMISS_HUB": str(hub.resolve()), "FEDMISS_PREVIEW": "1" if preview else ""}
    return _start("server.server_train", hub / "engine", "fed_server.json", ["org=hub"], more, log)


def _start(
    module: str, engine: Path, config: str, more: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    for name in ("pid.fl", "shutdown.fl", "restart.fl"):
        (engine / name).unlink(missing_ok=True)
    with open(log, "ab") as stream:
        return subprocess.Popen(
            [
                sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}", "-m", str(engine.resolve()), "-s", config,
                "--set", "secure_train=true", *more, "config_folder=config",
            ],
            stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env=_environment(environment), start_new_session=True,
        )  # fmt: skip


class Admin:
    """The coordinator's session with its own server."""

    def __init__(self, hub: Path, timeout: float = 60.0) -> None:
        api = importlib.import_module("nvflare.fuel.flare_api.flare_api")
        self.session = api.new_secure_session(ADMIN, str((hub / "admin").resolve()), timeout=timeout)

    def connected(self) -> list[str]:
        """Names of connected organisations."""
        return sorted(c.name for c in self.session.get_system_info().client_info)

    def submit(self, folder: Path) -> str:
        """Submit a job; its number."""
        return str(self.session.submit_job(str(folder)))

    def state(self, job: str) -> str:
        """State of a job in the engine's words."""
        return str(self.session.get_job_meta(job).get("status", ""))

    def stop(self, job: str) -> None:
        """Stop a job."""
        self.session.abort_job(job)

    def close(self) -> None:
        """End the session."""
        self.session.close()


def submit(admin: Admin, study: Study) -> str:
    """Submit the study's job: settings of the engine, no code."""
    with tempfile.TemporaryDirectory(prefix="fedmiss-") as tmp:
        return admin.submit(job_folder(study, Path(tmp) / study.name))


def job_folder(study: Study, out: Path) -> Path:
    """Files of the job that is submitted."""
    controller = {"server_obj_id": "_server", "collab_obj_ids": [], "sync_task_timeout": 600}
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": ALLOWED[0], "args": controller}],
        "components": [{"id": "_server", "path": f"{HERE}.HubApp", "args": {}}],
    }
    client = {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {"path": ALLOWED[1], "args": {"client_obj_id": "_client", "collab_obj_ids": []}},
            }
        ],
        "components": [{"id": "_client", "path": f"{HERE}.SiteApp", "args": {}}],
    }
    names = list(study.organisations)
    meta = {
        "name": study.name, "resource_spec": {}, "min_clients": len(names), "mandatory_clients": names,
        "deploy_map": {"server": ["server"], "site": names},
    }  # fmt: skip
    for app, which, config in (("server", "server", server), ("site", "client", client)):
        folder = out / app / "config"
        folder.mkdir(parents=True)
        (folder / f"config_fed_{which}.json").write_text(json.dumps(config))
    (out / "meta.json").write_text(json.dumps(meta))
    return out
