"""Yearly totals with standard errors and covariances, in the files that monitoring schemes exchange.

PECBMS asks a country for two files per species, both written by TRIM: ``.out`` (text: indices and time totals
with standard errors, overall slope) and ``.ocv`` (the covariance matrix of the time totals). Their layout here
follows the files of TRIM 3 that rtrim's readers take; numbers are kept at full precision in the CSV files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import InputError
from fedmiss.report.classes import ratio_to_base
from fedmiss.tables import write_table
from fedmiss.version import __version__

if TYPE_CHECKING:
    from fedmiss.report.analysis import Analysis
    from fedmiss.report.findings import Findings


def file_stem(name: str, otherwise: str = "species") -> str:
    """Return the name of a species or a table as a file name: ``Ardea alba`` -> ``Ardea_alba``."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or otherwise


def index_table(year: I64, total: F64, cov: F64, base: Bool) -> pd.DataFrame:
    """Return totals and indices with standard errors, as schema ``exchange_totals``.

    ``year``, ``total`` (Y,); ``cov`` (Y, Y); ``base`` (Y,) mask of the base years.
    """
    # The error of a ratio needs the covariance of its two totals: it is not in their standard errors.
    index, index_se = ratio_to_base(total, cov, base)
    columns = {"year": year.astype(np.int64), "total": total, "se": np.sqrt(np.diag(cov))}
    return pd.DataFrame(columns | {"index": index, "index_se": index_se})


def write_exchange(analysis: Analysis, folder: Path) -> None:
    """Write what :func:`write_totals` writes, and ``<species>.out``, which needs the numbers of counted cells.

    Nothing when there are no replicates, because a total without its error is of no use to a scheme.
    """
    if write_totals(analysis, folder):
        assert analysis.covariance is not None
        year, total, cov = analysis.covariance
        # readers of TRIM's files take the first year for the base
        table = index_table(year, total, cov, year == year[0])
        out = folder / f"{file_stem(analysis.species)}.out"
        out.write_text(_out_text(analysis, table), encoding="ascii", errors="replace")


def write_totals(findings: Findings, folder: Path) -> bool:
    """Write ``totals.csv``, ``totals.parquet``, ``covariance.csv``, ``<species>.ocv``; return False without replicates."""
    if findings.covariance is None or findings.covariance[0].size < 2:
        return False
    year, total, cov = findings.covariance
    folder.mkdir(parents=True, exist_ok=True)
    table = index_table(year, total, cov, np.isin(year, findings.yearly.attrs["base"]))
    table.to_csv(folder / "totals.csv", index=False, lineterminator="\n")
    write_table(table, folder / "totals.parquet", "exchange_totals")
    names = [str(int(each)) for each in year]
    frame = pd.DataFrame(cov, columns=names).assign(year=names)[["year", *names]]
    frame.to_csv(folder / "covariance.csv", index=False, lineterminator="\n")
    (folder / f"{file_stem(findings.species)}.ocv").write_text(ocv_text(cov), encoding="ascii")
    return True


def read_ocv(path: str | Path) -> F64:
    """Read an ``.ocv`` file (square, symmetric).

    Raises InputError when it is not a square matrix of numbers.
    """
    try:
        matrix = np.atleast_2d(np.loadtxt(path, dtype=np.float64))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a covariance file: {error}") from None
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"{path} has {matrix.shape[0]} rows and {matrix.shape[1]} columns; it must be square."
        )
    return np.asarray(matrix)


def read_out_totals(path: str | Path) -> pd.DataFrame:
    """Read the section TIME TOTALS of a TRIM ``.out`` file.

    Columns: ``time``, ``model``, ``model_se``, ``imputed``, ``imputed_se``.
    """
    try:
        text = Path(path).read_text(encoding="latin-1")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    # The section's title, a line of column names, then rows of a time and four numbers.
    match = re.search(r"TIME TOTALS\s*\n[^\n]*\n((?:\s*\d+(?:\s+[-\d.eE+]+){4}\s*\n?)+)", text)
    if match is None:
        raise InputError(f"{path} has no section TIME TOTALS; it is not an output file of TRIM.")
    rows = [[float(word) for word in line.split()] for line in match[1].strip().splitlines()]
    frame = pd.DataFrame(rows, columns=["time", "model", "model_se", "imputed", "imputed_se"])
    return frame.astype({"time": "int64"})


