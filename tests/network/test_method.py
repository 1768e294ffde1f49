"""A study about a method of one's own: the example of the docs, run by three organisations as the commands run it."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmiss.compressors import Identity
from fedmiss.core import FedEM, Roster, Stop, pooled_s_bar, run
from fedmiss.engines import StudyEngine
from fedmiss.errors import ConfigError, DomainError, EngineError, InputError
from fedmiss.federation.gather import Board
from fedmiss.network.approval import page
from fedmiss.network.engine import provision
from fedmiss.network.join import join
from fedmiss.network.kits import open_kit
from fedmiss.network.member import digest_of_path, dry_run
from fedmiss.network.method import check_installed, code_of, function_of
from fedmiss.network.outbox import outbox
from fedmiss.network.study import read_study_toml
from tests.cli.terminal import fedmiss
from tests.core.toys import Linear
from tests.network.conftest import all_take_part, approved

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CLUBS = ("central", "north", "south")
TOML = """
name = "flocks"
organisations = ["north", "central", "south"]
[method]
run = "three_organisations:job"
components = 2
"""


IMPORTS = (
    "import a_model",
    "from a_model import a_part",
    "import numpy, a_part.power as p",
    "from a_part.power import power",
    "__import__('a_model')",
    "importlib.import_module('a_model')",
)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("three_organisations", "poisson_mixture"):
        sys.modules.pop(name, None)


def prepared(tmp_path, toml=TOML, clubs=CLUBS):
    (tmp_path / "study.toml").write_text(toml)
    folder = approved(read_study_toml(tmp_path / "study.toml"), tmp_path / "study", provision)
    rng = np.random.default_rng(4)
    data = {}
    for c, (share, m) in zip(clubs, ((0.2, 80), (0.5, 120), (0.8, 200)) * (len(clubs) // 3), strict=True):
        rows = rng.poisson(np.where(rng.random(m) < share, 2.0, 9.0))
        data[c] = tmp_path / f"{c}.txt"
        np.savetxt(data[c], rows)
    return folder, data


def taken_part(tmp_path, monkeypatch, job, toml=TOML, **more):
    """What all organisations end with whose function is ``job``."""
    import three_organisations

    folder, data = prepared(tmp_path, toml)
    monkeypatch.setattr(three_organisations, "job", job)
    return all_take_part(folder, data, **more)


def test_the_example_of_the_docs_reaches_em_on_all_counts_together(tmp_path):
    from poisson_mixture import PoissonMixture

    folder, data = prepared(tmp_path)
    results = all_take_part(folder, data)
    rows = {c: np.loadtxt(path) for c, path in data.items()}
    roster = Roster.of({c: r.size for c, r in rows.items()}, "pooled")
    model, y = PoissonMixture(2), [rows[c] for c in roster.ids]
    theta = np.array([0.5, 0.5]), np.concatenate(y).mean() * np.array([0.5, 1.5])
    for _ in range(500):
        theta = model.T(pooled_s_bar(model, theta, y, roster))
    for club, result in results.items():
        found = np.load(result / "arrays.npz")
        np.testing.assert_allclose(found["share"], theta[0], atol=1e-6)
        np.testing.assert_allclose(found["rates"], theta[1], atol=1e-6)
        assert json.loads((result / "result.json").read_text())["counts"] == 400
        assert result == open_kit(folder / "kits" / club).result


def test_a_full_disk_of_a_kit_leaves_the_journal_to_who_joins_again(tmp_path, monkeypatch):
    """The journal stayed locked: the engine's process, which tries again, was told that another one runs this job."""
    folder, data = prepared(tmp_path)
    left = [30]  # of all three: the job has begun

    def full(usage):
        left[0] -= 1
        if left[0] < 0:
            raise InputError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("fedmiss.network.member.Usage.write", full)
        got = all_take_part(folder, data, board=Board(CLUBS, patience=1.0))
        assert all("disk is full" in str(e) for e in got.values())
    assert all(r.is_dir() for r in all_take_part(folder, data).values())


