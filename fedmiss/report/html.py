"""Templates of ``reports/`` to self-contained HTML."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedmiss.report.analysis import Analysis
from fedmiss.report.findings import Findings
from fedmiss.report.prose import Headline, headline
from fedmiss.report.sections import ORDER, Section
from fedmiss.report.share import cite_as, meta_tags, photo_uri
from fedmiss.report.style import PAINTS, Plot
from fedmiss.report.words import count
from fedmiss.resources import resource
from fedmiss.version import __version__

__all__ = ["environment", "inline_svg", "page", "rendered_page"]


_PAINT = re.compile(rf"\b(fill|stroke): ({'|'.join(PAINTS)})(?![0-9a-f])")


def inline_svg(plot: Plot) -> Markup:
    """Return the figure for the page: scaled by the page, named for a screen reader, its ids its own."""
    text = plot.svg[plot.svg.index("<svg") :]
    # Ids are made unique to the figure: two figures of one page may define the same clip path or marker.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{plot.name}-\1"', text)
    text = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{plot.name}-\2"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{plot.name}-\1)", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _PAINT.sub(lambda m: f"{m[1]}: var(--f-{PAINTS[m[2]]})", text)
    text = text.replace("</svg>", f"{_marks(plot)}</svg>")
    label = f'role="img" aria-label="{escape(plot.alt)}"'
    return Markup(_open_tag(text, label))


def _marks(plot: Plot) -> str:
    """Return a rectangle over each mark of a figure, with its words as title: browsers show them without a script."""
    if not plot.marks:
        return ""
    fig, axes = plot.figure, plot.figure.axes
    at = np.array([x for x, _ in plot.marks], dtype=float)
    px = axes[0].transData.transform(np.column_stack([at, np.zeros(at.size)]))[:, 0] * 72.0 / fig.dpi
    middle = (px[1:] + px[:-1]) / 2.0
    half = float(np.min(np.diff(px))) / 2.0 if px.size > 1 else 9.0
    edges = np.concatenate([[px[0] - half], middle, [px[-1] + half]])
    high = 72.0 * fig.get_figheight()
    boxes = [a.get_position() for a in axes]
    top, bottom = (1.0 - max(b.y1 for b in boxes)) * high, (1.0 - min(b.y0 for b in boxes)) * high
    return "".join(
        f'<rect class="h" x="{a:.1f}" y="{top:.1f}" width="{b - a:.1f}" height="{bottom - top:.1f}">'
        f"<title>{escape(words)}</title></rect>"
        for a, b, (_, words) in zip(edges[:-1], edges[1:], plot.marks, strict=True)
    )


def _open_tag(text: str, label: str) -> str:
    end = text.index(">")
    tag = re.sub(r'\s(width|height)="[^"]+"', "", text[:end])
    return f"{tag} {label}{text[end:]}"


def _sortable(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(float(value))


def environment() -> Environment:
    """Return the template environment; an undefined name is an error, and everything is escaped."""
    env = Environment(
        loader=FileSystemLoader(resource("reports")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["svg"] = inline_svg
    env.filters["sortable"] = _sortable
    return env


def assets(*scripts: str) -> dict[str, object]:
    """Return what every page contains: style, version, the scripts of all pages, and those named."""
    return {
        "css": Markup(resource("reports", "style.css").read_text(encoding="utf-8")),
        "js": Markup("\n".join(_script(n) for n in ("sort", "hover", *scripts))),
        "version": __version__,
    }


def _script(name: str) -> str:
    return resource("reports", f"{name}.js").read_text(encoding="utf-8")


def page(a: Analysis, plots: dict[str, Plot]) -> str:
    """Render the report of one species."""
    modules = [importlib.import_module(f"fedmiss.report.sections.{name}") for name in ORDER]
    sections = [s for m in modules if (s := m.build(a, plots)) is not None]
    return rendered_page(a, sections, headline(a), tags=meta_tags(a), cite=cite_as(a))


def rendered_page(
    a: Findings,
    sections: Sequence[Section],
    head: Headline,
    *,
    tags: Mapping[str, str],
    cite: str,
    kind: str = "trend report",
) -> str:
    """Render a page of these sections; ``kind`` is the report of what, in words."""
    env = environment()
    rendered = []
    for section in sections:
        html = env.get_template(f"species/sections/{section.id}.html.j2").render(**section.values)
        rendered.append(
            {"id": section.id, "title": section.title, "html": Markup(html), "hidden": section.scripted}
        )
    months = a.data.months["year" if a.yearly_counts else "month"]
    return env.get_template("species/page.html.j2").render(
        title=a.settings.title or a.name,
        latin=a.species if a.common_name else "",
        months=f"{months.iloc[0]} to {months.iloc[-1]}",
        n_sites=count(a.n_sites),
        date=a.date,
        headline=head,
        sections=rendered,
        tags=tags,
        photo=photo_uri(a.settings.photo),
        photo_credit=a.settings.photo_credit,
        cite=cite,
        kind=kind,
        **assets("question", "ask"),
    )
