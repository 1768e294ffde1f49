"""The impute step: every site x month cell at standard effort, streamed to parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedmiss.errors import InputError
from fedmiss.files import atomic_folder, hash_file, write_manifest
from fedmiss.models.lowrank.bootstrap import row_blocks
from fedmiss.pipeline.fitting import read_fit
from fedmiss.pipeline.panels import open_panel, panel_hash
from fedmiss.tables import read_table, table_writer

__all__ = ["impute_panel"]


def impute_panel(
    panel_path: str | Path, fit_path: str | Path, out: str | Path, *, overwrite: bool = False
) -> Path:
    """Write ``imputed.parquet``: J x L rows, by site then month, a block of sites at a time."""
    panel = open_panel(panel_path)
    manifest, fit = read_fit(fit_path)
    if manifest["inputs"] != panel_hash(panel):
        raise InputError(
            f"{fit_path} was not fitted on {panel_path}: their tables differ. Run `fedmiss fit` on this panel first; "
            "a fit cannot impute sites or months that it has not seen."
        )
    J, L = fit.J, fit.L
    n = np.zeros((J, L), dtype=np.int32) if J * L <= 50_000_000 else None
    counts: dict[int, int] = {}
    for group in panel.groups:
        cells = read_table(group / "cells.parquet", "cells")
        j, month, k = (cells[c].to_numpy() for c in ("site_index", "month_index", "n_counted"))
        if n is not None:
            np.add.at(n, (j, month), k)
        else:
            for key, value in zip(j.astype(np.int64) * L + month, k, strict=True):
                counts[int(key)] = counts.get(int(key), 0) + int(value)
    total = observed_total = 0.0

    def chunks() -> Iterator[dict[str, Any]]:
        nonlocal total, observed_total
        for rows in row_blocks(J, L):
            expected = fit.expected(rows)
            if n is not None:
                seen = n[rows]
            else:
                seen = np.zeros(expected.shape, dtype=np.int32)
                for key, value in counts.items():
                    if rows.start <= key // L < rows.stop:
                        seen[key // L - rows.start, key % L] = value
            total += float(expected.sum())
            observed_total += float(expected[seen > 0].sum())
            index = np.arange(rows.start, rows.stop, dtype=np.int32)
            yield {
                "site_index": np.repeat(index, L),
                "month_index": np.tile(np.arange(L, dtype=np.int32), len(index)),
                "expected": expected.ravel(),
                "observed": (seen > 0).ravel(),
                "n_counted": seen.ravel(),
            }

    with atomic_folder(out, overwrite=overwrite) as tmp:
        cells_written = table_writer(tmp / "imputed.parquet", "imputed", chunks())
        write_manifest(
            tmp,
            "imputed",
            settings={},
            inputs={f"panel/{k}": v for k, v in manifest["inputs"].items()}
            | {"fit/site_factors.parquet": hash_file(Path(fit_path) / "site_factors.parquet")},
            results={
                "species": manifest["results"]["species"],
                "cells": cells_written,
                "observed_cells": manifest["results"]["n_cells_observed"],
                "total": total,
                "imputed_share": 1.0 - observed_total / total if total > 0 else 0.0,
                "standard_effort": manifest["results"]["standard_effort"],
            },
            flow=manifest["flow"],
            terms=manifest["terms"],
            warnings=manifest["warnings"],
        )
    return Path(out)
