"""Settings that do nothing for a kind of input, or beside others, are refused; where they act they are taken."""

from __future__ import annotations

from dataclasses import MISSING

import pytest
from typer.testing import CliRunner

from fedmiss.cli.app import app
from fedmiss.cli.commands import register
from fedmiss.errors import ConfigError
from fedmiss.etl.ingest import ingest
from fedmiss.etl.settings import IngestSettings
from fedmiss.settings import defaults, definitions

COUNTS = "site,year,count\n" + "".join(f"s{i},{2000 + t},{i + t}\n" for i in range(4) for t in range(5))


@pytest.fixture
def counts(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(COUNTS)
    return path


@pytest.mark.parametrize(
    ("name", "value"), [("decimals", 1), ("drop_suspected", True), ("assume_complete", True)]
)
def test_a_setting_for_another_kind_of_input_is_refused(counts, tmp_path, name, value):
    if name not in definitions(IngestSettings):
        pytest.skip(f"{name} is no setting of ingest")
    with pytest.raises(ConfigError, match=r"does nothing here: counts\.csv is a table of counts"):
        ingest([counts], tmp_path / "out", IngestSettings(species="Parus major", **{name: value}))
    assert not (tmp_path / "out").exists()


def test_defaults_are_taken_for_every_kind(counts, tmp_path):
    usual = {k: v for k, v in defaults(IngestSettings).items() if v is not MISSING}
    ingest([counts], tmp_path / "out", IngestSettings(**{**usual, "species": "Parus major"}))
    assert (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.slow
def test_a_number_of_groups_beside_a_column_of_groups_is_refused(counts, tmp_path):
    register(app)
    ingest([counts], tmp_path / "records", IngestSettings(species="Parus major"))
    words = [
        "panel",
        str(tmp_path / "records"),
        "--out",
        str(tmp_path / "panel"),
        "--groups",
        "3",
        "--group-by",
        "observer",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert "--groups" in done.output
    assert not (tmp_path / "panel").exists()
