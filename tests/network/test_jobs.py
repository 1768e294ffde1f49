"""From kits to both reports, and what ends or changes a job on the way."""

import re
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedmiss.atomic import read_json, write_json, write_secret
from fedmiss.errors import ConfigError, EngineError, InputError
from fedmiss.federation.gather import Board
from fedmiss.files import SECRET, read_manifest, write_manifest
from fedmiss.network import report
from fedmiss.network.demo import CLUBS, in_process
from fedmiss.network.folder import place_of
from fedmiss.network.join import _join_folder
from fedmiss.network.kits import open_kit
from fedmiss.network.member import (
    answered_from,
    digest_of_path,
    open_data,
    party_of,
    replay,
    take_part,
)
from fedmiss.network.outbox import ledger_of, outbox
from fedmiss.network.report import _chosen_by, _own_panel, joint_report, no_own_report, own_report
from fedmiss.network.result import preview_lines
from fedmiss.network.status import status
from fedmiss.network.study import Study
from fedmiss.report.html import assets
from fedmiss.report.settings import ReportSettings
from tests.cli.terminal import fedmiss

from .conftest import all_take_part, approved

NOBODY = Board(CLUBS, patience=0.05).seat("north")


@pytest.mark.slow
def test_a_study_from_kits_to_both_reports(folder, panels, tmp_path):
    results = all_take_part(folder, panels)
    here = in_process(folder, panels)
    for club, result in results.items():
        assert status(folder / "kits" / club / "private")["state"] == "done"
        totals = np.array(read_json(result / "totals.json")["totals"])
        np.testing.assert_allclose(totals, here.totals, rtol=1e-8)
    kit, result = open_kit(folder / "kits" / "north"), results["north"]
    assert result == kit.result
    pages = {
        c: joint_report(r, tmp_path / f"joint-{c}", ReportSettings(date="2026-05-01", unit="nests"))
        for c, r in results.items()
    }
    assert len({p.read_bytes() for p in pages.values()}) == 1  # one page, wherever it was made
    joint = pages["north"].read_text()
    assert "joint trend report of central, north and south" in joint
    assert "Ardea alba" in joint
    assert "Total, nests" in joint
    assert "<svg" in joint
    plain = joint
    # style and scripts, not the data that they read, and attributes have words like "hidden", the name of a colony
    plain = plain.replace(str(assets()["css"]), "")
    plain = re.sub(r"<script>.*?</script>| hidden(?=[ >])", "", plain, flags=re.S)
    own = own_report(kit, panels["north"], tmp_path / "own")
    assert own.exists()
    sites = set(pl.read_parquet(tmp_path / "own" / "panel" / "sites.parquet")["site_id"])
    for club in ("central", "south"):
        others = set(pl.read_parquet(panels[club] / "sites.parquet")["site_id"])
        assert not sites & others
        assert not [s for s in others if len(s) > 5 and s in plain]  # some colonies are called "8"
    for make, given, option in (
        (joint_report, (result,), "--joint"), (own_report, (kit, panels["north"]), "--report"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"{option}\\b"):
            make(*given, panels["north"].parent, overwrite=True)
    # what went, in bytes and in words
    ledger, lines = ledger_of(kit)
    counted = read_manifest(result, "joint")["results"]["ledger"]
    first = lines[0]
    mine = counted["groups"]["north"]
    assert (ledger.total.bytes_up - first[2], ledger.total.bytes_down - first[3]) == (
        mine["bytes_up"], mine["bytes_down"],
    )  # fmt: skip
    text = "\n".join(outbox(kit, panels["north"]))
    assert text.count("--- exchange") == len(lines) == counted["exchanges"] + 1
    assert "gradient and curvature of every month's coefficients [(n, L, f (f + 3) / 2); masked]" in text
    assert "SipHash" not in text  # of sites nothing goes, under whatever key
    assert text.count("\nasked ") == text.count("\nanswered ") > len(lines)
    assert "asked Open: opens a batch of fits" in text
    only = outbox(kit, panels["north"], last=2)
    assert only[0].startswith(f"--- exchange {len(lines) - 2},")
    assert sum(line.startswith("---") for line in only) == 2


@pytest.mark.slow
def test_the_job_can_be_joined_again_when_it_is_done(folder, panels):
    """For the others, who may lack its last frames; the result stays as it is."""
    board = Board(CLUBS, patience=30.0)
    first = all_take_part(folder, panels, board=board)
    raw = {c: (r / "totals.json").read_bytes() for c, r in first.items()}
    assert all_take_part(folder, panels, board=board) == first
    assert {c: (r / "totals.json").read_bytes() for c, r in first.items()} == raw


def test_who_is_done_shows_its_frames_again_over_a_folder_too(folder, panels, tmp_path, monkeypatch):
    kit, asked = open_kit(folder / "kits" / "north"), []
    monkeypatch.setattr("fedmiss.network.join.take_part", lambda *given, **more: asked.append(given))
    shared, how = tmp_path / "shared", {"say": print, "look": False, "preview": False}
    for made in (kit.result, shared):
        made.mkdir()
    kit.journal.touch()
    _join_folder(kit, panels["north"], shared, None, **how)
    assert [given[:2] for given in asked] == [(kit, panels["north"])]
    kit.journal.unlink()  # then nothing can be shown again, and the result stands
    _join_folder(kit, panels["north"], shared, None, **how)
    assert len(asked) == 1


def test_who_joins_a_job_that_is_done_is_told_of_another_one(folder, panels, tmp_path):
    """The others waited in the next revision, and `join` with a kit that had not got it said only that all was done."""
    kit, lines, shared = open_kit(folder / "kits" / "north"), [], tmp_path / "shared"
    next_one = shared / f"egrets-{'0' * 16}"
    for made in (kit.result, shared / place_of("egrets", kit.job.hex()), next_one):
        made.mkdir(parents=True)
    how = {"say": lines.append, "look": False, "preview": False}
    _join_folder(kit, panels["north"], shared, None, **how)
    assert "revision 1, was done before" in lines[0]
    assert next_one.name in lines[1]
    next_one.rmdir()
    del lines[:]
    _join_folder(kit, panels["north"], shared, None, **how)
    assert len(lines) == 1


@pytest.mark.slow
def test_who_waits_is_told_in_which_folder(kit, panels, tmp_path, monkeypatch):
    """A wrong one, or a copy of the shared one, looked like others who are away."""
    shared = tmp_path / "another"
    shared.mkdir()
    monkeypatch.setattr("fedmiss.network.folder.QUIET", -1.0)

    def say(line):
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt, match=f"waiting for central, south in {shared}; Ctrl-C"):
        _join_folder(kit, panels["north"], shared, None, say=say, look=False, preview=False)


