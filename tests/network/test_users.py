"""Every organisation's folder is its own user's: nobody else opens it, nor the relay's."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from fedmiss.network.demo import CLUBS, give_away
from fedmiss.network.kits import open_kit

from .conftest import all_take_part

USERS = {club: 61001 + i for i, club in enumerate(CLUBS)}


def opens(user, path):
    """Whether a user can list a folder or read a file."""
    command = ["ls", str(path)] if path.is_dir() else ["cat", str(path)]
    done = subprocess.run(command, user=user, group=user, extra_groups=[], capture_output=True, cwd="/")
    return done.returncode == 0


@pytest.fixture
def given(folder, panels):
    """A study that has begun, every club's folders given to a user of its own."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip(
            "not root: folders cannot be given to other users here, so nothing was tried as another user"
        )
    there = Path(tempfile.mkdtemp())  # pytest closes its own folders to others whenever it starts
    closed = [p for p in there.parents if not os.stat(p).st_mode & 0o001]
    if closed:
        pytest.skip(f"{closed[-1]} is closed to other users, so nothing below it was tried as another user")
    there.chmod(0o711)
    study = Path(shutil.copytree(folder, there / "study"))
    all_take_part(study, panels, preview=True)
    give_away(study, {club: study / "kits" / club / "private" / "data.json" for club in CLUBS}, USERS)
    yield study
    shutil.rmtree(there)


@pytest.mark.slow
def test_no_site_opens_another_ones_folder(given):
    private = {club: given / "kits" / club / "private" for club in CLUBS}
    for club, user in USERS.items():
        kit = open_kit(given / "kits" / club)
        for path in (private[club], kit.key_file, kit.journal, private[club] / "approval.json"):
            assert opens(user, path), path
            for other, stranger in USERS.items():
                assert opens(stranger, path) == (other == club), (other, path)
        assert not opens(user, given / "hub")
