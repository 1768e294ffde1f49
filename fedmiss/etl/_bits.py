"""Eight and sixty-four bytes at a time: what numba's language lacks, written as LLVM's own instructions.

LLVM turns each into the best that the machine has (AVX2, AVX-512, NEON, or plain words). None of them looks
whether the bytes lie inside the array: callers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.base import BaseContext
from numba.core.typing.context import Context
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

Values = Sequence[ir.Value]
Typed = tuple[Signature, Callable[[BaseContext, ir.IRBuilder, Signature, Values], ir.Value]]
_I64 = ir.IntType(64)
_BYTES = ir.VectorType(ir.IntType(8), 64)


def _load(
    context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values, kind: ir.Type
) -> ir.Value:
    array = context.make_array(sig.args[0])(context, builder, args[0])
    place = builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())
    return builder.load(place, align=1)


def _load8(typingctx: Context, buf: types.Type, at: types.Type) -> Typed:
    """Return the bytes ``buf[at : at + 8]`` as one number, the first byte lowest."""

    def build(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        return _load(context, builder, sig, args, _I64)

    return types.uint64(buf, types.int64), build


def _equal64(typingctx: Context, buf: types.Type, at: types.Type, value: types.Type) -> Typed:
    """Return a number whose bit ``k`` says whether ``buf[at + k]`` is ``value``, k = 0..63."""

    def build(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        undefined = ir.Constant(_BYTES, ir.Undefined)
        one = builder.insert_element(undefined, args[2], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        wanted = builder.shuffle_vector(one, undefined, zeros)
        hits = builder.icmp_unsigned("==", _load(context, builder, sig, args, _BYTES), wanted)
        return builder.bitcast(hits, _I64)

    return types.uint64(buf, types.int64, types.uint8), build


def _trailing(typingctx: Context, x: types.Type) -> Typed:
    """Return how many zero bits are below the lowest one of ``x``; 64 when it has none."""

    def build(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), build


def _ones(typingctx: Context, x: types.Type) -> Typed:
    """Return the number of one bits of ``x``."""

    def build(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Values) -> ir.Value:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), build


# numba's own stubs describe these by the arguments of their builders, typing context included
load8: Any = intrinsic(_load8)
equal64: Any = intrinsic(_equal64)
trailing: Any = intrinsic(_trailing)
ones: Any = intrinsic(_ones)
