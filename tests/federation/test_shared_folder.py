"""A study over a shared folder: what lies there, what is missing there, and what may not lie there."""

import errno
import os
import shutil

import pytest

from fedmiss.errors import EngineError, InputError
from fedmiss.federation.circle import frame_label
from fedmiss.network.folder import check_folder

from .network import JOB, all_have, all_of, clubs_of, one_seat, run, seats_in, with_the_same_keys


def test_a_kit_or_data_in_the_shared_folder_would_be_given_away(tmp_path):
    shared, kit, data = tmp_path / "shared", tmp_path / "kit", tmp_path / "panel"
    for folder in (shared / "kits" / "north", kit, data):
        folder.mkdir(parents=True)
    with pytest.raises(InputError, match=r"lies in the shared folder .* private keys"):
        check_folder(shared, shared / "kits" / "north", data)
    with pytest.raises(InputError, match=r"the data .* lies in the shared folder .* all of it"):
        check_folder(shared, kit, shared / "panel")
    with pytest.raises(
        InputError, match=r"the own report .* lies in the shared folder .* receive your visits"
    ):
        check_folder(shared, kit, data, shared / "new" / "report")
    assert check_folder(shared, kit, data, tmp_path / "report") == shared
    with pytest.raises(InputError, match="there is no folder"):
        check_folder(tmp_path / "none", kit, data)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file, no folder"):
        check_folder(tmp_path / "file", kit, data)
    assert check_folder(shared, kit, data) == shared


@pytest.mark.slow
def test_a_full_disk_and_missing_rights_are_said_and_nothing_is_lost(panel, masked, tmp_path, monkeypatch):
    clubs = with_the_same_keys(panel, masked, tmp_path / "clubs")
    genuine, left = os.fsync, [30]

    def full(handle):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return genuine(handle)

    seats = seats_in(tmp_path / "shared", clubs)
    for seat in seats.values():
        seat.patience = 1.0
    monkeypatch.setattr("fedmiss.network.folder.os.fsync", full)
    got = run(clubs, seats=seats)
    said = [str(e) for e in got.values()]
    assert any("No space left" in s for s in said), said
    got = run(clubs, seats=seats)
    all_have(got, masked[0])


@pytest.mark.parametrize("lost", ["file", "bytes", "folder"])
def test_own_frames_are_shown_again_where_they_are_lost(panel, tmp_path, monkeypatch, lost):
    """A folder that was not mounted for a moment, somebody who tidies up, zeros in a file after a power cut."""
    monkeypatch.setattr("fedmiss.network.folder.QUIET", -1.0)
    (club, seat), shared = one_seat(tmp_path, panel), tmp_path / "shared"
    frames = [club.party.sign(frame_label(JOB, "owner-0", e), b"sums") for e in (0, 1)]
    for exchange, frame in enumerate(frames):
        seat.restore(exchange, frame)
    files = sorted(shared.rglob("*.frame"))
    for path in files:
        path.write_bytes(bytes(len(frames[0]))) if lost == "bytes" else path.unlink()
    if lost == "folder":
        shutil.rmtree(seat.at)
    seat.patience = 0.0
    with pytest.raises(EngineError, match="no frame from owner-1, owner-2"):
        all_of(seat, list(club.roster), "owner-0", 1, frames[1])
    assert [path.read_bytes() for path in files] == frames


def test_a_drive_that_is_away_for_a_while_is_waited_for(panel, tmp_path, monkeypatch):
    """It ended every `join` that wrote its frame just then, at all organisations, with a word about room and rights."""
    monkeypatch.setattr("fedmiss.network.folder.QUIET", -1.0)
    shared, away, told = tmp_path / "shared", tmp_path / "away", []
    club, seat = one_seat(
        tmp_path,
        panel,
        sleep=lambda seconds: away.rename(shared),
        told=lambda names: told.append(seat.closed_here()),
    )
    frame = club.party.sign(frame_label(JOB, "owner-0", 0), b"sums")
    shared.rename(away)
    seat.restore(0, frame)
    assert [path.read_bytes() for path in shared.rglob("*.frame")] == [frame]
    assert told == [
        [f"{shared} is not there now (a drive that is not connected?); it is looked for again and again."]
    ]
    shared.rename(away)
    seat.patience = -1.0
    with pytest.raises(InputError, match="could not be written"):
        seat.restore(1, frame)


