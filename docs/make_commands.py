"""Write the reference pages of the guide from the code: ``python docs/make_commands.py``.

Two ``commands.md`` from the options of the command line, ``tables.md`` from ``data_schema/``, ``python.md`` from the
packages, ``api.md`` from the public names. A test fails when a page is not what this script writes.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guide"
MADE = "<!-- written by docs/make_commands.py; change the code, then run it again -->\n\n"


def cell(text: str) -> str:
    """Return a text on one line that can stand in a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


FOR_RESEARCHERS = ("experiment", "plot", "simulate")


def commands(*, research: bool = False) -> str:
    """Every command with every argument and option, as the program itself knows them; what many share stands once.

    Those for method researchers have a page of their own.
    """
    import typer

    from fedmiss.cli.commands import COMMANDS, register

    app = typer.Typer()
    register(app)
    known: Any = typer.main.get_command(app)
    single = {name: known.commands[name] for name in COMMANDS}
    several = known.commands["federation"].commands
    all_of_them = single | {f"federation {n}": c for n, c in several.items()}
    all_of_them = {n: c for n, c in all_of_them.items() if (n in FOR_RESEARCHERS) == research}
    rows = {name: [option(p) for p in command.params] for name, command in all_of_them.items()}
    common = often_said([row for row in lines if row[0].startswith("-")] for lines in rows.values())
    if research:
        parts = [
            MADE,
            "# Commands of method researchers\n\nAll others: [commands](../guide/commands.md).\n\n",
        ]
    else:
        parts = [
            MADE,
            "# Commands and their options\n\nThe same as `fedmiss COMMAND --help`. Exit codes: 0 done, 1 the data or ",
            "the model, 2 the usage, 130 interrupted. `fedmiss --version` prints the version; ",
            "`fedmiss --debug COMMAND ...` shows the traceback of an error. Defaults are in square brackets. ",
            f"{', '.join(f'`{n}`' for n in FOR_RESEARCHERS)}: [for method researchers](../research/commands.md).\n\n",
            "Options of many commands:\n\n",
        ]
    parts.append("".join(f"- {text}\n" for text in sorted(common.values())))
    for name, command in all_of_them.items():
        own = [text for first, text in rows[name] if common.get(first) != text]
        words = [first for first, text in rows[name] if not first.startswith("-")]
        as_above = [f"`{first}`" for first, text in rows[name] if common.get(first) == text]
        usage = " ".join(["fedmiss", name, *words])
        line = f"    {usage}\n\n" if words else ""
        parts.append(f"\n## fedmiss {name}\n\n{cell(command.help or '')}\n\n{line}")
        parts.append("".join(f"- {text}\n" for text in own))
        parts.append(f"- as above: {', '.join(as_above)}\n" if as_above else "")
    return "".join(parts)


def often_said(places: Iterable[Iterable[tuple[str, str]]]) -> dict[str, str]:
    """Name -> the words that most places have for it, of at least two; such a line stands once for all."""
    often = Counter(item for place in places for item in set(place))
    found: dict[str, str] = {}
    for (name, text), n in sorted(often.items(), key=lambda item: (-item[1], item[0])):
        if n > 1 and "the same" not in text:  # as what stands before it
            found.setdefault(name, text)
    return found


def option(parameter: Any) -> tuple[str, str]:
    """Return the first name of an option or argument, and its line."""
    flags = [f for f in (*parameter.opts, *parameter.secondary_opts) if f.startswith("-")]
    if not flags:
        flags = [parameter.name.upper() + ("..." if parameter.nargs == -1 else "")]
    default = shown(parameter)
    said = {"": "", "needed": " Needed."}.get(default, f" [{default}]")
    return flags[0], f"{'/'.join(f'`{f}`' for f in flags)}: {cell(parameter.help or '')}{said}"


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
    """Every table with every column, one line each; columns that several tables share stand once."""
    from fedmiss.tables import load_schema, schema_names

    schemas = {name: load_schema(name) for name in schema_names()}
    lines = {name: {c["name"]: column(c) for c in s.columns} for name, s in schemas.items()}
    common = often_said(columns.items() for columns in lines.values())
    parts = [
        MADE,
        "# Tables and their columns\n\nEvery table that fedmiss writes is a parquet file with a schema of `data_schema/`, ",
        "checked when it is written and when it is read. `fedmiss inspect FILE` prints the same for a file. ",
        "A column with ? may be blank; its unit is in brackets; its type is in the schema. ",
        '"As shared" names columns of this list:\n\n',
        "".join(f"- {text}\n" for _, text in sorted(common.items())),
    ]
    for name, s in schemas.items():
        about = f"{s.description}{' Further columns may follow.' if s.open else ''}"
        parts.append(f"\n## {name}, v{s.version}\n\n{about}\n\n")
        own = [text for key, text in lines[name].items() if common.get(key) != text]
        shared = [f"`{key}`" for key, text in lines[name].items() if common.get(key) == text]
        parts.append(joined(own))
        parts.append(f"- as shared: {', '.join(shared)}\n" if shared else "")
    return "".join(parts)


def joined(lines: list[str]) -> str:
    """Return the lines of columns; an upper limit joins the lower limit before it."""
    text = "".join(f"- {line}\n" for line in lines)
    upper = r"- (`\w+`\??)(?: \([^)]*\))?: (?:its )?upper (?:limit|end)[^\n]*\n"
    return re.sub(
        rf"- (`\w+`\??)( \([^)]*\))?: lower (?:limit|end)([^\n]*)\n{upper}", r"- \1, \4\2: limits\3\n", text
    )


