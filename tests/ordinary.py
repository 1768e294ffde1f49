"""Processes with the rights of an ordinary user, also where the tests run as root."""

import ctypes
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

OTHER = 61009  # another user, whose files the process does not own
# Of root, in Linux: to give files away, to read and write all, to look into all, to act as their owner.
_RIGHTS = range(4)
_REMOVE = 24  # PR_CAPBSET_DROP


def ordinary() -> dict[str, Any]:
    """Arguments of ``subprocess.run``: rights of files hold for the process, as for any user but root."""
    if not hasattr(os, "geteuid"):
        pytest.skip("files have no rights here")
    if os.geteuid() != 0:
        return {}
    if sys.platform != "linux":
        pytest.skip("root has all rights here")
    if not _can_drop():
        pytest.skip("this root may not give up its rights")
    return {"preexec_fn": _drop}


def _drop() -> None:
    libc = ctypes.CDLL(None)
    for right in _RIGHTS:
        if libc.prctl(_REMOVE, right, 0, 0, 0):
            os._exit(99)


@cache
def _can_drop() -> bool:
    return subprocess.run(["true"], preexec_fn=_drop, check=False).returncode == 0


def give_away(*paths: object) -> None:
    """Give files to another user; only root can, and a test that needs it is skipped for others."""
    if os.geteuid() != 0:
        pytest.skip("not root: files cannot be given to another user")
    for path in paths:
        os.chown(str(path), OTHER, OTHER)


def as_user(code: str, *words: object, umask: int = 0o022) -> str:
    """What a program of an ordinary user prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, umask=umask, **ordinary()
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