@pytest.mark.parametrize("put", ["link to a file", "link to a device", "pipe", "endless file", "folder"])
def test_what_is_no_frame_in_the_shared_folder_is_neither_followed_nor_waited_for(
    panel, tmp_path, monkeypatch, put
):
    """A member, or who can write there, would have files of another overwritten, or let it wait and fill its memory."""
    monkeypatch.setattr("fedmiss.network.folder.MOST_BYTES", 10_000)
    (club, seat), shared, key = one_seat(tmp_path, panel), tmp_path / "shared", tmp_path / "identity.key"
    key.write_bytes(b"my key")
    frame = club.party.sign(frame_label(JOB, "owner-0", 0), b"sums")
    seat.restore(0, frame)
    (own,) = shared.rglob("*.frame")
    at = own.with_name("owner-1-" + "0" * 32 + ".frame")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    if put == "pipe":
        os.mkfifo(at)
    elif put == "folder":
        at.mkdir()
    elif put == "link to a device":
        at.symlink_to("/dev/zero")
    elif put == "endless file":
        with open(at, "wb") as stream:
            stream.truncate(1 << 40)
    else:
        own.unlink()
        own.symlink_to(key)
        with pytest.raises(InputError, match="could not be written"):
            seat.restore(0, frame)
        seat._show_again()
    assert not seat._look(0, {}).keys() - {"owner-0"}
    assert not before or len(os.listdir("/proc/self/fd")) == before, "what was opened is closed"
    assert key.read_bytes() == b"my key"


@pytest.mark.parametrize("twin", ["job", "exchange"])
def test_a_second_folder_that_a_synchronising_program_made_is_read_too(panel, tmp_path, twin):
    """Two members that make one folder at the same time have two, and nobody else ever saw what lies in the second."""
    clubs = clubs_of(panel, tmp_path / "clubs")
    seats = seats_in(tmp_path / "shared [1]", clubs)
    frames = {n: c.party.sign(frame_label(JOB, n, 0), b"sums") for n, c in clubs.items()}
    for name in ("owner-1", "owner-2"):
        seats[name].restore(0, frames[name])
        at = seats[name].at if twin == "job" else seats[name].at / "000000"
        at.rename(at.with_name(f"{at.name} ({name})"))
    seats["owner-0"].patience = 0.0
    assert all_of(seats["owner-0"], list(clubs), "owner-0", 0, frames["owner-0"]) == frames
    assert [seats["owner-0"].latest(n) for n in clubs] == [0, 0, 0]


@pytest.mark.parametrize(
    "said",
    [
        " (conflicted copy 2026-01-02)",
        "_conflict-20260102-030405",
        ".sync-conflict-20260102",
        "-LAPTOP",
        "_1",
    ],
)
def test_a_frame_under_a_name_that_a_synchronising_program_gave_it_is_read(panel, tmp_path, said):
    """With `_` behind the digest it was passed over, and all waited for ever for whom had sent it."""
    clubs = clubs_of(panel, tmp_path / "clubs")
    seats = seats_in(tmp_path / "shared", clubs)
    frames = {n: c.party.sign(frame_label(JOB, n, 0), b"sums") for n, c in clubs.items()}
    for name, frame in frames.items():
        seats[name].restore(0, frame)
    for path in (tmp_path / "shared").rglob("owner-[12]-*.frame"):
        path.rename(path.with_name(f"{path.stem}{said}.frame"))
    assert seats["owner-0"]._look(0, {}) == frames


def test_names_that_no_study_made_are_not_shown(panel, tmp_path):
    _, seat = one_seat(tmp_path, panel)
    for name in ("egrets-" + "0" * 16, "x-\x1b[2J", "egrets-paste your key"):
        (tmp_path / "shared" / name).mkdir()
    assert seat.others_here() == ["egrets-" + "0" * 16]


def test_who_waits_is_told_when_another_job_comes_to_the_folder(panel, tmp_path):
    """Another version of fedmiss at one organisation makes another job: those who had begun to wait never heard of it."""
    _, seat = one_seat(tmp_path, panel)
    said = []
    seat.told = said.append
    seat._tell(("owner-1",), 10.0)
    seat._tell(("owner-1",), 11.0)
    assert said == [("owner-1",)]
    (tmp_path / "shared" / ("egrets-" + "0" * 16)).mkdir()
    seat._tell(("owner-1",), 12.0)
    seat._tell(("owner-1",), 13.0)
    assert said == [("owner-1",)] * 2
    seat._tell((), 14.0)
    assert said[2:] == [()]


@pytest.mark.slow
def test_who_is_missing_is_said_and_the_job_goes_on_later(panel, masked, tmp_path, monkeypatch):
    clubs = with_the_same_keys(panel, masked, tmp_path / "clubs")
    said = []
    seats = seats_in(tmp_path / "shared", clubs)
    seats["owner-0"].told, seats["owner-0"].patience = said.append, 0.5
    seats["owner-1"].patience = 0.5
    with monkeypatch.context() as patch:
        patch.setattr("fedmiss.network.folder.QUIET", 0.1)
        got = run({n: clubs[n] for n in ("owner-0", "owner-1")}, seats=seats)
    assert "exchange 0: no frame from owner-2" in str(got["owner-0"])
    assert said == [("owner-2",)]
    for seat in seats.values():
        seat.patience = 20.0
    all_have(run(clubs, seats=seats), masked[0])
