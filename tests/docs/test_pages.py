"""Every command in the documentation exists with its options; every block of the tutorials runs."""

import ast
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer.main

import fedmiss
from fedmiss.etl.cells import export_table
from tests.cli import terminal

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    p for p in DOCS.rglob("*.md") if p.name not in ("commands.md", "python.md") and "decisions" not in p.parts
)
RUN = (
    "tutorials/trim-table.md", "tutorials/own-ebird.md", "tutorials/notebook.md", "coming-from/others.md",
    "howto/many-species.md",
)  # fmt: skip


@cache
def commands():
    from fedmiss.cli import commands as all_commands

    app = typer.Typer()
    all_commands.register(app)
    return typer.main.get_command(app).commands


def said(page):
    """Command lines of a page: in blocks, and in `code` that begins with fedmiss and names a command."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [m.strip() for m in re.findall(r"^(?:    |\$ )?(fedmiss [a-z].*)$", text, re.M)]
    lines += re.findall(r"`(fedmiss [a-z][^`]*)`", text)
    return [re.sub(r"\s+#.*$", "", line) for line in lines]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.stem)
def test_every_command_line_names_a_command_and_its_options(page):
    known = commands()
    for line in said(page):
        words = shlex.split(line.replace("...", " ").split(" | ")[0].split(" > ")[0].split(" && ")[0])
        name = words[1] if len(words) > 1 else ""
        assert name in known, f"{page.name}: {line!r} names no command of fedmiss"
        command, rest = known[name], words[2:]
        if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"{page.name}: {line!r} names no command of fedmiss {name}"
            command, rest = command.commands[rest[0]], rest[1:]
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0].rstrip(",.;)") in options, f"{page.name}: {line!r} uses {word}"


def blocks(page, *kinds):
    return re.findall(rf"^```({'|'.join(kinds)})\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def environment(folder):
    """A shell in which `fedmiss` and `python` are those under test."""
    (folder / "bin").mkdir()
    shim = folder / "bin" / "fedmiss"
    shim.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from fedmiss.cli.app import main; main()" "$@"\n'
    )
    shim.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}


def run_page(page):
    """Run a page's blocks here, as one notebook and one shell would: the processes of a shell only load the same again."""
    found, ran = {}, 0
    for kind, code in blocks(page, "sh", "python"):
        if kind == "python":
            exec(compile(code, page.name, "exec"), found)
        for line in code.strip().splitlines() if kind == "sh" else ():
            name, *words = shlex.split(line)
            assert name == "fedmiss"
            done = terminal.fedmiss(*words)
            assert done.code == 0, f"{page.name}: {line}\n{done.out[-2000:]}\n{done.err[-3000:]}"
        ran += 1
    assert ran


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_every_block_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / name)
    if name.endswith("many-species.md"):
        table = pd.read_csv(tmp_path / "trends" / "index.csv")
        assert table["trend_class"].str.contains("decline").tolist() == [True, False, False]
        ((_, recipe),) = blocks(DOCS / name, "toml")
        (tmp_path / "birds.toml").write_text(recipe)
        plan = fedmiss.pipeline.read_recipe(tmp_path / "birds.toml")
        assert plan.species_groups == tmp_path / "habitats.csv"
    if name.endswith(("trim-table.md", "own-ebird.md")):
        assert (tmp_path / "report" / "index.html").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.nightly
