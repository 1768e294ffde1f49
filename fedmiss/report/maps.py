"""The two figures that show every site: the site x month matrix, and the map."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.report.analysis import MIN_SITE_YEARS, Analysis
from fedmiss.report.style import CLASS_COLOURS, GREY, INK, Plot, figure
from fedmiss.report.words import count, share

__all__ = ["heatmap", "site_map"]

MAX_ROWS = 250  # more rows than this are thinner than a printed hair
MAX_CIRCLES = 1500  # more than this are drawn as an image: as shapes they would make the page heavy


def _rows(a: Analysis) -> I64:
    """Sites to draw, largest mean first; the most often counted ones when there are too many."""
    mean = a.data.expected.mean(axis=1)
    chosen = np.arange(mean.size)
    if mean.size > MAX_ROWS:
        times = a.data.observed.sum(axis=1)
        chosen = np.lexsort((-mean, -times))[:MAX_ROWS]
    return np.asarray(chosen[np.argsort(-mean[chosen], kind="stable")], dtype=np.int64)


def heatmap(a: Analysis) -> Plot:
    """Draw sites x months: cells with a count in colour, imputed cells in grey, on one logarithmic scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter

    rows = _rows(a)
    value, seen = a.data.expected[rows], a.data.observed[rows]
    positive = value[value > 0]
    top = float(np.quantile(positive, 0.999)) if positive.size else 1.0
    floor = max(float(np.quantile(positive, 0.02)) if positive.size else 0.01, top * 1e-4)
    norm = LogNorm(floor, max(top, floor * 10), clip=True)
    clipped = np.maximum(value, floor)
    what = "chance of presence" if a.unit != "birds" else a.unit
    image = _paint(clipped, seen, norm)
    tall = float(np.clip(0.02 * len(rows) + 1.6, 2.4, 6.0))
    fig = figure(height=tall + 0.7)
    ax = fig.subplots()
    ax.imshow(
        image,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, value.shape[1] - 0.5, len(rows) - 0.5, -0.5),
    )
    year = a.data.months["year"].to_numpy()
    starts = np.flatnonzero(np.r_[True, year[1:] != year[:-1]])
    step = max(1, int(np.ceil(len(starts) / 8)))
    ax.set_xticks(starts[::step] - 0.5, [str(y) for y in year[starts[::step]]])
    ax.set_yticks([])
    ax.set_ylabel(f"{count(len(rows))} sites, largest at the top")
    for cmap, label in (("Blues", f"{what}, counted cells"), ("Greys", f"{what}, imputed cells")):
        bar = fig.colorbar(
            ScalarMappable(norm, _clip_map(cmap)),
            ax=ax,
            orientation="horizontal",
            fraction=0.05,
            pad=0.02,
            aspect=40,
        )
        bar.ax.set_title(label, fontsize=8, pad=2)
        bar.ax.tick_params(labelsize=8, pad=1)
        bar.ax.minorticks_off()
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}"))
    some = (
        f" The {MAX_ROWS} most often counted of {count(a.coverage.n_sites)} sites."
        if len(rows) < a.coverage.n_sites
        else ""
    )
    caption = (
        f"Expected {what} at standard effort in every site and month (logarithmic scale).{some} Blue: cells with a count; "
        "grey: cells that were imputed."
    )
    alt = (
        f"Matrix of {count(len(rows))} sites by {count(value.shape[1])} months; "
        f"{share(float(seen.mean()))} of its cells were "
        "counted (blue), the others imputed (grey)."
    )
    table = pd.DataFrame(
        {
            "site_index": np.repeat(rows, value.shape[1]),
            "month": np.tile(a.data.months["month"].to_numpy(), len(rows)),
            "expected": value.ravel(),
            "observed": seen.ravel(),
        }
    )
    return Plot("heatmap", "Sites and months", caption, alt, fig, table)


def _clip_map(name: str):  # type: ignore[no-untyped-def]
    """Return a sequential map without its white end, so that a small number is not taken for an empty cell."""
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap

    lo, hi = (0.25, 1.0) if name == "Blues" else (0.08, 0.75)
    return LinearSegmentedColormap.from_list(name, matplotlib.colormaps[name](np.linspace(lo, hi, 64)))


