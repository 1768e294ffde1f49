"""Build the report folder of one species: page, figures, tables, exchange files, manifest."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fedmiss.files import atomic_folder, write_manifest
from fedmiss.report.analysis import Analysis, analyse
from fedmiss.report.exchange import plain, write_exchange
from fedmiss.report.findings import Findings
from fedmiss.report.html import page, photo_uri, write_html, write_share_image
from fedmiss.report.inputs import read_inputs
from fedmiss.report.language import OWN_SITES, names_of, read_catalog, translated
from fedmiss.report.prose import caveats, headline
from fedmiss.report.settings import ReportSettings
from fedmiss.report.style import Plot, png_bytes
from fedmiss.report.tables import write_csv, write_tables
from fedmiss.settings import kinds_checked


@kinds_checked
def build_report(
    panel: str | Path,
    fit: str | Path,
    imputed: str | Path,
    out: str | Path,
    settings: ReportSettings | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Make the report folder ``out`` and return the path of its page.

    Parameters
    ----------
    panel, fit, imputed : folders made by ``fedmiss panel``, ``fit`` and ``impute``
    settings : base period, rule of classes, date, span, coarseness of the map
    overwrite : replace a report that is there

    Raises
    ------
    InputError : when a folder is missing or belongs to another panel
    ConfigError : for settings that the data do not allow, or when ``out`` exists

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> imputed = fedmiss.impute_panel(panel, fit, "imputed")
    >>> page = fedmiss.build_report(panel, fit, imputed, "report", fedmiss.ReportSettings(unit="pairs"))
    >>> page.name
    'index.html'
    """
    settings = settings or ReportSettings()
    photo_uri(settings.photo)  # raise before anything is computed
    if settings.language:
        read_catalog(settings.language)
    data = read_inputs(panel, fit, imputed)
    with (
        _collector_paused(),
        atomic_folder(out, "report", overwrite=overwrite, inputs=[panel, fit, imputed]) as tmp,
    ):
        write_report(analyse(data, settings), tmp)
    return Path(out) / "index.html"


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Let cyclic garbage wait until the end: it is little, and a collection goes through all that matplotlib has loaded."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def write_report(analysis: Analysis, folder: Path) -> None:
    """Write everything of a report into an empty folder."""
    # matplotlib takes a second to load; a run that finds its report made needs none.
    from fedmiss.report.figures import all_figures

    plots = all_figures(analysis)
    html = translated(page(analysis, plots), analysis.settings.language, _names(analysis), folder)
    write_html(html, folder / "index.html")
    write_figures(plots, folder / "figures")
    write_share_image(analysis, folder / "figures" / "share.png")
    write_tables(analysis, folder / "tables")
    write_exchange(analysis, folder / "exchange")
    settings = asdict(analysis.settings) | {"date": analysis.date}
    write_manifest(
        folder, "report", settings=settings, inputs=dict(analysis.data.hashes), results=_results(analysis),
        flow=analysis.data.flow, terms=dict(analysis.data.panel["terms"]), warnings=caveats(analysis),
    )  # fmt: skip


def _names(analysis: Analysis) -> list[str]:
    """Names on the page of which only the unit is translated."""
    data = analysis.data
    return [
        *names_of(analysis),
        *(
            [quant] if ":" in (quant := str(data.fact("compressor", default=""))) else []
        ),  # as its user wrote it
        *data.groups["group"].astype(str),
        (analysis.settings.title or "").partition(OWN_SITES)[2],  # the group whose own page it is
        *(row["note"] for row in data.flow if row["step"].endswith(": read")),  # files that were imported
        *data.sites[["site_id", "site_name", "region"]].stack().dropna().astype(str),
        *(str(said).rstrip(".") for said in data.panel["terms"].values() if " " in str(said)),
    ]


def write_figures(plots: dict[str, Plot], folder: Path) -> None:
    """Write every figure as SVG, PNG and the CSV of its numbers."""
    folder.mkdir()
    for name, plot in plots.items():
        (folder / f"{name}.svg").write_text(plot.svg, encoding="utf-8")
        (folder / f"{name}.png").write_bytes(png_bytes(plot.figure))
        write_csv(plot.data, folder / f"{name}.csv")


def report_results(findings: Findings) -> dict[str, object]:
    """Return what a person, and an index page of many species, reads first of the trend."""
    keep = [
        "from_year", "to_year", "n_years", "slope", "slope_se", "percent_per_year", "percent_lo", "percent_hi",
        "trend_class", "label", "convention", "year_sd", "slope_se_sampling", "percent_lo_sampling", "percent_hi_sampling",
        "trend_class_sampling", "reason", "base", "change_percent", "change_lo", "change_hi",
    ]  # fmt: skip
    return {
        "species": findings.species,
        "common_name": findings.common_name,
        "unit": findings.unit,
        "yearly_counts": findings.yearly_counts,
        **{name: plain(findings.trend[name]) for name in keep},
        "n_draws": findings.n_draws,
        "span": findings.curve.attrs["span"],
    }


def _results(analysis: Analysis) -> dict[str, object]:
    coverage = analysis.coverage
    return report_results(analysis) | {
        "headline": headline(analysis).sentence,
        "n_sites": coverage.n_sites,
        "n_months": coverage.n_months,
        "n_counted": coverage.n_counted,
        "share_observed": plain(coverage.share_observed),
        "share_imputed_total": plain(coverage.share_imputed_total),
    }
