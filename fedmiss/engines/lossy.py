"""A test engine that loses and delays messages, as a network does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedmiss.arrays import I64
from fedmiss.core.fedem import FedEM
from fedmiss.core.protocols import Rows, Shards
from fedmiss.core.state import Downlink, Replies, ServerState, Uplink
from fedmiss.engines.local import PlainEngine
from fedmiss.rng import rng_for

__all__ = ["LossyEngine"]


class LossyEngine(PlainEngine):
    """One worker at a time; each answer is lost with probability ``loss``, or late with probability ``delay``.

    A late answer arrives in the next round, where it is of the wrong round and does not count. Either way the
    worker has computed and holds its answer pending until it is told that it did not count, so V stays the mean
    of V_c. H is scaled by the probability of being asked; give participation probabilities times (1 - loss - delay)
    when losses are frequent enough to matter.
    """

    def __init__(
        self,
        data: Shards | Mapping[str, Rows],
        *,
        loss: float = 0.0,
        delay: float = 0.0,
        seed: int = 0,
        backwards: bool = False,
        tamper: Callable[[Uplink], Uplink] | None = None,
    ) -> None:
        super().__init__(data, backwards=backwards, tamper=tamper)
        self.loss, self.delay, self.seed = loss, delay, seed
        self.lost = self.late = 0

    def round(self, algo: FedEM, server: ServerState, down: Downlink, active: I64) -> Replies:
        """Ask everybody; return what arrived in time."""
        rng = rng_for(self.seed, "losses", down.k)
        uplinks = []
        answers, dropped = self.answers(algo, server, down, active)
        for up in answers:
            fate = rng.random()
            if fate < self.loss:
                self.lost += 1
            elif fate < self.loss + self.delay:
                self.late += 1
            else:
                uplinks.append(up)
        return algo.collect(down, active, uplinks, dropped)
