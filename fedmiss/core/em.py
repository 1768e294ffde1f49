"""Classical EM on pooled or sharded rows: the reference that every federated method must reduce to."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.oracles import s_bar_many
from fedmiss.core.protocols import Model, Shards, Theta
from fedmiss.core.state import Roster
from fedmiss.settings import kinds_checked


@kinds_checked
def pooled_s_bar(model: Model, theta: Theta, data: Shards, roster: Roster) -> F64:
    """sum_c w_c s_bar_c(theta), (q,): sees all rows, so it exists in simulations only."""
    slots = np.arange(roster.n, dtype=np.int64)
    S = s_bar_many(model, theta, data, slots, None)
    out: F64 = np.add.reduce(roster.weights[:, None] * S, axis=0)
    return out


@kinds_checked
def mean_field(model: Model, S_hat: F64, data: Shards, roster: Roster, theta: Theta = None) -> F64:
    """h(S) = sum_c w_c s_bar_c(T(S)) - S, (q,). SIMULATION ONLY: no server of a real federation can see it.

    Source: h of Dieuleveut, Fort, Moulines, Robin (2021).
    """
    theta = model.T(S_hat) if theta is None else theta
    return pooled_s_bar(model, theta, data, roster) - S_hat


@kinds_checked
def em(
    model: Model, data: Shards, roster: Roster, S_hat: F64, *, rounds: int, tol: float = 0.0
) -> tuple[F64, F64]:
    """EM in the expectation space, S_{k+1} = s_bar(T(S_k)).

    Source: EM as in Dieuleveut, Fort, Moulines, Robin (2021), whose fixed points are the roots of h.

    Returns
    -------
    S_hat : (q,) last statistic
    h_norm2 : (rounds done,) ||h(S_k)||^2 = ||S_{k+1} - S_k||^2; stops once it is <= ``tol``

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> from fedmiss.core import pooled_s_bar
    >>> from fedmiss.models.gmm import GMMParams
    >>> rows = np.random.default_rng(0).normal(size=(4, 50, 1)) + np.where(np.arange(50) % 2, 3, -3)[:, None]
    >>> model = fedmiss.models.GMM(G=2, d=1, covariance="known", Sigma=np.eye(1))
    >>> roster = fedmiss.core.Roster.of([50] * 4)  # four workers with 50 rows each
    >>> start = pooled_s_bar(model, GMMParams(np.array([0.5, 0.5]), np.array([[-1.0], [1.0]]), np.eye(1)), rows, roster)
    >>> result = fedmiss.core.em(model, rows, roster, start, rounds=20)
    >>> np.sort(model.T(result[0]).mu.ravel()).round().tolist()
    [-3.0, 3.0]
    """
    trace = []
    for _ in range(rounds):
        new = pooled_s_bar(model, model.T(S_hat), data, roster)  # S_{k+1} = sum_c w_c s_bar_c(T(S_k))
        # What memory "field" learns: h(S_k), whose squared length is the paper's measure of an epsilon-stationary point.
        h = new - S_hat
        trace.append(float(h @ h))
        S_hat = new
        if trace[-1] <= tol:
            break
    return S_hat, np.array(trace)