def test_a_custodian_reads_that_a_function_sees_the_data(tmp_path):
    folder, _ = prepared(tmp_path)
    text = page(open_kit(folder / "kits" / "north"))
    assert "three_organisations:job, a function installed on your computer; it sees your data" in text
    assert "bootstrap" not in text
    assert "its settings components = 2" in text
    assert "fedmiss checks no least number" in text
    assert "Sums of many rounds can tell each value" in text  # tests/attacks/test_mixtures.py
    assert "What the function adds up is masked" in text
    for promise in ("are left out", "Sums over your sites", "--own-sites", "share of the visits", "period"):
        assert promise not in text, "of a function that fedmiss does not know it cannot be said"
    (tmp_path / "bare").mkdir()
    folder, _ = prepared(tmp_path / "bare", TOML.replace("[method]", "masks = false\n[method]"))
    assert "NOT masked: they see yours" in page(open_kit(folder / "kits" / "north"))


def test_a_function_that_is_not_there_is_named(tmp_path, monkeypatch):
    (tmp_path / "breaks.py").write_text("raise RuntimeError('no such device')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for named, words in (
        ("no_such_package:job", "no_such_package cannot be imported here"),
        ("poisson_mixture:job", "poisson_mixture has no function 'job'"),
        ("three_organisations:np", "three_organisations has no function 'np'"),
        ("breaks:job", "breaks cannot be imported here: no such device"),
    ):
        with pytest.raises(ConfigError, match=words):
            function_of(named)
    for named in ("os.system", "", "a:b:c", "../x:y"):
        (tmp_path / "study.toml").write_text(TOML.replace("three_organisations:job", named))
        with pytest.raises((ConfigError, InputError), match="name a function that all organisations have"):
            read_study_toml(tmp_path / "study.toml")


@pytest.mark.parametrize("value", ["nan", "inf", "[1.0, -inf]", "{b = nan}"])
def test_settings_that_the_study_would_not_hold_are_refused(value, tmp_path):
    """They became null, which is None for the function: another setting than was written."""
    (tmp_path / "study.toml").write_text(TOML + f"bound = {value}\n")
    with pytest.raises(ConfigError, match=r"\[method\] has bound = .*, which study.json cannot hold"):
        read_study_toml(tmp_path / "study.toml")


@pytest.mark.parametrize("table", ["method", "community"])
def test_an_empty_table_is_named(table, tmp_path):
    """It was said that the species is blank."""
    (tmp_path / "study.toml").write_text(TOML[: TOML.index("[method]")] + f"[{table}]\n")
    with pytest.raises(ConfigError, match=rf"\[{table}\] is empty"):
        read_study_toml(tmp_path / "study.toml")


@pytest.mark.parametrize(
    "bad", [{"a": object()}, {"a": [object()]}, {"a": [[1], [2, 3]]}, {"file": [1]}, {3: [1]}, None]
)
def test_a_result_that_no_file_holds_is_said(bad, tmp_path, monkeypatch):
    for error in taken_part(tmp_path, monkeypatch, lambda circle, data, components: bad).values():
        assert isinstance(error, ConfigError)
        assert "returned what no file can hold" in str(error)


def test_a_result_of_one_that_no_file_holds_takes_nothing_from_the_others(tmp_path, monkeypatch):
    def job(circle, data, components):
        return {"n": object() if circle.name == "north" else 1}

    got = taken_part(tmp_path, monkeypatch, job)
    assert "The others have their results" in str(got.pop("north"))
    assert all((result / "result.json").exists() for result in got.values())


def ends_with(word):
    def job(circle, data, components):
        sys.exit(word)

    return job


def divides(circle, data, components):
    return {"n": 1 // (components - components)}


def calls_wrongly(circle, data, components):
    return StudyEngine.roster(circle, 0.5)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (divides, "ZeroDivisionError: integer"), (calls_wrongly, "TypeError: 'float'"),
        (ends_with(None), "SystemExit: "), (ends_with(0), "SystemExit: 0"),
        (ends_with("north has no data"), "SystemExit: north has no data"),
    ],
)  # fmt: skip
def test_a_fault_inside_the_function_is_one_sentence_with_its_line(job, said, tmp_path, monkeypatch):
    """``sys.exit()`` ended ``join`` with code 0 and no result, as if the job were done."""
    for error in taken_part(tmp_path, monkeypatch, job).values():
        assert isinstance(error, ConfigError)
        assert f"test_method.py, line {job.__code__.co_firstlineno + 1}: {said}" in str(error)
        assert "ask the proposer for a revision" in str(error)  # the first frame has gone
        assert "others are a new one" in str(error)


