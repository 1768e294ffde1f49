"""Annealing of variances for FL-SAEM: in the first phase a variance falls slowly, so that chains still travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.protocols import Model, Rows, Theta
from fedmiss.errors import ConfigError

__all__ = ["Annealed"]

VARIANCES = ("tau2", "s2", "tau2_o")


@dataclass(frozen=True, eq=False)
class Annealed:
    """A model of FL-SAEM whose variances (tau2; s2, tau2_o) fall by at most 1 - rate a round in the first phase.

    In rounds 1 to ``rounds`` - 1 the M-step is max(variance of T(S_k), rate variance of theta_{k-1}), from round
    ``rounds`` on it is T itself: fixed points are those of the model. The last variances are the carry on the server.
    It bounds what T gives and does not widen T's domain. Everything else is the model's.

    Source: the annealing of variances in the R package saemix (``alpha.sa = 0.97``). Differs in: every variance of the
    model is bounded alike; rounds are the server's, also where the workers count their own answers (how="memory").

    Parameters
    ----------
    model : GaussMonths, PoissonMonths or Counts
    rounds : length of the first phase, R1 of :class:`~fedmiss.core.schedules.SaemSteps`
    rate : smallest share of a variance that is left after a round
    """

    model: Model
    rounds: int = 300
    rate: float = 0.97

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0.0 < self.rate < 1.0:
            raise ConfigError(
                f"annealing with rate={self.rate} for {self.rounds} rounds (0 < rate < 1, rounds >= 0); try 0.97."
            )
        if hasattr(self.model, "carry_start"):
            raise ConfigError("annealing needs a model whose T depends on S only.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("model", "fingerprint"):
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def q(self) -> int:
        """As the model."""
        return self.model.q

    def s_bar(self, theta: Theta, rows: Rows) -> F64:
        """As the model."""
        return self.model.s_bar(theta, rows)

    def T(self, S: F64, carry: Mapping[str, np.ndarray] | None = None, /) -> Theta:
        """M-step of the model, with variances no lower than the carry allows; without a carry the model's own."""
        theta = self.model.T(S)
        if carry is None or not 0 < int(carry["round"]) < self.rounds:
            return theta
        bounded: dict[str, F64 | float] = {}
        for name in VARIANCES:
            if name in carry:
                value = np.maximum(getattr(theta, name), self.rate * carry[name])
                bounded[name] = value if value.ndim else float(value)
        return replace(theta, **bounded)

    def carry_start(self, S_hat: F64) -> dict[str, np.ndarray]:
        """Before round 0 no variance is known."""
        return {"round": np.array(0, dtype=np.int64)}

    def advance(self, carry: Mapping[str, np.ndarray], theta: Theta, gamma: float) -> dict[str, np.ndarray]:
        """Remember the round's variances."""
        now = {v: np.array(getattr(theta, v), dtype=np.float64) for v in VARIANCES if hasattr(theta, v)}
        return {"round": np.array(int(carry["round"]) + 1, dtype=np.int64)} | now
