"""A broadcast and a worker's stored state as bytes: what a network carries and a disk keeps, without pickle.

The header of 36 bytes:

    offset 0   2 bytes  b"FL"
           2   u8       protocol version, 1
           3   u8       1 broadcast, 2 worker's state
           4   8 bytes  job: hash of FedEM.job
          12   8 bytes  settings: hash of all that decides the result (fedmiss.core.fingerprint)
          20   i64      round
          28   u32      bytes that follow
          32   u32      CRC-32 of the first 32 bytes and of what follows
          36   the values (fedmiss.core.codec)

Little-endian.
"""

from __future__ import annotations

import struct
import typing
import zlib
from dataclasses import is_dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.codec import decode_value, encode_value
from fedmiss.core.protocols import Model
from fedmiss.core.state import Base, Downlink, WorkerState
from fedmiss.errors import UplinkError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = ["PROTOCOL", "pack_downlink", "pack_worker", "theta_type", "unpack_downlink", "unpack_worker"]

PROTOCOL = 1
_HEAD, _CRC = struct.Struct("<2sBB8s8sqI"), struct.Struct("<I")
_WHAT = {1: "a broadcast", 2: "a worker's state"}


def _seal(algo: FedEM, what: int, k: int, body: bytes) -> bytes:
    job, settings = algo.identity
    head = _HEAD.pack(b"FL", PROTOCOL, what, job, settings, k, len(body))
    return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body


def _open(algo: FedEM, what: int, data: bytes, where: str) -> tuple[int, bytes]:
    """Check the header; return (round, body) or raise UplinkError that says what differs and what to do."""
    size = _HEAD.size + _CRC.size
    if len(data) < size:
        raise UplinkError(f"{where} has {len(data)} bytes (a header alone has {size}): cut; ask again.")
    magic, version, got, job, settings, k, length = _HEAD.unpack_from(data)
    if magic != b"FL" or got != what:
        raise UplinkError(f"{where} is not {_WHAT[what]} of fedmiss ({magic!r}, kind {got}).")
    if version != PROTOCOL:
        raise UplinkError(
            f"{where} is of protocol version {version} (this side has {PROTOCOL}); update the older side."
        )
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if len(data) != size + length or crc != zlib.crc32(
        memoryview(data)[size:], zlib.crc32(data[: _HEAD.size])
    ):
        raise UplinkError(f"{where} is damaged ({len(data)} bytes, {size + length} announced); ask again.")
    mine = algo.identity
    if job != mine[0]:
        raise UplinkError(
            f"{where} is of another job than {algo.job!r}; give both sides the same job name, or answer the other hub."
        )
    if settings != mine[1]:
        raise UplinkError(
            f"{where} was made with other settings ({settings.hex()}; here {mine[1].hex()}); "
            "give both sides the same model, compressor, roster, steps and seed."
        )
    return int(k), data[size:]


def theta_type(model: Model) -> object:
    """Type of a model's parameter, by ``theta_type`` or by the annotation of T; None when neither is there."""
    kind = getattr(model, "theta_type", None)
    if kind is not None:
        return kind
    try:
        return typing.get_type_hints(type(model).T).get("return")
    except (NameError, TypeError):
        return None


def _types(algo: FedEM) -> dict[str, type]:
    """Dataclasses that may travel: the model's parameter."""
    kind = theta_type(algo.model)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return {t.__qualname__: t for t in kinds if isinstance(t, type) and is_dataclass(t)}


def pack_downlink(algo: FedEM, down: Downlink) -> bytes:
    """Bytes of one worker's broadcast."""
    body = (down.S_hat, down.theta, down.ack, down.V, down.saved, down.life)
    return _seal(algo, 1, down.k, encode_value(body))


def unpack_downlink(algo: FedEM, data: bytes) -> Downlink:
    """Return the broadcast; raise UplinkError for one that is damaged, or of another job, version or settings."""
    k, body = _open(algo, 1, data, "the broadcast")
    value = decode_value(body, _types(algo))
    q = algo.model.q
    if not isinstance(value, tuple) or len(value) != 6:
        raise UplinkError(f"the broadcast of round {k} has not the six values of version {PROTOCOL}.")
    S_hat, theta, ack, V, saved, life = value
    for name, v in (("S_hat", S_hat), ("V", V)):
        if not (name == "V" and v is None) and not _is_vector(v, q):
            raise UplinkError(
                f"the broadcast of round {k} has a {name} that is not {q} finite numbers; ask again."
            )
    if not all(isinstance(v, int) for v in (ack, saved, life)):
        raise UplinkError(f"the broadcast of round {k} has a damaged acknowledgement; ask again.")
    return Downlink(k, S_hat, theta, ack, V, saved, life)


def pack_worker(algo: FedEM, worker: WorkerState, name: str) -> bytes:
    """Bytes of a worker's state, to be stored on its own disk after each answer and before it is sent."""
    old = [b and (b.k, b.acked, b.V_i, b.oracle) for b in (worker.base, worker.prev)]
    pending = worker.pending and (int(worker.pending[0]), worker.pending[1])
    body = (name, worker.V_i, pending, worker.oracle, worker.acked, worker.life, worker.before, *old)
    return _seal(algo, 2, worker.pending[0] if worker.pending else -1, encode_value(body))


def unpack_worker(algo: FedEM, data: bytes, name: str) -> WorkerState:
    """Return the state; UplinkError when it is damaged, of another job, or of another worker than ``name``."""
    _, body = _open(algo, 2, data, f"the stored state of worker {name!r}")
    value = decode_value(body, _types(algo))
    if not isinstance(value, tuple) or len(value) != 9:
        raise UplinkError(f"the stored state of worker {name!r} has not the values of version {PROTOCOL}.")
    whose, V_i, pending, oracle, acked, life, before, base, prev = value
    if whose != name:
        raise UplinkError(f"the stored state is of worker {whose!r}, not of {name!r}; give it its own file.")
    vectors = [V_i, *([pending[1]] if pending else []), *(b[2] for b in (base, prev) if b)]
    if not all(_is_vector(v, algo.model.q) for v in vectors):
        raise UplinkError(f"the stored state of worker {name!r} does not hold {algo.model.q} finite numbers.")
    old = [Base(*b) if b else None for b in (base, prev)]
    return WorkerState(V_i, pending, oracle, acked, life, before, *old)


def _is_vector(v: object, q: int) -> bool:
    if not isinstance(v, np.ndarray) or v.shape != (q,) or v.dtype != np.float64:
        return False
    array: F64 = v
    return bool(np.isfinite(array).all())
