"""Algorithm 7 of the paper (FedMissEM) through the federated core, all groups in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmiss.arrays import F64
from fedmiss.compressors import Dithering
from fedmiss.core import Bernoulli, Compressor, FedEM, FullBatch, Minibatch, Result, Roster, Stop, run
from fedmiss.engines import LocalEngine
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.paper import Factors, FedMissEM


def run_algorithm7(
    panel: GroupPanel,
    *,
    family: str,
    rank: int,
    penalty: float,
    rounds: int | None = None,
    epochs: float | None = None,
    gamma: float | None = None,
    alpha: float | None = None,
    compressor: Compressor | None = None,
    participation: float = 1.0,
    batch: int | None = None,
    batch_sum: str = "full",
    start: Factors | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    observe_every: int = 10,
) -> tuple[Result, FedMissEM, list[F64]]:
    """Run algorithm 7 on counts that are on the family's scale.

    It has one parameter for each of the paper's settings, so that experiments can set a few of them by name.

    Parameters
    ----------
    rank, penalty : r and lambda of the paper (its objective has the mean over groups)
    gamma : step of S_hat; None is p / (1 + omega), and a tenth of it with minibatches: 1 for exact messages of
        all groups, less where compression, absences and minibatches make noise
    alpha : step of the memories; None is 1 / (1 + omega)
    compressor : what the groups send; None is random dithering with 16 levels
    batch : rows of a minibatch, None for all rows
    batch_sum : "full" multiplies a minibatch's sum by m_c / b, so that its mean is the whole statistic; "paper" leaves it
        as lines 8 to 13 have it, with a mean of b / m_c of the whole statistic
    start : U_0, V_0, see :class:`~fedmiss.models.lowrank.paper.FedMissEM`
    observe_every : rounds between two evaluations of the objective, which looks at all groups' data: possible in
        process, not in a real federation

    Returns
    -------
    result, model, rows of each group in slot order
    """
    model = FedMissEM(panel, family=family, rank=rank, penalty=penalty, start=start, seed=seed)
    rows = model.rows(panel, batch if batch_sum == "paper" else None)
    roster = Roster.of({name: len(r) for name, r in rows.items()})
    data = [rows[name] for name in roster.ids]
    quant = Dithering(levels=16) if compressor is None else compressor
    if gamma is None:
        gamma = participation / (1.0 + quant.omega(model.q)) * (0.1 if batch else 1.0)
    algo = FedEM(
        model,  # type: ignore[arg-type]  # T takes the carry, which the core hands to models that have one
        quant,
        roster,
        gamma=gamma,
        alpha=alpha,  # type: ignore[arg-type]
        participation=Bernoulli(participation),
        oracle=Minibatch(batch) if batch else FullBatch(),
        seed=seed,
    )
    result = run(
        algo,
        LocalEngine(data),
        np.zeros(model.q),
        stop=Stop(rounds=rounds, epochs=epochs),
        observe=lambda server, down: {"objective": model.objective(down.theta, data)},
        observe_every=observe_every,
        checkpoint=checkpoint,
        label="FedMissEM rounds",
    )
    return result, model, data
