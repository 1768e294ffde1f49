"""What describes the project to others says one thing: pyproject, citation, archive, conda recipe, paper."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from fedmiss.cli import doctor

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
RECIPE = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
CONDA_NAMES = {"matplotlib": "matplotlib-base"}  # where conda-forge has another name


def listed(text, title):
    """The items of a list of a YAML file that has no deeper list in it."""
    block = re.search(rf"^( +){title}:\n((?:\1  - .*\n)+)", text, re.M)[2]
    return [line.strip().removeprefix("- ") for line in block.splitlines()]


def test_the_conda_recipe_needs_what_the_wheel_needs():
    meant = {f"python {PROJECT['requires-python']}"}
    for need in PROJECT["dependencies"]:
        name, limits = re.fullmatch(r"([A-Za-z0-9-]+)(.*)", need).groups()
        meant.add(f"{CONDA_NAMES.get(name, name)} {limits}")
    assert set(listed(RECIPE, "run")) == meant, "change requirements.run of conda/recipe.yaml"
    assert f'version: "{PROJECT["version"]}"' in RECIPE
    assert f'summary: "{PROJECT["description"]}"' in RECIPE
    ((name, place),) = PROJECT["scripts"].items()
    assert f"- {name} = {place}" in RECIPE


def test_the_doctor_looks_for_what_the_wheel_and_its_extras_need():
    def names(needs):
        return {re.match(r"[A-Za-z0-9-]+", need)[0] for need in needs}

    assert set(doctor._NEEDED) == names(PROJECT["dependencies"])
    assert set(doctor._EXTRAS) == set().union(*map(names, PROJECT["optional-dependencies"].values()))


def test_the_archive_says_what_the_citation_says():
    archive = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))

    def cited(key):
        return re.search(rf'^ *-? *{key}: "?(.*?)"?$', CITATION, re.M)[1]

    abstract = " ".join(re.search(r"^abstract: >-\n((?:  .*\n)+)", CITATION, re.M)[1].split())
    assert archive["title"] == cited("title") == PROJECT["name"]
    assert archive["version"] == cited("version") == PROJECT["version"]
    assert archive["license"] == cited("license") == PROJECT["license"]
    assert [c["name"] for c in archive["creators"]] == [cited("name")]
    assert archive["description"] == abstract
    assert archive["keywords"] == PROJECT["keywords"]


def test_every_python_that_is_claimed_is_tried():
    claimed = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    flow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert claimed <= set(re.findall(r'"(3\.\d+)"', flow))
    assert f">={min(claimed, key=lambda v: int(v[2:]))}" == PROJECT["requires-python"]


@pytest.mark.parametrize("name", ["conda", "paper", ".zenodo.json"])
def test_the_source_archive_holds_it(name):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert f"/{name}" in build["targets"]["sdist"]["include"]
