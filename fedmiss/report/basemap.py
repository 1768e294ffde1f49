"""Coasts and borders under the map of sites, from pieces that ship with the package: no network, no tiles.

Source: Natural Earth (public domain), packed by ``reports/basemap/make.py``.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import shapely
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import NullFormatter
from numpy.typing import ArrayLike
from shapely.geometry import LinearRing, LineString, Polygon

from fedmiss.arrays import F64
from fedmiss.report.style import axes
from fedmiss.report.words import count
from fedmiss.resources import resource

CREDIT = "Coasts and borders: Natural Earth (public domain)."
LAND, SEA, LINE = "#f3f1ea", "#e3edf5", "#a9a89f"
_KM = 111.2  # kilometres in a degree of latitude
_FINE = "florida"  # finer pieces, used where they cover the whole map


class Frame(NamedTuple):
    """Limits of a map in degrees; ``squeeze`` is the height of a degree of latitude in degrees of longitude."""

    west: float
    south: float
    east: float
    north: float

    @property
    def squeeze(self) -> float:
        """How many degrees of longitude are as long as one of latitude, in the middle of the map; near the poles ten."""
        return 1.0 / max(math.cos(math.radians((self.south + self.north) / 2)), 0.1)

    @property
    def km(self) -> float:
        """Width in kilometres."""
        return (self.east - self.west) * _KM / self.squeeze


def on_map(longitude: ArrayLike) -> F64:
    """Longitudes (N,) as a map draws them: counted on beyond 180 where the places are nearer together so."""
    given = np.asarray(longitude, dtype=np.float64)
    onward = np.mod(given, 360.0)
    return onward if given.size and np.ptp(onward) < min(float(np.ptp(given)), 180.0) else given


def frame_of(longitude: F64, latitude: F64) -> Frame:
    """Return the limits around some places: a margin of a sixth, at least 20 km wide, not too narrow or flat.

    ``longitude``, ``latitude`` (N,) in degrees; longitudes as :func:`on_map` gives them.
    """
    west, east = float(longitude.min()), float(longitude.max())
    south, north = float(latitude.min()), float(latitude.max())
    x, y = (west + east) / 2, (south + north) / 2
    squeeze = Frame(west, south, east, north).squeeze
    high = max((north - south) * 1.33, 20.0 / _KM)
    # Neither narrower than it is high, nor flatter than six tenths of its width, whatever the places are.
    wide = max((east - west) * 1.33, high * squeeze * 0.95)
    high = max(high, wide / squeeze * 0.6)
    wide = min(wide, 360.0)
    return Frame(x - wide / 2, max(y - high / 2, -90.0), x + wide / 2, min(y + high / 2, 90.0))


@cache
def _piece(name: str) -> dict[str, np.ndarray]:
    with np.load(resource("reports", "basemap", f"{name}.npz")) as file:
        return {k: file[k].astype(np.int64 if k.endswith("start") else np.float64) for k in file.files}


def _pieces(name: str, kind: str, frame: Frame) -> list[F64]:
    """Rings or lines that touch the frame, those beyond the date line too."""
    points, start = _piece(name)[kind], _piece(name)[f"{kind}_start"]
    if not start.size:
        return []
    low, high = np.minimum.reduceat(points, start), np.maximum.reduceat(points, start)
    ends = np.append(start[1:], len(points))
    out = []
    for turn in ((-360.0, 0.0), (0.0, 0.0), (360.0, 0.0)):
        near = (low + turn < (frame.east, frame.north)) & (high + turn > (frame.west, frame.south))
        out += [points[start[at] : ends[at]] + turn for at in np.flatnonzero(near.all(axis=1))]
    return out


def draw_basemap(ax: Axes, frame: Frame) -> None:
    """Draw land, sea and borders into the frame; lines are thinned to what the map can show."""
    step = (frame.east - frame.west) / 700
    view = shapely.box(*frame)
    piece = _FINE if shapely.box(*_piece(_FINE)["box"]).covers(view) else "world"
    vertices: list[F64] = []
    codes: list[int] = []
    # A ring in the opposite direction is a hole by the filling rule of a path.
    cuts: dict[bool, list[shapely.Geometry]] = {True: [], False: []}
    drawn: list[tuple[bool, shapely.Geometry]] = []
    for ring in _pieces(piece, "land", frame):
        turn, inside = LinearRing(ring).is_ccw, shapely.make_valid(Polygon(ring)).intersection(view)
        if (np.abs(ring[:, 0] % 360.0 - 180.0) < 1e-6).any():
            cuts[turn].append(inside.simplify(step))
        else:  # an island of a lake is a ring within a hole: it is not joined to the land around
            drawn.append((turn, inside.simplify(step)))
    # Together, what the date line cuts in two is one again.
    drawn += [(turn, shapely.union_all(both)) for turn, both in cuts.items()]
    for turn, shape in drawn:
        for polygon in shapely.get_parts(shape):
            if polygon.geom_type != "Polygon" or polygon.is_empty:
                continue
            whole = shapely.geometry.polygon.orient(polygon, 1.0 if turn else -1.0)
            for edge in (whole.exterior, *whole.interiors):
                line = np.round(np.asarray(edge.coords), 4)
                vertices.append(line)
                codes += [int(Path.MOVETO), *[int(Path.LINETO)] * (len(line) - 2), int(Path.CLOSEPOLY)]
    ax.set_facecolor(SEA)
    if vertices:
        ax.add_patch(PathPatch(Path(np.concatenate(vertices), codes), fc=LAND, ec=LINE, lw=0.6, zorder=0))
    for line in _pieces("world", "border", frame):
        cut = LineString(line).simplify(step)
        ax.plot(*np.asarray(cut.coords).T, color=LINE, lw=0.7, ls=(0, (4, 2)), zorder=0.5)
    ax.set_xlim(frame.west, frame.east)
    ax.set_ylim(frame.south, frame.north)
    ax.set_aspect(frame.squeeze)
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color(LINE)


def draw_scale(ax: Axes, frame: Frame) -> None:
    """Draw a scale bar of a round length, about a quarter of the width, into the lower left corner, and north above it."""
    aim = frame.km / 4
    # 1, 2 or 5 times a power of ten, the largest that is no longer than the aim.
    power = 10.0 ** math.floor(math.log10(aim))
    length = max(step * power for step in (1, 2, 5) if step * power <= aim)
    degrees, high = length / _KM * frame.squeeze, frame.north - frame.south
    left, bottom = frame.west + 0.04 * (frame.east - frame.west), frame.south + 0.05 * high
    right, top = left + degrees, bottom + 0.012 * high
    ax.plot([left, left, right, right], [top, bottom, bottom, top], color="#333333", lw=1.1, zorder=5)
    middle = (left + degrees / 2, top)
    ax.annotate(f"{length:g} km", middle, ha="center", va="bottom", fontsize=8, zorder=5)
    arrow = {"arrowstyle": "-|>", "color": "#333333", "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    foot, tip = (left, bottom + 0.05 * high), (left, bottom + 0.11 * high)
    ax.annotate("", tip, foot, arrowprops=arrow, zorder=5)
    ax.annotate("N", tip, ha="center", va="bottom", fontsize=8, zorder=5)


def empty_map(frame: Frame, *, more: float, least: float) -> tuple[Figure, Axes]:
    """A figure of the frame's shape with coasts and scale, to draw sites on.

    ``more``: inches beside the map itself, for legends and colour bars; ``least``: least height, inches.
    """
    height = 4.7 * (frame.north - frame.south) * frame.squeeze / (frame.east - frame.west) + more
    fig, ax = axes(height=float(np.clip(height, least, 6.6)))
    draw_basemap(ax, frame)
    draw_scale(ax, frame)
    ax.set_xticks([])
    ax.set_yticks([])
    return fig, ax


def colour_bar(fig: Figure, ax: Axes, colours: ScalarMappable, label: str, *, plain: bool = False) -> None:
    """Add a bar under a map; ``plain``: its numbers as they are, although its scale is logarithmic."""
    bar = fig.colorbar(colours, ax=ax, orientation="horizontal", fraction=0.04, pad=0.02, aspect=45)
    if plain:
        bar.ax.xaxis.set_major_formatter("{x:g}")
        bar.ax.xaxis.set_minor_formatter(NullFormatter())
    bar.set_label(label, fontsize=8.5)
    bar.ax.tick_params(labelsize=8)


def unplaced(unknown: int, n_sites: int) -> str:
    """Say how many of the sites a map has no place for; empty where it has all."""
    if not unknown:
        return ""
    have, are = ("has", "is") if unknown == 1 else ("have", "are")
    return f" {count(unknown)} of {count(n_sites)} sites {have} no coordinates and {are} not on it."
