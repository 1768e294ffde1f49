"""Many fits side by side in one exchange: folds, candidates and replicates differ in their weights only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.products import AskProduct
from fedmiss.federation.hub.requests import (
    AskKeep,
    AskRound,
    AskScore,
    AskSiteTime,
    AskSummary,
    AskTotals,
    AwaitStart,
    Enough,
    Errand,
    Fitting,
    Request,
)
from fedmiss.federation.hub.state import MonthState, Panel, apart, stacked
from fedmiss.federation.hub.steps import Sums, after_round
from fedmiss.federation.link import Link, total
from fedmiss.federation.triangle import to_triangle

MOST = 2.0  # units beyond which sums of ``AskTotals`` are told as noise above it


@dataclass(slots=True)
class FitTask:
    """One fit on its way: which fit of which batch it is, what it asks now, and what is asked beside that."""

    batch: int
    fit: int
    fitting: Fitting
    request: Request | None = None
    errands: list[Errand] = field(default_factory=list)
    result: MonthState | None = None

    def go_on(self, answer: Sums | MonthState | None) -> None:
        """Hear an answer, and go on to the next request that the fit cannot do without, or to its end."""
        try:
            self.request = self.fitting.send(answer)
            while isinstance(self.request, AskScore | AskKeep):
                self.errands.append(self.request)
                self.request = self.fitting.send(None)
        except StopIteration as end:
            self.request, self.result = None, end.value
        except Enough:
            self.request = None


def run_lockstep(link: Link, panel: Panel, lanes: Sequence[FitTask]) -> list[MonthState]:
    """Run fits to their end, all their requests of the same moment in the same exchange.

    Fits of one batch that are in the same turn take their step as one array. A fit's result does not depend on which others
    run beside it, to the bit.
    """
    for lane in lanes:
        lane.go_on(None)
    waiting = list(lanes)
    while waiting:
        idle = [lane for lane in waiting if isinstance(lane.request, AwaitStart)]
        packs = _packs([lane for lane in waiting if not isinstance(lane.request, AwaitStart | None)])
        errands, begun = _errands(waiting)
        assert packs or errands, "nobody finds the start that all wait for"
        for pack, rows in zip(packs, _ask(link, panel, packs, errands), strict=True):
            for lane, one in zip(pack, rows, strict=True):
                lane.go_on(one)
        for lane in [*idle, *begun]:
            lane.go_on(None)
        waiting = [lane for lane in [*waiting, *begun] if lane.request is not None or lane.errands]
    return [lane.result for lane in lanes if lane.result is not None]


# Questions that come first in the exchange of a moment, before anything moves the fits on, and who hears the answers.
_Errands = list[tuple[msg.Question, Callable[[dict[str, msg.Answer]], None]]]


def _errands(lanes: Sequence[FitTask]) -> tuple[_Errands, list[FitTask]]:
    """Take the scores and copies that lanes ask for, scores of one batch as one question; also the lanes of the copies."""
    out: _Errands = []
    begun: list[FitTask] = []
    scores: dict[int, list[tuple[int, AskScore]]] = {}
    kept: dict[tuple[int, int], list[int]] = {}
    for lane in lanes:
        for one in lane.errands:
            if isinstance(one, AskScore):
                scores.setdefault(lane.batch, []).append((lane.fit, one))
            else:
                kept.setdefault((lane.batch, one.to), []).append(lane.fit)
                begun.append(FitTask(one.to, lane.fit, one.then))
        lane.errands = []
    for (batch, to), who in kept.items():
        out.append((msg.Keep(batch, np.array(who, dtype=np.int64), to), lambda _: None))
    for batch, asked in scores.items():
        fits = np.array([fit for fit, _ in asked], dtype=np.int64)
        smear, inverse_size = (
            np.array([getattr(one, name) for _, one in asked]) for name in ("smear", "inverse_size")
        )
        out.append((msg.Score(batch, fits, smear, inverse_size), partial(_scored, [one for _, one in asked])))
    return out, begun


def _scored(asked: Sequence[AskScore], answers: dict[str, msg.Answer]) -> None:
    for one, sums in zip(asked, total(answers, "sums", (len(asked), 5)), strict=True):
        one.then({"sums": sums})


def _heard(errands: _Errands, answers: Sequence[dict[str, msg.Answer]]) -> Sequence[dict[str, msg.Answer]]:
    """Hand on the answers to errands; the others."""
    for (_, heard), answer in zip(errands, answers, strict=False):
        heard(answer)
    return answers[len(errands) :]


def _key(lane: FitTask) -> tuple[object, ...]:
    request = lane.request
    if isinstance(request, AskRound):
        return (lane.batch, "round", request.state.p, request.begin, request.nodes.size, request.turn)
    if isinstance(request, AskSummary):
        return (
            lane.batch,
            "summary",
            request.state.p,
            request.nodes.size,
            request.months,
            request.ahead is not None,
        )
    if isinstance(request, AskTotals):
        return (lane.batch, "totals", request.state.p)
    return (lane.batch, type(request).__name__)


def _packs(lanes: Sequence[FitTask]) -> list[list[FitTask]]:
    """Lanes that can be asked in one message: same batch, same kind and shape of question."""
    packs: dict[tuple[object, ...], list[FitTask]] = {}
    for lane in lanes:
        packs.setdefault(_key(lane), []).append(lane)
    return list(packs.values())


def _fits(pack: list[FitTask]) -> I64:
    return np.array([lane.fit for lane in pack], dtype=np.int64)


def _stacked(pack: list[FitTask]) -> MonthState | None:
    """States that are asked from, as one; None where the question is of none."""
    if not isinstance(pack[0].request, AskRound | AskSummary | AskTotals):
        return None
    return stacked([lane.request.state for lane in pack])  # type: ignore[union-attr]


def _parameters(pack: list[FitTask], states: MonthState | None, begin: msg.Begin) -> dict[str, Any]:
    """The fields of :class:`.messages.Broadcast`."""
    assert states is not None
    free = states.free  # the line x is known to all
    many: dict[str, Any] = {
        name: getattr(states, name)
        for name in ("mu", "tau", "half", "phi", "inverse_size", "kappa", "ridge", "chain", "shift", "common")
    }
    return many | {
        "batch": pack[0].batch, "fits": _fits(pack), "begin": begin, "refill": np.asarray(states.refill, np.uint8),
        "T": states.T[:, :, free], "D": to_triangle(states.D[:, :, free[:, None], free]), "B": states.features.B,
        "nodes": np.stack([lane.request.nodes for lane in pack]),  # type: ignore[union-attr]
    }  # fmt: skip


def totals_question(
    panel: Panel,
    batch: int,
    fits: I64,
    states: MonthState,
    calibration: F64,
    *,
    drawn: bool = False,
    most: float = 0.0,
) -> msg.Totals:
    """Ask for the totals of these fits of a batch, whose states are stacked; ``most``: see :class:`.messages.Totals`."""
    free = states.free
    T, D = states.T[:, :, free], to_triangle(states.D[:, :, free[:, None], free])
    return msg.Totals(batch, fits, np.asarray(states.mu), T, D, calibration, drawn, panel.frame, most)


def _products(pack: list[FitTask]) -> list[AskProduct]:
    """The products that are asked for, by themselves or after a summary."""
    asked = [lane.request.ahead if isinstance(lane.request, AskSummary) else lane.request for lane in pack]
    return [product for product in asked if isinstance(product, AskProduct)]


def _ask(
    link: Link, panel: Panel, packs: list[list[FitTask]], errands: _Errands
) -> list[Sequence[Sums | MonthState]]:
    """Ask for the sums over sites of all packs in one exchange, after the errands."""
    questions: list[msg.Question] = [question for question, _ in errands]
    place: list[int] = []  # position of each pack's last answer
    many = [_stacked(pack) for pack in packs]
    for pack, states in zip(packs, many, strict=True):
        request, batch, fits = pack[0].request, pack[0].batch, _fits(pack)
        if isinstance(request, AskRound):
            turn = request.turn
            questions.append(
                msg.Solve(
                    **_parameters(pack, states, request.begin), effort=turn.effort, observers=turn.observers
                )
            )
        elif isinstance(request, AskSummary):
            questions.append(msg.Predict(**_parameters(pack, states, msg.Begin.GO_ON), months=request.months))
        elif isinstance(request, AskTotals):
            assert states is not None
            parts = np.array([1.0 / lane.request.unit for lane in pack])  # type: ignore[union-attr]
            questions.append(totals_question(panel, batch, fits, states, parts, most=MOST))
        elif isinstance(request, AskSiteTime):
            questions.append(msg.SiteTime(batch, fits, np.stack([lane.request.time for lane in pack])))  # type: ignore[union-attr]
        if products := _products(pack):
            vectors, units = (np.stack([getattr(one, name) for one in products]) for name in ("V", "unit"))
            questions.append(msg.Product(batch, fits, vectors, units, panel.pairs))
        place.append(len(questions) - len(errands))
    answers = _heard(errands, link.ask(questions))
    return [
        _answered(answers[:i], pack, states, panel)
        for i, pack, states in zip(place, packs, many, strict=True)
    ]


def _answered(
    answers: Sequence[dict[str, msg.Answer]], pack: list[FitTask], many: MonthState | None, panel: Panel
) -> Sequence[Sums | MonthState]:
    """Add the groups' answers, the last ones, in the order of their names; each fit gets its next state, or its sums."""
    n, request, products = len(pack), pack[0].request, _products(pack)
    last = answers[-2] if products and isinstance(request, AskSummary) else answers[-1]
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(request, AskRound):
        p, f, K = request.state.p, request.state.free.size, request.state.kappa.size
        follows = request.state.features.k > 0
        q = (1 + request.state.slopes) * (request.state.features.k + 1)
        e = K + 1 + request.settings.learning
        shapes = {
            "months": (n, panel.L, f + f * (f + 1) // 2),
            "sites": (n, 5 + 3 * p),
            "features": (n, q * (q + 3) // 2 * follows),
            "distances": (n, p * follows),
            "chain": (n, 8 if request.state.chain.size else 0),
            "effort": (n, e * (e + 1)),
            "observers": (n, 7),
            "dispersion": (n, request.nodes.size),
        }
    elif isinstance(request, AskSummary):
        shapes = {
            "totals": (n, 2 + len(msg.FACTORS)),
            "dispersion": (n, request.nodes.size),
            "months": (n, panel.L * request.months, 8),
        }
    elif isinstance(request, AskTotals):
        shapes = {"totals": (n, len(panel.rows), panel.L)}
    elif isinstance(request, AskSiteTime):
        L = panel.L
        shapes = {"sums": (n, 2), "counted": (n, L), "gradient": (n, L), "information": (n, L * (L + 1) // 2)}
    added = {name: total(last, name, shape) for name, shape in shapes.items()}
    if products:
        unit = np.array([product.unit for product in products])[:, None, None]
        added["product"] = total(answers[-1], "product", (n, *products[0].V.shape)) * unit
    if isinstance(request, AskRound):
        assert many is not None
        asked = [lane.request for lane in pack]
        states, nodes = [one.state for one in asked], np.stack([one.nodes for one in asked])  # type: ignore[union-attr]
        return apart(after_round(many, added, panel, request.settings, nodes, request.turn), states)
    return [{name: value[i] for name, value in added.items()} for i in range(n)]
