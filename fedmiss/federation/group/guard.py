"""The door of an organisation's program: every question is compared with the approved study before it is answered.

Questions come in the order of a job: agreement, choice of the model, fit, bootstrap, end. Each field that decides what a sum
is of (folds, numbers, seed, share, names, months, models) must be the approved one, each fit may be asked about as often as
the job needs and no more, and the job has a budget of exchanges. What differs is refused by name, with both values.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.approved import MOST_NODES, Approved
from fedmiss.federation.group.visits import EFFORT_TERMS
from fedmiss.models.lowrank.settings import CountSettings

__all__ = ["QuestionGuard"]

STAGES = ("agree", "choose", "fit", "bootstrap", "end")
STAGE_OF = {"fold": "choose", "all": "fit", "replicate": "bootstrap"}
POWER, WIDTH = 3, 6  # products that start a factor, and vectors in each
REPLICATE_ROUNDS = 25
MOST_SPREAD = 6.6  # quotient of the quantiles of t with one degree of freedom and of the normal


@dataclass(slots=True)
class _Open:
    """A batch that is open: what it holds, and how often each of its fits was asked about what."""

    question: msg.Open
    rank: int
    sweeps: int
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)


class QuestionGuard:
    """Checks the questions of one job at one group.

    Parameters
    ----------
    approved : what the custodian has approved;  name : of the group, for messages
    """

    def __init__(self, approved: Approved, name: str) -> None:
        self.approved, self.name = approved, name
        self.exchanges, self.stage = 0, "agree"
        self.axes: msg.Axes | None = None
        self.open: dict[int, _Open] = {}
        self.fulls: dict[int, _Open] = {}  # full fits: replicates start from them
        self.opened: Counter[tuple[object, ...]] = Counter()
        # by what, and how many of the two questions behind folds were asked
        self.folds: tuple[str, int] = ("", 0)
        sealed = [("SealKey",), ("OpenKey",)] if approved.seal else []
        hashes = ("Sites", "Checklists") if approved.duplicates else ("Sites",)
        self.script: list[tuple[str, ...]] = [
            *sealed, ("Hello", "Tally"), hashes, ("Drop", "Shared", "Axes"), ("Support",), ("Support",), ("Axes",),
        ]  # fmt: skip

    def after(self, questions: Sequence[msg.Message]) -> QuestionGuard:
        """The guard after these questions of one exchange.

        Raises
        ------
        ConfigError    a question is not of the approved job; it says what differs, and both values
        """
        new = copy.copy(self)
        new.open = {k: copy.copy(b) for k, b in self.open.items()}
        for b in new.open.values():
            b.asked = b.asked.copy()
        new.fulls, new.opened = dict(self.fulls), self.opened.copy()
        new._take(questions)
        return new

    # -- refusals --------------------------------------------------------------------------------------------

    def refuse(self, what: str, got: object, want: object) -> NoReturn:
        """Refuse by name, with both values."""
        raise ConfigError(
            f"group {self.name!r}: {what} is {_short(got)}, the approved study has {_short(want)}. Nothing was answered: "
            "ask the coordinator which study the hub runs, and with which fedmiss.",
            what=what,
        )

    def same(self, q: msg.Message, **wanted: object) -> None:
        """Compare fields of a question with what was approved."""
        for name, want in wanted.items():
            got = getattr(q, name)
            equal = np.array_equal(got, np.asarray(want)) if isinstance(got, np.ndarray) else got == want
            if not equal:
                self.refuse(f"{type(q).__name__}.{name}", got, want)

    def within(self, q: msg.Message, name: str, fine: object, want: str) -> None:
        """Refuse a field that lies outside of what was approved."""
        if not bool(fine):
            self.refuse(f"{type(q).__name__}.{name}", getattr(q, name), want)

    # -- order -----------------------------------------------------------------------------------------------

    def _take(self, questions: Sequence[msg.Message]) -> None:
        self.exchanges += 1
        if self.exchanges > self.approved.exchanges:
            self.refuse("the number of exchanges", self.exchanges, f"at most {self.approved.exchanges}")
        kinds = tuple(type(q).__name__ for q in questions)
        if self.script:
            if kinds != self.script[0]:
                self.refuse(
                    f"exchange {self.exchanges - 1}", ", ".join(kinds) or "nothing", ", ".join(self.script[0])
                )
            self.script = self.script[1:]
        elif not kinds or any(k not in _LATER for k in kinds):
            wrong = next((k for k in kinds if k not in _LATER), "nothing")
            self.refuse(
                f"a question after the agreement, exchange {self.exchanges - 1},", wrong, ", ".join(_LATER)
            )
        for q in questions:
            check = getattr(self, f"_{type(q).__name__.lower()}", None)
            if check is not None:
                check(q)

    def _go_to(self, stage: str, q: msg.Message) -> None:
        if STAGES.index(stage) < STAGES.index(self.stage):
            self.refuse(
                f"the stage of {type(q).__name__}",
                stage,
                f"{self.stage} or later: stages come once, in order",
            )
        self.stage = stage

    # -- agreement -------------------------------------------------------------------------------------------

    def _openkey(self, q: msg.OpenKey) -> None:
        self.same(q, sender=self.approved.names[0])

    def _hello(self, q: msg.Hello) -> None:
        self.same(q, species=self.approved.species, season=self.approved.season)

    def _drop(self, q: msg.Drop) -> None:
        if not self.approved.duplicates:
            self.within(q, "checklists", not q.checklists.size, "no duplicates to leave out")

    def _shared(self, q: msg.Shared) -> None:
        n = len(self.approved.names)
        self.same(q, joint=0, place=np.full(q.sites.size, -1))
        self.within(q, "owners", np.isin(q.owners, range(2, n + 1)).all(), f"2 to {n} organisations")
        self.within(q, "sites", np.unique(q.sites).size == q.sites.size == q.owners.size, "each site once")

    def _axes(self, q: msg.Axes) -> None:
        a, before = self.approved, self.axes
        if before is not None:
            self.same(
                q, months=before.months, terms=before.terms, blanks=before.blanks, minimum=before.minimum
            )
            self.within(q, "regions", set(q.regions) <= set(before.regions), ", ".join(before.regions))
            self.within(
                q,
                "released",
                q.released.shape == q.months.shape,
                f"{q.months.size} months, each released or not",
            )
        else:
            self.same(q, released=np.zeros(0))
        self.within(q, "regions", len(set(q.regions)) == len(q.regions), "each region once")
        self.same(q, detections=a.detections)
        self.within(q, "minimum", q.minimum >= a.minimum, f"{a.minimum} or more")
        if a.months is not None:
            self.same(q, months=a.months)
        self.within(q, "months", (np.diff(q.months) > 0).all(), "months in their order, each once")
        season = a.season or range(1, 13)
        self.within(q, "months", np.isin(q.months % 12 + 1, list(season)).all(), f"the season {list(season)}")
        allowed = (
            {"auto": EFFORT_TERMS, "none": ()}.get(a.effort, a.effort)
            if isinstance(a.effort, str)
            else a.effort
        )
        self.within(q, "terms", set(q.terms) <= set(allowed), f"some of {', '.join(allowed) or 'none'}")
        self.within(q, "blanks", set(q.blanks) <= set(q.terms), f"some of {', '.join(q.terms) or 'none'}")
        self.axes = q

    def _support(self, q: msg.Support) -> None:
        a = self.approved
        self.same(q, share=a.share, names=a.names)
        if self.axes is not None and not self.axes.released.size:
            self.same(q, by="", folds=0, seed=0)
            first = len(self.script) > 1
        else:
            self._go_to("choose", q)
            self._chosen(q)
            by, asked = self.folds
            if asked:
                self.same(q, by=by)
            if asked > 1:
                self.refuse("the number of questions behind folds", asked + 1, 2)
            self.folds, first = (q.by, asked + 1), not asked
        self.within(
            q, "visits", (q.visits.size == 0) == first, "nothing at first, then the sums of the answers"
        )

    def _chosen(self, q: msg.Support | msg.Open) -> None:
        """Folds must be those of the study."""
        a = self.approved
        if len(a.candidates) < 2:
            self.refuse(f"{type(q).__name__} about folds", "asked", "one model, hence no folds")
        self.same(q, folds=a.folds, seed=a.seed)
        self.within(q, "by", q.by in (("cell", "block") if a.by == "auto" else (a.by,)), a.by)

    def _gaps(self, q: msg.Gaps) -> None:
        self._go_to("choose", q)
        self.opened["gaps",] += 1
        if self.approved.by != "auto" or len(self.approved.candidates) < 2 or self.opened["gaps",] > 1:
            self.refuse("Gaps", "asked", "no such question here: it is asked once, for folds = auto")

    # -- fits ------------------------------------------------------------------------------------------------

    def _open(self, q: msg.Open) -> None:
        a = self.approved
        if q.weights not in STAGE_OF:
            self.refuse("Open.weights", q.weights, ", ".join(STAGE_OF))
        self._go_to(STAGE_OF[q.weights], q)
        self.within(q, "batch", q.batch not in self.open, "a number that is not in use")
        self.same(q, visits=np.zeros(0))
        slopes = self._line(q)
        alike = [
            c for c in a.candidates if (c.family, c.scale, c.observers) == (q.family, q.scale, q.observers)
        ]
        if not alike:
            self.refuse(
                "the model of Open", f"{q.family}, {q.scale}, observers {q.observers}", _models(a.candidates)
            )
        rank, numbers = q.p - 1 - slopes, q.numbers.tolist()
        most, allowed, key = self._numbers_of(q, alike, rank)
        fine = q.numbers.ndim == 1 and numbers and len(set(numbers)) == len(numbers)
        self.within(
            q, "numbers", fine and 0 <= min(numbers) and max(numbers) < most, f"0 to {most - 1}, each once"
        )
        for number in numbers:
            self.opened[*key, number] += 1
            if self.opened[*key, number] > allowed:
                self.refuse(
                    f"how often Open asks for {q.weights} {number} of this model",
                    self.opened[*key, number],
                    allowed,
                )
        sweeps = REPLICATE_ROUNDS if q.weights == "replicate" else max(c.max_sweeps for c in alike)
        self.open[q.batch] = _Open(q, rank, sweeps)
        if q.weights == "all":
            self.fulls[q.batch] = self.open[q.batch]

    def _numbers_of(
        self, q: msg.Open, alike: list[CountSettings], rank: int
    ) -> tuple[int, int, tuple[object, ...]]:
        """How many numbers there are, how often each may be opened, and under which key that is counted."""
        a, model = self.approved, (q.family, q.scale, q.observers)
        if q.weights == "fold":
            self._chosen(q)
            self.same(q, by=self.folds[0], source=-1, spread=np.zeros(3))
            self.within(q, "released", q.released.size, "the months that every organisation has agreed to")
            paths = {replace(c, rank=0) for c in alike}
            longest = {max(c.rank for c in alike if replace(c, rank=0) == path) for path in paths}
            self.within(q, "p", rank in longest, f"the ranks {sorted(longest)}")
            return a.folds, len(paths), ("fold", *model)
        self.same(q, by="cell", folds=0, released=np.zeros(0))
        if q.weights == "all":
            ranks = [c.rank for c in alike]
            self.same(q, seed=0, source=-1, spread=np.zeros(3))
            self.within(q, "p", rank in ranks, f"the ranks {sorted(ranks)}")
            return 1, ranks.count(rank), ("all", *model, rank)
        full = self.fulls.get(q.source)
        if full is None:
            self.refuse(
                "Open.source", q.source, f"a full fit: {', '.join(map(str, self.fulls)) or 'none is there'}"
            )
        self.same(
            q, seed=a.seed, family=full.question.family, scale=full.question.scale, line=full.question.line
        )
        self.within(q, "p", q.p <= full.question.p, f"at most {full.question.p}")
        size, factor, places = q.spread if q.spread.shape == (3,) else (0.0, 0.0, 0.0)
        fine = 1.0 <= size < np.inf and 1.0 <= factor <= MOST_SPREAD and places in (0.0, 1.0)
        self.within(q, "spread", fine, f"visits, a factor of 1 to {MOST_SPREAD}, 0 or 1")
        return a.bootstrap, 1, ("replicate",)

    def _line(self, q: msg.Open) -> int:
        """The line of the sites' slopes must be one on the year."""
        if not q.line.size:
            return 0
        assert self.axes is not None
        year = (self.axes.months // 12).astype(float)
        fine = q.line.shape == year.shape and np.isfinite(q.line).all() and np.abs(q.line).max() < 1e3
        if fine:
            curve = np.polynomial.Polynomial.fit(year, q.line, 1)(year) if np.ptp(year) else q.line
            fine = np.abs(curve - q.line).max() < 1e-6
        self.within(q, "line", fine, "a straight line on the year")
        return 1

    def _known(self, q: Any) -> _Open:
        b = self.open.get(q.batch)
        if b is None:
            self.refuse(
                f"{type(q).__name__}.batch", q.batch, f"open: {', '.join(map(str, self.open)) or 'none'}"
            )
        return b

    def _count(self, b: _Open, q: Any, most: int, what: str = "") -> None:
        """Count a question about fits of a batch; each may be asked so often."""
        name = what or type(q).__name__
        for fit in q.fits.tolist():
            b.asked[name, fit] += 1
            if b.asked[name, fit] > most:
                self.refuse(
                    f"how often {name} is asked of fit {fit} of batch {q.batch}", b.asked[name, fit], most
                )

    def _broadcast(self, q: msg.Broadcast) -> None:
        b = self._known(q)
        self._count(b, q, (b.rank + 1) * (b.sweeps + 1))
        self.same(q, sums=False)
        starts = (3,) if b.question.weights == "replicate" else (1, 2)
        self.within(q, "begin", q.begin in (0, *starts), f"0 or {starts}")
        if q.begin:
            self._count(b, q, max(b.rank, 1) if q.begin == 2 else 1, f"Broadcast that begins with {q.begin}")
        for name in "mu T D tau phi inverse_size kappa ridge lift shift stretch".split():
            self.within(q, name, np.isfinite(getattr(q, name)).all(), "finite numbers")

    def _solve(self, q: msg.Solve) -> None:
        b = self._known(q)
        self._count(b, q, (b.rank + 1) * b.sweeps)
        self.within(q, "totals", not q.totals.size, "no joint sites")
        self.within(q, "nodes", q.nodes.shape[-1] <= MOST_NODES, f"at most {MOST_NODES} values")

    def _predict(self, q: msg.Predict) -> None:
        b = self._known(q)
        self._count(b, q, b.rank + 1 if b.question.weights != "replicate" else 1)
        self.within(q, "nodes", q.nodes.shape[-1] <= 1, "one value")
        self.within(q, "months", b.question.weights == "all" or not q.months, "months of full fits only")

    def _score(self, q: msg.Score) -> None:
        b = self._known(q)
        self._count(b, q, b.rank + 1 if b.question.weights == "fold" else 0)

    def _product(self, q: msg.Product) -> None:
        b = self._known(q)
        self._count(b, q, POWER * b.rank if b.question.weights != "replicate" else 0)
        self.within(q, "totals", not q.totals.size, "no joint sites")
        self.within(q, "V", q.V.shape[-1] <= WIDTH, f"at most {WIDTH} vectors")

    def _totals(self, q: msg.Totals) -> None:
        b = self._known(q)
        self._count(b, q, 0 if b.question.weights == "fold" else 1)
        self.same(q, drawn=b.question.weights == "replicate")

    def _close(self, q: msg.Close) -> None:
        for number in q.batches.tolist():
            self.open.pop(number, None)

    def _outcome(self, q: msg.Outcome) -> None:
        self._go_to("end", q)
        self.within(q, "batch", q.batch in self.fulls, f"a full fit: {', '.join(map(str, self.fulls))}")


_LATER = (
    "Gaps", "Support", "Open", "Broadcast", "Solve", "Predict", "Score", "Product", "Totals", "Close", "Outcome",
)  # fmt: skip


def _models(candidates: Sequence[CountSettings]) -> str:
    return "; ".join(sorted({f"{c.family}, {c.scale}, observers {c.observers}" for c in candidates}))


def _short(value: object) -> str:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        few = ", ".join(map(str, value[:8])) + (f" ... ({len(value)} values)" if len(value) > 8 else "")
        return f"[{few}]"
    return str(value)
