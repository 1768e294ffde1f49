"""Eight and sixty-four bytes at a time: what numba's language lacks, written as LLVM's own instructions.

LLVM turns each into the best that the machine has (AVX2, AVX-512, NEON, or plain words). None of them looks
whether the bytes lie inside the array: callers do.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

__all__ = ["equal64", "high64", "load8", "ones", "trailing"]

_I64 = ir.IntType(64)
_BYTES = ir.VectorType(ir.IntType(8), 64)


def _load(context: Any, builder: Any, sig: Any, args: Any, kind: Any) -> Any:
    array = context.make_array(sig.args[0])(context, builder, args[0])
    place = builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())
    return builder.load(place, align=1)


def _load8(typingctx: Any, buf: Any, at: Any) -> Any:
    """Return the bytes ``buf[at : at + 8]`` as one number, the first byte lowest."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _load(context, builder, sig, args, _I64)

    return types.uint64(buf, types.int64), build


def _equal64(typingctx: Any, buf: Any, at: Any, value: Any) -> Any:
    """Return a number whose bit ``k`` says whether ``buf[at + k]`` is ``value``, k = 0..63."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        undefined = ir.Constant(_BYTES, ir.Undefined)
        one = builder.insert_element(undefined, args[2], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        wanted = builder.shuffle_vector(one, undefined, zeros)
        hits = builder.icmp_unsigned("==", _load(context, builder, sig, args, _BYTES), wanted)
        return builder.bitcast(hits, _I64)

    return types.uint64(buf, types.int64, types.uint8), build


def _high64(typingctx: Any, buf: Any, at: Any) -> Any:
    """Return a number whose bit ``k`` says whether ``buf[at + k]`` is no ASCII, k = 0..63."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        loaded = _load(context, builder, sig, args, _BYTES)
        hits = builder.icmp_signed("<", loaded, ir.Constant(_BYTES, [0] * 64))
        return builder.bitcast(hits, _I64)

    return types.uint64(buf, types.int64), build


def _trailing(typingctx: Any, x: Any) -> Any:
    """Return how many zero bits are below the lowest one of ``x``; 64 when it has none."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), build


def _ones(typingctx: Any, x: Any) -> Any:
    """Return the number of one bits of ``x``."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), build


# numba's own stubs describe these by the arguments of their builders, typing context included
load8: Any = intrinsic(_load8)
equal64: Any = intrinsic(_equal64)
high64: Any = intrinsic(_high64)
trailing: Any = intrinsic(_trailing)
ones: Any = intrinsic(_ones)
