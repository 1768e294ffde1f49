"""Folders are made by one process at a time, whole or not at all; only what fedmiss made is ever deleted or believed."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedmiss import atomic, files, locks, owner
from fedmiss.errors import BusyError, ConfigError, InputError
from fedmiss.parsing import DEEPEST, parse_json
from fedmiss.pipeline.recipe import read_recipe


def make(path: Path, kind: str = "panel", **more) -> Path:
    with files.atomic_folder(path, kind, **more) as tmp:
        (tmp / "groups").mkdir()
        (tmp / "groups" / "a.txt").write_text("first")
        (tmp / "b.txt").write_text("second")
        files.write_manifest(tmp, kind, settings={"seed": 1}, inputs={})
    return path


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


# --- locks


def other(code: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


HOLD = "import sys; from fedmiss.locks import locked\nwith locked(sys.argv[1]): print('held', flush=True); sys.stdin.read()"


def test_another_process_is_refused_by_name_and_a_dead_one_holds_nothing(tmp_path):
    holder = other(HOLD, tmp_path / "out")
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError, match=f"being made by another process .process {holder.pid} on ") as caught:
        make(tmp_path / "out")
    assert str(tmp_path / "out") in str(caught.value)
    holder.kill()
    holder.communicate()
    make(tmp_path / "out")
    assert names(tmp_path) == {"out"}


def test_another_thread_is_refused_and_the_same_one_passes(tmp_path):
    seen: list[str] = []

    def try_it() -> None:
        try:
            make(tmp_path / "out")
        except BusyError:
            seen.append("busy")

    with locks.locked(tmp_path / "out") as first:
        with locks.locked(tmp_path / "." / "out") as again:
            assert (first, again) == (True, False)
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert seen == ["busy"]
    assert names(tmp_path) == set()


def test_who_waits_gets_the_lock_when_the_owner_is_done(tmp_path):
    with locks.locked(tmp_path / "out"):
        waiter = other(HOLD.replace("sys.argv[1]", "sys.argv[1], wait=True"), tmp_path / "out")
    assert waiter.stdout.readline() == "held\n"
    waiter.communicate("")


# --- leftovers


def test_a_folder_inside_an_unfinished_one_makes_no_lock_that_could_stay_in_it(tmp_path, monkeypatch):
    """`own` makes a report in the folder that it makes; a disk that refused to remove the inner lock left it there."""
    genuine = Path.unlink

    def refuse(self, missing_ok=False):
        if self.name.endswith(".lock"):
            raise OSError(errno.EIO, "no luck")
        genuine(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with files.atomic_folder(tmp_path / "own", "own") as outer:
        with files.atomic_folder(outer / "report", "report") as inner:
            (inner / "page").write_text("x")
            files.write_manifest(inner, "report", settings={}, inputs={})
        files.write_manifest(outer, "own", settings={}, inputs={})
    assert names(tmp_path / "own") == {"manifest.json", "report"}


def test_what_a_dead_process_left_is_removed_by_the_next_one(tmp_path):
    folder, file, other = (owner.temporary(tmp_path / name) for name in ("out", "out", "outer"))
    folder.mkdir()
    (folder / "records.parquet").write_text("personal")
    file.write_text("half")
    other.write_text("of another output")
    (tmp_path / ".out.tmp-77").write_text("a user's")
    (tmp_path / file.name.replace("out", "outer")).write_text("a user's: the check is that of another name")
    (tmp_path / ".last.lock").write_text("")  # of fedmiss, which could not remove it
    (tmp_path / ".door.lock").write_text("a user's")
    make(tmp_path / "out")
    users = {".out.tmp-77", ".door.lock", file.name.replace("out", "outer")}
    assert names(tmp_path) == {"out", other.name, ".last.lock"} | users
    locks.clear_inside(tmp_path)
    assert names(tmp_path) == {"out"} | users


def test_what_a_living_process_writes_is_not_removed(tmp_path):
    holder = other(HOLD, tmp_path / "out")
    holder.stdout.readline()
    live = owner.temporary(tmp_path / "out")
    live.mkdir()
    locks.clear_inside(tmp_path)
    assert live.exists()
    holder.communicate("")


def test_a_kill_between_old_and_new_loses_neither(tmp_path, monkeypatch):
    """However far a replacement came, the next look finds the old folder or the new one, whole."""
    genuine, left = os.replace, 0

    class Killed(BaseException):
        pass

    def replace(src, dst):
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        genuine(src, dst)

    make(tmp_path / "out")
    for n in (1, 2, 3):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            patch.setattr(owner.shutil, "rmtree", lambda *a, **k: None)  # a killed process puts nothing away
            left = n
            with pytest.raises(Killed):
                make(tmp_path / "out", overwrite=True)
        with locks.locked(tmp_path / "out"):
            locks.clear_leftovers(tmp_path / "out")
        assert names(tmp_path) == {"out"}, n
        files.read_manifest(tmp_path / "out", verify=True)


# --- what --overwrite may delete


def test_only_what_fedmiss_wrote_is_replaced(tmp_path):
    out = make(tmp_path / "out")
    make(out, overwrite=True)
    (out / ".DS_Store").write_text("the file manager's")
    make(out, overwrite=True)
    (out / "groups" / "my notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds groups/my notes\.txt, which fedmiss did not write there"):
        make(out, overwrite=True)
    (out / "groups" / "my notes.txt").unlink()
    whole = (out / "b.txt").read_bytes()
    (out / "b.txt").write_text("edited")
    with pytest.raises(ConfigError, match=r"holds b\.txt, which was changed after fedmiss wrote it"):
        make(out, overwrite=True)
    assert (out / "b.txt").read_text() == "edited"
    (out / "b.txt").write_bytes(whole)
    with pytest.raises(ConfigError, match="holds a 'panel', not a 'fit'"):
        make(out, "fit", overwrite=True)
    (out / "link").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ConfigError, match="holds link"):
        make(out, overwrite=True)
    (out / "link").unlink()
    (out / files.MANIFEST).write_text('{"name": "a web application", "kind": "panel"}')
    with pytest.raises(ConfigError, match="does not say which files are its own"):
        make(out, overwrite=True)


def test_inputs_and_what_holds_them_are_no_outputs(tmp_path):
    panel = make(tmp_path / "all" / "panel")
    for out, word in (
        (panel, "is an input"),
        (tmp_path / "all", "holds the input"),
        (panel / "groups" / "g99", "lies inside"),
        (panel / "fit", "lies inside"),
    ):
        with pytest.raises(ConfigError, match=word):
            make(out, "panel", overwrite=True, inputs=[tmp_path / "all" / "." / "panel"])
    assert files.read_manifest(panel, verify=True)
    make(tmp_path / "all" / "fit", "fit", inputs=[panel])


def test_a_link_is_refused_before_any_work(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="is a link to"):
        make(tmp_path / "out")


# --- what is believed


@pytest.mark.parametrize("file", ["b.txt", "groups/a.txt", "manifest.json"])
def test_every_flipped_bit_is_named(tmp_path, file):
    out = make(tmp_path / "out")
    whole = (out / file).read_bytes()
    content = json.loads(whole) if file == "manifest.json" else None
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        (out / file).write_bytes(damaged)
        try:
            harmless = content is not None and json.loads(damaged) == content  # white space
        except ValueError:
            harmless = False
        if harmless:
            continue
        with pytest.raises(InputError, match=file if content is None else str(out)):
            files.read_manifest(out, "panel", verify=True)
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        (out / file).write_bytes(whole[:cut])
        if content is None or cut < len(whole) - 1:  # the last byte of the manifest is a line end
            with pytest.raises(InputError, match=file):
                files.read_manifest(out, verify=True)
    (out / file).unlink()
    with pytest.raises(InputError, match=file):
        files.read_manifest(out, verify=True)


def test_a_folder_of_another_format_is_refused_with_the_command_that_makes_it(tmp_path):
    out = make(tmp_path / "out")
    old = json.loads((out / files.MANIFEST).read_text())
    for version, word in (
        (None, "format 1.*make it again with `fedmiss panel"),
        (99, "install the newer fedmiss"),
    ):
        changed = {k: v for k, v in old.items() if k != "format"} | ({"format": version} if version else {})
        (out / files.MANIFEST).write_text(json.dumps(changed))
        with pytest.raises(InputError, match=word):
            files.read_manifest(out)


def test_a_manifest_keeps_its_seal_through_an_update(tmp_path):
    out = make(tmp_path / "out")
    before = files.identity(out)
    files.update_manifest(out, terms={"licence": "CC0"})
    assert files.read_manifest(out, verify=True)["terms"] == {"licence": "CC0"}
    assert files.identity(out) != before


def test_a_secret_is_for_its_owner_alone(tmp_path):
    atomic.write_secret(tmp_path / "secret.key")
    assert (tmp_path / "secret.key").stat().st_size == 32
    if os.name == "posix":
        assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_the_depth_of_json_is_limited():
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)
    for levels in (DEEPEST + 1, 100_000):
        with pytest.raises(ValueError, match="levels deep"):
            parse_json("[" * levels + "]" * levels)


def test_nested_lists_and_forged_types_are_sentences(tmp_path):
    """A right seal proves nothing: whoever forges a manifest can seal it."""
    out = make(tmp_path / "out")
    whole = json.loads((out / files.MANIFEST).read_text())
    for deep in (
        "[" * 3000 + "]" * 3000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        "[" * 100 + "]" * 100,
        "9" * 5000,
    ):
        (out / files.MANIFEST).write_text(deep)
        with pytest.raises(InputError, match=r"is not valid JSON|does not say what"):
            files.read_manifest(out)
        with pytest.raises(ConfigError):
            make(out, overwrite=True)
    (tmp_path / "recipe.toml").write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(InputError, match="is not a TOML recipe"):
        read_recipe(tmp_path / "recipe.toml")
    for part, value, word in (
        ("files", {"b.txt": 1}, r"files\.b\.txt is '1', not a table"),
        ("files", {"b.txt": {"bytes": "6", "sha256": ""}}, "not a whole number"),
        ("settings", [], "settings is"),
        ("results", {"n_sites": "many"}, "n_sites is 'many', not a whole number"),
        ("results", {"n_sites": 10**30}, "not a whole number"),
        ("results", {"groups": {"g01": 3}}, r"groups\.g01 is '3', not a table"),
        ("warnings", [1], r"warnings\[0\] is '1', not a text"),
        ("flow", [{"step": "x", "rows": None}], "not a whole number"),
    ):
        forged = {k: v for k, v in whole.items() if k != "seal"} | {part: value}
        (out / files.MANIFEST).write_text(json.dumps(forged | {"seal": atomic.hash_json(forged)}))
        with pytest.raises(InputError, match=word):
            files.read_manifest(out)
    forged = {k: v for k, v in whole.items() if k not in ("seal", "results")}
    (out / files.MANIFEST).write_text(json.dumps(forged | {"seal": atomic.hash_json(forged)}))
    with pytest.raises(InputError, match="does not say 'results'"):
        files.read_manifest(out)["results"]


def test_checked_files(tmp_path):
    atomic.write_checked(tmp_path / "a", b"unfinished")
    assert atomic.read_checked(tmp_path / "a") == b"unfinished"
    for damage in (b"", b"short", (tmp_path / "a").read_bytes()[:-1]):
        (tmp_path / "a").write_bytes(damage)
        with pytest.raises(InputError, match="damaged"):
            atomic.read_checked(tmp_path / "a")
