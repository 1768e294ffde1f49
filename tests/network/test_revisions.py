"""Revisions of a study: another roster, another version, and jobs that go on from the one before."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from fedmiss import atomic
from fedmiss.atomic import read_json, write_json
from fedmiss.errors import ConfigError, EngineError, InputError
from fedmiss.federation.gather import Board
from fedmiss.federation.hub.onward import Before, written
from fedmiss.federation.journal import Journal
from fedmiss.federation.messages import PROTOCOL
from fedmiss.files import read_manifest
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.network.approval import approve, page
from fedmiss.network.demo import CLUBS
from fedmiss.network.join import join
from fedmiss.network.kits import enrol, open_kit, read_roster, sleeper
from fedmiss.network.member import take_part
from fedmiss.network.proposer import collect_roster, make_study, new_revision
from fedmiss.network.status import STATUS, Status, status
from fedmiss.network.study import read_study
from fedmiss.system import POSIX
from fedmiss.version import __version__
from tests.cli.terminal import fedmiss

from .conftest import all_take_part, engine_files, enrolled, small_study

NOBODY = Board(CLUBS, patience=0.05).seat("north")


def status_of(kit):
    return fedmiss("federation", "status", kit).out


def test_another_roster_is_another_job_and_what_it_tells_is_said(folder, panels, capsys):
    kit = open_kit(folder / "kits" / "north")
    before = kit.job
    four = small_study(organisations=(*CLUBS, "west"))
    with pytest.raises(ConfigError, match="masks need 3"):
        new_revision(folder, ["south"])
    assert four.masks
    new = new_revision(folder, [])
    assert new.revision == 2
    kit = open_kit(folder / "kits" / "north")
    assert kit.job != before
    assert kit.approval() is None
    with pytest.raises(ConfigError, match="is not approved"):
        take_part(kit, panels["north"], NOBODY)
    assert "WARNING: you took part in egrets revision 1" in page(kit)
    capsys.readouterr()
    approve(kit, ask=None, given=kit.job.hex())
    assert "WARNING: you took part in egrets revision 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_revision_goes_on_and_a_fourth_club_joins(folder, panels, tmp_path):
    kits = {c: open_kit(folder / "kits" / c) for c in CLUBS}
    with pytest.raises(InputError, match="has not chosen its model yet"):
        new_revision(folder, source=kits["north"].folder)
    first = all_take_part(folder, panels)
    held, key = read_json(kits["north"].onward), kits["north"].roster["north"]
    assert held == read_json(kits["south"].onward)  # joint numbers, the same everywhere
    with pytest.raises(ConfigError, match="'north' is in the study already"):
        new_revision(folder, added=["north"])
    done = fedmiss("federation", "revise", folder, "--with", "west", "--from", kits["north"].folder)
    assert done.code == 0, done
    assert "revision 2, of central, north, south, west" in done.out
    assert f"{folder / 'kits' / 'west'} to west" in done.out
    west = open_kit(folder / "kits" / "west")
    with pytest.raises(ConfigError, match="the roster of this revision"):
        _ = west.job
    mine = kits["north"].folder
    # one that never enrolled can be left out again
    assert new_revision(folder, ["west"], source=mine).revision == 3
    new_revision(folder, added=["west"], source=mine)
    collect_roster(folder, [enrol(west)])  # the others' keys stay
    again = {c: open_kit(folder / "kits" / c) for c in (*CLUBS, "west")}
    assert len({k.job for k in again.values()}) == 1
    assert again["north"].roster["north"] == key
    text = page(again["north"])
    assert "goes on from revision 1: negative binomial of rank 0 with its months" in text
    assert "This job is with west added" in text
    assert "those that your computer has kept of that job" in text
    assert "You took no part in that job" in page(again["west"])
    refuses_changed_numbers(again["north"])
    knows_the_model_only(again["south"])
    for kit in again.values():
        approve(kit, ask=None, given=kit.job.hex())
    # another club with the same counts at places of its own
    sites = shutil.copytree(panels["north"], tmp_path / "west")
    second = all_take_part(folder, panels | {"west": sites})
    for club, result in second.items():
        assert isinstance(result, Path), (club, result)
    facts = [read_manifest(r["north"], "joint")["results"] for r in (first, second)]
    assert facts[1]["n_groups"] == 4
    assert facts[1]["ledger"]["exchanges"] < facts[0]["ledger"]["exchanges"]
    with pytest.raises(InputError, match="is at revision 1 of egrets, the study at revision 4"):
        new_revision(folder, source=stale_kit(folder, tmp_path))


def refuses_changed_numbers(kit):
    """A revision that begins from other numbers than the members have kept is refused before anybody approves it."""
    path = kit.folder / "study.json"
    right = path.read_text(encoding="utf-8")
    for change, words in (
        (lambda model: model["T"][3].__setitem__(0, model["T"][3][0] + 0.01), "model 1, T"),
        (lambda model: model.update(mu=model["mu"] * 1.001), "model 1, mu"),
        (lambda model: model["settings"].update(slopes=not model["settings"]["slopes"]), "model 1, settings"),
    ):
        study = json.loads(right)
        change(study["before"]["models"][0])
        path.write_text(json.dumps(study), encoding="utf-8")
        with pytest.raises(ConfigError, match=f"other numbers than this computer has kept of it .{words}."):
            approve(open_kit(kit.folder), ask=lambda _: True)
        assert not (kit.private / "approval.json").exists() or open_kit(kit.folder).approval() is None
    study = json.loads(right)
    study["before"]["revision"] = "one"
    path.write_text(json.dumps(study), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"revision is 'one' .must be a whole number"):
        approve(open_kit(kit.folder), ask=lambda _: True)
    path.write_text(right, encoding="utf-8")


def knows_the_model_only(kit):
    """Who was there for the choice of the model, and not for its fit, cannot compare months."""
    (path,) = kit.private.glob("onward-*.json")
    right = path.read_text(encoding="utf-8")
    kept = json.loads(right)
    kept["models"] = [{"settings": model["settings"]} for model in kept["models"]]
    path.write_text(json.dumps(kept), encoding="utf-8")
    assert "has kept the model of that job only, not its months" in page(kit)
    path.write_text(right, encoding="utf-8")


def stale_kit(folder, tmp_path):
    """A kit that has not got the present revision."""
    there = tmp_path / "stale"
    shutil.copytree(folder / "kits" / "north", there)
    raw = read_json(there / "study.json")
    write_json(there / "study.json", raw | {"revision": 1})  # the same roster: another job for this alone
    return there


def test_a_revision_that_was_killed_is_made_again(folder, tmp_path, monkeypatch):
    """Wherever it was killed, the same command gives what it would have given."""
    for at in (folder, *(folder / "kits").iterdir()):
        write_json(at / "study.json", read_json(at / "study.json") | {"months": ["1999-01", "2003-12"]})
    mine = open_kit(folder / "kits" / "north")
    write_json(mine.onward, {"job": "first", "revision": 1, "models": []})
    monkeypatch.setattr("fedmiss.federation.hub.onward.read_before", lambda *_: ())
    genuine, left = atomic.atomic_file, [0]

    def killed(path, **more):
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return genuine(path, **more)

    monkeypatch.setattr(atomic, "atomic_file", killed)
    for writes in range(50):
        there = tmp_path / str(writes)
        shutil.copytree(folder, there)
        change = {"without": ["south"], "added": ["west", "east"], "source": there / "kits" / "north"}
        left[0] = writes
        try:
            new_revision(there, **change, months=["2000-01", "2004-12"])
            break
        except KeyboardInterrupt:
            new_revision(there, **change, months=["2000-01", "2004-12"])
        for at in (there, there / "hub", *(there / "kits" / n for n in ("central", "east", "north", "west"))):
            study = read_study(at)
            assert (study.revision, study.organisations) == (2, ("central", "east", "north", "west"))
            assert (study.months, study.before["job"]) == (("2000-01", "2004-12"), "first")
        assert set(read_json(there / "roster.json")) == {"central", "north"}
    assert writes > 10


def test_months_of_a_study_that_names_none_are_refused(folder):
    """They were taken, and the next revision was another study, of fewer months."""
    with pytest.raises(ConfigError, match="study egrets names no months"):
        new_revision(folder, months=["2000-01", "2004-12"])
    assert read_study(folder).revision == 1


@pytest.mark.parametrize("text", ['["636b', "17"])
@pytest.mark.parametrize(
    ("name", "advice", "read"),
    [
        ("begun.json", "enrol` there, and ask for a roster", lambda kit: take_part(kit, kit.folder, NOBODY)),
        ("history.json", "without one move it away", lambda kit: kit.history()),
        ("onward-1.json", "its journal has the same", lambda kit: kit.kept_of(1)),
    ],
)
def test_what_a_kit_keeps_cut_short_is_told_with_what_can_be_done(
    folder, panels, monkeypatch, name, advice, read, text
):
    """The words were: make it again; nobody can."""
    kit = open_kit(folder / "kits" / "north")
    monkeypatch.setattr("fedmiss.network.member.program_of", lambda kit, data: None)
    monkeypatch.setattr("fedmiss.network.member.answered_from", lambda *given: b"")
    (kit.private / name).write_text(text)
    with pytest.raises(InputError, match=f"{name} is cut short or was changed.*{advice}") as caught:
        read(kit)
    assert "make it again" not in str(caught.value)


def test_a_study_of_all_species_or_of_a_method_goes_on_from_none(tmp_path):
    """It was said that a job had not chosen its model which was done."""
    for at, more in enumerate(
        ({"method": {"run": "a:b"}}, {"community": {"species": ["Avis a", "Avis b", "Avis c"]}})
    ):
        folder = make_study(small_study(species="", model={}, **more), tmp_path / str(at), engine_files)
        with pytest.raises(ConfigError, match=r"is not about one species: .* Leave --from out"):
            new_revision(folder, source=folder / "kits" / "north")


def test_certificates_admit_nobody_later(tmp_path):
    out, _ = enrolled(small_study(engine="nvflare", patience=60.0), tmp_path / "study")
    with pytest.raises(ConfigError, match="certificates of engine nvflare are made once"):
        new_revision(out, added=["west"])


def test_two_organisations_with_one_key_are_refused(tmp_path):
    out = make_study(small_study(), tmp_path / "study", engine_files)
    files = [enrol(open_kit(out / "kits" / c)) for c in CLUBS]
    copied = json.loads(files[0].read_text()) | {"organisation": CLUBS[1]}
    files[1].write_text(json.dumps(copied))
    with pytest.raises(ConfigError, match=rf"'{CLUBS[0]}' and '{CLUBS[1]}' have the same public key"):
        collect_roster(out, files)


def test_a_study_of_two_admits_a_third(tmp_path):
    study = small_study(organisations=("north", "south"), masks=False)
    assert study.contributors == 2
    out, _ = enrolled(study, tmp_path / "study")
    new = new_revision(out, added=["west"])
    assert (new.contributors, new.organisations, new.masks) == (3, ("north", "south", "west"), True)


def test_models_that_nothing_masked_are_not_gone_on_from_under_masks(tmp_path):
    study = small_study(organisations=("north", "south"), masks=False, model={})
    out, _ = enrolled(study, tmp_path / "study")
    words = ["federation", "revise", str(out), "--with", "west"]
    with pytest.raises(ConfigError, match=r"masked from this revision on.*Leave --from out\."):
        new_revision(out, added=["west"], source=out / "kits" / "north")
    assert read_study(out).revision == 1
    assert "negative binomial distribution under masks" in fedmiss(*words).out


def test_three_that_chose_no_masks_keep_their_choice(tmp_path):
    out = make_study(small_study(masks=False), tmp_path / "study", engine_files)
    assert not new_revision(out, added=["west"]).masks


def test_a_newer_fedmiss_finds_what_a_job_has_come_to(folder, kit, monkeypatch):
    settings = asdict(CountSettings(rank=1))
    kept = {"job": kit.job.hex(), "revision": 1, "models": [{"settings": settings}]}
    write_json(kit.onward, kept)
    monkeypatch.setattr("fedmiss.network.kits.__version__", "9.9")
    assert not open_kit(kit.folder).onward.exists()  # the job's number covers the version
    new = new_revision(folder, source=kit.folder)
    assert new.order().before[0].settings.rank == 1


@pytest.mark.parametrize("steps", [1, 2], ids=["at once", "one after the other"])
def test_who_comes_gets_no_months_of_a_job_that_somebody_has_left(steps, folder, kit):
    """With the sums of who stays it would have those of who left: tests/attacks/test_newcomers.py."""
    one = Before(CountSettings(rank=0), np.arange(2), np.zeros((2, 1)), tau=np.ones(1), noise=np.ones(1))
    write_json(kit.onward, {"job": kit.job.hex(), "revision": 1, "models": written([one])})
    changes = [{"added": ["west"]}, {"without": ["south"]}]
    if steps == 2:
        assert "months" in new_revision(folder, source=kit.folder, **changes[0]).before["models"][0]
        new = new_revision(folder, source=kit.folder, **changes[1])
    else:
        new = new_revision(folder, source=kit.folder, **changes[0], **changes[1])
    assert [list(model) for model in new.before["models"]] == [["settings"]]
    said = fedmiss("federation", "revise", folder, "--from", kit.folder)
    assert "would tell who joins what who left had" in said.out + said.err


def test_a_status_is_that_of_the_present_job(folder):
    """Done was said of a revision that nobody had joined."""
    kit = open_kit(folder / "kits" / "north")
    Status(kit.private / STATUS, kit.job.hex(), CLUBS).write(state="done")
    assert status_of(kit.folder).startswith("state      done")
    new_revision(folder)
    assert status_of(kit.folder).startswith("The kit's present job is not begun. The last one:\nstate")
    path = kit.folder / "study.json"
    write_json(path, read_json(path) | {"organisations": ["a", "b", "c"]})
    assert status_of(kit.folder).startswith("state      done")  # it has left


@pytest.mark.skipif(not POSIX, reason="the lock is POSIX's")
def test_a_status_says_that_its_process_has_ended(folder, kit):
    """Whoever was killed could not write it: `running` was said for ever."""
    journal = Journal(kit.journal)
    Status(kit.private / STATUS, kit.job.hex(), CLUBS).write(state="running")
    assert status_of(kit.folder).startswith("state      running\n")
    journal.close()
    said = status_of(kit.folder)
    assert said.startswith("state      running, when its process ended; `fedmiss federation join` goes on\n")
    Journal(kit.journal).close()


def test_a_revision_that_loses_its_third_says_what_can_be_done(folder):
    """`masks = false` was advised, which `revise` cannot say."""
    with pytest.raises(ConfigError, match=r"revise --with NAME.*masks = false \(`fedmiss federation new`\)"):
        new_revision(folder, without=["south"])
    new = new_revision(folder, without=["south"], added=["west"])
    assert new.organisations == ("central", "north", "west")


def test_a_job_that_is_done_stays_done_when_it_is_joined_again(kit, panels):
    """With other data by mistake, or stopped amid it: `stopped` was said, and no word of the result."""
    with pytest.raises(EngineError, match="no frame from"):
        take_part(kit, panels["north"], NOBODY)
    kit.result.mkdir()
    with pytest.raises(ConfigError, match="of other data of 'north'"):
        take_part(kit, panels["south"], NOBODY)
    said = status_of(kit.folder)
    assert said.startswith("state      done\n")
    assert "other data of 'north'" in said
    assert f"result     {kit.result}\n" in said


def test_a_status_names_the_result_where_the_kit_lies_now(kit, tmp_path):
    """A kit that was moved, or copied to a new computer, named a folder that is not there."""
    Status(kit.private / STATUS, kit.job.hex(), CLUBS).write(state="done", result=str(kit.result))
    moved = kit.folder.rename(tmp_path / "moved")
    assert f"result     {moved.resolve() / kit.result.name}\n" in status_of(moved)


def test_a_shared_folder_that_has_moved_is_not_made_anew(kit, panels, tmp_path):
    """ "Make the shared folder first" was said: in an empty one all would wait for ever."""
    write_json(kit.private / "folder.json", {"folder": str(tmp_path / "gone")})
    with pytest.raises(InputError, match=r"of the last time, .*gone, is not there now.*--folder FOLDER"):
        join(kit, panels["north"])


def test_a_revision_goes_on_from_the_job_that_was_approved_last(folder, kit):
    """One with a key that was lost is another job of the same revision: which one was taken was chance."""
    settings = asdict(CountSettings(rank=1))
    kept = {"job": kit.job.hex(), "revision": 1, "models": [{"settings": settings}]}
    write_json(kit.onward, kept)
    for digit in "0f":
        other = kept | {"job": digit * 64, "models": [{"settings": settings | {"rank": 2}}]}
        write_json(kit.private / f"onward-{digit * 16}.json", other)
    new = new_revision(folder, source=kit.folder)
    assert new.before["job"] == kept["job"]


def test_the_page_names_the_version_and_a_wrong_one_approves_nothing(folder, panels, monkeypatch):
    """The approval of a job that nobody could join stood in the history, and the right job warned of differences to it."""
    kit = open_kit(folder / "kits" / "north")
    assert f"computed by  fedmiss {__version__}, protocol {PROTOCOL};" in page(kit)
    kept = [(kit.private / name).read_bytes() for name in ("approval.json", "history.json")]
    for at in ("fedmiss.network.kits", "fedmiss.network.preflight", "fedmiss.network.approval"):
        monkeypatch.setattr(f"{at}.__version__", "99.0")
    for words in (["--dry-run"], ["--approve", open_kit(kit.folder).job.hex()]):
        done = fedmiss("federation", "join", kit.folder, panels["north"], *words)
        assert done.code == 2
        assert "kit of 'north' was made by fedmiss" in done.err
        assert "To approve" not in done.out
    assert kept == [(kit.private / name).read_bytes() for name in ("approval.json", "history.json")]


def test_a_key_of_somebody_who_is_not_in_the_study_is_refused_by_who_is(folder, tmp_path):
    """It said of a club that had left that study egrets "is not in 'egrets'"."""
    key = read_json(enrol(open_kit(folder / "kits" / "north")))
    write_json(tmp_path / "west.json", key | {"organisation": "west"})
    said = "is of 'west' in study 'egrets'; this is 'egrets', revision 1, of central, north, south"
    with pytest.raises(ConfigError, match=said):
        collect_roster(folder, [tmp_path / "west.json"])


def test_a_kit_is_not_revised_as_if_it_were_the_study(folder):
    kit = folder / "kits" / "north"
    before = {path: path.read_bytes() for path in kit.rglob("*.json")}
    for call in (lambda: new_revision(kit), lambda: collect_roster(kit, [enrol(open_kit(kit))])):
        with pytest.raises(InputError, match="is the kit of one organisation; nothing was changed"):
            call()
    assert before == {path: path.read_bytes() for path in kit.rglob("*.json")}


def test_a_kit_that_gets_a_revision_while_its_job_runs_stays_the_one_that_runs_and_says_so(
    folder, monkeypatch
):
    """With a new key of another the running process took the new job's number, and would have named its result so."""
    monkeypatch.setattr("fedmiss.network.kits.LOOK", 0.0)
    kit, said = open_kit(folder / "kits" / "north"), []
    wait, job = sleeper(kit, said.append), kit.job
    for error in (OSError("a disk that is away"), ConfigError("a file that is half copied")):
        with monkeypatch.context() as now:
            now.setattr("fedmiss.network.kits.read_study", Mock(side_effect=error))
            wait(0.0)
    assert not said
    (folder / "kits" / "south" / "private" / "identity.key").unlink()
    collect_roster(folder, [enrol(open_kit(folder / "kits" / "south"))])
    wait(0.0)
    wait(0.0)
    assert kit.job == job != open_kit(kit.folder).job
    assert len(said) == 1
    assert f"This process still runs revision 1, job {job.hex()[:12]}" in said[0]
    assert f"has revision 1 of the study now, job {open_kit(kit.folder).job.hex()[:12]}" in said[0]


