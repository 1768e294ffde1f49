"""Settings with which a first run of one's own model works: the step of theorem 1, its constants from a pilot."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.fedem import FedEM
from fedmiss.core.oracles import s_bar_many
from fedmiss.core.participation import Full
from fedmiss.core.protocols import Compressor, Model, Participation, Shards
from fedmiss.core.rules import FedMM
from fedmiss.core.state import Roster
from fedmiss.core.theory import gamma_noise, nearby
from fedmiss.errors import ConfigError, DomainError
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked


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


@kinds_checked
def first_run(
    model: Model,
    data: Shards,
    roster: Roster,
    S_0: F64,
    compressor: Compressor,
    *,
    participation: Participation | None = None,
    rounds: int = 20,
    seed: int = 0,
) -> FedEM:
    """FedEM for a model of one's own, ready to run: all rows in each round, alpha = 1/(1 + omega), a step that holds.

    The step is the second term of theorem 4 (theorem 1 where all are present), p sqrt(n) / (2 sqrt(2) L (1 + omega)
    sqrt(omega_p)), at most 1, with L from :func:`lipschitz`; with unequal weights 1 / max w_c stands for n, since noise is
    sum_c w_c^2 (..) <= max w_c sum_c w_c (..). Its first term, v_min / (2 L_W), guards the descent of a Lyapunov
    function; EM itself, gamma = 1, descends. A model that has ``project(S)`` is kept in its domain
    (:class:`~fedmiss.core.rules.FedMM`). SIMULATION ONLY: the pilot sees all rows.

    Parameters
    ----------
    S_0 : (q,) first statistic, as ``pooled_s_bar(model, theta, data, roster)`` gives it
    compressor : unbiased; ``Dithering.of(q)`` has omega of at most 1

    Raises
    ------
    ConfigError    a biased compressor: its step has another theory (``ef21_step``)

    Source: Dieuleveut, Fort, Moulines, Robin (2021), theorems 1 and 4.
    """
    if getattr(compressor, "delta", None) is not None:
        raise ConfigError(f"{compressor!r} is biased; take an unbiased one, or EF21 with ef21_step.")
    who = participation or Full()
    L = max(lipschitz(model, data, roster, S_0, rounds=rounds, seed=seed), 1e-12)
    # The least p_c of all: the bound grows with p, so it holds for every worker.
    p = float(who.prob(roster.n).min())
    # n workers of weight 1 / n average their noise; one that holds nearly all rows is nearly alone.
    n = 1.0 / float(roster.weights.max())
    gamma = min(1.0, gamma_noise(L, n=n, omega=compressor.omega(model.q), p=p))
    memory = FedMM() if hasattr(model, "project") else "field"
    return FedEM(model, compressor, roster, gamma, participation=who, memory=memory, seed=seed)
