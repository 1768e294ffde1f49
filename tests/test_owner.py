"""Nothing of a user's is deleted or replaced: the owner's proofs, and that nothing goes past it."""

import ast
import os
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmiss
from fedmiss import atomic, files, locks, owner
from fedmiss.errors import ConfigError
from fedmiss.pipeline.fit_folder import finish, partial_folder
from tests.folders import content

PACKAGE = Path(fedmiss.__file__).parent
OWNERS = {"owner.py", "locks.py"}  # a lock removes its own file, which it has signed
REMOVING = {
    "rmtree", "unlink", "remove", "rmdir", "removedirs", "rename", "renames", "truncate", "move", "replace",
}  # fmt: skip
GOES = REMOVING | {"ftruncate", "touch_over", "tempfile"}  # all names that _calls looks for
# who may call what, and why it can lose nothing
SAFE = {
    ("etl/others.py", "replace"): "of values in a column",
    ("federation/journal.py", "ftruncate"): "a journal, known by its first bytes, is cut where it was torn",
    ("network/nvflare_kits.py", "move"): "out of a temporary folder into the unfinished folder of a study",
}


def _calls(tree: ast.AST):
    """Calls by which paths go away: of the modules os and shutil, and of paths; a list's remove and a text's replace not."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, base = node.func.attr, node.func.value
        module = isinstance(base, ast.Name) and base.id in ("os", "shutil")
        of_path = name in ("unlink", "rmdir", "rename", "rmtree", "touch_over") or (
            name == "replace" and len(node.args) == 1 and not node.keywords
        )
        if (module and name in REMOVING | {"ftruncate"}) or (of_path and not module):
            columns = name == "rename" and (
                node.keywords or any(isinstance(a, ast.Dict | ast.DictComp | ast.Name) for a in node.args)
            )
            if not columns:
                yield name, node.lineno
        if (
            isinstance(base, ast.Name)
            and base.id == "tempfile"
            and name not in ("TemporaryDirectory", "gettempdir")
        ):
            yield name, node.lineno


WRITING = {
    "write_text", "write_bytes", "savefig", "to_parquet", "to_csv", "write_csv", "write_parquet", "sink_csv",
    "sink_parquet", "ParquetWriter", "save", "savez", "copyfile", "copytree", "tofile",
}  # fmt: skip


def _writes(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        of_numpy = name not in ("save", "savez") or getattr(node.func.value, "id", "") == "np"
        modes = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
        opened = name == "open" and any(m in ("w", "wb", "a", "ab", "x", "xb", "w+b") for m in modes)
        if (name in WRITING and of_numpy) or opened:
            return True
    return False


@cache
def _package():
    """Module -> its calls by which paths go away; whether it writes files."""
    out = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # calls whose names are not in the text need not be looked for in its tree
        words = set(re.findall(r"\w+", text))
        calls, writes = not words.isdisjoint(GOES), not words.isdisjoint({*WRITING, "open"})
        tree = ast.parse(text if calls or writes else "")
        out[path.relative_to(PACKAGE).as_posix()] = (
            list(_calls(tree)) if calls else [],
            writes and _writes(tree),
        )
    return out


def test_nobody_but_the_owner_removes_or_renames():
    assert not [
        f"{inside}:{line} {name}"
        for inside, (calls, _) in _package().items()
        for name, line in calls
        if inside not in OWNERS and (inside, name) not in SAFE
    ]


def test_the_look_at_the_calls_sees_them():
    code = "import os, shutil\nshutil.rmtree(a)\nos.replace(a, b)\na.unlink()\np.rename(q / 'x')\np.replace(q)\nos.remove(a)"
    assert len(list(_calls(ast.parse(code)))) == 6
    harmless = "'a'.replace('b', 'c')\nx.remove(1)\nframe.rename(columns=c)\nframe.rename({'a': 'b'})"
    assert list(_calls(ast.parse(harmless))) == []


def test_writers_into_named_folders_are_known():
    """Whoever opens a file to write does so below a folder that it was given to fill, or through the owner."""
    allowed = {
        "simulate/text.py": "into memory", "etl/ebird.py": "the unfinished folder of the cache",
        "etl/rows.py": "the unfinished folder of the cache",
        "cli/doctor.py": "a temporary folder of its own",
        "etl/fields.py": "the unfinished folder of the cache",
        "etl/flow.py": "the unfinished records folder",
        "etl/select.py": "the unfinished folder of the cache or records folder",
        "etl/projection.py": "the unfinished folder of the cache",
        "experiments/folder.py": "the unfinished folder of the experiment",
        "federation/masks.py": "a new file only (O_EXCL)",
        "network/nvflare_kits.py": "a temporary folder of its own, or the unfinished folder of a study",
        "network/demo.py": "a log, added to", "network/engine.py": "a log, added to",
        "community/page.py": "the unfinished folder of the community",
        "pipeline/parallel.py": "an unfinished name of its own",
        "pipeline/own.py": "the unfinished folder of one organisation's panel",
        "report/build.py": "the unfinished report", "report/exchange.py": "the unfinished report",
        "report/joint.py": "the unfinished report",
        "report/language.py": "the unfinished report", "report/html.py": "the unfinished report",
        "report/tables.py": "the unfinished report, or a temporary name from its caller",
        "report/trim/files.py": "the unfinished folder of the results",
        "report/many.py": "", "simulate/ebird.py": "the unfinished folder of the simulation",
        "simulate/truth.py": "the unfinished folder of the simulation",
        "atomic.py": "", "files.py": "", "owner.py": "", "locks.py": "", "tables.py": "through atomic_file",
        "federation/resume.py": "into memory",
        "federation/journal.py": "its own file, known by its first bytes",
        "network/method.py": "into an unfinished folder",
        "network/folder.py": "a frame whose name is the digest of what is written",
        "pipeline/steps.py": "through atomic_file", "network/kits.py": "through atomic_file",
        "report/species.py": "the unfinished folder of the results", "network/outbox.py": "through atomic_file",
        "experiments/plot_trace.py": "through atomic_file", "pipeline/demo.py": "through atomic_file",
        "etl/cells.py": "through atomic_file", "report/style.py": "into memory",
        "core/loop.py": "into memory", "pipeline/fitting.py": "into memory", "etl/resolve.py": "an unfinished folder",
    }  # fmt: skip
    found = {inside for inside, (_, writes) in _package().items() if writes}
    assert found <= set(allowed), found - set(allowed)


# --- proofs


@given(
    name=st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=40)
)
def test_an_unfinished_name_proves_itself_and_no_other(name):
    path = Path("/x") / name
    made = owner.temporary(path)
    assert owner.unfinished(made) == (path.name, False)
    assert owner.unfinished(owner.temporary(path, old=True)) == (path.name, True)
    for other in (
        made.name[:-1],
        made.name + "0",
        made.name.replace(".tmp-", ".tmp-0", 1),
        f".{name}.tmp-8_x1abcd",
    ):
        assert owner.unfinished(Path(other)) == ("", False)


def test_a_stranger_is_not_removed(tmp_path):
    for name in (".out.tmp-1", "out", ".out.tmp-0123456789abcdef01234567"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ConfigError, match="was not made by fedmiss"):
            owner.remove_own(tmp_path / name)
    assert set(content(tmp_path).values()) == {b"mine"}


@pytest.mark.parametrize("raw", [b"mine", b"\xff\xfe", b'{"pid": 7}', b'{"fedmiss": "1"}'])
def test_a_file_with_the_name_of_a_lock_stays(tmp_path, raw):
    (tmp_path / ".out.lock").write_bytes(raw)
    with pytest.raises(ConfigError, match="has the name of the lock"), files.atomic_folder(tmp_path / "out"):
        raise AssertionError("never reached")
    assert content(tmp_path) == {".out.lock": raw}


def test_a_torn_lock_of_a_dead_process_is_no_hindrance(tmp_path):
    with locks.locked(tmp_path / "out"):
        signed = (tmp_path / ".out.lock").read_bytes()
    for cut in range(len(signed) + 1):
        if 13 < cut < 45:  # one write of 100 bytes is not torn inside its token
            continue
        (tmp_path / ".out.lock").write_bytes(signed[:cut])
        with locks.locked(tmp_path / "out"):
            pass
        assert content(tmp_path) == {}


# --- folders of work


@pytest.mark.parametrize(
    "name", ["key.json", "manifest.json", "photo.jpg", ".hidden", "draws-00000.npz", ".fedmiss-made"]
)
def test_a_strange_work_folder_stays_whole(tmp_path, name):
    work = tmp_path / "fit.partial"
    work.mkdir()
    (work / name).write_text("mine")
    with pytest.raises(ConfigError, match="in the way of unfinished work"):
        partial_folder(tmp_path / "fit", "key")
    assert content(tmp_path) == {f"fit.partial/{name}": b"mine"}


def test_a_finished_folder_that_has_the_name_of_a_work_folder_stays(tmp_path):
    out = made(tmp_path / "fit.partial")
    before = content(out)
    with pytest.raises(ConfigError, match="in the way of unfinished work"):
        partial_folder(tmp_path / "fit", "key")
    assert content(out) == before


def test_a_work_folder_is_emptied_of_its_own_files_only(tmp_path):
    work = partial_folder(tmp_path / "fit", "one")
    atomic.write_checked(work / "checkpoint" / "run.npz", b"x")
    (work / "photo.jpg").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds photo\.jpg, which fedmiss did not write there"):
        partial_folder(tmp_path / "fit", "two")
    assert (work / "photo.jpg").read_text() == "mine"
    assert atomic.read_checked(work / "checkpoint" / "run.npz") == b"x"
    (work / "photo.jpg").unlink()
    (work / "trace.parquet").write_text("mine")
    with pytest.raises(ConfigError, match="was not written by fedmiss"):
        atomic.write_json(work / "trace.parquet", {})
    (work / "trace.parquet").unlink()
    partial_folder(tmp_path / "fit", "two")
    assert {p for p in content(work) if p != owner.MARK} == {"key.json"}


@pytest.mark.parametrize("name", ["photo.jpg", "checkpoint/fit/notes.txt", "members/2/mine.parquet"])
def test_a_file_of_a_users_in_unfinished_work_never_becomes_a_part_of_the_fit(tmp_path, name):
    """It was listed in the fit's manifest, and so removed with the fit at the next --overwrite."""
    work = partial_folder(tmp_path / "fit", "key")
    atomic.write_checked(work / "checkpoint" / "fit" / "a.bin", b"x")
    atomic.write_json(work / "members" / "2" / "a.json", 1)
    files.write_manifest(work, "fit", settings={}, inputs={})
    (work / name).write_text("mine")
    before = content(tmp_path)
    for step in (lambda: finish(work, tmp_path / "fit"), lambda: partial_folder(tmp_path / "fit", "key")):
        with pytest.raises(ConfigError, match=f"holds {name}, which fedmiss did not write there"):
            step()
        assert content(tmp_path) == before
    (work / name).unlink()
    partial_folder(tmp_path / "fit", "key")
    finish(work, tmp_path / "fit")
    assert set(files.read_manifest(tmp_path / "fit", verify=True)["files"]) == {"members/2/a.json"}


