"""An organisation's end over Flower: it asks the hub for messages, and cannot fetch or run an app."""

from __future__ import annotations

import logging
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmiss.errors import ConfigError, EngineError
from fedmiss.network.engine import Responding
from fedmiss.network.flower_kits import parts

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from flwr.app.message import Message, RecordDict
    from flwr.proto.node_pb2 import Node
    from flwr.supernode.fleet_http_client import FleetHttpClient

# Flower and cryptography are optional extras, so functions import them when they are called.
__all__ = ["BEAT", "FAST", "content_of", "frame_of", "site"]

FAST, SLOW = 0.01, 0.25  # seconds between two requests: after a message, and at most when none arrives
BEAT = 10.0  # seconds; a site that is silent for two intervals counts as gone


def site(engine: Path) -> None:
    """Answer the hub while this process lives; connect again when the hub was away."""
    import httpx
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    program = Responding(engine.parent)
    study, (root, certificate, key_file) = program.kit.study, parts(engine)
    key: Any = load_pem_private_key(key_file.read_bytes(), None)
    context = ssl.create_default_context(cafile=str(root))
    context.load_cert_chain(certificate, key_file)
    signing = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    while True:  # `join` ends this process
        try:
            with FleetHttpClient(
                f"https://{study.host}:{study.port}", interceptors=signing, verify=context, timeout=60.0
            ) as hub:
                _answer(hub, key.public_key(), program)
        except (httpx.HTTPError, EngineError) as error:
            logging.getLogger(__name__).warning("the hub is away (%s); looking for it again.", error)
            time.sleep(1.0)


def _answer(hub: FleetHttpClient, public: EllipticCurvePublicKey, program: Responding) -> None:
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    asked = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=BEAT)
    try:
        node = Node(node_id=hub.ActivateNode(asked).node_id)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            raise ConfigError(
                "the hub refuses this organisation's key: the clocks of this computer and of the hub are more than five "
                "minutes apart, or the kit is not of this study. Set the clock, or ask the coordinator."
            ) from None
        raise
    leave = threading.Event()
    beat = threading.Thread(target=_beat, args=(hub, node, leave), daemon=True)
    beat.start()
    pause = FAST
    try:
        while True:
            pulled = hub.PullMessages(PullMessagesRequest(node=node))
            if not pulled.messages_list:
                time.sleep(pause)
                pause = min(1.3 * pause, SLOW)
                continue
            message = _fetch(hub, node, pulled.messages_list[0], pulled.message_object_trees[0])
            _push(hub, node, message, program.answer(frame_of(message)))
            pause = FAST
    finally:
        leave.set()


def _beat(hub: FleetHttpClient, node: Node, leave: threading.Event) -> None:
    import httpx
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

    while not leave.wait(BEAT / 3):
        try:
            hub.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=BEAT))
        except httpx.HTTPError:  # the main loop gets the same error, and logs it
            continue


def _fetch(hub: FleetHttpClient, node: Node, head: Any, tree: Any) -> Message:
    """Fetch the whole message, of which the hub has sent head and list of parts."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    number, run = head.metadata.message_id, head.metadata.run_id
    contents: dict[str, bytes] = {}
    for part in iterate_object_tree(tree):
        until = time.monotonic() + 60.0
        ask = PullObjectRequest(node=node, run_id=run, object_id=part.object_id)
        while not (got := hub.PullObject(ask)).object_available:
            if not got.object_found or time.monotonic() > until:
                raise EngineError("a part of the hub's message is missing")
            time.sleep(FAST)
        contents[part.object_id] = got.object_content
    hub.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=number))
    message: Message = inflate_object_from_contents(number, contents)
    message.metadata.__dict__["_message_id"] = number
    return message


def _push(hub: FleetHttpClient, node: Node, asked: Message, frame: bytes) -> None:
    """Send an answer: its head and list of parts, then the parts that the hub asks for."""
    from flwr.app.message import Message, remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.supercore.inflatable import inflatable_object as parts_of

    with parts_of.no_object_id_recompute():
        reply = Message(content_of(frame), reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        head = message_to_proto(remove_content_from_message(reply))
        tree, objects = parts_of.get_object_tree(reply), parts_of.get_all_nested_objects(reply)
        said = PushMessagesRequest(
            node=node, messages_list=[head], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )
        got = hub.PushMessages(said)
        for part in got.objects_to_push:
            one = PushObjectRequest(
                node=node, run_id=asked.metadata.run_id, object_id=part, object_content=objects[part].deflate(),
                session_id=got.session_id,
            )  # fmt: skip
            if not hub.PushObject(one).stored:
                raise EngineError("the hub did not take a part of the answer")


def content_of(frame: bytes) -> RecordDict:
    """Return a message's content that holds a frame."""
    from flwr.app.message import ConfigRecord, RecordDict

    return RecordDict({"fedmiss": ConfigRecord({"frame": frame})})


def frame_of(message: Message) -> bytes:
    """Return the frame in a message; empty for a message of another program."""
    record = message.content.get("fedmiss", {}) if message.has_content() else {}
    frame = record.get("frame", b"")
    return frame if isinstance(frame, bytes) else b""


if __name__ == "__main__":
    site(Path(sys.argv[1]))