def test_who_has_left_is_told_while_its_process_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmiss.network.kits.LOOK", 0.0)
    four, kits = enrolled(small_study(organisations=(*CLUBS, "west")), tmp_path / "study")
    kit, said = kits["west"], []
    wait = sleeper(kit, said.append)
    wait(0.0)
    new_revision(four, ["west"])
    shutil.copy(four / "study.json", kit.folder)
    wait(0.0)
    assert "has revision 2 of study egrets now, which 'west' is not in" in said[0]
    assert "still runs revision 1" in said[0]


@pytest.mark.parametrize("file", ["kit.json", "roster.json", "study.json", "private/status.json"])
@pytest.mark.parametrize("content", ["[]", '"x"', "3", "null"])
def test_a_file_that_holds_something_else_is_named(kit, file, content):
    """A file that a synchronising program or an editor has changed is said by its name, not by a traceback."""
    (kit.folder / file).write_text(content)

    with pytest.raises((InputError, ConfigError), match=re.escape(Path(file).name)):
        (read_roster(kit.folder, open_kit(kit.folder).study), status(kit.private))


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (0, 5, "each month with 1 to 4 of your sites. Say --own-sites 0."),
        (5, 3, "each month with 3 to 4 of your sites. Say --own-sites 5."),
        (0, 1, ""),
        (5, 5, ""),
    ],
)
def test_the_page_of_a_revision_warns_of_another_own_rule(then, now, said, folder, panels, capsys):
    """Its months follow exactly (``tests/attacks/test_own_rule.py``)."""
    at = folder / "kits" / "north"
    open_kit(at).keep_own_sites(then)  # after the approval, before anything is told
    with pytest.raises(EngineError, match="no frame from"):
        take_part(open_kit(at), panels["north"], NOBODY)
    new_revision(folder)
    kit = open_kit(at)
    text = page(kit, own_sites=now)
    assert said in text
    assert ("leave out: each month" in text) == bool(said)
    kit.keep_own_sites(now)
    approve(kit, ask=None, given=kit.job.hex())
    assert said in " ".join(capsys.readouterr().err.split())
