"""Oracles of a worker's finite sum beside SPIDER's: in order of arrival, sEM-vr, FIEM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.oracles import OneByOne, check_batch, draw_rows
from fedmiss.core.protocols import Model, Rows, WorkerContext
from fedmiss.core.state import Downlink
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class Streaming(OneByOne):
    """The next b rows in the order in which they came, round and round: a stream, as online EM reads it.

    Source: Cappe and Moulines (2009), online EM, with FedEM's memories. A worker reads on when it answers, so that rows are
    not passed over by absences. Biased if the order is not random.
    """

    b: int
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_batch(self.b)

    def one(
        self, model: Model, memory: Any, down: Downlink, rows: Rows, u: F64, *own: WorkerContext
    ) -> tuple[F64, Any, int]:
        """Read on where the last answer ended; the memory is the number of the ``next`` row."""
        at = 0 if memory is None else int(memory["next"])
        # The next b rows in order; the last batch of a pass goes on with the first rows of the next one.
        index = (at + np.arange(self.b)) % len(rows)
        return model.s_bar(down.theta, rows[index]), {"next": (at + self.b) % len(rows)}, self.b


@kinds_checked
@dataclass(frozen=True, slots=True)
class SemVr(OneByOne):
    """Control variate at a reference: S_c = s_bar_c(theta_ref) + mean_B [ s_bar_cj(theta_k) - s_bar_cj(theta_ref) ].

    The reference is the theta of the worker's first answer in each outer loop of k_in rounds, with a pass over all rows.
    Source: Chen, Zhu, Teh, Zhang (NeurIPS 2018), sEM-vr, for n = 1 and nothing compressed. Differs in: several workers,
    each with its own reference.
    """

    b: int
    k_in: int

    def __post_init__(self) -> None:
        check_batch(self.b, self.k_in)

    @property
    def draws(self) -> int:
        """One uniform per row of the minibatch."""
        return self.b

    def one(
        self, model: Model, memory: Any, down: Downlink, rows: Rows, u: F64, *own: WorkerContext
    ) -> tuple[F64, Any, int]:
        """Refresh the reference (its round ``k``, ``S_hat``, ``theta`` and ``S``), or correct by the minibatch."""
        # First answer of this outer loop: a pass over all rows, which makes the reference (the full E-step of sEM-vr).
        if memory is None or int(memory["k"]) // self.k_in < down.k // self.k_in:
            S = model.s_bar(down.theta, rows)
            return S, {"k": down.k, "S_hat": down.S_hat, "theta": down.theta, "S": S}, len(rows)
        batch = rows[draw_rows(u[None], np.array([len(rows)]), replace=True)[0]]
        # The bracket has the mean s_bar_c(theta_k) - S_ref: no bias, and noise that falls with theta_k - theta_ref.
        S = memory["S"] + (model.s_bar(down.theta, batch) - model.s_bar(memory["theta"], batch))
        return S, memory, 2 * self.b


@kinds_checked
@dataclass(frozen=True, slots=True)
class Fiem(OneByOne):
    """A table of each row's last statistic: S_c = mean of the table + mean_J [ s_bar_cj(theta_k) - table_j ].

    Two minibatches a round: I renews its rows in the table, J corrects. The first answer fills the table. Memory: m q
    numbers a worker.

    Source: Karimi, Wai, Moulines, Lavielle (NeurIPS 2019), fiEM; Fort, Gach, Moulines (2021). Differs in: minibatches of b
    instead of single rows.
    """

    b: int

    def __post_init__(self) -> None:
        check_batch(self.b)

    @property
    def draws(self) -> int:
        """One uniform per row of I and of J."""
        return 2 * self.b

    def one(
        self, model: Model, memory: Any, down: Downlink, rows: Rows, u: F64, *own: WorkerContext
    ) -> tuple[F64, Any, int]:
        """Renew I, correct by J; the memory is the ``table`` (m, q)."""

        def each(index: I64) -> F64:
            return np.array([model.s_bar(down.theta, rows[j : j + 1]) for j in index])

        if memory is None:
            table = each(np.arange(len(rows)))
            return table.mean(axis=0), {"table": table}, len(rows)
        index = draw_rows(u[None], np.array([len(rows)]), replace=True)[0]
        table = memory["table"].copy()
        # I and J are drawn apart, as fiEM's two indices: with one for both the correction is 0, and iEM is left.
        renew, correct = np.unique(index[: self.b]), index[self.b :]
        table[renew] = each(renew)
        # SAGA's estimate: mean of the table + mean over J of (new - table), at the table that I has renewed.
        S = table.mean(axis=0) + (each(correct) - table[correct]).mean(axis=0)
        return S, {"table": table}, 2 * self.b