def test_three_clubs_come_to_both_reports(tmp_path):
    """The commands of the tutorial, as they stand there; where clubs join, at once and with the hash that was shown."""
    env, job = environment(tmp_path), ""
    for kind, code in blocks(DOCS / "tutorials" / "three-clubs.md", "sh", "toml"):
        if kind == "toml":
            (tmp_path / "study.toml").write_text(code)
            continue
        joins = code.startswith("fedmiss federation join")  # all at once: each waits for the others
        parts = [f"{line} --approve {job}" for line in code.strip().splitlines()] if joins else [code]
        ends = [
            subprocess.Popen(
                ["sh", "-e", "-c", part], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for part in parts
        ]  # fmt: skip
        for part, end in zip(parts, ends, strict=True):
            told = end.communicate()[0]
            if end.returncode:
                for other in ends:
                    other.kill()
            assert end.returncode == 0, f"{part}\n{told[-3000:]}"
            if found := re.search(r"--approve ([0-9a-f]{12})$", told.strip()):
                job = found[1]
    for club in ("central", "north", "south"):
        for report, size in (("joint", 20_000), ("report/report", 100_000)):
            assert (tmp_path / club / "kit" / report / "index.html").stat().st_size > size


def test_the_headline_of_the_example_is_found_by_hand(tmp_path, monkeypatch, capsys):
    (tmp_path / "report").symlink_to(ROOT / "reports" / "example")
    monkeypatch.chdir(tmp_path)
    page = DOCS / "howto" / "check.md"
    ((_, code),) = blocks(page, "python")
    exec(compile(code, "check.md", "exec"), {})
    assert "% per year, 95 % interval" in capsys.readouterr().out
    changes = re.findall(
        r"`((?:se|half) = [^`]+)`", page.read_text(encoding="utf-8").split("--convention trim")[1]
    )
    assert len(changes) == 2
    for change in changes:
        code = re.sub(rf"^{change.split()[0]} = .*$", change, code, flags=re.MULTILINE)
    code = re.sub(r"(slope_se|percent_lo|percent_hi)(?=\")", r"\1_sampling", code)
    exec(compile(code, "check.md", "exec"), {})


@pytest.mark.slow
def test_the_block_on_multiple_imputation_runs(tmp_path, monkeypatch, capsys):
    """Rubin's error is larger than that of one matrix: the draws differ."""
    p = fedmiss.simulate_panel(40, 24, 0.3, seed=1, groups=2)
    panel = fedmiss.simulate.write_panel(p, tmp_path / "panel")
    fedmiss.fit_panel(panel, tmp_path / "fit", fedmiss.FitSettings(rank=1, bootstrap=0))
    monkeypatch.chdir(tmp_path)
    ((_, code),) = blocks(DOCS / "howto" / "multiple-imputation.md", "python")
    found: dict[str, float] = {}
    exec(compile(code, "multiple-imputation.md", "exec"), found)
    assert "standard error" in capsys.readouterr().out
    assert found["error"] > np.sqrt(found["within"]) > 0


@pytest.mark.slow
def test_the_blocks_for_r_run_in_r(tmp_path):
    if shutil.which("Rscript") is None:
        pytest.skip("needs Rscript")
    shutil.copytree(ROOT / "reports" / "example", tmp_path / "report")
    rows = [
        f"pond {i},{2010 + t}-05-0{i % 9 + 1},me,{(5 * i + 3 * t) % 13}" for i in range(12) for t in range(6)
    ]
    (tmp_path / "counts.csv").write_text("site,date,observer,count\n" + "\n".join(rows) + "\n")
    fedmiss.ingest(
        [tmp_path / "counts.csv"],
        tmp_path / "records",
        fedmiss.IngestSettings(species=("Ardea alba",), column_map={"auto": ""}),
    )
    export_table(tmp_path / "records", tmp_path / "visits.csv", "Ardea alba")
    code = "\n".join(c for _, c in blocks(DOCS / "howto" / "r.md", "r"))
    (tmp_path / "page.R").write_text(code)
    done = subprocess.run(["Rscript", "--vanilla", "page.R"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trend_class" in done.stdout
    assert "factor(year)2012" in done.stdout


def test_every_page_is_in_a_table_of_contents():
    """Each page of one part only: the users', or that for method researchers (with the decisions)."""
    listed: dict[str, set[Path]] = {}
    for root in ("index.md", "research/index.md", "decisions/index.md"):
        found = listed.setdefault(root, set())
        for block in re.findall(r"```\{toctree\}(.*?)```", (DOCS / root).read_text(encoding="utf-8"), re.S):
            for line in block.split():
                if not line.startswith(":") and "/" in line + "/" and not line.isdigit():
                    found |= {p.resolve() for p in (DOCS / root).parent.glob(f"{line}.md")}
    there = {p.resolve() for p in DOCS.rglob("*.md") if "archive" not in p.parts}
    assert there - set.union(*listed.values()) == {DOCS / "index.md", DOCS / "research" / "index.md"}
    research = listed["research/index.md"] | listed["decisions/index.md"]
    assert not listed["index.md"] & research
    parts = runpy.run_path(str(DOCS / "site_parts.py"))["RESEARCH"]
    names = [p.relative_to(DOCS).as_posix() for p in research]
    assert all(any(fnmatch(name, pattern) for pattern in parts) for name in names)


def test_every_link_between_pages_leads_to_a_page_and_to_a_heading():
    """Of all pages, of the README and its neighbours, and of messages in the program that name a page."""
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        text = re.sub(r"^```(?!\{).*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target, anchor in re.findall(r"\]\(([^)\s:#]*)(#[^)\s]*)?\)", text):
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page.relative_to(ROOT)}: {target}"
            if anchor and there.suffix == ".md":
                heads = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
                slugs = {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in heads}
                assert anchor[1:] in slugs, f"{page.relative_to(ROOT)}: {target}{anchor}"
    for file in (*(ROOT / "fedmiss").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *DOCS.glob("*.py")):
        for named in re.findall(r"\bdocs/[\w/.-]+\.(?:md|py)\b", file.read_text(encoding="utf-8")):
            assert (ROOT / named).exists(), f"{file.relative_to(ROOT)}: {named}"


def test_every_name_that_a_benchmark_imports_is_there():
    """Pages name benchmarks as the commands of their figures, and no other test runs them all."""
    for file in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedmiss"):
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    there = hasattr(module, name.name) or importlib.util.find_spec(
                        f"{node.module}.{name.name}"
                    )
                    assert there, f"{file.name}: {node.module}.{name.name}"


def test_the_version_stands_in_one_way():
    """Package, project, citation and changelog name one version."""
    import tomllib

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == fedmiss.__version__
    assert f"\nversion: {fedmiss.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {fedmiss.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_dependency_is_among_the_licences_and_the_pins():
    import tomllib

    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    listed = (DOCS / "reference" / "licences.md").read_text(encoding="utf-8")
    for need in needs:
        name = re.match(r"[A-Za-z0-9-]+", need)[0]
        assert re.search(rf"^\| {name} \| .* \| yes \|$", listed, re.M), name
        for file in ("constraints.txt", "constraints-nvflare.txt"):
            assert re.search(rf"^{name}==", (ROOT / file).read_text(), re.M | re.I), (name, file)


def test_every_room_is_described():
    """Each folder and file of the package stands on the page of rooms."""
    rooms = (DOCS / "reference" / "rooms.md").read_text(encoding="utf-8")
    for path in (ROOT / "fedmiss").iterdir():
        if (path.is_dir() and (path / "__init__.py").exists()) or (
            path.suffix == ".py" and path.name != "__init__.py"
        ):
            name = path.name + "/" * path.is_dir()
            assert f"`{name}" in rooms, name


def test_the_walks_name_functions_that_are_there():
    """Of the page of rooms: `file.py: name` is a function or class of that file, and every file that is named exists."""
    rooms = (DOCS / "reference" / "rooms.md").read_text(encoding="utf-8")
    walks = rooms[rooms.index("## The walk of a record") : rooms.index("## Add a feature of sites")]
    named = re.findall(r"`([\w/]+\.py): (\w+)`", walks)
    assert len(named) >= 20
    for file, name in named:
        text = (ROOT / "fedmiss" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {name}\b", text, re.M), (file, name)
    for file in re.findall(r"`([\w/]+/[\w/]+\.py)\b", walks):
        assert (ROOT / "fedmiss" / file).exists(), file
