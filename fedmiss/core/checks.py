"""What cannot work is refused: settings of :class:`~fedmiss.core.fedem.FedEM`, its first statistic, an M-step of nan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import oracles
from fedmiss.core.finite_sum import SemVr
from fedmiss.core.messages import LARGEST, usable
from fedmiss.core.protocols import Model, Rows
from fedmiss.core.rules import Field
from fedmiss.core.state import leaves
from fedmiss.errors import ConfigError, DomainError, InputError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM


def _local(algo: FedEM) -> bool:
    """Whether the oracle makes several local steps: gamma = eta H may then exceed 1."""
    return getattr(algo.oracle, "eta", None) is not None


def alpha_of(algo: FedEM) -> float:
    """Step of the memories: 1 / (1 + omega) unless given, 0 for a rule that learns nothing."""
    biased, alpha = getattr(algo.compressor, "delta", None) is not None, algo.alpha
    # 1 / (1 + omega) as in theorems 1, 3 and 4; a biased compressor has no omega, and EF21 has a step of 1.
    if alpha is None:  # mypy believes the annotation
        alpha = 1.0 if biased else 1.0 / (1.0 + algo.compressor.omega(algo.model.q))  # type: ignore[unreachable]
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha={alpha} is not in [0, 1]; use 1/(1+omega) (alpha=None).")
    return alpha if algo.rule.learns else 0.0


def step(algo: FedEM, k: int) -> float:
    """gamma_k; a schedule is checked at each round."""
    if not callable(algo.gamma):  # checked once, when made
        return float(algo.gamma)
    value = algo.gamma(k)
    try:
        gamma = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"the schedule gives gamma={value!r} at round {k}, not a number.") from None
    if not (math.isfinite(gamma) and 0.0 < gamma and (gamma <= 1.0 or _local(algo))):
        raise ConfigError(
            f"the schedule gives gamma={gamma} at round {k}, which is not in (0, 1]; bound it below and above."
        )
    return _of_local_steps(algo, k, gamma)


def _of_local_steps(algo: FedEM, k: int, gamma: float) -> float:
    """Return gamma; raise ConfigError when local steps move by another length."""
    if _local(algo):
        oracle: Any = algo.oracle
        if not math.isclose(gamma, oracle.step(k) * oracle.H, rel_tol=1e-9):
            raise ConfigError(
                f"gamma={gamma:g} at round {k}, but local steps of eta={oracle.step(k):g}, H={oracle.H} move by eta H; "
                "use local_em, fed_lsa or scafflsa, which set it."
            )
    return gamma


def check_settings(algo: FedEM) -> None:
    """Raise ConfigError for settings that contradict each other or what the theorems need."""
    biased, rule = getattr(algo.compressor, "delta", None) is not None, algo.rule
    if algo.bound is not None and not algo.bound > 1.0:
        raise ConfigError(f"bound={algo.bound} (must be above 1, the length of the median message); try 100.")
    if callable(algo.gamma):
        algo.step(0)
    elif not 0.0 < algo.gamma <= 1.0 and not _local(algo):
        raise ConfigError(f"gamma={algo.gamma} is not in (0, 1]; try 0.1.")
    else:
        _of_local_steps(algo, 0, float(algo.gamma))
        if callable(getattr(algo.oracle, "eta", None)):
            raise ConfigError(
                "eta is a schedule but gamma is not; use local_em, fed_lsa or scafflsa, which set it."
            )
    if algo.downlink is not None and (
        type(rule) is not Field
        or hasattr(algo.model, "carry_start")
        or getattr(algo.downlink, "delta", None) is not None
    ):
        raise ConfigError(
            "a compressed downlink needs memory='field', an unbiased compressor and a model whose T depends on S only."
        )
    # these find theta of an earlier round, or of a checkpoint, as T of its S
    if isinstance(algo.oracle, (oracles.Spider, oracles.Late, SemVr)) and hasattr(algo.model, "carry_start"):
        which = "VR-FedEM" if isinstance(algo.oracle, oracles.Spider) else type(algo.oracle).__name__
        raise ConfigError(f"{which} needs a model whose T depends on S only; use FedEM for this one.")
    rule.check(algo)
    p = algo.participation.prob(algo.roster.n)  # raises now, not at round 1
    if (biased or not rule.scales) and bool((p < 1.0).any()):
        raise ConfigError(
            f"{algo.compressor} with 1/p (participation probability {p.min():g}): what is left out of a biased or "
            "remembered message does not average out. Use Remembered(participation) and alpha=1, or memory='error' "
            "with Remembered."
        )
    if biased and rule.learns and rule.scales and algo.alpha != 1.0:
        raise ConfigError(
            f"{algo.compressor} is biased, alpha={algo.alpha:g}: use Remembered participation and alpha=1 (EF21), "
            "or memory='error'."
        )
    if _local(algo) and hasattr(algo.model, "carry_start"):
        raise ConfigError("local steps need a model whose T depends on S only; use FedEM for this one.")


def check_rows(model: Model, name: str, rows: Rows) -> None:
    """Raise InputError, with the worker's ``name``, for rows that are not what the model reads."""
    check = getattr(model, "check_rows", None)
    if check is not None:
        try:
            check(rows)
        except InputError as error:
            raise InputError(f"worker {name!r}: {error}", worker=name) from None


