"""Compiled loops: how the project compiles them, and how they are spread over the cores.

Plain threads instead of numba's parallel loops, which take five times as long to compile, and a user would wait for it.
Division by zero gives inf or nan: a check at each one takes a quarter of a loop's time. Numba's cache sees a change of a
loop's own file only, not of a part that it takes from another one: delete ``__pycache__`` after such a change.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numba import njit

from fedmiss.system import cores

F = TypeVar("F", bound=Callable[..., Any])
CORES = int(os.environ.get("FEDMISS_THREADS", 0)) or cores()
NOT_KEPT: list[str] = []  # names of loops that are compiled anew in every process
_njit: Any = partial(njit, error_model="numpy", no_cfunc_wrapper=True, forceinline=True)


def compiled(function: F) -> F:
    """Compile a loop that Python calls. It holds no lock of Python's while it runs, and is kept on disk."""
    try:
        out: F = _njit(cache=True, nogil=True)(function)
        _forgiven(getattr(out, "_cache", None), function.__name__)
    except RuntimeError:
        # Neither the package's folder nor the user's cache may be written to: compile in every process.
        NOT_KEPT.append(function.__name__)
        out = _njit(nogil=True)(function)
    return out


def _forgiven(kept: Any, name: str) -> None:
    """Compile where the cache refuses: a full disk, a file of another user. Numba would end the command."""

    def tried(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except OSError:
                NOT_KEPT.append(name)
                return None

        return run

    for what in ("load_overload", "save_overload"):
        if hasattr(kept, what):
            setattr(kept, what, tried(getattr(kept, what)))


@cache
def stored(loop: Any) -> bool:
    """Whether a compiled loop lies on disk for this processor, so that its first call takes no time.

    Numba does not tell by a public function; where its own do not answer, the loop counts as not stored.
    """
    try:
        cache = loop._cache
        # Processor; code and what the closure holds.
        mine = cache._index_key(None, loop.targetctx.codegen())[1:]
        return any(key[1:] == mine for key in cache._cache_file._load_index())
    except (AttributeError, OSError):
        return False


def part(function: F) -> F:
    """Compile a part of loops. It has no entry from Python, which would take a fifth of the compilation."""
    out: F = _njit(no_cpython_wrapper=True)(function)
    return out


@part
def most_in(ptr: np.ndarray) -> int:
    """Length of the longest of the rows that begin at ``ptr``; 0 of none."""
    most = 0
    for j in range(ptr.size - 1):
        most = max(most, ptr[j + 1] - ptr[j])
    return most


# The first 37 bits of log 2, and the rest: a whole number of at most 16 bits times the first has no rounding error.
_LOG2, _LOG2_REST = float.fromhex("0x1.62e42fefap-1"), float.fromhex("0x1.cf79abc9e3b39p-40")
# Added to a number, it leaves no bits for a fraction, and the whole number in the last ones.
_ROUND = 1.5 * 2.0**52
_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13 = (1.0 / math.factorial(n) for n in range(1, 14))


@part
def exponential(x: float) -> float:
    """Compute exp(x) to 2e-16, between exp(-708) and exp(709); of a missing number it is missing.

    It calls no library, so that a loop around it does four numbers at a time, with the same bits on every processor.
    """
    x = -708.0 if x < -708.0 else x
    x = 709.0 if x > 709.0 else x
    # exp(x) = 2^k exp(r), k whole and r at most log(2) / 2 in size.
    shifted = x * (1.0 / _LOG2) + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LOG2) - k * _LOG2_REST
    # exp(r) by its series up to r^13 / 13!, in pairs that do not wait for each other; the largest terms last.
    r2 = r * r
    r4 = r2 * r2
    high = ((_10 + _11 * r) + (_12 + _13 * r) * r2) * (r4 * r4)
    rest = ((_2 + _3 * r) + (_4 + _5 * r) * r2) + ((_6 + _7 * r) + (_8 + _9 * r) * r2) * r4 + high
    # 2^k: a floating number whose exponent is k.
    power: float = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    return (1.0 + (r + r2 * rest)) * power


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES)


def spread_out(loop: Callable[..., None], tasks: int, work: int, *arguments: Any) -> None:
    """Run ``loop(first, last, *arguments)`` over its tasks, on all cores from 50,000 units of ``work`` on.

    A unit is some 100 ns; below, waking threads costs more than the work. Tasks write to places of their own, so the bits
    do not depend on the number of threads.
    """
    cores = min(CORES, tasks)
    if work < 50_000 or cores < 2:
        loop(0, tasks, *arguments)
        return
    cuts = [tasks * i // cores for i in range(cores + 1)]
    jobs = [_pool().submit(loop, a, b, *arguments) for a, b in pairwise(cuts)]
    for job in jobs:
        job.result()