def test_what_an_interrupted_write_left_deep_in_a_work_folder_is_dropped(tmp_path):
    """A kill while an averaged fit was written left a temporary file two folders down, and the finished folder had it."""
    work = partial_folder(tmp_path / "fit", "key")
    left = owner.temporary(work / "members" / "2" / "site_factors.parquet")
    left.parent.mkdir(parents=True)
    left.write_text("half")
    partial_folder(tmp_path / "fit", "key")
    assert not left.exists()
    left.write_text("half")
    atomic.write_checked(work / "checkpoint" / "run.npz", b"x")
    atomic.write_json(work / "members" / "2" / "a.json", 1)
    files.write_manifest(work, "fit", settings={}, inputs={})
    finish(work, tmp_path / "fit")
    assert set(content(tmp_path / "fit")) == {"manifest.json", "members/2/a.json"}
    assert not (tmp_path / "fit" / "checkpoint").exists()
    assert set(files.read_manifest(tmp_path / "fit", verify=True)["files"]) == {"members/2/a.json"}


# --- finished folders


def made(path: Path, name: str = "index.html", *, overwrite: bool = False) -> Path:
    with files.atomic_folder(path, "report", overwrite=overwrite) as tmp:
        (tmp / name).parent.mkdir(exist_ok=True)
        (tmp / name).write_text("page")
        files.write_manifest(tmp, "report", settings={}, inputs={})
    return path


