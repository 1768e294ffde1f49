"""When an organisation may leave a relay: never before it has its result."""

from __future__ import annotations

from types import SimpleNamespace

from fedmiss.network import operate
from fedmiss.network.operate import LINGER, ExitPolicy


def test_it_stays_until_it_has_its_result_and_the_relay_is_gone_or_quiet(tmp_path, monkeypatch):
    now, relay = SimpleNamespace(time=1000.0), SimpleNamespace(there=False)
    monkeypatch.setattr(operate.time, "monotonic", lambda: now.time)
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
