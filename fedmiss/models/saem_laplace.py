"""The E-step's second kernel: independent proposals from the Laplace approximation of each latent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.models.saem_parts import Target

__all__ = ["Laplace"]


@dataclass(frozen=True, slots=True)
class Laplace:
    """Independent Metropolis: z' = mode + t_df / sqrt(curvature), accepted latent by latent.

    For latents that are independent given theta and the rest of the state, with log-concave densities: models A, B and C
    (:class:`fedmiss.models.saem.PoissonMonths`, :class:`fedmiss.models.saem_counts.Counts`). The mode is found by Newton
    steps from the chain's place, which it forgets; the curvature by differences of the gradient. A step costs about ten
    gradients, and leaves almost no correlation with the step before.

    Source: f-SAEM, Karimi, Lavielle, Moulines (2020); the weekly report names Langevin only.
    Differs in: t instead of normal proposals, since a Poisson latent's left tail is its prior's, which is wider.

    Parameters
    ----------
    df : degrees of freedom of the proposal, above 2
    """

    df: float = 8.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.df) and self.df > 2):
            raise ConfigError(f"Laplace proposals with df={self.df} (must be above 2); try 8.")

    def move(
        self, rng: np.random.Generator, z: F64, P: F64, target: Target, starts: I64
    ) -> tuple[F64, float]:
        """One step of M chains, as :meth:`fedmiss.models.saem_chains.Langevin.move`; ``starts`` is not needed.

        Parameters
        ----------
        z : (M, N) latents
        P : (N,) scale on which differences are taken
        target : z -> (log density of each entry, its gradient), both (M, N)

        Returns
        -------
        new z, share of latents accepted
        """
        mode, h = z.copy(), 1e-4 * np.sqrt(P)
        for _ in range(60):
            curve = self._curvature(target, mode, h)
            step = np.clip(target(mode)[1] / curve, -1.0, 1.0)  # short steps where exp(z) is far too large
            mode += step
            if float(np.abs(step).max(initial=0.0)) < 1e-7:
                break
        scale = 1.0 / np.sqrt(self._curvature(target, mode, h))
        draw = rng.standard_t(self.df, z.shape)
        new = mode + scale * draw
        old = (z - mode) / scale
        power = 0.5 * (self.df + 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = target(new)[0] - target(z)[0]
            ratio += power * (np.log1p(draw * draw / self.df) - np.log1p(old * old / self.df))
        accept = np.log(rng.random(z.shape)) < ratio  # nan compares as false
        return np.where(accept, new, z), float(accept.mean())

    @staticmethod
    def _curvature(target: Target, at: F64, h: F64) -> F64:
        """Minus the second derivative of each entry's log density, above 0."""
        low: F64 = (target(at - h)[1] - target(at + h)[1]) / (2.0 * h)
        return np.maximum(low, 1e-8)
