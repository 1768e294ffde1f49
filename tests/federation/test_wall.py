"""The wall: the hub runs where nothing that sees a visit can be imported, and the machine between does not matter."""

import inspect
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.codec import decode, encode
from fedmiss.federation.group.panel import visits_of
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.bootstrap import replicates
from fedmiss.federation.hub.crossval import cross_validate
from fedmiss.federation.hub.members import fit_members
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.settings import CountSettings

from .network import Tapped
from .owners import owned

ROOT = Path(__file__).resolve().parents[2]
NEGBIN = CountSettings(rank=1, dispersion="negbin")


def hub_job(transport):
    """A whole small job as a coordinator would run it: agreement, cross-validation, fit, bootstrap."""
    link = Link(transport, b"test-job", bytes(8))
    panel = agree(link, DataSpec()).panel
    choice = cross_validate(link, panel, default_candidates(NEGBIN, max_rank=1), folds=2)
    best = choice.best
    members = fit_members(link, panel, [best, replace(best, rank=1 - best.rank)])
    totals = replicates(link, panel, members, range(4), seed=0, batch=1)[0]
    return link, choice.table["deviance"].to_numpy(), members[0].state.T, totals


def programs_of(panel):
    held, _ = visits_of(panel)
    return {name: GroupProgram(name, own, secret=name.encode()) for name, own in held.items()}


HUB_ALONE = """
import pickle, sys
from dataclasses import replace

class Wall:
    names = ("fedmiss.federation.group", "fedmiss.federation.local", "fedmiss.etl",
             "fedmiss.tables", "fedmiss.pipeline", "fedmiss.models.lowrank.data", "fedmiss.models.lowrank.paper",
             "fedmiss.models.lowrank.paper_step", "numba", "polars")

    def find_spec(self, name, path=None, target=None):
        if any(name == w or name.startswith(w + ".") for w in self.names):
            raise ImportError(f"{name} lies on the other side of the wall")

sys.meta_path.insert(0, Wall())
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.bootstrap import replicates
from fedmiss.federation.hub.crossval import cross_validate
from fedmiss.federation.hub.members import fit_members
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.settings import CountSettings

NEGBIN = CountSettings(rank=1, dispersion="negbin")

class Replay:
    def __init__(self, names, answers):
        self.names, self.left = names, iter(answers)

    def ask(self, frame):
        return next(self.left)
"""
HUB_JOB = """
results = hub_job(Replay(*pickle.load(sys.stdin.buffer)))[1:]
assert not any(n.startswith("fedmiss.federation.group") for n in sys.modules)
pickle.dump(results, sys.stdout.buffer)
"""


@pytest.mark.slow
def test_the_hub_runs_where_the_groups_side_cannot_be_imported():
    """And its ledger is what the engine carried."""
    panel = owned(3, shared=0.3, size=2.0, n=500)
    transport = Tapped(programs_of(panel))
    link, *expected = hub_job(transport)
    down = sum(len(asked) * len(told) for asked, told in transport.frames)
    up = sum(len(raw) for _, told in transport.frames for raw in told.values())
    for part in ({"all": link.ledger.total}, link.ledger.stages, link.ledger.groups):
        assert sum(x.bytes_up for x in part.values()) == up
        assert sum(x.bytes_down for x in part.values()) == down
    assert link.ledger.total.exchanges == len(transport.frames)
    done = subprocess.run(
        [sys.executable, "-c", HUB_ALONE + inspect.getsource(hub_job) + HUB_JOB],
        input=pickle.dumps((tuple(transport.names), [told for _, told in transport.frames])),
        capture_output=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr.decode()
    for a, b in zip(expected, pickle.loads(done.stdout), strict=True):
        np.testing.assert_array_equal(a, b)


def serve(pipe, panel, name):
    """A group in a process of its own."""
    program = programs_of(panel)[name]
    while (frame := pipe.recv_bytes()) != b"stop":
        pipe.send_bytes(program.answer(frame))


class Pipes:
    """Every group in a process of its own; the last one is asked first."""

    def __init__(self, panel):
        context = multiprocessing.get_context("spawn")
        self.names = tuple(sorted(g.name for g in panel.groups))
        self.ends = {}
        for name in self.names:
            here, there = context.Pipe()
            context.Process(target=serve, args=(there, panel, name), daemon=True).start()
            self.ends[name] = here

    def ask(self, frame):
        for name in reversed(self.names):
            self.ends[name].send_bytes(frame)
        return {name: self.ends[name].recv_bytes() for name in reversed(self.names)}

    def stop(self):
        for end in self.ends.values():
            end.send_bytes(b"stop")


@pytest.mark.slow
def test_the_same_bits_with_every_group_in_a_process_of_its_own():
    panel = owned(3, shared=0.3, size=2.0, n=500)
    pipes = Pipes(panel)
    try:
        link, *apart = hub_job(pipes)
    finally:
        pipes.stop()
    here, *together = hub_job(InProcess(programs_of(panel)))
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_array_equal(a, b)
    assert link.ledger.as_dict() == here.ledger.as_dict()


def test_a_question_asked_twice_gets_the_same_bytes_and_an_old_one_none():
    panel = owned(2, n=300)
    federation = LocalFederation.of_panel(panel)
    program = federation.programs["owner-0"]
    federation.link.transport = tap = Tapped(federation.programs)
    federation.fit(CountSettings(rank=0))
    frames = [asked for asked, _ in tap.frames]
    before = [b.site_mean.copy() for b in program.batches.values()]
    again = program.answer(frames[-1])
    assert again == program.answer(frames[-1])
    for old, b in zip(before, program.batches.values(), strict=True):
        np.testing.assert_array_equal(old, b.site_mean)  # asking again moves nothing
    assert b"came late" in program.answer(frames[2])
    envelope, _ = decode(frames[-1], None, asks=True, who="hub")
    # two questions of one exchange: their difference is nobody's
    assert b"came late" in program.answer(encode([msg.Close(np.array([5]))], envelope))
    assert program.answer(frames[-1]) == again, "a late copy does not lose the cached answer"
    assert program.answer(b"") != b""


@pytest.mark.slow
def test_the_contract_refuses_an_import_across_the_wall(tmp_path):
    shutil.copytree(ROOT / "fedmiss", tmp_path / "fedmiss", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    linter = Path(sys.executable).with_name("lint-imports")

    def lint():
        return subprocess.run(
            [linter, "--no-cache"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(tmp_path)},
        )

    assert lint().returncode == 0
    steps = tmp_path / "fedmiss" / "federation" / "hub" / "steps.py"
    steps.write_text("from fedmiss.federation.group.batch import Batch  # planted\n" + steps.read_text())
    refused = lint()
    assert refused.returncode != 0
    assert "the hub sees answers only" in refused.stdout
