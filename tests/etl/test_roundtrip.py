"""Simulate, ingest, compare with the simulated truth: every count, zero, X and shared list (of every copy: `test_laws`)."""

from pathlib import Path

import polars as pl
import pytest

from fedmiss.etl.cells import species_visits
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird


def visits(folder: Path) -> pl.DataFrame:
    """All visits of all species, one row each."""
    records = pl.read_parquet(folder / "records.parquet")
    parts = [
        species_visits(folder, s).select("checklist_id", "count", species=pl.lit(s)).collect()
        for s in sorted(records["species"].unique())
    ]
    return pl.concat(parts).select("checklist_id", "species", "count").sort("checklist_id", "species")


def compare(folder: Path, tmp_path: Path) -> None:
    truth_visits = pl.read_parquet(folder / "truth" / "truth_visits.parquet").sort("checklist_id", "species")
    truth_lists = pl.read_parquet(folder / "truth" / "truth_checklists.parquet").sort("checklist_id")
    sed = pl.read_csv(folder / "ebd_sim_sampling.txt", separator="\t", quote_char=None, infer_schema=False)
    shared = pl.col("GROUP IDENTIFIER")
    number = pl.col("SAMPLING EVENT IDENTIFIER").str.slice(1).cast(pl.Int64)
    party = (
        sed.filter(shared.is_not_null())
        .sort(number)
        .group_by(group_id=shared, maintain_order=True)
        .agg(observer_id=pl.col("OBSERVER ID").unique(maintain_order=True).str.join(","))
    )
    for groups in ("first", "merged"):
        out = tmp_path / groups
        ingest(
            [folder / "ebd_sim.txt"],
            out,
            IngestSettings(groups=groups),
            sampling=[folder / "ebd_sim_sampling.txt"],
            cache=tmp_path / "cache",
        )
        lists = pl.read_parquet(out / "checklists.parquet").sort("checklist_id")
        got = visits(out)
        same = ["checklist_id", "group_id", "site_id", "date"]
        assert lists.select(same).equals(truth_lists.select(same))
        assert lists["zero_ok"].equals(truth_lists["complete"])
        owners = truth_lists["observer_id"]
        if groups == "merged":
            joined = truth_lists.select("group_id", own="observer_id").join(
                party, on="group_id", how="left", maintain_order="left"
            )
            owners = joined.select(pl.coalesce("observer_id", "own")).to_series()
            assert (owners.str.contains(",")).sum() > 10
        assert lists["observer_id"].to_list() == owners.to_list()
        # zeros of the truth are implied: a complete kept list without the species
        explicit = truth_visits.select("checklist_id", "species", "count")
        implied = (
            truth_lists.filter("complete")
            .select("checklist_id")
            .join(explicit.select("species").unique(), how="cross")
            .join(explicit, on=["checklist_id", "species"], how="anti")
            .with_columns(count=pl.lit(0, pl.Int64))
        )
        expected = pl.concat([explicit, implied]).sort("checklist_id", "species")
        assert got.height == expected.height
        assert got.equals(expected)


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["46", "52"])
def test_simulated_truth_comes_back(tmp_path, columns):
    simulate_ebird(tmp_path / "sim", EbirdSettings(records=6_000, species=5, seed=4, columns=columns))
    compare(tmp_path / "sim", tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
def test_simulated_truth_comes_back_at_full_size(tmp_path):
    """More than 100,000 checklists, both policies that join copies."""
    simulate_ebird(tmp_path / "sim", EbirdSettings(records=300_000, species=5, seed=8))
    assert pl.read_parquet(tmp_path / "sim" / "truth" / "truth_checklists.parquet").height > 100_000
    compare(tmp_path / "sim", tmp_path)
