"""TRIM's results of one species as a page: the index in a figure, the trend in words, everything else as printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedmiss.report.html import assets, environment, inline_svg
from fedmiss.report.plots import plot_trim
from fedmiss.report.style import Plot, figure, style
from fedmiss.report.trim.fit import Shown, TrimFit
from fedmiss.report.trim.text import describe
from fedmiss.report.words import percent

__all__ = ["headline", "write_page"]


def headline(fit: TrimFit, shown: Shown) -> str:
    """Say the trend of all sites: its class, the change per year, and its standard error."""
    row = fit.overall(rule=shown.rule).iloc[0]
    words = f"{row['trend_class']}, {percent(100 * (row['multiplicative'] - 1))} per year"
    if np.isfinite(row["slope_se"]):
        words += f" (standard error {100 * row['multiplicative_se']:.2g} %)"
    return words[0].upper() + words[1:]


def write_page(fit: TrimFit, folder: Path, species: str, shown: Shown, notes: Sequence[str]) -> Path:
    """Write ``index.html`` into the folder of a fit's files; one file, no request."""
    index = fit.index(base=shown.base)
    words = headline(fit, shown)
    with style():
        fig = figure(7.0, 2.9)
        plot_trim(fit, fig.subplots(), shown.base)
    alt = f"Index of {species}, {index['time'].iloc[0]} to {index['time'].iloc[-1]}: {words}."
    strata = [
        {"name": name, "n_sites": fit.n_sites(name), **fit.overall(rule=shown.rule, stratum=name).iloc[0]}
        for name in fit.strata
    ]
    html = environment().get_template("index/trim.html.j2").render(
        title=species,
        words=words,
        plot=inline_svg(Plot("index", "Index", "", alt, fig, pd.DataFrame())),
        strata=strata if len(strata) > 1 else [],
        text=describe(fit, shown),
        notes=notes,
        files=sorted(p.name for p in folder.iterdir()),
        **assets(),
    )  # fmt: skip
    path = folder / "index.html"
    path.write_text(html, encoding="utf-8")
    return path
