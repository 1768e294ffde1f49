"""Templates of ``reports/`` to self-contained HTML; what a page needs to be cited and passed on."""

from __future__ import annotations

import base64
import importlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedmiss.errors import ConfigError
from fedmiss.report.analysis import Analysis
from fedmiss.report.findings import Findings
from fedmiss.report.plots import index_line
from fedmiss.report.prose import Headline, headline
from fedmiss.report.sections import ORDER, Section
from fedmiss.report.style import INK, PAINTS, Plot, figure, png_bytes, style
from fedmiss.report.words import count, per_year
from fedmiss.resources import resource
from fedmiss.version import __version__

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
    # its size is the page's: the first tag keeps its viewBox alone
    tag, rest = text[: text.index(">")], text[text.index(">") :]
    tag = re.sub(r'\s(width|height)="[^"]+"', "", tag)
    return Markup(f'{tag} role="img" aria-label="{escape(plot.alt)}"{rest}')


def _marks(plot: Plot) -> str:
    """Return a rectangle over each mark of a figure, with its words as title: browsers show them without a script."""
    if not plot.marks:
        return ""
    fig, axes = plot.figure, plot.figure.axes
    px = axes[0].transData.transform([(at, 0.0) for at, _ in plot.marks])[:, 0] * 72.0 / fig.dpi
    middle = (px[1:] + px[:-1]) / 2.0
    # Edges half-way between the marks; beyond the outermost ones by half of the smallest gap.
    half = float(np.min(np.diff(px))) / 2.0 if px.size > 1 else 9.0
    edges = np.concatenate([[px[0] - half], middle, [px[-1] + half]])
    high = 72.0 * fig.get_figheight()
    boxes = [axis.get_position() for axis in axes]
    top, bottom = (1.0 - max(box.y1 for box in boxes)) * high, (1.0 - min(box.y0 for box in boxes)) * high
    return "".join(
        f'<rect class="h" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}">'
        f"<title>{escape(words)}</title></rect>"
        for left, right, (_, words) in zip(edges[:-1], edges[1:], plot.marks, strict=True)
    )


