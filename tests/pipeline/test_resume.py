"""A fit that was killed goes on where it stood, and ends with the same bytes as one that was left alone."""

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fedmiss.errors import FedmissError
from fedmiss.federation import algorithm7
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.hub import job
from fedmiss.federation.hub.members import FULL
from fedmiss.federation.messages import Solve
from fedmiss.federation.resume import Resumable
from fedmiss.files import identity, read_manifest
from fedmiss.pipeline import fit_folder, fitting
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.settings import FitSettings
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from fedmiss.tables import read_table
from tests.cli.terminal import entry_point, real

FAST = FitSettings(model="quasi", rank="1", bootstrap=30)
PAPER = FitSettings(method="fedmissem", rank="2", rounds=60, levels=4, participation=0.7, batch=20, gamma=0.1)


@pytest.fixture(scope="module")
def panel(tmp_path_factory) -> Path:
    made = simulate_panel(24, 24, 0.3, rank=1, seed=5, observers=12, groups=3)
    return write_panel(made, tmp_path_factory.mktemp("sim") / "panel", start="2012-01", settings={})


@pytest.fixture(scope="module")
def whole(panel, tmp_path_factory) -> dict[str, Path]:
    """Fits that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: fit_panel(panel, folder / name, s) for name, s in (("fast", FAST), ("paper", PAPER))}


def digests(fit: Path) -> dict[str, str]:
    """Hash every table of a fit; of the trace all but its clock."""
    out = {}
    for path in sorted(fit.glob("*.parquet")):
        content = path.read_bytes()
        if path.name == "trace.parquet":
            content = read_table(path, "trace").drop(["seconds"]).to_pandas().to_csv().encode()
        out[path.name] = hashlib.sha256(content).hexdigest()
    return out


class Killed(BaseException):
    """The process is gone: nothing after it runs except what the system itself would do."""


def kill(*a, **k):
    raise Killed


def cut_off(monkeypatch, owner, name, panel, out, settings, how=kill):
    """Fit until ``owner.name`` is called, which is the end of the process."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, how)
        with pytest.raises(Killed):
            fit_panel(panel, out, settings)


def until(number: int, drawn: list[int] | None = None):
    """Replicates up to a number, at which the process ends."""
    genuine = job.replicates

    def replicates(link, panel, members, numbers, **more):
        if max(numbers) >= number:
            raise Killed
        if drawn is not None:
            drawn.extend(numbers)
        return genuine(link, panel, members, numbers, **more)

    return replicates


