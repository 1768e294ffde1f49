"""Look into the folders that fedmiss makes."""

from pathlib import Path

import pandas as pd

from fedmiss.tables import read_table


def frame(table: Path, schema: str = "") -> pd.DataFrame:
    """Return a table as a frame, by its path without the ending; its schema has the same name, or another one."""
    return read_table(table.with_suffix(".parquet"), schema or table.name).to_pandas()
