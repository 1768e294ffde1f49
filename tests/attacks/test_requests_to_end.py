"""Requests to end, workers whose parent was killed, and readers that have enough."""

import signal
import subprocess

import pytest

from tests.attacks.command import STEPS, alive, begin, clear, end, leftovers, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cleared")]


@pytest.mark.nightly  # two whole runs of a recipe
def test_workers_end_with_their_parent(files):
    """The parent is killed while its workers fit: within seconds none of them runs, and a second run meets nobody."""
    run = STEPS[-1]
    keep = {p.name for p in files.iterdir()}
    process = begin(run.words, files)
    assert wait_until(lambda: any(files.glob("out/*/panel")), 60)
    workers = set(alive(str(files))) - {process.pid}
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    assert wait_until(lambda: not alive(str(files)), 20), alive(str(files))
    process = begin(run.words, files)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert leftovers(files) == []
    clear(files, keep)


NIGHTLY = [pytest.param(how, marks=pytest.mark.nightly) for how in (signal.SIGHUP, signal.SIGINT)]


@pytest.mark.parametrize("how", [signal.SIGTERM, *NIGHTLY])
def test_a_request_to_end_is_an_interrupt(files, how):
    if signal.getsignal(how) == signal.SIG_IGN:
        pytest.skip(
            "this test was started by nohup, which asks programs to go on when the terminal is closed"
        )
    keep = {p.name for p in files.iterdir()}
    process = begin(STEPS[3].words, files)
    assert wait_until(lambda: (files / "out.partial").exists(), 60)
    said = end(process, 0.0, how)
    assert process.returncode == 130, said
    assert "interrupted; no half-written result was left" in said
    assert not (files / "out").exists()
    clear(files, keep)


def test_a_reader_that_has_enough_is_no_error(files):
    done = subprocess.run(
        f"{' '.join(begin_words())} inspect records | head -1", shell=True, cwd=files, capture_output=True, text=True
    )  # fmt: skip
    assert done.stderr == ""


def begin_words() -> list[str]:
    import shlex

    from tests.cli.terminal import entry_point

    return [shlex.quote(word) for word in entry_point()]
