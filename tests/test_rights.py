"""Rights of files: what is refused names the file that was refused, whose it is, and what to do; nothing is left."""

import os
import subprocess
import sys

import pytest

from fedmiss import loops
from fedmiss.system import owner_of
from tests.cli.terminal import fedmiss
from tests.ordinary import as_user, give_away, ordinary


def command(*words: object) -> tuple[int, str]:
    """Exit code and words of a command of an ordinary user."""
    call = "import sys; sys.argv[0] = 'fedmiss'; from fedmiss.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", call, *map(str, words)], capture_output=True, text=True, **ordinary()
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


MAKE = """
import sys
from fedmiss import files
try:
    with files.atomic_folder(sys.argv[1], "panel") as tmp:
        (tmp / "a").write_text("a")
        READ
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("read", ["open(sys.argv[2])", "import polars; polars.read_parquet(sys.argv[2])"])
def test_an_input_that_may_not_be_read_is_named_and_not_the_output(tmp_path, read):
    closed = tmp_path / "months.parquet"
    closed.write_text("x")
    closed.chmod(0)
    said = as_user(MAKE.replace("READ", read), tmp_path / "out", closed)
    assert said.startswith("PermissionError")
    assert closed.name in said
    assert os.listdir(tmp_path) == [closed.name]


def test_a_table_that_may_not_be_written_is_told_as_the_output_also_where_its_path_is_long(tmp_path):
    """polars names the unfinished file, and cuts a long path."""
    out = tmp_path / ("x" * 100) / "out"
    write = "tmp.chmod(0o555); import polars; polars.DataFrame({'a': [1]}).write_parquet(tmp / 'a.parquet')"
    said = as_user(MAKE.replace('(tmp / "a").write_text("a")', "pass").replace("READ", write), out)
    assert said.startswith(f"InputError cannot write {out}: this user may not write there")


def test_a_folder_that_takes_no_files_is_named_by_the_output(tmp_path):
    tmp_path.chmod(0o555)
    try:
        said = as_user(MAKE.replace("READ", "pass"), tmp_path / "out")
    finally:
        tmp_path.chmod(0o755)
    assert said.startswith(f"InputError cannot write {tmp_path / 'out'}: this user may not write there")


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_the_lock_of_another_user_is_named_with_its_owner(tmp_path, mode):
    lock = tmp_path / ".out.lock"
    lock.write_text("")
    lock.chmod(mode)
    give_away(lock)
    said = as_user(MAKE.replace("READ", "pass"), tmp_path / "out")
    assert said.startswith(f"BusyError {lock} is another user's")
    assert "Ask user 61009" in said
    assert lock.exists()


def test_what_another_user_notes_of_a_folder_is_named_with_its_owner(tmp_path):
    write = "import sys; from fedmiss.atomic import write_json; write_json(sys.argv[1], {})"
    as_user(write, tmp_path / "first.json")
    give_away(tmp_path / ".fedmiss-made")
    caught = write.replace("write_json(sys", "\ntry: write_json(sys") + "\nexcept Exception as e: print(e)"
    said = as_user(caught, tmp_path / "second.json")
    assert said.startswith(
        f"{tmp_path / '.fedmiss-made'}, the list of what fedmiss wrote there, is user 61009"
    )
    assert sorted(os.listdir(tmp_path)) == [".fedmiss-made", "first.json"]


def test_a_closed_folder_is_named_with_its_owner(tmp_path):
    closed = tmp_path / "closed"
    (closed / "panel").mkdir(parents=True)
    closed.chmod(0)
    try:
        code, said = command("inspect", closed / "panel")
    finally:
        closed.chmod(0o755)
    assert code == 1
    assert f"Permission denied ({closed} is {owner_of(closed)}'s)." in said


def test_a_table_that_may_not_be_read_is_one_sentence_with_its_owner(tmp_path):
    """typer looks first, and showed a box of its own."""
    closed = tmp_path / "it's.csv"
    closed.write_text("site,year,count\n")
    closed.chmod(0)
    code, said = command("trim", closed)
    assert code == 1
    assert (
        said
        == f"fedmiss: {closed}: Permission denied ({closed} is {owner_of(closed)}'s). Check the path, your rights and "
        "the disk; --debug shows more.\n"
    )


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_closed_home_is_not_told_by_what_draws(tmp_path, monkeypatch, jobs):
    """Two lines of matplotlib, of each process, about a cache that nobody asked for."""
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o555)
    birds = "AB"[:jobs]  # one for each process
    rows = [f"{b},{s},{year},{s + year % 3}" for b in birds for s in (1, 2) for year in (2001, 2002, 2003)]
    (tmp_path / "t.csv").write_text("\n".join(["species,site,year,count", *rows]))
    words = ("trim", tmp_path / "t.csv", "--all-species", "--jobs", jobs, "--out", tmp_path / "out")
    code, said = command(*words)
    assert code == 0, said
    assert "atplotlib" not in said


def test_loops_that_nothing_keeps_are_said(tmp_path, monkeypatch):
    """Every command took 15 s more, and no word said why."""

    def refuse(cache=False, **more):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(loops, "NOT_KEPT", [])
    (tmp_path / "t.csv").write_text("site,year,count\na,2001,3\na,2002,4\nb,2001,2\nb,2002,5\n")
    assert "NUMBA_CACHE_DIR" not in fedmiss("trim", tmp_path / "t.csv").err
    with monkeypatch.context() as patch:
        patch.setattr(loops, "_njit", refuse)
        loops.compiled(lambda x: x)
    assert "Set NUMBA_CACHE_DIR to a folder of yours" in fedmiss("trim", tmp_path / "t.csv").err
    assert "NUMBA_CACHE_DIR" not in fedmiss("--quiet", "trim", tmp_path / "t.csv").err


def test_a_cache_of_loops_that_refuses_costs_time_only(tmp_path):
    """Loops that root had left in a user's cache, and a full disk there, ended every command."""
    (tmp_path / "some.py").write_text(
        "from fedmiss.loops import compiled\n\n@compiled\ndef more(x):\n    return x + 1.0\n"
    )
    code = """
import os, sys
os.environ["NUMBA_CACHE_DIR"] = sys.argv[1] + "/cache"
sys.path.insert(0, sys.argv[1])
import some
from fedmiss.loops import NOT_KEPT
print(some.more(1.0), bool(NOT_KEPT))
"""
    assert as_user(code, tmp_path) == "2.0 False\n"
    (index,) = (tmp_path / "cache").rglob("*.nbi")
    index.chmod(0)
    assert as_user(code, tmp_path) == "2.0 True\n"
