"""The command itself: what it prints, what it writes, what it refuses."""

import pytest
import typer
from ebird_files import seen, visit, write_pair
from typer.testing import CliRunner

from fedmiss.cli.steps import ingest
from fedmiss.files import read_manifest


@pytest.fixture
def cli():
    app = typer.Typer()
    app.command("ingest")(ingest)
    app.command("other")(lambda: None)

    def call(*args):
        return CliRunner().invoke(app, ["ingest", *map(str, args)], catch_exceptions=True)

    return call


def files(folder):
    rows = [
        visit("S1", **{"BCR CODE": "9", "PROJECT IDENTIFIERS": "EBIRD"}),
        visit("S2", **{"OBSERVATION DATE": "2021-06-01"}),
        visit("S3", **{"LOCALITY ID": "L2"}),
    ]
    return write_pair(folder, [seen(rows[0], "3"), seen(rows[1], "X")], rows)


def test_the_whole_way(cli, tmp_path):
    ebd, sed = files(tmp_path)
    result = cli(ebd, "--sampling", sed, "-o", tmp_path / "records", "-s", "Wood Thrush")
    assert result.exit_code == 0, result.output
    for expected in (
        "3  checklists: read",
        "2  records: written",
        "1  visits: zeros implied",
        "Wood Thrush",
        "Cite:",
    ):
        assert expected in result.output
    manifest = read_manifest(tmp_path / "records", "records")
    assert manifest["terms"]["licence"] == "eBird terms of use"
    assert manifest["settings"]["species"] == ["Wood Thrush"]
    assert (tmp_path / ".fedmiss-cache").is_dir()


def test_every_option_reaches_the_filters(cli, tmp_path):
    ebd, sed = files(tmp_path)
    options = (
        "--country US --state US-WA --county King --bbox=-123,47,-122,48 --locality L100 --hotspots "
        "--site grid:3km --start 2020-01-01 --end 2020-12-31 --season 05-01..06-30 --time 06:00..07:00 "
        "--protocol Traveling --duration 5..300 --distance ..10 --max-speed 100 --max-observers 10 --complete "
        "--observer obsr1 --without-observer obsr9 --groups raw --exotic N --sensitive Veery --no-cache "
        "--bcr 9 --year 2020 --last-edited 2024-01-01..2024-12-31 --project EBIRD --breeding any --reviewed"
    ).split()
    result = cli(ebd, "--sampling", sed, "-o", tmp_path / "records", *options)
    assert result.exit_code == 0, result.output
    manifest = read_manifest(tmp_path / "records", "records")
    filters = manifest["settings"]["filters"]
    assert all(
        v not in (None, [], [None, None], False)
        for k, v in filters.items()
        if k not in ("polygon", "last_years")
    )
    assert manifest["results"]["n_checklists"] == 1
    assert not (tmp_path / ".fedmiss-cache").exists()
