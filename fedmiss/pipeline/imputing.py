"""The impute step: every site x month cell at standard effort, streamed to parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedmiss.federation.results import row_blocks
from fedmiss.files import atomic_folder, write_manifest
from fedmiss.folders import FitFacts, ImputedFacts
from fedmiss.pipeline.fit_folder import read_fit
from fedmiss.pipeline.panels import PanelFolder, check_same_panel, open_panel
from fedmiss.tables import read_table, table_writer

__all__ = ["counted_visits", "impute_panel"]


def counted_visits(panel: PanelFolder, J: int, L: int) -> sp.csr_array:
    """Visits with a count in every cell, over all groups: (J, L) sparse int32."""
    parts = [read_table(g / "cells.parquet", "cells") for g in panel.groups]
    j, month, n = (
        np.concatenate([t[c].to_numpy() for t in parts]) for c in ("site_index", "month_index", "n_counted")
    )
    return sp.csr_array(sp.coo_array((n, (j, month)), shape=(J, L)))


def impute_panel(
    panel_path: str | Path, fit_path: str | Path, out: str | Path, *, overwrite: bool = False
) -> Path:
    """Write ``imputed.parquet``: J x L rows, by site then month, a block of sites at a time.

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> folder = fedmiss.impute_panel(panel, fit, "imputed")
    >>> fedmiss.read_table("imputed/imputed.parquet", "imputed").num_rows
    480
    """
    panel = open_panel(panel_path)
    manifest, fit = read_fit(fit_path)
    check_same_panel(panel, manifest, fit_path)
    facts = FitFacts.of(manifest["results"], fit_path)
    J, L = fit.J, fit.L
    n = counted_visits(panel, J, L)
    names = {"site_id": pa.array(panel.sites["site_id"]), "month": pa.array(panel.months["month"])}
    total = observed_total = 0.0

    def chunks() -> Iterator[dict[str, object]]:
        nonlocal total, observed_total
        for rows in row_blocks(J, L):
            expected = fit.expected(rows)
            seen = n[rows].toarray()
            total += float(expected.sum())
            observed_total += float(expected[seen > 0].sum())
            site = np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), L)
            month = np.tile(np.arange(L, dtype=np.int32), rows.stop - rows.start)
            yield {
                "site_index": site,
                "month_index": month,
                "site_id": names["site_id"].take(pa.array(site)),
                "month": names["month"].take(pa.array(month)),
                "expected": expected.ravel(),
                "observed": (seen > 0).ravel(),
                "n_counted": seen.ravel(),
            }

    with atomic_folder(out, "imputed", overwrite=overwrite, inputs=[panel_path, fit_path]) as tmp:
        cells_written = table_writer(tmp / "imputed.parquet", "imputed", chunks())
        write_manifest(
            tmp,
            "imputed",
            settings={},
            inputs={
                **{f"panel/{k}": v for k, v in manifest["inputs"].items()},
                **{
                    f"fit/{k}": f["sha256"]
                    for k, f in manifest["files"].items()
                    if k.endswith("_factors.parquet")
                },
            },
            results=ImputedFacts(
                species=facts.species,
                cells=cells_written,
                observed_cells=facts.n_cells_observed,
                total=total,
                imputed_share=1.0 - observed_total / total if total > 0 else 0.0,
                standard_effort=facts.standard_effort,
            ).as_results(),
            flow=manifest["flow"],
            terms=manifest["terms"],
            warnings=manifest["warnings"],
        )
    return Path(out)
