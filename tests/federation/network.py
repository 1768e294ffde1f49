"""A study of several organisations as threads: real programs, keys, masks and journals; the network is the test's."""

import hashlib
import shutil
import threading
import time

import numpy as np

from fedmiss.federation.circle import Circle, frame_label
from fedmiss.federation.codec import decode
from fedmiss.federation.gather import Board
from fedmiss.federation.group.panel import visits_of
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import digest_of
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.masks import Masks, Party, identity, public_key
from fedmiss.federation.member import Member
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.network.folder import Folder

NEGBIN = CountSettings(rank=1, dispersion="negbin")
JOB = hashlib.sha256(b"a study").digest()
SETTINGS = b"settings"
PLAN = DataSpec(jointly=True, minimum=3, share=0.9)


def order(candidates=(NEGBIN,), bootstrap=3, plan=PLAN, **more) -> JobSpec:
    return JobSpec(plan, list(candidates), folds=2, by="cell", bootstrap=bootstrap, **more)


class Kill(BaseException):
    """Stands for kill -9: nothing may catch it."""


class Club:
    """One organisation: its data, its keys, its journal."""

    def __init__(self, name, visits, folder, private=None, roster=None, masked=True, job=JOB):
        self.name, self.visits, self.job = name, visits, job
        self.private, self.roster, self.masked = private, roster, masked
        self.journal = folder / f"{name}.journal"

    def program(self):
        return GroupProgram(
            self.name, self.visits, secret=self.name.encode(), settings=SETTINGS, jointly=True, minimum=2
        )  # fmt: skip

    @property
    def party(self):
        return (Masks if self.masked else Party)(self.name, self.private, self.roster, self.job)

    def circle(self, gather, journal=None, **more):
        return Circle(self.party, journal or self.journal, gather, digest_of(self.visits), **more)

    def run(self, gather, what=None, *, compress=False, **more):
        """Run the job to its end, or go on with it."""
        circle = self.circle(gather, **more)
        try:
            return run_job(
                Link(
                    Member(self.program(), circle, compress=compress),
                    self.job[:8],
                    SETTINGS,
                    masked=self.masked,
                ),
                what or order(),
            )
        finally:
            circle.close()


class Tapped(InProcess):
    """Keeps all that crosses: frames, questions, and all groups' answers to each in the order of their names."""

    def __init__(self, programs):
        super().__init__(programs)
        self.frames, self.asked, self.told = [], [], []

    def ask(self, frame):
        out = super().ask(frame)
        self.frames.append((frame, out))
        replies = [decode(raw, None, asks=False, who="group")[1] for raw in out.values()]
        self.asked += decode(frame, None, asks=True, who="hub")[1]
        self.told += list(zip(*replies, strict=True))
        return out

    def of(self, kind):
        """Questions of a kind, each with all groups' answers."""
        return [(q, told) for q, told in zip(self.asked, self.told, strict=True) if isinstance(q, kind)]


class Places:
    """Keys and journals of some organisations, and the frames between them: for jobs that are no count model."""

    def __init__(self, names, folder, masked=False, *, patience=20.0):
        folder.mkdir(parents=True, exist_ok=True)
        keys, roster = keys_of(names, folder)
        self.names, self.folder, self.masked = tuple(names), folder, masked
        self.board = Board(list(names), patience=patience)
        self.parties = {n: (Masks if masked else Party)(n, keys[n], roster, JOB) for n in names}

    def seat(self, name):
        return self.board.seat(name)

    def circle(self, name, **more):
        return Circle(self.parties[name], self.folder / f"{name}.journal", self.seat(name), **more)

    def until_done(self, name, job):
        """Run ``job(circle)``, again after every kill."""
        while True:
            circle = self.circle(name)
            try:
                return job(circle)
            except Kill:
                continue
            finally:
                circle.close()


def keys_of(names, folder):
    """Private keys by name, and the roster of the public ones."""
    keys = {name: identity(folder / name / "identity.key") for name in names}
    return keys, {name: public_key(k) for name, k in keys.items()}


def clubs_of(panel, folder, *, masked=True, job=JOB):
    folder.mkdir(parents=True, exist_ok=True)
    held, _ = visits_of(panel)
    keys, roster = keys_of(list(held), folder)
    return {name: Club(name, own, folder, keys[name], roster, masked, job) for name, own in held.items()}


def in_one_process(clubs, what=None):
    programs = {name: club.program() for name, club in clubs.items()}
    return run_job(Link(InProcess(programs), JOB[:8], SETTINGS), what or order())


def tapped(
    held, folder, models, plan=DataSpec(jointly=True, minimum=5), *, least=2, bootstrap=0, job=JOB, **more
):
    """A job about a panel, or of clubs, in one process: what crossed, the programs, and the result."""
    clubs = held if isinstance(held, dict) else clubs_of(held, folder)
    programs = {name: club.program() for name, club in clubs.items()}
    for program in programs.values():
        program.minimum = least
    tap = Tapped(programs)
    what = JobSpec(plan, list(models), bootstrap=bootstrap, **more)
    return tap, programs, run_job(Link(tap, job[:8], SETTINGS), what)


def together(jobs):
    """Run one function for each name at once: name -> result, or what it raised."""
    out = {}

    def one(name, job):
        try:
            out[name] = job()
        except BaseException as error:
            out[name] = error

    threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in jobs.items()]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    return out


def run(clubs, what=None, *, seats=None, whats=None, board=None, **more):
    """The job at all clubs: name -> result, or what it raised; ``whats`` are jobs of their own."""
    board = board or Board(list(clubs), patience=20.0)
    seats = seats or {name: board.seat(name) for name in clubs}
    whats = whats or {}
    return together(
        {
            name: (lambda club=club, name=name: club.run(seats[name], whats.get(name, what), **more))
            for name, club in clubs.items()
        }
    )


def all_of(seat, names, name, exchange, frame):
    """Show a frame at one's seat, and take those of all."""
    seat.restore(exchange, frame)
    return seat.some_of(exchange, {name: frame}, lambda got: frozenset(names))


def same_bits(a, b):
    np.testing.assert_array_equal(a.totals, b.totals)
    np.testing.assert_array_equal(a.draws, b.draws)
    np.testing.assert_array_equal(a.members[0].state.T, b.members[0].state.T)


def all_have(results, joint):
    """Every organisation ended with this joint result, to the bit."""
    for own in results.values():
        same_bits(joint, own)


def with_the_same_keys(panel, masked, folder):
    """Clubs with the keys of the uninterrupted job."""
    for path in masked[1].glob("*/identity.key"):
        shutil.copytree(path.parent, folder / path.parent.name)
    return clubs_of(panel, folder)


def quick(seconds):
    """Sleep of who looks into a shared folder."""
    time.sleep(0.002)


def shared_folder(root, club, **more):
    root.mkdir(exist_ok=True)
    party = club.party
    return Folder(
        root, club.name, party.roster, "egrets", club.job,
        genuine=lambda name, exchange, raw: party.verified(name, frame_label(club.job, name, exchange), raw),
        **({"patience": 20.0} | more),
    )  # fmt: skip


def seats_in(root, clubs):
    """Seats of all clubs in one shared folder."""
    return {name: shared_folder(root, club, sleep=quick) for name, club in clubs.items()}


def one_seat(root, panel, **more):
    """One of three clubs, and its seat in the shared folder ``root / "shared"``."""
    club = clubs_of(panel, root / "clubs")["owner-0"]
    return club, shared_folder(root / "shared", club, **({"sleep": lambda seconds: None} | more))
