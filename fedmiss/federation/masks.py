"""Secure aggregation: each group adds random numbers to its sums that cancel in the sum over all groups.

After Bonawitz et al. (CCS 2017), without their recovery of groups that drop out: an exchange counts when all have answered.
Every pair of groups derives a common key from their X25519 keys (Diffie and Hellman), and from it, by HKDF-SHA256, a fresh
ChaCha20 key for every (job, revision, roster, exchange, transcript). The transcript is a digest of all frames so far and of
the question: groups that have seen or ask different things have masks that do not cancel. The stream of
that key is added by the group whose name comes first and subtracted by the other. The same file of 32 bytes gives a group's
key for signatures (Ed25519).
Numbers are fixed point, 64 bits, modulo 2^64; how many digits stand after the point is
said by the field's type (``messages._f``). Differences of months' sums are whole numbers of 32 bits
(:mod:`.differences`). Adding up modulo 2^64 needs no key, and no cryptography.

The package ``cryptography`` is an optional extra, so it is imported inside the functions that use it.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedmiss.errors import ConfigError, DomainError, InputError, UplinkError, several
from fedmiss.federation.messages import ANSWERS, Answer
from fedmiss.system import open_own, open_to_others

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

FEWEST = 3  # groups: of two, either subtracts its own part from the sum
ALL = "all groups"
U64 = np.typing.NDArray[np.uint64]


def masked_fields(kind: type[Answer]) -> dict[str, int]:
    """Fields of an answer that are summed under masks, and their binary digits after the point.

    Raises
    ------
    ConfigError    a field says neither how it is masked nor why it cannot be
    """
    out: dict[str, int] = {}
    for f in fields(kind):
        bits, clear = f.metadata.get("bits"), f.metadata.get("clear")
        if (bits is None) == (not clear):
            raise ConfigError(
                f"{kind.__name__}.{f.name} has no rule for masks. Give the field `bits` (digits "
                "after the point of a sum) or "
                "`clear` (why it cannot be masked, and what it tells) in fedmiss/federation/messages.py."
            )
        if bits is not None:
            if not 0 <= bits <= 50 or f.type not in ("int", "float", "np.ndarray"):
                raise ConfigError(
                    f"{kind.__name__}.{f.name}: {bits} digits of a {f.type} cannot be masked (0 to 50)."
                )
            out[f.name] = int(bits)
    return out


_MASKED = {kind: masked_fields(kind) for kind in ANSWERS}


@dataclass(frozen=True, slots=True)
class Identity:
    """A group's private keys: to agree on secrets with others, and to sign."""

    agree: X25519PrivateKey
    signer: Ed25519PrivateKey


