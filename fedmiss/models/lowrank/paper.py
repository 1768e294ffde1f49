"""FedMissEM as a model for the federated core (algorithm 7): low rank + sparse, never dense.

The complete-data statistic of group c is the J x L matrix  s_bar_c(theta) = psi'(U V') + P_Omega_c(Y_c - psi'(U V')).
Its first part is the same for all groups and known to the server, which made theta. So the statistic of the core
is the second part only, on the q cells that some group has observed; the server keeps its own companion of
S_hat, the low-rank matrix C with C <- (1 - gamma) C + gamma psi'(U V'), and S = C + (S_hat on Omega).

Source: Dieuleveut, Fort, Moulines, Robin (2021), algorithm 7. Differs from it in: the common part is not
quantized and not lost when a group stays silent, since nobody has to send it (same expectation, less noise);
with an identity compressor, all groups and full batches the iterates are the paper's, as far as the M-step is exact: in
closed form for the Gaussian family, to 1e-12 of the gradient at a local minimum near the last theta for the others.
A minibatch of b of a group's m_c cells counts m_c / b times, so that its mean is the group's statistic; the paper's lines 8
to 13 count it once, which is b / m_c of that statistic. ``rows`` offers both.

A group's several visits to one cell enter as their mean, as the paper has one value per group and cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fedmiss.arrays import F64, distinct
from fedmiss.errors import DomainError, InputError
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.families import Family, family_of
from fedmiss.models.lowrank.paper_step import MStep, balance, blocks, check_size, check_values
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked

LAZY = 20  # columns appended to the companion before it is recompressed
_MAKE = "Make the rows by FedMissEM.rows(panel), of the panel that the model was made of."
SMALL = 40  # below this size of the smaller axis a dense decomposition is quicker than Lanczos


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """theta = (U, V): (J, r) and (L, r), balanced (U'U = V'V diagonal)."""

    U: F64
    V: F64


def _compress(A: F64, B: F64) -> tuple[F64, F64]:
    """Rewrite A B' with as few columns as rounding allows."""
    if A.shape[1] == 0:
        return A, B
    # A B' = Qa (Ra Rb') Qb': the small matrix in the middle has the singular values of the whole product.
    Qa, Ra = np.linalg.qr(A)
    Qb, Rb = np.linalg.qr(B)
    W, s, Zt = np.linalg.svd(Ra @ Rb.T)
    keep = s > 1e-11 * max(float(s[0]), 1e-300)
    return Qa @ (W[:, : s.size][:, keep] * s[keep]), Qb @ Zt[: s.size][keep].T


def _start(X: F64) -> F64:
    """Start vector of Lanczos: the sum of the last factors' columns, in the span of the leading vectors."""
    first = X.sum(axis=1)
    return first if np.linalg.norm(first) > 0 else np.ones(first.size)


def _grown(G: F64, cross: F64, corner: F64) -> F64:
    """Gram matrix after columns were appended."""
    return np.block([[G, cross], [cross.T, corner]])


def thresholded_svd(
    A: F64, B: F64, sparse: sp.csr_array, rank: int, lam: float, v0: F64 | None = None, AA: F64 | None = None
) -> Factors:
    """Argmin over U, V of  ||S - U V'||^2 / 2 + lam/2 (||U||^2 + ||V||^2), S = A B' + sparse, of rank at most ``rank``.

    The leading singular triplets of S, singular values soft-thresholded by ``lam``. S is never formed: the right
    singular vectors are eigenvectors of S'S, an L x L matrix made of small products; they come by Lanczos, started
    at ``v0`` (L,). ``AA`` is A'A when it is known. Give the longer axis first (J >= L).
    """
    J, L = sparse.shape
    kept = min(rank, J, L)
    # S'S for S = A B' + sparse, term by term: B A'A B' + B A'sparse + its transpose + sparse'sparse.
    cross = B @ (sparse.T @ A).T
    gram = B @ (A.T @ A if AA is None else AA) @ B.T + cross + cross.T + (sparse.T @ sparse).toarray()
    # Lanczos wants few of many eigenvalues; where most are wanted, or L is small, the dense solver is quicker.
    if L <= max(SMALL, 3 * kept):
        values, Q = np.linalg.eigh(gram)
        values, Q = values[::-1][:kept], Q[:, ::-1][:, :kept]
    else:
        values, Q = sp.linalg.eigsh(
            gram, k=kept, v0=np.ones(L) if v0 is None else v0, tol=1e-13, maxiter=20_000
        )
        order = np.argsort(values)[::-1]
        values, Q = values[order], Q[:, order]
    # Line 22 of algorithm 7: S q_k = s_k p_k, and the fitted matrix
    # is sum_k max(s_k - lam, 0) p_k q_k', shared out in equal parts.
    SQ = A @ (B.T @ Q) + sparse @ Q
    s = np.linalg.norm(SQ, axis=0)
    root = np.sqrt(np.maximum(s - lam, 0.0))
    # The sign of a singular vector is free: fix it, so that factors can be compared between rounds and machines.
    sign = np.where(Q.sum(axis=0) < 0, -1.0, 1.0)
    return Factors(SQ / np.maximum(s, 1e-300) * (root * sign), Q * (root * sign))


