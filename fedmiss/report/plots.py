"""How an index, totals and a matrix are drawn, in reports and in figures of one's own.

Each ``plot_...`` takes a table or a fit and axes, draws into them and returns them. Nothing here touches pyplot or a global
style: with ``ax=None`` the axes stand in a figure of their own (``ax.figure``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmiss.arrays import F64
from fedmiss.report.style import BLUE, GREY, ORANGE, PEACH, SKY
from fedmiss.seasons import along_season

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedmiss.report.trim import TrimFit
    from fedmiss.report.trim.cells import Label


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    # matplotlib takes a second to load; a fitted species is read without it.
    from matplotlib.figure import Figure

    return Figure(figsize=(6.0, 3.6), layout="constrained").subplots()


def bars(ax: Axes, x: ArrayLike, lo: ArrayLike, hi: ArrayLike, colour: str = SKY) -> None:
    """Draw intervals as bars, where any is known."""
    if np.isfinite(np.asarray(lo, dtype=float)).any():
        ax.vlines(x, np.asarray(lo, dtype=float), np.asarray(hi, dtype=float), color=colour, lw=4, alpha=0.6)


def band(ax: Axes, x: ArrayLike, lo: pd.Series, hi: pd.Series) -> None:
    """Draw intervals as a band, where any is known."""
    if lo.notna().any():
        ax.fill_between(x, lo, hi, color=SKY, alpha=0.35, lw=0)


def broken(month: ArrayLike, *values: ArrayLike) -> list[F64]:
    """Return months along a season and values at them, with nan in each pause of a month or more: lines break there."""
    at = np.flatnonzero(np.diff(np.asarray(month, dtype=float)) > 1.0) + 1
    return [np.insert(np.asarray(each, dtype=float), at, np.nan) for each in (month, *values)]


def base_line(ax: Axes) -> None:
    """Draw a dashed line at the base, 100."""
    ax.axhline(100, color=GREY, lw=0.8, ls=(0, (4, 3)))


def index_line(ax: Axes, table: pd.DataFrame, base: str = "") -> None:
    """Draw a yearly index with its bars and its line, which breaks at years that are not used; name the axis by its base."""
    used = table[table["used"]]
    bars(ax, used["year"], used["index_lo"], used["index_hi"])
    ax.plot(table["year"], table["index"].where(table["used"]), color=BLUE, marker="o", ms=4, lw=1.2)
    ax.set_ylabel(f"index ({base} = 100)" if base else "index")
    ax.set_ylim(bottom=0)


def plot_index(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw a yearly index with its 95 % intervals.

    Parameters
    ----------
    table : from :func:`fedmiss.report.yearly_index` or ``SpeciesFit.index()``; years that are not used leave a gap
    ax : axes to draw into; new ones when None

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> ax = fedmiss.report.plot_index(fedmiss.report.yearly_index(totals, months))
    >>> ax.figure.savefig("figure.png")
    """
    ax = _axes(ax)
    base = table.loc[table["used"] & np.isclose(table["index"], 100.0), "year"]
    index_line(ax, table, str(base.iloc[0]) if len(base) == 1 else "")
    return ax


