"""FedMM: surrogates or parameters added up? Dictionary learning by majorization, on equal and on different workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fedmiss.arrays import F64
from fedmiss.compressors import Dithering
from fedmiss.core import Bernoulli, Downlink, FedEM, Model, Roster, ServerState, em, pooled_s_bar, run
from fedmiss.core.rules import FedMM
from fedmiss.engines import LocalEngine
from fedmiss.experiments.folder import Folder, band, plot_band
from fedmiss.rng import rng_for

D, K, WORKERS, ROWS = 12, 6, 10, 60
GAMMA, P, LEVELS = 0.1, 0.5, 4
EVERY = 10  # rounds between two points of a curve


class Dictionary:
    """min over theta (d, K) of E[ min_h ||y - theta h||^2 / 2 + lasso ||h||_1 ] + ridge ||theta||^2 / 2.

    At the codes h of a theta the objective lies below ||y - theta' h||^2 / 2 + lasso ||h||_1 for every theta': a surrogate
    that is linear in S = (E h h', E y h'), of which T is the minimum, S_2 (S_1 + ridge I)^{-1}.

    Source: online dictionary learning, Mairal, Bach, Ponce, Sapiro (2010), as a case of FedMM (Dieuleveut, Fort, Hegazy,
    Wai, arXiv 2507.17534). Differs in: a ridge instead of a bound on the length of atoms, so that T has a closed form.
    """

    lasso, ridge = 0.2, 0.1

    def __init__(self, d: int = D, K: int = K) -> None:
        self.d, self.K, self.q = d, K, K * K + d * K

    def codes(self, theta: F64, rows: F64) -> F64:
        """(m, K) minimisers h, by accelerated proximal gradient steps."""
        G, b = theta.T @ theta, rows @ theta
        # FISTA (Beck and Teboulle 2009): gradient step of length 1/L, soft threshold, and the momentum of t_k.
        L = max(float(np.linalg.eigvalsh(G)[-1]), 1e-12)
        h: F64 = np.zeros_like(b)
        z: F64 = h
        t = 1.0
        for _ in range(100):
            x = z - (z @ G - b) / L
            new: F64 = np.sign(x) * np.maximum(np.abs(x) - self.lasso / L, 0.0)
            t, was = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t)), t
            z = new + (was - 1.0) / t * (new - h)
            moved = float(np.abs(new - h).max(initial=0.0))
            h = new
            if moved < 1e-7:
                break
        return h

    def s_bar(self, theta: F64, rows: F64) -> F64:
        """(q,) mean h h' and mean y h'."""
        h = self.codes(theta, rows)
        return np.concatenate([(h.T @ h / len(rows)).ravel(), (rows.T @ h / len(rows)).ravel()])

    def T(self, S: F64, /) -> F64:
        """(d, K) minimum of the surrogate."""
        A, B = S[: self.K**2].reshape(self.K, self.K), S[self.K**2 :].reshape(self.d, self.K)
        # T(S) = S_2 (S_1 + ridge I)^-1; compressed sums of S_1 need not be symmetric.
        theta = np.linalg.solve(0.5 * (A + A.T) + self.ridge * np.eye(self.K), B.T).T
        return np.asarray(theta, dtype=np.float64)

    def project(self, S: F64) -> F64:
        """Nearest statistic whose first part is symmetric and has no eigenvalue below 0: the set of surrogates."""
        A = S[: self.K**2].reshape(self.K, self.K)
        # Projection in the Frobenius norm: the negative eigenvalues go.
        values, vectors = np.linalg.eigh(0.5 * (A + A.T))
        return np.concatenate([((vectors * np.maximum(values, 0.0)) @ vectors.T).ravel(), S[self.K**2 :]])

    def objective(self, theta: F64, rows: F64) -> float:
        """Value at the codes of theta."""
        h = self.codes(theta, rows)
        fit = 0.5 * ((rows - h @ theta.T) ** 2).sum(axis=1).mean() + self.lasso * np.abs(h).sum(axis=1).mean()
        return float(fit + 0.5 * self.ridge * (theta**2).sum())


class Parameters:
    """The same workers, but what is added up is the parameter that each would choose, T(s_bar_c(theta))."""

    def __init__(self, model: Dictionary) -> None:
        self.model, self.q = model, model.d * model.K

    def s_bar(self, theta: F64, rows: F64) -> F64:
        """(q,) the worker's own parameter."""
        return self.model.T(self.model.s_bar(theta, rows)).ravel()

    def T(self, S: F64, /) -> F64:
        """The statistic is the parameter."""
        return S.reshape(self.model.d, self.model.K).copy()


def workers(kind: str, seed: int) -> list[F64]:
    """Rows of each worker: sparse combinations of K true atoms; where workers differ, each has two of them mostly."""
    rng = rng_for(seed, "dictionary", kind)
    atoms = rng.standard_normal((K, D))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    rows = []
    for worker in range(WORKERS):
        share = np.full(K, 1.0 / K)
        if kind == "heterogeneous":
            share = np.full(K, 0.02)
            share[[worker % K, (worker + 1) % K]] = 0.46
        picked = np.array([rng.choice(K, 2, replace=False, p=share / share.sum()) for _ in range(ROWS)])
        code = np.zeros((ROWS, K))
        np.put_along_axis(code, picked, rng.normal(0.0, 2.0, (ROWS, 2)), axis=1)
        rows.append(code @ atoms + 0.1 * rng.standard_normal((ROWS, D)))
    return rows


