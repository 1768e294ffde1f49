"""What the hub knows of one fit: the months' parameters and the variances, as a value. No site, no visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64, U8, Bool
from fedmiss.federation.hub.coefficients import Coefficients
from fedmiss.federation.hub.features import SiteFeatures
from fedmiss.federation.hub.priors import left_out
from fedmiss.federation.hub.season import SeriesPrior
from fedmiss.federation.hub.values import evolve
from fedmiss.federation.rules import CONTRIBUTORS
from fedmiss.federation.triangle import free_columns
from fedmiss.folders import ALL, VISITED
from fedmiss.seasons import season_years, years_of


@dataclass(slots=True, eq=False)
class Start:
    """What all fits of a job begin with: ``directions`` (L, w), the first factor first, empty until one fit has found them.

    They are R'R V for three blocks V of six vectors, R the residuals of all visits at rank 0: 18 numbers of each month. Were
    every rank, fold and candidate to begin with products of its own, they would together be more equations than there are
    counts (``tests/attacks/test_starts.py``). Groups that see to least numbers by themselves have no need of it.
    """

    directions: F64 = field(default_factory=lambda: np.zeros((0, 0)))

    def tell(self, found: F64) -> None:
        """Keep what was found for all fits; what another one finds later is its own."""
        if not self.directions.size:
            self.directions = found


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """What the hub knows of the panel after the agreement.

    ``L`` months, ``J`` sites, ``K`` effort coefficients, ``calendar`` (month_of_year, year) each (L,) or None, ``visits``
    that take part.
    ``least`` number of visits and sites of all groups behind a released sum, 0 where groups see to it by themselves;
    ``own_least`` then: number of its own sites that a group has behind each of its sums;
    ``share`` largest share of one group; ``contributors`` least number of groups. ``covariates`` of sites: name -> power of
    two that all values stay below; ``frame``: whether totals of the visited sites are wanted beside those of all;
    ``features`` of sites that the groups agreed on, None: not asked; ``pairs`` (L, L) 1 where products of residuals of two
    months may be released (:func:`.support.release_pairs`), empty for all; ``patterns``: whether they are enough for
    factors; ``start`` of all fits of the job; ``species`` of the job, whose draws have its own keys.
    """

    L: int
    J: float
    K: int
    visits: int
    calendar: tuple[I64, I64] | None
    regions: tuple[str, ...]
    observers: F64  # (4,) as in ``messages.Done``
    covariates: dict[str, int] = field(default_factory=dict)
    frame: bool = False
    features: SiteFeatures | None = None
    least: int = 0
    own_least: int = 0
    share: float = 1.0
    contributors: int = CONTRIBUTORS
    pairs: U8 = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    patterns: bool = True
    start: Start = field(default_factory=Start)
    species: str = ""

    @property
    def years(self) -> I64:
        """Year (L,) in which each month counts."""
        if self.calendar is None:
            return years_of(np.arange(self.L))
        month_of_year, year = self.calendar
        return season_years(year, month_of_year)

    @property
    def rows(self) -> list[str]:
        """Names of the rows of totals."""
        return [ALL, *self.regions, *([VISITED] if self.frame else [])]


LATE = 30  # rounds of a rank after which a fit that does not end is led on, and its end comes sooner
NEGLIGIBLE = 1e-4  # share of the variance of errors in common


def leading(errors: F64) -> F64:
    """Fewer columns (n, k) of errors with nearly the same covariance E E'."""
    u, size, _ = np.linalg.svd(errors, full_matrices=False)
    u = u[:, size**2 > NEGLIGIBLE * (size**2).sum()]
    # A singular vector has no sign of its own: its largest number fixes it, so that machines agree.
    out: F64 = u * np.sign(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])]) * size[: u.shape[1]]
    return out


