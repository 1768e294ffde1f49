"""Compiled loops: how the project compiles them, and how they are spread over the cores.

Plain threads instead of numba's parallel loops, which take five times as long to compile, and a user would wait for it.
Division by zero gives inf or nan: a check at each one takes a quarter of a loop's time. Numba's cache sees a change of a
loop's own file only, not of a part that it takes from another one: delete ``__pycache__`` after such a change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeVar

from numba import njit

from fedmiss.system import cores

__all__ = ["CORES", "compiled", "part", "spread_out"]

F = TypeVar("F", bound=Callable[..., Any])
CORES = int(os.environ.get("FEDMISS_THREADS", 0)) or cores()
_njit: Any = partial(njit, error_model="numpy", no_cfunc_wrapper=True, forceinline=True)


def compiled(function: F) -> F:
    """Compile a loop that Python calls. It holds no lock of Python's while it runs, and is kept on disk."""
    out: F = _njit(cache=True, nogil=True)(function)
    return out


def part(function: F) -> F:
    """Compile a part of loops. It has no entry from Python, which would take a fifth of the compilation."""
    out: F = _njit(no_cpython_wrapper=True)(function)
    return out


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
