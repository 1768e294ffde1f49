"""What POSIX has and Windows has not stands in one module, and everything works without it."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HIDDEN = Path(__file__).parent / "without_posix"
CALLS = {"kill", "fsync", "SIGINT", "SIGTERM", "CREATE_NEW_PROCESS_GROUP"}  # there on both, and different
GROUPS = {"start_new_session", "preexec_fn", "process_group"}


@cache
def hidden_names():
    found: dict[str, object] = {}
    found_in = ("MODULES", "OS", "SIGNALS")
    tree = ast.parse((HIDDEN / "sitecustomize.py").read_text())
    wanted = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in found_in]
    exec(compile(ast.Module(wanted, []), "hidden", "exec"), found)
    return found["MODULES"], {*found["OS"], *found["SIGNALS"], *CALLS}


def faults(text):
    """Uses of what only some systems have, in a module's text."""
    modules, names = hidden_names()
    words = {*modules, *names, "signal", *GROUPS}
    if words.isdisjoint(re.findall(r"\w+", text)):  # a tenth of the time that its tree takes
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in {*modules, "signal"})
        elif isinstance(node, ast.ImportFrom) and node.module in {*modules, "signal", "os"}:
            yield from (a.name for a in node.names if node.module != "os" or a.name in names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            yield from {node.attr} & names
        elif isinstance(node, ast.keyword) and node.arg in GROUPS:
            yield node.arg


def test_one_module_alone_calls_what_only_some_systems_have():
    found = {
        str(path.relative_to(ROOT)): used
        for path in sorted((ROOT / "fedmiss").rglob("*.py"))
        if path.name != "system.py" and (used := list(faults(path.read_text(encoding="utf-8"))))
    }
    assert not found
    for planted in (
        "import fcntl",
        "from signal import SIGINT",
        "os.killpg(1, 9)",
        "os.fsync(3)",
        "f(start_new_session=True)",
    ):
        assert list(faults(planted)), planted


def run(*words, folder, code=None):
    """Run fedmiss, or a script, as on a computer without POSIX."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HIDDEN), str(ROOT)]), "FEDMISS_QUIET": "1"}
    head = [sys.executable, "-c", code] if code else [sys.executable, "-m", "fedmiss"]
    done = subprocess.run([*head, *map(str, words)], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


FILES = """
import os, sys, subprocess
from pathlib import Path
from fedmiss import atomic, files, system
from fedmiss.errors import BusyError
from fedmiss.federation.journal import Journal
from fedmiss.federation.masks import identity, public_key
from fedmiss.locks import locked
from fedmiss.network.folder import Folder

assert not system.POSIX and not hasattr(system.os, "killpg")
journal = Journal(Path("private/journal"))
journal.append((1, b"a" * 100), (2, b"b\\n"))
journal.close()
again = Journal(Path("private/journal"))
assert list(again.records()) == [(1, b"a" * 100), (2, b"b\\n")]
again.close()
key = public_key(identity(Path("private/key")))
assert key == public_key(identity(Path("private/key"))), "a key that all may read by its mode is still taken"
Path("shared").mkdir()
a, b = (Folder(Path("shared"), n, ["a", "b"], "s", bytes(16), genuine=lambda *x: None, patience=5) for n in "ab")
b.restore(0, b"frame of b")
assert a.some_of(0, {"a": b"frame of a"}, lambda got: frozenset("ab")) == {"a": b"frame of a", "b": b"frame of b"}
for text in ("one", "two"):
    with files.atomic_folder("out", "panel", overwrite=True) as tmp:
        (tmp / "x.txt").write_text(text)
        files.write_manifest(tmp, "panel", settings={}, inputs={}, results={})
assert Path("out/x.txt").read_text() == "two"
with atomic.atomic_file("one.txt") as tmp:
    tmp.write_text("text")
with locked("out"):
    child = "from fedmiss.locks import locked\\nwith locked('out'): pass"
    lost = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert "BusyError" in lost.stderr, lost.stderr
ends = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **system.in_own_group())
system.end_tree(ends)
assert ends.returncode
assert system.user_name() and system.cores() > 0 and system.address_limit() is None and not system.is_administrator()
left = {p.name for p in Path().iterdir()} - {".fedmiss-made", "one.txt", "out", "private", "shared"}
assert not left, left
"""


def test_journals_keys_frames_folders_and_locks_need_no_posix(tmp_path):
    run(folder=tmp_path, code=FILES)


COMMANDS = """
import sys
from unittest import mock

from fedmiss import system
from fedmiss.cli import app

assert not system.POSIX
for words in (
    "ingest counts.csv --species wren --out records",
    "panel records --out panel",
    "fit panel --out fit --rank 0 --bootstrap 5",
    "impute panel fit --out imputed",
    "report --panel panel --fit fit --imputed imputed --out report",
):
    sys.argv = ["fedmiss", *words.split()]
    with mock.patch.object(app.app, "registered_commands", []), mock.patch.object(app.app, "registered_groups", []):
        try:
            app.main()
        except SystemExit as stop:
            assert not stop.code, words
"""


@pytest.mark.slow
def test_from_a_table_to_the_page_without_posix(tmp_path):
    rows = [f"s{i},{2010 + t},{(i * 7 + t * 3) % 11}" for i in range(12) for t in range(8) if (i + t) % 5]
    (tmp_path / "counts.csv").write_text("site,year,count\n" + "\n".join(rows) + "\n")
    run(folder=tmp_path, code=COMMANDS)
    assert (tmp_path / "report" / "index.html").stat().st_size > 50_000


@pytest.mark.slow
@pytest.mark.nightly
def test_a_study_of_three_processes_without_posix(tmp_path):
    said = run("federation", "demo", "--out", "study", "--bootstrap", "5", folder=tmp_path)
    assert (tmp_path / "study" / "shared-folder").is_dir()
    assert "user" not in said.splitlines()[0]
