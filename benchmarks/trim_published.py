"""How far fedmiss's TRIM agrees with what TRIM itself printed, number by number.

    FEDMISS_DATA=/path/to/data python benchmarks/trim_published.py

The folder holds ``trim/outfiles`` of rtrim 2.3 (skylark; EUPL, not part of this project): TRIM's command files with the
output of TRIM 3.61 and 3.70. A number is equal when our own file prints the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.report.trim_published import NAMES, case_of, compare


def summary(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return one row per command file, and the numbers that are not equal."""
    rows, lines = [], []
    for name in NAMES:
        c = compare(name, *case_of(folder, name))
        equal = c.n - len(c.near_misses) - len(c.off)
        rows.append((f"skylark-{name}", c.n, equal, len(c.near_misses), len(c.off)))
        lines += [f"skylark-{name}, {said}" for said in c.near_misses + c.off]
    return pd.DataFrame(rows, columns=["file", "numbers", "equal", "within_one", "off"]), lines


def main() -> None:
    data = os.environ.get("FEDMISS_DATA")
    if not data:
        raise SystemExit("FEDMISS_DATA names no folder; it must hold trim/outfiles of rtrim 2.3.")
    table, lines = summary(Path(data) / "trim" / "outfiles")
    print(table.to_string(index=False))
    print("all".ljust(10), *table.drop(columns="file").sum())
    print("\n".join(["", "Not equal when rounded:", *lines]))


if __name__ == "__main__":
    main()
