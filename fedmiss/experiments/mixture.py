"""The synthetic mixture of the paper: two Gaussians in the plane, known covariance, 100 workers of 100 rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedmiss.arrays import F64
from fedmiss.compressors import Dithering
from fedmiss.core import (
    Bernoulli,
    Downlink,
    FedEM,
    Full,
    Minibatch,
    Oracle,
    Participation,
    Result,
    Roster,
    ServerState,
    Stop,
    em,
    mean_field,
    pooled_s_bar,
    run,
)
from fedmiss.engines import LocalEngine
from fedmiss.models.gmm import GMM, GMMParams
from fedmiss.rng import rng_for


@dataclass(frozen=True, slots=True)
class Setting:
    """One run on the mixture; the defaults are those of the paper's FedEM."""

    oracle: Oracle = field(default_factory=lambda: Minibatch(20))
    gamma: float = 1e-2
    alpha: float = 1e-2
    p: float = 0.75
    init: str = "h"
    seed: int = 0


class Mixture:
    """Data of the mixture, its model and start, and runs on it.

    Components at (-1, 0) and (1, 0.5) with weights 0.25 and 0.75, Sigma = I; N = n m rows. ``sort`` deals them to
    the workers in the order of their first coordinate, so that workers differ as much as they can. ``far`` starts where
    ``||h||^2`` is about 1, the top of the axis of figure 1; else near the solution, at about 1e-2.
    """

    def __init__(
        self, *, n: int = 100, m: int = 100, seed: int = 0, sort: bool = False, far: bool = False
    ) -> None:
        rng = rng_for(seed, "mixture")
        means = np.array([[-1.0, 0.0], [1.0, 0.5]])
        # Section 4 of the paper has two components in the plane and a known Sigma; their weights and means are our choice.
        Y = means[(rng.random(n * m) < 0.75).astype(int)] + rng.standard_normal((n * m, 2))
        if sort:
            Y = Y[np.argsort(Y[:, 0], kind="stable")]
        self.data: F64 = Y.reshape(n, m, 2)
        self.model = GMM(2, 2, "known", Sigma=np.eye(2))
        self.roster = Roster.of([m] * n)
        # S_0 is the pooled statistic at a theta: it lies in the domain of T, as a statistic of data does.
        theta = GMMParams(np.array([0.5, 0.5]), np.array([[-0.5, 0.0], [0.5, 0.0]]), np.eye(2))
        self.S_0: F64 = pooled_s_bar(self.model, theta, self.data, self.roster)
        if far:  # weights, and weights times (-2.2, -1) and (2.2, 1)
            self.S_0 = np.array([0.5, 0.5, -1.1, -0.5, 1.1, 0.5])

    @property
    def total(self) -> int:
        """N, the conditional expectations of an epoch."""
        return self.roster.total

    def algo(self, setting: Setting) -> FedEM:
        """FedEM of a setting: one norm for the whole statistic, one level (omega = sqrt(6) - 1)."""
        s, quant = setting, Dithering(levels=1, norm=2.0)
        who: Participation = Full() if s.p == 1.0 else Bernoulli(s.p)
        return FedEM(self.model, quant, self.roster, s.gamma, s.alpha, who, s.oracle, s.seed)

    def true_field(self, server: ServerState, down: Downlink) -> dict[str, float]:
        """||h(S_k)||^2, computed centrally: for simulations only."""
        h = mean_field(self.model, server.S_hat, self.data, self.roster, down.theta)
        return {"true_h_norm2": float(h @ h)}

    def run(self, setting: Setting, stop: Stop, *, every: int = 10, label: str = "rounds") -> Result:
        """One run, with the true mean field every ``every`` rounds."""
        return run(
            self.algo(setting), LocalEngine(self.data), self.S_0, stop=stop, init=setting.init, observe=self.true_field,
            observe_every=every, label=label,
        )  # fmt: skip

    def solution(self) -> F64:
        """Fixed point of EM from the same start, (q,)."""
        return em(self.model, self.data, self.roster, self.S_0, rounds=5000, tol=1e-30)[0]
