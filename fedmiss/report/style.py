"""How figures look and how they are written: colour-blind-safe, and the same bytes every time."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): distinct with every common colour vision deficiency.
BLUE, ORANGE, GREEN, SKY, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#8a8a8a", "#222222"
PEACH = "#f0b48c"  # bars beside orange lines
CLASS_COLOURS = {
    "strong increase": "#0072B2",
    "moderate increase": "#56B4E9",
    "stable": "#009E73",
    "moderate decline": "#E69F00",
    "strong decline": "#D55E00",
    "uncertain": "#bbbbbb",
    "not classified": "#ffffff",
}

# What the page paints in its own colours, so that a dark page has dark figures: reports/style.css has both palettes.
PAINTS = {
    INK: "ink", "#333333": "ink", "#444444": "axis", "#777777": "axis", GREY: "grey", "#dddddd": "pale", "#dcdcdc": "pale",
    "#d0d0d0": "pale", "#ffffff": "paper", BLUE.lower(): "blue", SKY.lower(): "sky", ORANGE.lower(): "orange",
    GREEN.lower(): "green", "#e69f00": "gold", PEACH: "peach", "#bbbbbb": "dim", "#f3f1ea": "land", "#e3edf5": "sea",
    "#a9a89f": "coast",
}  # fmt: skip

_DOTS = 200  # an inch, in the PNG and in pictures inside the SVG
_RC: dict[Any, Any] = {
    "svg.hashsalt": "fedmiss",
    "svg.fonttype": "none",  # text stays text: searchable, and small files
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "text.color": INK,
    "text.parse_math": False,  # names of users may hold dollar signs; they are text, no formula
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "axes.formatter.useoffset": False,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Plot:
    """One figure: file name, caption, text for those who do not see it, and the numbers it shows.

    ``marks``: places on the axis of the first axes, in order, and the values there in words, shown on pointing.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    data: pd.DataFrame
    marks: Sequence[tuple[float, str]] = ()

    @cached_property
    def svg(self) -> str:
        """The figure as SVG, drawn once for the page and the file."""
        return svg_text(self.figure)


@contextmanager
def style() -> Iterator[None]:
    """Set matplotlib's parameters for the report, and only inside the block."""
    # matplotlib takes a second to load, and the colours are needed without it.
    import matplotlib

    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # Names in scripts that the font lacks are text in the SVG: the reader's browser has a font for them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def figure(width: float = 5.0, height: float = 3.4) -> Figure:
    """Return a new figure outside pyplot, in inches; 5.0 is legible on a phone when scaled to its width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def axes(width: float = 5.0, height: float = 3.4) -> tuple[Figure, Axes]:
    """Return a new figure and its only axes."""
    fig = figure(width, height)
    return fig, fig.subplots()


def svg_text(fig: Figure) -> str:
    """Return the figure as SVG, without date and with ids that do not change from run to run."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with style(), _at(fig, _DOTS):
        canvas: Any = FigureCanvasSVG(fig)  # matplotlib gives it no types
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": "fedmiss"})
    return buffer.getvalue()


def png_bytes(fig: Figure) -> bytes:
    """Return the figure as PNG at 200 dots per inch, without metadata that changes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    with style(), _at(fig, _DOTS):
        canvas: Any = FigureCanvasAgg(fig)
        canvas.print_png(buffer, metadata={"Software": None}, pil_kwargs={"compress_level": 2})
    return buffer.getvalue()


@contextmanager
def _at(fig: Figure, dots: float) -> Iterator[None]:
    """Give a figure these dots an inch, inside the block. ``savefig`` does so too, and draws everything twice."""
    before, canvas = fig.dpi, fig.canvas
    try:
        fig.dpi = dots
        yield
    finally:
        fig.dpi = before
        fig.set_canvas(canvas)


def lay_out(fig: Figure) -> None:
    """Lay a figure out once; its files then share one layout."""
    if engine := fig.get_layout_engine():
        with style():
            engine.execute(fig)
        fig.set_layout_engine("none")
