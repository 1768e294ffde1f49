"""Pictures of places: the matrix of sites and months, and the map, as circles or as hexagons where sites are many."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import RegularPolyCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64, U8, Bool
from fedmiss.report.analysis import Analysis
from fedmiss.report.basemap import CREDIT, Frame, colour_bar, empty_map, frame_of, on_map, unplaced
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.coverage import MIN_SITE_YEARS
from fedmiss.report.slopes import log_slope
from fedmiss.report.style import CLASS_COLOURS, GREY, INK, Plot, axes
from fedmiss.report.words import count, number, percent, share

MAX_ROWS = 250  # more rows than this are thinner than a printed hair


def _rows(analysis: Analysis) -> I64:
    """Sites to draw, largest mean first; the most often counted ones when there are too many."""
    mean = analysis.data.expected.mean(axis=1)
    chosen = np.arange(mean.size)
    if mean.size > MAX_ROWS:
        times = analysis.data.observed.sum(axis=1)
        # lexsort sorts by its last key first: by how often a site was counted, then by its mean.
        chosen = np.lexsort((-mean, -times))[:MAX_ROWS]
    return np.asarray(chosen[np.argsort(-mean[chosen], kind="stable")], dtype=np.int64)


def heatmap(analysis: Analysis) -> Plot | None:
    """Draw sites x months: cells with a count in colour, imputed cells in grey, on one logarithmic scale.

    None for a species that was never found.
    """
    if not analysis.coverage.n_detected:
        return None
    rows = _rows(analysis)
    value, seen = analysis.data.expected[rows], analysis.data.observed[rows]
    what = analysis.unit_of_site
    n_months = value.shape[1]
    some = f" The {MAX_ROWS} most often counted of {count(analysis.n_sites)} sites."
    some = some if len(rows) < analysis.n_sites else ""
    time = "year" if analysis.yearly_counts else "month"
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
            "month": np.tile(analysis.data.months["month"].to_numpy(), len(rows)),
            "expected": value.ravel(),
            "observed": seen.ravel(),
        }
    )
    fig = _draw(value, seen, analysis.data.months["year"].to_numpy(), what)
    return Plot("heatmap", f"Sites and {time}s", caption, alt, fig, table)


def _draw(value: F64, seen: Bool, year: I64, what: str) -> Figure:
    """Draw the matrix (rows, months) with a colour bar for counted and one for imputed cells."""
    n_rows = len(value)
    positive = value[value > 0]
    top = float(np.quantile(positive, 0.999)) if positive.size else 1.0
    # A logarithmic scale of four decades at most: a few tiny expected counts would take all colours.
    floor = max(float(np.quantile(positive, 0.02)) if positive.size else 0.01, top * 1e-4)
    norm = LogNorm(floor, max(top, floor * 10), clip=True)
    fig, ax = axes(height=float(np.clip(0.02 * n_rows + 1.6, 2.4, 6.0)) + 0.7)
    ax.imshow(_paint(np.maximum(value, floor), seen, norm), aspect="auto", interpolation="nearest")
    # The first month of each year on the axis; at most eight are named.
    starts = np.flatnonzero(np.r_[True, year[1:] != year[:-1]])
    step = max(1, int(np.ceil(len(starts) / 8)))
    ax.set_xticks(starts[::step] - 0.5, [str(each) for each in year[starts[::step]]])
    ax.set_yticks([])
    ax.set_ylabel(f"{count(n_rows)} sites, largest at the top")
    for cmap, label in (("Blues", f"{what}, counted cells"), ("Greys", f"{what}, imputed cells")):
        colours = ScalarMappable(norm, _clip_map(cmap))
        bar = fig.colorbar(colours, ax=ax, orientation="horizontal", fraction=0.05, pad=0.02, aspect=40)
        bar.ax.set_title(label, fontsize=8, pad=2)
        bar.ax.tick_params(labelsize=8, pad=1)
        bar.ax.minorticks_off()
        bar.ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 100 * floor else (1,)))
        bar.ax.xaxis.set_major_formatter("{x:,.10g}")
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


# -- the map of sites ----------------------------------------------------------------------------------------


HEXAGONS_FROM = 400  # circles of more sites than this hide each other
_ACROSS = 28  # hexagons in the width of the map


def site_map(analysis: Analysis) -> Plot | None:
    """Draw the sites that have coordinates; None when none has."""
    table = analysis.sites.dropna(subset=["latitude", "longitude"])
    if table.empty:
        return None
    visits = analysis.data.cells.groupby("site_index")["n_visits"].sum()
    table = table.assign(visits=visits.reindex(table["site_index"]).fillna(0).to_numpy(np.int64))
    table = table.assign(longitude=on_map(table["longitude"]))
    sites = table  # hexagons add up sites, and places show one trend each
    if analysis.settings.coarse_map > 0:
        table = _merge_places(table)
    frame = frame_of(table["longitude"].to_numpy(), table["latitude"].to_numpy())
    fig, ax = empty_map(frame, more=1.1, least=3.2)
    if len(table) > HEXAGONS_FROM:
        table = hexagons(sites, analysis, frame)
        caption, alt = _draw_hexagons(fig, ax, table, analysis)
    elif not analysis.sites_differ:
        caption, alt = _draw_means(fig, ax, table, analysis)
    else:
        caption, alt = _draw_classes(fig, ax, table, frame_of_sites=not analysis.visited.empty)
    beyond = table["longitude"] > 180.0
    table["longitude"] = table["longitude"].where(~beyond, table["longitude"] - 360.0)
    return Plot("map", "Map of sites", f"{caption}{_beside(analysis)} {CREDIT}", alt, fig, table)


def _beside(analysis: Analysis) -> str:
    said = unplaced(analysis.n_sites - analysis.coverage.sites_with_coordinates, analysis.n_sites)
    if degrees := analysis.settings.coarse_map:
        said += f" Positions are rounded to {degrees:g} degrees and sites at one position are added up."
    return said


def _areas(table: pd.DataFrame) -> F64:
    """Areas of circles in points squared, proportional to the mean; a floor keeps the smallest visible."""
    size = np.maximum(table["mean_total"].fillna(0.0).to_numpy(dtype=float), 0.0)
    # Area and not radius is proportional to the mean: the eye compares areas.
    crowd = float(np.clip(np.sqrt(300 / len(table)), 0.4, 1.0))  # many sites: smaller circles
    if not size.any():  # no year has an index: alike
        return np.full(size.shape, 40.0 * crowd)
    return np.asarray(crowd * np.maximum(320.0 * size / max(float(size.max()), 1e-9), 9.0))


def _size_legend(fig: Figure, table: pd.DataFrame, areas: F64, unit: str) -> None:
    """Show what an area means, by three circles."""
    top = float(table["mean_total"].max())
    if not top > 0:
        return
    power = 10.0 ** np.floor(np.log10(top))
    per, largest = float(areas.max()) / top, power * np.floor(top / power + 1e-9)  # one digit
    handles = [
        Line2D(
            [], [], ls="none", marker="o", mfc="none", mec=INK, ms=float(np.sqrt(max(value * per, 9.0))),
            label=f"{value:,.9g}",  # all its digits: the circle is as large as it says
        )
        for value in (largest, largest / 4, largest / 20)
        if value > 0
    ]  # fmt: skip
    fig.legend(
        handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=8.5, title=f"{unit}, mean of the years",
        title_fontsize=8.5, columnspacing=2.2, handletextpad=1.1, alignment="left",
    )  # fmt: skip


def _draw_classes(fig: Figure, ax: Axes, table: pd.DataFrame, *, frame_of_sites: bool) -> tuple[str, str]:
    areas = _areas(table)
    order = np.argsort(-areas, kind="stable")
    present = []
    never = (table["visits"] == 0).to_numpy() & frame_of_sites
    if never.any():
        pick = order[never[order]]
        ax.scatter(
            table["longitude"].iloc[pick], table["latitude"].iloc[pick], s=areas[pick], linewidths=0.6, facecolors="none",
            edgecolors=GREY, label=f"never visited ({pick.size})", zorder=2,
        )  # fmt: skip
        present.append(f"{pick.size} never visited")
    for name, colour in reversed(CLASS_COLOURS.items()):  # sites without a class are drawn first
        pick = order[((table["trend_class"] == name).to_numpy() & ~never)[order]]
        if pick.size == 0:
            continue
        part = table.iloc[pick]
        ax.scatter(
            part["longitude"], part["latitude"], s=areas[pick], alpha=0.85, linewidths=0.6, facecolors=colour,
            edgecolors=INK, label=f"{name} ({pick.size})", zorder=3,
        )  # fmt: skip
        present.append(f"{pick.size} {name}")
    legend = fig.legend(
        *ax.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False, fontsize=8.5
    )
    for handle in legend.legend_handles:
        handle.set_sizes([40])  # type: ignore[union-attr]
    caption = (
        "Each circle is a site. Its area is the mean estimated total, its colour the class of the site's own trend. "
        f"Unfilled: no class (counted in fewer than {MIN_SITE_YEARS} years, no interval, or no class of all sites together)."
    )
    if never.any():
        caption += " Grey rings: sites that nobody visited, with what is expected there."
    return caption, f"Map of {count(len(table))} sites: {', '.join(present)}."


def _draw_means(fig: Figure, ax: Axes, table: pd.DataFrame, analysis: Analysis) -> tuple[str, str]:
    """Draw mean totals and numbers of visits, where the trends of sites do not differ."""
    areas = _areas(table)
    order = np.argsort(-areas, kind="stable")
    part, visits = table.iloc[order], np.maximum(table["visits"].to_numpy()[order], 1)
    points = ax.scatter(
        part["longitude"], part["latitude"], s=areas[order], c=visits, cmap="YlGnBu", alpha=0.9, linewidths=0.6,
        edgecolors=INK, norm=LogNorm(1, max(int(visits.max()), 10)), zorder=3,
    )  # fmt: skip
    colour_bar(fig, ax, points, "visits", plain=True)
    if not analysis.years.used.any():
        return (
            f"Each circle is a site, its colour the number of visits. {analysis.no_index}, and the map has no "
            "numbers or trends."
        ), f"Map of {count(len(table))} sites by visits."
    _size_legend(fig, table, areas, analysis.unit)
    caption = (
        f"Each circle is a site. Its area is the mean estimated number of {analysis.unit}, its colour the number of visits. "
        f"{analysis.data.alike} share one trend in this model, so trends are not on the map."
    )
    return caption, f"Map of {count(len(table))} sites by mean number of {analysis.unit} and visits."


def hexagons(table: pd.DataFrame, analysis: Analysis, frame: Frame) -> pd.DataFrame:
    """Add sites up in hexagons of equal size on the map; the change is that of the hexagon's yearly totals.

    Returns
    -------
    Frame, one row per hexagon: ``longitude``, ``latitude`` of its middle, ``n_sites``, ``visits``, ``mean_total``,
    ``percent_per_year`` (of the sum over its sites; NaN where every total is 0, the species was never found or the model
    has one trend), ``width_km``.
    """
    width = (frame.east - frame.west) / _ACROSS
    # Places in widths of a hexagon; squeeze makes a degree of latitude as long as one of longitude at the frame's middle.
    across = (table["longitude"].to_numpy() - frame.west) / width
    up = (table["latitude"].to_numpy() - frame.south) * frame.squeeze / width
    centre = _nearest_centre(across, up)
    middle, hexagon = np.unique(centre, axis=0, return_inverse=True)

    def summed(values: ArrayLike) -> F64:
        return np.bincount(hexagon.ravel(), weights=np.asarray(values)).astype(np.float64)

    slope: F64 = np.full(len(middle), np.nan)
    if analysis.sites_differ:
        used = analysis.years.used
        per_year = analysis.data.expected[table["site_index"].to_numpy()] @ analysis.years.W[used].T
        # The trend of the hexagon's own total: a mean of its sites'
        # trends would weigh a site of two birds like one of 2,000.
        totals = np.column_stack([summed(column) for column in per_year.T])
        slope = log_slope(analysis.years.year[used], totals)
        # sites where the species was never found have no trend, and no more have several of them
        slope[summed(table["percent_per_year"].notna()) == 0] = np.nan
    return pd.DataFrame(
        {
            "longitude": frame.west + middle[:, 0] * width,
            "latitude": frame.south + middle[:, 1] * width / frame.squeeze,
            "n_sites": summed(np.ones(len(table))).astype(np.int64),
            "visits": summed(table["visits"]).astype(np.int64),
            "mean_total": summed(table["mean_total"]),
            "percent_per_year": 100.0 * (np.exp(slope) - 1.0),
            "width_km": frame.km / _ACROSS,
        }
    )


def _nearest_centre(x: F64, y: F64) -> F64:
    """Middles of the hexagons of width 1 (flat to flat) that hold the points: two shifted lattices, the nearer one."""
    tall = np.sqrt(3.0)
    first = np.column_stack([np.round(x), np.round(y / tall) * tall])
    second = np.column_stack([np.floor(x) + 0.5, (np.floor(y / tall) + 0.5) * tall])
    points = np.column_stack([x, y])
    nearer = ((first - points) ** 2).sum(axis=1) <= ((second - points) ** 2).sum(axis=1)
    # Rounded, so that equal middles are equal numbers for np.unique.
    return np.asarray(np.round(np.where(nearer[:, None], first, second), 6))


def _draw_hexagons(fig: Figure, ax: Axes, table: pd.DataFrame, analysis: Analysis) -> tuple[str, str]:
    trend = analysis.sites_differ
    values = table["percent_per_year"] if trend else np.maximum(table["visits"], 1)
    norm = Normalize(-10, 10, clip=True) if trend else LogNorm(1, max(int(table["visits"].max()), 10))
    # size of a hexagon in points squared: its circumscribed circle, from the width of the axes
    total = table["mean_total"].to_numpy()
    size = np.sqrt(np.maximum(total / max(float(total.max()), 1e-9), 0.0))
    inch = 4.6 / _ACROSS / np.sqrt(3.0)
    radius = inch * 72 * np.clip(0.35 + 0.65 * size, 0.35, 1.0)
    shapes = RegularPolyCollection(
        6, sizes=tuple(np.pi * radius**2), offsets=table[["longitude", "latitude"]].to_numpy(),
        offset_transform=ax.transData, cmap="RdBu" if trend else "YlGnBu", norm=norm,
        edgecolors=INK, linewidths=0.4, zorder=3,
    )  # fmt: skip
    shapes.set_array(np.asarray(values, dtype=float))
    ax.add_collection(shapes)
    label = "change per year, % (10 and beyond in full colour)" if trend else "visits"
    colour_bar(fig, ax, shapes, label, plain=not trend)
    what = "change per year of its total, without an interval" if trend else "number of visits"
    places = f"{count(int(table['n_sites'].sum()))} sites in {count(len(table))} hexagons"
    caption = (
        f"{places} of {number(float(table['width_km'].iloc[0]), 2)} km. The larger a hexagon, the more {analysis.unit} "
        f"(mean of the years); its colour is the {what}."
    )
    if not trend:
        return caption, f"Map of {places}, by visits."
    if table["percent_per_year"].isna().any():
        caption += " Without a colour: no trend, as where the species was never found."
    down = count(int((table["percent_per_year"] < 0).sum()))
    middle = percent(float(table["percent_per_year"].median()))
    return caption, f"Map of {places}: {down} of them decline; the median change is {middle} per year."


def _merge_places(table: pd.DataFrame) -> pd.DataFrame:
    """Add up sites that share a rounded position; the place shows the trend of its largest site."""
    ordered = table.sort_values("mean_total", ascending=False)
    merged = ordered.groupby(["latitude", "longitude"], as_index=False, sort=True).agg(
        n_sites=("site_index", "size"),
        visits=("visits", "sum"),
        mean_total=("mean_total", "sum"),
        trend_class=("trend_class", "first"),
        percent_per_year=("percent_per_year", "first"),
    )
    return merged.assign(trend_class=merged["trend_class"].fillna(NOT_CLASSIFIED))
