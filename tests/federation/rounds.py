"""Questions of a round by hand."""

import numpy as np

from fedmiss.federation import messages as msg


def parameters(batch=0, fits=(0,), *, L, f, begin=0, nodes=0):
    """Fields of ``messages.Broadcast``: months at zero, ``f`` free coefficients, no effort, feature or presence."""
    n, none = len(fits), np.zeros((len(fits), 0))
    return {
        "batch": batch, "fits": np.array(fits), "begin": begin, "refill": np.zeros(n, np.uint8), "mu": np.zeros(n),
        "T": np.zeros((n, L, f)), "D": np.zeros((n, L, f * (f + 1) // 2)), "tau": np.ones((n, f)), "half": np.zeros(n),
        "phi": np.ones(n), "inverse_size": np.zeros(n), "kappa": none, "ridge": np.ones(n), "B": np.zeros((n, 0, 1)),
        "chain": none, "shift": np.zeros((n, f)), "common": np.zeros((n, 2)), "nodes": np.zeros((n, nodes)),
    }  # fmt: skip


def solve(**more):
    return msg.Solve(**parameters(**more), effort=False, observers=False)


def predict(**more):
    return msg.Predict(**parameters(nodes=1, **more), months=False)