def same_fit(a: Path, b: Path) -> None:
    assert digests(a) == digests(b)
    assert identity(a) == identity(b)
    one, other = (read_manifest(fit, verify=True) for fit in (a, b))
    assert one["files"].keys() == other["files"].keys()
    # what a step adds comes from totals of folds
    assert one["results"].get("trials") == other["results"].get("trials")
    assert {p.name for p in a.iterdir()} == {p.name for p in b.iterdir()}
    assert not list(a.parent.glob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_killed_in_the_bootstrap(panel, whole, tmp_path, monkeypatch, chunks):
    drawn: list[int] = []
    monkeypatch.setattr(job, "lockstep_size", lambda *a: 10)
    cut_off(monkeypatch, job, "replicates", panel, tmp_path / "cut", FAST, until(10 * chunks + 5))
    assert not (tmp_path / "cut").exists()
    assert len(list((tmp_path / "cut.partial").glob("draws-*.npz"))) == chunks
    with monkeypatch.context() as patch:
        patch.setattr(job, "replicates", until(10**9, drawn))
        fit_panel(panel, tmp_path / "cut", FAST)
    assert drawn == list(range(10 * chunks, 30)), "finished replicates are not drawn again"
    fit_panel(panel, tmp_path / "whole", FAST)  # in the same parts, so that the ledgers can be compared
    same_fit(tmp_path / "cut", tmp_path / "whole")
    drawn_at_once = digests(whole["fast"])["draws.parquet"]
    assert digests(tmp_path / "cut")["draws.parquet"] == drawn_at_once


@pytest.mark.slow
@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_killed_at_any_file(panel, tmp_path, monkeypatch, after):
    """A kill just before or just after any file of a fit is written: no draw and no line of the ledger is lost."""
    settings = FitSettings(model="quasi", rank="auto", max_rank=0, folds=2, bootstrap=4)
    monkeypatch.setattr(job, "lockstep_size", lambda *a: 2)
    genuine, left = os.replace, 10**9

    def replace(src, dst):
        nonlocal left
        left -= 1
        if left == 0 and not after:
            raise Killed
        genuine(src, dst)
        if left == 0:
            raise Killed

    monkeypatch.setattr(os, "replace", replace)
    fit_panel(panel, tmp_path / "whole", settings)
    written = 10**9 - left
    assert written > 8
    for n in range(1, written):
        left = n
        with pytest.raises(Killed):
            fit_panel(panel, tmp_path / "cut", settings)
        left = 10**9
        fit_panel(panel, tmp_path / "cut", settings)
        same_fit(tmp_path / "cut", tmp_path / "whole")
        shutil.rmtree(tmp_path / "cut")


@pytest.mark.slow
def test_killed_after_cross_validation(panel, tmp_path, monkeypatch):
    """The choice is read back, not made again."""
    settings = FitSettings(model="quasi", rank="auto", max_rank=1, folds=2, bootstrap=10)
    fit_panel(panel, tmp_path / "whole", settings)

    cut_off(monkeypatch, job, "fit_onward", panel, tmp_path / "cut", settings)
    with monkeypatch.context() as patch:
        patch.setattr(job, "choose_model", kill)
        fit_panel(panel, tmp_path / "cut", settings)
    same_fit(tmp_path / "cut", tmp_path / "whole")


STAGES = FitSettings(model="auto", rank="auto", max_rank=1, folds=2, bootstrap=6)


def listen(patch) -> list[object]:
    """Questions that groups answer from now on; work is kept after every third exchange."""
    questions: list[object] = []
    genuine = GroupProgram.reply

    def reply(self, question):
        questions.append(question)
        return genuine(self, question)

    patch.setattr(GroupProgram, "reply", reply)
    patch.setattr(Resumable, "_due", lambda self, seconds: self._count % 3 == 0)
    return questions


@pytest.fixture
def asked(monkeypatch) -> list[object]:
    return listen(monkeypatch)


@pytest.fixture(scope="module")
def all_stages(panel, tmp_path_factory) -> tuple[Path, int]:
    """A fit that nobody interrupted, and how many questions it took."""
    with pytest.MonkeyPatch.context() as patch:
        questions = listen(patch)
        return fit_panel(panel, tmp_path_factory.mktemp("stages") / "whole", STAGES), len(questions)


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [
        pytest.param(0.2, marks=pytest.mark.nightly), 0.5, pytest.param(0.65, marks=pytest.mark.nightly), 0.8,
        pytest.param(0.99, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_rounds_are_kept_in_every_stage(panel, all_stages, tmp_path, monkeypatch, asked, capsys, share):
    """A stop in the middle of folds, of the last fit or of replicates: the rounds before it are not done again."""
    whole, everything = all_stages
    genuine = GroupProgram.reply
    left = int(everything * share)

    def stops(self, question):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return genuine(self, question)

    cut_off(monkeypatch, GroupProgram, "reply", panel, tmp_path / "cut", STAGES, stops)
    asked.clear()
    fit_panel(panel, tmp_path / "cut", STAGES)
    same_fit(tmp_path / "cut", whole)
    # done again: what opens the groups' state (84 at most) and three exchanges of up to a dozen questions to three groups
    assert len(asked) < everything * (1 - share) + 84 + 3 * 36
    if share < 0.9:
        assert "continuing: " in capsys.readouterr().err or share > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True])
def test_rounds_of_the_last_fit_are_used_unless_damaged(
    panel, all_stages, tmp_path, monkeypatch, asked, damaged
):
    cut_off(monkeypatch, fitting.KeptStages, "draws", panel, tmp_path / "cut", STAGES)
    for path in sorted((tmp_path / "cut.partial" / "checkpoint" / "fit").iterdir()):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= damaged
        path.write_bytes(raw)
    asked.clear()
    fit_panel(panel, tmp_path / "cut", STAGES)
    again = [q for q in asked if isinstance(q, Solve) and q.batch == FULL]
    assert bool(again) == damaged
    same_fit(tmp_path / "cut", all_stages[0])


@pytest.mark.parametrize("rounds", [1, 30, 59])
def test_algorithm_7_killed_between_rounds(panel, whole, tmp_path, monkeypatch, rounds):
    genuine = algorithm7.run

    def stopped(*a, stop, **k):
        """A run that is cut off after some rounds, with a checkpoint every 7."""
        genuine(*a, stop=type(stop)(rounds=rounds), checkpoint_every=7, **k)
        raise Killed

    cut_off(monkeypatch, algorithm7, "run", panel, tmp_path / "cut", PAPER, stopped)
    assert (tmp_path / "cut.partial" / "checkpoint").is_dir()
    fit_panel(panel, tmp_path / "cut", PAPER)
    same_fit(tmp_path / "cut", whole["paper"])


@pytest.mark.slow
def test_unfinished_work_of_other_settings_is_not_used(panel, whole, tmp_path, monkeypatch):
    cut_off(monkeypatch, fitting, "write_fit", panel, tmp_path / "fit", FAST)
    other = FitSettings(model="quasi", rank="1", bootstrap=30, seed=9)
    fit_panel(panel, tmp_path / "fit", other)
    fit_panel(panel, tmp_path / "fresh", other)
    same_fit(tmp_path / "fit", tmp_path / "fresh")
    assert digests(whole["fast"])["draws.parquet"] != digests(tmp_path / "fit")["draws.parquet"]


def test_a_folder_of_unfinished_work_is_not_a_fit(panel, tmp_path, monkeypatch):
    cut_off(monkeypatch, fit_folder, "write_manifest", panel, tmp_path / "fit", FAST)
    with pytest.raises(FedmissError, match="has no manifest"):
        read_manifest(tmp_path / "fit.partial", "fit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "ready"),
    [
        (("--model", "quasi", "--rank", 1, "--bootstrap", 300), "draws-00000.npz"),
        pytest.param(
            (
                *("--method", "fedmissem", "--rank", 2, "--rounds", 3000, "--levels", 4),
                *("--participation", 0.7, "--batch", 20, "--gamma", 0.1),
            ),
            "checkpoint/*.npz",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["bootstrap", "algorithm 7"],
)
def test_sigkill_of_the_real_command(panel, tmp_path, settings, ready):
    words = ["fit", str(panel), *map(str, settings), "--out"]
    process = subprocess.Popen(
        [*entry_point(), *words, "fit"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 300
    while not list(tmp_path.glob(f"fit.partial/{ready}")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert process.returncode == -9
    assert not (tmp_path / "fit").exists()
    for name in ("fit", "whole"):
        done = real(*words, name, cwd=tmp_path, timeout=300)
        assert done.code == 0, done.err
    same_fit(tmp_path / "fit", tmp_path / "whole")
