"""Model C of FL-SAEM, the users' model: counts of visits with site factors, observer effects and overdispersion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, DomainError
from fedmiss.models.saem.chains import Kernel, State
from fedmiss.models.saem.months import gauss_hermite, poisson_normal
from fedmiss.rng import rng_for


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """The visits of one group, sorted by site; a row is a visit.

    Parameters
    ----------
    site, month, observer : (m,) int64, 0-based; sites and observers are the group's own
    y : (m,) counts        log_e : (m,) log effort        x : (m, d) other covariates
    starts : (J,) first visit of each site
    """

    site: I64
    month: I64
    observer: I64
    y: F64
    log_e: F64
    x: F64
    starts: I64

    def __len__(self) -> int:
        return len(self.y)

    @staticmethod
    def of(
        site: npt.ArrayLike,
        month: npt.ArrayLike,
        y: npt.ArrayLike,
        observer: npt.ArrayLike | None = None,
        log_e: npt.ArrayLike | None = None,
        x: npt.ArrayLike | None = None,
    ) -> Visits:
        """Sort by site and number the sites and observers that occur."""
        site, month, y = np.asarray(site), np.asarray(month, dtype=np.int64), np.asarray(y, dtype=np.float64)
        n_visits = len(y)
        if n_visits == 0 or len(site) != n_visits or len(month) != n_visits:
            raise ConfigError(
                f"visits have {len(site)} sites, {len(month)} months, {n_visits} counts; give as many, at least 1."
            )
        if not (np.isfinite(y).all() and (y >= 0).all()):
            raise ConfigError("a count of a visit is negative or not a number.")
        order = np.argsort(site, kind="stable")
        code = np.unique(site[order], return_inverse=True)[1].astype(np.int64)
        who = np.zeros(n_visits) if observer is None else np.asarray(observer)
        observers = np.unique(who[order], return_inverse=True)[1].astype(np.int64)
        effort = np.zeros(n_visits) if log_e is None else np.asarray(log_e, dtype=np.float64)
        other = (
            np.zeros((n_visits, 0)) if x is None else np.asarray(x, dtype=np.float64).reshape(n_visits, -1)
        )
        starts = np.flatnonzero(np.diff(code, prepend=-1)).astype(np.int64)
        return Visits(code, month[order], observers, y[order], effort[order], other[order], starts)


@dataclass(frozen=True, slots=True, eq=False)
class CountsTheta:
    """beta (L,), w (L, r), kappa (d,), s2 overdispersion and tau2_o observer variance (log scale)."""

    beta: F64
    w: F64
    kappa: F64
    s2: float
    tau2_o: float


class Counts:
    """y_v ~ Poisson(e_v exp z_v), z_v = x_v'kappa + beta_l + w_l'u_j + o_i + eps_v.

    eps ~ N(0, s2), u_j ~ N(0, I_r), o_i ~ N(0, tau2_o). Latents (z, u, o): given z the rest is linear-Gaussian and drawn
    exactly (Gibbs: u, then o), z moves by Langevin. Observer effects and site factors never leave the group; a site that
    several groups visit has a factor in each, which is another model than one shared factor.

    Statistic, a mean over visits, with d = (1, x, u): per month sum d d' (lower triangle) and sum d (z - o), then
    sum (z - o)^2, sum o^2 and the number of observers: q = L (D (D + 1)/2 + D) + 3, D = 1 + d + r.

    Source: Karimi's weekly report for the method, which names no model; Kuhn and Lavielle (2005) for the scheme. Differs
    from the report in the latents given z, which are drawn exactly instead of by Langevin.

    Parameters
    ----------
    L : months        r : site factors        d : covariates x        observers : whether there are effects o_i
    level : whether the first factor has one loading for all months: a site level, the count model's a_j
    """

    def __init__(
        self, L: int, *, r: int = 1, d: int = 0, observers: bool = False, level: bool = False
    ) -> None:
        if L < 1 or not 0 <= r <= L or d < 0:
            raise ConfigError(f"L={L}, r={r}, d={d}: give L >= 1, d >= 0, and 0 <= r <= L, the panel's rank.")
        if level and r < 1:
            raise ConfigError("level=True with r=0: the level is the first of r factors, so give r >= 1.")
        self.L, self.r, self.d, self.observers, self.level = L, r, d, observers, int(level)
        self.D = 1 + d + r
        self._low = np.tril_indices(self.D)
        self._tri = len(self._low[0])
        self.q = L * (self._tri + self.D) + 3
        # Columns of d = (1, x, u) with a coefficient of each month, and those (x, and a level) with one for all months.
        self._own = np.r_[0, 1 + d + self.level : self.D]
        self._common = np.arange(1, 1 + d + self.level)

    # ---- the statistic ----------------------------------------------------------------------------------------

    def _parts(self, S: F64) -> tuple[F64, F64, F64]:
        """G (..., L, D, D), h (..., L, D) and the last three numbers."""
        # The statistic holds lower triangles only: sum d d' is symmetric, and what is sent is half as long.
        cut, head = self.L * self._tri, S.shape[:-1]
        G = np.empty((*head, self.L, self.D, self.D))
        low = S[..., :cut].reshape(*head, self.L, self._tri)
        i, j = self._low
        G[..., i, j] = low
        G[..., j, i] = low
        return G, S[..., cut : cut + self.L * self.D].reshape(*head, self.L, self.D), S[..., -3:]

    def _join(self, G: F64, h: F64, last: F64) -> F64:
        head = G.shape[:-3]
        low = G[..., self._low[0], self._low[1]].reshape(*head, self.L * self._tri)
        return np.concatenate([low, h.reshape(*head, self.L * self.D), last], axis=-1)

    def _sums(self, rows: Visits, u: F64, z: F64, o: F64, key: I64, size: int) -> F64:
        """(size, q) totals by ``key`` (which unit each of the visits belongs to) of one chain; o (m,) by visit."""
        design = np.concatenate([np.ones((len(rows), 1)), rows.x, u], axis=1)
        # Observer effects are taken out of z before the regression on d: given o they are known.
        e = z - o
        cell = key * self.L + rows.month

        def total(weights: F64) -> F64:
            return np.asarray(
                np.bincount(cell, weights, size * self.L).reshape(size, self.L), dtype=np.float64
            )

        low = np.stack([total(design[:, i] * design[:, j]) for i, j in zip(*self._low, strict=True)], axis=-1)
        h = np.stack([total(design[:, i] * e) for i in range(self.D)], axis=-1)
        square = np.bincount(key, e * e, size)[:, None]
        return np.concatenate(
            [low.reshape(size, -1), h.reshape(size, -1), square, np.zeros((size, 2))], axis=1
        )

    def statistic(self, rows: Visits, state: State) -> F64:
        """(q,) mean over chains and visits."""
        M, m = state["z"].shape
        key, total = np.zeros(m, dtype=np.int64), np.zeros(self.q)
        for chain in range(M):
            u, o = self._spread(rows, state, chain)
            total += self._sums(rows, u, state["z"][chain], o, key, 1)[0]
            if self.observers:
                # sum o^2 and the number of observers: tau2_o is their quotient, whatever the number of visits.
                total[-2] += float(state["o"][chain] @ state["o"][chain])
                total[-1] += state["o"].shape[1]
        mean: F64 = total / (M * m)
        return mean

    def unit_totals(self, rows: Visits, state: State) -> F64:
        """(M, units, q) totals of what is independent given theta: sites, or the whole group where observers link them."""
        M, m = state["z"].shape
        if self.observers:
            one = [{name: value[chain : chain + 1] for name, value in state.items()} for chain in range(M)]
            return np.array([[self.statistic(rows, part) * m] for part in one])
        size = len(rows.starts)
        out = []
        for chain in range(M):
            u, o = self._spread(rows, state, chain)
            out.append(self._sums(rows, u, state["z"][chain], o, rows.site, size))
        return np.array(out)

    def _spread(self, rows: Visits, state: State, chain: int) -> tuple[F64, F64]:
        """Factors and observer effects of a chain, by visit."""
        u = state["u"][chain].reshape(-1, self.r)[rows.site] if self.r else np.zeros((len(rows), 0))
        return u, state["o"][chain][rows.observer] if self.observers else np.zeros(len(rows))

    # ---- M-step -----------------------------------------------------------------------------------------------

    def T(self, S: F64, /) -> CountsTheta:
        """Least squares with beta_l, w_l per month, one kappa and level (Schur complement); variances are mean squares."""
        G, h, (zz, oo, n_o) = self._parts(S)
        seen = G[:, 0, 0]
        if not bool((seen > 0).all()):
            month = int(np.argmin(seen))
            raise DomainError(
                f"month {month + 1} of {self.L} has {seen[month]:.3g} visits (must be > 0); leave it out."
            )
        A = G[:, self._own[:, None], self._own]  # normal equations G_l a_l = h_l of each month
        smallest = np.linalg.eigvalsh(A)[:, 0]
        if not bool((smallest > 1e-12 * seen).all()):
            month = int(np.argmin(smallest / seen))
            raise DomainError(
                f"the normal equations of month {month + 1} of {self.L} have eigenvalue {smallest[month]:.3g} (must be > 0)."
            )
        B, C = G[:, self._own[:, None], self._common], G[:, self._common[:, None], self._common]
        # M-step of (beta_l, w_l, kappa): months are eliminated from
        # the normal equations, their Schur complement gives kappa.
        AB, Ah = np.linalg.solve(A, B), np.linalg.solve(A, h[:, self._own, None])[:, :, 0]
        kappa = np.zeros(0)
        if len(self._common):
            # kappa = [sum_l (C_l - B_l' A_l^-1 B_l)]^-1 sum_l (h_l - B_l' A_l^-1 h_l)
            schur = (C - np.swapaxes(B, 1, 2) @ AB).sum(axis=0)
            right = h[:, self._common].sum(axis=0) - np.einsum("lab,la->b", B, Ah)
            kappa = np.linalg.solve(schur, right)
        own = Ah - AB @ kappa
        a = np.empty((self.L, self.D))
        a[:, self._own], a[:, self._common] = own, kappa
        rest = zz - 2 * (a * h).sum() + np.einsum("la,lab,lb->", a, G, a)  # E sum (z - o - a_l'd)^2
        # G[0, 0] of a month is its number of visits (per visit of the worker): s2 is a mean square of eps.
        s2 = float(rest / seen.sum())
        if not s2 > 0:
            raise DomainError(f"the overdispersion s2 is {s2:.3g} (must be > 0).")
        tau2_o = 0.0
        if self.observers:
            tau2_o = float(oo / n_o) if n_o > 0 else -1.0
            if not tau2_o > 0:
                raise DomainError(f"the observer variance is {tau2_o:.3g} (must be > 0).")
        return CountsTheta(own[:, 0].copy(), a[:, 1 + self.d :].copy(), kappa[: self.d], s2, tau2_o)

    def _slopes(self, theta: CountsTheta) -> F64:
        """a_l = (beta_l, kappa, w_l), (L, D)."""
        return np.concatenate([theta.beta[:, None], np.tile(theta.kappa, (self.L, 1)), theta.w], axis=1)

    def to_wire(self, theta: CountsTheta, D: F64) -> F64:
        """Moments of e = z - o - a_l'd instead of z - o, scaled by sd(eps): triangular in the statistic."""
        G, h, last = self._parts(D)
        a, sd = self._slopes(theta), np.sqrt(theta.s2)
        e = h - np.einsum("...lab,lb->...la", G, a)
        # sum e^2 = sum (z - o)^2 - 2 a'h + a'G a: moments about the current fit are small numbers, which compress well.
        square = last[..., 0] - 2 * np.einsum("...la,la->...", h, a) + np.einsum("...lab,la,lb->...", G, a, a)
        return self._join(G, e / sd, self._scaled(last, square, theta, 1.0))

    def from_wire(self, theta: CountsTheta, Q: F64) -> F64:
        """Return the increments of the statistic."""
        G, e, last = self._parts(Q)
        a, sd = self._slopes(theta), np.sqrt(theta.s2)
        h = e * sd + np.einsum("...lab,lb->...la", G, a)
        square = last[..., 0] * np.sqrt(2) * theta.s2
        square = square + 2 * np.einsum("...la,la->...", h, a) - np.einsum("...lab,la,lb->...", G, a, a)
        return self._join(G, h, self._scaled(last, square, theta, -1.0))

    def _scaled(self, last: F64, square: F64, theta: CountsTheta, sign: float) -> F64:
        out = np.stack([square, last[..., 1], last[..., 2]], axis=-1)
        if sign > 0:
            out[..., 0] /= np.sqrt(2) * theta.s2
        if self.observers:
            out[..., 1] *= (np.sqrt(2) * theta.tau2_o) ** -sign
        return out

    # ---- chains -----------------------------------------------------------------------------------------------

    def latent_start(self, rows: Visits, M: int) -> State:
        """Z = log((y + 1/2)/e); u alternates in sign by site, so that the first M-step can see a factor."""
        z = np.log(rows.y + 0.5) - rows.log_e
        state = {"z": np.repeat(z[None], M, axis=0)}
        if self.r:
            by_site = np.bincount(rows.site, z) / np.bincount(rows.site)
            spread = by_site - by_site.mean()
            u = np.zeros((len(rows.starts), self.r))
            # With u = 0 the normal equations of the first M-step would be singular: start at the sites' levels.
            u[:, 0] = spread / max(float(spread.std()), 1e-6)
            for factor in range(1, self.r):
                u[:, factor] = np.where((np.arange(len(u)) >> (factor - 1)) % 2, 1.0, -1.0)
            state["u"] = np.repeat(u.reshape(1, -1), M, axis=0)
        if self.observers:
            mean = np.bincount(rows.observer, z) / np.bincount(rows.observer)
            state["o"] = np.repeat((0.5 * (mean - z.mean()))[None], M, axis=0)
        return state

    def move(
        self, theta: CountsTheta, rows: Visits, state: State, kernel: Kernel, rng: np.random.Generator
    ) -> tuple[State, float]:
        """U and o given z, exactly; then a Langevin step of z, by site."""
        z, M = state["z"], len(state["z"])
        new: dict[str, np.ndarray] = {}
        # Gibbs: u given (z, o), then o given (z, u), both exact normals; z last, so that it sees the new ones.
        w, off = theta.w[rows.month], theta.beta[rows.month] + rows.x @ theta.kappa
        o = state["o"][:, rows.observer] if self.observers else np.zeros((1, len(rows)))
        wu = np.zeros((1, len(rows)))
        if self.r:
            J = len(rows.starts)
            # Posterior precision of u_j: I + sum_v w w' / s2; right side sum_v w (z - x'kappa - beta - o) / s2.
            A = (
                np.eye(self.r)
                + np.add.reduceat(w[:, :, None] * w[:, None, :], rows.starts, axis=0) / theta.s2
            )
            right = np.add.reduceat((z - off - o)[:, :, None] * w, rows.starts, axis=1) / theta.s2
            root = np.linalg.cholesky(A)
            noise = rng.standard_normal((M, J, self.r))
            # mean A^{-1} right, covariance A^{-1} = R^{-T} R^{-1}
            half = np.linalg.solve(root, right[..., None]) + noise[..., None]
            u = np.linalg.solve(np.swapaxes(root, 1, 2), half)[..., 0]
            new["u"] = u.reshape(M, -1)
            wu = (u[:, rows.site] * w).sum(axis=-1)
        if self.observers:
            many = int(rows.observer.max()) + 1
            # Posterior of o_i: precision 1/tau2_o + n_i / s2, around the mean residual of the observer's visits.
            precision = 1.0 / theta.tau2_o + np.bincount(rows.observer, minlength=many) / theta.s2
            rest = z - off - wu
            sums = np.array([np.bincount(rows.observer, part, many) for part in rest]) / theta.s2
            new["o"] = sums / precision + rng.standard_normal(sums.shape) / np.sqrt(precision)
            o = new["o"][:, rows.observer]
        mu, e = off + wu + o, np.exp(rows.log_e)

        def target(at: F64) -> tuple[F64, F64]:
            with np.errstate(over="ignore"):
                rate = e * np.exp(at)
            # log p = y z - e exp(z) - (z - mu)^2 / (2 s2) and its derivative.
            b = (at - mu) / theta.s2
            return rows.y * at - rate - 0.5 * (at - mu) * b, rows.y - rate - b

        # P: the curvature of a Poisson latent is 1/s2 + e exp(z), and e exp(z) is about y + 1/2.
        new["z"], share = kernel.move(rng, z, 1.0 / (1.0 / theta.s2 + rows.y + 0.5), target, rows.starts)
        return new, share

    # ---- exact answers for one factor and no observers ----------------------------------------------------------

    def _quadrature(self, theta: CountsTheta, rows: Visits) -> tuple[F64, F64, F64, F64, F64]:
        """Nodes (g,), site weights (J, g), log p(y_j) (J,), E[z | u] and E[z^2 | u] (m, g)."""
        if self.r != 1 or self.observers:
            raise ConfigError(
                f"the E-step with r={self.r} factors and observers={self.observers} has no quadrature (only r=1 without "
                "observers); use Chains, and first_statistics for the first memories."
            )
        u, log_w = gauss_hermite(41)
        mu = (theta.beta[rows.month] + rows.x @ theta.kappa)[:, None] + theta.w[rows.month] * u
        log_p, z, z2 = poisson_normal(
            rows.y[:, None], rows.log_e[:, None], mu, np.full_like(mu, theta.s2), nodes=20
        )
        # Given u the visits of a site are independent: their log probabilities add, and u is summed over its nodes.
        site = np.add.reduceat(log_p, rows.starts, axis=0) + log_w
        top = site.max(axis=1, keepdims=True)
        weight = np.exp(site - top)
        total = weight.sum(axis=1, keepdims=True)
        return u, weight / total, (top + np.log(total))[:, 0], z, z2

    def s_bar(self, theta: CountsTheta, rows: Visits) -> F64:
        """E-step by nested quadrature: a grid in u, adaptive Hermite nodes in z. ConfigError for other r or observers."""
        u, weight, _, z, z2 = self._quadrature(theta, rows)
        p = weight[rows.site]
        one, m = np.ones(len(rows)), len(rows)
        mean = {
            "1": one, "u": p @ u, "uu": p @ (u * u), "z": (p * z).sum(axis=1), "zu": (p * z) @ u, "zz": (p * z2).sum(axis=1),
        }  # fmt: skip
        G, h = np.zeros((self.L, self.D, self.D)), np.zeros((self.L, self.D))
        base = [one, *rows.x.T]
        for i, left in enumerate(base):
            for j, right in enumerate(base):
                G[:, i, j] = np.bincount(rows.month, left * right, self.L)
            G[:, i, -1] = G[:, -1, i] = np.bincount(rows.month, left * mean["u"], self.L)
            h[:, i] = np.bincount(rows.month, left * mean["z"], self.L)
        # Last row and column of D: the one factor, whose moments are posterior means over its nodes.
        G[:, -1, -1] = np.bincount(rows.month, mean["uu"], self.L)
        h[:, -1] = np.bincount(rows.month, mean["zu"], self.L)
        return self._join(G, h, np.array([mean["zz"].sum(), 0.0, 0.0])) / m

    def log_likelihood(self, theta: CountsTheta, rows: Visits) -> float:
        """Sum over sites of log p(y_j; theta), by quadrature, divided by the number of visits as s_bar is."""
        return float(self._quadrature(theta, rows)[2].sum() / len(rows))

    # ---- Louis --------------------------------------------------------------------------------------------------

    def vector(self, theta: CountsTheta) -> F64:
        """beta, w (its free columns), kappa, the level's loading where there is one, s2 and, with observers, tau2_o."""
        last = [theta.s2, theta.tau2_o] if self.observers else [theta.s2]
        level, free = theta.w[0, : self.level], theta.w[:, self.level :].ravel()
        return np.concatenate([theta.beta, free, theta.kappa, level, last])

    def complete(self, vector: F64, S: F64) -> float:
        """Mean over visits of the complete log-likelihood at a statistic, without what theta does not touch."""
        G, h, (zz, oo, n_o) = self._parts(S)
        free = self.L * (self.r - self.level)
        beta, w, common, last = np.split(vector, np.cumsum([self.L, free, self.d + self.level]))
        a = np.empty((self.L, self.D))
        a[:, self._own] = np.column_stack([beta, w.reshape(self.L, -1)])
        a[:, self._common] = common
        rest = zz - 2 * (a * h).sum() + np.einsum("la,lab,lb->", a, G, a)
        out = -0.5 * (G[:, 0, 0].sum() * np.log(last[0]) + rest / last[0])
        if self.observers:
            out -= 0.5 * (n_o * np.log(last[1]) + oo / last[1])
        return float(out)


