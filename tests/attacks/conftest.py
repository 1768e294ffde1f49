"""Good files for attacks, which each test leaves as they were."""

from __future__ import annotations

import pytest

from tests.attacks.command import clear, good_files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return good_files(tmp_path_factory.mktemp("attacks"))


@pytest.fixture
def cleared(files):
    """Leave the good files alone behind the test, a failed one too."""
    keep = {p.name for p in files.iterdir()}
    yield
    clear(files, keep)
