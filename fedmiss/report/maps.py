"""The matrix of sites and months: what was counted and what was filled."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedmiss.arrays import F64, I64, U8, Bool
from fedmiss.report.analysis import Analysis
from fedmiss.report.style import Plot, figure
from fedmiss.report.words import count, share

__all__ = ["heatmap"]

MAX_ROWS = 250  # more rows than this are thinner than a printed hair


def _rows(a: Analysis) -> I64:
    """Sites to draw, largest mean first; the most often counted ones when there are too many."""
    mean = a.data.expected.mean(axis=1)
    chosen = np.arange(mean.size)
    if mean.size > MAX_ROWS:
        times = a.data.observed.sum(axis=1)
        chosen = np.lexsort((-mean, -times))[:MAX_ROWS]
    return np.asarray(chosen[np.argsort(-mean[chosen], kind="stable")], dtype=np.int64)


def heatmap(a: Analysis) -> Plot | None:
    """Draw sites x months: cells with a count in colour, imputed cells in grey, on one logarithmic scale.

    None for a species that was never found.
    """
    if not a.coverage.n_detected:
        return None
    rows = _rows(a)
    value, seen = a.data.expected[rows], a.data.observed[rows]
    what = "chance of presence" if a.data.fact("family") == "bernoulli" else a.unit
    n_months = value.shape[1]
    some = (
        f" The {MAX_ROWS} most often counted of {count(a.coverage.n_sites)} sites."
        if len(rows) < a.coverage.n_sites
        else ""
    )
    time = "year" if a.yearly_counts else "month"
    caption = (
        f"Expected {what} at standard effort in every site and {time} (logarithmic scale).{some} Blue: cells with a count; "
        "grey: cells that were imputed."
    )
    alt = (
        f"Matrix of {count(len(rows))} sites by {count(n_months)} {time}s; {share(float(seen.mean()))} of its cells were "
        "counted (blue), the others imputed (grey)."
    )
    table = pd.DataFrame(
        {
            "site_index": np.repeat(rows, n_months),
            "month": np.tile(a.data.months["month"].to_numpy(), len(rows)),
            "expected": value.ravel(),
            "observed": seen.ravel(),
        }
    )
    fig = _draw(value, seen, a.data.months["year"].to_numpy(), what)
    return Plot("heatmap", f"Sites and {time}s", caption, alt, fig, table)


def _draw(value: F64, seen: Bool, year: I64, what: str) -> Figure:
    """Draw the matrix (rows, months) with a colour bar for counted and one for imputed cells."""
    n_rows, n_months = value.shape
    positive = value[value > 0]
    top = float(np.quantile(positive, 0.999)) if positive.size else 1.0
    floor = max(float(np.quantile(positive, 0.02)) if positive.size else 0.01, top * 1e-4)
    norm = LogNorm(floor, max(top, floor * 10), clip=True)
    fig = figure(height=float(np.clip(0.02 * n_rows + 1.6, 2.4, 6.0)) + 0.7)
    ax = fig.subplots()
    ax.imshow(
        _paint(np.maximum(value, floor), seen, norm),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, n_months - 0.5, n_rows - 0.5, -0.5),
    )
    starts = np.flatnonzero(np.r_[True, year[1:] != year[:-1]])
    step = max(1, int(np.ceil(len(starts) / 8)))
    ax.set_xticks(starts[::step] - 0.5, [str(y) for y in year[starts[::step]]])
    ax.set_yticks([])
    ax.set_ylabel(f"{count(n_rows)} sites, largest at the top")
    for cmap, label in (("Blues", f"{what}, counted cells"), ("Greys", f"{what}, imputed cells")):
        colours = ScalarMappable(norm, _clip_map(cmap))
        bar = fig.colorbar(colours, ax=ax, orientation="horizontal", fraction=0.05, pad=0.02, aspect=40)
        bar.ax.set_title(label, fontsize=8, pad=2)
        bar.ax.tick_params(labelsize=8, pad=1)
        bar.ax.minorticks_off()
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}"))
    return fig


def _clip_map(name: str) -> LinearSegmentedColormap:
    """Return a sequential map without its white end, so that a small number is not taken for an empty cell."""
    lo, hi = (0.25, 1.0) if name == "Blues" else (0.08, 0.75)
    return LinearSegmentedColormap.from_list(name, colormaps[name](np.linspace(lo, hi, 64)))


def _paint(value: F64, seen: Bool, norm: LogNorm) -> U8:
    scaled = norm(value)
    out = _clip_map("Greys")(scaled)
    out[seen] = _clip_map("Blues")(scaled)[seen]
    return np.round(np.asarray(out) * 255).astype(np.uint8)
