"""What cannot work is refused: settings of :class:`~fedmiss.core.fedem.FedEM`, its first statistic, an M-step of nan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core import oracles
from fedmiss.core.rules import Field
from fedmiss.errors import ConfigError, DomainError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = ["check_settings", "check_theta", "first_statistic"]


def check_settings(algo: FedEM) -> None:
    """Raise ConfigError for settings that contradict each other or what the theorems need."""
    biased = getattr(algo.compressor, "delta", None) is not None
    rule = algo.rule
    if algo.bound is not None and not algo.bound > 1.0:
        raise ConfigError(f"bound={algo.bound} (must be above 1, the length of the median message); try 100.")
    if callable(algo.gamma):
        algo.step(0)
    elif not 0.0 < algo.gamma <= 1.0 and not algo.local:
        raise ConfigError(f"gamma={algo.gamma} is not in (0, 1]; try 0.1.")
    else:
        algo.check_local(0, float(algo.gamma))
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
    if isinstance(algo.oracle, oracles.Spider) and hasattr(algo.model, "carry_start"):
        raise ConfigError("VR-FedEM needs a model whose T depends on S only; use FedEM for this one.")
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
    if algo.local and hasattr(algo.model, "carry_start"):
        raise ConfigError("local steps need a model whose T depends on S only; use FedEM for this one.")


def first_statistic(S_hat: object, q: int) -> F64:
    """Return S_0 as numbers; raise ConfigError for a theta, or anything else that is no statistic."""
    try:
        return np.array(S_hat, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the first statistic S_0 is a {type(S_hat).__name__} (must be {q} numbers). A run starts from a statistic, not "
            "from parameters theta: take pooled_s_bar(model, theta, data, roster) of them."
        ) from None


def check_theta(theta: object, S: F64, k: int) -> None:
    """Refuse parameters that hold nan, before a worker computes with them and its data are blamed."""
    if not _holds_nan(theta) or not np.isfinite(S).all():
        return
    start = "S_0 is 0 everywhere: start from" if k == 0 and not S.any() else "Start from"
    raise DomainError(
        f"round {k}: the M-step T(S) gave nan for a finite S; the workers' data are not the cause. {start} a statistic in "
        "the domain of T, such as pooled_s_bar(model, theta, data, roster), lower gamma, or mend the model's T.",
        k=k,
    )


def _holds_nan(value: object) -> bool:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fc":
            return False
        top = value.max() if value.size else 0.0  # nan where there is one; in every round, so one pass
        return bool(top != top)
    if isinstance(value, float):
        return value != value
    if isinstance(value, tuple | list):
        return any(map(_holds_nan, value))
    if isinstance(value, dict):
        return any(map(_holds_nan, value.values()))
    names = getattr(type(value), "__dataclass_fields__", ())
    return any(_holds_nan(getattr(value, name, None)) for name in names)
