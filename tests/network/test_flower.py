"""Real processes over Flower on this computer: kills, strangers, code from outside, and where connections go."""

from __future__ import annotations

import datetime as dt
import hashlib
import shutil
import socket
import ssl
import time

import pytest

pytest.importorskip("flwr", reason="run by `make test-flower` in an environment with the extra")

import httpx
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.app.message import ConfigRecord, RecordDict
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab as FabProto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode import node_auth_http_interceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmiss.errors import ConfigError
from fedmiss.federation.site import MOST_BYTES
from fedmiss.network import flower, flower_site
from fedmiss.network.demo import demo_study
from fedmiss.network.flower_kits import parts
from fedmiss.network.kits import make_study, open_kit
from fedmiss.network.operate import end
from fedmiss.network.site import start
from fedmiss.network.study import read_study
from tests.network.ends import Laws, prepared_study, uninterrupted_run

pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore"),  # the engine's own
]
PORT = 8172
OPEN: list[FleetHttpClient] = []  # clients of the present test


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepared_study(tmp_path_factory.mktemp("fl"), engine="flower", port=PORT)


@pytest.fixture(scope="module")
def uninterrupted(prepared, tmp_path_factory):
    # it sends with an address by no call but connect
    return uninterrupted_run(prepared, tmp_path_factory.mktemp("trace") / "connect", "connect")


class TestStudy(Laws):
    pass


@pytest.fixture
def listening(prepared, tmp_path):
    """A hub in this process, and the study's folder."""
    folder = tmp_path / "study"
    shutil.copytree(prepared[0], folder)
    carrier = flower._Carrier(folder / "hub" / "engine", read_study(folder))
    yield folder, carrier
    while OPEN:
        OPEN.pop().close()
    carrier.stop()


def client(engine, key_of=None):
    """Flower's client with the certificate of one end, and the node key of the same end or another."""
    root, certificate, key = parts(engine)
    context = ssl.create_default_context(cafile=str(root))
    context.load_cert_chain(certificate, key)
    own = load_pem_private_key(parts(key_of or engine)[2].read_bytes(), None)
    signing = [NodeAuthHttpInterceptor(own, own.public_key())]
    out = FleetHttpClient(f"https://localhost:{PORT}", interceptors=signing, verify=context)
    OPEN.append(out)
    return out, public_key_to_bytes(own.public_key())


def test_a_stranger_gets_nothing(listening, tmp_path):
    folder, carrier = listening
    engine = folder / "kits" / "north" / "engine"
    with pytest.raises(httpx.HTTPError):  # no certificate
        httpx.post(f"https://localhost:{PORT}/v1/fleet/pull-messages", verify=str(parts(engine)[0]))
    other = make_study(
        demo_study(bootstrap=10, port=PORT, engine="flower"), tmp_path / "other", flower.provision
    )
    shutil.copy(parts(engine)[0], parts(other / "kits" / "north" / "engine")[0])  # it knows the true root
    foreign, key = client(other / "kits" / "north" / "engine")
    with pytest.raises(httpx.HTTPError):  # a certificate of another study
        foreign.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=10))
    mixed, key = client(engine, other / "kits" / "south" / "engine")
    for call in (
        lambda: mixed.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=10)),
        lambda: mixed.RegisterNode(RegisterNodeFleetRequest(public_key=key)),
    ):
        with pytest.raises(
            httpx.HTTPStatusError
        ):  # a key that is not in the roster: neither there nor to be added
            call()
    assert carrier.there() == {}

    # north under south's name: its messages cannot be asked for
    north, key = client(engine)
    north.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=10))
    assert list(carrier.there()) == ["north"]
    with pytest.raises(httpx.HTTPStatusError):
        north.PullMessages(PullMessagesRequest(node=Node(node_id=carrier.node["south"])))


def test_a_wrong_clock_is_said_at_once(listening, monkeypatch):
    north, _ = client(listening[0] / "kits" / "north" / "engine")
    monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: now() - dt.timedelta(minutes=10))
    own = load_pem_private_key(parts(listening[0] / "kits" / "north" / "engine")[2].read_bytes(), None)
    with pytest.raises(ConfigError, match="more than five minutes apart"):
        flower_site._answer(north, own.public_key(), None)


def test_runs_and_long_messages_are_refused_at_the_hub(listening):
    north, _ = client(listening[0] / "kits" / "north" / "engine")
    kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    run = StartRunRequest(fab=FabProto(hash_str="0" * 64, content=b"code")).SerializeToString()
    for path in ("/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/openapi.json"):
        got = north._client.post(f"https://localhost:{PORT}{path}", content=run, headers=kind)
        assert got.status_code == 404, path
    root, certificate, key = parts(listening[0] / "kits" / "north" / "engine")
    context = ssl.create_default_context(cafile=str(root))
    context.load_cert_chain(certificate, key)
    for length in (
        "transfer-encoding: chunked",
        f"content-length: {MOST_BYTES + 1}",
    ):  # unknown, and too long
        with (
            socket.create_connection(("localhost", PORT)) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as line,
        ):
            line.sendall(
                f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: localhost\r\n{length}\r\n\r\n".encode()
            )
            assert b" 413 " in line.recv(200)


def test_a_hub_that_sends_an_app_gets_no_code_run(listening, prepared, tmp_path, monkeypatch):
    """The hub's run has an app with code; the site asks for messages only, and answers what is no frame by a refusal."""
    folder, carrier = listening
    asked = []
    plain = carrier.state.get_fab
    carrier.state.get_fab = lambda *a: asked.append(a) or plain(*a)
    proof = tmp_path / "it-ran"
    code = f"open({str(proof)!r}, 'w').close()"
    run = carrier.state.get_run_info(run_ids=[carrier.run])[0]
    run.fab_hash = carrier.state.store_fab(Fab(hashlib.sha256(code.encode()).hexdigest(), code.encode(), {}))
    kit = open_kit(folder / "kits" / "north")
    start(kit, prepared[1]["north"])
    process = flower.start_site(kit.folder, "north", tmp_path / "north.log")
    try:
        until = time.monotonic() + 120
        while "north" not in carrier.there():
            assert time.monotonic() < until, (tmp_path / "north.log").read_text()
            time.sleep(0.2)
        monkeypatch.setattr(
            flower, "content_of", lambda frame: RecordDict({"app": ConfigRecord({"code": code})})
        )
        number = carrier._push("north", b"")
        while not (got := carrier.state.get_message_res(message_ids={number}, run_id=carrier.run)):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert b"UplinkError" in carrier._pull(got[0])
        assert process.poll() is None
    finally:
        end(process)
    assert not asked
    assert not proof.exists()
