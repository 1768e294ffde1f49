"""Write the reference pages of the guide from the code: ``python docs/make_commands.py``.

``commands.md`` from the options of the command line, ``tables.md`` from ``data_schema/``, ``python.md`` from the
docstrings of the packages' public names. A test fails when a page is not what this script writes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guide"
MADE = "<!-- written by docs/make_commands.py; change the code, then run it again -->\n\n"


def cell(text: str) -> str:
    """Return a text on one line that can stand in a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def commands() -> str:
    """Every command with every argument and option, as the program itself knows them."""
    import typer

    from fedmiss.cli.commands import COMMANDS, register

    app = typer.Typer()
    register(app)
    known: Any = typer.main.get_command(app)
    parts = [
        MADE,
        "# Commands\n\nThe same as `fedmiss COMMAND --help`, on one page. Exit codes: 0 done, 1 the data or ",
    ]
    parts.append("the model, 2 the usage, 130 interrupted. `fedmiss --version` prints the version; ")
    parts.append("`fedmiss --debug COMMAND ...` shows the traceback of an error.\n")
    single = {name: known.commands[name] for name in COMMANDS}
    several = known.commands["federation"].commands
    for name, command in (single | {f"federation {n}": c for n, c in several.items()}).items():
        rows, words = [], []
        for parameter in command.params:
            flags = [f for f in parameter.opts if f.startswith("-")]
            if not flags:
                flags = [parameter.name.upper() + ("..." if parameter.nargs == -1 else "")]
                words += flags
            names = ", ".join(f"`{f}`" for f in flags)
            rows.append(f"| {names} | {cell(parameter.help or '')} | {shown(parameter)} |")
        usage = " ".join(["fedmiss", name, *words, "[OPTIONS]"])
        about = cell(command.help or "")
        parts.append(
            f"\n## fedmiss {name}\n\n{about}\n\n    {usage}\n\n| option | meaning | default |\n|---|---|---|\n"
        )
        parts.append("\n".join(rows) + "\n")
    return "".join(parts)


def shown(parameter: Any) -> str:
    """Return the default of an option as the help shows it."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.required:
        return "needed"
    if parameter.default in (False, None, "") or not parameter.show_default:
        return ""
    return f"`{parameter.default}`"


def tables() -> str:
    """Every table with every column."""
    from fedmiss.tables import load_schema, schema_names

    parts = [
        MADE,
        "# Tables\n\nEvery table that fedmiss writes is a parquet file with a schema of `data_schema/`, ",
    ]
    parts.append(
        "checked when it is written and when it is read. `fedmiss inspect FILE` prints the same for a file.\n"
    )
    for name in schema_names():
        s = load_schema(name)
        parts.append(f"\n## {name} (version {s.version})\n\n{s.description}")
        parts.append(" Further columns may follow.\n\n" if s.open else "\n\n")
        parts.append("| column | type | unit | blanks | meaning |\n|---|---|---|---|---|\n")
        for c in s.columns:
            blanks = "yes" if c["nullable"] else "no"
            parts.append(
                f"| `{c['name']}` | {c['type']} | {cell(c['unit'] or '')} | {blanks} | {cell(c['description'])} |\n"
            )
    return "".join(parts)


def first_line(node: ast.AST) -> str:
    """Return the first paragraph of a docstring, or nothing."""
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) else None
    return cell((text or "").split("\n\n")[0])


def public(module: Path) -> dict[str, str]:
    """Return the names of a module's ``__all__`` with the first line of their docstrings, read without importing."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    listed: list[str] = []
    defined: dict[str, ast.AST] = {}
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
        ):
            listed = ast.literal_eval(node.value)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined[node.name] = node
    return {name: first_line(defined[name]) if name in defined else "" for name in listed}


def python() -> str:
    """Every module with every public name."""
    parts = [
        MADE,
        "# Python\n\nEverything that the command line does can be called from Python. Public is what a ",
    ]
    parts.append(
        "module's `__all__` names; the docstrings (`help(name)`) hold shapes, units, errors and sources.\n"
    )
    for path in sorted((ROOT / "fedmiss").rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("")
        if path.name.startswith("_") and path.name != "__init__.py":
            continue
        names = public(path)
        if not names or module.parts[1] == "cli":
            continue
        dotted = ".".join(p for p in module.parts if p != "__init__")
        parts.append(f"\n## {dotted}\n\n{first_line(ast.parse(path.read_text(encoding='utf-8')))}\n\n")
        if path.name == "__init__.py":
            parts.append(", ".join(f"`{n}`" for n in names) + "\n")
        else:
            parts += [f"- `{n}`" + (f": {text}" if text else "") + "\n" for n, text in names.items()]
    return "".join(parts)


PAGES = {"commands.md": commands, "tables.md": tables, "python.md": python}


def main() -> None:
    """Write the pages."""
    for name, make in PAGES.items():
        (GUIDE / name).write_text(make(), encoding="utf-8")
        print(f"wrote {GUIDE / name}")


if __name__ == "__main__":
    main()
