"""Uncertainty by a Bayesian bootstrap of observers inside each group, all replicates in lockstep.

Each replicate draws one weight per observer, inside the observer's group and from the group's own secret, so nothing about
single observers travels; the model is refitted from the full fit with its variances held. That covers the noise of the data
(counting, observers, over-dispersion). The part of a random effect that the data do not determine is added: a coefficient
with posterior covariance C = (H + K)^-1, H from the data and K the prior precision, has sampling covariance C H C, which
the bootstrap shows, and prior covariance C K C: every replicate draws the prior's means too, at home for sites, at the hub
for months, before it is fitted, so that sites and months err together as they do in the joint posterior.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from fedmiss.arrays import F64
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.crossval import lockstep_room, open_batch, starts
from fedmiss.federation.hub.fit import fit_replicate
from fedmiss.federation.hub.lockstep import Lane, run_lockstep
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.link import Link, total
from fedmiss.federation.triangle import to_triangle
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for

__all__ = ["effective_observers", "lockstep_size", "replicates", "spread_of", "totals_of"]

MOST = 200  # replicates side by side: work that an interruption can lose


def effective_observers(panel: Panel) -> float:
    """Effective number of observers (sum n)^2 / sum n^2, n the visits of each."""
    return float(panel.observers[0] ** 2 / panel.observers[1])


def spread_of(panel: Panel) -> F64:
    """What groups need for their weights: visits of all, the quotient of quantiles, whether to weigh observer x site."""
    K = effective_observers(panel)
    factor = stats.t.ppf(0.975, max(K - 1, 1.0)) / stats.norm.ppf(0.975) if K >= 2 else 1.0
    return np.array([panel.observers[0], factor, float(K < 2)])


def lockstep_size(panel: Panel, p: int) -> int:
    """How many replicates run side by side: as many as fit into memory, a number that depends on the panel only."""
    return min(MOST, lockstep_room(panel, p))


def replicates(
    link: Link,
    panel: Panel,
    settings: CountSettings,
    full: MonthState,
    numbers: Sequence[int],
    *,
    seed: int,
    source: int,
    batch: int,
) -> F64:
    """Refit the replicates ``numbers`` side by side; return their totals (n, regions + 1, L).

    Parameters
    ----------
    full : the full fit, which the groups hold as fit 0 of the batch ``source``
    batch : number of the batch to open; it stays open until the groups' own results have been taken
    """
    (answers,) = link.ask(
        [
            open_batch(
                panel, batch, settings, weights="replicate", numbers=numbers, seed=seed, spread=spread_of(panel),
                source=source, p=full.p,
            )
        ]
    )  # fmt: skip
    sums = starts(answers, len(numbers))
    lanes = [
        Lane(batch, i, fit_replicate(panel, settings, full, sums[i], rng_for(seed, "prior-noise", int(b))))
        for i, b in enumerate(numbers)
    ]
    return totals_of(link, panel, batch, run_lockstep(link, panel, lanes), drawn=True)


def totals_of(
    link: Link, panel: Panel, batch: int, states: Sequence[MonthState], *, drawn: bool = False
) -> F64:
    """Monthly totals (n, regions + 1, L) of fits; ``drawn``: coefficients are draws, with no variance to integrate over."""
    free = states[0].free
    T, D = np.stack([s.T for s in states]), np.stack([s.D for s in states])
    question = msg.Totals(
        batch, np.arange(len(states)), states[0].p, np.array([s.mu for s in states]), T[:, :, free],
        to_triangle(D[:, :, free[:, None], free]), np.array([s.smear for s in states]), drawn,
    )  # fmt: skip
    (answers,) = link.ask([question])
    return total(answers, "totals", (len(states), len(panel.regions) + 1, panel.L))
