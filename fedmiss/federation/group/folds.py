"""Folds and weights of replicates: drawn inside the group, so a held-out visit never leaves it."""

from __future__ import annotations

import hashlib

import numpy as np
from scipy.special import gammaincinv

from fedmiss.arrays import F64, I32, I64, Bool, distinct, pairs
from fedmiss.errors import ConfigError
from fedmiss.federation.keys import keyed_hashes, seed_key, uniforms, uniforms_by_key
from fedmiss.rng import rng_for


def draw_folds(
    by: str,
    folds: int,
    seed: int,
    *,
    name: str,
    site_id: np.ndarray,
    site: I32,
    month: I64,
    year: I64,
    observer: I32,
    secret: bytes = b"",
) -> I64:
    """Draw a fold 0..folds-1 for every visit of a group.

    ``by="cell"`` draws site x month cells, whoever visits them: a fit that has seen one visit of a cell knows much about
    the others, while a cell that is imputed has none. ``"visit"`` draws visits; ``"observer"`` whole observers;
    ``"block"`` whole site x year blocks; ``"site"`` whole sites. Cells and blocks are keyed by the
    site's id: their folds do not depend on how sites are numbered.

    Parameters
    ----------
    secret : the organisation's own, and the job: without it nobody can tell the fold of a place that he knows. Empty on one
        computer, where folds follow from the seed
    site, month, year, observer : (m,) of every visit: row of ``site_id``, month stamp, year number, local observer
    """
    # many parameters: one array for each thing that a fold may hold out
    if by in ("cell", "block", "site"):
        place = keyed_hashes(site_id, seed_key("folds", by, seed, *([secret] if secret else [])))
        # Keyed by hashes, no generator: a place has its fold wherever and in whatever order it is drawn.
        u = uniforms_by_key(
            place[site], {"cell": month, "block": year, "site": np.zeros(site.size, np.int64)}[by], by, seed
        )
        return (u * folds).astype(np.int64)
    rng = secret_rng(secret, seed, "folds", name) if secret else rng_for(seed, "folds", name)
    if by == "visit":
        return _spread(rng, site.size, folds)
    if by != "observer":
        raise ConfigError(f"folds by {by!r} are unknown; choose auto, cell, visit, block or observer.")
    units, inverse = np.unique(observer.astype(np.int64), return_inverse=True)
    return _spread(rng, units.size, folds)[inverse]


def _spread(rng: np.random.Generator, n: int, folds: int) -> I64:
    """Folds of n units, as even as can be, starting at a random one: small groups must not all fill fold 0."""
    out: I64 = (rng.permutation(n) + rng.integers(folds)) % folds
    return out


def withhold(site: I32, month: I32, part: I64, minimum: int, L: int, live: Bool | None = None) -> Bool:
    """Visits (m,) of months that cannot be released: some part of them rests on fewer than ``minimum`` sites.

    ``live`` (m,): visits that stand behind their part, None for all.

    A sum over the months of one site is that site's, and the difference between a full fit and a fold's training sums is
    the fold's own part: so every part 0.. of a month has none, or at least ``minimum`` sites, hence visits.
    """
    if minimum <= 1 or not month.size:
        return np.zeros(month.size, dtype=bool)
    parts, J = int(part.max()) + 1, int(site.max()) + 1
    key, at = part * L + month, slice(None) if live is None else live
    cells = distinct((key * J + site)[at])
    count = np.bincount(cells // J, minlength=parts * L).reshape(parts, L)
    some = np.bincount(key[at], minlength=parts * L).reshape(parts, L) > 0
    thin: Bool = np.asarray((some & (count < minimum)).any(axis=0))
    held: Bool = thin[month]
    return held


def secret_rng(secret: bytes, *words: str | int) -> np.random.Generator:
    """Random numbers that follow from a group's secret and public words: the same after a restart."""
    raw = hashlib.blake2b(b"\0".join([secret, *(str(word).encode() for word in words)])).digest()
    seeds = [int(word) for word in np.frombuffer(raw, dtype=np.uint32)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


def replicate_weights(
    secret: bytes, seed: int, number: int, spread: F64, who: np.ndarray, site: I64, observer: I32, weight: F64
) -> F64:
    """Weights (m,) of one bootstrap replicate: one draw per observer, of mean 1, from the group's own secret.

    A draw is keyed by the observer's id: in fits of other species under the same secret the same observer has the same
    quantile in the same replicate, so that what he finds more or fewer of all of them is in the sum of their replicates.

    They are not normalised, so that group totals vary too. With many observers alike and a fit that hardly follows single
    counts a draw is Exp(1), the Bayesian bootstrap. Else its spread is too small for three reasons, and a Gamma of mean 1
    and variance

        c_i = ( t_{0.975, K - 1} / z_{0.975} / (1 - h_i) )^2 n / nu

    corrects them. An observer with a share h_i of the visits pulls the fit towards itself, and leaving it out moves the fit
    by 1 / (1 - h_i) times its residual: the cluster jackknife's correction (CV3 of MacKinnon, Nielsen and Webb, Journal of
    Econometrics 2023). A normal quantile presumes many observers: t has K - 1 degrees of freedom, K the effective number
    (Kish). And of n visits a fit leaves nu residual degrees of freedom, so the mean square of a residual is nu / n of the
    variance (HC2 of MacKinnon and White, Journal of Econometrics 1985, with all leverages alike); this holds for shrunk
    coefficients too. c_i is at most 4. Where one observer has made nearly all visits (K < 2) observers cannot be resampled:
    each of its sites gets a draw of its own.

    Parameters
    ----------
    secret : the group's, kept with its data: whoever knows the weights could solve for the observers' totals
    seed, number : of the job and of the replicate, both public
    who : (n,) texts, id of every observer
    site : (m,) a number of the site that follows from its id
    spread : (3,) from the hub: visits of all groups, t / z sqrt(n / nu), 1 to weigh observer x site
    """
    unit = observer.astype(np.int64)
    if spread[2]:
        _, first, unit = np.unique(pairs(observer, site)[0], return_index=True, return_inverse=True)
        who = np.array([f"{who[observer[i]]} {site[i]}" for i in first], dtype=object)
    # h_i of equation weight.
    share = np.bincount(unit, weight, len(who)) / spread[0]
    # Equation weight: the variance c, at most 4.
    c = np.minimum((spread[1] / np.maximum(1 - share, 1e-9)) ** 2, 4.0)
    # Quantiles of the Gamma of shape 1 / c and scale c: mean 1, variance c.
    draw: F64 = c * gammaincinv(1 / c, uniforms(keyed_hashes(who, seed_key(secret, seed, number))))
    return weight * draw[unit]
