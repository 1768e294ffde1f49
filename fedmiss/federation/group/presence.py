"""Whether a site was occupied in a year: a chain of two states for each site, of which the group knows its zeros.

A site that was occupied (z = 1) loses the species from one year to the next with one probability, an empty one gains it
with another. Counts are zero where z = 0, and those of the count model where z = 1. One bird shows that the site was
occupied; zeros of a whole year say log P(zeros | z = 1), at the rates that the site's coefficients expect, with their
posterior uncertainty inside. Given the chain's probabilities the posterior of z is a chain again: its transition
probabilities follow from one pass over the years backward (Rabiner 1989, section III; MacKenzie et al. 2003 for the
model). A visit then weighs as much in all other sums as its site was probably occupied: the E-step of variational EM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I32, I64, Bool
from fedmiss.loops import compiled, part
from fedmiss.models.lowrank.occupancy import SURE, ChainPosterior

# probability of presence that weights are computed with: sums of cells are scaled up again from it
LEAST = 1e-6


@part
def _likely(odds: float, likelier: bool, x: float) -> float:
    """Probability whose prior odds are ``odds``, after evidence that multiplies them by 1 / x, or else by x <= 1."""
    return odds / (odds + x) if likelier else odds * x / (1.0 + odds * x)


@compiled
def _backward(
    evidence: F64, first: float, gain: float, lose: float, came: F64, stayed: F64, present: F64
) -> None:
    """Fill the posterior's transition probabilities and marginals, (J, Y) each; see :func:`chain_posterior`."""
    J, Y = evidence.shape
    keep, still = 1.0 - lose, 1.0 - gain
    for j in range(J):
        ahead = 0.0  # log odds from the years that follow
        for y in range(Y - 1, -1, -1):
            # r_y: log odds of z_y = 1 from the counts of this year and of all later ones, before the prior of the chain.
            r = evidence[j, y] + ahead
            x, likelier = math.exp(-abs(r)), r > 0.0
            # Posterior transition = prior transition (equation chain of the guide's model page) times the odds exp(r_y).
            if y == 0:
                came[j, 0] = stayed[j, 0] = present[j, 0] = _likely(first / (1.0 - first), likelier, x)
            else:
                came[j, y] = _likely(gain / still, likelier, x)
                stayed[j, y] = _likely(keep / lose, likelier, x)
            # log [(1 - lose) R + lose] - log [gain R + 1 - gain], R = exp(r), both over R where R > 1
            a, b = (1.0, x) if likelier else (x, 1.0)
            ahead = math.log((keep * a + lose * b) / (gain * a + still * b))
        for y in range(1, Y):
            # P(z_y = 1) = P(z_{y-1} = 0) came + P(z_{y-1} = 1) stayed.
            present[j, y] = came[j, y] + present[j, y - 1] * (stayed[j, y] - came[j, y])


def chain_posterior(evidence: F64, chain: F64) -> tuple[ChainPosterior, F64]:
    """Posterior of the chains of all sites, and the probability (J, Y) that a site was occupied.

    Parameters
    ----------
    evidence : (J, Y) log P(counts of the year | occupied) - log P(counts | empty), 0 where nobody went
    chain : (3,) probabilities: occupied in the first year, gained (empty -> occupied), lost (occupied -> empty)

    Source: the backward recursion of hidden Markov models (Rabiner 1989, "A tutorial on hidden Markov models", section III)
    on the log odds r_y = log P(counts from y on | z_y = 1) - log P(counts from y on | z_y = 0).
    """
    came, stayed, present = np.empty((3, *evidence.shape))
    first, gain, lose = np.clip(chain, 1e-9, 1.0 - 1e-9)
    _backward(evidence, first, gain, lose, came, stayed, present)
    return ChainPosterior(came, stayed), present


@dataclass(slots=True)
class Presence:
    """What the fits of a batch know of their sites' presence.

    ``year`` (L,) year of every month, from 0; ``row_cell`` (R,) cell of every row; ``cell_at`` (nnz,), ``visit_at`` (m,)
    site-year of every cell and visit; ``w`` (n, R), ``weights`` (n, m) as they are where the site is occupied; ``chain``
    (n, 3) probabilities: occupied in the first year, gained, lost; ``evidence`` (n, J, Y) log P(counts | present) -
    log P(counts | absent) of the site-years; ``q`` (n, J, Y) probability of presence; ``found`` (J, Y) whether the species
    was found there without a number.
    """

    year: I64
    row_cell: I64
    cell_at: I64
    visit_at: I64
    w: F64
    weights: F64
    chain: F64
    evidence: F64
    q: F64
    found: Bool

    @classmethod
    def of(
        cls,
        year: I64,
        site: I64,
        col: I32,
        row_cell: I64,
        visit_cell: I32,
        found: tuple[I32, I32],
        J: int,
        w: F64,
        weights: F64,
    ) -> Presence:
        """Every site is occupied in every year: where a fit begins.

        ``site``, ``col`` (nnz,) of the cells; ``found`` sites and months of finds without a number.
        """
        Y, n = int(year.max()) + 1, len(w)
        cell_at = site * Y + year[col]
        there = np.zeros((J, Y), dtype=bool)
        there[found[0], year[found[1]]] = True
        return cls(
            year, row_cell, cell_at, cell_at[visit_cell], w.copy(), weights.copy(), np.tile([1.0, 0.0, 0.0], (n, 1)),
            np.full((n, J, Y), SURE), np.ones((n, J, Y)), there,
        )  # fmt: skip

    @property
    def years(self) -> int:
        """Number of years."""
        return int(self.q.shape[2])

    @property
    def row_at(self) -> I64:
        """Site-year (R,) of every row."""
        return self.cell_at[self.row_cell]

    def of_years(self, at: I64, values: F64) -> F64:
        """Sum values by the site-years ``at`` that they belong to: (J, Y)."""
        return np.bincount(at, values, self.q[0].size).astype(np.float64).reshape(self.q.shape[1:])

    def step(self, f: int, evidence: F64, seen: F64, exposure: F64) -> tuple[F64, F64]:
        """Posterior of the chain of fit ``f`` after new ``evidence`` (J, Y).

        Parameters
        ----------
        seen : (J,) 1 where the site has a visit, else 0
        exposure : (J, Y) sums of E, the expected counts at a predictor of 0

        Returns
        -------
        factor (J, Y) of the weights, new over old;  sums (7,) over sites: occupied at first, sites, transitions 1 -> 0 and
        0 -> 1 and what they are of, and sum E (move of q)^2
        """
        before, old = np.maximum(self.q[f], LEAST), self.evidence[f]
        # half-way to what it was: presence and the sites' effects, each from the other's last value, would swing for good
        both = np.maximum(old, evidence) < SURE / 2
        self.evidence[f] = evidence = np.where(both, 0.5 * (old + evidence), evidence)
        # The chain's half of the E-step: P(z_jy = 1 | counts) from equation chain and the evidence.
        post, self.q[f] = chain_posterior(evidence, self.chain[f])
        now = np.maximum(self.q[f], LEAST)
        return now / before, np.r_[post.sums(seen, self.q[f]), float((exposure * (now - before) ** 2).sum())]

    def weigh(self, f: int) -> tuple[F64, F64]:
        """Weights of rows and visits of fit ``f``."""
        now = np.maximum(self.q[f], LEAST).ravel()
        return self.w[f] * now[self.row_at], self.weights[f] * now[self.visit_at]
