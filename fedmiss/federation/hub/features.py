"""The hub's half of the features of sites: agreeing on them, and the M-step of their coefficients and variances.

Site j's effect (and slope) has the prior N(B' f_j, tau). Columns of f come in blocks (:mod:`..group.features`); the
coefficients of a block b have the prior N(0, rho_b), and rho_b is estimated, so that a block that says nothing switches
itself off. B moves by Newton steps of the marginal likelihood of the sites' data, with the site's coefficient integrated
out; rho by MacKay's fixed point rho = sum B^2 / (k - tr(cov) / rho) (Neural Computation 4, 1992). Sums over sites of k and
k (k + 1) / 2 numbers cross for each coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError, InputError, listed
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.values import evolve
from fedmiss.federation.link import Link, total
from fedmiss.federation.messages_agree import LEVEL, PLACE
from fedmiss.federation.rules import behind, kept_regions
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.structure import FEATURES

if TYPE_CHECKING:
    from fedmiss.federation.hub.state import MonthState, Panel
    from fedmiss.models.lowrank.choice import Choice

MOST_COLUMNS = 60  # of covariates
OTHER_UNITS = 2  # powers of two between groups' largest values that are worth a word
KNOTS, EXTENT = 6, 2.0  # a side of the smooth's grid, and its half width in deviations of the places
SHARE = 0.5  # of a Newton step: sites answer to new variances over a few rounds, and a full step swings
FARTHEST = 0.3  # that a coefficient moves in a round, in units of the link
START, SLOPES, LEAST, MOST = 0.1, 0.02, 1e-6, 4.0  # variance of coefficients, in units of the link squared


class Column(NamedTuple):
    """A feature: its block, the covariate or region that it is made of, and the value of a category that it stands for."""

    block: str
    of: str = ""
    level: str = ""
    squared: bool = False

    def __str__(self) -> str:
        return " ".join(
            text for text in (self.of or self.block, self.level, "squared" * self.squared) if text
        )


@dataclass(frozen=True, slots=True, eq=False)
class SiteFeatures:
    """Features that the groups agreed on: ``columns`` of each block; their mean and covariance over the visited sites."""

    columns: dict[str, I64]
    made: tuple[Column, ...]
    centre: F64
    covariance: F64
    notes: tuple[str, ...] = ()

    def of(self, blocks: Sequence[str]) -> I64:
        """Columns of some blocks."""
        none = [np.zeros(0, dtype=np.int64)]
        out: I64 = np.concatenate(
            none + [self.columns[block] for block in FEATURES if block in blocks and block in self.columns]
        )
        return out


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Coefficients of the features of one fit.

    Attributes
    ----------
    columns : (k,) features;  block : (k,) which of ``blocks`` each belongs to
    B : (k, c) coefficients of the effect (and the slope);  prior : their prior means, zero but for replicates
    rho : (blocks, c) their prior variances;  cov : (c, k, k) posterior covariances
    edf : effective number of coefficients, under the variances that ``cov`` was computed with
    Of many fits (:func:`.state.stacked`) the last five have a leading axis.
    """

    blocks: tuple[str, ...]
    columns: I64
    block: I64
    B: F64
    prior: F64
    rho: F64
    cov: F64
    edf: F64 | float = 0.0

    @property
    def k(self) -> int:
        """Number of features."""
        return int(self.columns.size)

    def _known(self, cov: F64) -> F64:
        """How much of each coefficient (..., k, c) the data determine, with posterior covariances ``cov``."""
        spread = np.einsum("...caa->...ac", cov)
        return np.where(self.used, 1.0 - spread / self.rho[..., self.block, :], 0.0)

    @property
    def used(self) -> Bool:
        """(k, c) whether a feature may move a coefficient: visits speak for the effect only."""
        out = np.ones(self.B.shape[-2:], dtype=bool)
        out[np.array([self.blocks[number] == "visits" for number in self.block], dtype=bool), 1:] = False
        return out

    def uncertainty(self, panel: Panel) -> F64:
        """(..., c) what the coefficients' uncertainty adds to a site's squared distance from its prior mean, on average."""
        if panel.features is None or not self.k:
            return np.zeros((*self.B.shape[:-2], self.B.shape[-1]))
        spread = panel.features.covariance[np.ix_(self.columns, self.columns)]
        # E [(B - B_hat)' f]^2 over visited sites: trace of cov(B) times the covariance of f.
        out: F64 = np.einsum("...cab,ab->...c", self.cov, spread)
        return out

    def drawn(self, rng: np.random.Generator) -> Coefficients:
        """Draw the prior means, for a replicate that starts at its own response to them."""
        prior = np.where(self.used, rng.standard_normal(self.B.shape) * np.sqrt(self.rho[self.block]), 0.0)
        # C K m, as for every coefficient of a replicate; variances may have moved since ``cov`` was computed.
        wide = np.maximum(self.rho[self.block], np.einsum("caa->ac", self.cov))
        move = np.einsum("cab,bc->ac", self.cov, prior / wide) if self.k else prior
        return evolve(self, prior=prior, B=self.B + move)


