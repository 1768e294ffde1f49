"""The public names: listed once, light to import, each with an example that runs in an empty folder."""

import doctest
import importlib
import runpy
from pathlib import Path

import pytest

import fedmiss
from tests.blank import draw_nothing

ROOT = Path(__file__).parents[2]
FINDER = doctest.DocTestFinder(recurse=False)
PAGES = runpy.run_path(str(ROOT / "docs" / "make_commands.py"))
NAMES = [name for names in PAGES["sections"]().values() for name in names]


def thing_of(name):
    package, _, last = name.rpartition(".")
    return getattr(importlib.import_module(package), last)


def test_few_names_at_the_top_each_written_once():
    assert len(fedmiss.__all__) == len(set(fedmiss.__all__)) <= 25
    assert {f"fedmiss.{n}" for n in fedmiss.__all__} <= set(NAMES)
    assert len(NAMES) == len({n.rpartition(".")[2] for n in NAMES})
    assert {*fedmiss.__all__, "__version__", "core", "report"} <= set(dir(fedmiss))
    with pytest.raises(AttributeError, match="no_such_name"):
        fedmiss.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match="no_such_name"):
        fedmiss.report.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", fedmiss._MOVED)
def test_an_old_name_still_works_and_says_its_new_place(name):
    place = f"fedmiss.{fedmiss._MOVED[name]}.{name}"
    assert place in NAMES
    with pytest.warns(DeprecationWarning, match=rf"fedmiss\.{name} is now {place};") as said:
        assert getattr(fedmiss, name) is thing_of(place)
    assert said[0].filename == __file__


def test_old_names_go_when_their_time_is_over():
    """One minor version: those moved in 0.3 must be gone in 0.4."""
    now, gone = ([int(n) for n in v.split(".")[:2]] for v in (fedmiss.__version__, fedmiss._MOVED_GO_IN))
    assert now < gone or not fedmiss._MOVED


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_example(name):
    thing = thing_of(name)
    assert thing.__doc__
    found = FINDER.find(thing, name)
    assert sum(len(t.examples) for t in found) >= 2, f"{name} has no example"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs_in_an_empty_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not name.startswith("fedmiss.report.plot_"):
        draw_nothing(monkeypatch)
    for test in FINDER.find(thing_of(name), name):
        test.globs.clear()
        told: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        failed = runner.run(test, out=told.append).failed
        assert not failed, "".join(told)
