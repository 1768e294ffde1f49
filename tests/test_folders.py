"""Facts of folders: what is written is what is read, and nobody asks for one that is not there."""

import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from fedmiss.errors import InputError
from fedmiss.files import read_manifest
from fedmiss.folders import FACTS, PanelFacts

ROOT = Path(__file__).resolve().parents[1]


def some(cls):
    """Facts with a value in every field; optional ones too."""
    made = {
        "str": "a", "int": 3, "float": 0.5, "bool": True, "dict[str, float]": {"x": 1.0}, "dict[str, int]": {"x": 1},
        "dict[str, Any]": {"x": 1.0}, "dict[str, dict[str, int]]": {"x": {"y": 1}}, "list[str]": ["a"],
        "list[float]": [0.5], "list[dict[str, Any]]": [{"x": 1.0}], "list[SpeciesRow]": [{"species": "a"}],
    }  # fmt: skip
    values = {f.name: made[str(f.type).split(" |")[0]] for f in fields(cls)}
    return cls(**values)


@pytest.mark.parametrize("cls", FACTS.values())
def test_what_is_written_is_read_again(cls):
    facts = some(cls)
    written = json.loads(json.dumps(facts.as_results()))
    assert set(written) == {f.name for f in fields(cls)}
    assert cls.of(written | {"of another version": 1}) == facts
    needed = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING]
    for name in needed:
        with pytest.raises(InputError, match=f"manifest of here does not say {name}; make"):
            cls.of({k: v for k, v in written.items() if k != name}, "here")
    least = cls.of({name: written[name] for name in needed})
    assert cls.of(least.as_results()) == least
    assert not {f.name for f in fields(cls) if f.metadata.get("sometimes")} & set(least.as_results())


def test_a_panel_folder_says_all_facts_of_a_panel(tmp_path):
    from fedmiss import open_panel, simulate_panel
    from fedmiss.simulate import write_panel

    made = open_panel(write_panel(simulate_panel(20, 24, 0.5, seed=1, groups=2), tmp_path / "panel"))
    assert made.facts.n_sites == 20
    assert made.facts.groups.keys() == {"g01", "g02"}
    assert PanelFacts.of(read_manifest(tmp_path / "panel")["results"]) == made.facts


def test_the_report_asks_for_facts_that_some_folder_has():
    known = {f.name for cls in FACTS.values() for f in fields(cls)}
    asked: set[str] = set()
    for path in (ROOT / "fedmiss" / "report").rglob("*.py"):
        for words in re.findall(r"\.fact\(([^)]*)\)", path.read_text(encoding="utf-8")):
            asked |= set(re.findall(r'"(\w+)"', words.split("default")[0]))
    assert len(asked) > 15
    assert asked <= known