class ShiftedCounts(Counts):
    """:class:`Counts` whose chains also shift sites, by random-walk Metropolis at the scale of each site's information.

    Where the overdispersion is small, u given z hardly moves and z given u hardly moves: the chain of :class:`Counts`
    creeps. Shifting u by delta and z by w'delta keeps eps, so only the counts and the prior of u speak (the non-centred
    coordinates).

    Source: interweaving of centred and non-centred coordinates, Yu and Meng (2011); not in the weekly report. The
    posterior, and so the fit, is that of :class:`Counts`; only the chain's speed differs.
    """

    def move(
        self, theta: CountsTheta, rows: Visits, state: State, kernel: Kernel, rng: np.random.Generator
    ) -> tuple[State, float]:
        """U and o given z, a Langevin step of z, then the shift of (u, z) by site; the share is the Langevin step's."""
        new, share = super().move(theta, rows, state, kernel, rng)
        if not self.r:
            return new, share
        z, J = new["z"], len(rows.starts)
        M, w = len(z), theta.w[rows.month]
        u = np.asarray(new["u"]).reshape(M, J, self.r)
        # Information of the site about u through its counts, y + 1/2
        # for e exp(z): the scale of the random walk (times 2 / sqrt r).
        weight = (rows.y + 0.5)[:, None, None] * w[:, :, None] * w[:, None, :]
        root = np.linalg.cholesky(np.eye(self.r) + np.add.reduceat(weight, rows.starts, axis=0))
        noise = rng.standard_normal((M, J, self.r, 1)) * (2.0 / np.sqrt(self.r))
        delta = np.linalg.solve(np.swapaxes(root, 1, 2), noise)[..., 0]
        step: F64 = (delta[:, rows.site] * w).sum(axis=-1)
        with np.errstate(over="ignore"):
            # Log ratio of the counts' law at z + w'delta and z; expm1 because
            # small shifts would vanish in a difference of exponentials.
            gain = rows.y * step - np.exp(rows.log_e + z) * np.expm1(step)
        # The prior N(0, I) of u adds -(|u + delta|^2 - |u|^2) / 2 = -delta'(u + delta / 2).
        ratio = np.add.reduceat(gain, rows.starts, axis=1) - (delta * (u + 0.5 * delta)).sum(axis=-1)
        accept = np.log(rng.random((M, J))) < ratio
        moved = np.where(accept[:, :, None], u + delta, u)
        return {**new, "z": np.where(accept[:, rows.site], z + step, z), "u": moved.reshape(M, -1)}, share


def simulate_counts(
    n: int = 6, sites: int = 20, L: int = 12, *, seen: float = 0.4, observers: int = 0, seed: int = 0
) -> list[Visits]:
    """Visits of n groups: level 1, season of amplitude 0.8, one factor of loadings around 0.6, overdispersion 0.3^2.

    With ``observers`` in each group, effects of variance 0.3^2.
    """
    rng = rng_for(seed, "counts")
    month = np.arange(L)
    beta, w = 1.0 + 0.8 * np.sin(2 * np.pi * month / L), 0.6 + 0.3 * np.cos(2 * np.pi * month / L)
    out = []
    for _ in range(n):
        u, o = rng.standard_normal(sites), 0.3 * rng.standard_normal(max(observers, 1))
        j, l = np.nonzero(rng.random((sites, L)) < seen)
        who = rng.integers(0, max(observers, 1), len(j))
        z = beta[l] + w[l] * u[j] + 0.3 * rng.standard_normal(len(j)) + (o[who] if observers else 0.0)
        out.append(Visits.of(j, l, rng.poisson(np.exp(z)), who))
    return out
