"""Step sizes of the theorems, every constant explicit, and estimates of these constants from pilot runs.

Source: Dieuleveut, Fort, Moulines, Robin (2021), theorems 1, 3, 4 and corollary 2. The constants are those of
assumptions A4, A5, A7, A8:

    v_min, v_max   bounds of the spectrum of B(s), where the gradient of W = F o T is -B(s) h(s)
    L_W            Lipschitz constant of that gradient
    L              root of the mean over workers (A5, with their weights) or rows (A8) of squared Lipschitz constants of h_c
    sigma2         mean over workers of the variance of the estimate S_c of s_bar_c
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.em import pooled_s_bar
from fedmiss.core.oracles import s_bar_many
from fedmiss.core.protocols import Model, Shards
from fedmiss.core.state import Roster
from fedmiss.errors import ConfigError, DomainError
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of the theorems; ``W_gap`` is W(S_0) - min W, ``L_rows`` is L of A8."""

    v_min: float
    v_max: float
    L_W: float
    L: float
    L_rows: float
    sigma2: float
    W_gap: float


def omega_p(omega: float, p: float) -> float:
    """Omega + (1 - p)(1 + omega) / p: the variance factor of quantization and absences together (theorem 4)."""
    return omega + (1.0 - p) * (1.0 + omega) / p


@kinds_checked
def gamma_max(constants: Constants, *, n: float, omega: float, p: float = 1.0) -> float:
    """Largest step of FedEM, theorem 4 (theorem 1 at p = 1).

    min( v_min / (2 L_W),  p sqrt(n) / (2 sqrt(2) L (1 + omega) sqrt(omega_p)) ); the second is infinite when nothing
    is compressed and nobody is absent. ``n`` is the number of workers of equal weight; of unequal ones 1 / max w_c.
    """
    return min(constants.v_min / (2.0 * constants.L_W), gamma_noise(constants.L, n=n, omega=omega, p=p))


def gamma_noise(L: float, *, n: float, omega: float, p: float = 1.0) -> float:
    """The second term of :func:`gamma_max`, which compression and absences ask for."""
    # Theorem 1's term is the one of p = 1: sqrt(n) / (2 sqrt(2) L (1 + omega) sqrt(omega)).
    spread = omega_p(omega, p)
    if spread == 0.0:
        return math.inf
    return p * math.sqrt(n) / (2.0 * math.sqrt(2.0) * L * (1.0 + omega) * math.sqrt(spread))


@kinds_checked
def gamma_star(constants: Constants, *, n: float, omega: float, k_max: int, p: float = 1.0) -> float:
    """Best constant step for k_max rounds, corollary 2 (with theorem 4's factor for p < 1), capped at gamma_max.

    sqrt( W_gap n / (k_max L_W (1 + 5 (omega + (1 - p)(1 + omega)/p)) sigma2) )
    """
    cap = gamma_max(constants, n=n, omega=omega, p=p)
    # Exact answers of everybody: the bound of corollary 2 has no noise to balance.
    if constants.sigma2 == 0.0:
        return cap
    noise = k_max * constants.L_W * (1.0 + 5.0 * omega_p(omega, p)) * constants.sigma2
    return min(cap, math.sqrt(constants.W_gap * n / noise))


@kinds_checked
def gamma_vr(constants: Constants, *, n: float, omega: float) -> float:
    """Step of VR-FedEM, theorem 3 eq. (10); goes with alpha = 1/(1 + omega) and b = ceil(k_in / (1 + omega)^2).

    (v_min/L_W) / ( 1 + 4 sqrt(2) (v_max/L_W) (L/sqrt(n)) (1 + omega) sqrt(omega + (1 + 10 omega)/8) )
    """
    # The last factor of eq. (10), (1 + omega) sqrt(omega + (1 + 10 omega) / 8).
    spread = (1.0 + omega) * math.sqrt(omega + (1.0 + 10.0 * omega) / 8.0)
    c = constants
    factor = 1.0 + 4.0 * math.sqrt(2.0) * (c.v_max / c.L_W) * c.L_rows / math.sqrt(n) * spread
    return (c.v_min / c.L_W) / factor


