"""The loop that every run shares: rounds, stopping, history, checkpoint and resume; workers that leave and join."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.atomic import read_checked, write_checked
from fedmiss.core.checks import first_statistic
from fedmiss.core.fedem import FedEM
from fedmiss.core.fingerprint import describe, settings
from fedmiss.core.protocols import Engine, Rows, Theta
from fedmiss.core.state import Downlink, Dropped, Roster, RoundInfo, ServerState
from fedmiss.errors import ConfigError, DomainError, InputError, UplinkError
from fedmiss.progress import progress
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked

Observe = Callable[[ServerState, Downlink], Mapping[str, float]]
_COLUMNS = (
    "k", "gamma", "h_norm2", "active", "bytes_up", "bytes_down", "evaluations", "dropped", "away", "seconds",
)  # fmt: skip
_GROWN = 1e24  # times ||H||^2 of round 0: T may stop growing (exp is bounded) far beyond sense, and all numbers stay finite
_KEPT = 10_000  # dropped messages that a result lists; the trace counts all


@kinds_checked
@dataclass(frozen=True, slots=True)
class Stop:
    """When to stop; the first that holds.

    Parameters
    ----------
    rounds : rounds in all, those before a resume included
    epochs : conditional expectations in all, divided by N
    tol : stop once the mean of ||H||^2 over the last ``window`` rounds is <= tol, and nobody was away in them: with
        memories that stand still H comes to 0 elsewhere. ||H||^2 has the noise of compression, minibatches and draws of
        who answers in it, so a tol below that floor is never met.
    seconds : wall clock of this call; not in a study, all of whose copies must end after the same round

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.core.Stop(rounds=100).rounds
    100
    """

    rounds: int | None = None
    epochs: float | None = None
    tol: float | None = None
    window: int = 20
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "epochs", "tol", "seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:  # a nan is never reached: the run would have no end
                raise ConfigError(f"stop: {name} is {value} (must be 0 or more).")
        if not self.window >= 1:
            raise ConfigError(f"stop: window is {self.window} (must be at least 1 round).")


@dataclass(slots=True, eq=False)
class Result:
    """What a run gives back.

    ``trace`` has one entry per round in each column: k, gamma, h_norm2, active, bytes_up, bytes_down, evaluations,
    dropped (messages that could not be used), away (workers that were asked and not there), seconds; columns of
    ``observe`` hold nan in the rounds in which it was not asked. The row of round k has the H that moved S_k to S_{k+1},
    and what ``observe`` said of S_k.
    ``dropped`` lists the unusable messages by round, worker's name and reason (the first 10,000).
    ``S_mean`` is the mean of the statistics after round ``average_from`` of :func:`run`, None without it.
    """

    server: ServerState
    theta: Theta
    trace: dict[str, F64]
    stop_reason: str
    converged: bool = field(default=False)
    dropped: list[Dropped] = field(default_factory=list)
    S_mean: F64 | None = None


@dataclass(slots=True)
class _Mean:
    """Running mean of the statistics from a round on."""

    start: int
    S: F64
    count: int = 0

    def add(self, server: ServerState) -> None:
        if server.k > self.start:
            self.count += 1
            # The mean of S_k from a round on (Polyak and Ruppert), updated in place of a sum: no growth of rounding.
            self.S = self.S + (server.S_hat - self.S) / self.count


@dataclass(slots=True)
class _Kept:
    """What a run collects beside the server's state."""

    trace: dict[str, list[float]]
    dropped: list[Dropped]
    mean: _Mean | None
    first: Mapping[str, str] = field(default_factory=dict)  # what the run started from
    useless: int = 0  # messages that could not be used, since the last one that could
    least: float = 1.0  # of the ||H||^2 that later ones are compared with: a run may begin at a root

    def observe(self, k: int, values: Mapping[str, float]) -> None:
        """Note what an observer said of round k; earlier rounds in which it was not asked hold nan."""
        for name, value in values.items():
            if name in _COLUMNS:  # both would stand in one column, and rounds no longer be rows
                raise ConfigError(
                    f"observe gives {name!r}, a column that the trace has; choose another name."
                )
            column = self.trace.setdefault(name, [])
            column.extend([np.nan] * (k - len(column)))
            column.append(float(value))

    def add(self, info: RoundInfo, n: int, seconds: float) -> None:
        """Note a round of n workers; raise when nothing arrives any more, or the iterates diverged."""
        row = {name: getattr(info, name, 0.0) for name in _COLUMNS}
        for name, value in (row | {"dropped": len(info.dropped), "seconds": seconds}).items():
            self.trace[name].append(value)
        if info.active:
            self.useless = 0
        elif info.dropped:
            self.useless += len(info.dropped)
        self.dropped += info.dropped[: _KEPT - len(self.dropped)]
        if info.dropped and self.useless >= max(20, 3 * n):
            raise UplinkError(
                f"round {info.k}: none of the last {self.useless} messages could be used; the last one: "
                f"{info.dropped[-1].reason} If the iterates diverged, lower gamma (now {info.gamma:g}).",
                k=info.k,
                worker=info.dropped[-1].worker,
            )
        usual = max(self.trace["h_norm2"][0], self.least)
        if not info.h_norm2 <= _GROWN * usual:  # nan compares as false
            raise DomainError(
                f"round {info.k}: ||H||^2 is {info.h_norm2:.3g}, where the run began at {usual:.3g}; the iterates diverged "
                f"with gamma={info.gamma:g}. Lower gamma (try {info.gamma / 5:.2g}), compress less, or take larger "
                "minibatches.",
                k=info.k,
            )

    def table(self, rounds: int) -> dict[str, F64]:
        """Columns of equal length."""
        for column in self.trace.values():
            column.extend([np.nan] * (rounds - len(column)))
        return {name: np.array(column, dtype=np.float64) for name, column in self.trace.items()}