def test_the_least_number_of_own_sites_stands_once_a_job_is_begun(folder, panels):
    """Changed in between, every later join failed, and blamed the processor."""
    kit = open_kit(folder / "kits" / "north")
    kit.keep_own_sites(3)
    board = Board(CLUBS, patience=30.0)
    done = all_take_part(folder, panels, board=board)
    words = ["federation", "join", kit.folder, panels["north"], "--folder", folder.parent]
    refused = fedmiss(*words, "--own-sites", "5")
    assert refused.code == 2
    assert "was begun here with own-sites 3" in refused.err
    assert open_kit(kit.folder).own_sites == 3
    kit.keep_own_sites(3)
    assert all_take_part(folder, panels, board=board) == done


@pytest.mark.slow
def test_a_flipped_bit_in_a_kits_journal_stops_whoever_reads_it(folder, panels):
    """Joining again, what was sent, and the ledger: each names the file; nothing is written to it, and no lock is left."""
    board = Board(CLUBS, patience=30.0)
    all_take_part(folder, panels, board=board)
    kit = open_kit(folder / "kits" / "north")
    raw = kit.journal.read_bytes()
    rng = np.random.default_rng(1)
    for bit in rng.integers(0, 8 * len(raw), 40):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << bit % 8
        kit.journal.write_bytes(bad)
        for use in (
            lambda: take_part(kit, panels["north"], board.seat("north")),
            lambda: outbox(kit, panels["north"]),
            lambda: ledger_of(kit),
        ):
            with pytest.raises(InputError, match=re.escape(str(kit.journal)) + " is damaged at byte"):
                use()
        assert kit.journal.read_bytes() == bad
    kit.journal.write_bytes(raw)
    assert all_take_part(folder, panels, board=board)["north"] == kit.result


