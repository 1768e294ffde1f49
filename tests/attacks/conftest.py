"""Good files for attacks, which each test leaves as they were."""

import shutil

import pytest

from tests.attacks.command import clear, good_files


@pytest.fixture(scope="session")
def first_files(tmp_path_factory):
    """Six commands made them, each a process; attacks are upon copies."""
    return good_files(tmp_path_factory.mktemp("attacks") / "first")


@pytest.fixture(scope="module")
def files(first_files, tmp_path_factory):
    return shutil.copytree(first_files, tmp_path_factory.mktemp("attacks") / "files")


@pytest.fixture
def cleared(files):
    """Leave the good files alone behind the test, a failed one too."""
    keep = {p.name for p in files.iterdir()}
    yield
    clear(files, keep)