@dataclass(frozen=True, eq=False)
class MonthState:
    """One fit after ``k`` rounds at its present rank; every step makes a new one.

    Fits that take a step together are one state whose numbers have a leading axis of fits (:func:`stacked`).

    Attributes
    ----------
    mu : overall level;  origin : its prior mean
    T, D : (L, p), (L, p, p)     posterior means and covariances of the months' coefficients: the effect, then with
                                 ``slopes`` the known line x (covariance zero), then the factors
    prior, noise : (L, p), (p,)  their prior means and variances;  series : how the prior means are made, None: zero
    tau : (p,)                   prior variances of the sites' coefficients
    phi, inverse_size : dispersion; 1 / size of the negative binomial, 0 for none
    kappa : (K,) effort coefficients;  ridge : precision of observer effects;  edf_observers : their effective number
    edf : effective number of parameters of sites and months
    features : coefficients of the sites' features
    shift : (p,)                 what the sites still have to subtract from their coefficients
    common : (2,) what observers still have to subtract from their effects: a number, and one by how late their visits are
    slopes : whether every site has a slope on x of its own
    responses : number of sites' features that the months respond to: columns after the effect whose sites' half is known
    chain : (3,) probabilities that a site is occupied in the first year, gained and lost from one year to the next; (0,)
        where no site may be empty
    counted : (L,) months with a counted visit, None before the first round
    jolt : (L, p) prior means of the months' noise, for replicates; None is zero
    refill : whether visits' weights must be computed again
    damping : (L, n) last steps of the months, and (L,) the share of a full step that each takes
    strides : (2, 1 + 2 p) last steps of the logarithms of 1 / size, ``tau`` and ``noise``, and the share that each takes
    widest : largest variance of the effects' own noise that months may learn
    half : half of all counts where sites have slopes: a site with more has a slope of its own; 0 for none
    squares : (p,)               mean squared coefficient of the sites
    told : (5,) of the sites' slopes: how many, mean squares of what they are more than their prior mean, mean posterior
        variance C, the prior variance ``tau`` that these were computed with, and the sum of (1 - C / tau)^2
    weight : sum of the visits' weights
    smear : factor that makes the fitted total of the visits the counted one
    found : what the mean observer finds at the mean experience of what one with an effect of zero does who has it all
    moves : (3,) the last three root mean square moves
    rounds : of all ranks so far
    visited : (L, 8) of the visits of each month, as in ``messages.FitSums``
    unit : standard deviation of the values for the Gaussian family, else 1: what moves are measured in
    away : rank at which the fit ran away, so that this state is the one below; 0 for none
    """

    mu: float
    T: F64
    D: F64
    prior: F64
    noise: F64
    tau: F64
    kappa: F64
    shift: F64
    squares: F64
    features: Coefficients
    half: float = 0.0
    widest: float = np.inf
    told: F64 = field(default_factory=lambda: np.zeros(5))
    common: F64 = field(default_factory=lambda: np.zeros(2))
    slopes: bool = False
    responses: int = 0
    chain: F64 = field(default_factory=lambda: np.zeros(0))
    counted: Bool | None = None
    jolt: F64 | None = None
    phi: float = 1.0
    inverse_size: float = 0.0
    ridge: float = 4.0
    edf_observers: float = 0.0
    series: tuple[SeriesPrior, ...] | None = None
    edf: float = 1.0
    refill: bool = False
    damping: tuple[F64, F64] = field(default_factory=lambda: (np.zeros((0, 0)), np.zeros(0)))
    strides: F64 = field(default_factory=lambda: np.zeros((2, 0)))
    weight: float = 0.0
    k: int = 0
    rounds: int = 0
    moves: F64 = field(default_factory=lambda: np.full(3, np.inf))
    converged: bool = False
    smear: float = 1.0
    found: float = 1.0
    dispersion: float = 1.0
    unit: float = 1.0
    visited: F64 | None = None
    origin: float = 0.0
    away: int = 0

    @property
    def p(self) -> int:
        """Number of coefficients of a site."""
        return int(self.T.shape[-1])

    @property
    def free(self) -> I64:
        """Columns of ``T`` that are estimated: all but the line x, which is known."""
        return free_columns(self.p, slopes=self.slopes)

    @property
    def widths(self) -> F64:
        """Prior variances (..., L, free columns) of months about their prior means (:meth:`.season.SeriesPrior.widths`)."""
        out = np.repeat(self.noise[..., None, self.free], self.T.shape[-2], axis=-2)
        if self.series is not None and self.counted is not None:
            # The effect's column alone may be wider than the noise, where a month is a year.
            out[..., 0] = evolve(self.series[0], noise=self.noise[..., 0]).widths(self.counted)
        return out

    @property
    def in_common(self) -> tuple[F64, ...]:
        """Errors of the months' prior means: for each column of ``T`` a matrix (L, k), to multiply k standard normals.

        ``D`` holds what a month errs by itself, its prior mean given. A month's posterior mean answers to a move of that by
        C K = ``D`` over its prior variance: not at all where much was counted, wholly where nobody went.
        """
        if self.series is None:
            return ()
        share = np.einsum("laa->la", self.D)[:, self.free] / self.widths
        out = [np.zeros((len(self.T), 0)) for _ in range(self.p)]
        for at, column in enumerate(self.free):
            out[column] = leading(share[:, at, None] * self.series[at].errors())
        return tuple(out)

    @property
    def rank(self) -> int:
        """Number of factors."""
        return self.p - 1 - int(self.slopes) - self.responses

    @property
    def patience(self) -> F64:
        """How much longer moves may be at the end: with factors more and more after ``LATE`` rounds of a rank.

        A factor that few counts tell from none stays for hundreds of rounds near a saddle of little slope, and hardly moves
        totals there (``docs/decisions/0122``).
        """
        return np.maximum(1.0, np.asarray(self.k) / LATE) if self.rank else np.ones(np.shape(self.k))

    @property
    def edf_visits(self) -> float:
        """Effective number of effort coefficients and observer effects."""
        return float(self.kappa.shape[-1] + self.edf_observers)

    @property
    def observers_left_out(self) -> bool:
        """Whether effects of observers, where they are asked for, are left out."""
        return bool(left_out(self.ridge, self.unit).all())

    @property
    def free_visits(self) -> float:
        """Residual degrees of freedom of a fit of ``weight`` visits, at least a twentieth of them."""
        return float(max(self.weight - self.edf - self.edf_visits, 0.05 * self.weight))

    @property
    def stop_reason(self) -> str:
        """Why the fit ended, in words."""
        if self.away:
            return f"{evolve(self, away=0).stop_reason}; rank {self.away} ran away on these counts and is left out"
        if np.isinf(self.noise).all():
            return "no time effect moved by more than 1e-10"
        if self.converged:
            return (
                f"in three rounds in a row predictors and months moved by less than {0.003 * self.patience:.2g} (root mean "
                "square)"
            )
        return (
            f"after {self.k} rounds, the limit, predictors or months still moved by {max(self.moves):.2g} a round (root "
            "mean square; a fit ends below 0.003, or less where it creeps). The counts are too few for so many terms: "
            "choose " + ("--rank 0" if self.rank else "a larger area or a longer span of years for the panel")
        )

    @property
    def calibration(self) -> float:
        """Factor of expected counts of a standard visit by any observer."""
        return self.smear * self.found

    @property
    def size(self) -> float:
        """Size of the negative binomial, infinite for the Poisson limit."""
        return 1.0 / self.inverse_size if self.inverse_size > 0 else float("inf")