def save_checkpoint(path: str | Path, algo: FedEM, engine: Engine, server: ServerState, kept: _Kept) -> None:
    """Write everything that the next rounds depend on, atomically: one .npz without pickles behind its SHA-256."""
    arrays: dict[str, Any] = {
        "S_hat": server.S_hat, "V": server.V, "k": np.int64(server.k), "acks": server.acks,
        "run": _text(json.dumps(settings(algo) | dict(kept.first), sort_keys=True)),
        "dropped": _text(json.dumps(kept.dropped)),
    }  # fmt: skip
    if server.shadow is not None:
        arrays["shadow"] = server.shadow
    if kept.mean is not None:
        arrays |= {"mean.S": kept.mean.S, "mean.count": np.int64(kept.mean.count)}
        arrays["mean.start"] = np.int64(kept.mean.start)
    arrays |= {f"carry.{name}": value for name, value in (server.carry or {}).items()}
    arrays |= {f"engine.{name}": value for name, value in engine.save(algo).items()}
    arrays |= {f"trace.{name}": np.array(column, dtype=np.float64) for name, column in kept.trace.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_checked(path, buffer.getvalue())


def load_checkpoint(
    path: str | Path, algo: FedEM, engine: Engine, first: Mapping[str, str]
) -> tuple[ServerState, _Kept]:
    """Restore the engine's workers; return the server's state and what the run has collected so far.

    ``first``: what the run starts from, in words; from another start it is another run.
    """
    try:
        raw = io.BytesIO(read_checked(path))  # numpy leaves its own handle open on a damaged file
        with np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        S_hat, V, k, acks = arrays["S_hat"], arrays["V"], int(arrays["k"]), arrays["acks"]
        theirs, dropped = (json.loads(bytes(arrays[name]).decode()) for name in ("run", "dropped"))
    except (InputError, OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None
    mine = settings(algo) | dict(first)
    if theirs != mine:
        names = sorted(name for name in {*theirs, *mine} if theirs.get(name) != mine.get(name))
        differ = "; ".join(
            f"{n}: {str(theirs.get(n))[:300]} there, {str(mine.get(n))[:300]} here" for n in names
        )
        raise ConfigError(
            f"the checkpoint {path} is of a run with other settings ({differ}); "
            "resume with the same settings, or delete it to start afresh.",
            path=str(path),
        )

    def named(part: str) -> dict[str, np.ndarray]:
        return {name[len(part) :]: value for name, value in arrays.items() if name.startswith(part)}

    try:
        engine.load(algo, named("engine."))
    except ConfigError as error:  # of other data; engines do not know the file
        raise ConfigError(f"{path}: {error}", path=str(path)) from None
    except (KeyError, ValueError) as error:  # memories as another version kept them
        raise _unreadable(path, error) from None
    mean = named("mean.")
    kept = _Kept(
        {name: value.tolist() for name, value in named("trace.").items()},
        [Dropped(*entry) for entry in dropped],
        _Mean(int(mean["start"]), mean["S"], int(mean["count"])) if mean else None,
        first,
    )
    return ServerState(S_hat, V, k, acks, named("carry.") or None, arrays.get("shadow")), kept


def _unreadable(path: str | Path, error: Exception) -> InputError:
    words = f"{path} is not a checkpoint that this version can read ({error}); delete it to start afresh."
    return InputError(words, path=str(path))


def _text(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), dtype=np.uint8)


@kinds_checked
def run(
    algo: FedEM,
    engine: Engine,
    S_hat: F64,
    *,
    stop: Stop | int,
    init: str | F64 = "h",
    observe: Observe | None = None,
    observe_every: int = 1,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    average_from: int | None = None,
    label: str = "rounds",
) -> Result:
    """Run rounds of ``algo`` on ``engine`` until ``stop``.

    Parameters
    ----------
    S_hat : (q,) first statistic S_0
    stop : a :class:`Stop`, or a number of rounds
    init : first memories V_c: "h" (h_c(S_0), as in the theorems), "zero", or (n, q) values
    observe : function of (server, down) at the start of a round, giving further columns of the trace, e.g. the
        true mean field in a simulation; asked every ``observe_every`` rounds
    checkpoint : file to resume from when it exists, and to write every ``checkpoint_every`` rounds and at the end; it
        holds settings, S_0, init and a digest of the data, by which another run's is refused
    average_from : give the mean of S_k over all k above it as ``Result.S_mean``
    label : words beside the progress bar

    A message that cannot be used (damaged, not finite, of another round or run) counts as missing and is listed in
    ``Result.dropped``; the run goes on.

    Raises
    ------
    DomainError
        When S_k leaves the domain of T; the message names the round and the remedy.
    UplinkError
        When none of the last max(20, 3 n) messages could be used.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> from fedmiss.models.lsa import LSA, linear_pools
    >>> rows, roster = linear_pools(4, 2, 50), fedmiss.core.Roster.of([50] * 4)  # four workers with 50 rows each
    >>> algo = fedmiss.core.FedEM(LSA(2), fedmiss.compressors.Dithering(levels=2), roster, gamma=0.2)
    >>> result = fedmiss.core.run(algo, fedmiss.engines.LocalEngine(rows), np.zeros(2), stop=fedmiss.core.Stop(rounds=20))
    >>> len(result.trace["bytes_up"])
    20
    """
    # many parameters: the documented interface, given by name
    stop = Stop(rounds=int(stop)) if isinstance(stop, int | np.integer) else stop
    if stop.rounds is None and stop.epochs is None and stop.tol is None and stop.seconds is None:
        raise ConfigError("the run has no end; give rounds, epochs, tol or seconds.")
    if getattr(engine, "in_step", False):
        if stop.seconds is not None:
            raise ConfigError(
                f"stop: seconds is {stop.seconds:g}; of a run with a copy at each organisation one would end before the "
                "others. Give rounds, epochs or tol."
            )
        if checkpoint is not None:
            engine.save(algo)  # it refuses: now, and not after rounds that are lost
    for name, every in (("observe_every", observe_every), ("checkpoint_every", checkpoint_every)):
        if every < 1:
            raise ConfigError(f"{name} is {every} (must be at least 1 round).")
    start = time.perf_counter()
    S_hat = first_statistic(S_hat, algo.model.q)
    first = {
        "S_0": describe(S_hat),
        "init": describe(init if isinstance(init, str) else np.array(init, float)),
    }
    if checkpoint is not None and Path(checkpoint).exists():
        server, kept = load_checkpoint(checkpoint, algo, engine, first)
        since = None if kept.mean is None else kept.mean.start
        if since != average_from:
            raise ConfigError(
                f"the checkpoint {checkpoint} averages from round {since}, this run from {average_from}; use the same value."
            )
    else:
        mean = None if average_from is None else _Mean(average_from, np.zeros(algo.model.q))
        kept = _Kept({name: [] for name in _COLUMNS}, [], mean, first)
        server = engine.start(algo, S_hat, init)
    trace, mean, kept.least = kept.trace, kept.mean, max(1.0, float(S_hat @ S_hat))
    before = trace["seconds"][-1] if trace["seconds"] else 0.0
    evaluations, total, n = sum(trace["evaluations"]), algo.roster.total, algo.roster.n
    fraction = stop.rounds is None and stop.epochs is not None
    with progress(label, total=stop.epochs if fraction else stop.rounds) as show:
        down = algo.broadcast(server)
        while not (reason := _reason(stop, server.k, evaluations / total, trace, start)):
            if observe is not None and server.k % observe_every == 0:
                kept.observe(server.k, observe(server, down))
            # A_{k+1} of algorithm 1, line 3, drawn by the server: a worker cannot choose its rounds.
            active = algo.participation.active(algo.seed, server.k, n)
            # Lines 4 to 12 at the workers.
            replies = engine.round(algo, server, down, active)
            # Lines 13 to 16 at the server.
            server, info = algo.server_step(server, down, replies)
            evaluations += info.evaluations
            kept.add(info, n, before + time.perf_counter() - start)
            if mean is not None:
                mean.add(server)
            if checkpoint is not None and server.k % checkpoint_every == 0:
                save_checkpoint(checkpoint, algo, engine, server, kept)
            down = algo.broadcast(server)
            show(evaluations / total if fraction else server.k)
    if checkpoint is not None:
        save_checkpoint(checkpoint, algo, engine, server, kept)
    averaged = mean.S if mean is not None and mean.count else None
    table = kept.table(server.k)
    return Result(server, down.theta, table, reason, reason.startswith("tol"), kept.dropped, averaged)


def _reason(stop: Stop, k: int, epochs: float, trace: Mapping[str, list[float]], start: float) -> str:
    """Why to stop now, in words; empty to go on."""
    h_norm2, away = (trace[name][-stop.window :] for name in ("h_norm2", "away"))
    if stop.tol is not None and len(h_norm2) == stop.window:
        mean = sum(h_norm2) / stop.window
        if mean <= stop.tol and not any(away):
            return f"tol: mean ||H||^2 of the last {stop.window} rounds is {mean:.3g} <= {stop.tol:g}"
    if stop.rounds is not None and k >= stop.rounds:
        return f"rounds: {k} done"
    if stop.epochs is not None and epochs >= stop.epochs:
        return f"epochs: {epochs:.4g} done"
    if stop.seconds is not None and time.perf_counter() - start >= stop.seconds:
        return f"seconds: {stop.seconds:g} passed after {k} rounds"
    return ""


@kinds_checked
def revise(
    algo: FedEM, server: ServerState, V: F64, roster: Roster, joined: Mapping[str, Rows]
) -> tuple[FedEM, F64]:
    """What a run goes on with when workers leave or join: ``run(algo, engine, server.S_hat, init=V, ...)``.

    A worker that is away keeps its last memory V_c in V, for as long as it is in the roster: then the run's fixed point is
    no root of anybody's mean field. One that leaves for good is retired: V loses w_c V_c, and the weights are those of the
    new roster. One that joins is admitted with h_c(S_k), as at the start of a run (algorithm 1, line 1; init="h").

    Parameters
    ----------
    algo, server : the run so far;  V : (n, q) memories of its workers, in slot order (``LocalEngine.V``)
    roster : the new one; its names say who stays
    joined : the rows of those who are new

    Returns
    -------
    the algorithm over the new roster, with draws of its own (rounds are counted from 0 again, so its seed is another
    one), and the (n', q) first memories

    Raises
    ------
    ConfigError    rows of somebody who is new are missing, or nobody is left; the model has a carry
    """
    old = algo.roster
    if server.carry is not None:  # run() would begin it anew, and S_k is half of the statistic without it
        raise ConfigError(
            "a run goes on over another roster where T depends on S only; of this model begin a new one, from the theta "
            "that was reached (FedMissEM(start=result.theta))."
        )
    if V.shape != (old.n, algo.model.q):
        raise ConfigError(
            f"V has shape {V.shape}, expected ({old.n}, {algo.model.q}): one memory for each worker."
        )
    missing = [name for name in roster.ids if name not in old.slots and name not in joined]
    if missing:
        raise ConfigError(
            f"worker {missing[0]!r} is new and has no rows in ``joined``; give them, or leave it out."
        )
    # A seed that no run beside this one is likely to have: seeds 0, 1, 2, .. are those of repetitions.
    new = replace(algo, roster=roster, seed=int(rng_for(algo.seed, "revise", server.k).integers(2**63)))
    # T at S_k itself, where the new run starts, also where a compressed downlink let workers hold something near it.
    theta = algo.broadcast(replace(server, shadow=None)).theta
    out = np.empty((roster.n, algo.model.q))
    for c, name in enumerate(roster.ids):
        if name in old.slots:
            out[c] = V[old.slots[name]]
        else:
            S = algo.model.s_bar(theta, joined[name])
            out[c] = algo.rule.first(S, server.S_hat) if algo.rule.remembers else 0.0
    return new, out
