"""Gaussian mixtures with a known, common, full or diagonal covariance, as curved exponential families.

For every kind of covariance the log-weights are linear in features F(y) (y; y and y^2; y and y y'), and the statistic
is r (x) (1, F(y)). The E-step's kernels have one inner function, so that one worker and many give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, DomainError, InputError
from fedmiss.loops import compiled, part, spread_out
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked

Covariance = Literal["known", "tied", "full", "diag"]
LINEAR, SQUARES, PRODUCTS = 0, 1, 2  # F(y): y; y and squares; y and products
_FEATURES = {"known": LINEAR, "tied": LINEAR, "diag": SQUARES, "full": PRODUCTS}


@part
def _features(y: F64, kind: int, F: F64) -> None:
    d = y.size
    for i in range(d):
        F[i] = y[i]
    if kind == SQUARES:
        for i in range(d):
            F[d + i] = y[i] * y[i]
    elif kind == PRODUCTS:
        at = d
        for i in range(d):
            for j in range(i + 1):
                F[at] = y[i] * y[j]
                at += 1


@part
def _weights(const: F64, A: F64, F: F64, r: F64) -> float:
    """Fill r_g; return log sum_g exp(const_g + F . A_g)."""
    G = const.size
    for g in range(G):
        r[g] = const[g]
    for i in range(F.size):
        v = F[i]
        for g in range(G):
            r[g] += v * A[i, g]
    # E-step, the posterior probabilities of the paper's equation (58).
    top = r[0]  # r_g = exp(l_g - max l) / sum: the posterior weights of the components, without overflow
    for g in range(1, G):
        top = max(top, r[g])
    total = 0.0
    for g in range(G):
        r[g] = np.exp(r[g] - top)
        total += r[g]
    scale = 1.0 / total
    for g in range(G):
        r[g] *= scale
    return float(top + np.log(total))


@part
def _worker(const: F64, A: F64, kind: int, rows: F64, index: I64, out: F64) -> None:
    """Mean statistic of the rows ``index`` of one worker (all rows when it is empty)."""
    G, f = const.size, A.shape[0]
    F, r = np.empty(f), np.empty(G)
    out[:] = 0.0
    count = index.size if index.size else rows.shape[0]
    for j in range(count):
        y = rows[index[j]] if index.size else rows[j]
        _features(y, kind, F)
        _weights(const, A, F, r)
        for g in range(G):  # s = (r_g, r_g F(y))
            out[g] += r[g]
            v, at = r[g], G + g * f
            for i in range(f):
                out[at + i] += v * F[i]
    for i in range(out.size):
        out[i] /= count


@compiled
def many(
    first: int, last: int, const: F64, A: F64, which: I64, kind: int, data: F64, slots: I64, index: I64,
    out: F64,
) -> None:  # fmt: skip
    """Mean statistics of workers ``first`` to ``last`` of a stacked array (n, m, d).

    ``index`` is (a, b), or (a, 0) for all rows.
    """
    for i in range(first, last):
        _worker(const[which[i]], A[which[i]], kind, data[slots[i]], index[i], out[i])


@compiled
def weights(const: F64, A: F64, kind: int, rows: F64, r: F64) -> float:
    """Fill the responsibilities (m, G) of each row; return the mean log-density, up to its constant."""
    F, total = np.empty(A.shape[0]), 0.0
    for j in range(rows.shape[0]):
        _features(rows[j], kind, F)
        total += _weights(const, A, F, r[j])
    return float(total / rows.shape[0])


@dataclass(frozen=True, eq=False)
class GMMParams:
    """theta of a mixture of G Gaussians in R^d.

    Parameters
    ----------
    pi : (G,) weights, sum 1
    mu : (G, d) means
    Sigma : (d, d) common covariance ("known", "tied"), (G, d, d) ("full") or (G, d) variances ("diag")
    covariance : which of them
    """

    pi: F64
    mu: F64
    Sigma: F64
    covariance: Covariance = "known"

    @cached_property
    def natural(self) -> tuple[F64, F64]:
        """(const (G,), A (f, G)): log[pi_g N(y; g)] = const_g + F(y) . A_g + what does not depend on g."""
        d = self.mu.shape[1]
        const: F64 = np.log(np.maximum(self.pi, 1e-300))
        # phi of the paper's equation (59): const_g = log pi_g - mu_g' Sigma^-1 mu_g / 2 and A_g = Sigma^-1 mu_g;
        # -y'Sigma^-1 y / 2 is common to all g.
        if self.covariance in ("known", "tied"):
            A = np.asarray(np.linalg.solve(self.Sigma, self.mu.T), dtype=np.float64)
            return const - 0.5 * (self.mu * A.T).sum(axis=1), np.ascontiguousarray(A)
        if self.covariance == "diag":
            # log N = sum_i [y_i mu_gi / var_gi - y_i^2 / (2 var_gi)] + const: coefficients of y and of its squares.
            D = 1.0 / self.Sigma
            const -= 0.5 * (D * self.mu**2 + np.log(self.Sigma)).sum(axis=1)
            return const, np.ascontiguousarray(np.hstack([D * self.mu, -0.5 * D]).T)
        # -y'P y / 2 over the pairs i >= j: off the diagonal P_ij stands for two terms, hence -1 and not -1/2.
        P = np.asarray(np.linalg.inv(self.Sigma), dtype=np.float64)
        Pm = np.einsum("gij,gj->gi", P, self.mu)
        const -= 0.5 * ((self.mu * Pm).sum(axis=1) + np.linalg.slogdet(self.Sigma)[1])
        i, j = np.tril_indices(d)
        return const, np.ascontiguousarray(np.hstack([Pm, np.where(i == j, -0.5, -1.0) * P[:, i, j]]).T)


@kinds_checked
@dataclass(frozen=True, eq=False)
class GMM:
    """Mixture of G Gaussians in R^d; statistic s = (r_g, r_g F(y)) for g = 1..G, with r_g the responsibilities.

    F(y) = y for a common covariance, (y, y_i^2) for diagonal and (y, y_i y_j for i >= j) for full ones; q = G (1 + f).
    T: pi_g = s1_g / sum s1, mu_g = s2_g / s1_g, and Sigma_g from the second moments in the statistic ("full",
    "diag") or Sigma = (1/N) sum y y' - sum_g s1_g mu_g mu_g' ("tied").

    Source: Dieuleveut et al. (2021), section 4 and algorithms 5, 6 (known and tied). Differs in nothing there; full and
    diagonal covariances are added. For these the log-weights are evaluated in expanded form: centre data whose
    means are more than about 1e5 standard deviations from 0.

    Parameters
    ----------
    G, d : number of components and of coordinates
    covariance : "known", "tied", "full" or "diag"
    Sigma : (d, d) the covariance, for "known"
    YY : (d, d) (1/N) sum y y', for "tied": collected once at the start, as a (weighted) mean of the workers'
        :func:`second_moment`

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> fedmiss.models.GMM(G=3, d=2, covariance="known", Sigma=np.eye(2)).q  # numbers in the statistic
    9
    """

    G: int
    d: int
    covariance: Covariance = "known"
    Sigma: F64 | None = None
    YY: F64 | None = None

    def __post_init__(self) -> None:
        if self.covariance not in _FEATURES:
            raise ConfigError(f"covariance={self.covariance!r} is unknown; use known, tied, full or diag.")
        for name, kind in (("Sigma", "known"), ("YY", "tied")):
            value = getattr(self, name)
            if self.covariance == kind and (value is None or value.shape != (self.d, self.d)):
                shape = None if value is None else value.shape
                raise ConfigError(
                    f"covariance={kind!r} needs {name} of shape ({self.d}, {self.d}); got {shape}."
                )

    @property
    def f(self) -> int:
        """Number of features F(y)."""
        d = self.d
        return d + {"known": 0, "tied": 0, "diag": d, "full": d * (d + 1) // 2}[self.covariance]

    @property
    def q(self) -> int:
        """G (1 + f) numbers in the statistic."""
        return self.G * (1 + self.f)

    def s_bar(self, theta: GMMParams, rows: F64) -> F64:
        """(q,) mean over ``rows`` (m, d) of the expected complete-data statistic."""
        out: F64 = self.s_bar_many(theta, rows[None], np.zeros(1, dtype=np.int64), None)[0]
        return out

    def s_bar_many(self, theta: GMMParams, data: Sequence[F64] | F64, slots: I64, index: I64 | None) -> F64:
        """(a, q) statistics of several workers; ``data`` (n, m, d) or one (m_c, d) array per worker."""
        return self.s_bar_mixed([theta], np.zeros(len(slots), dtype=np.int64), data, slots, index)

    def s_bar_mixed(
        self, thetas: list[GMMParams], which: I64, data: Sequence[F64] | F64, slots: I64, index: I64 | None
    ) -> F64:
        """(a, q) statistics, the i-th worker's at ``thetas[which[i]]``."""
        const, A = self._natural(thetas)
        kind, n_slots = _FEATURES[self.covariance], len(slots)
        out = np.empty((n_slots, self.q))
        if index is None:
            index = np.empty((n_slots, 0), dtype=np.int64)
        # Workers of different sizes cannot be stacked: the same kernel, worker by worker, gives the same bits.
        if not isinstance(data, np.ndarray):
            one = np.zeros(1, dtype=np.int64)
            for i, slot in enumerate(slots):
                at, rows = slice(i, i + 1), self._rows(data[slot])[None]
                many(0, 1, const, A, which[at], kind, rows, one, index[at], out[at])
            return out
        work = n_slots * (index.shape[1] or data.shape[1]) * self.f * self.G
        spread_out(many, n_slots, work // 100, const, A, which, kind, self._rows(data), slots, index, out)
        return out

    # Compiled loops look at no length: they would read and write beside these arrays.
    def _rows(self, rows: npt.ArrayLike) -> F64:
        out = np.ascontiguousarray(rows, dtype=np.float64)
        if out.shape[-1:] != (self.d,):
            raise InputError(
                f"the rows have the shape {out.shape}, the mixture d={self.d} coordinates. Give all workers the "
                "same columns."
            )
        return out

    def _natural(self, thetas: Sequence[GMMParams]) -> tuple[F64, F64]:
        const, A = (np.array([theta.natural[i] for theta in thetas]) for i in (0, 1))
        if A.shape[1:] != (self.f, self.G):
            raise ConfigError(
                f"theta has covariance={thetas[0].covariance!r}, mu {thetas[0].mu.shape} and Sigma {thetas[0].Sigma.shape}; "
                f"this mixture has covariance={self.covariance!r}, G={self.G} and d={self.d}. Write "
                f"GMMParams(pi, mu, Sigma, {self.covariance!r})."
            )
        return const, A

    def _parts(self, S: F64) -> tuple[F64, F64]:
        return S[: self.G], S[self.G :].reshape(self.G, self.f)

    def T(self, S: F64, /) -> GMMParams:
        """M-step in closed form."""
        # M-step, equations (60) to (62) of the paper. s1 need not sum
        # to 1: FedEM moves S along a field, and (60) normalises pi.
        s1, s2 = self._parts(S)
        if not bool((s1 > 0).all()):
            empty = int(np.argmin(s1))
            raise DomainError(f"component {empty + 1} of {self.G} has mass {s1[empty]:.3g} (must be > 0).")
        pi, moments = s1 / s1.sum(), s2 / s1[:, None]
        mu = np.ascontiguousarray(moments[:, : self.d])
        if self.covariance == "known":
            assert self.Sigma is not None
            return GMMParams(pi, mu, self.Sigma, "known")
        if self.covariance == "tied":
            assert self.YY is not None
            # Equation (62): (1/N) sum y y' - sum_g s1_g mu_g mu_g', with s1 as it is and not pi.
            Sigma = self.YY - (s1[:, None] * mu).T @ mu
            # Rounding of the two products breaks the symmetry in the last bits, and Cholesky reads one triangle only.
            Sigma = 0.5 * (Sigma + Sigma.T)
            self._check_definite(Sigma[None])
            return GMMParams(pi, mu, Sigma, "tied")
        if self.covariance == "diag":
            var = moments[:, self.d :] - mu**2  # E[y_i^2 | g] - mu_gi^2
            if not bool((var > 0).all()):
                raise self._not_definite(var.min(axis=1))
            return GMMParams(pi, mu, var, "diag")
        i, j = np.tril_indices(self.d)
        Sigma = np.empty((self.G, self.d, self.d))
        # E[y_i y_j | g] - mu_gi mu_gj
        Sigma[:, i, j] = moments[:, self.d :] - mu[:, i] * mu[:, j]
        Sigma[:, j, i] = Sigma[:, i, j]
        self._check_definite(Sigma)
        return GMMParams(pi, mu, Sigma, "full")

    def _check_definite(self, Sigma: F64) -> None:
        try:
            np.linalg.cholesky(Sigma)
        except np.linalg.LinAlgError:
            raise self._not_definite(np.linalg.eigvalsh(Sigma)[:, 0]) from None

    def _not_definite(self, smallest: np.ndarray) -> DomainError:
        """Name the component with the least of the smallest eigenvalues (G,)."""
        worst = int(np.argmin(smallest))
        tied = self.covariance == "tied"
        which = "the common covariance" if tied else f"covariance of component {worst + 1} of {self.G}"
        words = f"{which} has smallest eigenvalue {float(smallest[worst]):.2g} (must be > 0)."
        return DomainError(words, component=worst)

    def phi(self, theta: GMMParams) -> F64:
        """(q,) natural parameter, paired with the statistic (for a common covariance that is known)."""
        const, A = theta.natural
        return np.concatenate([const, A.T.ravel()])

    def log_likelihood(self, theta: GMMParams, rows: F64) -> float:
        """Mean over rows of log p(y; theta)."""
        return self.responsibilities(theta, rows)[1]

    def surrogate(self, theta: GMMParams, S: F64) -> float:
        """psi(theta) - <S, phi(theta)>, of which T(S) is the argmin."""
        const, A = theta.natural
        # psi - <S, phi> with phi = natural; what does not depend on g, log det Sigma / 2 (and tr Sigma^-1 YY / 2), is psi.
        value = -float(self._parts(S)[0] @ const + np.sum(self._parts(S)[1] * A.T))
        if self.covariance in ("known", "tied"):
            value += 0.5 * float(np.linalg.slogdet(theta.Sigma)[1])
        if self.covariance == "tied":
            assert self.YY is not None
            value += 0.5 * float(np.trace(np.linalg.solve(theta.Sigma, self.YY)))
        return value

    def responsibilities(self, theta: GMMParams, rows: F64) -> tuple[F64, float]:
        """(m, G) posterior weights of the components for each row, and the mean log-likelihood."""
        rows, (const, A) = self._rows(rows), self._natural([theta])
        r = np.empty((len(rows), self.G))
        value = weights(const[0], A[0], _FEATURES[self.covariance], rows, r)
        constant = -0.5 * self.d * math.log(2 * math.pi)
        if self.covariance in ("known", "tied"):
            constant -= 0.5 * float(np.linalg.slogdet(theta.Sigma)[1])
        value += constant
        if self.covariance in ("known", "tied"):
            # -y'Sigma^-1 y / 2, which the features leave out for a common covariance.
            whitened = np.linalg.solve(np.linalg.cholesky(theta.Sigma), rows.T)
            value -= 0.5 * float(np.mean((whitened**2).sum(axis=0)))
        return r, float(value)


def second_moment(rows: F64) -> F64:
    """(d, d) mean over rows of y y': the only extra number that a worker sends once for covariance "tied".

    Source: Dieuleveut et al. (2021), algorithms 5 and 6, where it is collected at the start.
    """
    return rows.T @ rows / len(rows)


def random_rows(rows: F64, G: int, seed: int = 0) -> F64:
    """(G, d) means drawn from the rows without replacement, as in the paper's MNIST run."""
    return rows[rng_for(seed, "init").permutation(len(rows))[:G]].astype(np.float64)