def test_a_kit_answers_from_data_secret_and_least_number(kit, panels):
    """What the first frame commits to, so that masks are others where an answer may be another."""
    seen = {answered_from(kit, panels["north"]), answered_from(kit, panels["south"])}
    kit.keep_own_sites(4)
    seen.add(answered_from(kit, panels["north"]))
    write_secret(kit.private / SECRET)
    assert len({*seen, answered_from(kit, panels["north"])}) == 4


@pytest.mark.slow
def test_two_organisations_without_masks(tmp_path, panels):
    tries = {"model": "quasi", "max_rank": 1, "bootstrap": 4}
    study = Study("pair", "Ardea alba", ("north", "south"), masks=False, model=tries, share=1.0)
    out = approved(study, tmp_path / "study")
    kits = {c: open_kit(out / "kits" / c) for c in study.organisations}
    pair = {c: panels[c] for c in study.organisations}
    results = all_take_part(out, pair)
    here = in_process(out, pair)
    for result in results.values():
        np.testing.assert_array_equal(np.array(read_json(result / "totals.json")["totals"]), here.totals)
    # own reports rest on the visits of the joint one: those of thin months are in neither
    own, shares = 0, []
    for club, kit in kits.items():
        again = replay(kit, pair[club])
        stamps, used = again.program.results[0].months, again.program.need().month
        own += _own_panel(open_data(kit, pair[club]), stamps, used, tmp_path / club).facts.n_counted
        # draw k of a club is its share of joint draw k; totals of models under trial are none
        shares.append(np.stack([again.program.own_totals[place] for place in again.places])[:, 0])
        assert len(again.program.own_totals) > len(again.places) + len(again.program.results)
    facts = read_manifest(results["north"], "joint")["results"]
    assert own == facts["n_counted"] == here.agreement.panel.visits
    assert here.agreement.withheld > 0
    np.testing.assert_allclose(sum(shares), here.draws[:, 0])


