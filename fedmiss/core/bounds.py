"""What the theorems promise: bounds on E||h(S_K)||^2, rounds to an accuracy, and the regimes of compression.

Source: Dieuleveut, Fort, Moulines, Robin (2021): eq. (9), corollary 2, theorem 3 with eqs. (11) and (12),
propositions 25 and 26, and the tables of regimes after corollary 2 and theorem 3. Constants as in
:mod:`fedmiss.core.theory`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from fedmiss.core.fedem import FedEM
from fedmiss.core.oracles import Spider
from fedmiss.core.theory import Constants, gamma_max, gamma_vr, minibatch_vr, omega_p
from fedmiss.errors import ConfigError

__all__ = [
    "Regime", "bound_corollary_2", "bound_fedem", "bound_memories", "bound_uncompressed", "bound_vr",
    "bound_vr_general", "check_step", "evaluations_vr", "gamma_limit", "regime_fedem", "regime_vr",
    "rounds_fedem", "rounds_vr",
]  # fmt: skip


def check_step(algo: FedEM, c: Constants, *, k: int = 0) -> float:
    """Return the largest step that the theorems allow, and warn with it when gamma_k is above.

    Theorem 3's for SPIDER's oracle, eq. (9)'s with nothing compressed and all present, theorem 4's otherwise (mean p).
    """
    omega = algo.compressor.omega(algo.model.q)
    n, p = algo.roster.n, float(algo.participation.prob(algo.roster.n).mean())
    if isinstance(algo.oracle, Spider):
        limit, words = gamma_vr(c, n=n, omega=omega), "theorem 3"
    elif omega_p(omega, p) == 0.0:
        limit, words = gamma_limit(c), "eq. (9)"
    else:
        limit, words = gamma_max(c, n=n, omega=omega, p=p), "theorem 4"
    gamma = algo.step(k)
    if gamma > limit * (1 + 1e-12):
        warnings.warn(
            f"gamma={gamma:g} is above {limit:.3g}, the largest step of {words} (omega={omega:.3g}, n={n}, p={p:.3g}): "
            "no theorem promises convergence there.",
            stacklevel=2,
        )
    return limit


def gamma_limit(c: Constants) -> float:
    """End of the range of steps without compression and absences, eq. (9): 2 v_min / L_W."""
    return 2.0 * c.v_min / c.L_W


def bound_uncompressed(c: Constants, *, gamma: float, n: int, k_max: int) -> float:
    """Bound of E||h(S_K)||^2 at omega = 0, p = 1, for any gamma below 2 v_min / L_W (eq. (9)).

    [ W_gap / (gamma k_max) + gamma L_W sigma2 / (2 n) ] / ( v_min (1 - gamma L_W / (2 v_min)) )

    Four times the range of theorem 1 at omega = 0, and whatever the memories. Differs in: the factor 1/2 of the noise term
    is that of the descent lemma, L_W gamma^2 / 2 E||H||^2; the scan of the paper is not readable there.
    """
    limit = gamma_limit(c)
    if not 0.0 < gamma < limit:
        raise ConfigError(
            f"gamma={gamma:g} is not in (0, {limit:g}), the range 2 v_min / L_W of eq. (9); lower gamma."
        )
    noise = 0.5 * gamma * c.L_W * c.sigma2 / n
    return (c.W_gap / (gamma * k_max) + noise) / (c.v_min * (1.0 - 0.5 * gamma * c.L_W / c.v_min))


def bound_fedem(c: Constants, *, gamma: float, n: int, omega: float, k_max: int, p: float = 1.0) -> float:
    """Theorem 4's bound of E||h(S_K)||^2, K uniform on the rounds; gamma must be at most gamma_max.

    With nothing compressed and all present it is eq. (9)'s, for gamma < 2 v_min / L_W.

    [ W_gap / (gamma k_max) + gamma L_W (1 + 5 omega_p) sigma2 / n ] / ( v_min (1 - gamma L_W / v_min) )
    """
    if omega_p(omega, p) == 0.0:
        return bound_uncompressed(c, gamma=gamma, n=n, k_max=k_max)
    if gamma > gamma_max(c, n=n, omega=omega, p=p) * (1 + 1e-12):
        raise ConfigError(
            f"gamma={gamma:g} is above gamma_max={gamma_max(c, n=n, omega=omega, p=p):g}; theorem 4 says nothing there."
        )
    noise = gamma * c.L_W * (1.0 + 5.0 * omega_p(omega, p)) * c.sigma2 / n
    return (c.W_gap / (gamma * k_max) + noise) / (c.v_min * (1.0 - gamma * c.L_W / c.v_min))


def bound_corollary_2(c: Constants, *, n: int, omega: float, k_max: int, p: float = 1.0) -> float:
    """Corollary 2: (4 / v_min) max( sqrt(W_gap L_W (1 + 5 omega_p) sigma2 / (n k_max)), W_gap / (gamma_max k_max) ).

    With gamma_star; p < 1 by theorem 4's factor omega_p in the place of omega.
    """
    noise = math.sqrt(c.W_gap * c.L_W * (1.0 + 5.0 * omega_p(omega, p)) * c.sigma2 / (n * k_max))
    return 4.0 / c.v_min * max(noise, c.W_gap / (gamma_max(c, n=n, omega=omega, p=p) * k_max))


def rounds_fedem(c: Constants, *, n: int, omega: float, eps: float, p: float = 1.0) -> int:
    """K_opt(eps) of FedEM: the fewest rounds for which corollary 2 promises E||h(S_K)||^2 <= eps."""
    _positive(eps)
    return max(1, math.ceil(max(_terms(c, n, omega, eps, p)) * (1.0 - 1e-12)))


def _terms(c: Constants, n: int, omega: float, eps: float, p: float) -> tuple[float, float]:
    """Rounds after which each of the two terms of corollary 2 is eps: that of the noise, that of the start."""
    high = (4.0 / (c.v_min * eps)) ** 2 * c.W_gap * c.L_W * (1.0 + 5.0 * omega_p(omega, p)) * c.sigma2 / n
    return high, 4.0 * c.W_gap / (c.v_min * eps * gamma_max(c, n=n, omega=omega, p=p))


def bound_vr(c: Constants, *, n: int, omega: float, k_in: int, k_out: int) -> tuple[float, float]:
    """Theorem 3 at its own step: bounds of E||H||^2 (eq. (11)) and of E||h(S)||^2 (eq. (12)).

    2 W_gap / (v_min gamma k_in k_out), and that times 2 (1 + gamma^2 L^2 (1 + omega)^2 / n). Goes with
    alpha = 1/(1 + omega) and b = ceil(k_in / (1 + omega)^2).
    """
    gamma = gamma_vr(c, n=n, omega=omega)
    first = 2.0 * c.W_gap / (c.v_min * gamma * k_in * k_out)
    return first, first * _factor_12(c, gamma, n, omega)


def _factor_12(c: Constants, gamma: float, n: int, omega: float) -> float:
    return 2.0 * (1.0 + gamma**2 * c.L_rows**2 * (1.0 + omega) ** 2 / n)


def bound_memories(c: Constants, *, n: int, omega: float, k_in: int, k_out: int, G_0: float = 0.0) -> float:
    """Proposition 26: bound of the mean over rounds of E[G], G = (1/n) sum_i ||V_i - h_i(S)||^2, of VR-FedEM.

    2 (1 + omega) G_0 / (k_in k_out) + 16 gamma (1 + omega)^2 L^2 W_gap / (v_min k_in k_out), at theorem 3's gamma, alpha,
    b: the memories converge to the local mean fields. G_0 is G at the start, 0 where memories start at h_i(S_0).
    """
    if not G_0 >= 0.0:
        raise ConfigError(f"G_0={G_0} (must be 0 or more: a mean of squared distances).")
    gamma, rounds = gamma_vr(c, n=n, omega=omega), k_in * k_out
    moved = 16.0 * gamma * ((1.0 + omega) * c.L_rows) ** 2 * c.W_gap / c.v_min
    return (2.0 * (1.0 + omega) * G_0 + moved) / rounds


def bound_vr_general(
    c: Constants, *, gamma: float, n: int, omega: float, alpha: float, b: int, k_in: int, k_out: int
) -> float:
    """Proposition 25: bound of the mean of E||H||^2 for any alpha <= 1/(1 + omega), b >= 1 and gamma below 1 / Lambda.

    W_gap / (gamma k_in k_out v_min (1 - gamma Lambda)), Lambda = L_W / (2 v_min)
    + 2 sqrt(2) (v_max / v_min) (L / (alpha sqrt(n))) sqrt(omega + alpha^2 k_in (1 + 10 omega) / (8 b)).
    Theorem 3's step is 1 / (2 Lambda) at its alpha and k_in / b = (1 + omega)^2.
    """
    if not 0.0 < alpha <= 1.0 / (1.0 + omega) * (1 + 1e-12) or b < 1:
        raise ConfigError(
            f"alpha={alpha:g}, b={b}: proposition 25 needs alpha in (0, {1 / (1 + omega):g}] and b >= 1."
        )
    spread = math.sqrt(omega + alpha**2 * k_in * (1.0 + 10.0 * omega) / (8.0 * b))
    size = 2.0 * math.sqrt(2.0) * (c.v_max / c.v_min) * c.L_rows / (alpha * math.sqrt(n)) * spread
    largest = 1.0 / (c.L_W / (2.0 * c.v_min) + size)
    if not 0.0 < gamma < largest:
        raise ConfigError(
            f"gamma={gamma:g} is not in (0, {largest:g}), the range of proposition 25; lower gamma."
        )
    return c.W_gap / (gamma * k_in * k_out * c.v_min * (1.0 - gamma / largest))


def rounds_vr(c: Constants, *, n: int, omega: float, eps: float) -> int:
    """K_opt(eps) of VR-FedEM: inner rounds in all for which eqs. (11) and (12) promise E||h||^2 <= eps."""
    _positive(eps)
    gamma = gamma_vr(c, n=n, omega=omega)
    return max(
        1, math.ceil(2.0 * c.W_gap * _factor_12(c, gamma, n, omega) / (c.v_min * gamma * eps) * (1.0 - 1e-12))
    )


def evaluations_vr(c: Constants, *, n: int, m: int, omega: float, eps: float, k_in: int) -> int:
    """K_CE(eps) of VR-FedEM: conditional expectations, n m a full pass and 2 b n an inner round (appendix E.2)."""
    k_out = math.ceil(rounds_vr(c, n=n, omega=omega, eps=eps) / k_in)
    return k_out * (n * m + 2 * minibatch_vr(k_in, omega) * n * k_in)


@dataclass(frozen=True, slots=True)
class Regime:
    """Which terms dominate, and by how much compression multiplies the rounds that are needed.

    Parameters
    ----------
    noise : "high" (K_opt ~ 1/eps^2), "low" (~ 1/eps), "" for VR-FedEM, which has one
    step : "free" (gamma_max is that without compression) or "compressed"
    n_over_omega3 : n / omega^3, the ratio that decides ``step`` for large n and omega; inf at omega = 0
    increase : K_opt over K_opt without compression, from the bounds
    """

    noise: str
    step: str
    n_over_omega3: float
    increase: float


def regime_fedem(c: Constants, *, n: int, omega: float, eps: float) -> Regime:
    """Regime of FedEM, the table after corollary 2 (p = 1)."""
    _positive(eps)
    top = gamma_max(c, n=n, omega=omega)
    high, low = _terms(c, n, omega, eps, 1.0)
    before = rounds_fedem(c, n=n, omega=0.0, eps=eps)
    return Regime(
        "high" if high > low else "low",
        "free" if top >= c.v_min / (2.0 * c.L_W) * (1 - 1e-12) else "compressed",
        n / omega**3 if omega > 0 else math.inf,
        rounds_fedem(c, n=n, omega=omega, eps=eps) / before,
    )


def regime_vr(c: Constants, *, n: int, omega: float) -> Regime:
    """Regime of VR-FedEM, the table after theorem 3: whether the second term of eq. (10) exceeds 1."""
    gamma = gamma_vr(c, n=n, omega=omega)
    second = (c.v_min / c.L_W) / gamma - 1.0
    return Regime(
        "", "free" if second <= 1.0 else "compressed", n / omega**3 if omega > 0 else math.inf,
        gamma_vr(c, n=n, omega=0.0) / gamma,
    )  # fmt: skip


def _positive(eps: float) -> None:
    if not eps > 0.0:
        raise ConfigError(f"eps={eps} (must be above 0).")
