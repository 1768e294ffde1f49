"""Several local steps a round, with or without correction of the drift towards a worker's own solution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.oracles import Full, Minibatch, NoMemory, draw_rows, sizes_of
from fedmiss.core.protocols import Model, Shards
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError, DomainError
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class LocalSteps(NoMemory):
    """H local steps x <- x + eta ( h_c(x; Z) - V_c + V ) from x = S_k on fresh minibatches Z.

    The answer is S_c = S_k + G_c + V_c - V with G_c = (x - S_k) / (eta H), so that the worker sends
    D_c = S_c - S_k - V_c = G_c - V; without correction S_c = S_k + G_c. The server moves by gamma = eta H.
    ``H = 1`` takes the path of Full() or Minibatch(b): the same bits.

    A model may have ``local_walk(x, data, slots, index, eta, H, shift) -> (a, q)``: where the i-th worker arrives from
    x[i] in H steps, ``index`` (a, H b) or None for all rows, ``shift`` (a, q) added to each h_c. It must give the bits
    of one worker alone.

    Source: FedLSA and SCAFFLSA (Mangold et al. 2024), Scaffold (Karimireddy et al. 2020). Differs in nothing for
    T = identity, s_bar_c(theta; Z) = theta - (A_c(Z) theta - b_c(Z)).

    Parameters
    ----------
    H : local steps a round
    eta : local step, a number or a function of the round
    b : rows in a minibatch, drawn with replacement unless ``replace=False``; None is all rows
    correct : whether -V_c + V is added in each step
    """

    H: int
    eta: float | Callable[[int], float]
    b: int | None = None
    correct: bool = False
    replace: bool = True
    wants_own: ClassVar[bool] = True  # V_c, to correct

    def __post_init__(self) -> None:
        if self.H < 1:
            raise ConfigError(f"H={self.H} local steps (must be at least 1).")
        if self.b is not None and self.b < 1:
            raise ConfigError(f"minibatch size b={self.b} (must be at least 1, or None for all rows).")
        self.step(0)

    def step(self, k: int) -> float:
        """Eta of round k."""
        eta = float(self.eta(k)) if callable(self.eta) else float(self.eta)
        if not (math.isfinite(eta) and eta > 0.0):
            raise ConfigError(f"local step eta={eta} at round {k} (must be above 0).")
        return eta

    @property
    def corrects(self) -> bool:
        """Whether the broadcast must hold V."""
        return self.correct and self.H > 1

    @property
    def draws(self) -> int:
        """One uniform per row and step."""
        return 0 if self.b is None else self.H * self.b

    def many(
        self, model: Model, memory: None, down: Downlink, data: Shards, slots: I64, u: F64, *own: Any
    ) -> tuple[F64, int]:
        """H local steps of each worker, side by side."""
        if self.H == 1:
            # One step from S_k is FedEM's own, and takes its code: (x - S_k) / eta would round, and the bits would differ.
            plain = Full() if self.b is None else Minibatch(self.b, self.replace)
            return plain.many(model, memory, down, data, slots, u)
        eta, sizes = self.step(down.k), sizes_of(data, slots)
        x = np.repeat(down.S_hat[None], len(slots), axis=0)
        # The correction -V_c + V (xi_c of SCAFFLSA) stands still over the H steps: both are known from the last round.
        shift = None
        if self.correct:
            assert down.V is not None
            shift = down.V - own[0].V_i
        walk = getattr(model, "local_walk", None)
        # Without replacement a step's rows are drawn from a deck of its own, which compiled walks do not have.
        if walk is not None and (self.b is None or self.replace):
            index = None if self.b is None else draw_rows(u, sizes, replace=True)
            x = walk(x, data, slots, index, eta, self.H, np.zeros_like(x) if shift is None else shift)
        else:
            for t in range(self.H):
                index = None
                if self.b is not None:
                    index = draw_rows(u[:, t * self.b : (t + 1) * self.b], sizes, replace=self.replace)
                h = self._statistics(model, x, data, slots, index, t) - x
                if shift is not None:
                    h += shift
                x += eta * h  # x <- x + eta (h_c(x; Z) - V_c + V)
        # S_c = S_k + G_c + V_c - V, G_c = (x - S_k) / (eta H): FedEM subtracts S_k and V_c, which leaves G_c - V to be sent
        S = down.S_hat + (x - down.S_hat) / (eta * self.H)
        if shift is not None:
            S -= shift
        # Each step evaluates its rows once, whether the correction is on or not.
        per = self.H * sizes if self.b is None else np.full(len(slots), self.H * self.b)
        return S, int(per.sum())

    @staticmethod
    def _statistics(model: Model, x: F64, data: Shards, slots: I64, index: I64 | None, t: int) -> F64:
        """(a, q) statistic of each worker at its own point."""
        out = np.empty_like(x)
        for i, c in enumerate(slots):
            try:
                theta = model.T(x[i].copy())
            except DomainError as error:
                raise DomainError(str(error), **{**error.fields, "local_step": t, "slot": int(c)}) from error
            out[i] = model.s_bar(theta, data[c] if index is None else data[c][index[i]])
        return out