def identity(path: Path) -> Identity:
    """Read a group's private keys, or draw them: a file that only its owner may read."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError:
        raise ConfigError(
            "keys and masks need the package cryptography, which is not installed. Say: pip install 'fedmiss[federation]'"
        ) from None
    if not path.exists():
        raw = X25519PrivateKey.generate().private_bytes_raw()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as stream:
            stream.write(raw)
    if open_to_others(path):
        raise ConfigError(f"{path} can be read by others. Say: chmod 600 {path}")
    raw = read_secret(path)
    signer = Ed25519PrivateKey.from_private_bytes(_derived(raw, b"fedmiss signatures"))
    return Identity(X25519PrivateKey.from_private_bytes(raw), signer)


def read_secret(path: Path) -> bytes:
    """Read 32 secret bytes; a file cut short is an InputError: what follows from an empty one everybody knows."""
    secret = path.read_bytes()
    if len(secret) != 32:
        raise InputError(
            f"{path} is damaged: it has {several(len(secret), 'byte')}, not 32. Put this file back from a copy; if there is "
            "none, move it away, and a new one is drawn.",
            path=str(path),
        )
    return secret


def public_key(private: Identity) -> str:
    """Public keys as text: 32 bytes for secrets, 32 for signatures."""
    both = (private.agree.public_key().public_bytes_raw(), private.signer.public_key().public_bytes_raw())
    return base64.b64encode(b"".join(both)).decode()


def fingerprint(key: str) -> str:
    """Sixteen digits in fours, to read out over the telephone; a ValueError where the text is no public key."""
    raw = base64.b64decode(key, validate=True)
    if len(raw) != 64:
        raise ValueError(f"{len(raw)} bytes, not 64")
    digits = hashlib.sha256(b"fedmiss key" + raw).hexdigest()[:16].upper()
    return "-".join(digits[i : i + 4] for i in range(0, 16, 4))


@dataclass(frozen=True, eq=False)
class Party:
    """One group among others whose keys it knows, for one job.

    Attributes
    ----------
    name : of the group;  private : its keys;  roster : name -> public keys of all groups, this one included
    context : what must differ between any two jobs: hash of the job, which covers roster, keys and revision
    """

    name: str
    private: Identity
    roster: Mapping[str, str]
    context: bytes
    fewest: ClassVar[int] = 1
    # by Diffie and Hellman, once a job
    _agreed: dict[str, bytes] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.roster) < self.fewest:
            raise ConfigError(
                f"masks need {FEWEST} groups, the roster has {len(self.roster)}: of two, either can subtract its own part. "
                "Run without masks, with both custodians' approval, or find a third group."
            )
        if self.roster.get(self.name) != public_key(self.private):
            raise ConfigError(
                f"the roster's key of {self.name!r} is not this group's. Somebody else may be "
                "answering in its name: compare "
                "fingerprints before anything is sent."
            )
        if len(set(self.roster.values())) < len(self.roster):
            raise ConfigError("two groups of the roster have the same key. Each group draws its own.")

    def _key(self, peer: str, purpose: bytes) -> bytes:
        """32 bytes that only this group and ``peer`` can derive, for one purpose."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if peer not in self.roster:
            raise UplinkError(f"{peer!r} is not in the roster of this job: {', '.join(sorted(self.roster))}.")
        if peer not in self._agreed:
            key = X25519PublicKey.from_public_bytes(base64.b64decode(self.roster[peer])[:32])
            try:
                self._agreed[peer] = self.private.agree.exchange(key)
            except ValueError:  # one of the few that make any secret 0
                raise ConfigError(
                    f"the roster's key of {peer!r} is one that no secret can be agreed on with. Ask its custodian to enrol "
                    "with a fresh kit; then a new roster is needed."
                ) from None
        pair = "\0".join(sorted((self.name, peer))).encode()
        roster = hashlib.sha256("\0".join(sorted(self.roster)).encode()).digest()
        info = b"\0".join([b"fedmiss 1", purpose, self.context, roster, pair])
        return _derived(self._agreed[peer], info)

    def common_key(self) -> bytes:
        """A key of 16 bytes for all groups, which only its maker can draw, and draws again after a restart."""
        own = hashlib.sha256(
            b"fedmiss common key" + self.context + self.private.agree.private_bytes_raw()
        ).digest()
        return own[:16]

    def own_seed(self) -> int:
        """A seed for draws of this job that nobody else can repeat, the same after a restart."""
        own = hashlib.sha256(
            b"fedmiss draws" + self.context + self.private.agree.private_bytes_raw()
        ).digest()
        return int.from_bytes(own[:8], "little")

    def seal(self, peer: str, raw: bytes) -> bytes:
        """Encrypt 16 bytes for ``peer``; once for every pair and job, so the nonce may be 0."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        key = self._key(peer, b"seal from " + self.name.encode())
        out: bytes = ChaCha20Poly1305(key).encrypt(bytes(12), raw, None)
        return out

    def unseal(self, peer: str, sealed: bytes) -> bytes:
        """Decrypt what ``peer`` sealed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        key = self._key(peer, b"seal from " + peer.encode())
        try:
            out: bytes = ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
        except InvalidTag:
            raise UplinkError(
                f"the common key for {self.name!r} was not sealed by {peer!r}, or was changed on the "
                "way. Compare fingerprints "
                "with the other custodians."
            ) from None
        return out

    def sign(self, label: bytes, raw: bytes) -> bytes:
        """Bytes with the group's signature (64 bytes) of them and of ``label`` before them."""
        return self.private.signer.sign(label + b"\0" + raw) + raw

    def verified(self, peer: str, label: bytes, raw: bytes) -> bytes:
        """What ``peer`` has signed under ``label``.

        Raises
        ------
        UplinkError    the signature is not that of the roster's key
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(self.roster[peer])[32:])
        try:
            key.verify(raw[:64], label + b"\0" + raw[64:])
        except InvalidSignature:
            raise UplinkError(
                f"a frame in the name of {peer!r} is not signed by its key, or not for this exchange of this job. Compare "
                "fingerprints with its custodian; ask who else can write where the frames are carried.",
                group=peer,
            ) from None
        return raw[64:]

    def lock(self, key: bytes, label: bytes, raw: bytes) -> bytes:
        """Encrypt one frame for all who have the common key; a label is used once, so the nonce may be 0."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        out: bytes = ChaCha20Poly1305(_derived(key, label)).encrypt(bytes(12), raw, None)
        return out

    def unlock(self, key: bytes, label: bytes, raw: bytes) -> bytes:
        """Decrypt one frame; a ValueError where it was encrypted under another key."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        try:
            out: bytes = ChaCha20Poly1305(_derived(key, label)).decrypt(bytes(12), raw, None)
        except InvalidTag:
            raise ValueError("another key") from None
        return out


@dataclass(frozen=True, eq=False)
class Masks(Party):
    """One group's masks for one job."""

    fewest: ClassVar[int] = FEWEST

    def stream(
        self, exchange: int, size: int, transcript: bytes = b"", among: Sequence[str] | None = None
    ) -> U64:
        """Sum of the group's masks of one exchange: (size,) uint64, which add up to 0 over groups of one transcript.

        ``among``: the names over which they do, None for all; the group's own is one of them.
        """
        out = np.zeros(size, dtype=np.uint64)
        for peer in sorted(self.roster if among is None else among):
            if peer != self.name:
                key = self._key(peer, b"mask" + exchange.to_bytes(8, "little") + transcript)
                pad = _key_stream(key, size)
                out = out + pad if self.name < peer else out - pad
        return out

    def hide(self, answers: Sequence[Answer], exchange: int, transcript: bytes = b"") -> list[Answer]:
        """Answers of one exchange with every summed field masked; ``transcript``: digest of all questions up to these.

        Raises
        ------
        DomainError    a number is not finite, or so large that a sum over groups could wrap around
        """
        n = len(self.roster)
        parts = [
            (i, name, _whole(getattr(a, name), bits, n, f"{type(a).__name__}.{name}"))
            for i, a in enumerate(answers)
            for name, bits in _MASKED[type(a)].items()
        ]
        stream, at = self.stream(exchange, sum(p[2].size for p in parts), transcript), 0
        values: list[dict[str, Any]] = [{} for _ in answers]
        for i, name, value in parts:
            mask = stream[at : at + value.size].astype(value.dtype)  # the last bits add up to 0 as all 64 do
            values[i][name] = np.asarray(value + mask.reshape(value.shape))
            at += value.size
        return [_with(a, v) for a, v in zip(answers, values, strict=True)]


