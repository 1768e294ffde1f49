"""Flower carries the frames: its Fleet API over HTTPS, with certificates on both sides. It does not read them.

Flower's own SuperNode fetches an app from the hub and runs it. An organisation here runs ``flower_site``
instead: it speaks the Fleet API with Flower's client, asks for messages only, and fetches and runs no app. The hub is
Flower's link state behind Flower's Fleet routes, without the routes that start runs. Measured with Flower 1.41.
"""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmiss.errors import EngineError
from fedmiss.federation.site import MOST_BYTES
from fedmiss.files import read_json
from fedmiss.network.engine import farewell, need, spawn
from fedmiss.network.flower_kits import NODES, parts, provision
from fedmiss.network.flower_site import BEAT, FAST, content_of, frame_of
from fedmiss.network.hub import Status, preview_study, run_study, status
from fedmiss.network.study import Study, job_hash, read_roster, read_study

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Flower, and the servers that come with it, are an optional extra, so functions import them when they are called.
__all__ = ["FlowerControl", "control", "provision", "start_hub", "start_site"]

LIFE = 7 * 86400.0  # seconds that a message may live
HERE = "fedmiss.network.flower"
SITE = "fedmiss.network.flower_site"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


# -- the hub's end -------------------------------------------------------------------------------------------


def hub(engine: Path) -> None:
    """Listen, wait until all are there, run the study's job; a failure stays in the study's status."""
    folder = engine.parent
    study = read_study(folder)
    carrier = _Carrier(engine, study)
    note = Status(
        folder / "status.json", job_hash(study, read_roster(folder, study)).hex(), study.organisations
    )
    until, before = time.monotonic() + study.patience, None
    while missing := [n for n in study.organisations if n not in carrier.there()]:
        if missing != before:
            note.away(missing)
            before = missing
        if time.monotonic() > until:
            return
        time.sleep(0.2)
    end = preview_study if os.environ.get("FEDMISS_PREVIEW") else run_study
    end(folder, carrier, patience=3 * BEAT)