def column(c: dict[str, Any]) -> str:
    """Return the line of a column: name, whether it may be blank, unit, meaning."""
    unit = f" ({cell(c['unit'])})" if c["unit"] else ""
    return f"`{c['name']}`{'?' * c['nullable']}{unit}: {cell(c['description'])}"


def first_line(node: ast.AST) -> str:
    """Return the first paragraph of a docstring, or nothing."""
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) else None
    return cell((text or "").split("\n\n")[0])


@functools.cache
def parsed(module: Path) -> ast.Module:
    """Return the tree of a module."""
    return ast.parse(module.read_text(encoding="utf-8"))


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


def definition(name: str, home: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the node that defines a public name, read without importing."""
    path = ROOT / "fedmiss" / home.replace(".", "/")
    files = [path.with_suffix(".py"), *sorted(path.glob("*.py"))] if home else []
    for file in files:
        if file.exists() and re.search(rf"^(?:def|class) {name}\b", file.read_text(encoding="utf-8"), re.M):
            for node in parsed(file).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                    return node
    raise LookupError(f"{name} is not defined in fedmiss.{home}")


def example(node: ast.AST) -> str:
    """Return the lines of the docstring's example as a page shows them."""
    text = ast.get_docstring(node) or "" if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
    found = re.search(r"Examples\n-+\n(.*?)(?:\n\n[A-Z]\w+\n-+\n|\Z)", text, re.S)
    return found[1].strip() if found else ""


def sections() -> dict[str, dict[str, str]]:
    """What a name is about -> name as users write it -> module that defines it: every public name that has an example.

    The names at the top stand in ``fedmiss/__init__.pyi``, under their titles; the other titles are the packages.
    """
    found: dict[str, dict[str, str]] = {}
    title = ""
    for line in (ROOT / "fedmiss" / "__init__.pyi").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[:1] == ["#"]:
            title = " ".join(words[1:])
        elif words[:1] == ["from"] and words[1] not in ("fedmiss", "fedmiss.version"):
            found.setdefault(title, {})[f"fedmiss.{words[3]}"] = words[1].removeprefix("fedmiss.")
    for path in sorted((ROOT / "fedmiss").glob("*/__init__.py")):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        for name, home in homes(path).items():
            if home and ">>>" in example(definition(name, home)):
                found.setdefault(f"In {package}", {})[f"{package}.{name}"] = home
    for name, home in (
        ("read_table", "tables"),
        ("read_manifest", "files"),
        ("indicator", "report.indicator"),
    ):
        found.setdefault("In single modules", {})[f"fedmiss.{home}.{name}"] = home
    return found


def homes(module: Path) -> dict[str, str]:
    """Return the names of a package and where each is defined ("" for what is no function or class)."""
    stub = module.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else module).read_text(encoding="utf-8"))
    places = {
        alias.asname or alias.name: (node.module or "").removeprefix("fedmiss.")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != ".".join(module.parent.relative_to(ROOT).parts)
        for alias in node.names
    }
    out = {}
    for name in places if stub.exists() else public(module):
        try:
            definition(name, places.get(name, ""))
            out[name] = places[name]
        except (LookupError, OSError):
            out[name] = ""
    return out


def python() -> str:
    """What each package names as public; the names at the top have a page of their own."""
    parts = [
        MADE,
        "# Packages, for those who build on the parts\n\nWhat `import fedmiss` gives, with parameters, units, errors and ",
        "examples: [public names](../reference/api.md). What each package below names as public:\n",
    ]
    for path in sorted((ROOT / "fedmiss").glob("*/**/__init__.py")):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        if names := homes(path):
            about = first_line(ast.parse(path.read_text(encoding="utf-8")))
            parts.append(f"\n## {package}\n\n{about}\n\n{', '.join(f'`{n}`' for n in names)}\n")
    return "".join(parts)


def reference() -> str:
    """Directives by which the site sets every public name with its whole docstring."""
    parts = [
        MADE,
        "# Python: public names\n\nEvery name with its parameters, results, errors and example. ",
        "Names of the parts: [packages](../guide/python.md). A public name that moves keeps its old place for one minor ",
        "version, with a `DeprecationWarning` that says the new one.\n",
    ]
    for title, names in sections().items():
        parts.append(f"\n## {title}\n\n```{{eval-rst}}\n.. currentmodule:: fedmiss\n\n")
        for full, home in names.items():
            node = definition(full.rsplit(".", 1)[1], home)
            if isinstance(node, ast.FunctionDef):
                parts.append(f".. autofunction:: {full}\n")
            else:
                said = [
                    n.name
                    for n in node.body
                    if isinstance(n, ast.FunctionDef) and not n.name.startswith("_") and ast.get_docstring(n)
                ]
                inner = home.startswith(("core", "compressors", "engines", "models.gmm"))
                members = f"   :members: {', '.join(said)}\n" if said and not inner else ""
                parts.append(f".. autoclass:: {full}\n{members}")
        parts.append("```\n")
    return "".join(parts)


PAGES = {
    "guide/commands.md": commands,
    "research/commands.md": lambda: commands(research=True),
    "guide/tables.md": tables,
    "guide/python.md": python,
    "reference/api.md": reference,
}


def main() -> None:
    """Write the pages."""
    for name, make in PAGES.items():
        (GUIDE.parent / name).write_text(make(), encoding="utf-8")
        print(f"wrote {GUIDE.parent / name}")


if __name__ == "__main__":
    main()
