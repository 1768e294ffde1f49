"""Which records stand more than once in a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedmiss.arrays import I64
from fedmiss.etl.projection import RECORD_COLUMNS, row_groups

__all__ = ["Repeats"]


class Repeats:
    """Finds the identifiers that stand on more than one record, in memory that the file's length does not change.

    First every identifier sets one bit of a table; those that find it set are suspects (all that are repeated,
    and a few per cent that are not). Then the written records are read once more, and whatever shares a bit with
    a suspect is compared.
    """

    def __init__(self, size: int) -> None:
        words = 1 << max(10, min(22, (size // 1024).bit_length()))  # 16 bits or more for a line of 250 bytes
        self._bits = np.zeros(words, dtype=np.uint64)
        self._suspects: list[I64] = []

    def add(self, guid: I64) -> None:
        """Take up the identifiers of a block."""
        from fedmiss.etl import _keys

        at = np.empty(guid.size + 1, dtype=np.int32)
        n = int(_keys.met_before(guid, self._bits, at))
        if n:
            self._suspects.append(guid[at[:n]])

    def write(self, folder: Path) -> None:
        """Write ``repeats.parquet`` from the suspects and ``records.parquet``."""
        import polars as pl

        from fedmiss.etl import _keys

        empty = np.zeros(0, np.int64)
        found = [(empty, empty)]  # identifiers that share a bit with a suspect, and their rows
        if self._suspects:
            self._bits[:] = 0
            for guid in self._suspects:
                _keys.met_before(guid, self._bits, np.empty(guid.size + 1, dtype=np.int32))
            self._suspects = []
            start = 0
            for batch in row_groups(folder / "records.parquet", ["guid"]):
                guid = batch["guid"]
                at = np.empty(guid.size + 1, dtype=np.int32)
                at = at[: _keys.among(guid, self._bits, at)]
                found.append((guid[at], at + start))
                start += guid.size
        guid, row = (np.concatenate(parts) for parts in zip(*found, strict=True))
        repeated = pl.Series(guid).is_duplicated().to_numpy()
        columns: dict[str, Any] = {"guid": guid[repeated]}
        if repeated.any():
            more = pl.read_parquet(folder / "records.parquet", columns=["taxon", "edited"])[row[repeated]]
            columns |= {k: more[k].to_numpy() for k in more.columns}
        names = ("guid", "taxon", "edited")
        table = pl.DataFrame({k: columns.get(k, np.zeros(0, RECORD_COLUMNS[k])) for k in names})
        table.write_parquet(folder / "repeats.parquet")
