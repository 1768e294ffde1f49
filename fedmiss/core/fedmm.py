"""FedMM: federated majorization-minimization, where the server's step stays in the set of surrogates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedmiss.arrays import F64
from fedmiss.core.protocols import Model
from fedmiss.core.rules import Field
from fedmiss.errors import ConfigError

__all__ = ["FedMM"]


@dataclass(frozen=True)
class FedMM(Field):
    """FedEM's memories and step, followed by a projection (or proximal step) of S in the space of surrogates.

    Workers send what characterises their majorizing functions, not their parameters. A noisy step may leave the set on
    which T is defined; ``project`` brings it back. A projection keeps the roots that lie inside. ``||H||^2`` in the
    trace is that of the step before it.

    Source: the idea of Dieuleveut, Fort, Hegazy, Wai (arXiv 2507.17534). Differs from it: a projection only, no general
    proximal term; its norm is the caller's choice, fixed over rounds. ``fedmiss experiment fedmm`` draws the paper's
    curves on a problem of our own sizes, since its text could not be had.

    Parameters
    ----------
    project : function of S giving the nearest statistic at which T is defined; None takes the model's ``project``
    """

    project: Callable[[F64], F64] | None = None

    def place(self, model: Model, S_hat: F64) -> F64:
        """Project."""
        project = getattr(model, "project", None) if self.project is None else self.project
        if project is None:
            raise ConfigError(
                f"FedMM needs project(S), and {type(model).__name__} has none; give FedMM(project=...)."
            )
        # Instead of line 15 of algorithm 1: S_{k+1} = projection of S_k + gamma H.
        out: F64 = project(S_hat)
        return out
