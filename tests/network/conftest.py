"""A study of three clubs on the embedded data, with kits but without an engine."""

import pytest

from fedmiss.federation.gather import Board
from fedmiss.network.approval import approve
from fedmiss.network.demo import CLUBS, club_panels
from fedmiss.network.kits import enrol, open_kit
from fedmiss.network.member import take_part
from fedmiss.network.proposer import collect_roster, make_study
from fedmiss.network.study import Study
from tests.federation.network import together

QUICK = {"bootstrap": 4, "rank": "0", "model": "negbin"}


def small_study(**more) -> Study:
    values = {"name": "egrets", "species": "Ardea alba", "organisations": CLUBS, "model": QUICK} | more
    return Study(**values)


def engine_files(study, out):
    for name in study.organisations:
        (out / "kits" / name / "engine").mkdir()


@pytest.fixture(scope="session")
def panels(tmp_path_factory):
    return club_panels(tmp_path_factory.mktemp("clubs"))


def enrolled(study, out, provision=engine_files):
    """Make a study's folder, of which all organisations have given their keys; and their kits, by name."""
    folder = make_study(study, out, provision)
    kits = {name: open_kit(folder / "kits" / name) for name in study.organisations}
    collect_roster(folder, [enrol(kit) for kit in kits.values()])
    return folder, kits


def approved(study, out, provision=engine_files):
    """Make a study's folder, of which all custodians have approved."""
    folder, kits = enrolled(study, out, provision)
    for kit in kits.values():
        approve(kit, ask=None, given=kit.job.hex())
    return folder


@pytest.fixture
def folder(tmp_path):
    """A study whose custodians have approved."""
    return approved(small_study(), tmp_path / "study")


@pytest.fixture
def kit(folder):
    """The kit of one of the custodians."""
    return open_kit(folder / "kits" / "north")


def all_take_part(folder, panels, *, board=None, looks=None, **more):
    """Every club of a study runs its job, as threads: club -> result's folder, or what was raised."""
    kits = {c: open_kit(folder / "kits" / c) for c in sorted(panels)}
    board, looks = board or Board(list(kits), patience=30.0), looks or {}
    return together(
        {
            c: (lambda c=c, kit=kit: take_part(kit, panels[c], board.seat(c), look=looks.get(c), **more))
            for c, kit in kits.items()
        }
    )
