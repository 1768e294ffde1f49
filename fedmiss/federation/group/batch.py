"""State of a batch of fits inside a group: coefficients of its sites, weights and sufficient statistics of its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I32, I64, U8, Bool
from fedmiss.federation import messages as msg
from fedmiss.federation.group import kernels, visit_kernels
from fedmiss.federation.group.presence import Presence
from fedmiss.federation.group.visits import IncludedVisits
from fedmiss.federation.triangle import free_columns, from_triangle
from fedmiss.loops import spread_out
from fedmiss.models.lowrank.data import index_cells
from fedmiss.models.lowrank.families import FAMILIES, SCALES, Family, Scale
from fedmiss.models.lowrank.occupancy import SURE, log_zero
from fedmiss.models.lowrank.own_lines import MAJOR, OwnLines

# The last question, its slopes, and its months: in one process the very same question goes to every group, and is read once.
_LAST: list[tuple[msg.Broadcast | msg.Totals, bool, F64, F64] | None] = [None]


@dataclass(frozen=True, slots=True)
class CellIndex:
    """The observed cells Omega_c of a group as compressed sparse rows, and the visits in them.

    ``ptr`` (J + 1,), ``col`` (nnz,): cells by site; ``visit_cell`` (m,): cell of every visit, visits sorted by cell;
    ``visit_ptr`` (nnz + 1,). ``by_visit``: every visit is a cell of its own (Bernoulli with offsets).
    """

    ptr: I64
    col: I32
    visit_cell: I32
    visit_ptr: I64
    by_visit: bool

    @classmethod
    def of(cls, site: I32, month: I32, J: int, L: int, *, by_visit: bool = False) -> CellIndex:
        """Index visits that are sorted by (site, month)."""
        ptr, cell, first = index_cells(site, month, J, L, by_visit=by_visit)
        return cls(ptr, month[first], cell, np.r_[first, site.size].astype(np.int64), by_visit)

    @property
    def nnz(self) -> int:
        """Number of observed cells."""
        return int(self.col.size)

    @property
    def J(self) -> int:
        """Number of sites."""
        return int(self.ptr.size - 1)


@dataclass(frozen=True, slots=True)
class CellParts:
    """What is summed into cells: whole cells where visits have no offsets, else single visits.

    ``ptr`` (nnz + 1,) rows of every cell; ``w``, ``wy``, ``wyy`` (n, R) weight, weighted value, weighted square.
    """

    ptr: I64
    w: F64
    wy: F64
    wyy: F64

    @classmethod
    def of(cls, cells: CellIndex, value: F64, weights: F64, *, plain: bool) -> CellParts:
        """Collapse visits with ``value`` (m,) under ``weights`` (n, m)."""
        if not plain:
            return cls(cells.visit_ptr, weights, weights * value, weights * value**2)
        at, nnz = cells.visit_cell, cells.nnz
        parts = [weights, weights * value, weights * value**2]
        if nnz != value.size:
            parts = [np.stack([np.bincount(at, row, nnz) for row in part]) if nnz else part for part in parts]
        return cls(np.arange(nnz + 1, dtype=np.int64), *parts)


LEAST_BIRDS = 50.0  # of a site with a slope of its own
_ZERO = np.zeros((1, 1))
_CHANGING = (
    "mu", "month_mean", "month_cov", "tau", "phi", "inverse_size", "kappa", "ridge", "B", "site_prior", "site_mean",
    "site_cov", "eta", "y", "E", "shrink", "offset", "effects", "effect_var", "leaning", "rank", "old",
    "major",
)  # fmt: skip


def _months(n: int, L: int, p: int, line: F64) -> F64:
    out = np.zeros((n, L, p))
    if line.size:
        out[:, :, 1] = line
    return out


@dataclass(slots=True)
class Batch:
    """Everything that the fits of one batch keep between two questions."""

    family: Family
    cells: CellIndex
    rows: CellParts
    effort: F64  # (R, K), where observers learn with one column more, the year, which has no coefficient
    observer: I32  # (R,) rows' observers where observer effects are estimated, else empty
    observing: Bool  # (observers,) who have visits that take part, in whichever fold
    late: F64  # (observers,) how late each one's visits are (:func:`.visits.experience`); zeros without that column
    weights: F64  # (n, m) of the visits, prior weights included
    test: F64  # (n, m) weights of held-out visits, or (0, 0)
    numbers: I64  # of folds or replicates
    scale: Scale
    seed: int
    p: int  # of the arrays; a fit may use fewer
    observers: bool
    chunks: int
    mu: F64
    month_mean: F64  # (n, L, p) coefficients of the months: posterior means
    month_cov: F64  # (n, L, p, p) and covariances
    tau: F64
    phi: F64
    inverse_size: F64
    kappa: F64
    ridge: F64
    known: F64  # (R,) log exposure of rows that sum visits, else empty
    responses: (
        F64  # (J, k) features of the sites that months respond to: coefficients of the sites that are known
    )
    F: F64  # (J, k) features of the sites that the prior follows
    of_slopes: Bool  # (k,) those that only slopes follow
    B: F64  # (n, k, c) their coefficients for effect (and slope)
    site_prior: F64  # (n, J, p) prior means of the sites' coefficients: F B, and a replicate's draws
    site_mean: F64  # (n, J, p) coefficients of the sites: posterior means
    site_cov: F64  # (n, J, p, p) and covariances
    eta: F64  # (n, cells) predictor with the expected mean
    y: F64  # (n, cells) weighted counts, and E (n, cells) weights, as the family's score weighs them
    E: F64
    shrink: F64
    offset: F64
    effects: F64  # (n, observers) observer effects: posterior means
    effect_var: F64  # and variances, where the mean count grows with them
    leaning: F64  # and their prior means: zero, or a replicate's draws
    slopes: bool  # whether the second coefficient is the slope on the known line
    terms: int  # columns of effort but for experience
    rank: I64  # coefficients that every fit uses now
    old: U8  # whether ``shrink`` holds earlier weights
    major: (
        I64  # (n,) the site with more than half of all birds, whose slope is its own; -1 where there is none
    )
    presence: Presence | None = None  # where sites may be empty

    @classmethod
    def of(
        cls,
        question: msg.Open,
        visits: IncludedVisits,
        cells: CellIndex,
        weights: F64,
        *,
        test: F64 | None,
        F: F64,
        of_slopes: Bool,
        year: I64,
        found: tuple[I32, I32],
    ) -> Batch:
        """Make the state of ``len(weights)`` fits at coefficients of zero, but for the known ``q.line`` (L,).

        ``year`` (L,) of every month; ``found`` sites and months of finds without a number.
        """
        family, scale = FAMILIES[question.family], SCALES[question.scale]
        effort, n, J, L = visits.effort, len(weights), cells.J, year.size
        if question.learning:
            effort = np.column_stack([effort, visits.experience, (year - year.mean())[visits.month]])
        K = effort.shape[1] - question.learning
        plain = K == 0 and not question.observers and visits.exposure is None
        responses, F = (F, F[:, :0]) if question.responses else (F[:, :0], F)
        rows = CellParts.of(cells, scale.values(family.values(visits.count)), weights, plain=plain)
        R = rows.w.shape[1]
        I = int(visits.observer.max(initial=-1)) + 1 if question.observers else 0
        observing, late = np.zeros(I, dtype=bool), np.zeros(I)
        if question.observers:
            observing[visits.observer[visits.weight > 0]] = True
        if question.learning:  # the same at all visits of an observer
            late[visits.observer] = visits.experience[:, 1]
        presence = None
        if question.occupancy:
            row_cell = np.repeat(np.arange(cells.nnz), np.diff(rows.ptr))
            site = np.repeat(np.arange(J), np.diff(cells.ptr))
            presence = Presence.of(
                year, site, cells.col, row_cell, cells.visit_cell, found, J, rows.w, weights
            )
        return cls(
            family=family, scale=scale, cells=cells, rows=rows, weights=weights, numbers=question.numbers,
            seed=question.seed,
            test=np.zeros((0, 0)) if test is None else test, effort=effort, observers=question.observers,
            observer=visits.observer if question.observers else visits.observer[:0], late=late,
            observing=observing, p=question.p,
            chunks=kernels.chunks_of(cells.nnz),
            mu=np.zeros(n), month_mean=_months(n, L, question.p, question.line), month_cov=np.zeros((n, L, question.p,
            question.p)),
            tau=np.ones((n, question.p)), phi=np.ones(n), inverse_size=np.zeros(n), kappa=np.zeros((n, K)), ridge=np.ones(n),
            known=np.zeros(0) if visits.exposure is None else np.log(visits.exposure), responses=responses,
            F=F, of_slopes=of_slopes[: F.shape[1]],
            B=np.zeros((n, F.shape[1], 1 + (question.line.size > 0))), site_prior=np.zeros((n, J, question.p)),
            site_mean=np.zeros((n, J, question.p)), site_cov=np.zeros((n, J, question.p, question.p)),
            eta=np.zeros((n, cells.nnz)), y=np.zeros((n, cells.nnz)), E=np.zeros((n, cells.nnz)),
            shrink=np.ones((n, R)) if family.sized else _ZERO, offset=_ZERO if plain else np.zeros((n, R)),
            effects=np.zeros((n, I)), effect_var=np.zeros((n, I)), leaning=np.zeros((n, I)),
            slopes=question.line.size > 0, terms=visits.effort.shape[1], rank=np.ones(n, dtype=np.int64),
            old=np.zeros(n, dtype=np.uint8), major=np.full(n, -1), presence=presence,
        )  # fmt: skip

    def changing(self) -> dict[str, Any]:
        """What rounds change, by name; all else follows from the question that opened the batch."""
        out = {name: np.asarray(getattr(self, name)) for name in _CHANGING}
        if self.presence is not None:
            out |= {name: getattr(self.presence, name) for name in ("chain", "evidence", "q")}
        return out

    def restore(self, before: Mapping[str, Any]) -> None:
        """Go back to what :meth:`changing` gave."""
        for name in _CHANGING:
            getattr(self, name)[...] = before[name]
        if self.presence is not None:
            for name in ("chain", "evidence", "q"):
                getattr(self.presence, name)[...] = before[name]
            for f in range(len(self.weights)):
                self.weigh(f)

    def copied(self) -> Batch:
        """A batch that goes its own way from here: what rounds change is copied, all else is shared."""
        own: dict[str, Any] = {
            name: value if (value := getattr(self, name)) is _ZERO else value.copy() for name in _CHANGING
        }
        if (presence := self.presence) is not None:  # rounds weigh the visits of its sites
            own |= {
                "rows": replace(self.rows, w=self.rows.w.copy()), "weights": self.weights.copy(),
                "presence": replace(
                    presence, chain=presence.chain.copy(), evidence=presence.evidence.copy(), q=presence.q.copy()
                ),
            }  # fmt: skip
        return replace(self, **own)

    def take(self, batch: Batch, fits: I64) -> None:
        """Take what rounds have changed of these fits from the batch that this one was copied from."""
        mine = self.changing()
        for name, value in batch.changing().items():
            if value is not _ZERO:
                mine[name][fits] = value[fits]
        if self.presence is not None:
            self.rows.w[fits], self.weights[fits] = batch.rows.w[fits], batch.weights[fits]

    @property
    def off(self) -> bool:
        """Whether rows have offsets."""
        return bool(self.offset is not _ZERO)

    @property
    def summed_off(self) -> bool:
        """Whether rows have offsets that the predictor of their cell does not hold."""
        return self.off and not self.cells.by_visit

    def weigh(self, f: int) -> None:
        """Weigh visits of fit ``f`` by the probability that their site was occupied."""
        assert self.presence is not None
        self.rows.w[f], self.weights[f] = self.presence.weigh(f)

    def evidence(self, f: int) -> F64:
        """Log odds (J, Y) of presence from the counts of every site-year, at the predictor that the cells have."""
        presence = self.presence
        assert presence is not None
        eta = self.eta[f][presence.row_cell]
        if self.summed_off:
            eta = eta + self.offset[f]
        zero = log_zero(self.family.mean(eta), float(self.inverse_size[f]), float(self.phi[f]))
        # One bird: z = 1 for sure. Zeros of a year: -sum size log(1 + mu / size).
        w = presence.w[f]
        out = presence.of_years(presence.row_at, np.where(self.rows.wy[f] > 0, SURE, w * zero))
        found = presence.found
        if self.test.size:  # of site-years that are held out nothing is known
            found = found & (presence.of_years(presence.row_at, w) > 0)
        return out + SURE * found

    def run(self, loop: Callable[..., None], fits: I64, *arguments: Any, chunks: int = 1) -> None:
        """Run a compiled loop over the tasks of these fits, on all cores where there is work for them."""
        spread_out(loop, fits.size * chunks, fits.size * self.cells.nnz, *arguments)

    def set_offsets(self, fits: I64) -> None:
        """Offset of every row: exposure, effort and observer, with the lognormal mean of what is not known of the last."""
        if not self.off:
            return
        expected = self.effects + 0.5 * self.effect_var
        self.run(
            visit_kernels.row_offsets, fits, self.chunks, fits, self.known, self.effort, self.kappa, self.observer,
            expected, self.offset, chunks=self.chunks,
        )  # fmt: skip

    def cell_offset(self) -> tuple[F64, bool]:
        """Offsets that are part of a cell's predictor: only where a visit is a cell."""
        by_visit = self.cells.by_visit and self.off
        return (self.offset if by_visit else _ZERO), by_visit

    def refill(self, fits: I64) -> None:
        """Sum the rows into cells again, with the weights of the negative binomial at the current predictor."""
        rows = self.rows
        self.run(
            visit_kernels.fill_cells, fits, self.chunks, fits, rows.ptr, rows.w, rows.wy, self.offset, self.off,
            self.observer, self.effect_var, self.inverse_size, self.eta, self.shrink, self.old[fits],
            self.family.code, self.y, self.E, chunks=self.chunks,
        )  # fmt: skip
        self.old[fits] = self.inverse_size[fits] > 0.0

    @property
    def counted(self) -> Family:
        """The family whose mean makes birds of a predictor."""
        return self.scale.counted(self.family)

    def predict(self, fits: I64, p: int) -> None:
        """Predictor of every cell at the current coefficients."""
        self._predict(fits, p, self.family, self.eta)

    def _predict(self, fits: I64, p: int, family: Family, eta: F64) -> None:
        offset, by_visit = self.cell_offset()
        cells = self.cells
        self.run(
            kernels.predict_cells, fits, self.chunks, fits, p, cells.ptr, cells.col, offset, by_visit, self.mu,
            self.month_mean, self.month_cov, self.site_mean, self.site_cov, family.code, eta, chunks=self.chunks,
        )  # fmt: skip

    def birds_eta(self, f: int) -> F64:
        """Predictor (cells,) of fit ``f`` with the expected mean in birds: ``eta``, but where values are logarithms."""
        eta = self.eta
        if self.counted is not self.family:
            eta = np.empty_like(eta)  # only one row of it is ever touched
            self._predict(np.array([f]), int(self.rank[f]), self.counted, eta)
        row: F64 = eta[f]
        return row

    def own_lines(self, f: int, year: I64, seen: Bool | None = None) -> OwnLines:
        """Where the sites' own lines end in fit ``f``; ``year`` (L,) of every month.

        ``seen`` (cells,): the cells that count, None for all.
        """
        cells, J = self.cells, self.cells.J
        ptr, col = cells.ptr, cells.col
        if seen is not None:
            ptr, col = np.r_[0, np.cumsum(seen)][ptr], col[seen]
        some = ptr[1:] > ptr[:-1]
        first, last = np.full(J, -1), np.full(J, -1)
        first[some], last[some] = (year[col[ends[some]]] for ends in (ptr[:-1], ptr[1:] - 1))
        more = np.where(np.arange(J) == self.major[f], MAJOR, 0.0)
        return OwnLines.of(first, last, self.common_slopes(f), year, self.month_mean[f, :, 1], more)

    def with_more_than(self, half: F64, fits: I64, year: I64) -> I64:
        """The site (n,) of each of these fits that has more than ``half`` of all birds; -1 where there is none.

        Without its best of the years (L,) too: a flock that came once is no reason for a slope. Of few birds there is none.
        """
        cells, out = self.cells, np.full(fits.size, -1)
        if not cells.J:
            return out
        sizes = np.diff(self.rows.ptr)
        site = np.repeat(np.repeat(np.arange(cells.J), np.diff(cells.ptr)), sizes)
        when = np.repeat(year[cells.col] - year.min(), sizes)
        for i, f in enumerate(fits):
            birds = np.bincount(site, self.rows.wy[f], cells.J)
            most, least = int(birds.argmax()), max(half[i], LEAST_BIRDS)
            if half[i] > 0.0 and birds[most] > least:
                mine = site == most
                best = np.bincount(when[mine], self.rows.wy[f, mine]).max()
                out[i] = most if birds[most] - best > least else -1
        return out

    def prior_variances(self, f: int, p: int) -> F64:
        """Prior variances (J, p) of the sites' coefficients in fit ``f``."""
        tau = np.tile(self.tau[f, :p], (self.cells.J, 1))
        if (major := self.major[f]) >= 0:
            tau[major, 1] += MAJOR
        return tau

    def common_slopes(self, f: int) -> F64:
        """Slopes (J,) that the sites' features give them in fit ``f``."""
        return np.ascontiguousarray((self.F @ self.B[f])[:, 1]) if self.F.shape[1] else np.zeros(self.cells.J)

    def fitted(self, f: int) -> F64:
        """Expected count of every visit of fit ``f``, of every cell where visits have no offsets; log1p: of 1 + count."""
        eta = self.birds_eta(f)
        if self.off:
            eta = eta[self.cells.visit_cell]
        if self.summed_off:
            eta = eta + self.offset[f]
        return self.counted.mean(eta)

    def months(self, question: msg.Broadcast | msg.Totals) -> tuple[F64, F64]:
        """Months' coefficients (n, L, p) and covariances (n, L, p, p) of a question, with the known line among them."""
        last = _LAST[0]
        if last is None or last[0] is not question or last[1] != self.slopes:
            n, L, f = question.T.shape
            p = f + self.slopes
            free = free_columns(p, slopes=self.slopes)
            T, D = np.zeros((n, L, p)), np.zeros((n, L, p, p))
            # The line x_l is known to both ends: it is not sent, and has no variance.
            if self.slopes:
                T[:, :, 1] = self.month_mean[0, :, 1]
            T[:, :, free] = question.T
            D[:, :, free[:, None], free[None, :]] = from_triangle(question.D, f)
            last = _LAST[0] = (question, self.slopes, T, D)
        return last[2], last[3]
