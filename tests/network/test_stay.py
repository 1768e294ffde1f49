"""When an organisation may leave a relay: never before it has its result; and what it says while nothing comes."""

import logging
from types import SimpleNamespace

import pytest

from fedmiss.federation.gather import Gather, RelayGone
from fedmiss.network import join
from fedmiss.network.engine import log_to
from fedmiss.network.join import LINGER, STILL, ExitPolicy, Stillness
from fedmiss.network.kits import open_kit
from fedmiss.network.member import take_part
from fedmiss.network.status import status


def test_it_stays_until_it_has_its_result_and_the_relay_is_gone_or_quiet(tmp_path, monkeypatch):
    now, relay = SimpleNamespace(time=1000.0), SimpleNamespace(there=False)
    monkeypatch.setattr(join.time, "monotonic", lambda: now.time)
    out = tmp_path / "result"
    stay = ExitPolicy(out, lambda: relay.there)
    assert not stay.over()  # the job goes on, the relay is away
    now.time += 10 * LINGER
    assert not stay.over()
    out.mkdir()
    relay.there = True
    assert not stay.over()  # others may lack its last frame
    now.time += 0.9 * LINGER
    assert not stay.over()
    relay.there = False
    assert stay.over()
    relay.there = True
    now.time += 0.2 * LINGER
    assert stay.over()


def test_a_job_that_does_not_go_on_is_said_once_and_so_is_that_it_does(monkeypatch):
    """The way to the relay took all data without a word: `join` said nothing for as long as that lasted."""
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(join.time, "monotonic", lambda: now.time)
    still = Stillness("job")

    def said(exchanges, seconds, waits=False, **more):
        now.time += seconds
        line = still.line({"job": "job", "state": "running", "exchanges": exchanges} | more, waits=waits)
        return line.partition(":")[0]

    away = f"no exchange has ended for {STILL:.0f} s"
    assert still.line({"state": "not begun"}, waits=False) == ""
    assert said(0, 2 * STILL) == ""
    assert said(1, 2 * STILL) == ""  # long, and over
    assert said(1, 0.9 * STILL) == ""
    assert said(1, 0.2 * STILL, state="waiting") == away
    assert said(1, 2 * STILL) == ""
    assert said(0, 1.0) == ""  # gone through again from the journal
    assert said(2, 1.0) == "going on."
    assert said(2, 2 * STILL, waits=True) == ""  # its own message is on hold, and that is said
    assert said(2, 2 * STILL, state="done") == ""
    assert said(9, 1.0, job="another") == ""
    assert said(2, 0.9 * STILL) == ""


def test_a_relay_that_is_away_stops_no_job(folder, panels):
    """`status` said "stopped" while `join` went on waiting for it."""

    class Away(Gather):
        def restore(self, exchange, frame):
            pass

        def some_of(self, exchange, have, enough):
            raise RelayGone(f"exchange {exchange}: the relay has been silent for 40 s.")

    kit = open_kit(folder / "kits" / "north")
    with pytest.raises(RelayGone):
        take_part(kit, panels["north"], Away())
    now = status(kit.private)
    assert (now["state"], now["error"]) == ("waiting", "exchange 0: the relay has been silent for 40 s.")


def test_what_the_engine_warns_of_goes_into_its_log_and_not_on_the_screen(tmp_path, monkeypatch, capfd):
    log = tmp_path / "engine.log"
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to(log)
    logging.getLogger("Cell").warning("unknown request")
    logging.getLogger().handlers.pop().close()
    assert capfd.readouterr() == ("", "")
    assert log.read_text().endswith("Cell unknown request\n")
