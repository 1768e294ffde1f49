"""A request to end is not lost where Python drops the exception: in a callback from compiled code."""

from __future__ import annotations

import ctypes
import io
import signal

import pytest

from fedmiss import progress as room
from fedmiss.progress import interrupt, progress


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
