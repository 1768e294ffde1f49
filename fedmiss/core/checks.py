"""Settings of :class:`~fedmiss.core.fedem.FedEM` that cannot work are refused when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmiss.core import oracles
from fedmiss.core.rules import Field
from fedmiss.errors import ConfigError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = ["check_settings"]


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
