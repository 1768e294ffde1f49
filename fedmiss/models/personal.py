"""Models of one's own for every observer: scalar effects, low-rank factors, mixtures of components (for experiments).

log mean of a visit of observer i to site j in month l = eta_jl + personal part, counts negative binomial of given size:

    eta_jl = mu + a_j + season_m(l) + year_y(l) + d_l            the shared part, ridges on a and d
    none       nothing
    scalar     o_i
    factors    o_i + f_i . (A_j + B_m(l))                        theta^i has rank at most 2 over sites x months
    mixture    y ~ sum_k pi_ik NB(exp(eta_jl + c_k + A_jk + B_m(l)k))

o_i, f_i and pi_i are kept in the group: it solves for them at the shared parameters and sends the value and the gradient of
its penalised log-likelihood by the shared parameters only (at the solution the private ones have gradient zero, so this
is the gradient of the profile). The server takes quasi-Newton steps on the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.rng import rng_for

__all__ = ["KINDS", "Personal", "PersonalFit", "PersonalVisits", "fit_personal", "size_of"]

KINDS = ("none", "scalar", "factors", "mixture")


@dataclass(frozen=True, slots=True, eq=False)
class PersonalVisits:
    """Visits of one group: ``site``, ``month``, ``observer`` (own numbers below ``observers``), counts ``y``, (m,)."""

    site: I64
    month: I64
    observer: I64
    y: F64
    observers: int

    def take(self, keep: np.ndarray) -> PersonalVisits:
        """Some of the visits; observers keep their numbers."""
        return PersonalVisits(
            self.site[keep], self.month[keep], self.observer[keep], self.y[keep], self.observers
        )


@dataclass(frozen=True, slots=True, eq=False)
class Personal:
    """A kind of personal model and its settings.

    Parameters
    ----------
    kind : one of :data:`KINDS`
    J, season, year : sites; (L,) month of year and year of each month, numbered from 0
    size : of the negative binomial, variance mu + mu^2 / size
    k : factors, or components of the mixture (at least 2)
    sd : prior standard deviation of o_i (scalar), of A and B (factors, mixture)
    sd_site, sd_month : of a and d        sd_observer : of o_i beside factors

    Source: Marfoq, Neglia, Bellet, Kameni, Vidal (2021), "Federated multi-task learning under a mixture of distributions",
    algorithm 1, for the mixture. Differs in: clients are observers inside a group, components share eta and differ by
    ridge-penalised parts, weights have a Dirichlet(2) prior, the M-step is a quasi-Newton step on the marginal likelihood.
    """

    kind: str
    J: int
    season: I64
    year: I64
    size: float = 2.0
    k: int = 1
    sd: float = 0.5
    sd_site: float = 1.5
    sd_month: float = 0.2
    sd_observer: float = 0.5
    cuts: I64 = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"personal model {self.kind!r} is unknown; choose one of {', '.join(KINDS)}.")
        if self.kind == "mixture" and self.k < 2:
            raise ConfigError(f"a mixture of k={self.k} components is no mixture; give k >= 2.")
        if self.k < 1 or not min(self.size, self.sd, self.sd_site, self.sd_month, self.sd_observer) > 0:
            raise ConfigError(f"k={self.k} (at least 1), size={self.size}, sd={self.sd} (all above 0).")
        S, Y, L = int(self.season.max()) + 1, int(self.year.max()) + 1, len(self.season)
        k = self.k if self.kind in ("factors", "mixture") else 0
        parts = [1, self.J, S, Y, L, k if self.kind == "mixture" else 0, k * self.J, k * S]
        object.__setattr__(self, "cuts", np.cumsum(parts).astype(np.int64))

    @property
    def q(self) -> int:
        """Shared parameters: what a message has beside the value."""
        return int(self.cuts[-1])

    def start(self, y: float, seed: int) -> F64:
        """Shared parameters to start from: the mean, and small random A and B, since zero is a saddle."""
        x = np.zeros(self.q)
        x[0] = np.log(max(y, 1e-3))
        x[self.cuts[5] :] = 0.3 * self.sd * rng_for(seed, "personal").standard_normal(self.q - self.cuts[5])
        return x

    def split(self, x: F64) -> list[F64]:
        """Return mu, a, season, year, d, c, A (J, k), B (S, k)."""
        mu, a, s, t, d, c, A, B = np.split(x, self.cuts[:-1])
        k = self.k if A.size else 0
        return [mu, a, s, t, d, c, A.reshape(self.J, k), B.reshape(int(self.season.max()) + 1, k)]

    def ridge(self) -> F64:
        """(q,) prior precisions."""
        sizes = np.diff(self.cuts, prepend=0)
        values = [0, self.sd_site**-2, 0.1, 0.01, self.sd_month**-2, self.sd**-2, self.sd**-2, self.sd**-2]
        return np.repeat(values, sizes)

    def shared(self, x: F64, site: I64, month: I64) -> F64:
        """Log means of cells without the personal part, (m,)."""
        mu, a, s, t, d = self.split(x)[:5]
        eta: F64 = mu + a[site] + s[self.season[month]] + t[self.year[month]] + d[month]
        return eta

    def _loss(self, y: F64, eta: F64) -> tuple[F64, F64, F64]:
        """Minus the log-likelihood without constants, its slope and its curvature by eta."""
        mu = np.exp(np.minimum(eta, 30.0))
        total = y + self.size
        loss = total * np.log(mu + self.size) - y * eta
        return loss, total * mu / (mu + self.size) - y, total * mu * self.size / (mu + self.size) ** 2

    def private_start(self, v: PersonalVisits) -> F64:
        """(observers, .) private parameters to start from: zeros, or even weights."""
        if self.kind == "mixture":
            return np.full((v.observers, self.k), 1.0 / self.k)
        return np.zeros((v.observers, {"none": 0, "scalar": 1}.get(self.kind, 1 + self.k)))

    def components(self, x: F64, site: I64, month: I64) -> F64:
        """(m, k) eta of each component of the mixture."""
        *_, c, A, B = self.split(x)
        return self.shared(x, site, month)[:, None] + c + A[site] + B[self.season[month]]

    def _design(self, x: F64, v: PersonalVisits) -> F64:
        """(m, p) what the private parameters multiply."""
        one = np.ones((len(v.y), 1))
        if self.kind != "factors":
            return one[:, : int(self.kind == "scalar")]
        *_, A, B = self.split(x)
        return np.hstack([one, A[v.site] + B[self.season[v.month]]])

    def _precision(self) -> F64:
        return (
            np.array([self.sd**-2]) if self.kind == "scalar" else np.r_[self.sd_observer**-2, np.ones(self.k)]
        )

    def answer(self, x: F64, v: PersonalVisits, private: F64) -> tuple[float, F64, F64]:
        """A group's value and gradient (q,) by the shared parameters, and its private parameters, which stay."""
        if self.kind == "mixture":
            return self._answer_mixture(x, v, private)
        eta, X = self.shared(x, v.site, v.month), self._design(x, v)
        value = 0.0
        if X.shape[1]:
            private = self._solve(eta, X, v, private)
            value = 0.5 * float((self._precision() * private**2).sum())
        loss, slope, _ = self._loss(v.y, eta + (X * private[v.observer]).sum(axis=1))
        extra = private[v.observer, 1:] * slope[:, None] if self.kind == "factors" else None
        return value + float(loss.sum()), self._gradient(v, slope, extra), private

    def _solve(self, eta: F64, X: F64, v: PersonalVisits, private: F64) -> F64:
        """Damped Newton for each observer's few parameters (a convex problem each)."""
        n, p, ridge = v.observers, X.shape[1], self._precision()

        def by_observer(values: F64) -> F64:
            return np.asarray(np.bincount(v.observer, values, n), dtype=np.float64)

        def value(b: F64) -> F64:
            loss = self._loss(v.y, eta + (X * b[v.observer]).sum(axis=1))[0]
            return np.asarray(by_observer(loss) + 0.5 * (ridge * b * b).sum(axis=1))

        now = value(private)
        for _ in range(50):
            _, slope, curve = self._loss(v.y, eta + (X * private[v.observer]).sum(axis=1))
            g = np.column_stack([by_observer(slope * X[:, i]) for i in range(p)]) + ridge * private
            H = np.empty((n, p, p))
            for i in range(p):
                for j in range(p):
                    H[:, i, j] = by_observer(curve * X[:, i] * X[:, j])
            H += np.diag(ridge)
            step = np.linalg.solve(H, g[..., None])[..., 0]
            if float(np.abs(step).max(initial=0.0)) < 1e-10:
                break
            scale = np.ones(n)
            for _ in range(30):
                new = value(private - scale[:, None] * step)
                worse = new > now + 1e-12 * np.abs(now)
                if not worse.any():
                    break
                scale[worse] *= 0.5
            private, now = private - scale[:, None] * step, new
        return private

    def _answer_mixture(self, x: F64, v: PersonalVisits, private: F64) -> tuple[float, F64, F64]:
        eta = self.components(x, v.site, v.month)
        loss, slope, _ = self._loss(v.y[:, None], eta)
        low = loss.min(axis=1, keepdims=True)
        like = np.exp(low - loss)
        count = np.bincount(v.observer, minlength=v.observers).astype(float)[:, None]
        for _ in range(500):  # EM for the weights, with one pseudo-visit in each component
            part = private[v.observer] * like
            part /= part.sum(axis=1, keepdims=True)
            sums = np.column_stack([np.bincount(v.observer, part[:, j], v.observers) for j in range(self.k)])
            new = (sums + 1.0) / (count + self.k)
            moved = float(np.abs(new - private).max(initial=0.0))
            private = new
            if moved < 1e-7:
                break
        part = private[v.observer] * like
        total = part.sum(axis=1, keepdims=True)
        value = float((low - np.log(total)).sum() - np.log(private).sum())
        by_component = part / total * slope
        return value, self._gradient(v, by_component.sum(axis=1), by_component), private

    def _gradient(self, v: PersonalVisits, slope: F64, extra: F64 | None) -> F64:
        season, year, L = self.season[v.month], self.year[v.month], len(self.season)
        S, Y = int(self.season.max()) + 1, int(self.year.max()) + 1
        parts = [np.array([slope.sum()]), np.bincount(v.site, slope, self.J), np.bincount(season, slope, S)]
        parts += [np.bincount(year, slope, Y), np.bincount(v.month, slope, L)]
        if extra is not None:
            parts += [extra.sum(axis=0)] if self.kind == "mixture" else []
            for at, n in ((v.site, self.J), (season, S)):
                parts.append(
                    np.column_stack([np.bincount(at, extra[:, j], n) for j in range(self.k)]).ravel()
                )
        return np.concatenate(parts)

    def mean(self, x: F64, v: PersonalVisits, private: F64) -> F64:
        """(m,) expected counts of visits by their own observers."""
        if self.kind == "mixture":
            return np.asarray((private[v.observer] * np.exp(self.components(x, v.site, v.month))).sum(axis=1))
        own = (self._design(x, v) * private[v.observer]).sum(axis=1)
        return np.asarray(np.exp(self.shared(x, v.site, v.month) + own))

    def totals(self, x: F64, weights: F64 | None = None) -> F64:
        """(L,) expected birds over all sites, of a standard observer (the mixture: of ``weights`` (k,))."""
        L = len(self.season)
        site, month = np.repeat(np.arange(self.J), L), np.tile(np.arange(L), self.J)
        if self.kind == "mixture":
            w = np.full(self.k, 1.0 / self.k) if weights is None else weights
            cells = np.exp(self.components(x, site, month)) @ w
        else:
            cells = np.exp(self.shared(x, site, month))
        return np.asarray(cells.reshape(self.J, L).sum(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class PersonalFit:
    """Shared parameters, the groups' private ones (one process holds all here), rounds, value, largest slope."""

    model: Personal
    x: F64
    private: list[F64]
    rounds: int
    value: float
    slope: float

    def mean(self, groups: Sequence[PersonalVisits]) -> list[F64]:
        """Expected counts of the groups' visits."""
        return [self.model.mean(self.x, v, p) for v, p in zip(groups, self.private, strict=True)]

    def totals(self) -> F64:
        """(L,) monthly totals; the mixture's at the observers' mean weights."""
        weights = np.concatenate(self.private).mean(axis=0) if self.model.kind == "mixture" else None
        return self.model.totals(self.x, weights)


def fit_personal(
    model: Personal,
    groups: Sequence[PersonalVisits],
    *,
    rounds: int = 300,
    start: F64 | None = None,
    seed: int = 0,
) -> PersonalFit:
    """Fit by quasi-Newton (L-BFGS) steps at the server on sums of the groups' values and gradients.

    Source: none for the exchange, derived at the head of this module; the mixture's is at :class:`Personal`.

    Parameters
    ----------
    rounds : most steps; each takes one or two exchanges of 1 + q numbers a group
    start : (5 shared parts,) mu, a, season, year, d of another fit, to start at
    """
    if not groups or sum(len(v.y) for v in groups) == 0:
        raise ConfigError("no group has a visit: there is nothing to fit.")
    birds, visits = sum(float(v.y.sum()) for v in groups), sum(len(v.y) for v in groups)
    x, ridge = model.start(birds / visits, seed), model.ridge()
    if start is not None:
        x[: model.cuts[4]] = start[: model.cuts[4]]
    private = [model.private_start(v) for v in groups]

    def total(at: F64) -> tuple[float, F64]:
        value, gradient = 0.5 * float((ridge * at * at).sum()), ridge * at
        for i, v in enumerate(groups):
            one, slope, private[i] = model.answer(at, v, private[i])
            value, gradient = value + one, gradient + slope
        return value, gradient

    found = minimize(
        total,
        x,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": rounds, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-3},
    )
    value, gradient = total(found.x)
    return PersonalFit(model, found.x, private, int(found.nit), value, float(np.abs(gradient).max()))


def size_of(groups: Sequence[PersonalVisits], means: Sequence[F64]) -> float:
    """Size of the negative binomial by moments: sum mu^2 / sum ((y - mu)^2 - mu), weighted by 1/(1 + mu)^2; at most 1e3."""
    y, mu = np.concatenate([v.y for v in groups]), np.concatenate(list(means))
    weight = (1.0 + mu) ** -2.0
    excess = float((weight * ((y - mu) ** 2 - mu)).sum())
    return float(np.clip((weight * mu**2).sum() / max(excess, 1e-9), 0.05, 1e3))