def test_what_comes_into_a_folder_while_its_successor_is_made_is_kept(tmp_path):
    out = made(tmp_path / "out")

    def make_again() -> None:
        with files.atomic_folder(out, "report", overwrite=True) as tmp:
            (tmp / "new.html").write_text("new")
            files.write_manifest(tmp, "report", settings={}, inputs={})
            (out / "notes.txt").write_text("mine")

    with pytest.raises(ConfigError, match="is kept as"):
        make_again()
    assert set(content(out)) == {"manifest.json", "new.html"}
    (kept,) = tmp_path.glob("out.kept-*")
    assert (kept / "notes.txt").read_text() == "mine"


def test_the_names_in_a_forged_manifest_do_not_lead_outside(tmp_path):
    out = made(tmp_path / "out")
    (tmp_path / "mine.txt").write_text("mine")
    sums = {"../mine.txt": tmp_path / "mine.txt", "index.html": out / "index.html"}
    entries = {name: {"bytes": 4, "sha256": files.hash_file(path)} for name, path in sums.items()}
    files.update_manifest(out, files=entries)
    made(out, overwrite=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_what_a_dead_process_left_beside_a_whole_file_goes_although_the_file_stays(tmp_path):
    """It died between the last file and the removal of its lock; the next command refuses to overwrite, and tidies up."""
    out = tmp_path / "table.csv"
    with files.making_files(out, overwrite=False), atomic.atomic_file(out) as tmp:
        tmp.write_text("whole")
    before = set(content(tmp_path))
    left = owner.temporary(out)
    left.write_text("half")
    with pytest.raises(ConfigError, match="exists already"), files.making_files(out, overwrite=False):
        raise AssertionError("never reached")
    assert set(content(tmp_path)) == before
    assert out.read_text() == "whole"


def test_a_write_protected_folder_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    """It was renamed and replaced, could then not be emptied, and the user heard that nothing was written."""
    out, usual = made(tmp_path / "out", "sub/a.csv"), os.access
    # Not by chmod: an administrator may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != out / "sub" and usual(path, mode))
    with pytest.raises(ConfigError, match="is write-protected"):
        made(out, overwrite=True)
    assert (out / "sub" / "a.csv").read_text() == "page"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
