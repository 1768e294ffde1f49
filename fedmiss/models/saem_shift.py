"""Model C with a second move: a site's factors and the latents of all its visits are shifted together.

Where the overdispersion is small, u given z hardly moves and z given u hardly moves: the chain of :class:`Counts` creeps.
Shifting u by delta and z by w'delta keeps eps, so only the counts and the prior of u speak (the non-centred coordinates).
"""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64
from fedmiss.models.saem_counts import Counts, CountsTheta, Visits
from fedmiss.models.saem_parts import Kernel, State

__all__ = ["ShiftedCounts"]


class ShiftedCounts(Counts):
    """:class:`Counts` whose chains also shift sites, by random-walk Metropolis at the scale of each site's information.

    Source: interweaving of centred and non-centred coordinates, Yu and Meng (2011); not in the weekly report. The
    posterior, and so the fit, is that of :class:`Counts`; only the chain's speed differs.
    """

    def move(
        self, theta: CountsTheta, rows: Visits, state: State, kernel: Kernel, rng: np.random.Generator
    ) -> tuple[State, float]:
        """U and o given z, a Langevin step of z, then the shift of (u, z) by site; the share is the Langevin step's."""
        new, share = super().move(theta, rows, state, kernel, rng)
        if not self.r:
            return new, share
        z, J = new["z"], len(rows.starts)
        M, w = len(z), theta.w[rows.month]
        u = np.asarray(new["u"]).reshape(M, J, self.r)
        weight = (rows.y + 0.5)[:, None, None] * w[:, :, None] * w[:, None, :]
        root = np.linalg.cholesky(np.eye(self.r) + np.add.reduceat(weight, rows.starts, axis=0))
        noise = rng.standard_normal((M, J, self.r, 1)) * (2.0 / np.sqrt(self.r))
        delta = np.linalg.solve(np.swapaxes(root, 1, 2), noise)[..., 0]
        step: F64 = (delta[:, rows.site] * w).sum(axis=-1)
        with np.errstate(over="ignore"):
            gain = rows.y * step - np.exp(rows.log_e + z) * np.expm1(step)
        ratio = np.add.reduceat(gain, rows.starts, axis=1) - (delta * (u + 0.5 * delta)).sum(axis=-1)
        accept = np.log(rng.random((M, J))) < ratio
        moved = np.where(accept[:, :, None], u + delta, u)
        return {**new, "z": np.where(accept[:, rows.site], z + step, z), "u": moved.reshape(M, -1)}, share
