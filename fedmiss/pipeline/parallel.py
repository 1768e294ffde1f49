"""Species of one run in parallel: in processes of this computer, or over an existing Dask cluster (extra ``dask``).

A cluster is one organisation's own machines, never those of several: a worker reads the records folder. Between
organisations the federation speaks.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from fedmiss.errors import ConfigError, EngineError
from fedmiss.owner import remove_own, temporary
from fedmiss.progress import quiet_figures
from fedmiss.system import cores, hear_no_interrupt
from fedmiss.version import __version__

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

_RETRIES = 2  # a species whose worker is lost is tried again elsewhere


def over_processes(
    work: Callable[[str], T], names: Sequence[str], jobs: int | None = None
) -> Iterator[tuple[str, T | None, str]]:
    """Run ``work(name)`` for every name; yield name, result (or None) and error, each when it is done.

    ``jobs``: processes, by default one per core; 1 runs all here, one after the other.
    """
    jobs = jobs or max(1, min(len(names), cores()))
    if jobs == 1:
        yield from ((name, work(name), "") for name in names)
        return
    # Spawned, not forked: a fork inherits the locks of the readers' threads and waits for them for ever.
    # All cores together, however many processes share them.
    threads = max(1, cores() // jobs)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin_worker, (threads,))
    with _main_hidden():
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


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Begin processes that do not run the user's script: without a guard for its main part it would begin the run again."""
    main: dict[str, object] = vars(sys.modules["__main__"])
    hidden: dict[str, object] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)


def _begin_worker(threads: int) -> None:
    """Ctrl-C is the parent's business; and a worker ends with its parent, however that ended.

    ``threads``: what each library may start, so that workers do not wait for one another's. Libraries read it when they
    are loaded, which is later: this module loads none.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, str(threads))
    hear_no_interrupt()
    quiet_figures()
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)  # what was half-written is under a temporary name, and the next run removes it

    Thread(target=follow, daemon=True).start()


def over_cluster(
    address: str, work: Callable[[str], T], names: Sequence[str], shared: Path
) -> Iterator[tuple[str, T | None, str]]:
    """Run ``work(name)`` for every name on the workers of a scheduler; yield name, result (or None) and error.

    A species whose worker dies is given to another one; one that loses three workers, or whose code fails, yields an error
    and stops no other.

    Parameters
    ----------
    address : of the scheduler, as ``tcp://host:8786``
    shared : a folder that every worker must see under the same path

    Raises
    ------
    EngineError : Dask is not installed, no scheduler or no worker answers
    ConfigError : workers with another version of fedmiss, or that do not see ``shared``; each is named
    """
    try:
        import distributed  # an optional extra
    except ImportError:
        raise EngineError(
            "--scheduler needs the extra 'dask', which is not installed. Install fedmiss[dask], or use --jobs."
        ) from None
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise EngineError(
            f"no Dask scheduler answers at {address!r} ({error}); start one with `dask scheduler` and give its address."
        ) from None
    with client:
        _check_workers(client, shared)
        waiting = {
            # pure=False and a random key: a run that follows must not
            # be answered from the scheduler's memory of an earlier one.
            client.submit(
                work, name, pure=False, retries=_RETRIES, key=f"fedmiss-{secrets.token_hex(4)}-{name}"
            ): name
            for name in names
        }
        try:
            for future in distributed.as_completed(list(waiting)):
                failed = future.exception()
                name = waiting[future]
                if failed is None:
                    yield name, future.result(), ""
                else:
                    why = f"{type(failed).__name__}: {failed}"
                    yield name, None, f"lost on the cluster ({why}); run again, what is done is kept"
        finally:
            client.cancel([future for future in waiting if not future.done()])


def _check_workers(client: Client, shared: Path) -> None:
    if not client.scheduler_info(n_workers=-1)["workers"]:
        raise EngineError("the Dask scheduler has no worker; start some with `dask worker ADDRESS`.")
    # A file that is written here and looked for there: a path that exists on both machines may be two folders.
    token = temporary(shared / "seen")
    token.write_text("seen", encoding="utf-8")
    try:
        seen = client.run(_look, str(token))
    finally:
        remove_own(token)
    other = {key: value for key, (value, _) in seen.items() if value != __version__}
    if other:
        raise ConfigError(
            f"workers with another version of fedmiss than {__version__}: "
            f"{', '.join(f'{key} ({value})' for key, value in sorted(other.items()))}; install the same version everywhere."
        )
    blind = sorted(key for key, (_, found) in seen.items() if not found)
    if blind:
        raise ConfigError(
            f"these workers do not see {shared}: {', '.join(blind)}. Mount it there under the same path, or leave "
            "them out of the cluster."
        )


def _look(token: str) -> tuple[str, bool]:
    """Return, on a worker, its version of fedmiss and whether it sees a file."""
    return __version__, Path(token).exists()
