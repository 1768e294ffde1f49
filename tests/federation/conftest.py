"""A job of three organisations, with and without masks, once for all tests of a study."""

import pytest

from .network import clubs_of, in_one_process, run
from .owners import owned


@pytest.fixture(scope="session")
def panel():
    return owned(3, n=1200, J=60, L=24, size=2.0, seed=5)


@pytest.fixture(scope="session")
def here(panel, tmp_path_factory):
    """The job in one process."""
    return in_one_process(clubs_of(panel, tmp_path_factory.mktemp("here")))


@pytest.fixture(scope="session")
def masked(panel, tmp_path_factory):
    """The job under masks, without interruption, and its folder."""
    folder = tmp_path_factory.mktemp("masked")
    return run(clubs_of(panel, folder))["owner-0"], folder