@kinds_checked
class FedMissEM:
    """The model: what groups compute (``s_bar``) and what the server does (``T``, carry).

    Parameters
    ----------
    panel : the groups' visits; only :meth:`rows` looks at counts, group by group
    family : ``gaussian``, ``poisson`` or ``bernoulli`` (counts already on the family's scale)
    rank, penalty : r (at most J and L) and the paper's lambda; ``fit_observed`` has n times lambda for the same optimum
    start : U_0, V_0; by default the constant matrix at the overall mean, and small random further columns (at
        exactly zero they would be a saddle point, which Newton steps do not leave)
    seed : of those columns
    """

    def __init__(
        self,
        panel: GroupPanel,
        *,
        family: str | Family,
        rank: int,
        penalty: float = 0.0,
        start: Factors | None = None,
        seed: int = 0,
    ) -> None:
        self.J, self.L, self.family, self.penalty = panel.J, panel.L, family_of(family), penalty
        check_size(rank, penalty)
        self.rank = min(rank, panel.J, panel.L)
        keys = [distinct(group.site.astype(np.int64) * panel.L + group.month) for group in panel.groups]
        self.cells = distinct(np.concatenate(keys)).astype(np.int64)
        if self.cells.size == 0:
            raise InputError("no group has a counted visit: there is nothing to fit.")
        self.row, self.col = self.cells // panel.L, self.cells % panel.L
        # The cells are sorted by site, then month: with these row
        # pointers a statistic (q,) is a CSR matrix without sorting.
        self._ptr = np.searchsorted(self.row, np.arange(self.J + 1))
        self.n = len(panel.groups)
        self.start = start or self._constant(panel, seed)
        self._cache: tuple[Factors, F64] | None = None

    @property
    def q(self) -> int:
        """Number of observed cells, over all groups."""
        return int(self.cells.size)

    def _constant(self, panel: GroupPanel, seed: int) -> Factors:
        total = sum(float(group.count.sum()) for group in panel.groups)
        mean = total / max(panel.m, 1)
        eta = self.family.link(max(mean, 1e-6) if self.family.counts else mean)
        rng = rng_for(seed, "fedmissem-start")
        U = 0.05 * rng.standard_normal((self.J, self.rank))
        V = 0.05 * rng.standard_normal((self.L, self.rank))
        # First columns whose product is eta in every cell, of equal
        # norms: (L/J)^(1/4) and (J/L)^(1/4) balance the two sides.
        if self.rank:
            U[:, 0] += np.sign(eta) * np.sqrt(abs(eta)) * (self.L / self.J) ** 0.25
            V[:, 0] += np.sqrt(abs(eta)) * (self.J / self.L) ** 0.25
        return Factors(U, V)

    # -- groups ---------------------------------------------------------------------------------------------------

    def rows(self, panel: GroupPanel, batch: int | None = None) -> dict[str, F64]:
        """Rows (m_c, 3) of every group: position of the cell in Omega, mean count, weight.

        The core's s_bar is a mean over rows, FedMissEM's statistic a sum over the group's cells: hence the weight m_c, with
        which a minibatch of b rows has the mean of the whole statistic. With ``batch`` b the weight is b (at most m_c),
        as in lines 8 to 13 of the paper's algorithm 7: the sum over the minibatch, whose mean is b / m_c of the whole.
        """
        check_values(panel, self.family)
        out = {}
        for group in panel.groups:
            # One value for each group and cell, as in the paper: several visits of a group enter as their mean.
            key, inverse, n = np.unique(
                group.site.astype(np.int64) * self.L + group.month, return_inverse=True, return_counts=True
            )
            value = np.bincount(inverse, group.count) / n
            position = np.searchsorted(self.cells, key)
            weight = key.size if batch is None else min(batch, key.size)
            out[group.name] = np.column_stack([position, value, np.full(key.size, float(weight))])
        return out

    def check_rows(self, rows: F64) -> None:
        """Raise InputError for rows that :meth:`rows` did not make."""
        shape = np.shape(rows)
        if len(shape) != 2 or shape[1] != 3:
            raise InputError(
                f"its rows have the shape {shape}, expected (cells, 3): position of the cell, mean count, weight. {_MAKE}"
            )
        at = rows[:, 0]
        if wrong := np.flatnonzero(~((at >= 0) & (at < self.q) & (at == np.floor(at)))).tolist():
            raise InputError(
                f"row {wrong[0]} is of the cell {at[wrong[0]]:g}; the model has the cells 0 to {self.q - 1}. {_MAKE}"
            )

    def eta(self, theta: Factors) -> F64:
        """Predictor on the observed cells (q,); kept, since every group of a round asks for the same."""
        if self._cache is None or self._cache[0] is not theta:
            self._cache = (theta, np.einsum("kr,kr->k", theta.U[self.row], theta.V[self.col]))
        return self._cache[1]

    def s_bar(self, theta: Factors, rows: F64) -> F64:
        """E-step: (q,) mean over rows of m_c (y - psi'(eta)) on the row's cell; 0 on cells that the group misses."""
        # Line 10 of algorithm 7 sets Y on Omega_c and theta elsewhere;
        # subtracting the common theta leaves Y - theta on Omega_c.
        at = rows[:, 0].astype(np.int64)
        # s_bar_c on Omega_c, without the common psi'(U V'): m_c (y - psi')
        value = rows[:, 2] * (rows[:, 1] - self.family.mean(self.eta(theta)[at]))
        return np.bincount(at, value, self.q) / max(len(rows), 1)

    # -- server ---------------------------------------------------------------------------------------------------

    def carry_start(self, S_hat: F64) -> dict[str, F64]:
        """Companion C_0 = psi'(U_0 V_0') as factors A B', and the starting factors."""
        # gamma = 1 forgets the empty companion, so C_0 is psi'(U_0 V_0') alone.
        A, B = self._common(self.start, np.zeros((self.J, 0)), np.zeros((self.L, 0)), 1.0)
        return self._carry(A, B, self.start)

    def _carry(self, A: F64, B: F64, theta: Factors) -> dict[str, F64]:
        on_cells = np.einsum("kr,kr->k", A[self.row], B[self.col])
        return {
            "A": A, "B": B, "AA": A.T @ A, "BB": B.T @ B, "on_cells": on_cells,
            "width": np.array([float(A.shape[1])]), "U": theta.U, "V": theta.V,
        }  # fmt: skip

    def advance(self, carry: Mapping[str, F64], theta: Factors, gamma: float) -> dict[str, F64]:
        """C <- (1 - gamma) C + gamma psi'(U V').

        Gaussian: the new columns are appended, and all columns are recompressed once there are many new ones.
        """
        A, B = carry["A"], carry["B"]
        if not self.family.quadratic or A.shape[1] >= carry["width"][0] + LAZY:
            return self._carry(*self._common(theta, A, B, gamma), theta)
        # Line 19 on the common part. Only A is scaled: (1 - gamma) A B' + gamma U V' = [(1 - gamma) A | gamma U] [B | V]'.
        keep, U = 1.0 - gamma, gamma * theta.U
        return {
            "A": np.hstack([keep * A, U]),
            "B": np.hstack([B, theta.V]),
            "AA": _grown(keep**2 * carry["AA"], keep * (A.T @ U), U.T @ U),
            "BB": _grown(carry["BB"], B.T @ theta.V, theta.V.T @ theta.V),
            "on_cells": keep * carry["on_cells"] + gamma * self.eta(theta),
            "width": carry["width"],
            "U": theta.U,
            "V": theta.V,
        }

    def _common(self, theta: Factors, A: F64, B: F64, gamma: float) -> tuple[F64, F64]:
        if self.family.quadratic:
            return _compress(np.hstack([(1.0 - gamma) * A, gamma * theta.U]), np.hstack([B, theta.V]))
        # psi'(U V') has no exact low rank, but falls to rounding within few columns: find them by a QR that
        # sees one block of sites at a time.
        R = np.zeros((0, self.L))
        for block in blocks(self.J, self.L):
            # R of the QR of all rows so far keeps their right singular vectors, and has at most L rows.
            R = np.asarray(np.linalg.qr(np.vstack([R, self._mix(theta, A, B, gamma, block)]), mode="r"))
        _, s, Zt = np.linalg.svd(R)
        keep = s > 1e-14 * max(float(s[0]), 1e-300)
        basis = Zt[: s.size][keep].T
        # Second pass: coordinates of every row in that basis. The J x L matrix was never whole in memory.
        return np.vstack(
            [self._mix(theta, A, B, gamma, block) @ basis for block in blocks(self.J, self.L)]
        ), basis

    def _mix(self, theta: Factors, A: F64, B: F64, gamma: float, block: slice) -> F64:
        return (1.0 - gamma) * (A[block] @ B.T) + gamma * self.family.mean(theta.U[block] @ theta.V.T)

    def _sparse(self, S: F64) -> sp.csr_array:
        return sp.csr_array((S, self.col, self._ptr), shape=(self.J, self.L))

    def T(self, S: F64, carry: Mapping[str, F64]) -> Factors:
        """M-step: argmin over U, V of sum over ALL cells of psi(theta) - S theta, plus the ridge.

        Gaussian: the global minimum. Otherwise a local one, found from the last theta, where the norm of the gradient is at
        most 1e-12 of that of its terms; a statistic that has no minimum gives the best that 200 steps find.
        """
        if not np.isfinite(S).all():
            raise DomainError("the statistic holds a number that is not finite.")
        if self.family.quadratic:
            A, B, sparse = carry["A"], carry["B"], self._sparse(S)
            # The eigenproblem is of the shorter axis: turn the matrix where months outnumber sites.
            if self.L <= self.J:
                return thresholded_svd(A, B, sparse, self.rank, self.penalty, _start(carry["V"]), carry["AA"])
            turned = sp.csr_array(sparse.T)
            other = thresholded_svd(B, A, turned, self.rank, self.penalty, _start(carry["U"]), carry["BB"])
            return Factors(other.V, other.U)
        step = MStep(self.family, self.penalty, self._sparse(S), carry["A"], carry["B"])
        return Factors(*balance(*step.minimise(carry["U"], carry["V"])))

    def h_norm2(self, H: F64, carry: Mapping[str, F64], theta: Factors) -> float:
        """||H + psi'(U V') - C||^2 over all J x L cells: the field is low rank (D) plus sparse (H)."""
        if self.family.quadratic:
            U, V = theta.U, theta.V
            # D = U V' - A B': ||D||^2 from r x r Gram matrices, ||U V'||^2 = sum of (U'U) * (V'V), and so on.
            low = float(((U.T @ U) * (V.T @ V)).sum() + (carry["AA"] * carry["BB"]).sum())
            low -= 2.0 * float(((carry["A"].T @ U) * (carry["B"].T @ V)).sum())
            on_cells = self.eta(theta) - carry["on_cells"]
        else:
            low, on_cells = 0.0, np.empty(self.q)
            for block in blocks(self.J, self.L):
                D = self.family.mean(theta.U[block] @ theta.V.T) - carry["A"][block] @ carry["B"].T
                low += float((D**2).sum())
                inside = slice(*np.searchsorted(self.row, [block.start, block.stop]))
                on_cells[inside] = D[self.row[inside] - block.start, self.col[inside]]
        # ||D + H||^2 = ||D||^2 + 2 <H, D> + ||H||^2, where H is zero off the observed cells; rounding may fall below 0.
        return max(low + 2.0 * float(H @ on_cells) + float(H @ H), 0.0)

    # -- measured centrally, in simulations -------------------------------------------------------------------------

    def objective(self, theta: Factors, data: Sequence[F64]) -> float:
        """F(theta) = (1/n) sum_c sum over Omega_c [psi - Y theta] + lambda/2 (||U||^2 + ||V||^2). Sees all groups' rows."""
        # Appendix F.2 of the paper, the sum over the cells that each group has seen.
        eta = self.eta(theta)
        total = 0.0
        for rows in data:
            e = eta[rows[:, 0].astype(np.int64)]
            total += float((self.family.psi(e) - rows[:, 1] * e).sum())
        return total / self.n + 0.5 * self.penalty * float((theta.U**2).sum() + (theta.V**2).sum())