def start_coefficients(panel: Panel, blocks: Sequence[str], unit: float, *, slopes: bool) -> Coefficients:
    """Coefficients of zero; ``unit`` is the variance of the link's unit."""
    features, c = panel.features, 1 + slopes
    there = tuple(
        name
        for name in FEATURES
        if features is not None and name in blocks and features.columns.get(name, np.zeros(0)).size
    )
    if features is None or not there:
        none = np.zeros(0, dtype=np.int64)
        return Coefficients(
            (), none, none, np.zeros((0, c)), np.zeros((0, c)), np.zeros((0, c)), np.zeros((c, 0, 0))
        )
    columns = features.of(there)
    block = np.repeat(np.arange(len(there)), [features.columns[name].size for name in there])
    # Equation prior, B_kc ~ N(0, rho_bc): rho starts at a tenth of the link's unit, far from 0, where it would stay.
    rho, k = np.full((len(there), c), START * unit), columns.size
    rho[:, 1:] *= SLOPES
    cov = np.stack([np.diag(rho[block, coefficient]) for coefficient in range(c)])
    return Coefficients(there, columns, block, np.zeros((k, c)), np.zeros((k, c)), rho, cov)


def feature_step(state: MonthState, sums: F64, *, learn: bool) -> Coefficients:
    """One Newton step of all coefficients; with ``learn`` their variances. ``sums`` (..., d (d + 3) / 2), d = c (k + 1).

    The constants take part in the equations and are not moved: what visited sites have in common is the level's (and the
    line's), which move in the same round. Without them both would correct the same, and swing.
    """
    before, unit = state.features, np.asarray(state.unit)[..., None, None]
    *many, k, c = before.B.shape
    d = c * (k + 1)
    moved = np.vstack([before.used, np.zeros((1, c), dtype=bool)]).T.ravel()  # (d,) in the order of the sums
    # Coefficients that may move, and the constants (the last of every k + 1), which only take part.
    at = np.flatnonzero(moved | (np.arange(d) % (k + 1) == k))
    # (information + 1 / rho) step = gradient - (B - prior) / rho: Newton on the sites' marginal likelihood.
    precision, pull = np.empty((*many, c, k + 1)), np.zeros((*many, c, k + 1))
    precision[...] = 1.0 / (MOST * unit**2)
    precision[..., :k] = 1.0 / before.rho[..., before.block, :].swapaxes(-1, -2)
    pull[..., :k] = precision[..., :k] * (before.B - before.prior).swapaxes(-1, -2)
    A = np.ascontiguousarray(from_triangle(sums[..., d:], d)[..., at[:, None], at])
    A[..., np.arange(at.size), np.arange(at.size)] += precision.reshape(*many, d)[..., at]
    inner = np.zeros((*many, d, d))
    # Symmetric by its formula, not to the last bit after sums over groups.
    inner[..., at[:, None], at] = np.linalg.inv(0.5 * (A + A.swapaxes(-1, -2)))
    step = (inner @ (sums[..., :d] - pull.reshape(*many, d))[..., None])[..., 0].reshape(*many, c, k + 1)
    step = np.clip(SHARE * step[..., :k].swapaxes(-1, -2), -FARTHEST * unit, FARTHEST * unit)
    cov = np.stack(
        [inner[..., a * (k + 1) : a * (k + 1) + k, a * (k + 1) : a * (k + 1) + k] for a in range(c)], axis=-3
    )
    known = before._known(cov)
    new = evolve(before, B=before.B + np.where(before.used, step, 0.0), cov=cov, edf=known.sum(axis=(-2, -1)))
    if not learn:
        return new
    # Equation mackay: rho = sum B^2 / (k - tr(cov) / rho), block by block.
    rho = [
        (new.B[..., own, :] ** 2).sum(axis=-2) / np.maximum(known[..., own, :].sum(axis=-2), 1e-3)
        for own in (before.block == number for number in range(len(before.blocks)))
    ]
    return evolve(new, rho=np.clip(np.stack(rho, axis=-2), LEAST * unit**2, MOST * unit**2))