class _Carrier:
    """Flower's link state and Fleet routes in this process; a message to a site whose process died is dropped."""

    def __init__(self, engine: Path, study: Study) -> None:
        from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
        from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

        factory = get_objectstore_linkstate_factories(FLWR_IN_MEMORY_DB_NAME, get_federation_manager())[1]
        self.state = state = factory.state()
        self.names: Sequence[str] = study.organisations
        keys = read_json(engine / NODES)
        self.node = {
            n: state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, keys[n].encode(), BEAT, name=n)
            for n in self.names
        }
        run = state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        self.run, self.task = run, state.get_run_info(run_ids=[run])[0].primary_task_id
        state.claim_task(self.task)
        state.activate_task(self.task)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 1, self.task
        self.carried = {"bytes_up": 0, "bytes_down": 0}
        self.stop = _serve(factory, engine, study)

    def there(self) -> dict[str, str]:
        """Return the organisations that report to be alive, and since when."""
        self.state.acknowledge_task_heartbeat(self.task)
        nodes = {i.node_id: i for i in self.state.get_node_info(node_ids=list(self.node.values()))}
        return {
            n: str(nodes[i].last_activated_at) for n, i in self.node.items() if nodes[i].status == "online"
        }

    def ask(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Carry frames; a site that is away, or was started again meanwhile, is missing from the reply."""
        there = self.there()
        asked = [n for n in frames if n in there]
        waits = {self._push(n, frames[n]): n for n in asked}
        out: dict[str, bytes] = {}
        looked = time.monotonic()
        while waits:
            for head in self.state.get_message_res(message_ids=set(waits), run_id=self.run):
                name = waits.pop(head.metadata.reply_to_message_id)
                if frame := self._pull(head):
                    out[name] = frame
            if time.monotonic() - looked > 1.0:
                looked, now = time.monotonic(), self.there()
                lost = {m for m, n in waits.items() if now.get(n) != there[n]}
                self.state.delete_messages(lost)
                waits = {m: n for m, n in waits.items() if m not in lost}
            time.sleep(FAST / 2)
        self.carried["bytes_down"] += sum(len(frames[n]) for n in asked)
        self.carried["bytes_up"] += sum(map(len, out.values()))
        return out

    def farewell(self) -> None:
        """Tell all sites that the hub has its result."""
        farewell(self.ask, self.names)

    def _push(self, name: str, frame: bytes) -> str:
        """Store a message for an organisation: its head, the list of its parts, the parts."""
        from flwr.app.message import Message, remove_content_from_message
        from flwr.supercore.inflatable import inflatable_object as parts_of

        with parts_of.no_object_id_recompute():
            message = Message(content_of(frame), self.node[name], "query", ttl=LIFE)
            number = message.metadata.__dict__["_message_id"] = message.object_id
            tree, objects = parts_of.get_object_tree(message), parts_of.get_all_nested_objects(message)
            session = self.state.start_session(self.run)
            head = remove_content_from_message(message)
            for part in self.state.store_message_and_object_tree(head, tree, session)[1]:
                self.state.store_object(self.run, session, part, objects[part].deflate())
        return str(number)

    def _pull(self, head: Any) -> bytes:
        """Return the frame of an answer whose head has arrived, when its parts have; empty if they do not arrive."""
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        number, until = head.metadata.message_id, time.monotonic() + 60.0
        wanted = {
            part.object_id for part in iterate_object_tree(self.state.object_store.get_object_tree(number))
        }
        parts: dict[str, bytes] = {}
        while wanted and time.monotonic() < until:
            parts |= {one: raw for one in wanted if (raw := self.state.get_object(self.run, one))}
            wanted -= set(parts)
            time.sleep(FAST / 10 if wanted else 0.0)
        self.state.delete_messages({head.metadata.reply_to_message_id})
        frame = b"" if wanted else frame_of(inflate_object_from_contents(number, parts))
        self.state.object_store.delete(number)
        return frame


def _serve(factory: Any, engine: Path, study: Study) -> Callable[[], None]:
    """Serve only Flower's Fleet routes, to clients with a certificate of this study; return the function that stops it."""
    import uvicorn
    from fastapi import FastAPI
    from flwr.supercore.error import http_error_translator
    from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
    from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
    from flwr.superlink.routers.fleet.router import router
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware

    logging.getLogger("flwr").setLevel(logging.WARNING)
    layers = [Middleware(_Limit), Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
              Middleware(ProtobufTranslationMiddleware), Middleware(NodeAuthMiddleware)]  # fmt: skip
    app = FastAPI(title=study.name, docs_url=None, redoc_url=None, openapi_url=None, middleware=layers)
    app.state.linkstate_factory, app.state.enable_supernode_auth = factory, True
    app.include_router(router)
    root, certificate, key = parts(engine)
    near = study.host in ("localhost", "127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(
        app, host="127.0.0.1" if near else "0.0.0.0", port=study.port, log_level="warning", access_log=False,
        ssl_ca_certs=str(root), ssl_certfile=str(certificate), ssl_keyfile=str(key), ssl_cert_reqs=ssl.CERT_REQUIRED,
    ))  # fmt: skip
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(10)

    for _ in range(200):
        if server.started:
            return stop
        time.sleep(0.05)
    raise EngineError(f"port {study.port} cannot be opened on this computer. Is another program using it?")


class _Limit:
    """Refuses requests that are longer than a message may be, or do not say how long they are."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            length = dict(scope["headers"]).get(b"content-length", b"")
            if not length.isdigit() or int(length) > MOST_BYTES:
                await send({"type": "http.response.start", "status": 413, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)


# -- processes -----------------------------------------------------------------------------------------------


def start_site(kit: Path, name: str, log: Path) -> subprocess.Popen[bytes]:
    """Start Flower's end at an organisation."""
    need("flwr", "flower")
    return spawn([SITE, str((kit / "engine").resolve())], log, QUIET)


def start_hub(hub: Path, log: Path, *, preview: bool = False) -> subprocess.Popen[bytes]:
    """Start Flower's end at the hub."""
    need("flwr", "flower")
    more = QUIET | {"FEDMISS_PREVIEW": "1" if preview else ""}
    return spawn([HERE, str((hub / "engine").resolve())], log, more)


class FlowerControl:
    """The hub's process waits for all and begins by itself; its status names who is missing."""

    def __init__(self, hub: Path, study: Study) -> None:
        self.hub, self.study = hub, study

    def connected(self) -> list[str]:
        """Names of connected organisations."""
        now = status(self.hub)
        return (
            []
            if now["state"] == "not begun"
            else [n for n in self.study.organisations if n not in now["missing"]]
        )

    def submit(self) -> str:
        """Do nothing: the hub begins by itself."""
        return self.study.name

    def over(self, job: str) -> bool:
        """The job ends with its process."""
        return False

    def close(self) -> None:
        """Do nothing: there is no connection."""


def control(hub: Path, study: Study) -> FlowerControl:
    """Connect to a hub that listens."""
    return FlowerControl(hub, study)


if __name__ == "__main__":
    hub(Path(sys.argv[1]))
