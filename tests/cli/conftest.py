"""One set of good files for all tests of the command line; commands run in a fresh folder."""

from pathlib import Path

import pytest
from bad_inputs import inside, make_base


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """Files, records, panels, a fit and its imputed counts, all small."""
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def here(tmp_path):
    """An empty working folder."""
    with inside(tmp_path):
        yield tmp_path
