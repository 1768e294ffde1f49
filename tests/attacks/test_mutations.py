"""Every file that fedmiss makes, damaged in every way: a step that reads it names it, and never computes with it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedmiss.errors import FedmissError, InputError
from fedmiss.files import MANIFEST, _check_file, read_manifest
from fedmiss.owner import MARK
from fedmiss.pipeline.fit_folder import saved
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.settings import FitSettings
from tests.attacks.command import STEPS, begin, clear, finished, number

pytestmark = pytest.mark.slow
EACH = number(1000, 25)  # mutations of every file


def mutations(whole: bytes, n: int, rng: np.random.Generator):
    """Bits flipped, bytes written over, stretches cut out, doubled or zeroed, ends cut off or added."""
    for _ in range(n):
        damaged = bytearray(whole)
        at = int(rng.integers(0, max(len(whole), 1)))
        length = int(rng.integers(1, 64))
        how = int(rng.integers(0, 7)) if whole else 6
        if how == 0:
            damaged[at] ^= 1 << int(rng.integers(0, 8))
        elif how == 1:
            damaged[at : at + length] = rng.bytes(len(damaged[at : at + length]))
        elif how == 2:
            del damaged[at : at + length]
        elif how == 3:
            damaged[at:at] = damaged[at : at + length]
        elif how == 4:
            damaged[at : at + length] = bytes(len(damaged[at : at + length]))
        elif how == 5:
            del damaged[at:]
        else:
            damaged += rng.bytes(length)
        if bytes(damaged) != whole:
            yield bytes(damaged)


def same_meaning(whole: bytes, damaged: bytes) -> bool:
    """Whether two manifests say the same (white space differs)."""
    try:
        return bool(json.loads(whole) == json.loads(damaged))
    except (ValueError, UnicodeDecodeError):
        return False


def believe(folder: Path, kind: str, name: str, listed: dict, *, whole: bool) -> None:
    """Read a folder as a step does; or only look at one of its files by the same check, where each would take long."""
    if whole:
        read_manifest(folder, kind, verify=True)
    else:
        _check_file(folder / name, listed[name], "")


@pytest.mark.parametrize("kind", ["records", "panel", "fit", "imputed", "report", "simulation", "cache"])
def test_mutations_of_finished_folders(files, kind, tmp_path):
    if kind == "report":
        process = begin((*STEPS[6].words[:-1], str(tmp_path / "report")), files)
        _, said = process.communicate()
        assert process.returncode == 0, said
    if kind == "cache":
        process = begin((*STEPS[1].words[:-1], str(tmp_path / "r")), files)
        process.communicate()
    folders = {
        "report": [tmp_path / "report"],
        "cache": sorted((tmp_path / ".fedmiss-cache").glob("*")) if kind == "cache" else [],
        "simulation": [files / "sim"],
    }.get(kind, [files / kind])
    seen = 0
    for folder in folders:
        read_manifest(folder, kind, verify=True)
        listed = read_manifest(folder)["files"]
        for i, name in enumerate([MANIFEST, *listed]):
            whole = (folder / name).read_bytes()
            for k, damaged in enumerate(mutations(whole, EACH, np.random.default_rng([7, i]))):
                (folder / name).write_bytes(damaged)
                if name == MANIFEST and same_meaning(whole, damaged):
                    continue
                with pytest.raises(InputError) as caught:
                    believe(folder, kind, name, listed, whole=name == MANIFEST or k % 100 == 0)
                assert str(folder) in str(caught.value)
                seen += 1
            (folder / name).write_bytes(whole)
    assert seen > EACH


SMALL = FitSettings(model="quasi", rank="auto", max_rank=1, folds=2, bootstrap=8)


def unfinished(files: Path, out: Path) -> Path:
    """A fit that was cut off after the bootstrap: everything that a second call would go on from."""
    from fedmiss.pipeline import fitting

    class Killed(BaseException):
        pass

    def kill(*a: object, **k: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "write_fit", kill)
        with pytest.raises(Killed):
            fit_panel(files / "panel", out, SMALL)
    return out.with_name(out.name + ".partial")


def test_mutations_of_unfinished_work_are_noticed(files, tmp_path, capsys):
    work = unfinished(files, tmp_path / "fit")
    names = [p.name for p in work.iterdir() if p.is_file() and p.name not in ("cv.parquet", MARK)]
    assert {"key.json", "ledger.json", "choice.json"} < set(names)
    for i, name in enumerate(names):
        whole = (work / name).read_bytes()
        for damaged in mutations(whole, EACH, np.random.default_rng([8, i])):
            (work / name).write_bytes(damaged)
            assert saved(work / name) is None
        (work / name).write_bytes(whole)
        assert saved(work / name)
    assert "is damaged. What it held is done again." in capsys.readouterr().err


def test_damaged_unfinished_work_is_done_again(files, tmp_path):
    """Whatever file of it is damaged, the fit ends with the same bits."""
    work = unfinished(files, tmp_path / "fit")
    shutil.copytree(work, tmp_path / "kept")
    wanted = None
    for i, name in enumerate(
        [
            "",
            *sorted(
                p.relative_to(work).as_posix() for p in work.rglob("*") if p.is_file() and p.name != MARK
            ),
        ]
    ):
        shutil.rmtree(tmp_path / "fit", ignore_errors=True)
        shutil.copytree(tmp_path / "kept", work, dirs_exist_ok=True)
        if name:
            whole = (work / name).read_bytes()
            (work / name).write_bytes(next(iter(mutations(whole, 5, np.random.default_rng([9, i])))))
        fit_panel(files / "panel", tmp_path / "fit", SMALL)
        step = type(STEPS[0])("fit", (), ("fit",))
        found = finished(step, tmp_path)
        tables = {k: v for k, v in found.items() if k.endswith(".parquet")}
        wanted = wanted or tables
        assert tables == wanted, name


@pytest.mark.nightly
def test_a_damaged_step_of_a_run_is_made_again(files):
    """The folders of a run: a damaged file, key or manifest costs the step, not the result."""
    keep, run = {p.name for p in files.iterdir()}, STEPS[-1]
    process = begin(run.words, files)
    _, said = process.communicate()
    assert process.returncode == 0, said
    wanted = finished(run, files)
    species = files / "out" / "mareca-americana"
    victims = [
        species / "panel/sites.parquet", species / "fit/draws.parquet", species / ".imputed.key",
        species / "report/index.html",
    ]  # fmt: skip
    cache = next(p for p in (files / "out" / ".cache").rglob("*.parquet"))
    for victim in [*victims, files / "out/records/records.parquet", cache]:
        whole = victim.read_bytes()
        victim.write_bytes(whole[: len(whole) // 2] + b"damage" + whole[len(whole) // 2 :])
        process = begin(run.words, files)
        _, said = process.communicate()
        assert process.returncode == 0, said
        assert "Traceback" not in said
        # nobody can tell damage from an edit: it is kept
        if victim.parent.name in ("panel", "fit", "report", "records"):
            (kept,) = (p for p in files.rglob("*.kept-*") if p.is_dir())
            assert b"damage" in (kept / victim.name).read_bytes()
            shutil.rmtree(kept)
        assert finished(run, files) == wanted
    clear(files, keep)


def test_mutations_of_a_recipe(files):
    """A recipe that is read has the settings that stand in it; any other is refused in words."""
    from fedmiss.pipeline.recipe import read_recipe

    path = files / "recipe.toml"
    whole = path.read_bytes()
    refused = 0
    for damaged in mutations(whole, EACH, np.random.default_rng(10)):
        path.write_bytes(damaged)
        try:
            read_recipe(path)
        except FedmissError:
            refused += 1
    path.write_bytes(whole)
    assert refused > EACH // 4
