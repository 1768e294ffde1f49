"""A request to end is not lost where Python drops the exception: in a callback from compiled code."""

import ctypes
import io
import signal
import subprocess
import time

import pytest

from fedmiss import progress as room
from fedmiss.cli.app import _silent_on_interrupts
from fedmiss.progress import interrupt, progress
from tests.cli.terminal import entry_point


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(room, "_asked_to_end", [])


def dropped():
    """Send a signal while compiled code calls back: ctypes prints the exception and goes on."""
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_next_step_ends_what_a_dropped_signal_did_not(monkeypatch, quiet):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    if quiet:
        monkeypatch.setenv("FEDMISS_QUIET", "1")
    with progress("counting", 3) as show:
        show(1)
    dropped()
    with pytest.raises(KeyboardInterrupt), progress("counting", 3) as show:
        show(2)


def test_a_signal_that_is_heard_is_an_interrupt_at_once():
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_request_that_compiled_code_drops_prints_no_traceback(monkeypatch):
    """Other exceptions that nobody can catch are still shown."""
    shown = []
    monkeypatch.setattr("sys.unraisablehook", _silent_on_interrupts(shown.append))
    dropped()
    assert shown == []
    ctypes.CFUNCTYPE(None)(lambda: 1 / 0)()
    assert [type(s.exc_value) for s in shown] == [ZeroDivisionError]


@pytest.mark.slow
def test_a_request_while_the_command_line_loads_ends_it_without_a_traceback():
    for k in range(20):
        process = subprocess.Popen(
            [*entry_point(), "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        time.sleep(0.04 * k)
        process.send_signal(signal.SIGTERM)
        assert b"Traceback" not in process.communicate()[1], k