def explained(panel: Panel, coefficients: Coefficients, tau: F64) -> dict[str, float]:
    """Share of the variance between sites' levels that each block explains: that of B' f over that of B' f and tau."""
    features = panel.features
    if features is None or not coefficients.k:
        return {}
    B, spread = coefficients.B[:, 0], features.covariance[np.ix_(coefficients.columns, coefficients.columns)]
    # Var(B' f) over visited sites, over Var(B' f) + tau.
    whole = float(B @ spread @ B + tau[0])
    at = {name: coefficients.block == number for number, name in enumerate(coefficients.blocks)}
    return {name: float(B[own] @ spread[np.ix_(own, own)] @ B[own]) / whole for name, own in at.items()}


def covariate_names(panel: Panel, coefficients: Coefficients) -> list[str]:
    """Names of the covariates, a category once, that are among the features of a fit."""
    if panel.features is None or "covariates" not in coefficients.blocks:
        return []
    return sorted({panel.features.made[i].of for i in panel.features.columns["covariates"]})


def structure_facts(panel: Panel, choice: Choice | None, state: MonthState | None) -> dict[str, Any]:
    """What was tried, what the features are, and what they explain, by their names in the manifest."""
    facts: dict[str, Any] = {"trials": [trial._asdict() for trial in choice.trials] if choice else []}
    if state is None:  # algorithm 7 has no structure
        return facts
    return facts | {
        "site_covariates": covariate_names(panel, state.features),
        "explained": explained(panel, state.features, state.tau),
    }


# -- agreement -----------------------------------------------------------------------------------------------


