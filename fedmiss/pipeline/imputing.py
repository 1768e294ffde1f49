"""The impute step: every site x month cell at standard effort, with intervals and draws, streamed to parquet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.federation.fit_tables import row_blocks
from fedmiss.federation.results import POINTS_ONLY, AverageFit
from fedmiss.files import atomic_folder, check_same_panel, imputed_from, write_manifest
from fedmiss.folders import FitFacts, ImputedFacts, counted_by
from fedmiss.pipeline.fit_folder import read_fit
from fedmiss.pipeline.panels import PanelFolder, open_panel
from fedmiss.pipeline.settings import ImputeSettings
from fedmiss.progress import progress
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked
from fedmiss.tables import read_table, table_writer

# ends of intervals, as they are called in tables
LIMITS = ("expected_lower", "expected_upper", "lower", "upper")


def visits_in_cells(panel: PanelFolder, J: int, L: int, *columns: str) -> list[sp.csr_array]:
    """Numbers of visits in every cell over all groups, for each of the ``columns``: (J, L) sparse int32."""
    parts = [read_table(group / "cells.parquet", "cells") for group in panel.groups]

    def whole(name: str) -> np.ndarray:
        return np.concatenate([part[name].to_numpy() for part in parts])

    at = whole("site_index"), whole("month_index")
    return [sp.csr_array(sp.coo_array((whole(name), at), shape=(J, L))) for name in columns]


def drawn(fit: AverageFit, number: int, seed: int) -> Iterator[tuple[F64, F64]]:
    """Draws of the whole matrix, one after the other: (J, L) log expected counts, and counts of one visit around them."""
    for draw in range(number):
        # A stream for each draw: draw 7 is the same whether 10 or 100 are asked for.
        eta = fit.draw(rng_for(seed, "draw of the imputed matrix", draw))(slice(None))
        yield eta, fit.draw_counts(eta, rng_for(seed, "counts of the imputed matrix", draw))


def _draws(fit: AverageFit, settings: ImputeSettings) -> Iterator[dict[str, object]]:
    """Tables of draws, a block of sites of one draw at a time."""
    J, L = fit.J, fit.L
    with progress("draws", settings.draws) as show:
        for draw, (eta, counts) in enumerate(drawn(fit, settings.draws, settings.seed)):
            # The draw is whole, since a month's error is common to all sites; only its table is written in blocks.
            for rows in row_blocks(J, L):
                n_rows = rows.stop - rows.start
                yield {
                    "draw": np.full(n_rows * L, draw, dtype=np.int32),
                    "site_index": np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), L),
                    "month_index": np.tile(np.arange(L, dtype=np.int32), n_rows),
                    "expected": fit.counts_at(eta[rows]).ravel(),
                    "count": counts[rows].ravel(),
                }
            show(draw + 1)


class _Cells:
    """Rows of the table of cells; once they are written, ``total``, ``observed_total`` and ``ends`` are known.

    ``ends``: expected numbers of occupied sites in the first and the last month; ``empty``: whether sites may be empty.
    """

    def __init__(self, panel: PanelFolder, fit: AverageFit, facts: FitFacts) -> None:
        self.panel, self.fit, self.errors = panel, fit, facts.errors_known
        (self.visits,) = visits_in_cells(panel, fit.J, fit.L, counted_by(facts.family))
        self.total, self.observed_total, self.ends = 0.0, 0.0, np.zeros(2)
        self.empty = any(one.presence is not None for one in fit.fits)

    def rows(self) -> Iterator[dict[str, object]]:
        """The table, a block of sites at a time."""
        fit, J, L = self.fit, self.fit.J, self.fit.L
        names = {
            "site_id": pa.array(self.panel.sites["site_id"]),
            "month": pa.array(self.panel.months["month"]),
        }
        for rows in row_blocks(J, L):
            expected = fit.expected(rows)
            # Dense for a block of sites only.
            seen = self.visits[rows].toarray()
            blank = pa.nulls(expected.size, pa.float64())
            band = fit.interval(rows) if self.errors else None
            limits = {name: blank if band is None else getattr(band, name).ravel() for name in LIMITS}
            present = fit.present(rows)
            self.ends += present[:, [0, -1]].sum(axis=0)
            self.total += float(expected.sum())
            self.observed_total += float(expected[seen > 0].sum())
            site = np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), L)
            month = np.tile(np.arange(L, dtype=np.int32), rows.stop - rows.start)
            yield {
                "site_index": site, "month_index": month, "site_id": names["site_id"].take(pa.array(site)),
                "month": names["month"].take(pa.array(month)), "expected": expected.ravel(), **limits,
                "occupied": present.ravel() if self.empty else blank, "observed": (seen > 0).ravel(),
                "n_counted": seen.ravel(),
            }  # fmt: skip


@kinds_checked
def impute_panel(
    panel_path: str | Path,
    fit_path: str | Path,
    out: str | Path,
    settings: ImputeSettings | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write ``imputed.parquet``: J x L rows, by site then month, a block of sites at a time; and ``draws.parquet``.

    Raises
    ------
    ConfigError    draws of a fit that has point estimates only

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> folder = fedmiss.impute_panel(panel, fit, "imputed")
    >>> fedmiss.tables.read_table("imputed/imputed.parquet", "imputed").num_rows
    480
    """
    panel = open_panel(panel_path)
    manifest, fit = read_fit(fit_path)
    check_same_panel(panel.manifest, panel.path, manifest, Path(fit_path))
    facts = FitFacts.of(manifest["results"], fit_path)
    settings, fit = settings or ImputeSettings(), AverageFit(fit.fits)
    if settings.draws and not facts.errors_known:
        raise ConfigError(f"--draws {settings.draws} is impossible: {POINTS_ONLY}")
    cells = _Cells(panel, fit, facts)
    with atomic_folder(out, "imputed", overwrite=overwrite, inputs=[panel_path, fit_path]) as tmp:
        cells_written = table_writer(tmp / "imputed.parquet", "imputed", cells.rows())
        if settings.draws:
            table_writer(tmp / "draws.parquet", "imputed_draws", _draws(fit, settings))
        write_manifest(
            tmp,
            "imputed",
            settings=asdict(settings),
            inputs=imputed_from(manifest),
            results=ImputedFacts(
                species=facts.species,
                cells=cells_written,
                observed_cells=facts.n_cells_observed,
                total=cells.total,
                imputed_share=1.0 - cells.observed_total / cells.total if cells.total > 0 else 0.0,
                standard_effort=facts.standard_effort,
                occupied=cells.ends.tolist() if cells.empty else None,
            ).as_results(),
            flow=manifest["flow"],
            terms=manifest["terms"],
            warnings=manifest["warnings"],
        )
    return Path(out)
