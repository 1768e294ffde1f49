"""One file server for all: members are users with rights of their own, and none waits in silence for another's file."""

import os
import stat

import pytest

from fedmiss.errors import ConfigError
from fedmiss.network.folder import Folder
from fedmiss.network.join import join
from fedmiss.system import share_like
from tests.ordinary import OTHER, as_user, give_away

JOB = bytes(32)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def closed_umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize("rights", [0o777, 0o1777, 0o2770, 0o750])
def test_what_a_member_makes_is_as_open_as_the_shared_folder(tmp_path, closed_umask, rights):
    """The first member's umask closed the folder of the job: the others were refused, and it waited for them."""
    root = tmp_path / "shared"
    root.mkdir()
    if os.geteuid() == 0:
        os.chown(root, -1, OTHER)
    root.chmod(rights)
    Folder(root, "a", ["a", "b"], "egrets", JOB, genuine=lambda *x: None).restore(0, b"frame")
    for folder in (root / f"egrets-{JOB.hex()[:16]}", root / f"egrets-{JOB.hex()[:16]}" / "000000"):
        assert mode(folder) == rights | 0o700
        assert folder.stat().st_gid == root.stat().st_gid
    (frame,) = folder.iterdir()
    assert mode(frame) == rights & 0o444 | 0o600
    assert frame.stat().st_gid == root.stat().st_gid


def test_a_folder_that_is_there_already_keeps_its_rights_also_behind_a_link(tmp_path, closed_umask):
    """Whoever may write to the shared folder could else open a member's own folders to all."""
    root, own = tmp_path / "shared", tmp_path / "own"
    root.mkdir()
    root.chmod(0o777)
    own.mkdir(0o700)
    (root / f"egrets-{JOB.hex()[:16]}").symlink_to(own)
    Folder(root, "a", ["a", "b"], "egrets", JOB, genuine=lambda *x: None).restore(0, b"frame")
    assert mode(own) == 0o700
    share_like(root / f"egrets-{JOB.hex()[:16]}", root)
    assert mode(own) == 0o700


def test_join_closes_what_is_private(folder, kit, panels):
    """A kit that was copied by a way that keeps no rights."""
    kit.private.chmod(0o755)
    with pytest.raises(ConfigError, match="--folder FOLDER"):
        join(kit, panels["north"])
    assert mode(kit.private) == 0o700


TWO = """
import os, sys
from pathlib import Path
from fedmiss.errors import InputError
from fedmiss.network import folder as module
module.QUIET = 0.0
root, job = Path(sys.argv[1]), bytes(32)
def member(name, **more):
    return module.Folder(root, name, ["a", "b"], "egrets", job, genuine=lambda *x: None, **more)
at = root / f"egrets-{job.hex()[:16]}"
"""


@pytest.mark.parametrize("what", ["at", "at / '000000'", "next((at / '000000').glob('b-*'))"])
def test_a_frame_that_may_not_be_read_is_said_and_waited_for(tmp_path, what):
    code = f"""
member("b").restore(0, b"frame of b")
closed = {what}
before = closed.stat().st_mode
closed.chmod(0)
a = member("a", patience=20.0)
def told(names):
    if names:
        print(names, *a.closed_here(), closed)
        closed.chmod(before)
a.told = told
print(a.some_of(0, {{"a": b"own"}}, lambda got: {{"a", "b"}})["b"])
"""
    said, got = as_user(TWO + code, tmp_path).splitlines()
    closed = said.rpartition(" ")[2]
    assert said.startswith(f"('b',) {closed} is ")
    assert "'s, and this user may not read it; ask for the right to." in said
    assert got == "b'frame of b'"


def test_a_frame_that_may_not_be_written_names_the_folder_and_its_owner(tmp_path):
    at = tmp_path / f"egrets-{JOB.hex()[:16]}"
    at.mkdir(0o755)
    give_away(at)  # as an earlier version made it
    code = """
try:
    member("a", sleep=lambda s: None).restore(0, b"frame")
except InputError as error:
    print(error)
"""
    said = as_user(TWO + code, tmp_path)
    assert f"this user may not write to {at}, which is user {OTHER}'s." in said
    assert "join again: the job goes on" in said


def test_a_folder_that_another_member_is_just_making_is_waited_for(tmp_path):
    """Between its making and its opening it has the rights of its maker's umask."""
    code = """
root.chmod(0o555)
member("a", sleep=lambda s: root.chmod(0o755)).restore(0, b"frame")
print(len(list((at / "000000").iterdir())))
"""
    assert as_user(TWO + code, tmp_path) == "1\n"
