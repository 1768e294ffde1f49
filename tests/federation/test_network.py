"""Between organisations: nothing is lost, nothing is seen but sums, whatever the network and the power supply do."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, EngineError, InputError
from fedmiss.federation import journal as journal_module
from fedmiss.federation.codec import decode
from fedmiss.federation.hub.job import run_job
from fedmiss.federation.journal import Journal
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.site import entries
from fedmiss.models.lowrank.choice import default_candidates

from .network import JOB, NEGBIN, SETTINGS, BadWire, Kill, Wire, order, run, sealed_order, sites_of
from .owners import largest, owned


@pytest.fixture(scope="module")
def panel():
    return owned(3, n=700, J=40, L=24, size=2.0, seed=5)


@pytest.fixture(scope="module")
def here(panel, tmp_path_factory):
    """The job in one process."""
    sites = sites_of(panel, tmp_path_factory.mktemp("here"), masked=False)
    return run_job(Link(InProcess(sites), JOB[:8], SETTINGS), order())


@pytest.fixture(scope="module")
def masked(panel, tmp_path_factory):
    """The job under masks, without interruption."""
    folder = tmp_path_factory.mktemp("masked")
    return run(Wire(sites_of(panel, folder, masked=True)), folder, masked=True)


def same_bits(a, b):
    np.testing.assert_array_equal(a.totals, b.totals)
    np.testing.assert_array_equal(a.draws, b.draws)
    np.testing.assert_array_equal(a.members[0].state.T, b.members[0].state.T)


def test_unmasked_has_the_bits_of_one_process_and_masked_is_equal_to_rounding(panel, here, masked, tmp_path):
    clear = run(Wire(sites_of(panel, tmp_path, masked=False)), tmp_path, masked=False)
    same_bits(here, clear)
    assert largest(masked.totals[0], here.totals[0]) < 1e-8
    assert largest(masked.draws[:, 0], here.draws[:, 0]) < 1e-8
    assert masked.agreement.panel.visits == here.agreement.panel.visits


@pytest.mark.parametrize("seed", range(2))
def test_a_network_that_drops_repeats_delays_reorders_and_damages_changes_no_bit(
    panel, masked, tmp_path, seed
):
    wire = BadWire(sites_of(panel, tmp_path, masked=True), seed)
    same_bits(masked, run(wire, tmp_path, masked=True))
    assert wire.asked > 60


class Killing:
    """Kills the program that writes a journal: before, amid, or after a record; so many times, at random moments."""

    def __init__(self, monkeypatch, seed, kills, rate=0.05):
        self.chance, self.left, self.rate = random.Random(seed), kills, rate
        append = Journal.append

        def dying(journal, *records):
            when = self.chance.random()
            if self.left and when < self.rate:
                self.left -= 1
                how = self.chance.randrange(3)
                if how == 1:  # the disk has a part of it
                    whole = journal._end
                    append(journal, *records)
                    size = journal._end
                    journal_module.os.ftruncate(journal._file, self.chance.randrange(whole, size))
                elif how == 2:
                    append(journal, *records)
                raise Kill(str(journal.path))
            append(journal, *records)

        monkeypatch.setattr(Journal, "append", dying)


class Fragile(Wire):
    """A killed site is away until it is asked again; the hub's own death goes through."""

    def ask(self, frames):
        out = {}
        for name, frame in frames.items():
            try:
                out[name] = self.sites[name].answer(frame)
            except Kill:
                program, self.sites[name].program = self.sites[name].program, None
                if program is not None:
                    program.close()
        return out


def killed_job(panel, folder, monkeypatch, seed, kills):
    killing = Killing(monkeypatch, seed, kills)
    sites = sites_of(panel, folder, masked=True)
    hub_deaths = 0
    while True:
        try:
            got = run(Fragile(sites), folder, masked=True)
        except Kill:
            hub_deaths += 1
            if killing.chance.random() < 0.5:  # both sides at once
                for site in sites.values():
                    site.stop()
        else:
            break
    return got, kills - killing.left, hub_deaths


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 10))])
def test_fifty_kills_with_real_journals(panel, masked, tmp_path, monkeypatch, seed):
    got, kills, _ = killed_job(panel, tmp_path, monkeypatch, seed, 5)
    assert kills == 5
    same_bits(masked, got)


