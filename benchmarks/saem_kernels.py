"""FL-SAEM's two kernels at the same panels: how far below the maximum the log-likelihood is after so many rounds.

    python benchmarks/saem_kernels.py            # 12 panels of models B and C, about 4 CPU minutes

The maximum is EM's with quadrature. ``K`` is the number of steps a round, of four chains; nothing is compressed.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fedmiss.compressors import Identity
from fedmiss.core import Roster, SaemSteps, em, run
from fedmiss.engines import LocalEngine
from fedmiss.models.saem.algorithm import fed_saem
from fedmiss.models.saem.chains import Chains, Langevin, Laplace
from fedmiss.models.saem.counts import Counts, simulate_counts
from fedmiss.models.saem.months import PoissonMonths, first_statistics, simulate_months

ROUNDS = (60, 200, 400)
WAYS = {
    "Langevin, K = 5": (5, Langevin()),
    "Langevin, K = 10": (10, Langevin()),
    "Laplace, K = 1": (1, Laplace()),
}


def panel(name: str, seed: int):
    """Data, model and roster of one panel."""
    if name == "B":
        return simulate_months(6, 30, 8, seed=seed), PoissonMonths(8), Roster.of([30] * 6)
    data = simulate_counts(seed=seed)
    return data, Counts(12), Roster.of([len(rows) for rows in data], "pooled")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--panels", type=int, default=6, help="panels of each model")
    args = parser.parse_args()
    print(
        f"log-likelihood below the maximum after {', '.join(map(str, ROUNDS))} rounds: median over {args.panels} panels"
    )
    for name in ("B", "C"):
        found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        spent = dict.fromkeys(WAYS, 0.0)
        for seed in range(args.panels):
            data, model, roster = panel(name, seed)

            def below(S: np.ndarray, model=model, data=data) -> float:
                return sum(len(rows) * model.log_likelihood(model.T(S), rows) for rows in data)

            S_0 = roster.weights @ first_statistics(model, data)
            best = below(em(model, data, roster, S_0, rounds=250, tol=1e-16)[0])
            for way, (K, kernel) in WAYS.items():
                algo = fed_saem(
                    model,
                    roster,
                    Identity(),
                    how="server",
                    estep=Chains(K, 4, kernel),
                    steps=SaemSteps(100, 0.7),
                    seed=seed,
                )
                seen: list[np.ndarray] = []

                def observe(server, down, seen=seen):
                    seen.append(server.S_hat)
                    return {}

                begun = time.process_time()
                run(algo, LocalEngine(data), S_0, stop=max(ROUNDS) + 1, init="zero", observe=observe)
                spent[way] += time.process_time() - begun
                found[way].append([best - below(seen[r]) for r in ROUNDS])
        for way, rows in found.items():
            values = np.median(rows, axis=0)
            error = np.std(rows, axis=0) / np.sqrt(len(rows))
            said = "   ".join(f"{v:6.3f} ({e:.3f})" for v, e in zip(values, error, strict=True))
            print(f"model {name}  {way:18s} {said}   {spent[way] / args.panels:.1f} CPU s", flush=True)


if __name__ == "__main__":
    main()
