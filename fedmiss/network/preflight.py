"""Checks of a connection, each with one sentence, before an engine retries in silence."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
from pathlib import Path

from fedmiss.atomic import read_object
from fedmiss.errors import ConfigError, EngineError, listed, shown
from fedmiss.federation.masks import fingerprint, identity, public_key
from fedmiss.network.kits import Kit
from fedmiss.version import __version__

HERE = "127.0.0.1"  # where a relay listens whatever its name is


def _loopback(address: str | int) -> bool:
    return ipaddress.ip_address(str(address).partition("%")[0]).is_loopback


def check_version(kit: Kit) -> None:
    """Raise when the kit was made by another version of fedmiss for the study's present revision.

    A later revision may be of a newer fedmiss: kits stay, and the job's number covers the version.
    """
    made = read_object(kit.folder / "kit.json")
    made_by = str(made.get("version", ""))
    if made_by != __version__ and kit.study.revision == made.get("revision", 1):
        raise ConfigError(
            f"the kit of {kit.name!r} was made by fedmiss {made_by}, here runs {__version__}. "
            "Install the version of the kit: "
            f"pip install fedmiss=={made_by}"
        )


def check_key(kit: Kit) -> None:
    """Raise when the roster has another key of this organisation than the kit."""
    mine = public_key(identity(kit.key_file)) if kit.key_file.exists() else ""
    if mine != (known := kit.roster[kit.name]):
        has = f"{kit.key_file} holds {fingerprint(mine)}" if mine else f"there is no {kit.key_file}"
        raise ConfigError(
            f"the roster has {fingerprint(known)} as the key of {kit.name!r}, and {has}. If the kit's key was lost or drawn "
            f"anew: fedmiss federation enrol {kit.folder}, and send the proposer the file that it names, for a new roster. "
            "If not, somebody else may be answering in your name: ask the others whose key they have."
        )


def check_certificate(path: Path, now: dt.datetime | None = None, *, name: str = "") -> None:
    """Raise when a certificate is not that of ``name`` (where given), has expired, or is not valid yet."""
    # cryptography comes with the optional extras.
    from cryptography import x509

    now = now or dt.datetime.now(dt.UTC)
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    owners = [str(a.value) for a in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if name and owners != [name]:
        raise ConfigError(
            f"{path} is the certificate of {shown(listed(owners, 1))!r}, not of {name!r}: files of two "
            "kits are mixed. Take this folder from the kit that the proposer sent."
        )
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < first:
        raise ConfigError(
            f"this computer's clock says {now:%Y-%m-%d %H:%M} UTC, the kit is valid from "
            f"{first:%Y-%m-%d %H:%M}. Set the clock."
        )
    if now > last:
        raise ConfigError(
            f"the kit expired on {last:%Y-%m-%d}, today is {now:%Y-%m-%d}. Ask the proposer for new ones "
            "(`fedmiss federation new` with the same study.toml), and put the folder engine of yours in place of this "
            "kit's; whoever runs the relay does so with engine and admin of hub. Keys and journals stay good."
        )


def check_port(port: int) -> None:
    """Raise when another program of this computer has the relay's port."""
    with socket.socket() as probe:
        # Else a port whose last connections are still to be forgotten (TIME_WAIT) would seem taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise EngineError(
                f"port {port} of this computer cannot be opened ({error.strerror}): another relay or program has it. End "
                "that one, or choose another port in study.toml."
            ) from None


def check_connection(
    host: str, port: int, root: Path, certificate: Path, key: Path, timeout: float = 5.0, here: bool = False
) -> None:
    """Shake hands with the relay as the engine will; raise one sentence on what failed.

    Parameters
    ----------
    here : the relay runs on this computer, which may not reach the name that the organisations know (a router's address)

    Raises
    ------
    EngineError    nobody listens there (yet): try again
    ConfigError    the name is unknown, or another certificate answers: do not try again
    """
    try:
        address = socket.getaddrinfo(HERE if here else host, port, type=socket.SOCK_STREAM)[0][4]
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:  # no network for a while: names cannot be looked up
            raise EngineError(
                f"the name {host!r} cannot be looked up now: is this computer connected to a network?"
            ) from None
        raise ConfigError(
            f"the relay's name {host!r} is not known to this network. Ask the proposer for its "
            "right name, or IT for a rule."
        ) from None
    context = ssl.create_default_context(cafile=str(root))
    # The relay knows organisations by their certificates: without one it would end the handshake.
    context.load_cert_chain(certificate, key)
    try:
        with (
            socket.create_connection((HERE if here else host, port), timeout) as raw,
            context.wrap_socket(raw, server_hostname=host),
        ):
            pass
    # The order matters: a certificate error is an SSLError, and that is an OSError, as are the two below it.
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"what answers at {host} port {port} is not this study's relay: {error.verify_message}. "
            "A kit of another study, or "
            "somebody in between."
        ) from None
    except (
        ssl.SSLEOFError
    ):  # before ConnectionError: a tunnel or proxy takes the connection for a relay that is away
        raise EngineError(
            f"{host} port {port} ends the connection at once: the relay behind it is not started, or something in between "
            "opens TLS."
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"{host} port {port} does not speak TLS as the relay does "
            f"({error.reason or 'no reason given'}). Is the port right?"
        ) from None
    except TimeoutError:
        raise EngineError(
            f"{host} ({address[0]}) port {port} does not answer within {timeout:g} s: a firewall, or a wrong address."
        ) from None
    except ConnectionError:
        raise EngineError(
            f"nothing listens at {host} port {port}: the relay is not started, or the port is wrong."
            + (f" {host} is this computer: is the relay here?" if _loopback(address[0]) else "")
        ) from None
    except OSError as error:
        raise EngineError(f"{host} port {port} cannot be reached: {error.strerror or error}.") from None
