"""Linear stochastic approximation over a federation: A_c theta = b_c from noisy draws, and TD learning as its example."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, InputError
from fedmiss.loops import compiled
from fedmiss.rng import rng_for


@compiled
def _walk(rows: F64, index: I64, b: int, eta: float, steps: int, shift: F64, x: F64) -> None:
    """Move x (p,) by ``steps`` steps; rows (m, p, p + 1) hold [A | b]; ``index`` (steps * b,), or empty: all rows."""
    p = x.size
    h = np.empty(p)
    count = b if index.size else rows.shape[0]
    for t in range(steps):
        h[:] = 0.0
        for j in range(count):
            r = index[t * b + j] if index.size else j
            for i in range(p):
                # h(x) = b(Z) - A(Z) x, the mean field of LSA at one draw.
                g = rows[r, i, p]
                for l in range(p):
                    g -= rows[r, i, l] * x[l]
                h[i] += g
        for i in range(p):
            # FedLSA: shift = 0. SCAFFLSA: shift = V - V_c = xi_c, the control variate.
            x[i] += eta * (h[i] / count + shift[i])


class LSA:
    """Solve (mean_c A_c) theta = mean_c b_c: T is the identity, s_bar_c(theta; Z) = theta - (A_c(Z) theta - b_c(Z)).

    A worker's rows are its pool of draws, (m, p, p + 1) with [A | b] in each; A_c and b_c are their means, and a
    minibatch of one row drawn with replacement is exactly one noisy draw Z. A_c need not be symmetric.

    Source: Mangold, Samsonov, Labbi, Levin, Alami, Naumov, Moulines (NeurIPS 2024), sections 2 and 3. Differs in
    nothing. Use with :func:`fedmiss.core.fed_lsa` and :func:`fedmiss.core.scafflsa`.

    Parameters
    ----------
    p : numbers in theta, and in the statistic
    """

    def __init__(self, p: int) -> None:
        if p < 1:
            raise ConfigError(f"a linear system of p={p} unknowns (must be at least 1).")
        self.p = self.q = p

    def check_rows(self, rows: F64 | Law) -> None:
        """Raise InputError for rows that are no systems of p unknowns."""
        shape = np.shape(rows.atoms if isinstance(rows, Law) else rows)[1:]
        if shape != (self.p, self.p + 1):
            raise InputError(
                f"its rows [A | b] have the shape {shape}, expected {(self.p, self.p + 1)} for p={self.p}. Give all workers "
                "systems of the same unknowns."
            )

    def s_bar(self, theta: F64, rows: F64) -> F64:
        """(p,) theta minus the mean of A theta - b over ``rows`` (m, p, p + 1)."""
        mean = rows.mean(axis=0)
        # s_bar_c(theta) - theta = -(A_c theta - b_c): FedEM's field is the residual of the system with its sign turned.
        out: F64 = theta - ((mean[:, : self.p] * theta).sum(axis=-1) - mean[:, self.p])
        return out

    def T(self, S: F64, /) -> F64:
        """The statistic is the parameter."""
        return S.copy()

    def local_walk(
        self,
        x: F64,
        data: Sequence[F64 | Law] | F64,
        slots: I64,
        index: I64 | None,
        eta: float,
        H: int,
        shift: F64,
    ) -> F64:
        """H steps theta <- theta - eta (A(Z) theta - b(Z) - shift) of each worker, see LocalSteps."""
        none = np.empty(0, dtype=np.int64)
        # The oracle draws the rows of all H steps at once: H batches one after the other.
        batch = 1 if index is None else index.shape[1] // H
        for i, slot in enumerate(slots):
            rows, chosen = data[slot], none if index is None else index[i]
            if index is None:  # the mean of the pool does not change: take it once
                rows = rows.mean(axis=0, keepdims=True)
            elif isinstance(rows, Law):
                chosen = rows.pick(chosen)
                rows = rows.atoms
            self.check_rows(rows)  # the compiled loop would read beside them
            _walk(np.ascontiguousarray(rows), chosen, batch, eta, H, shift[i], x[i])
        return x


def mean_system(data: Sequence[F64 | Law] | F64) -> tuple[F64, F64]:
    """A (n, p, p) and b (n, p): means of the workers' pools.

    Source: the system that FedLSA solves, Mangold et al. (2024).
    """
    # The last column of a row is b.
    means = np.array([rows.mean(axis=0) for rows in data])
    return np.ascontiguousarray(means[:, :, :-1]), np.ascontiguousarray(means[:, :, -1])


def linear_pools(n: int, p: int, m: int, *, heterogeneity: float = 1.0, seed: int = 0) -> F64:
    """(n, m, p, p + 1) pools of random stable systems.

    A_c is the identity plus random parts of size 0.2 (common) and 0.2 ``heterogeneity`` (own), b_c is N(0,
    ``heterogeneity``^2) around a common one, and each draw has N(0, 0.1^2) in A and N(0, 1) in b.

    Source: none, a problem for tests and figures.
    """
    rng = rng_for(seed, "linear-pools")
    common = np.eye(p) + 0.2 * rng.standard_normal((p, p)) / np.sqrt(p)
    A = common + 0.2 * heterogeneity * rng.standard_normal((n, p, p)) / np.sqrt(p)
    b = rng.standard_normal(p) + heterogeneity * rng.standard_normal((n, p))
    rows = np.empty((n, m, p, p + 1))
    rows[..., :p] = A[:, None] + 0.1 * rng.standard_normal((n, m, p, p))
    rows[..., p] = b[:, None] + rng.standard_normal((n, m, p))
    return rows


class Law:
    """Rows that are draws of [A | b] with given probabilities, as many as one likes: a worker's data without a finite pool.

    It stands where a pool stands: 2^32 rows, of which as many are atom k as its probability says.

    Parameters
    ----------
    atoms : (k, p, p + 1)
    probability : (k,) their probabilities
    """

    SIZE = 2**32

    def __init__(self, atoms: F64, probability: F64) -> None:
        self.atoms, self.probability = np.ascontiguousarray(atoms), probability / probability.sum()
        self._up_to = np.cumsum(self.probability)[:-1]

    def __len__(self) -> int:
        return self.SIZE

    def pick(self, index: I64) -> I64:
        """Atoms of the rows with these numbers."""
        # Row numbers are uniform on 0 .. 2^32 - 1: the middle of a number's interval is a quantile of the law.
        return np.searchsorted(self._up_to, (index + 0.5) / self.SIZE, side="right")

    def __getitem__(self, index: I64) -> F64:
        return self.atoms[self.pick(index)]

    def mean(self, axis: int = 0, keepdims: bool = False) -> F64:
        """(p, p + 1) expected [A | b]; with a first axis of 1 where ``keepdims``."""
        out: F64 = np.tensordot(self.probability, self.atoms, axes=1)
        return out[None] if keepdims else out


STATES, ACTIONS, BRANCHING, FEATURES, DISCOUNT, SPREAD = 30, 2, 2, 8, 0.95, 0.02  # of the authors' program


def garnet(n: int = 10, *, heterogeneous: bool = True, seed: int = 0) -> list[Law]:
    """A law of [A | b] for each agent of TD(0) on Garnet problems: A = phi(s) (phi(s) - gamma phi(s'))', b = phi(s) r.

    Each of 30 states x 2 actions has 2 successors, with weights 1 + U(0, 0.02) of each agent's own; the 8 features are
    uniform and divided by their sum; the policy is deterministic. Homogeneous agents have one graph, and
    rewards that differ by U(0, 0.02); heterogeneous ones alternate between two graphs, with opposite rewards. A draw is
    a state from the agent's stationary law and its successor, independent of the last one.

    Source: the experiment of the talk and of Mangold et al. (2024), section 6, as the authors' program has it; Garnet
    problems are of Archibald et al. (1995). Differs in: the random numbers.
    """
    rng = rng_for(seed, "garnet")
    # argsort of random rows is a random permutation of the states
    # in each row: below BRANCHING stand that many of them.
    graphs = [
        np.argsort(rng.random((STATES, ACTIONS, STATES)), axis=-1) < BRANCHING
        for _ in range(2 if heterogeneous else 1)
    ]
    phi = rng.random((STATES, FEATURES))
    phi /= phi.sum(axis=1, keepdims=True)
    action = rng.integers(0, ACTIONS, STATES)
    reward = rng.random(STATES)
    laws = []
    for worker in range(n):
        linked = graphs[worker % len(graphs)][np.arange(STATES), action]
        P = linked * (1.0 + SPREAD * rng.random((STATES, STATES)))
        P /= P.sum(axis=1, keepdims=True)
        # Stationary law: the left eigenvector of P of the eigenvalue 1, of one sign, summing to 1.
        values, vectors = np.linalg.eig(P.T)
        mu = np.abs(np.real(vectors[:, np.argmax(np.real(values))]))
        mu /= mu.sum()
        sign = 1.0 if worker % 2 == 0 else -1.0
        r = sign * reward if heterogeneous else reward + SPREAD * rng.random(STATES)
        # TD(0): A = phi(s) (phi(s) - gamma phi(s'))', b = phi(s) r(s), with probability mu(s) P(s, s').
        now, after = np.nonzero(P)
        A = phi[now][:, :, None] * (phi[now] - DISCOUNT * phi[after])[:, None, :]
        b = phi[now] * r[now, None]
        laws.append(Law(np.concatenate([A, b[..., None]], axis=-1), mu[now] * P[now, after]))
    return laws