def test_a_damaged_journal_is_refused_and_a_cut_one_goes_on(tmp_path):
    path = tmp_path / "j"
    j = Journal(path)
    j.append((1, b"one"), (2, b"two" * 100))
    j.append((3, b"three"))
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(EngineError, match="in use"):
        Journal(path)
    j.close()
    raw = path.read_bytes()
    for cut in range(len(raw) - 17, len(raw)):  # anywhere in the last record
        path.write_bytes(raw[:cut])
        j = Journal(path)
        assert list(j.records()) == [(1, b"one"), (2, b"two" * 100)]
        j.append((4, b"four"))
        assert [k for k, _ in j.records()] == [1, 2, 4]
        j.close()
        j = Journal.reading(path)
        assert [k for k, _ in j.records()] == [1, 2, 4]
        j.close()
    for lost in range(1, 23):  # its length has reached the disk, its last bytes have not
        path.write_bytes(raw[:-lost] + bytes(lost))
        j = Journal(path)
        assert [k for k, _ in j.records()] == [1, 2]
        j.close()
    # what is left of a long record must not come back behind a short one that is written in its place: here a record
    # stands in the long one's body, just where the short one will end
    other = Journal(tmp_path / "other")
    other.append((9, b"stale"))
    other.close()
    stale = (tmp_path / "other").read_bytes()[8:]
    long = Journal(tmp_path / "long")
    long.append((1, b"one"))
    long.append((2, b"....." + stale + bytes(500)))
    long.close()
    whole = (tmp_path / "long").read_bytes()
    (tmp_path / "long").write_bytes(whole[:-100])
    j = Journal(tmp_path / "long")
    j.append((3, b"three"))
    j.close()
    j = Journal(tmp_path / "long")
    assert list(j.records()) == [(1, b"one"), (3, b"three")]
    j.close()


def test_every_flipped_bit_of_a_journal_is_an_error_and_leaves_no_lock(tmp_path):
    """Also those of the last record and of a length: an exchange that was answered must not look as if it were not."""
    path = tmp_path / "j"
    j = Journal(path)
    j.append((0, b"start"))
    j.append((1, bytes(4)), (2, b""))
    j.append((1, b"question" * 9 + bytes(3)))
    j.close()
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        for opened in (
            Journal,
            Journal.reading,
            Journal,
        ):  # the second one is told the same, not that it is in use
            with pytest.raises(InputError, match=r"damaged at byte|not a journal|older fedmiss"):
                opened(path)
        assert path.read_bytes() == bad
    for cut in range(len(raw)):
        path.write_bytes(raw[:cut])
        j = Journal(path)
        assert [k for k, _ in j.records()] == [0, 1, 2, 1][: len(list(j.records()))]
        j.close()


def test_a_record_that_could_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    """A full disk in the middle of a long record: a shorter one in its place is the last thing in the file."""
    path = tmp_path / "j"
    j = Journal(path)
    j.append((1, b"one"))
    genuine = os.write
    with monkeypatch.context() as patch:

        def full(handle, raw):
            if len(raw) < 400:
                raise OSError(errno.ENOSPC, "no space left")
            return genuine(handle, raw[:100])

        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space"):
            j.append((2, b"long" * 110))
    j.append((3, b"three"))
    j.close()
    j = Journal(path)
    assert list(j.records()) == [(1, b"one"), (3, b"three")]
    j.close()


@pytest.mark.parametrize("content", [b"mine", b"FEDMISSJ" + bytes(20), b"a photo of a bird"])
def test_a_file_that_is_no_journal_stays(tmp_path, content):
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(InputError, match=r"not a journal|older fedmiss"):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == content


