"""The methods of the papers as settings of :class:`~fedmiss.core.fedem.FedEM`, and settings for a first run of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedmiss.arrays import F64
from fedmiss.core import oracles
from fedmiss.core.fedem import FedEM
from fedmiss.core.local_steps import LocalSteps
from fedmiss.core.participation import Full
from fedmiss.core.protocols import Compressor, Model, Participation, Shards
from fedmiss.core.rules import FedMM
from fedmiss.core.schedules import Times
from fedmiss.core.state import Roster
from fedmiss.core.theory import gamma_noise, lipschitz
from fedmiss.errors import ConfigError
from fedmiss.settings import kinds_checked


@kinds_checked
def vr_fedem(*, b: int, k_in: int, replace: bool = True, **settings: Any) -> FedEM:
    """VR-FedEM (algorithm 2): FedEM whose workers estimate S_c by SPIDER's recursion, see :class:`~.oracles.Spider`."""
    return FedEM(oracle=oracles.Spider(b, k_in, replace), **settings)


@kinds_checked
def spider_em(*, b: int, k_in: int, replace: bool = True, **settings: Any) -> FedEM:
    """SPIDER-EM: VR-FedEM with one worker and no compression.

    Source: Fort, Moulines, Wai (2020); algorithm 2 of Dieuleveut et al. (2021) at n = 1, omega = 0.
    """
    algo = vr_fedem(b=b, k_in=k_in, replace=replace, **settings)
    if algo.roster.n != 1 or algo.compressor.omega(algo.model.q) != 0.0:
        raise ConfigError(
            f"SPIDER-EM has one worker and no compression; got n={algo.roster.n}, "
            f"omega={algo.compressor.omega(algo.model.q):g}. Use vr_fedem."
        )
    return algo


@kinds_checked
def naive_fedem(algo: FedEM) -> FedEM:
    """The same run without memories: the ablation of the paper, section 2.

    V_c = 0 throughout, enforced: init "h" and "zero" both start at 0, other values raise ConfigError.
    """
    # With alpha = 0 line 8 of algorithm 1 leaves V_c as it is; the rule "none" starts it at 0.
    return replace(algo, alpha=0.0, memory="none")


@kinds_checked
def local_em(
    *,
    H: int,
    eta: float | Callable[[int], float],
    b: int | None = None,
    correct: bool = True,
    **settings: Any,
) -> FedEM:
    """FedEM whose workers make H local EM steps of size eta a round; gamma = eta H.

    With ``correct`` the memories V_c are control variates too: each local step moves by h_c - V_c + V. H = 1 is
    FedEM with gamma = eta, to the bit. ``b`` rows a step, None for all.

    Local steps pay where EM is slow because much is missing, while eta H max_c ||A_c|| <= 1 for the linear part A_c of
    x - s_bar_c(T(x)), and harm elsewhere. Source: not in the papers for EM; the step of SCAFFLSA on h_c.
    """
    # The message is (x - S_k) / (eta H) per unit of step: gamma = eta H puts S_{k+1} at the mean of the workers' x.
    step = Times(eta, float(H)) if callable(eta) else float(eta) * H
    return FedEM(oracle=LocalSteps(H, eta, b, correct), gamma=step, **settings)


@kinds_checked
def fed_lsa(*, H: int, eta: float | Callable[[int], float], b: int | None = 1, **settings: Any) -> FedEM:
    """FedLSA (FedAvg on gradients): H local steps of size eta without correction or memory, then the mean.

    Start with any ``init``: memories are zero. Source: Mangold et al. (NeurIPS 2024), algorithm 1. Differs in nothing
    for a compressor that sends numbers as they are and p = 1.
    """
    return local_em(H=H, eta=eta, b=b, correct=False, memory="none", alpha=0.0, **settings)


@kinds_checked
def scafflsa(*, H: int, eta: float | Callable[[int], float], b: int | None = 1, **settings: Any) -> FedEM:
    """SCAFFLSA (Scaffold, option II, on gradients): FedLSA with control variates xi_c = V - V_c.

    Start with init="zero" for the paper's xi_c = 0. Source: Mangold et al. (NeurIPS 2024), algorithm 2, with the sign of
    the authors' code: xi_c <- xi_c + (theta_{t+1} - th_c) / (eta H). Differs in: alpha = 1/(1 + omega) and 1/p admit
    compression and absences, which the paper does not have (SCALLION, Huang, Li, Li 2024, is of this family).
    """
    return local_em(H=H, eta=eta, b=b, correct=True, **settings)


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
    sqrt(omega_p)), at most 1, with L from :func:`~fedmiss.core.theory.lipschitz`; with unequal weights 1 / max w_c stands
    for n, since noise is sum_c w_c^2 (..) <= max w_c sum_c w_c (..). Its first term, v_min / (2 L_W), guards the descent of
    a Lyapunov function; EM itself, gamma = 1, descends. A model that has ``project(S)`` is kept in its domain
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
