"""The reference pages are what the code says, and nothing public is missing from the documentation."""

import importlib
import importlib.util
import pkgutil
import re
from functools import cache

import pytest
import typer.main

import fedmiss
from fedmiss.resources import resource
from fedmiss.tables import load_schema, schema_names

SCRIPT = resource("docs", "make_commands.py")
GUIDE = SCRIPT.parent / "guide"


@cache
def load():
    spec = importlib.util.spec_from_file_location("make_commands", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page",
    ["guide/commands.md", "research/commands.md", "guide/tables.md", "guide/python.md", "reference/api.md"],
)
def test_the_page_is_up_to_date(page):
    assert (GUIDE.parent / page).read_text(encoding="utf-8") == load().PAGES[page](), (
        "run: python docs/make_commands.py"
    )


def section(page: str, title: str) -> str:
    """Return one section of a page."""
    found = re.search(rf"^###? {re.escape(title)}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


def test_every_command_and_option_that_the_program_has_is_in_the_guide():
    """The program itself is asked, not the script that wrote the page."""
    from fedmiss.cli import commands

    page = "".join(
        (GUIDE.parent / p / "commands.md").read_text(encoding="utf-8") for p in ("guide", "research")
    )
    app = typer.Typer()
    commands.register(app)
    group = typer.main.get_command(app)
    assert set(group.commands) == {*commands.COMMANDS, "federation"}
    several = group.commands.pop("federation").commands
    for name, command in (group.commands | {f"federation {n}": c for n, c in several.items()}).items():
        text = section(page, f"fedmiss {name}")
        for parameter in command.params:
            for flag in parameter.opts:
                word = flag if flag.startswith("-") else flag.upper()
                assert word == "--help" or f"`{word}" in text, (name, word)


@pytest.mark.parametrize("name", schema_names())
def test_every_column_is_in_the_guide(name):
    text = section((GUIDE / "tables.md").read_text(encoding="utf-8"), f"{name}, v{load_schema(name).version}")
    page = (GUIDE / "tables.md").read_text(encoding="utf-8")
    shared = page[: page.index("\n## ")]
    for column in load_schema(name).columns:
        own = re.search(rf"^- (`\w+`\??, )?`{column['name']}`[?: ,]", text, re.M)
        said = re.search(rf"^- as shared: .*`{column['name']}`", text, re.M)
        assert own or (said and f"- `{column['name']}`" in shared), column["name"]


def test_every_public_name_of_every_package_exists_and_is_in_the_guide():
    page = (GUIDE / "python.md").read_text(encoding="utf-8")
    seen = 0
    for info in pkgutil.walk_packages(fedmiss.__path__, "fedmiss."):
        if info.name.startswith("fedmiss.cli") or info.name.rsplit(".", 1)[1].startswith("_"):
            continue
        if info.ispkg:
            module = importlib.import_module(info.name)
            for name in getattr(module, "__all__", ()):
                seen += 1
                assert hasattr(module, name), f"{info.name}.__all__ names {name}, which is not there"
                assert f"`{name}`" in section(page, info.name)
    assert seen > 30


def test_commands_that_are_registered_again_are_there_once():
    """A program that registers them for every call had all of them once more each time, and each call took longer."""
    from fedmiss.cli import commands

    app = typer.Typer()
    for _ in range(2):
        commands.register(app)
    names = [command.name for command in app.registered_commands]
    assert sorted(names) == sorted(commands.COMMANDS)
    assert [group.name for group in app.registered_groups] == [commands.STUDIES]