def test_a_package_that_is_lacking_is_said_before_the_approval_and_before_anybody_waits(
    tmp_path, monkeypatch
):
    """It was said when all had joined."""
    folder, data = prepared(tmp_path)
    kit = open_kit(folder / "kits" / "north")
    monkeypatch.setattr("fedmiss.network.join._join_folder", lambda *given, **more: pytest.fail("it waits"))
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(EXAMPLES)])
    with pytest.raises(ConfigError, match="three_organisations cannot be imported here"):
        join(kit, data["north"])
    (kit.private / "approval.json").unlink()
    done = fedmiss(
        "federation", "join", kit.folder, data["north"], "--approve", kit.job.hex(), "--folder", tmp_path
    )
    assert "three_organisations:job, which is not installed here. Install the package" in done.err
    assert kit.approval() is None


def test_a_function_of_the_running_script_is_not_installed(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(ConfigError, match="runs __main__:job, which is not installed here"):
        check_installed("__main__:job")


def test_settings_that_no_run_takes_are_said_to_need_a_new_study(tmp_path, monkeypatch):
    """A custodian was told to try another gamma, or to ask for a revision, which keeps all settings."""

    def job(circle, data, components):
        FedEM(Linear(1), Identity(), StudyEngine.roster(circle, 5), gamma=0.0)

    for error in taken_part(tmp_path, monkeypatch, job).values():
        assert isinstance(error, ConfigError)
        assert "gamma=0.0 is not in (0, 1]" in str(error)
        assert "it keeps all settings of the study, so that others are a new one" in str(error)


def test_sums_that_run_away_advise_what_a_method_can_do(tmp_path, monkeypatch):
    """The engine keeps 40 digits whatever is asked: only ``add_up`` has ``bits``."""
    got = taken_part(tmp_path, monkeypatch, lambda circle, *given, **more: circle.add_up([], 1e10, 40))
    for error in got.values():
        assert "may lower gamma, count in a larger unit, or give add_up fewer digits (bits=)" in str(error)


def test_another_code_of_the_same_name_is_found_before_anything_is_added_up(tmp_path, monkeypatch):
    """An older copy at one organisation put other numbers into the sums, without a word."""
    folder, data = prepared(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = {"one_x": "a = 1\nb = 2\n", "two_x": "a = 1\r\nb = 2\r\n", "three_x": "a = 1\nb = 3\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_bytes(text.encode())
        importlib.import_module(name)
    assert code_of("one_x:a") == code_of("two_x:a") != code_of("three_x:a")  # a copy from Windows is the same
    assert code_of("math:sqrt") == "", "compiled"
    # of a package also what the function's module calls, however deep
    for name, power in (("four_x", 1), ("five_x", 1), ("six_x", 2)):
        inner = tmp_path / name / "inner"
        inner.mkdir(parents=True)
        for file in (tmp_path / name / "__init__.py", inner / "__init__.py"):
            file.write_text("")
        (inner / "job.py").write_text("from ..power import power\n")
        (tmp_path / name / "power.py").write_text(f"power = {power}\n")
        importlib.import_module(f"{name}.inner.job")
    (tmp_path / "five_x" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "five_x" / ".ipynb_checkpoints" / "power.py").write_text("what a notebook keeps is no code")
    (tmp_path / "five_x" / "folder.py").mkdir()
    digests = [code_of(f"{name}.inner.job:power") for name in ("four_x", "five_x", "six_x")]
    assert digests[0] == digests[1] != digests[2]
    # of a file alone also the model beside it
    for at, power in enumerate((1, 1, 2)):
        beside = tmp_path / str(at)
        beside.mkdir()
        (beside / "a_model.py").write_text(f"class Model:\n    power = {power}\n")
        (beside / "a_job.py").write_text("from a_model import Model\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(beside))
            for name in ("a_job", "a_model"):
                sys.modules.pop(name, None)
            importlib.import_module("a_job")
            digests.append(code_of("a_job:Model"))
    assert digests[3] == digests[4] != digests[5]
    # however, and wherever in the file, it is imported
    for at, line in enumerate(IMPORTS):
        seen = set()
        for power in (1, 2):
            beside = tmp_path / f"{at}-{power}"
            (beside / "a_part").mkdir(parents=True)
            (beside / "a_part" / "__init__.py").write_text("from . import power\n")
            (beside / "a_part" / "power.py").write_text(f"power = {power}\n")
            (beside / "a_model.py").write_text("import a_part, a_job\n")
            (beside / f"late_{at}.py").write_text(f"def job():\n    {line}\n")
            with monkeypatch.context() as patch:
                patch.syspath_prepend(str(beside))
                sys.modules.pop(f"late_{at}", None)
                importlib.import_module(f"late_{at}")
                seen.add(code_of(f"late_{at}:job"))
        assert len(seen) == 2, line
    files = iter(["new", "old", "new"])
    monkeypatch.setattr("fedmiss.network.method.code_of", lambda run: next(files))
    for error in all_take_part(folder, data).values():
        assert isinstance(error, EngineError)
        assert re.search("exchange 1: the copy of .*:job of the code (old|new) instead of", str(error))


def test_a_function_that_ends_before_the_others_is_named_and_no_one_waits_for_ever(tmp_path, monkeypatch):
    """Its process was over with a result, and the others waited for its part of their next sum."""

    def job(circle, data, components):
        for _ in range(1 if circle.name == "north" else 2):
            circle.add_up([], np.ones(2))
        return {"n": 1}

    for error in taken_part(tmp_path, monkeypatch, job).values():
        assert isinstance(error, EngineError)
        assert "the copy of north of the job asks something else" in str(error)
        assert "the end of three_organisations:job" in str(error)


def test_what_a_file_manager_leaves_beside_the_data_is_no_other_data(tmp_path):
    """A look into the folder of the data, on a Mac or Windows, made the job stop for good."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    before = digest_of_path(tmp_path / "data")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (tmp_path / "data" / name).write_text("x")
    assert digest_of_path(tmp_path / "data") == before
    (tmp_path / "data" / "b.csv").write_text("1")
    assert digest_of_path(tmp_path / "data") != before
    for name, text in (("here.csv", "1"), ("there.csv", "1"), ("other.csv", "2")):
        (tmp_path / name).write_text(text)
    here, there, other = (digest_of_path(tmp_path / f"{name}.csv") for name in ("here", "there", "other"))
    assert here == there != other, "the same bytes under another name are the same data"


def test_an_organisation_whose_numbers_are_not_finite_is_named_in_the_result(tmp_path, monkeypatch, capsys):
    """Without masks rounds went on without it, and neither the screen nor the result said so."""
    import three_organisations

    def job(circle, data, components):
        rows = np.loadtxt(data)[:, None]
        algo = FedEM(Linear(1), Identity(), StudyEngine.roster(circle, len(rows)), gamma=0.2)
        run(algo, StudyEngine(circle, rows), np.zeros(1), stop=7, init="zero")
        return {}

    folder, data = prepared(tmp_path, TOML.replace("[method]", "masks = false\n[method]"))
    data["north"].write_text("1\nnan\n")
    monkeypatch.setattr(three_organisations, "job", job)
    for result in all_take_part(folder, data).values():
        assert json.loads((result / "manifest.json").read_text())["results"]["rounds_without"] == {"north": 7}
    assert (
        "rounds went on without somebody (away, or numbers that are not finite): north in 7."
        in capsys.readouterr().err
    )


def test_inspect_says_what_the_result_holds_and_no_rule_that_does_nothing(tmp_path, monkeypatch):
    """It named least numbers, which hold for no method, and a relay's port, and nothing of what was returned."""
    found = {"rates": np.ones((2, 3)), "n": 3}
    for result in taken_part(tmp_path, monkeypatch, lambda circle, data, components: found).values():
        said = fedmiss("inspect", result).out
        assert "arrays.npz holds rates (2 x 3), result.json what else it returned" in said
        assert not any(f"{name}=" in said for name in ("minimum", "share", "sites", "port"))
    said = fedmiss("inspect", tmp_path / "study").out
    assert "masks=True" in said
    assert "minimum=" not in said
    assert "Name the folder that it lies in" in fedmiss("inspect", result / "arrays.npz").err


def test_numbers_of_numpy_are_numbers(tmp_path, monkeypatch):
    found = {"n": np.int64(3), "x": np.float32(0.5), "yes": np.bool_(True)}
    for result in taken_part(tmp_path, monkeypatch, lambda circle, data, components: found).values():
        assert json.loads((result / "result.json").read_text()) == {"n": 3, "x": 0.5, "yes": True}


def test_a_number_that_is_not_finite_is_null_in_the_result_and_said(tmp_path, monkeypatch, capsys):
    found = {"n": np.float64("nan"), "all": {"x": [1.5, -np.inf]}, "y": 0.1, "cells": np.array([np.nan])}
    for result in taken_part(tmp_path, monkeypatch, lambda circle, data, components: found).values():
        told = json.loads((result / "result.json").read_text(), parse_constant=pytest.fail)
        assert told == {"n": None, "all": {"x": [1.5, None]}, "y": 0.1}
        assert np.isnan(np.load(result / "arrays.npz")["cells"]).all()
    said = "result.json has null for what is no finite number: n (NaN), all (-Infinity)."
    assert capsys.readouterr().err.count(said) == 3


def test_settings_that_the_function_does_not_take_are_named(tmp_path):
    folder, data = prepared(tmp_path, TOML + "componnets = 3\n")
    for error in all_take_part(folder, data).values():
        assert isinstance(error, ConfigError)
        assert "does not take what [method] of the study says: got an unexpected keyword" in str(error)
        assert "ask the proposer for a new study, since a revision keeps it" in str(error)


@pytest.mark.slow
def test_a_number_that_is_missing_is_not_sent_and_its_owner_named(tmp_path, monkeypatch):
    def job(circle, data, components):
        return {"sum": circle.add_up([], np.array([1.0, np.nan if circle.name == "north" else 2.0]))}

    got = taken_part(tmp_path, monkeypatch, job, board=Board(CLUBS, patience=1.0))
    assert isinstance(got["north"], DomainError)
    assert "what 'north' adds up holds a number that is missing" in str(got["north"])
    assert "no frame from north" in str(got["south"])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_statistic_that_left_its_domain_at_all_is_said_to_be_no_fault_of_the_data(tmp_path, monkeypatch):
    outside = np.r_[-0.5, 1.5, 1.0, 4.0]  # a share below 0

    def job(circle, data, components):
        from poisson_mixture import PoissonMixture

        rows = np.loadtxt(data)
        algo = FedEM(PoissonMixture(components), Identity(), StudyEngine.roster(circle, rows.size), gamma=1.0)
        engine = StudyEngine(circle, rows, masked=True)
        return {"S": run(algo, engine, outside, stop=Stop(rounds=9), init="zero").S_hat}

    for club, error in taken_part(tmp_path, monkeypatch, job).items():
        assert f"worker {club!r} has nothing to send" in str(error)
        assert "S has left the domain of T, and no data are to blame: lower gamma" in str(error)


def test_a_dry_run_looks_for_the_package_and_runs_nothing_of_it(tmp_path):
    folder, data = prepared(tmp_path)
    kit = open_kit(folder / "kits" / "north")
    assert dry_run(kit, data["north"])[0].endswith("three_organisations:job, installed on this computer")
    assert "three_organisations" not in sys.modules
    kit.study.method["run"] = "no_such_package.part:job"
    said = dry_run(kit, data["north"])[0]
    assert said.endswith("which is NOT installed on this computer (a file alone: its folder in PYTHONPATH)")


@pytest.mark.slow
def test_data_that_changed_and_data_that_are_not_there(tmp_path):
    folder, data = prepared(tmp_path)
    assert all(r.is_dir() for r in all_take_part(folder, data).values())
    np.savetxt(data["north"], [1.0, 2.0])
    got = all_take_part(folder, data)
    assert "other data of 'north'" in str(got["north"])
    done = fedmiss("federation", "join", folder / "kits" / "south", tmp_path / "nothing.csv", "--dry-run")
    assert done.code == 1
    assert "there is no file or folder" in done.err


def test_the_outbox_of_a_method_says_who_knows(tmp_path):
    folder, data = prepared(tmp_path)
    kit = open_kit(folder / "kits" / "north")
    with pytest.raises(ConfigError, match="only that function knows what its frames say"):
        outbox(kit, data["north"])


@pytest.mark.slow
def test_an_option_that_does_nothing_for_a_method_is_refused(tmp_path):
    folder, data = prepared(tmp_path)
    for option in ("--look", "--preview", "--own-sites=5", "--report=r", "--joint=j", "--date=2026-01-31"):
        done = fedmiss("federation", "join", folder / "kits" / "north", data["north"], option)
        assert done.code == 2
        assert f"{option.split('=')[0]} does nothing here: the study runs three_organisations:job" in done.err
