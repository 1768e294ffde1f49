"""FedMissEM between many organisations of which some are away in every round, and one for a third of the job.

    python benchmarks/federation_absence.py --organisations 20 100

All run in this process, as threads, with keys, masks, journals and the rule of absence of a study. In every round each
organisation is away with probability ``--away``; ``--seconds`` is how long somebody is waited for. At the end all are back.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from fedmiss.compressors import Identity
from fedmiss.core import FedEM, Roster, Stop, run
from fedmiss.engines import LocalEngine, StudyEngine
from fedmiss.federation.attendance import Absence, cohorts_of
from fedmiss.federation.circle import Circle
from fedmiss.federation.gather import Board
from fedmiss.federation.masks import Masks, identity, public_key
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.paper import FedMissEM
from fedmiss.rng import rng_for

JOB = hashlib.sha256(b"absence").digest()


class Flickering:
    """A place whose frames come too late in given exchanges: the chair goes on before, unless too few are there."""

    def __init__(self, seat, chair: str, away: frozenset[int], seconds: float) -> None:
        self.seat, self.chair, self.away, self.seconds = seat, chair, away, seconds
        self.some_of, self.latest = seat.some_of, seat.latest

    def restore(self, exchange: int, frame: bytes) -> None:
        until = time.monotonic() + self.seconds

        def over(got):
            return frozenset() if self.chair in got or time.monotonic() > until else None

        if exchange in self.away:
            self.seat.some_of(exchange, {}, over)
        self.seat.restore(exchange, frame)


def panel_of(n: int, seed: int) -> GroupPanel:
    """A Gaussian panel of 40 sites for each of n organisations."""
    from tests.models.panels import simulate

    return simulate(J=40, L=24, n=60 * n, family="gaussian", groups=n, observers=n, seed=seed)[0]


def study(n: int, away: float, seconds: float, tol: float, seed: int) -> list[str]:
    """One job without and one with absences; the row of a table."""
    panel = panel_of(n, seed)
    model = FedMissEM(panel, family="gaussian", rank=2, penalty=1.0, seed=seed)
    data = model.rows(panel)
    names = sorted(data)
    algo = FedEM(model, Identity(), Roster.of({k: len(data[k]) for k in names}), gamma=1.0, seed=seed)
    stop = Stop(rounds=5000, tol=tol, window=3)
    local = run(algo, LocalEngine(data), np.zeros(model.q), stop=stop)
    rounds, rng = local.server.k, rng_for(seed, "absence", n)
    third = range(rounds // 3, 2 * rounds // 3)
    draws = rng.random((n, rounds)) < away
    off = {k: frozenset({*(2 + np.flatnonzero(draws[i])).tolist()}) for i, k in enumerate(names)}
    off[names[0]] = frozenset()  # the chair
    off[names[-1]] |= frozenset(third)
    board, got, begun = Board(names, patience=600.0), {}, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        keys = {k: identity(Path(folder) / k / "identity.key") for k in names}
        roster = {k: public_key(key) for k, key in keys.items()}

        def one(name: str) -> None:
            absence = Absence(cohorts_of(names, masks=True), names[0], seconds)
            seat = Flickering(board.seat(name), names[0], off[name], 4 * seconds)
            party = Masks(name, keys[name], roster, JOB)
            circle = Circle(party, Path(folder) / f"{name}.journal", seat, absence=absence)
            try:
                got[name] = (
                    run(algo, StudyEngine(circle, data[name], masked=True), np.zeros(model.q), stop=stop),
                    circle,
                )
            finally:
                circle.close()

        threads = [threading.Thread(target=one, args=(k,)) for k in names]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    result, circle = got[names[0]]
    same = all((r.server.S_hat == result.server.S_hat).all() for r, _ in got.values())
    apart = np.abs(result.server.S_hat - local.server.S_hat).max() / np.abs(local.server.S_hat).max()
    there = float(np.mean(result.trace["active"])) / n
    return [
        str(n), str(len(circle.cohorts)), str(rounds), str(result.server.k), f"{result.server.k / rounds:.2f}",
        f"{there:.0%}", f"{circle.left_out[names[-1]]}", f"{apart:.0e}", "yes" if same else "NO",
        f"{time.process_time() - begun:.0f}",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--organisations", type=int, nargs="+", default=[20])
    parser.add_argument("--away", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--tol", type=float, default=1e-14)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    print(
        "| organisations | cohorts | rounds, all there | rounds with absences | ratio | there in a round | "
        "rounds without the one | S_hat apart | same at all | CPU s |"
    )
    print("|" + "---|" * 10)
    for n in a.organisations:
        print("| " + " | ".join(study(n, a.away, a.seconds, a.tol, a.seed)) + " |", flush=True)


if __name__ == "__main__":
    main()
