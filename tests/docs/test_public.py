"""The public names: listed once, light to import, each with an example that runs in an empty folder."""

from __future__ import annotations

import doctest
import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import fedmiss

ROOT = Path(__file__).parents[2]
HOMES = {name: home for names in fedmiss._HOME.values() for name, home in names.items()}
FINDER = doctest.DocTestFinder(recurse=False)


def test_the_list_the_homes_and_the_modules_agree():
    assert sorted(HOMES) == sorted(fedmiss.__all__) == sorted(set(fedmiss.__all__))
    assert 50 <= len(fedmiss.__all__) <= 70
    assert set(fedmiss.__all__) <= set(dir(fedmiss))
    with pytest.raises(AttributeError, match="no_such_name"):
        fedmiss.no_such_name  # noqa: B018


def test_importing_reads_no_heavy_library():
    code = "import sys, fedmiss; print([m for m in ('numpy', 'polars', 'matplotlib', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", fedmiss.__all__)
def test_every_name_has_an_example(name):
    thing = getattr(fedmiss, name)
    assert thing.__doc__
    found = FINDER.find(thing, name)
    assert sum(len(t.examples) for t in found) >= 2, f"fedmiss.{name} has no example"


@pytest.mark.slow
@pytest.mark.parametrize("name", fedmiss.__all__)
def test_the_example_runs_in_an_empty_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for test in FINDER.find(getattr(fedmiss, name), name):
        test.globs.clear()
        told: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        failed = runner.run(test, out=told.append).failed
        assert not failed, "".join(told)


def test_entries_of_docstrings_reach_the_site_as_name_and_text():
    """Napoleon takes the text behind the colon for a type, and shows errors as raw markup."""
    conf = runpy.run_path(str(ROOT / "docs" / "research" / "conf.py"))
    for name in ("ingest", "read_counts"):
        lines = inspect.getdoc(getattr(fedmiss, name)).splitlines()
        conf["_one_line_entries"](None, "function", name, None, None, lines)
        at = next(i for i, line in enumerate(lines) if line.startswith("InputError"))
        assert " : " not in lines[at]
        assert lines[at + 1].startswith("    ")
        assert ">>> import fedmiss" in lines
