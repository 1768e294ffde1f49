"""What a report needs to be cited and passed on: the citation, the share image, the photo."""

from __future__ import annotations

import base64
from pathlib import Path

from fedmiss.errors import ConfigError
from fedmiss.report.analysis import Analysis
from fedmiss.report.findings import Findings
from fedmiss.report.plots import index_line
from fedmiss.report.prose import headline
from fedmiss.report.style import INK, figure, png_bytes, style
from fedmiss.report.words import per_year
from fedmiss.version import __version__

__all__ = ["citation", "cite_as", "meta_tags", "photo_uri", "write_share_image"]

_PHOTO_BYTES = 400_000
_KINDS = {b"\xff\xd8\xff": "jpeg", b"\x89PN": "png"}


def citation(a: Findings, author: str, kind: str = "trend report") -> str:
    """Say how to cite a report: author, year, species, period, program and version."""
    t = a.trend
    years = f", {t['from_year']} to {t['to_year']}" if t["n_years"] >= 2 else ""
    made = f"Made on {a.date} with fedmiss {__version__}."
    return f"{author} ({a.date[:4]}). {a.name}: {kind}{years}. {made}"


def cite_as(a: Analysis) -> str:
    """Say how to cite the report of a panel, with its address and its data."""
    data = str(a.data.panel.get("terms", {}).get("citation", "")).rstrip(".")
    where = f" {a.settings.url}" if a.settings.url else ""
    return (
        citation(a, a.settings.author or "[your organisation]") + where + (f" Data: {data}." if data else "")
    )


def photo_uri(path: str | None) -> str:
    """Return an image file as a data address, so that the page stays one file; blank without one.

    Raises
    ------
    ConfigError : no such file, not a JPEG or PNG, or above 400 kB
    """
    if not path:
        return ""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"--photo {path}: {error.strerror}.", path=path) from None
    kind = _KINDS.get(data[:3])
    if kind is None:
        raise ConfigError(f"--photo {path} is neither a JPEG nor a PNG file; convert it.", path=path)
    if len(data) > _PHOTO_BYTES:
        raise ConfigError(
            f"--photo {path} has {len(data) // 1000:,} kB (at most {_PHOTO_BYTES // 1000} kB); make it smaller, "
            "1,200 pixels "
            "wide is enough.",
            path=path,
        )
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def meta_tags(a: Analysis) -> dict[str, str]:
    """Return the tags by which other sites show a link to the page (Open Graph)."""
    base = a.settings.url.rstrip("/")
    tags = {
        "og:type": "article",
        "og:title": f"{a.settings.title or a.name}: {headline(a).verdict.lower()}",
        "og:description": headline(a).sentence,
        "og:image": f"{base}/figures/share.png" if base else "figures/share.png",
        "twitter:card": "summary_large_image",
    }
    return tags | ({"og:url": base} if base else {})


def write_share_image(a: Analysis, path: Path) -> None:
    """Draw the verdict over the index as a picture of 1,200 x 630 pixels."""
    with style():
        fig = figure(6.0, 3.15)
        fig.set_layout_engine("none")
        ax = fig.add_axes((0.09, 0.14, 0.86, 0.46))
        h, t = headline(a), a.yearly[a.yearly["used"]]
        fig.text(0.05, 0.87, a.settings.title or a.name, fontsize=17, weight="bold", color=INK)
        fig.text(0.05, 0.755, h.verdict, fontsize=13.5, color=INK)
        if len(t):
            index_line(ax, a.yearly)
            ax.set_ylabel("")
            trend = per_year(*(a.trend[k] for k in ("percent_per_year", "percent_lo", "percent_hi")))
            ax.set_title(trend, fontsize=9.5, loc="left")
        ax.set_ylim(bottom=0)
        ax.tick_params(labelsize=8)
        said = f"index, {a.trend['base']} = 100 · fedmiss {__version__}"
        fig.text(0.95, 0.015, said, fontsize=7, ha="right", color="#666666")
        path.write_bytes(png_bytes(fig))