def _paint(value: F64, seen: np.ndarray, norm) -> np.ndarray:  # type: ignore[no-untyped-def]
    scaled = norm(value)
    out = _clip_map("Greys")(scaled)
    out[seen] = _clip_map("Blues")(scaled)[seen]
    return np.round(np.asarray(out) * 255).astype(np.uint8)


def site_map(a: Analysis) -> Plot | None:
    """Draw sites at their place: area by abundance, colour by trend class, a dot where no class is given."""
    table = a.sites[a.sites["latitude"].notna() & a.sites["longitude"].notna()]
    if table.empty:
        return None
    if a.settings.coarse_map > 0:
        table = _merge_places(table)
    lon, lat = table["longitude"].to_numpy(), table["latitude"].to_numpy()
    squeeze = 1.0 / max(np.cos(np.deg2rad(float(np.mean(lat)))), 0.1)
    tall = max(np.ptp(lat) * squeeze, 1e-3) / max(np.ptp(lon), 1e-3)
    fig = figure(height=float(np.clip(4.6 * tall + 0.9, 3.0, 6.5)))
    ax = fig.subplots()
    size = np.sqrt(np.maximum(table["mean_total"].to_numpy(), 0.0))
    crowd = float(np.clip(np.sqrt(300 / len(table)), 0.15, 1.0))  # many sites: smaller circles
    area = crowd * (10 + 190 * (size / max(float(size.max()), 1e-9)) ** 2)
    order = np.argsort(-area, kind="stable")
    present = []
    for name, colour in reversed(CLASS_COLOURS.items()):  # those without a class lie below
        pick = order[(table["trend_class"] == name).to_numpy()[order]]
        if pick.size == 0:
            continue
        open_ring = name == "not classified"
        ax.scatter(
            lon[pick], lat[pick], s=area[pick], alpha=0.85, linewidths=0.6,
            facecolors="none" if open_ring else colour, edgecolors=GREY if open_ring else INK, label=f"{name} ({pick.size})",
            rasterized=len(table) > MAX_CIRCLES,
        )  # fmt: skip
        present.append(f"{pick.size} {name}")
    ax.set_aspect(squeeze, adjustable="datalim")
    ax.margins(0.08)
    ax.grid(color="#e3e3e3", lw=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel("longitude, degrees east")
    ax.set_ylabel("latitude, degrees north")
    handles = ax.get_legend_handles_labels()
    legend = fig.legend(*handles, loc="outside upper left", ncols=2, frameon=False, fontsize=8.5)
    for handle in legend.legend_handles:
        handle.set_sizes([40])  # type: ignore[union-attr]
    unknown = a.coverage.n_sites - a.coverage.sites_with_coordinates
    missing = (
        f" {count(unknown)} of {count(a.coverage.n_sites)} sites have no coordinates and are not on it."
        if unknown
        else ""
    )
    coarse = (
        f" Positions are rounded to {a.settings.coarse_map:g} degrees and sites at one position are added up."
        if a.settings.coarse_map
        else ""
    )
    why = f"counted in fewer than {MIN_SITE_YEARS} years, or no interval"
    if a.data.one_trend:
        why = "the model has rank 0, so all sites share one trend"
    caption = (
        "Sites: the area of a circle is the mean estimated total, its colour the class of the site's own trend. Open "
        f"circles: no class ({why}).{missing}{coarse}"
    )
    alt = f"Map of {count(len(table))} positions: {', '.join(present)}."
    return Plot("map", "Map of sites", caption, alt, fig, table)


def _merge_places(table: pd.DataFrame) -> pd.DataFrame:
    """Add up sites that share a rounded position; the largest site's trend speaks for the place."""
    ordered = table.sort_values("mean_total", ascending=False)
    merged = ordered.groupby(["latitude", "longitude"], as_index=False, sort=True).agg(
        n_sites=("site_index", "size"),
        mean_total=("mean_total", "sum"),
        trend_class=("trend_class", "first"),
        percent_per_year=("percent_per_year", "first"),
    )
    return merged
