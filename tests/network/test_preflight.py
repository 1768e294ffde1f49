"""Wrong port, name, certificate, version, clock, expired kit: one sentence at once."""

import datetime as dt
import ipaddress
import socket
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedmiss.atomic import read_json, write_json
from fedmiss.errors import ConfigError, EngineError
from fedmiss.network.kits import open_kit
from fedmiss.network.preflight import check_certificate, check_connection, check_version
from fedmiss.network.proposer import make_study, new_revision

from .conftest import engine_files, small_study

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


class Root:
    """A study's certificate authority."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        self.path = self._write("root.pem", self._sign(self.name, self.key, ca=True))

    def _sign(self, name, key, *, ca=False, days=(-1, 30)):
        now = dt.datetime.now(dt.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=days[0]))
            .not_valid_after(now + dt.timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )

    def _write(self, name, certificate):
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, name, **more):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        secret = self.folder / f"{name}.key"
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return self._write(f"{name}.crt", self._sign(subject, key, **more)), secret


@pytest.fixture
def listening(tmp_path):
    """A relay's port: TLS, with certificates of a study."""
    root = Root(tmp_path / "study")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*root.issue("localhost"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve():
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                    with context.wrap_socket(connection, server_side=True):
                        pass
                except OSError:
                    continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield root, server.getsockname()[1]
        stop.set()


def test_the_right_hub_is_reached_and_a_wrong_one_named(tmp_path, listening):
    root, port = listening
    mine = root.issue("north")
    check_connection("localhost", port, root.path, *mine)
    other = Root(tmp_path / "other")
    with pytest.raises(ConfigError, match="is not this study's relay"):
        check_connection("localhost", port, other.path, *mine)


def test_a_relay_that_cannot_look_its_own_name_up_reaches_itself(listening, monkeypatch):
    root, port = listening
    look_up = socket.getaddrinfo

    def looked_up(host, *given, **more):
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "as behind a router")
        return look_up(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    mine = root.issue("north")
    check_connection("localhost", port, root.path, *mine, here=True)
    with pytest.raises(ConfigError, match="is not known to this network"):
        check_connection("localhost", port, root.path, *mine)


def test_a_port_where_nobody_or_something_else_listens(tmp_path):
    root = Root(tmp_path / "study")
    mine = root.issue("north")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def plain():
            connection, _ = server.accept()
            connection.sendall(b"220 mail.example.org ESMTP\r\n")
            connection.close()

        thread = threading.Thread(target=plain, daemon=True)
        thread.start()
        with pytest.raises((ConfigError, EngineError), match=f"localhost port {port}|{port}"):
            check_connection("localhost", port, root.path, *mine)
        thread.join()
    with pytest.raises(
        EngineError,
        match=f"nothing listens at localhost port {port}: .* localhost is this computer: is the relay here",
    ):
        check_connection("localhost", port, root.path, *mine)


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (socket.EAI_NONAME, ConfigError, "'hub.example' is not known to this network"),
        (socket.EAI_AGAIN, EngineError, "'hub.example' cannot be looked up now"),
    ],
)
def test_a_name_that_is_wrong_is_told_from_no_network(tmp_path, monkeypatch, number, kind, said):
    """A laptop that was offline for a moment, while its engine began again, ended its `join`."""

    def looked_up(*given, **more):
        raise socket.gaierror(number, "as said")

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    with pytest.raises(kind, match=said):
        check_connection("hub.example", 8102, *[tmp_path] * 3)


def test_a_tunnel_to_a_relay_that_is_away_is_tried_again(tmp_path):
    """It takes the connection, and ends it: `join` took that for another program's port, and ended."""
    root = Root(tmp_path / "study")
    mine = root.issue("north")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def tunnel():
            connection, _ = server.accept()
            connection.recv(100_000)
            connection.close()

        thread = threading.Thread(target=tunnel, daemon=True)
        thread.start()
        with pytest.raises(EngineError, match="the relay behind it is not started"):
            check_connection("localhost", server.getsockname()[1], root.path, *mine)
        thread.join()


def test_files_of_another_kit_are_named(tmp_path):
    """The relay refused them without a word, and `join` said that it was connected."""
    theirs, _ = Root(tmp_path / "study").issue("central")
    check_certificate(theirs, name="central")
    with pytest.raises(ConfigError, match="is the certificate of 'central', not of 'north'"):
        check_certificate(theirs, name="north")


def test_an_expired_kit_and_a_wrong_clock(tmp_path):
    root = Root(tmp_path / "study")
    good, _ = root.issue("north")
    check_certificate(good)
    with pytest.raises(ConfigError, match="the kit expired on"):
        check_certificate(root.issue("late", days=(-30, -1))[0])
    with pytest.raises(ConfigError, match="this computer's clock says 1999-01-01"):
        check_certificate(good, dt.datetime(1999, 1, 1, tzinfo=dt.UTC))


def test_another_version_is_said_of_the_revision_that_a_kit_was_made_for(tmp_path):
    """A kit stays when a study is revised, a year later by a newer fedmiss; every version refused one of its kits."""
    made = make_study(small_study(), tmp_path / "study", engine_files)
    at = made / "kits" / "north"
    check_version(open_kit(at))
    write_json(at / "kit.json", read_json(at / "kit.json") | {"version": "0.0.1"})
    with pytest.raises(ConfigError, match=r"made by fedmiss 0\.0\.1, here runs"):
        check_version(open_kit(at))
    new_revision(made, added=["west"])
    check_version(open_kit(at))
    west = made / "kits" / "west"
    write_json(west / "kit.json", read_json(west / "kit.json") | {"version": "0.0.1"})
    with pytest.raises(ConfigError, match="kit of 'west' was made by fedmiss"):
        check_version(open_kit(west))
