"""Look into the folders that fedmiss makes."""

from pathlib import Path

import pandas as pd

from fedmiss.tables import read_table


def frame(table: Path, schema: str = "") -> pd.DataFrame:
    """Return a table as a frame, by its path without the ending; its schema has the same name, or another one."""
    return read_table(table.with_suffix(".parquet"), schema or table.name).to_pandas()


def content(folder: Path, ending: str = "") -> dict[str, bytes]:
    """Return the bytes of all files, links aside, by their path in the folder; or of those with an ending."""
    files = (p for p in sorted(folder.rglob(f"*{ending}")) if p.is_file() and not p.is_symlink())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}
