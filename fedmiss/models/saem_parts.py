"""What the parts of FL-SAEM ask of each other: a state of chains, a target, a kernel that moves, a latent model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.protocols import Rows, Theta

__all__ = ["Kernel", "Latent", "State", "Target"]

State = Mapping[str, np.ndarray]  # of the chains of a worker; the first axis of each array is the chain
Target = Callable[[F64], tuple[F64, F64]]  # z -> (log density of each entry, its gradient), both (M, N)


class Kernel(Protocol):
    """One step of M chains, see :meth:`fedmiss.models.saem_chains.Langevin.move`."""

    def move(
        self, rng: np.random.Generator, z: F64, P: F64, target: Target, starts: I64
    ) -> tuple[F64, float]:
        """Return new z, share accepted."""
        ...


class Latent(Protocol):
    """A model whose latents are drawn by chains, and whose complete log-likelihood is linear in its statistic."""

    @property
    def q(self) -> int:
        """Number of entries of the statistic."""
        ...

    def latent_start(self, rows: Rows, M: int) -> State:
        """Return the first state of M chains."""
        ...

    def move(
        self, theta: Theta, rows: Rows, state: State, kernel: Kernel, rng: np.random.Generator
    ) -> tuple[State, float]:
        """Return the state after one step, and the share accepted."""
        ...

    def statistic(self, rows: Rows, state: State) -> F64:
        """(q,) mean over chains and rows."""
        ...

    def unit_totals(self, rows: Rows, state: State) -> F64:
        """(M, units, q) statistics of the units that are independent given theta."""
        ...

    def vector(self, theta: Theta) -> F64:
        """(k,) the parameter as numbers."""
        ...

    def complete(self, vector: F64, S: F64) -> float:
        """Mean complete log-likelihood at a statistic, without what theta does not touch."""
        ...
