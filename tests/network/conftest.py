"""A study of three clubs on the embedded data, with kits but without an engine."""

from __future__ import annotations

import pytest

from fedmiss.network.demo import CLUBS, club_panels
from fedmiss.network.kits import approve, collect_roster, enrol, make_study, open_kit
from fedmiss.network.site import program_of
from fedmiss.network.study import Study

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


@pytest.fixture
def folder(tmp_path):
    """A study whose custodians have approved."""
    out = make_study(small_study(), tmp_path / "study", engine_files)
    kits = [open_kit(out / "kits" / club) for club in CLUBS]
    collect_roster(out, [enrol(kit) for kit in kits])
    for kit in kits:
        approve(kit, ask=None, given=kit.job.hex())
    return out


class Direct:
    """Carries frames to the organisations' programs in this process."""

    def __init__(self, folder, panels):
        self.programs = {c: program_of(open_kit(folder / "kits" / c), panels[c]) for c in CLUBS}
        self.names = tuple(sorted(self.programs))

    def ask(self, frames):
        return {name: self.programs[name].answer(frame) for name, frame in frames.items()}

    def close(self):
        for program in self.programs.values():
            program.close()
