"""Workers that leave and join: the memories with which a run goes on over another roster.

A worker that is away keeps its last memory V_c in V, for as long as it is in the roster: then the run's fixed point is no
root of anybody's mean field. One that leaves for good is retired: V loses w_c V_c, and the weights are those of the new
roster. One that joins is admitted with h_c(S_k), as at the start of a run (algorithm 1, line 1; init="h").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.fedem import FedEM
from fedmiss.core.protocols import Rows
from fedmiss.core.state import Roster, ServerState
from fedmiss.errors import ConfigError
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked


@kinds_checked
def revise(
    algo: FedEM, server: ServerState, V: F64, roster: Roster, joined: Mapping[str, Rows]
) -> tuple[FedEM, F64]:
    """What a run goes on with when workers leave or join: ``run(algo, engine, server.S_hat, init=V, ...)``.

    Parameters
    ----------
    algo, server : the run so far;  V : (n, q) memories of its workers, in slot order (``LocalEngine.V``)
    roster : the new one; its names say who stays
    joined : the rows of those who are new

    Returns
    -------
    the algorithm over the new roster, with draws of its own (rounds are counted from 0 again, so its seed is another
    one), and the (n', q) first memories

    Raises
    ------
    ConfigError    rows of somebody who is new are missing, or nobody is left
    """
    old = algo.roster
    if V.shape != (old.n, algo.model.q):
        raise ConfigError(
            f"V has shape {V.shape}, expected ({old.n}, {algo.model.q}): one memory for each worker."
        )
    missing = [name for name in roster.ids if name not in old.slots and name not in joined]
    if missing:
        raise ConfigError(
            f"worker {missing[0]!r} is new and has no rows in ``joined``; give them, or leave it out."
        )
    # A seed that no run beside this one is likely to have: seeds 0, 1, 2, .. are those of repetitions.
    new = replace(algo, roster=roster, seed=int(rng_for(algo.seed, "revise", server.k).integers(2**63)))
    # T at S_k itself, where the new run starts, also where a compressed downlink let workers hold something near it.
    theta = algo.broadcast(replace(server, shadow=None)).theta
    out = np.empty((roster.n, algo.model.q))
    for c, name in enumerate(roster.ids):
        if name in old.slots:
            out[c] = V[old.slots[name]]
        else:
            S = algo.model.s_bar(theta, joined[name])
            out[c] = algo.rule.first(S, server.S_hat) if algo.rule.remembers else 0.0
    return new, out
