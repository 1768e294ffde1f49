"""Kits for Flower: an authority for the study, a certificate and key for every end, and the list of the sites' keys."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedmiss.files import write_json
from fedmiss.network.engine import need
from fedmiss.network.study import Study

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as Key

# Flower and cryptography are optional extras, so functions import them when they are called.
__all__ = ["DAYS", "NODES", "parts", "provision"]

NODES = "nodes.json"  # at the hub: name -> public key of every organisation
DAYS = 360


def parts(engine: Path) -> tuple[Path, Path, Path]:
    """Root certificate, own certificate and own key of an end: in the same places as in NVFLARE's kits."""
    end = "client" if (engine / "startup" / "client.crt").exists() else "server"
    return tuple(engine / "startup" / n for n in ("rootCA.pem", f"{end}.crt", f"{end}.key"))  # type: ignore[return-value]


def provision(study: Study, out: Path) -> None:
    """Make certificates and keys for the hub and every organisation; those of the authority stay at the hub."""
    need("flwr", "flower")
    from cryptography.hazmat.primitives import serialization as s

    root = _Root(study.name)
    _write(out / "hub" / "certificates" / "rootCA.key", root.raw(root.key), secret=True)
    ends = {
        out / "hub": (study.host, "server"),
        **{out / "kits" / n: (n, "client") for n in study.organisations},
    }
    public = {}
    for folder, (name, end) in ends.items():
        certificate, key = root.issue(name)
        startup = folder / "engine" / "startup"
        _write(startup / "rootCA.pem", root.certificate.public_bytes(s.Encoding.PEM))
        _write(startup / f"{end}.crt", certificate.public_bytes(s.Encoding.PEM))
        _write(startup / f"{end}.key", root.raw(key), secret=True)
        if end == "client":
            public[name] = (
                key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo).decode()
            )
    write_json(out / "hub" / "engine" / NODES, public)


def _write(path: Path, raw: bytes, *, secret: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb"
    ) as stream:
        stream.write(raw)


def _usage(*, sign: bool) -> x509.KeyUsage:
    """Return the usage of a key: that of the authority signs certificates, the others sign handshakes."""
    from cryptography import x509

    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    mine = ("key_cert_sign", "crl_sign") if sign else ("digital_signature",)
    return x509.KeyUsage(**{name: name in mine for name in names})


class _Root:
    """The certificate authority of a study."""

    def __init__(self, study: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self.key = ec.generate_private_key(ec.SECP384R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"fedmiss study {study}")])
        self.certificate = self._sign(
            self.name, self.key, x509.BasicConstraints(ca=True, path_length=0), None
        )

    def issue(self, name: str) -> tuple[x509.Certificate, Key]:
        """Return certificate and key of an end."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        try:
            names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(name))]
        except ValueError:
            names = [x509.DNSName(name)]
        if name == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        return self._sign(subject, key, x509.BasicConstraints(ca=False, path_length=None), names), key

    def _sign(
        self, subject: x509.Name, key: Key, kind: x509.BasicConstraints, names: list[x509.GeneralName] | None
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
        )
        made = made.serial_number(x509.random_serial_number()).add_extension(kind, critical=True)
        made = made.not_valid_before(now - dt.timedelta(minutes=5)).not_valid_after(
            now + dt.timedelta(days=DAYS)
        )
        made = made.add_extension(_usage(sign=bool(kind.ca)), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        made = made.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
        )
        if names is not None:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self.key, hashes.SHA384())

    @staticmethod
    def raw(key: Key) -> bytes:
        """Return a private key as PEM."""
        from cryptography.hazmat.primitives import serialization as s

        return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