def _sortable(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(float(value))


_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def _printable(value: object) -> object:
    """A text without control characters, which no page may hold: a name of a site can have them."""
    return _CONTROLS.sub("\ufffd", value) if type(value) is str else value


def environment() -> Environment:
    """Return the template environment; an undefined name is an error, and everything is escaped."""
    env = Environment(
        loader=FileSystemLoader(resource("reports")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_printable,
    )
    env.filters["svg"] = inline_svg
    env.filters["sortable"] = _sortable
    return env


def assets(*scripts: str) -> dict[str, object]:
    """Return what every page contains: style, version, the scripts of all pages, and those named."""
    css, *js = (
        resource("reports", name).read_text(encoding="utf-8")
        for name in ("style.css", "sort.js", "hover.js", *(f"{script}.js" for script in scripts))
    )
    return {"css": Markup(css), "js": Markup("\n".join(js)), "version": __version__}


def write_html(html: str, path: Path) -> None:
    """Write a page, whose lines do not break between a number and its percent sign."""
    path.write_text(re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", html), encoding="utf-8")


def page(analysis: Analysis, plots: dict[str, Plot]) -> str:
    """Render the report of one species."""
    modules = [importlib.import_module(f"fedmiss.report.sections.{name}") for name in ORDER]
    sections = [section for module in modules if (section := module.build(analysis, plots)) is not None]
    return rendered_page(
        analysis, plots, sections, headline(analysis), tags=meta_tags(analysis), cite=cite_as(analysis)
    )


def rendered_page(
    findings: Findings,
    plots: Mapping[str, Plot],
    sections: Sequence[Section],
    head: Headline,
    *,
    tags: Mapping[str, str],
    cite: str,
    kind: str = "trend report",
    tables: str = "CSV, parquet",
) -> str:
    """Render a page of these sections; ``kind`` is the report of what, in words, ``tables`` the forms of its tables."""
    env = environment()

    def rendered(section: Section) -> dict[str, object]:
        template = env.get_template(f"species/sections/{section.id}.html.j2")
        html = Markup(template.render(findings=findings, plots=plots, **section.values))
        return {"id": section.id, "title": section.title, "html": html, "hidden": section.scripted}

    return env.get_template("species/page.html.j2").render(
        title=findings.settings.title or findings.name,
        latin=findings.species if findings.common_name else "",
        months=findings.data.period,
        sites=f"{count(findings.n_sites)} site{'' if findings.n_sites == 1 else 's'}",
        date=findings.date,
        headline=head,
        sections=[rendered(section) for section in sections],
        tags=tags,
        photo=photo_uri(findings.settings.photo),
        photo_credit=findings.settings.photo_credit,
        cite=cite,
        kind=kind,
        tables=tables,
        **assets("question", "ask"),
    )


# -- citation, photo and picture for those who pass the page on ----------------------------------------------


_PHOTO_BYTES = 400_000
_KINDS = {b"\xff\xd8\xff": "jpeg", b"\x89PN": "png"}


def citation(findings: Findings, author: str, kind: str = "trend report") -> str:
    """Say how to cite a report: author, year, species, period, program and version."""
    trend = findings.trend
    years = f", {trend['from_year']} to {trend['to_year']}" if trend["n_years"] >= 2 else ""
    made = f"Made on {findings.date} with fedmiss {__version__}."
    return f"{author} ({findings.date[:4]}). {findings.name}: {kind}{years}. {made}"


def cite_as(analysis: Analysis) -> str:
    """Say how to cite the report of a panel, with its address and its data."""
    data = str(analysis.data.panel["terms"].get("citation", "")).rstrip(".")
    where = f" {analysis.settings.url}" if analysis.settings.url else ""
    said = citation(analysis, analysis.settings.author or "[your organisation]")
    return f"{said}{where}{f' Data: {data}.' if data else ''}"


def photo_uri(path: str | None) -> str:
    """Return an image file as a data address, so that the page stays one file; blank without one.

    Raises ConfigError: no such file, not a JPEG or PNG, or above 400 kB.
    """
    if not path:
        return ""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"--photo {path}: {error.strerror}.") from None
    kind = _KINDS.get(data[:3])
    if kind is None:
        raise ConfigError(f"--photo {path} is neither a JPEG nor a PNG file; convert it.")
    if len(data) > _PHOTO_BYTES:
        raise ConfigError(
            f"--photo {path} has {len(data) // 1000:,} kB (at most {_PHOTO_BYTES // 1000} kB); make it smaller, 1,200 "
            "pixels wide is enough."
        )
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def meta_tags(analysis: Analysis) -> dict[str, str]:
    """Return the tags by which other sites show a link to the page (Open Graph)."""
    base = analysis.settings.url.rstrip("/")
    tags = {
        "og:type": "article",
        "og:title": f"{analysis.settings.title or analysis.name}: {headline(analysis).verdict.lower()}",
        "og:description": headline(analysis).sentence,
        "og:image": f"{base}/figures/share.png" if base else "figures/share.png",
        "twitter:card": "summary_large_image",
    }
    return tags | ({"og:url": base} if base else {})


def write_share_image(analysis: Analysis, path: Path) -> None:
    """Draw the verdict over the index as a picture of 1,200 x 630 pixels."""
    with style():
        fig = figure(6.0, 3.15)
        fig.set_layout_engine("none")
        ax = fig.add_axes((0.09, 0.14, 0.86, 0.46))
        head, used = headline(analysis), analysis.yearly[analysis.yearly["used"]]
        fig.text(0.05, 0.87, analysis.settings.title or analysis.name, fontsize=17, weight="bold", color=INK)
        fig.text(0.05, 0.755, head.verdict, fontsize=13.5, color=INK)
        if len(used):
            index_line(ax, analysis.yearly)
            ax.set_ylabel("")
            trend = per_year(*analysis.trend[["percent_per_year", "percent_lo", "percent_hi"]])
            ax.set_title(trend, fontsize=9.5, loc="left")
        ax.set_ylim(bottom=0)
        ax.tick_params(labelsize=8)
        said = f"index, {analysis.trend['base']} = 100 · fedmiss {__version__}"
        fig.text(0.95, 0.015, said, fontsize=7, ha="right", color="#666666")
        path.write_bytes(png_bytes(fig))
