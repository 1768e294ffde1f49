"""Real processes over a shared folder: the answer, no connection at all, kills, a club that is off for a while."""

import time

import numpy as np
import pytest

from tests.network.ends import Ends, Laws, copy_of, prepared_study, result_of, strace, uninterrupted_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepared_study(tmp_path_factory.mktemp("folder"), engine="folder", port=8102)


@pytest.fixture(scope="module")
def uninterrupted(prepared, tmp_path_factory):
    trace = tmp_path_factory.mktemp("trace") / "connect"
    return uninterrupted_run(prepared, trace)


class TestStudy(Laws):
    def test_no_process_connects_to_anything_but_the_roster(self, uninterrupted):
        """To nothing at all."""
        if not strace("x"):
            pytest.fail("strace is not installed, so connections were NOT recorded; install it")
        assert uninterrupted[1].exists()
        assert "AF_INET" not in uninterrupted[1].read_text()


@pytest.mark.nightly
def test_a_club_that_is_off_for_a_third_of_the_time_changes_no_bit(prepared, uninterrupted):
    folder, panels = copy_of(prepared, "absent")
    ends = Ends(folder, panels)
    try:
        for name in ends.names:
            ends.start(name)
        for exchanges in (15, 35, 55):
            ends.until(exchanges)
            ends.kill("south")
            time.sleep(2.0)
            ends.start("south")
        ends.wait()
    finally:
        ends.stop()
    np.testing.assert_array_equal(result_of(folder), result_of(uninterrupted[0]))
