"""Fixtures: ingest some rows and look at what came out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ebird_files import write_pair

from fedmiss.etl.cells import aggregate, species_visits
from fedmiss.etl.count_table import CountOptions, CountTable
from fedmiss.etl.counts import read_counts
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.tables import read_table


@dataclass
class Outcome:
    """A records folder with its tables at hand, which follow their schemas."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def records(self) -> pl.DataFrame:
        return pl.DataFrame(read_table(self.folder / "records.parquet", "records"))

    @property
    def checklists(self) -> pl.DataFrame:
        return pl.DataFrame(read_table(self.folder / "checklists.parquet", "checklists"))

    @property
    def warnings(self) -> str:
        return "\n".join(self.manifest["warnings"])

    def visits(self, species: str = "Wood Thrush") -> dict[str, int | None]:
        """Checklist id -> count (None = seen, not counted); missing visits are not there."""
        frame = species_visits(self.folder, species).collect()
        return dict(zip(frame["checklist_id"], frame["count"], strict=True))

    def flow(self, step: str) -> int:
        return sum(r["rows"] for r in self.manifest["flow"] if r["step"] == step)

    def check_flow_adds_up(self) -> None:
        """Signed steps of each table add up to what was written, and that to the files."""
        for table, written in (("checklists", self.checklists), ("records", self.records)):
            rows = [r for r in self.manifest["flow"] if r["step"].startswith(f"{table}: ")]
            steps = [r["rows"] for r in rows if not r["step"].endswith(": written")]
            assert sum(steps) == self.flow(f"{table}: written") == written.height, rows
        species = self.manifest["results"]["species"]
        for entry in species:
            visits = species_visits(self.folder, entry["species"]).collect()
            zeros = visits.filter(~pl.col("detected"), pl.col("count") == 0)
            assert entry["visits"] == visits.height
            assert entry["zeros"] == zeros.height - entry.get("explicit_zeros", 0)
            assert entry["x"] == visits.filter(pl.col("detected"))["count"].null_count()
        assert self.flow("visits: over all species") == sum(e["visits"] for e in species)

    def check_cells(self) -> None:
        """The sparse aggregate equals counting the visits one by one."""
        total = aggregate(self.folder)
        for entry in self.manifest["results"]["species"]:
            expected = (
                species_visits(self.folder, entry["species"])
                .collect()
                .group_by("site_id", month=pl.col("date").dt.strftime("%Y-%m"))
                .agg(
                    n_visits=pl.len().cast(pl.Int64),
                    n_counted=pl.col("count").count().cast(pl.Int64),
                    n_detected=pl.col("detected").sum().cast(pl.Int64),
                    count_sum=pl.col("count").sum(),
                )
                .sort("site_id", "month")
            )
            assert total.cells(entry["species"]).equals(expected)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Outcome]:
    """Ingest files; settings by keyword."""
    count = [0]

    def _run(*files: Path, sampling: Any = (), unvetted: Any = (), **settings: Any) -> Outcome:
        count[0] += 1
        out, more = tmp_path / f"out{count[0]}", {"sampling": sampling, "unvetted": unvetted}
        return Outcome(out, ingest(files, out, IngestSettings(**settings), cache=tmp_path / "cache", **more))

    return _run


@pytest.fixture
def pair(tmp_path: Path, run: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Write an EBD and a sampling file from rows, ingest them, and check what must always hold."""
    count = [0]

    def _pair(records: Any, visits: Any, *, write: dict[str, Any] | None = None, **settings: Any) -> Outcome:
        count[0] += 1
        ebd, sed = write_pair(tmp_path / f"in{count[0]}", records, visits, **(write or {}))
        out = run(ebd, sampling=[sed], **settings)
        out.check_flow_adds_up()
        out.check_cells()
        return out

    return _pair


@pytest.fixture
def plain(tmp_path: Path, run: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Write a plain table or one of counts as CSV and ingest it."""

    def _plain(text: str, name: str = "t.csv", **settings: Any) -> Outcome:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return run(tmp_path / name, **settings)

    return _plain


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., CountTable]:
    """Write a table and read it as one of counts; options by keyword."""

    def _read(text: str, **options: Any) -> CountTable:
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        return read_counts(tmp_path / "t.csv", CountOptions(**options))

    return _read