def plot_totals(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw monthly totals over sites with their 95 % intervals.

    Parameters
    ----------
    table : from :func:`fedmiss.report.monthly_totals` or ``SpeciesFit.totals()``
    ax : axes to draw into; new ones when None

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> ax = fedmiss.report.plot_totals(fedmiss.report.monthly_totals(totals, months))
    >>> ax.figure.savefig("figure.png")
    """
    ax = _axes(ax)
    time = table["year"] + (table["month_of_year"] - 0.5) / 12.0
    band(ax, time, table["lo"], table["hi"])
    ax.plot(time, table["total"], color=BLUE, lw=1.2)
    ax.set_ylabel("total over all sites")
    ax.set_ylim(bottom=0)
    return ax


def plot_season(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the mean total of each month of the year with its 95 % interval.

    Parameters
    ----------
    table : from :func:`fedmiss.report.seasonal`
    ax : axes to draw into; new ones when None

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> ax = fedmiss.report.plot_season(fedmiss.report.seasonal(totals, months))
    >>> ax.figure.savefig("figure.png")
    """
    ax = _axes(ax)
    month = along_season(table["month_of_year"])
    order = np.argsort(month)
    bars(ax, month, table["lo"], table["hi"])
    ax.plot(*broken(month[order], table["total"].to_numpy()[order]), color=BLUE, marker="o", ms=4)
    if (month < 1).any():
        ax.set_xticks(month, table["month_of_year"])
    ax.set_xlabel("month")
    ax.set_ylabel("expected count, all sites")
    return ax


def plot_trim(fit: TrimFit, ax: Axes | None = None, base: Label | Sequence[Label] | None = None) -> Axes:
    """Draw TRIM's index (base = 100) with intervals of 1.96 standard errors.

    Parameters
    ----------
    fit : from :func:`fedmiss.fit_trim`
    ax : axes to draw into; new ones when None
    base : time point, or several, that are 100 (default: the first)

    Examples
    --------
    >>> import fedmiss
    >>> fit = fedmiss.fit_trim(["a", "a", "b", "b"], [1, 2, 1, 2], [4, 6, 10, 15])
    >>> fedmiss.report.plot_trim(fit).get_ylabel()
    'TRIM index'
    """
    index = fit.index() if base is None else fit.index(base=base)
    ax = _axes(ax)
    # 1.96 standard errors of an index whose base is 100.
    mid, half = 100.0 * index["index"], 196.0 * index["se"]
    bars(ax, index["time"], np.maximum(mid - half, 0.0), mid + half, PEACH)
    ax.plot(index["time"], mid, color=ORANGE, marker="s", ms=4)
    ax.set_ylabel("TRIM index")
    ax.set_ylim(bottom=0)
    return ax


def plot_indicator(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw a multi-species indicator with its 95 % interval.

    Parameters
    ----------
    table : from :func:`fedmiss.report.indicator.indicator`
    ax : axes to draw into; new ones when None

    Examples
    --------
    >>> import pandas as pd, fedmiss
    >>> totals = {"wren": pd.Series([10.0, 40.0], [2001, 2002]), "crow": pd.Series([8.0, 8.0], [2001, 2002])}
    >>> ax = fedmiss.report.plot_indicator(fedmiss.report.indicator.indicator(totals, {}))
    >>> ax.get_ylabel()
    'indicator'
    """
    ax = _axes(ax)
    band(ax, table["year"], table["lo"], table["hi"])
    ax.plot(table["year"], table["index"], color=BLUE, marker="o", ms=4)
    base_line(ax)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("indicator")
    return ax


def plot_matrix(expected: ArrayLike, observed: ArrayLike | None = None, ax: Axes | None = None) -> Axes:
    """Draw a matrix of sites and months, largest site at the top, on a logarithmic scale; imputed cells are paler.

    Parameters
    ----------
    expected : (J, L) expected counts, as ``CountFit.expected()``
    observed : (J, L) True where somebody counted; None draws all cells alike
    ax : axes to draw into; new ones when None

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1)
    >>> fedmiss.report.plot_matrix(p.expected).get_xlabel()
    'month'
    """
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    value = np.asarray(expected, dtype=np.float64)
    order = np.argsort(-value.mean(axis=1), kind="stable")
    top = max(float(value.max()), 1e-12)
    colour = colormaps["viridis"](LogNorm(top * 1e-4, top, clip=True)(value[order]))
    if observed is not None:
        colour[~np.asarray(observed, dtype=bool)[order], 3] = 0.45
    ax = _axes(ax)
    ax.imshow(colour, aspect="auto", interpolation="nearest")
    ax.set_xlabel("month")
    ax.set_ylabel("site, largest at the top")
    return ax
