"""Species of one run in processes of this computer, one per core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import TypeVar

from fedmiss.system import cores, hear_no_interrupt

__all__ = ["over_processes"]

T = TypeVar("T")


def over_processes(
    work: Callable[[str], T], names: Sequence[str], jobs: int | None = None
) -> Iterator[tuple[str, T | None, str]]:
    """Run ``work(name)`` for every name; yield name, result (or None) and error, each when it is done.

    Parameters
    ----------
    jobs : processes, by default one per core; 1 runs all here, one after the other
    """
    jobs = jobs or max(1, min(len(names), cores()))
    if jobs == 1:
        yield from ((name, work(name), "") for name in names)
        return
    # Spawned, not forked: a fork inherits the locks of the readers' threads and waits for them for ever.
    # All cores together, however many processes share them.
    threads = max(1, cores() // jobs)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin_worker, (threads,))
    waiting = {pool.submit(work, name): name for name in names}
    try:
        for future in as_completed(waiting):
            try:
                yield waiting[future], future.result(), ""
            except BrokenProcessPool:
                yield waiting[future], None, "its process was ended from outside (often: out of memory)."
    except BaseException:
        # An error or Ctrl-C here: the pool would wait for species that nobody wants any more.
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker(threads: int) -> None:
    """Ctrl-C is the parent's business; and a worker ends with its parent, however that ended.

    ``threads``: what each library may start, so that workers do not wait for one another's. Libraries read it when they
    are loaded, which is later: this module loads none.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, str(threads))
    hear_no_interrupt()
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)  # what was half-written is under a temporary name, and the next run removes it

    Thread(target=follow, daemon=True).start()