def _derived(key: bytes, info: bytes) -> bytes:
    """32 bytes by HKDF-SHA256."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    out: bytes = HKDF(SHA256(), 32, salt=None, info=info).derive(key)
    return out


def _key_stream(key: bytes, size: int) -> U64:
    """(size,) numbers of the ChaCha20 stream of a key that is used for one message only: the counter may start at 0."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    raw = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(raw, dtype=np.uint64)


def _with(answer: Answer, values: Mapping[str, Any]) -> Answer:
    return type(answer)(*(values.get(f.name, getattr(answer, f.name)) for f in fields(answer)))


def _whole(value: Any, bits: int, n: int, label: str) -> np.ndarray:
    """Numbers as whole ones without sign: those of a lattice (:mod:`.differences`) are whole already."""
    if isinstance(value, np.ndarray) and value.dtype == np.int32:
        return value.view(np.uint32)
    return fixed(value, bits, n, label)


def fixed(value: Any, bits: int, n: int, label: str) -> U64:
    """Numbers as fixed point, refused where a sum of ``n`` of them could leave 63 bits."""
    x = np.asarray(value, dtype=np.float64)
    limit = 2.0 ** (63 - bits) / n
    if x.size and not float(np.abs(x).max()) < limit:  # false for NaN too
        bad = x.ravel()[int(np.argmax(~(np.abs(x.ravel()) < limit)))]
        if np.isnan(bad):
            raise DomainError(
                f"{label} holds a number that is missing (NaN); nothing was sent. Look at its data."
            )
        raise DomainError(
            f"{label} holds {bad:g}; in a sum it must be below {limit:.3g} ({bits} binary digits after the point, {n} "
            "groups). Where no count is so large, the model has run away: fit with --rank 0 or another --model. A method "
            "of your own may lower gamma, count in a larger unit, or give add_up fewer digits (bits=)."
        )
    return np.rint(x * 2.0**bits).astype(np.int64).view(np.uint64)


def combined(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Answers of all groups to one question, the masked fields added up: one answer, of all groups together.

    An answer without masked fields is left as it is, by group.

    Raises
    ------
    UplinkError    a group sent another shape, or numbers that are not masked; it names the group
    """
    kind = type(next(iter(answers.values())))
    rules = _MASKED[kind]
    if not rules:
        return dict(answers)
    sums: dict[str, Any] = {}
    for name, bits in rules.items():
        added: np.ndarray | None = None
        for group, answer in answers.items():
            value = getattr(answer, name)
            if not isinstance(value, np.ndarray) or value.dtype not in (np.uint64, np.uint32):
                raise UplinkError(
                    f"group {group!r} sent {kind.__name__}.{name} without masks. Start it again for this job.",
                    group=group,
                )
            if added is not None and (value.shape, value.dtype) != (added.shape, added.dtype):
                was, others = (
                    (value.dtype, added.dtype)
                    if value.shape == added.shape
                    else (f"shape {value.shape}", added.shape)
                )
                raise UplinkError(
                    f"group {group!r} sent {kind.__name__}.{name} of {was}, others {others}. Give all "
                    "sides the same settings.",
                    group=group,
                )
            added = value if added is None else np.asarray(added + value)
        assert added is not None
        if added.dtype != np.uint64:
            sums[name] = added.view(np.int32)
            continue
        total = added.view(np.int64).astype(np.float64) * 2.0**-bits
        as_type = next(f.type for f in fields(kind) if f.name == name)
        sums[name] = int(total) if as_type == "int" else float(total) if as_type == "float" else total
    return {ALL: _with(next(iter(answers.values())), sums)}