def test_a_preview_is_read_in_words():
    """It printed Python's None and lists in brackets."""
    said = list(preview_lines({
        "months": 45, "months_left_out": {"fewer visits or sites": ["2003-04", "2003-05"], "too large a share": []},
        "months_in_cross_validation": None, "regions": [], "notes": ["One.", "Two."],
    }))  # fmt: skip
    assert [" ".join(line.split()) for line in said] == [
        "months 45", "months left out", "fewer visits or sites 2: 2003-04, 2003-05", "too large a share 0:",
        "months in cross validation none", "regions none", "notes", "One.", "Two.",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_preview_says_what_is_lost_and_the_job_goes_on_from_it(folder, panels):
    board = Board(CLUBS, patience=30.0)
    files = all_take_part(folder, panels, board=board, preview=True)
    raw = read_json(files["north"])
    kit = open_kit(folder / "kits" / "north")
    assert status(kit.private)["state"] == "previewed"
    asked = len(ledger_of(kit)[1])
    assert asked >= 6
    results = all_take_part(folder, panels, board=board)
    manifest = read_manifest(results["north"], "joint")["results"]
    assert manifest["replayed"] == asked
    assert raw["withheld"] == manifest["withheld_visits"] > 0
    assert raw["visits"] == manifest["n_counted"]
    assert raw["released_months"] < raw["months"] == manifest["n_months"]
    assert set(raw["months_left_out"]) == {
        "fewer visits or sites, or fewer than 3 organisations", "too large a share of the visits",
    }  # fmt: skip
    left_out = [m for months in raw["months_left_out"].values() for m in months]
    assert len(set(left_out)) == len(left_out) > 0
    assert raw["months"] - raw["released_months"] >= len(left_out)  # some months have no visit at all


@pytest.mark.slow
def test_the_commands_work_without_a_terminal(folder, panels, tmp_path_factory):
    kit, tmp_path = folder / "kits" / "south", tmp_path_factory.mktemp("shared")
    join = ["join", kit, panels["south"]]
    done = fedmiss("federation", *join, "--dry-run", "--own-sites", "900")
    assert done.code == 0, done
    assert "with fewer than 900 of your own sites" in done.out
    assert open_kit(kit).own_sites == 0, "a dry run keeps nothing"
    done = fedmiss("federation", *join, "--dry-run", "--folder", tmp_path)
    assert done.code == 0, done
    assert "can carry the study" in " ".join(done.out.split())
    assert "Nothing was sent" in done.out
    assert not list(tmp_path.iterdir()), "nothing is written there"
    assert fedmiss("federation", *join, "--dry-run", "--folder", tmp_path / "none").code == 1
    assert fedmiss("federation", "status", kit).out.startswith("state      not begun")
    own = ["--folder", tmp_path, "--report", tmp_path / "own"]
    for words, said, code in (  # 2 for what was asked, 1 for what lies there
        (join, "Name yours: fedmiss federation join", 2),
        ([*join, "--folder", folder], "lies in the shared folder", 1),
        ([*join, *own], "the others would receive your visits", 1),
        (["run", folder], "there is no relay to run", 2),
        (["status", folder], "has no relay: how the study stands is known at each organisation", 2),
        (["status", tmp_path], "is neither a kit nor a study's folder", 1),
        (["ledger", kit], "has sent nothing", 1),
    ):
        refused = fedmiss("federation", *words)
        assert refused.code == code, refused
        assert said in refused.err


def test_a_copied_kit_without_its_journal_cannot_take_over(folder, kit, panels):
    all_take_part(folder, panels, preview=True)
    kit.journal.unlink()
    with pytest.raises(ConfigError, match="its journal is gone"):
        take_part(kit, panels["north"], NOBODY)
    assert not kit.journal.exists()
    # neither can it run a study under another's name: the roster's key of the name is not its own
    write_json(kit.folder / "kit.json", read_json(kit.folder / "kit.json") | {"organisation": "south"})
    with pytest.raises(ConfigError, match="the roster's key of 'south' is not this group's"):
        party_of(open_kit(kit.folder))


def test_a_journal_that_is_gone_is_not_said_to_have_sent_nothing(kit, panels):
    with pytest.raises(InputError, match="has sent nothing for job"):
        ledger_of(kit)
    with pytest.raises(EngineError, match="no frame from"):
        take_part(kit, panels["north"], NOBODY)
    kit.journal.unlink()
    with pytest.raises(
        InputError, match=rf"the journal of job {kit.job.hex()[:12]}, .*, is gone: .* no own report"
    ):
        ledger_of(kit)


def test_a_secret_that_is_gone_is_not_drawn_anew_amid_a_job(kit, panels):
    """Another one was drawn, and the custodian was told that the data had changed."""
    with pytest.raises(EngineError, match="no frame from"):
        take_part(kit, panels["north"], NOBODY)
    secret = kit.private / SECRET
    copy = secret.read_bytes()
    secret.unlink()
    for use in (lambda: take_part(kit, panels["north"], NOBODY), lambda: outbox(kit, panels["north"])):
        with pytest.raises(InputError, match=rf"{re.escape(str(secret))} is gone, .* Put this file back"):
            use()
    assert not secret.exists()
    secret.touch()  # of an empty one everybody would know the folds
    with pytest.raises(InputError, match="is damaged: it has 0 bytes"):
        take_part(kit, panels["north"], NOBODY)
    secret.write_bytes(copy)
    with pytest.raises(EngineError, match="no frame from"):  # it goes on
        take_part(kit, panels["north"], NOBODY)


def test_why_a_job_stopped_is_on_the_own_screen_and_in_a_file(folder):
    """Another organisation reads nothing; the custodian reads what differed."""
    from fedmiss.network.outbox import REFUSALS, note_refusal

    kit = open_kit(folder / "kits" / "north")
    note_refusal(kit, ConfigError("the season is 5, the approved study has all."))
    said = (kit.private / REFUSALS).read_text()
    assert "the job stopped: the season is 5" in said
    assert (kit.private / REFUSALS).stat().st_mode & 0o077 == 0
    told = note_refusal(kit, OSError(28, "No space left on device"))
    assert f"{kit.private}: No space left on device. Free some space" in told
    assert told.endswith("then join again: the job goes on.")


def test_seconds_add_up_over_the_processes_of_a_job(folder, panels):
    """A job that is stopped goes on in a new process: the manifest has the seconds of both, and every exchange once."""
    board = Board(CLUBS, patience=30.0)

    def stop(exchange, questions, answers):
        if exchange == 20:
            raise KeyboardInterrupt

    board.patience = 0.5
    first = all_take_part(folder, panels, board=board, looks={"north": stop})
    assert isinstance(first["north"], KeyboardInterrupt)
    kit = open_kit(folder / "kits" / "north")
    begun = read_json(next(kit.private.glob("usage-*.json")))
    board.patience = 30.0
    facts = read_manifest(all_take_part(folder, panels, board=board)["north"], "joint")["results"]
    assert facts["seconds"] > begun["seconds"] > 0
    assert facts["replayed"] == 20
    assert facts["ledger"]["exchanges"] == len(ledger_of(kit)[1]) - 1


def test_what_is_answered_from_covers_every_file_and_the_table_of_sites(tmp_path):
    (tmp_path / "records").mkdir()
    seen = set()
    for text in ("a", "b"):
        (tmp_path / "records" / "lists.csv").write_text(text)
        (tmp_path / "sites.csv").write_text(text)
        one = digest_of_path(tmp_path / "records")
        seen |= {one, digest_of_path(tmp_path / "records", tmp_path / "sites.csv")}
        (tmp_path / "sites.csv").write_text(text * 2)
        seen.add(digest_of_path(tmp_path / "records", tmp_path / "sites.csv"))
        assert one == digest_of_path(tmp_path / "records")
    assert len(seen) == 6


def test_who_had_no_visit_in_the_study_has_no_own_report(tmp_path, monkeypatch):
    """A club with years of its own read "never found on 0 visits" of a species that it had counted."""
    left_out = SimpleNamespace(results=[], need=lambda: SimpleNamespace(month=np.zeros(0, np.int32)))
    monkeypatch.setattr(report, "replay", lambda kit, data: SimpleNamespace(joint=b"", program=left_out))
    assert own_report(SimpleNamespace(name="early"), tmp_path, tmp_path / "own") is None
    assert not (tmp_path / "own").exists()
    assert no_own_report(tmp_path / "own").endswith("works with your panel alone")
    write_manifest(tmp_path / "own", "own", settings={}, inputs={}, results={})
    # the report of a revision in which it took part lies there still, and was taken for the new one
    assert no_own_report(tmp_path / "own").endswith(f"{tmp_path / 'own'} is of an earlier job")


def test_only_errors_about_the_report_name_its_option(tmp_path):
    """A damaged panel was to be made again with `fedmiss panel --report`."""
    for at, option in ((tmp_path / "mine", "--report"), (tmp_path / "panel", "--out")):
        with (
            pytest.raises(InputError, match=f"elsewhere with {option}$"),
            _chosen_by("--report", tmp_path / "mine"),
        ):
            raise InputError("make it elsewhere with --out", path=str(at))
