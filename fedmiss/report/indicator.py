"""The multi-species indicator: the geometric mean of species' indices, as the European wild bird indicators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError
from fedmiss.report.intervals import interval

__all__ = ["FLOOR", "indicator"]

FLOOR = 0.01  # a total below this share of the species' mean counts as this share: a zero has no logarithm


def indicator(
    totals: Mapping[str, pd.Series], draws: Mapping[str, pd.DataFrame], *, base: int | None = None
) -> pd.DataFrame:
    """Return the geometric mean over species of their yearly index, with its interval.

    Least squares of log totals on species and years: with every species in every year this is the mean of the logarithms;
    a species that enters late or lacks years informs the ratios of the years that it has. Every species has the same
    weight. The interval is of the species' own errors, drawn independently: it says how well the mean of these
    species is known, not how other species fare.
    Source: Gregory et al. (2005); Soldaat et al. (2017) for the floor. Differs in: no smoothing; replicates of the fits
    instead of normal draws around their indices.

    Parameters
    ----------
    totals : species -> yearly totals, indexed by year (used years only)
    draws : species -> replicates (B, years), columns years; species without them add no error
    base : year of 100 (default: the first)

    Returns
    -------
    Frame: ``year``, ``n_species``, ``index``, ``lo``, ``hi`` (base = 100; NaN limits without replicates)

    Raises
    ------
    ConfigError : no species, a base that no species has, years that no species links

    Examples
    --------
    >>> import pandas as pd, fedmiss
    >>> totals = {"wren": pd.Series([10.0, 40.0], [2001, 2002]), "crow": pd.Series([8.0, 8.0], [2001, 2002])}
    >>> fedmiss.report.indicator.indicator(totals, {})["index"].round(6).to_list()  # the geometric mean of 4 and 1 is 2
    [100.0, 200.0]
    """
    if not totals:
        raise ConfigError("an indicator needs a species with yearly totals; there is none.")
    names = sorted(totals)
    years: I64 = np.unique(np.concatenate([totals[n].index.to_numpy(dtype=np.int64) for n in names]))
    base = int(years[0]) if base is None else base
    if base not in years:
        raise ConfigError(f"the base {base} is not among the years {years[0]} to {years[-1]} of the species.")
    at = int(np.searchsorted(years, base))
    logs = np.full((len(names), years.size), np.nan)
    for i, name in enumerate(names):
        series = totals[name]
        logs[i, np.searchsorted(years, series.index.to_numpy())] = _log(series.to_numpy(dtype=np.float64))
    seen = np.isfinite(logs)
    solve = _year_effects(seen, at)
    n_draws = min((len(d) for d in draws.values()), default=0)
    bands = None
    if n_draws >= 2:
        many = np.repeat(logs[None], n_draws, axis=0)
        for i, name in enumerate(names):
            if name in draws:
                part = draws[name].loc[:, list(totals[name].index)].to_numpy(dtype=np.float64)[:n_draws]
                many[:, i, seen[i]] = _log(part)
        bands = np.exp(np.stack([solve(m) for m in many]))
    value = np.exp(solve(logs))
    limits = interval(value, bands)
    frame = pd.DataFrame({"year": years, "n_species": seen.sum(axis=0), "index": 100 * value})
    return frame.assign(lo=100 * limits.lo, hi=100 * limits.hi)


def _log(total: F64) -> F64:
    mean = total.mean(axis=-1, keepdims=True)
    out: F64 = np.log(np.maximum(total, np.maximum(FLOOR * mean, 1e-300)))
    return out


def _year_effects(seen: Bool, base: int) -> Callable[[F64], F64]:
    """Return the function that gives the year effects (Y,) against the base from logs (S, Y)."""
    S, Y = seen.shape
    i, t = np.nonzero(seen)
    X = np.zeros((i.size, S + Y))
    X[np.arange(i.size), i] = 1.0
    X[np.arange(i.size), S + t] = 1.0
    X = np.delete(X, S + base, axis=1)
    if np.linalg.matrix_rank(X) < X.shape[1]:
        raise ConfigError("some years are linked by no species to the others, so their ratio is not known.")
    P = np.linalg.pinv(X)[S:]

    def effects(logs: F64) -> F64:
        return np.insert(P @ logs[i, t], base, 0.0)

    return effects
