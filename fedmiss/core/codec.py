"""Values as bytes and back, without pickle: numbers, words, arrays, tuples, dicts, dataclasses.

One letter says what follows; lengths are u32, little-endian. A dataclass is written with its name and read back
only as one of the classes that the reader names, so bytes can never make an object of another kind.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import numpy as np

from fedmiss.errors import UplinkError

__all__ = ["decode_value", "encode_value"]

_U32, _I64, _F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
_DTYPES = ("<f8", "<f4", "<i8", "<i4", "|i1", "|u1", "<u4", "<u8", "|b1")
_DEPTH = 16


def encode_value(value: object) -> bytes:
    """Bytes of ``value``; TypeError for a kind that has none."""
    out: list[bytes] = []
    _write(value, out, 0)
    return b"".join(out)


def decode_value(data: bytes, types: Mapping[str, type] | None = None) -> object:
    """Return the value; damaged bytes, bytes left over and dataclasses not in ``types`` raise UplinkError."""
    reader = _Reader(memoryview(data), types or {})
    value = reader.read(0)
    if reader.at != len(data):
        raise UplinkError(f"{len(data) - reader.at} bytes follow the value; the message is damaged.")
    return value


def _write(value: object, out: list[bytes], depth: int) -> None:
    if depth > _DEPTH:
        raise TypeError(f"values are nested more than {_DEPTH} deep")
    if value is None:
        out.append(b"N")
    elif isinstance(value, (bool, np.bool_)):
        out.append(b"T" if value else b"F")
    elif isinstance(value, (int, np.integer)):
        out += [b"i", _I64.pack(int(value))]
    elif isinstance(value, (float, np.floating)):
        out += [b"f", _F64.pack(float(value))]
    elif isinstance(value, str):
        out.append(b"s")
        _block(value.encode(), out)
    elif isinstance(value, (bytes, bytearray)):
        out.append(b"b")
        _block(bytes(value), out)
    elif isinstance(value, np.ndarray):
        dtype = value.dtype.newbyteorder("<").str
        if dtype not in _DTYPES:
            raise TypeError(f"an array of {value.dtype} cannot be sent; use float64 or int64")
        out += [b"a", bytes([_DTYPES.index(dtype), value.ndim]), *(_U32.pack(n) for n in value.shape)]
        out.append(np.ascontiguousarray(value).astype(dtype, copy=False).tobytes())
    elif isinstance(value, (tuple, list)):
        out += [b"t" if isinstance(value, tuple) else b"l", _U32.pack(len(value))]
        for part in value:
            _write(part, out, depth + 1)
    elif isinstance(value, Mapping):
        out += [b"d", _U32.pack(len(value))]
        for key, part in value.items():
            _block(str(key).encode(), out)
            _write(part, out, depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        out.append(b"c")
        _block(type(value).__qualname__.encode(), out)
        _write({f.name: getattr(value, f.name) for f in fields(value) if f.init}, out, depth + 1)
    else:
        raise TypeError(
            f"{type(value).__qualname__} cannot be sent; use arrays, numbers, or a dataclass of them"
        )


def _block(data: bytes, out: list[bytes]) -> None:
    out += [_U32.pack(len(data)), data]


class _Reader:
    def __init__(self, data: memoryview, types: Mapping[str, type]) -> None:
        self.data, self.types, self.at = data, types, 0

    def take(self, size: int) -> memoryview:
        if size < 0 or self.at + size > len(self.data):
            raise UplinkError(f"{size} bytes are missing after byte {self.at}; the message was cut.")
        part = self.data[self.at : self.at + size]
        self.at += size
        return part

    def count(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def text(self) -> str:
        try:
            return bytes(self.take(self.count())).decode()
        except UnicodeDecodeError:
            raise UplinkError("a name in the message is not text; the message is damaged.") from None

    def read(self, depth: int) -> object:
        if depth > _DEPTH:
            raise UplinkError(f"values are nested more than {_DEPTH} deep; the message is damaged.")
        kind = bytes(self.take(1))
        if kind in b"NTF":
            return {b"N": None, b"T": True, b"F": False}[kind]
        if kind == b"i":
            return int(_I64.unpack(self.take(8))[0])
        if kind == b"f":
            return float(_F64.unpack(self.take(8))[0])
        if kind == b"s":
            return self.text()
        if kind == b"b":
            return bytes(self.take(self.count()))
        if kind == b"a":
            return self._array()
        if kind in b"tl":
            parts = [self.read(depth + 1) for _ in range(self._members())]
            return tuple(parts) if kind == b"t" else parts
        if kind == b"d":
            return {self.text(): self.read(depth + 1) for _ in range(self._members())}
        if kind == b"c":
            return self._dataclass(depth)
        raise UplinkError(f"{kind!r} is no kind of value; the message is damaged.")

    def _members(self) -> int:
        n = self.count()
        if n > len(self.data) - self.at:  # each member has at least one byte
            raise UplinkError(
                f"{n} members cannot fit {len(self.data) - self.at} bytes; the message is damaged."
            )
        return n

    def _array(self) -> np.ndarray:
        code, ndim = self.take(2)
        if code >= len(_DTYPES) or ndim > 8:
            raise UplinkError("an array's header is damaged.")
        shape = tuple(self.count() for _ in range(ndim))
        dtype, size, most = np.dtype(_DTYPES[code]), 1, 1
        for n in shape:
            size, most = size * n, most * max(n, 1)
        if most > 1 << 40:
            raise UplinkError(f"an array of shape {shape} is damaged.")
        return np.frombuffer(self.take(size * dtype.itemsize), dtype=dtype).reshape(shape).copy()

    def _dataclass(self, depth: int) -> object:
        name = self.text()
        kind = self.types.get(name)
        if kind is None:
            raise UplinkError(
                f"the message holds a {name!r}, which is not among {sorted(self.types)}; "
                "use the same model on both sides."
            )
        values = self.read(depth + 1)
        if not isinstance(values, dict) or set(values) - {f.name for f in fields(kind) if f.init}:
            raise UplinkError(
                f"the members of {name!r} are not those of this version; update the older side."
            )
        try:
            return kind(**values)
        except TypeError as error:
            raise UplinkError(f"{name!r} cannot be made of its members ({error}).") from None