def agree_features(link: Link, panel: Panel, wanted: Sequence[str], *, strict: bool = False) -> Panel:
    """Agree on the features of sites: scales by sums over all groups, and which features have enough sites behind them.

    Parameters
    ----------
    wanted : blocks to make, of ``FEATURES``
    strict : whether a block that cannot be made is an error

    Raises
    ------
    ConfigError    too many covariates, or with ``strict`` a block that cannot be made
    """
    blocks = tuple(block for block in FEATURES if block in wanted)
    notes: list[str] = []
    visits = _ask_visits(link, panel) if "visits" in blocks else np.zeros(0)
    names, mean, deviation = _scales(link, panel, blocks, notes)
    placed = all(name in names for name in PLACE)
    plain = [covariate for covariate in names if covariate not in PLACE]
    able = {
        "visits": visits.size > 0,
        "covariates": bool(plain),
        "regions": len(panel.regions) > 1,
        "smooth": placed,
    }
    if strict and (wrong := [block for block in blocks if not able[block]]):
        raise ConfigError(_WHY[wrong[0]])
    blocks = tuple(block for block in blocks if able[block])
    if not blocks:
        return replace(panel, features=SiteFeatures({}, (), np.zeros(0), np.zeros((0, 0)), tuple(notes)))
    side = np.linspace(-EXTENT, EXTENT, KNOTS)
    knots = np.array([(x, y) for x in side for y in side]) if "smooth" in blocks else np.zeros((0, 2))
    none = np.zeros(0)
    ask = msg.Features(
        blocks, tuple(names), mean, deviation, visits, knots, np.zeros(0, np.uint8), none, panel.share
    )
    columns = [column for block in blocks for column in _columns(block, names, panel.regions, len(knots))]
    u = len(columns)
    least, contributors = (panel.least, panel.contributors) if panel.least else (1, 1)
    sums: dict[str, F64] = {}
    # who has too large a share of the sums is said once they are known
    for _ in range(2 if panel.least else 1):
        (answers,) = link.ask([ask])
        sums = {name: total(answers, name, (u + 1,)) for name in ("behind", "groups", "over")}
        ask = replace(ask, behind=sums["behind"])
    kept = behind(sums["behind"], sums["groups"], least, contributors) & (sums["over"] == 0)
    kept = kept[:-1] & _levels(columns, sums, least, contributors)
    if panel.least:
        answers = _told(link, ask, kept, columns, least, contributors)
    else:
        (answers,) = link.ask([replace(ask, kept=kept.astype(np.uint8))])
    lost = [str(columns[i]) for i in np.flatnonzero(~kept) if columns[i].block != "smooth"]
    if lost and panel.least:
        notes.append(
            f"features that rest on, or differ at, fewer than {least} sites or {contributors} organisations are left out: "
            f"{listed(lost, 6)}."
        )
    k = int(kept.sum())
    visited = float(sums["behind"][-1])
    centre = total(answers, "sums", (k,)) / visited
    spread = from_triangle(total(answers, "products", (k * (k + 1) // 2,)), k) / visited
    # E f f' - E f E f' over visited sites, from sums over groups.
    spread -= np.outer(centre, centre)
    left = [columns[i] for i in np.flatnonzero(kept)]
    at = {
        block: np.array([i for i, column in enumerate(left) if column.block == block], dtype=np.int64)
        for block in blocks
    }
    return replace(panel, features=SiteFeatures(at, tuple(left), centre, spread, tuple(notes)))


_WHY = {
    "visits": "the prior cannot follow how often sites were visited: all were visited equally often. Leave the feature "
    "visits out.",
    "covariates": "the sites have no covariates: give a table of them (fedmiss panel --site-table), or leave the feature "
    "covariates out.",
    "regions": "the sites have no regions, or one only: leave the feature regions out.",
    "smooth": "the sites have no places that differ (latitude, longitude): leave the feature smooth out.",
}


def _columns(block: str, names: Sequence[str], regions: Sequence[str], knots: int) -> list[Column]:
    """Columns of a block, in the order in which groups make them (:mod:`..group.features`)."""
    if block == "regions":
        return [Column(block, region) for region in regions]
    if block != "covariates":
        return [Column(block)] * (knots if block == "smooth" else 1)
    out: list[Column] = []
    for name in names:
        of, category, level = name.partition(LEVEL)
        if category:
            out.append(Column(block, of, level))
        elif name not in PLACE:
            out += [Column(block, of), Column(block, of, squared=True)]
    return out


def _levels(columns: Sequence[Column], sums: dict[str, F64], least: int, contributors: int) -> Bool:
    """Values of a category that may have sums of their own: what is left of the category has enough sites as well."""
    kept = np.ones(len(columns), dtype=bool)
    categories: dict[str, list[int]] = {}
    for i, column in enumerate(columns):
        if column.level:
            categories.setdefault(column.of, []).append(i)
    if least <= 1:
        return kept
    for at in categories.values():
        rest = max(float(sums["behind"][-1]) - float(sums["behind"][at].sum()), 0.0)
        some = kept_regions(
            np.r_[rest, sums["behind"][at]], np.r_[contributors, sums["groups"][at]], np.r_[0.0, sums["over"][at]],
            least, contributors,
        )  # fmt: skip
        kept[[i for place, i in enumerate(at) if place + 1 not in some]] = False
    return kept


def _told(
    link: Link, ask: msg.Features, kept: Bool, columns: Sequence[Column], least: int, contributors: int
) -> dict[str, msg.Answer]:
    """Sums of the features that are kept, without those that differ at too few sites from what others make of them.

    A difference of sums would be these sites' own: of two heights, or of three categories, that agree elsewhere. ``kept``
    is changed, one at a time, since what follows it may differ at more sites without it.
    """
    tested = np.array([column.block != "smooth" for column in columns])
    u = kept.size
    apart = np.zeros(0)
    while True:
        (answers,) = link.ask([replace(ask, kept=kept.astype(np.uint8), behind=apart)])
        sums = {name: total(answers, name, (u + 1,)) for name in ("behind", "groups", "over")}
        fine = behind(sums["behind"], sums["groups"], least, contributors) & (sums["over"] == 0)
        if (thin := np.flatnonzero(kept & tested & ~fine[:-1])).size:
            # What the features before it tell at every site takes nothing from those that follow.
            kept[thin[0]] = kept[thin[sums["behind"][thin] == 0]] = False
            apart = np.zeros(0)
        elif apart.size:
            return answers
        else:
            apart = sums["behind"]


def _scales(link: Link, panel: Panel, blocks: Sequence[str], notes: list[str]) -> tuple[list[str], F64, F64]:
    """Names, means and standard deviations of the covariates that are needed and vary."""
    known = panel.covariates
    names = [
        name
        for name in known
        if (name in PLACE and "smooth" in blocks) or (name not in PLACE and "covariates" in blocks)
    ]
    wide = sum(1 if LEVEL in name else 2 for name in names if name not in PLACE)
    if wide > MOST_COLUMNS:
        raise ConfigError(
            f"the sites' covariates make {wide} features (a number makes two, a category one for each value); at most "
            f"{MOST_COLUMNS} are possible. Leave the least useful columns out of the table."
        )
    if panel.least and names:
        (answers,) = link.ask([msg.Covariates(tuple(names), np.zeros(0))])
        sites, organisations = total(answers, "sums", (len(names), 4))[:, :2].T
        enough = behind(sites, organisations, panel.least, panel.contributors)
        if lost := [name for name, fine in zip(names, enough, strict=True) if not fine]:
            notes.append(
                f"fewer than {panel.least} sites, or {panel.contributors} organisations, have, or differ in, "
                f"{listed(lost, 6)}: left out."
            )
        names = [name for name in names if name not in lost]
    if not names:
        return [], np.zeros(0), np.zeros(0)
    unit = np.array([2.0 ** known[name] for name in names])
    (answers,) = link.ask([msg.Covariates(tuple(names), unit)])
    sums = total(answers, "sums", (len(names), 4))
    have = np.maximum(sums[:, 0], 1e-9)
    mean = sums[:, 1] / have
    deviation = np.sqrt(np.maximum(sums[:, 2] / have - mean**2, 0.0))
    varies = (sums[:, 0] > 1) & (deviation > 1e-6)
    for i, name in enumerate(names):
        if not varies[i]:
            notes.append(
                f"the covariate {name} is the same at all visited sites that have it; it is left out."
            )
        elif sums[i, 3] < panel.J and name not in PLACE:
            notes.append(
                f"{panel.J - sums[i, 3]:.0f} of {panel.J:.0f} sites have no {name}; they count as the mean of the others."
            )
    at = np.flatnonzero(varies)
    return [names[i] for i in at], (mean * unit)[at], (deviation * unit)[at]


def _ask_visits(link: Link, panel: Panel) -> F64:
    """Mean and deviation over visited sites of log(visits + 1/2)."""
    none = np.zeros(0)
    if panel.least:
        return none
    (answers,) = link.ask([msg.SiteVisits()])
    first, second, sites = total(answers, "sums", (3,))
    first, second = first / max(sites, 1.0), second / max(sites, 1.0)
    variance = second - first**2
    return np.array([first, variance**0.5]) if variance > 1e-6 else none


def covariates_of(groups: dict[str, msg.Description], notes: list[str]) -> dict[str, int]:
    """Names of the covariates of all groups with the power of two that all values stay below; says who lacks which."""
    out: dict[str, int] = {}
    least: dict[str, int] = {}
    for name, given in groups.items():
        if len(given.site_covariates) != given.magnitudes.size:
            raise InputError(
                f"group {name!r} described its covariates wrongly. Install the same fedmiss everywhere."
            )
        for covariate, magnitude in zip(given.site_covariates, given.magnitudes.tolist(), strict=True):
            out[covariate], least[covariate] = (
                max(out.get(covariate, magnitude), magnitude),
                min(least.get(covariate, magnitude), magnitude),
            )
    columns = {covariate.split(LEVEL)[0] for covariate in out}
    for name, given in groups.items():
        missing = sorted(
            columns - {covariate.split(LEVEL)[0] for covariate in given.site_covariates} - set(PLACE)
        )
        if missing:
            notes.append(
                f"group {name!r} has no covariate {listed(missing, 4)}; its sites count as the mean of the others."
            )
    for covariate in sorted(out):
        if (
            covariate not in PLACE
            and LEVEL not in covariate
            and out[covariate] - least[covariate] >= OTHER_UNITS
        ):
            notes.append(
                f"the values of the covariate {covariate} are below {2.0 ** out[covariate]:g} in one group and below "
                f"{2.0 ** least[covariate]:g} in another; check that both give it in the same unit."
            )
    return dict(sorted(out.items()))