def main(folder: Folder) -> None:
    """Ten runs (quick: two) of each way on each kind of workers: objective, and how far a round moves."""
    rounds, runs = (300, 2) if folder.quick else (600, 10)
    columns: dict[str, F64] = {"round": np.arange(0.0, rounds, EVERY)}
    for kind in ("homogeneous", "heterogeneous"):
        for i in range(runs):
            for name, values in _curves(folder, kind, rounds, 1000 * folder.seed + i, first=i == 0).items():
                columns[f"{kind} {name} {i}"] = values
    _draw(folder, columns, runs)
    title = "Surrogates or parameters added up (FedMM)"
    folder.finish(title, rounds=rounds, runs=runs, gamma=GAMMA, p=P, levels=LEVELS)


def _curves(folder: Folder, kind: str, rounds: int, seed: int, *, first: bool) -> dict[str, F64]:
    """Gap to the objective of MM on all rows, and squared steps in both spaces, of both ways."""
    data, model = workers(kind, seed), Dictionary()
    roster = Roster.of([ROWS] * WORKERS)
    theta = rng_for(seed, "dictionary-start").standard_normal((D, K))
    S_0 = pooled_s_bar(model, theta, data, roster)

    every_row = np.concatenate(data)  # workers have equal numbers of rows, so their mean is that of all rows

    def F(at: F64) -> float:
        return model.objective(at, every_row)

    best = F(model.T(em(model, data, roster, S_0, rounds=1000, tol=1e-14)[0]))
    found: dict[str, F64] = {}
    ways: dict[str, tuple[Model, F64]] = {
        "surrogates": (model, S_0),
        "parameters": (Parameters(model), model.T(S_0).ravel()),
    }
    for name, (its, start) in ways.items():
        memory = FedMM() if name == "surrogates" else "field"
        algo = FedEM(
            its, Dithering(LEVELS), roster, GAMMA, participation=Bernoulli(P), memory=memory, seed=seed
        )
        seen: list[tuple[F64, F64]] = []

        def observe(
            server: ServerState, down: Downlink, seen: list[tuple[F64, F64]] = seen
        ) -> dict[str, float]:
            seen.append((down.theta, server.S_hat))
            return {}

        result = run(
            algo, LocalEngine(data), start, stop=rounds + 1, observe=observe, label=f"{kind}, {name}"
        )
        if first:
            folder.trace(result, roster.total, run=f"{kind}, {name}")
        at = range(0, rounds, EVERY)
        spaces = {
            "parameter": [((seen[k + 1][0] - seen[k][0]) ** 2).sum() for k in at],
            "surrogate": [
                ((_surrogate(model, name, seen[k + 1], every_row) - _surrogate(model, name, seen[k], every_row)) ** 2)
                .sum() for k in at
            ],
        }  # fmt: skip
        found[f"{name} gap"] = np.array([F(seen[k][0]) - best for k in at])
        found |= {f"{name} {space} step": np.array(v) / GAMMA**2 for space, v in spaces.items()}
    return found


def _surrogate(model: Dictionary, way: str, seen: tuple[F64, F64], rows: F64) -> F64:
    """The point in the space of surrogates: the server's, or that of the parameter."""
    return seen[1] if way == "surrogates" else model.s_bar(seen[0], rows)


def _draw(folder: Folder, columns: dict[str, F64], runs: int) -> None:
    kinds = ("homogeneous", "heterogeneous")
    shown = ("gap", "parameter step", "surrogate step")

    def all_of(kind: str, way: str, what: str) -> list[F64]:
        return [columns[f"{kind} {way} {what} {i}"] for i in range(runs)]

    def draw(axes: Sequence[Axes]) -> None:
        for ax, (kind, what) in zip(
            axes, ((each, column) for each in kinds for column in shown), strict=True
        ):
            for way, colour in (("surrogates", "C0"), ("parameters", "C3")):
                values = band([np.maximum(curve, 1e-16) for curve in all_of(kind, way, what)])
                plot_band(ax, columns["round"], values, colour, f"{way} added up")
            ax.set(title=f"{kind}: {what}", xlabel="rounds")

    folder.figure("fedmm", draw, columns, panels=6, size=(2.9, 3.2), legend=7)
    last = {
        (kind, way, what): float(np.mean([curve[-5:].mean() for curve in all_of(kind, way, what)]))
        for kind in kinds for way in ("surrogates", "parameters") for what in shown
    }  # fmt: skip
    folder.results |= {f"{kind}, {way}, {what}": value for (kind, way, what), value in last.items()}
    folder.say(
        f"Dictionary learning, {WORKERS} workers of {ROWS} rows, {LEVELS}-level dithering, p = {P}, gamma = {GAMMA}, "
        f"memories V in both; {runs} runs, mean over the last 50 rounds. Gap: objective above that of MM on all rows, from "
        "the same start (it may be below 0: another local minimum); steps: squared, over gamma^2.\n\n"
        "| workers | added up | gap | parameter step | surrogate step |\n|---|---|---|---|---|\n"
        + "\n".join(
            f"| {kind} | {way} | " + " | ".join(f"{last[kind, way, what]:.2g}" for what in shown) + " |"
            for kind in kinds for way in ("surrogates", "parameters")
        )
    )  # fmt: skip