def test_a_site_goes_on_only_with_the_data_and_the_job_it_began_with(panel, tmp_path):
    sites = sites_of(panel, tmp_path, masked=False)
    run(Wire(sites), tmp_path, masked=False)
    site = sites["owner-1"]
    site.stop()
    held = site.visits
    site.visits = replace(held, count=held.count + (np.arange(held.count.size) == 3))
    with pytest.raises(ConfigError, match="other data"):
        site.start()
    site.visits, site.job = held, bytes(32)
    with pytest.raises(ConfigError, match="another job"):
        site.start()
    site.job = JOB
    site.start()
    assert site.program.exchange > 20


def test_one_exchange_is_answered_once_and_to_the_approved_job_only(panel, tmp_path):
    sites = sites_of(panel, tmp_path, masked=True)
    wire = Wire(sites)
    run(wire, tmp_path, masked=True)
    name = "owner-0"
    asked = [frames[name] for frames, _ in wire.log]
    answered = [out[name] for _, out in wire.log]
    program = sites[name].program

    def refusal(frame, words):
        said = decode(program.answer(frame), None, asks=False, who="x")[1][0]
        assert "own screen" in said.text  # the reason is not told to the hub
        assert words in str(program.program.refusal)

    assert program.answer(asked[-1]) == answered[-1]
    refusal(asked[5], "each exchange is answered once")
    other = asked[-1][:4] + b"otherjob" + asked[-1][12:]
    refusal(_signed(other), "whose custodian approved")
    refusal(_signed(asked[-1][:12] + b"changed!" + asked[-1][20:]), "approved others")
    refusal(b"x" * ((1 << 28) + 1), "limit 268,435,456")
    refusal(b"FH" + bytes(200), "version 0")
    late = _signed(asked[-1][:20] + (len(asked) + 5).to_bytes(4, "little") + asked[-1][24:])
    refusal(late, "in order")
    before = sum(1 for _ in entries(program.journal))
    assert before == len(asked)  # refusals leave no trace


def _signed(frame):
    import struct
    import zlib

    head, body = frame[:24], frame[28:]
    return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body


def test_who_is_away_is_said_and_nothing_is_lost(panel, masked, tmp_path):
    class Away(Wire):
        gone = True

        def ask(self, frames):
            if len(self.log) == 20 and self.gone:
                frames = {k: v for k, v in frames.items() if k != "owner-2"}
                return {name: self.sites[name].answer(frame) for name, frame in frames.items()}
            return super().ask(frames)

    said = []
    wire = Away(sites_of(panel, tmp_path, masked=True))
    with pytest.raises(EngineError, match="no answer from owner-2"):
        run(wire, tmp_path, masked=True, patience=0.0, told=said.append)
    assert said == [("owner-2",)]
    wire.gone = False
    same_bits(masked, run(wire, tmp_path, masked=True))


def test_a_hub_that_asks_in_other_words_after_a_restart_is_stopped(panel, tmp_path):
    sites = sites_of(panel, tmp_path, masked=True)
    run(Wire(sites), tmp_path, masked=True)
    with pytest.raises(EngineError, match=r"exchange \d+ is asked in other words than before the restart"):
        run(Wire(sites), tmp_path, masked=True, what=order((replace(NEGBIN, rank=0, dispersion="quasi"),)))


@pytest.mark.slow
def test_a_choice_of_models_goes_through_masks(panel, tmp_path):
    what = order(default_candidates(NEGBIN, max_rank=1), bootstrap=0)
    sites = sites_of(panel, tmp_path / "a", masked=False)
    here = run_job(Link(InProcess(sites), JOB[:8], SETTINGS), what)
    got = run(Wire(sites_of(panel, tmp_path / "b", masked=True)), tmp_path / "b", masked=True, what=what)
    assert got.choice.best == here.choice.best
    np.testing.assert_allclose(got.choice.table["deviance"], here.choice.table["deviance"], rtol=1e-8)
    assert largest(got.totals[0], here.totals[0]) < 1e-8


def test_the_hub_passes_the_common_key_on_unread(panel, tmp_path):
    sites = sites_of(panel, tmp_path, masked=True)
    wire = Wire(sites)
    run(wire, tmp_path, masked=True, what=sealed_order())
    (key,) = {site.program.program.key for site in sites.values()}
    assert key != b"k" * 16
    assert all(key not in raw for pair in wire.log for side in pair for raw in side.values())