def _out_text(analysis: Analysis, table: pd.DataFrame) -> str:
    """Lay out the ``.out`` file. Model and imputed columns are the same: fedmiss has one kind of total."""
    # The page's own slope, error and label, so that page and file give one class.
    slope, se = float(analysis.trend["slope"]), float(analysis.trend["slope_se"])
    label = analysis.trend["label"] if analysis.classified else "Unknown"
    # Fewer than three years have no scatter about a line: the error of the totals alone is then what there is.
    if not np.isfinite(se):
        se = float(analysis.trend["slope_se_sampling"])
    coverage, dispersion = analysis.coverage, analysis.data.fact("dispersion")
    lines = [
        f"{FIRST_LINE}: totals of a low-rank model",
        "",
        f" Title :   {analysis.species}",
        "",
        " Comment: totals are the mean over the months of the season of the total over sites at standard effort;",
        f" Comment: standard errors from {analysis.n_draws} bootstrap replicates ({analysis.redrawn} reweighted in groups)",
        (
            " Comment: overall slope, its standard error and class are those of the report, convention "
            f"{analysis.settings.convention}"
        ),
        "",
        f" 1. Site             number of values: {coverage.n_sites:5d}",
        f" 2. Time             number of values: {len(table):5d}",
        "",
        f" Total number of observed counts     {coverage.n_observed:8d}",
        f" Number of missing counts            {coverage.n_cells - coverage.n_observed:8d}",
        f" Total number of counts              {coverage.n_cells:8d}",
        "",
        " ESTIMATION METHOD = federated EM",
        "",
    ]
    if dispersion is not None:
        lines += [f"  Estimated Overdispersion     = {float(dispersion):6.3f}", ""]
    year = table["year"]
    index, total = (
        list(zip(year, table[value], table[error], strict=True))
        for value, error in (("index", "index_se"), ("total", "se"))
    )
    lines += [*index_lines(index, index), "", *total_lines(total, total, 2)]
    for name in ("MODEL", "IMPUTED+(recommended)"):
        lines += ["", *slope_lines(name, label, slope, se)]
    return "\n".join(lines) + "\n\n"


# -- the layout of TRIM 3, of these files and of those of its own models -------------------------------------

# rtrim finds the version by the words up to "TRend analysis"; what follows says who wrote the file.
FIRST_LINE = f" TRIM 3.61 :  TRend analysis, in this layout written by fedmiss {__version__}"
SLOPE_HEAD = "  Additive      std.err.   Multiplicative  std.err."
Values = Iterable[tuple[object, float, float]]  # time, value, standard error


def index_lines(model: Values, imputed: Values) -> list[str]:
    """Indices by time. TRIM leaves the standard error of the base, the first time, blank; readers count on that."""
    lines = [" Time INDICES", "  Time     Model     std.err.     Imputed    std.err."]
    for line, ((time, modelled, m_se), (_, i, i_se)) in enumerate(zip(model, imputed, strict=True)):
        numbers = (
            f"{modelled:11.4f}{m_se:11.4f}{i:13.4f}{i_se:11.4f}" if line else "     1                       1"
        )
        lines.append(f"{time!s:>6}{numbers}")
    return lines


def total_lines(model: Values, imputed: Values, places: int) -> list[str]:
    """Totals by time, with so many decimals."""
    wide = 14 if places else 11
    return [
        " TIME TOTALS",
        "  Time      Model    std.err.     Imputed    std.err.",
        *(
            f"{time!s:>6}{modelled:{wide}.{places}f}{m_se:11.{places}f}{filled:{max(wide, 13)}.{places}f}{i_se:11.{places}f}"
            for (time, modelled, m_se), (_, filled, i_se) in zip(model, imputed, strict=True)
        ),
    ]


def slope_lines(name: str, label: str, slope: float, se: float) -> list[str]:
    """The overall slope and its class."""
    factor = float(np.exp(slope))
    return [
        f" OVERALL SLOPE {name}: {label}",
        SLOPE_HEAD,
        f"{slope:10.4f}{se:13.4f}{factor:15.4f}{factor * se:12.4f}",
    ]


def ocv_text(cov: F64) -> str:
    """A covariance matrix as TRIM 3 writes it: one row a line, fixed columns, four decimals."""
    return "\n".join("".join(f"{value:14.4f} " for value in row) for row in cov) + "\n"


# -- values of JSON, and CSV cells that a spreadsheet shows and does not run ---------------------------------


def plain(value: object) -> object:
    """Return a JSON value: numpy scalars as Python's, a missing number as null, dates and the like as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | list | dict) else str(value)


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
            # -3 is a number and stays one; -3+cmd is not.
            risky = text.str.startswith(_RISKY, na=False) & pd.to_numeric(text, errors="coerce").isna()
            out.isetitem(at, column.where(~risky, "'" + text).array)
    return out