def nearby(s: F64, h: F64, rng: np.random.Generator) -> list[F64]:
    """Points between s (q,) and what three workers would say, whose fields at s are ``h`` (n, q)."""
    return [s + rng.uniform(0.02, 0.3) * h[c] for c in rng.permutation(len(h))[:3]]


def lipschitz(
    model: Model, data: Shards, roster: Roster, S_0: F64, *, rounds: int = 20, seed: int = 0
) -> float:
    """L of A5 along a pilot run of EM: root of sum_c w_c max ||h_c(s) - h_c(t)||^2 / ||s - t||^2 over the workers.

    Compared are the pilot's neighbours, and its points with others on the way to what single workers say, where T is
    defined there. A supremum over these points only, so a lower bound.

    Parameters
    ----------
    S_0 : (q,) where the pilot starts;  rounds : its EM steps
    """
    rng, slots = rng_for(seed, "lipschitz"), np.arange(roster.n, dtype=np.int64)

    def fields(s: F64) -> F64:
        return s_bar_many(model, model.T(s.copy()), data, slots, None) - s

    worst = np.zeros(roster.n)
    s = np.array(S_0, dtype=np.float64)
    h = fields(s)
    for _ in range(rounds):
        # EM's own step, S + h(S): with weights 1 / n that of algorithm 3 at gamma = 1 without compression.
        following = s + roster.weights @ h
        for t in (*nearby(s, h, rng), following):
            gap = float(np.linalg.norm(t - s))
            if gap <= 1e-10 * max(float(np.linalg.norm(s)), 1.0):
                continue
            try:
                at = fields(t)
            except DomainError:  # a single worker may point out of the domain
                continue
            if np.isfinite(at).all():
                worst = np.maximum(worst, np.linalg.norm(at - h, axis=1) / gap)
        s = following
        h = fields(s)
    return float(np.sqrt(roster.weights @ worst**2))


def _row_variance(model: Model, data: Shards, s: F64, workers: I64) -> float:
    """Mean over the workers of the variance of a row's statistic at T(s), of at most 200 rows of each."""
    theta = model.T(s)
    rows = [[data[c][j : j + 1] for j in range(min(len(data[c]), 200))] for c in workers]
    return float(np.mean([np.var([model.s_bar(theta, row) for row in mine], axis=0).sum() for mine in rows]))


