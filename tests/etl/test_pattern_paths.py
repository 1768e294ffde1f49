"""Folders and files with signs that are patterns to some readers are names, and no other file is read for them."""

import re
from pathlib import Path

import polars as pl
import pytest

import fedmiss
from fedmiss.etl.cells import aggregate
from fedmiss.etl.community import read_lists
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.panel import PanelSettings, make_panel

PLACES = ("a[1]*b?{c}", "[!x]")
ROWS = {
    "observer": ["x"] * 4, "site": ["a", "a", "b", "b"], "date": ["2001-05-01", "2002-05-01"] * 2,
    "count": [3, 4, 2, 5], "complete": [True] * 4, "visit": ["1", "2", "3", "4"],
    "species": ["Alauda arvensis"] * 4,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("place", PLACES)
def test_an_import_reads_the_file_that_was_named(tmp_path, place, kind):
    there = tmp_path / place
    there.mkdir()
    given = there / f"t[ab].{kind}"
    table = pl.DataFrame(ROWS)
    # the other one fits the pattern
    for path, rows in ((given, table), (there / f"ta.{kind}", table.clear())):
        rows.write_csv(path) if kind == "csv" else rows.write_parquet(path)
    columns = {name: name for name in ROWS}
    ingest([given], there / "records", IngestSettings(column_map=columns))
    assert aggregate(there / "records").detections["count_sum"].sum() == 14
    make_panel(there / "records", there / "panel", PanelSettings())
    assert fedmiss.files.read_manifest(there / "panel")["results"]["birds"] == 14
    assert len(read_lists(there / "records", species=["Alauda arvensis"]).species) == 1


def test_every_reader_of_polars_takes_a_path_for_a_name():
    sources = Path(fedmiss.__file__).parent.rglob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    calls = re.findall(r"pl\.(?:read|scan)_\w+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", text)
    assert len(calls) > 10
    assert [call for call in calls if "glob=False" not in call] == []