def first_statistic(S_hat: object, q: int) -> F64:
    """Return S_0 as numbers; raise ConfigError for a theta, or anything else that is no statistic."""
    try:
        return np.array(S_hat, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the first statistic S_0 is a {type(S_hat).__name__} (must be {q} numbers). A run starts from a statistic, not "
            "from parameters theta: take pooled_s_bar(model, theta, data, roster) of them."
        ) from None


def first_state(algo: FedEM, S_hat: F64, V_i: F64) -> tuple[F64, F64]:
    """S_0 (q,) and the first memories (n, q) as numbers; ConfigError for what a run cannot start from."""
    q, n = algo.model.q, algo.roster.n
    S_hat, V_i = first_statistic(S_hat, q), np.asarray(V_i, dtype=np.float64)
    if S_hat.shape != (q,) or V_i.shape != (n, q):
        raise ConfigError(
            f"S_hat has shape {S_hat.shape} and V_i {V_i.shape}; expected ({q},) and ({n}, {q})."
        )
    if not np.isfinite(S_hat).all():
        raise ConfigError("S_hat holds nan or inf; start from finite numbers.")
    bad = ~usable(V_i)
    if bad.any():
        names = ", ".join(repr(algo.roster.ids[slot]) for slot in np.flatnonzero(bad)[:5])
        raise ConfigError(
            f"the first memory of worker {names} ({int(bad.sum())} of {n}) holds nan, inf or a number above "
            f"{LARGEST:g}; look at that worker's data, or leave it out."
        )
    if algo.memory == "none" and V_i.any():
        raise ConfigError('memory="none" (naive_fedem) has memories of 0 throughout; start with init="zero".')
    return S_hat, V_i


def left_domain(algo: FedEM, k: int, error: DomainError) -> DomainError:
    """Say at which round S left the domain of T, and what to change."""
    if k == 0:
        words = (
            f"round 0: {error} The M-step T does not take the first statistic S_0: start from one in its domain, as "
            "pooled_s_bar(model, theta, data, roster) gives."
        )
    else:
        gamma = algo.step(k - 1)
        words = (
            f"round {k}: {error} gamma={gamma:g}. Lower gamma (try {gamma / 5:g}) or start the "
            'memories with init="h".'
        )
    return DomainError(words, k=k, **error.fields)


def left_domain_locally(algo: FedEM, k: int, slots: I64, at: I64, error: DomainError) -> DomainError:
    """Name the worker, the round and the local step at which T left its domain."""
    place, step = error.fields.get("slot", at[0]), error.fields.get("local_step")
    name = algo.roster.ids[slots[np.flatnonzero(at == place)[0]]]
    where = "" if step is None else f" at local step {step + 1} of {getattr(algo.oracle, 'H', 1)}"
    words = f"worker {name!r}, round {k}{where}: {error} Lower eta or H."
    return DomainError(words, worker=name, k=k, **error.fields)


def check_theta(theta: object, S: F64, k: int) -> None:
    """Refuse parameters that hold nan, before a worker computes with them and its data are blamed."""
    if not any(map(_is_nan, leaves(theta))) or not np.isfinite(S).all():
        return
    start = "S_0 is 0 everywhere: start from" if k == 0 and not S.any() else "Start from"
    raise DomainError(
        f"round {k}: the M-step T(S) gave nan for a finite S; the workers' data are not the cause. {start} a statistic in "
        "the domain of T, such as pooled_s_bar(model, theta, data, roster), lower gamma, or mend the model's T.",
        k=k,
    )


def _is_nan(part: object) -> bool:
    """Whether a number is nan, or an array holds one: its largest entry is then nan, found in one pass of every round."""
    if isinstance(part, np.ndarray):
        top = part.max() if part.size and part.dtype.kind in "fc" else 0.0
        return bool(top != top)
    return isinstance(part, float) and part != part
