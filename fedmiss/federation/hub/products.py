"""Products of residuals that factors begin with, and the directions that follow from them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.hub.steps import Sums
from fedmiss.federation.rules import POWER, WIDTH
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for


@dataclass(frozen=True, slots=True, eq=False)
class AskProduct:
    """R' R V of the residuals, sent in units of ``unit``, a power of 2 of the size of the sum of squares."""

    V: F64
    unit: float


def along(panel: Panel, settings: CountSettings, rank: int) -> F64:
    """The direction (L,) that the job has for a factor: beyond those that it found a random one."""
    known: F64 = panel.start.directions[:, rank - 1 : rank]
    if not known.size:
        known = np.sqrt(panel.L) * first_product(panel, settings, rank, 1.0).V[:, :1]
    return known[:, 0]


def first_product(panel: Panel, settings: CountSettings, rank: int, squares: float) -> AskProduct:
    """What the power iterations for a rank begin with."""
    width = int(min(WIDTH, panel.L))
    seed = (
        0 if panel.least else settings.seed
    )  # a revision under another seed would be another start of the same counts
    V = np.linalg.qr(rng_for(seed, "factor", rank).standard_normal((panel.L, width)))[0]
    # A power of 2: dividing by it loses no bit, and masks need a range that is known beforehand.
    return AskProduct(V, 2.0 ** round(float(np.log2(max(squares, 1e-9)))))


def directions(panel: Panel, first: AskProduct, W: F64 | None) -> Generator[AskProduct, Sums, F64]:
    """Leading right singular vectors (L, w) of the residuals, of length sqrt(L), by block power iterations.

    ``W``: the first product where it is known already.
    """
    V = first.V
    for i in range(POWER):
        if i:
            assert W is not None
            # One of the block power iterations: V <- orth(R'R V), R the residuals, of which only R'(R V) travels.
            V, W = np.linalg.qr(W)[0], None
        if W is None:
            W = (yield AskProduct(V, first.unit))["product"]
    assert W is not None
    # Rayleigh and Ritz: eigenvectors of V' R'R V give the best directions in the block.
    values, vectors = np.linalg.eigh(0.5 * (V.T @ W + W.T @ V))
    # Without some pairs of months R'R may have negative values, which are no directions of residuals.
    best = [V @ v for value, v in zip(values[::-1], vectors.T[::-1], strict=True) if value > 0]
    # The sign is chosen, as an eigenvector has none: all runs must start alike.
    signed = [v * (np.sqrt(panel.L) * (-1.0 if v.sum() < 0 else 1.0)) for v in best]
    return np.column_stack(signed or [np.zeros(panel.L)])
