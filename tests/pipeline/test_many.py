"""A run of many species: each one that can be made is made, the others are named with step, reason and next move."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedmiss.files import read_manifest
from fedmiss.pipeline.chain import run_recipe
from fedmiss.pipeline.failures import in_recipe
from fedmiss.pipeline.parallel import over_processes
from fedmiss.pipeline.recipe import read_recipe, slug
from fedmiss.system import cores
from tests.cli.terminal import fedmiss

pytestmark = pytest.mark.usefixtures("blank_figures")
GOOD = ("Alauda arvensis", "Parus major", "Turdus merula")
BAD = ("Alauda arvenis", "Anas crecca", "Struthio camelus")  # misspelt, seen once, in the way of a file
RECIPE = """
out = "out"
species = [{species}]
[ingest]
files = "counts.csv"
map = "auto"
{more}
[panel]
groups = 2
[fit]
model = "quasi"
rank = 0
bootstrap = 0
[report]
date = "2026-01-02"
"""


def write(folder: Path, species: tuple[str, ...], more: str = "") -> Path:
    rows = ["observer,site,date,species,count", "o1,S1,2016-05-02,Anas crecca,3"]
    for k, name in enumerate((*GOOD, "Struthio camelus")):
        for s in range(8):
            for y in range(2015, 2021):
                n = (s + 4) * (k + 2) + (y - 2015) * (k - 1) + (s * y) % 3
                rows.append(f"o{s % 4},S{s},{y}-05-{s + 1:02d},{name},{n}")
    (folder / "counts.csv").write_text("\n".join(rows) + "\n")
    quoted = ", ".join(f'"{n}"' for n in species)
    (folder / "many.toml").write_text(RECIPE.format(species=quoted, more=more))
    return folder / "many.toml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "jobs"), [("", 1), pytest.param("allow_absent = true", 2, marks=pytest.mark.nightly)]
)
def test_three_species_of_six_fail_each_in_its_way(tmp_path, more, jobs):
    recipe = write(tmp_path, (*GOOD, *BAD), more)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / slug("Struthio camelus")).write_text("mine")
    done = fedmiss("run", recipe, "--jobs", jobs)
    assert done.code == 1
    assert "Traceback" not in done.err
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    for name in GOOD:
        assert (tmp_path / "out" / slug(name) / "report" / "index.html").exists()
        assert f"{slug(name)}/report/index.html" in page
        assert re.search(rf"^{name} +(?!failed)\S", done.out, re.M)
    for name in BAD:
        assert re.search(rf"^{name} +failed at \w+", done.out, re.M)
        assert re.search(rf"^{name}: failed at .+\n  Next: .+", done.err, re.M)
        assert name in page.partition("<h2>Failed</h2>")[2]
    assert page.count("Next: ") == 3
    assert (tmp_path / "out" / slug("Struthio camelus")).read_text() == "mine"
    options = set(re.findall(r"--[a-z-]+", done.err))
    assert options <= {"--out", "--jobs", "--scheduler"}, "only options that run has"
    if not more:
        assert "Alauda arvensis" in done.err
        again = run_recipe(read_recipe(recipe), jobs=1)
        assert {r.species for r in again if r.error} == set(BAD)
        assert all(r.folder == tmp_path / "out" / slug(r.species) for r in again)
        assert all(r.redone == () for r in again), "nothing is made twice"


def test_a_recipe_of_refused_names_only(tmp_path):
    done = fedmiss("run", write(tmp_path, ("Alauda arvenis", "Parus maior")))
    assert done.code == 2
    assert "Alauda arvenis" in done.err
    assert "Parus maior" in done.err
    assert "--allow-absent" not in done.err


@pytest.mark.slow
def test_one_good_name_beside_a_refused_one(tmp_path):
    results = run_recipe(read_recipe(write(tmp_path, ("Parus major", "Alauda arvenis"))), jobs=1)
    assert [(r.species, r.step) for r in results] == [("Alauda arvenis", "ingest"), ("Parus major", "")]
    assert results[0].index is not None
    assert "Alauda arvensis" in results[0].next
    assert read_manifest(tmp_path / "out")["results"] == {"n_species": 1, "n_failed": 1}


def threads_of(name: str) -> str:
    return os.environ[name]


@pytest.mark.slow
def test_processes_share_the_cores(monkeypatch):
    names = ("OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
    monkeypatch.delenv(names[0], raising=False)
    monkeypatch.setenv(names[1], "7")  # what the user has set stays
    found = {name: result for name, result, _ in over_processes(threads_of, names, 2)}
    assert found == {names[0]: str(max(1, cores() // 2)), names[1]: "7"}


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once(tmp_path):
    """Each process ran the script again: all species failed, "often: out of memory"."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom fedmiss.pipeline.parallel import over_processes\n"
        "print(sorted(over_processes(len, ['a', 'bb'], 2)), sys.modules['__main__'].__file__ == __file__)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[('a', 1, ''), ('bb', 2, '')] True\n", done.stderr


def test_options_of_steps_are_said_as_settings():
    text = in_recipe("pass --allow-absent or --no-average; another --out (--jobs 1); --overwrite will not")
    assert text == (
        "pass allow_absent in [ingest] or average = false in [fit]; another --out (--jobs 1); fedmiss will not"
    )
    assert in_recipe("Or --map auto to take it.") == 'Or map = "auto" in [ingest] to take it.'
    # "model in [fit] negbin rank in [fit] 0"
    assert (
        in_recipe("as --model negbin --rank 0, or", "fit")
        == 'as model = "negbin" in [fit] rank = 0 in [fit], or'
    )
    assert in_recipe("pass --sites all, or --repeats sum") == (
        'pass sites = "all" in [panel], or repeats = "sum" in [ingest]'
    )
    assert in_recipe("write --season 11-02") == "write season in [ingest] 11-02"
    assert in_recipe("--seed", "panel") == "seed in [panel]"
    assert in_recipe("--seed", "fit") == "seed in [fit]"
