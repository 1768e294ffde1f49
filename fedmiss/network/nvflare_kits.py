"""Kits, policies and job files for NVFLARE: the files of its provisioning, and the policies of sites."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmiss.atomic import read_object, write_json
from fedmiss.errors import EngineError
from fedmiss.network.engine import need
from fedmiss.network.preflight import HERE as LOOPBACK
from fedmiss.network.study import Study

ADMIN = "coordinator@fedmiss.org"
HERE = "fedmiss.network.nvflare"
ALLOWED = [
    "nvflare.collab.runtime.controller.CollabController", "nvflare.collab.runtime.executor.CollabExecutor",
    f"{HERE}.HubApp", f"{HERE}.SiteApp",
]  # fmt: skip


def provision(study: Study, out: Path) -> None:
    """Make certificates and addresses for the relay and every organisation."""
    need("nvflare")
    people: list[Mapping[str, object]] = [
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
    """Forbid code from outside, allow two classes of ours only, and send no log: an error in a log may quote data."""
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


def place_storage(engine: Path) -> None:
    """Keep the engine's jobs in the study's folder, at its present place, not in a shared folder of the system."""
    path = engine / "local" / "resources.json"
    at = json.dumps(str((engine / "storage").resolve()))[1:-1]
    path.write_text(
        re.sub(
            r'("root_dir"|"uri_root"): "[^"]*/(snapshot|jobs)-storage"',
            rf'\1: "{at}/\2-storage"',
            path.read_text(),
        )
    )


def place_admin(admin: Path) -> None:
    """Let the coordinator's session go to this computer: it may not reach itself by the name that the organisations know.

    Behind a router that name is the router's, and `run` would never learn that all are connected.
    """
    path = admin / "startup" / "fed_admin.json"
    config = read_object(path, "admin")
    if config["admin"]["host"] != LOOPBACK:
        config["admin"]["host"] = LOOPBACK
        write_json(path, config)


def _run(module_and_args: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *module_and_args], capture_output=True, text=True, timeout=300
    )
    return done.stdout + done.stderr


def job_folder(study: Study, out: Path, names: Sequence[str] = ()) -> Path:
    """Write the files of the job to submit to some organisations, or to all."""
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
    names = list(names or study.organisations)
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
