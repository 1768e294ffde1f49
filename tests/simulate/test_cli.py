"""The command: what a user types and sees."""

import typer
from typer.testing import CliRunner

from fedmiss.cli.research import simulate
from fedmiss.files import read_manifest

app = typer.Typer()
app.command()(simulate)


def run(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_writes_files_and_says_how_lifelike_they_are(tmp_path):
    words = "--records 1500 --species 3 --seed 4 --gz --columns 49 --out".split()
    done = run(*words, tmp_path / "s")
    assert done.exit_code == 0, done.output
    assert "visits per site" in done.output
    assert "real extracts" in done.output
    manifest = read_manifest(tmp_path / "s", "simulation")
    assert set(manifest["results"]["files"]) == {"ebd_sim.txt.gz", "ebd_sim_sampling.txt.gz"}
    assert manifest["settings"]["seed"] == 4
    assert manifest["terms"]["licence"] == "CC0"
    assert manifest["results"]["records"] >= 1500


def test_writes_a_panel(tmp_path):
    words = "--panel weak --sites 30 --months 24 --observed 0.4 --groups 3 --out".split()
    done = run(*words, tmp_path / "p")
    assert done.exit_code == 0, done.output
    results = read_manifest(tmp_path / "p", "panel")["results"]
    settings = read_manifest(tmp_path / "p")["settings"]
    assert (settings["observed"], settings["kind"], settings["rank"]) == (0.4, "weak", 2)
    assert (results["n_sites"], results["n_months"], len(results["groups"])) == (30, 24, 3)