# What steps neither read nor change: it stays with each fit.
_OWN = {"smear", "found", "dispersion", "visited", "away", "rounds"}
_ALIKE = {"slopes", "responses"}  # of all fits of a batch
_STEPPED = [f.name for f in fields(MonthState) if f.name not in _OWN | _ALIKE]


def stacked(states: Sequence[MonthState]) -> MonthState:
    """Fits of one batch and rank as one state, with a leading axis of fits in all that steps read or change."""
    many: MonthState = _stack(states, _STEPPED)
    return many


def apart(many: MonthState, states: Sequence[MonthState]) -> list[MonthState]:
    """The fits of a stacked state, each with what ``states`` had of its own."""
    return [_pick(one, many, i, _STEPPED) for i, one in enumerate(states)]


_PARTS = {
    SeriesPrior: ("unit", "season", "year", "step", "noise", "cov", "mean"),
    Coefficients: ("B", "prior", "rho", "cov", "aim", "under", "edf"),
}


def _stack(parts: Sequence[Any], names: Sequence[str]) -> Any:
    out: dict[str, Any] = {}
    for name in names:
        values = [getattr(part, name) for part in parts]
        first = values[0]
        if type(first) in _PARTS:
            out[name] = _stack(values, _PARTS[type(first)])
        elif name == "series" and first is not None:
            out[name] = tuple(_stack(column, _PARTS[SeriesPrior]) for column in zip(*values, strict=True))
        elif name == "damping":
            out[name] = tuple(np.array(x) for x in zip(*values, strict=True))
        else:
            out[name] = None if first is None else np.array(values)
    return evolve(parts[0], **out)


def _pick(one: Any, many: Any, i: int, names: Sequence[str]) -> Any:
    out: dict[str, Any] = {}
    for name in names:
        value, old = getattr(many, name), getattr(one, name)
        if type(value) in _PARTS:
            out[name] = _pick(old, value, i, _PARTS[type(value)])
        elif name == "series" and value is not None:
            out[name] = tuple(_pick(a, b, i, _PARTS[SeriesPrior]) for a, b in zip(old, value, strict=True))
        elif name == "damping":
            out[name] = tuple(x[i] for x in value)
        elif value is None:
            out[name] = None
        else:
            own = value[i]
            out[name] = own.item() if own.ndim == 0 else own
    return evolve(one, **out)