@kinds_checked
def estimate_constants(
    model: Model,
    data: Shards,
    roster: Roster,
    S_hat: F64,
    *,
    b: int | None = None,
    rounds: int = 30,
    seed: int = 0,
) -> Constants:
    """Estimate the constants along a pilot run of EM from ``S_hat``. SIMULATION ONLY: it sees all rows.

    Suprema over R^q are replaced by the largest (v_min: smallest) value seen on the pilot's points, on random points
    between them and the workers' own statistics, and on the directions in which statistics can move (for a mixture
    the masses sum to 1, so B(s) is evaluated on that subspace only). So L, L_W, v_max are under- and v_min is
    over-estimated: the steps that follow are a guide, not a guarantee.

    Parameters
    ----------
    model : needs ``phi(theta) -> (q,)``, the natural parameter (B(s) is the Jacobian of phi o T), and
        ``log_likelihood(theta, rows)``; its ``penalty(theta)``, where it has one, is a part of W
    b : rows in a minibatch; None is all rows, sigma2 = 0
    rounds : EM steps of the pilot
    """
    phi = getattr(model, "phi", None)
    log_likelihood = getattr(model, "log_likelihood", None)
    penalty = getattr(model, "penalty", None)
    if phi is None or log_likelihood is None:
        raise ConfigError("the constants need a model with phi(theta) and log_likelihood(theta, rows).")
    rng, slots = rng_for(seed, "pilot"), np.arange(roster.n, dtype=np.int64)
    # A pilot run of EM, S_{k+1} = s_bar(T(S_k)), along which all suprema are taken.
    path = [np.array(S_hat, dtype=np.float64)]
    for _ in range(rounds):
        path.append(pooled_s_bar(model, model.T(path[-1]), data, roster))
    pairs = []  # points of the path, each with points between it and what single workers would say
    for s in path[:: max(rounds // 6, 1)]:
        h = s_bar_many(model, model.T(s), data, slots, None) - s
        pairs += [(s, t) for t in nearby(s, h, rng)]
    local = s_bar_many(model, model.T(path[0]), data, slots, None)
    some = [data[c][rng.permutation(len(data[c]))[:8]] for c in rng.permutation(roster.n)[:20]]
    rows = [shard[j : j + 1] for shard in some for j in range(len(shard))]
    single = np.array([model.s_bar(model.T(path[0]), one) for one in rows])
    # The directions in which statistics move at all: the masses of a mixture always sum to 1.
    moves = np.concatenate([single - path[0], local - path[0], np.diff(path, axis=0)])
    _, size, basis = np.linalg.svd(moves, full_matrices=False)
    P = basis[size > 1e-9 * size[0]].T  # (q, directions)

    def jacobian(s: F64) -> F64:
        """B(s) on the subspace, by central differences, symmetrised."""
        step = 1e-6 * max(1.0, float(np.abs(s).max()))
        columns = [(phi(model.T(s + step * v)) - phi(model.T(s - step * v))) / (2 * step) for v in P.T]
        B: F64 = P.T @ np.array(columns).T
        # B(s) is a symmetric matrix; differences leave a part that is not, of the size of their error.
        return 0.5 * (B + B.T)

    v_min, v_max, L_W, worker, row = math.inf, 0.0, 0.0, np.zeros(roster.n), np.zeros(len(single))
    for s, t in pairs:
        gap = float(np.linalg.norm(t - s))
        if gap < 1e-12:
            continue
        theta_s, theta_t = model.T(s), model.T(t)
        hs = s_bar_many(model, theta_s, data, slots, None) - s
        ht = s_bar_many(model, theta_t, data, slots, None) - t
        # A5: ||h_c(s) - h_c(t)|| <= L_c ||s - t|| for every worker c.
        worker = np.maximum(worker, np.linalg.norm(hs - ht, axis=1) / gap)
        # A8: the same of every row j.
        each = [model.s_bar(theta_s, one) - model.s_bar(theta_t, one) for one in rows]
        row = np.maximum(row, np.linalg.norm(np.array(each) - (s - t), axis=1) / gap)
        Bs, Bt = jacobian(s), jacobian(t)
        # A4: spectrum of B(s), and the Lipschitz constant of grad W = -B(s) h(s).
        values = np.linalg.eigvalsh(Bs)
        v_min, v_max = min(v_min, float(values[0])), max(v_max, float(values[-1]))
        w = roster.weights
        L_W = max(L_W, float(np.linalg.norm(Bs @ (P.T @ (w @ hs)) - Bt @ (P.T @ (w @ ht)))) / gap)
    # A7: the variance of a mean of b rows is that of one row over b.
    sigma2 = 0.0 if b is None else _row_variance(model, data, path[-1], rng.permutation(roster.n)[:20]) / b

    def W(s: F64) -> float:
        theta = model.T(s)
        R = float(penalty(theta)) if penalty is not None else 0.0
        return R - float(roster.weights @ [log_likelihood(theta, data[c]) for c in slots])

    # L^2 is a mean of squares in both theorems: over workers (1 and 4), over rows (3).
    return Constants(
        v_min, v_max, L_W, float(np.sqrt(roster.weights @ worker**2)), float(np.sqrt(np.mean(row**2))), sigma2,
        max(W(path[0]) - W(path[-1]), 0.0),
    )  # fmt: skip
