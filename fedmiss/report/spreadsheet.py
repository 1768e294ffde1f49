"""CSV cells that a spreadsheet shows and does not run."""

from __future__ import annotations

import pandas as pd

__all__ = ["harmless"]

_RISKY = ("=", "+", "-", "@", "\t", "\r")


def harmless(table: pd.DataFrame) -> pd.DataFrame:
    """Put ' before texts that a spreadsheet would run as a formula: those that begin with = + - @, a tab or CR.

    Numbers that stand as text stay as they are.
    """
    out = table.copy()
    for at, kind in enumerate(out.dtypes):
        if pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind):
            column = out.iloc[:, at]
            if not any(str(value).startswith(_RISKY) for value in column.unique()):
                continue  # the usual column, without the work
            text = column.astype("string")
            risky = text.str.startswith(_RISKY, na=False) & pd.to_numeric(text, errors="coerce").isna()
            out.isetitem(at, column.where(~risky, "'" + text).array)
    return out
