"""Reports whose figures are blank: drawing is most of a report's time, and no part of what most laws are about."""

import functools
import io
from collections.abc import Callable, Iterator

import pytest


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Make figures that go into memory blank. One that goes to a file is drawn; matplotlib first prints one for its size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    def blank(drawn: Callable, nothing: str | bytes) -> Callable:
        @functools.wraps(drawn)  # matplotlib reads which arguments it takes
        def write(self: object, target: object, **more: object) -> None:
            if isinstance(target, io.IOBase) and "metadata" in more:
                target.write(nothing)
            else:
                drawn(self, target, **more)

        return write

    svg = '<svg width="9pt" height="9pt"/>'
    patch.setattr(FigureCanvasSVG, "print_svg", blank(FigureCanvasSVG.print_svg, svg))
    patch.setattr(FigureCanvasAgg, "print_png", blank(FigureCanvasAgg.print_png, b"PNG"))
    patch.setattr(ConstrainedLayoutEngine, "execute", lambda self, figure: None)


@pytest.fixture(scope="module")
def blank_figures() -> Iterator[None]:
    """For a whole module: ``pytestmark = pytest.mark.usefixtures("blank_figures")``.

    Not where a page of a fixture of the session is made: other modules would read it without its figures.
    """
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield
