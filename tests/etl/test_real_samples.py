"""Numbers of real sample files that can be checked by hand; the files are not part of this project.

Set FEDMISS_DATA to a folder with ``ebd_samples/``, ``gbif_eod/`` and ``everglades/`` to run these.
"""

import os
from pathlib import Path

import polars as pl
import pytest

from fedmiss.etl.filters import Filters

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not os.environ.get("FEDMISS_DATA"), reason="FEDMISS_DATA is not set"),
]
DATA = Path(os.environ.get("FEDMISS_DATA", "."))
EBD = DATA / "ebd_samples"


def raw(name: str) -> pl.DataFrame:
    return pl.read_csv(
        EBD / name, separator="\t", quote_char=None, infer_schema=False, truncate_ragged_lines=True
    )


def test_zerofill_sample(run):
    """729 sampling events are 706 checklists; 283 records are 278; 3 species make 2,118 visits."""
    out = run(EBD / "zerofill-ex_ebd.txt", sampling=[EBD / "zerofill-ex_sampling.txt"])
    out.check_flow_adds_up()
    out.check_cells()
    assert out.flow("checklists: read") == 729
    assert out.checklists.height == 706
    sed = raw("zerofill-ex_sampling.txt")
    assert sed.select(pl.coalesce("GROUP IDENTIFIER", "SAMPLING EVENT IDENTIFIER")).n_unique() == 706
    counts = {
        s["common_name"]: (s["records"], s["x"], s["zeros"]) for s in out.manifest["results"]["species"]
    }
    assert counts == {
        "Collared Kingfisher": (203, 15, 503),
        "White-throated Kingfisher": (71, 7, 635),
        "Blue-eared Kingfisher": (4, 0, 702),
    }
    assert out.checklists["start_minutes"].null_count() == sum(
        1 for v in out.visits("Collared Kingfisher") if v in blank_times(sed)
    )
    every_copy = run(EBD / "zerofill-ex_ebd.txt", sampling=[EBD / "zerofill-ex_sampling.txt"], groups="raw")
    assert (every_copy.checklists.height, every_copy.records.height) == (729, 283)


def blank_times(sed: pl.DataFrame) -> set[str]:
    blank = sed.filter(pl.col("TIME OBSERVATIONS STARTED").is_null())
    return set(blank["SAMPLING EVENT IDENTIFIER"])


def test_rollup_sample(run):
    """23 rows: 9 above species; 8 warblers of 2 checklists, 3 feral pigeons, 2 crossbills, 1 coot."""
    out = run(EBD / "ebd-rollup-ex.txt")
    got = dict(out.records.group_by("species").agg(pl.len()).iter_rows())
    assert got == {"Setophaga coronata": 2, "Columba livia": 3, "Loxia curvirostra": 2, "Fulica americana": 1}
    rows = raw("ebd-rollup-ex.txt").filter(pl.col("SCIENTIFIC NAME") == "Setophaga coronata")
    sums = rows.group_by("SAMPLING EVENT IDENTIFIER").agg(pl.col("OBSERVATION COUNT").cast(int).sum())
    assert sorted(out.visits("Yellow-rumped Warbler").values()) == sorted(sums["OBSERVATION COUNT"])


def test_ebd_sample(run):
    """400 records on 392 kept checklists; 40 X; times of 09:00:00 stay inside 06:00..09:00."""
    out = run(EBD / "ebd-sample.txt", groups="raw")
    assert out.records.height == 400
    assert out.records["count"].null_count() == 40
    first = run(EBD / "ebd-sample.txt")
    assert first.checklists.height == 392
    times = run(EBD / "ebd-sample.txt", groups="raw", filters=Filters(start=(360.0, 540.0)))
    clock = pl.col("TIME OBSERVATIONS STARTED").str.slice(0, 5)
    assert (
        times.records.height == raw("ebd-sample.txt").filter((clock >= "06:00") & (clock <= "09:00")).height
    )


def test_gbif_sample(run):
    out = run(DATA / "gbif_eod" / "eod_spheniscus_mendiculus.csv")
    assert out.records.height == 1050
    assert out.records["count"].null_count() == 510
    assert not out.checklists["zero_ok"].any()


def test_everglades_sample(run):
    """4,872 rows of 94 observers at 215 sites, summed over behaviours within a visit."""
    path = DATA / "everglades" / "everglades_great_egret_flights_long.csv"
    out = run(path, column_map={"auto": ""})
    source = pl.read_csv(path)
    assert out.flow("records: read") == 4872
    assert out.records["count"].sum() == source["count"].sum()
    assert out.records.height == source.select("observer", "site", "date").n_unique()
    assert (out.checklists["observer_id"].n_unique(), out.checklists["site_id"].n_unique()) == (94, 215)
