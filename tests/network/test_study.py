"""Studies, kits, approvals, and what custodians read: all that needs no engine."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmiss import files
from fedmiss.cli.app import app
from fedmiss.cli.commands import register
from fedmiss.errors import ConfigError, EngineError, InputError
from fedmiss.federation.gather import Board, Seat
from fedmiss.federation.group.visits import check_counts
from fedmiss.federation.masks import Masks, identity
from fedmiss.federation.messages import Description
from fedmiss.files import SECRET, read_json, read_manifest, write_json, write_secret
from fedmiss.locks import locked
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.network import operate
from fedmiss.network.approval import approve, page
from fedmiss.network.demo import CLUBS, in_process
from fedmiss.network.engine import relay
from fedmiss.network.kits import collect_roster, enrol, make_study, new_revision, open_kit
from fedmiss.network.member import (
    DATA,
    answered_from,
    digest_of_path,
    dry_run,
    held,
    open_data,
    party_of,
    replay,
    take_part,
)
from fedmiss.network.nvflare import Admin
from fedmiss.network.operate import _all_there, _join_folder
from fedmiss.network.outbox import HELD, holder, ledger_of, on_hold, outbox, release
from fedmiss.network.report import _own_panel, joint_report, own_report
from fedmiss.network.status import STATUS, Status, status
from fedmiss.network.study import Study, job_hash, read_roster, read_study, read_study_toml
from fedmiss.pipeline.panels import open_panel
from fedmiss.report.html import assets
from tests.federation.network import all_of, together

from .conftest import QUICK, all_take_part, engine_files, small_study

NOBODY = Board(CLUBS, patience=0.05).seat("north")
TOML = """
name = "egrets"
species = "Ardea alba"
organisations = ["south", "north", "central"]
minimum = 5
season = [2, 3, 4]
[model]
bootstrap = 20
"""


def test_a_study_is_read_and_mistakes_are_named(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TOML)
    study = read_study_toml(path)
    assert study.organisations == ("central", "north", "south")
    assert study.fit.bootstrap == 20
    for old, new, words in (
        ("minimum = 5", "minimun = 5", "the setting 'minimun' is unknown. Did you mean 'minimum'"),
        ("minimum = 5", "minimum = 1", "minimum is 1"),
        ("minimum = 5", 'minimum = "5"', "not of the right kind"),
        ('"north"', '"North Club"', "'North Club' cannot be used"),
        ('"north", ', "", "masks need 3 organisations, the study has 2"),
        ('"north"', '"south"', "each once"),
        ("bootstrap = 20", "bootstraps = 20", "the setting 'bootstraps' is unknown"),
        ("bootstrap = 20", "folds = 1", "must be between 2 and 1000"),
        ("season = [2, 3, 4]", "season = [13]", "1 to 12"),
        ("minimum = 5", 'engine = "nvflare"\nport = 80', "port is 80"),
        ("minimum = 5", "port = 9000", "port = 9000 does nothing here: it is a relay's"),
        ("minimum = 5", "patience = 60", "patience = 60 does nothing here"),
        ("minimum = 5", 'host = "hub.example"', "host = 'hub.example' does nothing here"),
        ("minimum = 5", 'engine = "post"', "engine 'post' is unknown"),
        ('species = "Ardea alba"', "", "lacks 'species'"),
        ('name = "egrets"', "name = ", "not valid TOML"),
    ):
        path.write_text(TOML.replace(old, new))
        with pytest.raises((ConfigError, InputError), match=re.escape(words)):
            read_study_toml(path)


@pytest.mark.parametrize(
    "more",
    [
        {"species": "Ardea alba\n  Nobody sees anything"},
        {"species": "Ardea\x1b[8m alba"},
        {"species": "Ardea \u202ealba"},
        {"species": "Ardea alba" + 70 * " " + "months with fewer than 50 visits are left out"},
        {"species": "Ardea\u3164alba"},
        {"species": "", "model": {}, "method": {"run": "a:b", "x": ["\x1b[2J"]}},
        {"species": "", "model": {}, "community": {"species": ["Avis a", "Avis b", "Avis\rc"]}},
        {"species": "", "model": {}, "method": {"run": "a:b", "\x9b2J": 1}},
    ],
)
def test_what_a_screen_does_not_show_cannot_stand_in_a_study(more):
    """Else a proposer could hide or forge lines of the page that custodians approve."""
    with pytest.raises(ConfigError, match="a custodian approves"):
        small_study(**more)


def test_the_hash_covers_whatever_matters():
    study, roster = small_study(), {c: f"key-{c}" for c in CLUBS}
    base = job_hash(study, roster)
    assert base == job_hash(small_study(), dict(reversed(roster.items())))
    others = [
        job_hash(replace(study, **{name: value}), roster)
        for name, value in (
            ("revision", 2), ("minimum", 6), ("share", 0.9), ("masks", False), ("season", (2,)),
            ("species", "Ardea cinerea"),
            ("engine", "nvflare"), ("model", QUICK | {"seed": 1}), ("months", ("2004-01", "2010-12")),
        )
    ]  # fmt: skip
    others.append(job_hash(study, roster | {"north": "another key"}))
    for own in ({"run": "a:f"}, {"run": "a:g"}, {"run": "a:f", "rank": 2}):
        others.append(job_hash(small_study(species="", model={}, method=own), roster))
    assert len({base, *others}) == len(others) + 1


def test_nothing_is_answered_before_the_custodian_approved_this_very_job(tmp_path, panels):
    out = make_study(small_study(), tmp_path / "study", engine_files)
    kits = {c: open_kit(out / "kits" / c) for c in CLUBS}
    with pytest.raises(InputError, match=r"no roster\.json yet"):
        page(kits["north"])
    with pytest.raises(InputError, match="no public key of north, south"):
        collect_roster(out, [enrol(kits["central"])])
    collect_roster(out, [enrol(k) for k in kits.values()])
    kit = kits["north"]
    assert kit.private.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="is not approved by the custodian"):
        take_part(kit, panels["north"], NOBODY)
    with pytest.raises(ConfigError, match="nobody is there to ask"):
        approve(kit, ask=None)
    with pytest.raises(ConfigError, match="the approval is of job 0123456789ab"):
        approve(kit, ask=None, given="0123456789ab")
    with pytest.raises(ConfigError, match="the approval is of job"):
        approve(kit, ask=None, given=kit.job.hex()[:6])  # too short to mean this job
    with pytest.raises(ConfigError, match="was not approved; nothing was sent"):
        approve(kit, ask=lambda text: False)
    shown = []
    approve(kit, ask=lambda text: bool(shown.append(text) or True))
    assert kit.job.hex() in shown[0]
    assert all(c in shown[0] for c in CLUBS)
    with pytest.raises(EngineError, match="no frame from central, south"):
        take_part(kit, panels["north"], NOBODY)


def test_an_approval_is_of_the_job_and_the_first_frame_binds_the_data(folder, panels):
    """Until it is shown nothing has left: data may be put right, and `join` says what they bring; then they stand."""
    kit = open_kit(folder / "kits" / "north")
    assert kit.approval() is not None
    with pytest.raises(EngineError, match="no frame from central, south"):
        take_part(kit, panels["south"], NOBODY)  # other data than those of the page
    with pytest.raises(ConfigError, match="or of other data"):
        take_part(kit, panels["north"], NOBODY)
    with pytest.raises(EngineError, match="no frame from central, south"):
        take_part(kit, panels["south"], NOBODY)


def test_a_key_that_somebody_changed_is_noticed(tmp_path):
    out = make_study(small_study(), tmp_path / "study", engine_files)
    files = [enrol(open_kit(out / "kits" / c)) for c in CLUBS]
    theirs = read_json(files[0])
    mine = read_json(files[1])
    write_json(files[1], mine | {"key": theirs["key"]})
    with pytest.raises(ConfigError, match="another key of 'north' than its fingerprint says"):
        collect_roster(out, files)
    write_json(tmp_path / "second.json", theirs | {"organisation": "north"})
    write_json(files[1], mine)
    with pytest.raises(ConfigError, match="another key of 'north'"):
        collect_roster(out, [*files, tmp_path / "second.json"])


def test_two_custodians_are_told_what_the_other_can_compute(tmp_path, panels):
    study = Study("pair", "Ardea alba", ("north", "south"), masks=False, model=QUICK)
    out = make_study(study, tmp_path / "study", engine_files)
    collect_roster(out, [enrol(open_kit(out / "kits" / c)) for c in ("north", "south")])
    text = page(open_kit(out / "kits" / "north"))
    assert "NOT masked" in text
    assert "They can compute from them: your birds and visits of every month" in text
    assert "has the other's" in text


@pytest.mark.parametrize(
    "more", [{}, {"masks": False}, {"species": "", "model": {}, "community": {"species": "abc"}}]
)
def test_a_custodian_reads_all_that_goes_in_clear(more, tmp_path):
    """Names of categories, and how large covariates are, were on no page; without masks nothing was."""
    if "community" in more:
        more = more | {"community": {"species": ["a a", "b b", "c c"]}}
    out = make_study(small_study(**more), tmp_path / "study", engine_files)
    collect_roster(out, [enrol(open_kit(out / "kits" / c)) for c in CLUBS])
    text = " ".join(page(open_kit(out / "kits" / "north")).split())
    words = {
        "version": "the version of fedmiss", "season": "season", "months": "first and last month",
        "regions": "names of regions", "frame": "sites that nobody visited",
        "site_covariates": "names of the sites' covariates and of their categories",
        "magnitudes": "of each within a factor of 2 the largest value",
    }  # fmt: skip
    if "community" in more:
        words = {name: words[name] for name in ("version", "site_covariates", "magnitudes")}
    else:
        agreed = {"species", "terms", "covariates", "calendar", "minimum", "contributors"}
        clear = {f.name for f in fields(Description) if f.metadata["clear"]}
        assert clear == agreed | set(words)
    assert not [name for name, said in words.items() if said not in text]


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
        c: joint_report(r, tmp_path / f"joint-{c}", date="2026-05-01", unit="nests")
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
    sites = set(read_json_column(tmp_path / "own" / "panel" / "sites.parquet", "site_id"))
    for club in ("central", "south"):
        others = set(read_json_column(panels[club] / "sites.parquet", "site_id"))
        assert not sites & others
        assert not [s for s in others if len(s) > 5 and s in plain]  # some colonies are called "8"
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
    assert (
        "months: gradient and curvature of every month's coefficients [(n, L, f (f + 3) / 2); masked]" in text
    )
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
    monkeypatch.setattr("fedmiss.network.operate.take_part", lambda *given, **more: asked.append(given))
    shared, how = tmp_path / "shared", {"say": print, "look": False, "preview": False}
    for made in (kit.result, shared):
        made.mkdir()
    kit.journal.touch()
    _join_folder(kit, panels["north"], shared, **how)
    assert [given[:2] for given in asked] == [(kit, panels["north"])]
    kit.journal.unlink()  # then nothing can be shown again, and the result stands
    _join_folder(kit, panels["north"], shared, **how)
    assert len(asked) == 1


@pytest.mark.slow
def test_the_least_number_of_own_sites_stands_once_a_job_is_begun(folder, panels):
    """Changed in between, every later join failed, and blamed the processor."""
    register(app)
    kit = open_kit(folder / "kits" / "north")
    kit.keep_own_sites(3)
    board = Board(CLUBS, patience=30.0)
    done = all_take_part(folder, panels, board=board)
    words = ["federation", "join", str(kit.folder), str(panels["north"]), "--folder", str(folder.parent)]
    refused = CliRunner().invoke(app, [*words, "--own-sites", "5"])
    assert refused.exit_code == 2
    assert "was begun here with own-sites 3" in " ".join(refused.output.split())
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


@pytest.mark.slow
def test_a_copied_kit_without_its_journal_cannot_take_over(folder, panels, tmp_path):
    """And neither can a study be run under another's name: the roster's key of the name is not the thief's."""
    import shutil

    board = Board(CLUBS, patience=30.0)
    assert all(hasattr(x, "is_dir") for x in all_take_part(folder, panels, board=board).values())
    copy = tmp_path / "stolen"
    shutil.copytree(folder / "kits" / "north", copy)
    for journal in (copy / "private").glob("*.journal"):
        journal.unlink()
    with pytest.raises(ConfigError, match="its journal is gone"):
        take_part(open_kit(copy), panels["north"], NOBODY)
    write_json(copy / "kit.json", read_json(copy / "kit.json") | {"organisation": "south"})
    with pytest.raises(ConfigError, match="the roster's key of 'south' is not this group's"):
        party_of(open_kit(copy))


def test_a_kit_answers_from_data_secret_and_least_number(folder, panels):
    """What the first frame commits to, so that masks are others where an answer may be another."""
    kit = open_kit(folder / "kits" / "north")
    seen = {answered_from(kit, panels["north"]), answered_from(kit, panels["south"])}
    kit.keep_own_sites(4)
    seen.add(answered_from(kit, panels["north"]))
    write_secret(kit.private / SECRET)
    assert len({*seen, answered_from(kit, panels["north"])}) == 4


def test_a_kit_of_another_organisation_than_the_study_has_is_said(folder):
    """Of one that left: it was told that somebody else may be answering in its name."""
    new_revision(folder, ["north"], ["east"])
    assert sorted(read_json(folder / "roster.json")) == [c for c in sorted(CLUBS) if c != "north"]
    kit = folder / "kits" / "north"
    shutil.copy(folder / "study.json", kit)
    with pytest.raises(
        ConfigError, match=r"the kit .* is of 'north', which is not in study egrets, revision 2: .*east"
    ):
        open_kit(kit)


@pytest.mark.slow
def test_two_organisations_without_masks(tmp_path, panels):
    tries = {"model": "quasi", "max_rank": 1, "bootstrap": 4}
    study = Study("pair", "Ardea alba", ("north", "south"), masks=False, model=tries, share=1.0)
    out = make_study(study, tmp_path / "study", engine_files)
    kits = {c: open_kit(out / "kits" / c) for c in study.organisations}
    collect_roster(out, [enrol(k) for k in kits.values()])
    for kit in kits.values():
        approve(kit, ask=None, given=kit.job.hex())
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


def read_json_column(path, name):
    import polars as pl

    return pl.read_parquet(path)[name].to_list()


@pytest.mark.slow
def test_a_message_waits_until_it_is_released(folder, panels):
    kit = open_kit(folder / "kits" / "north")
    said, released, stop = [], [], threading.Event()
    hold = holder(kit, said.append, pause=0.01)

    def look(exchange, questions, answers):
        if len(released) < 5:
            hold(exchange, questions, answers)

    def custodian():
        while not stop.is_set():
            if len(said) > len(released):  # who is quicker than the sentence is not told it
                try:
                    released.append(release(kit))
                except InputError:
                    pass
            time.sleep(0.01)

    thread = threading.Thread(target=custodian)
    thread.start()
    results = all_take_part(folder, panels, looks={"north": look})
    stop.set()
    thread.join()
    assert results["north"] == kit.result
    assert "exchange 1 of job" in released[0]
    assert said[0] == (
        f"north: exchange 1 is on hold. Read it in {kit.private / HELD}; "
        f"`fedmiss federation outbox {kit.folder} PANEL --release` sends it."
    )
    assert any("visits: number of visits" in text for text in released)
    with pytest.raises(InputError, match="holds no message now"):
        release(kit)


def test_a_message_that_was_held_for_another_job_releases_none(folder):
    """Whoever stopped at a held message left its text, and a release of it let a message of the next job go unseen."""
    kit = open_kit(folder / "kits" / "north")
    with pytest.raises(KeyboardInterrupt):
        held_and_stopped(kit, exchange=5)
    assert "exchange 5" in (kit.private / HELD).read_text(encoding="utf-8")
    register(app)
    stands = CliRunner().invoke(app, ["federation", "status", str(kit.folder)])
    assert "north: exchange 5 is on hold" in " ".join(
        stands.output.split()
    )  # it waits for its custodian, said nowhere
    new_revision(folder)
    again = open_kit(kit.folder)
    with pytest.raises(InputError, match="holds no message now"):
        release(again)
    with pytest.raises(KeyboardInterrupt):
        held_and_stopped(again, exchange=5)
    assert "exchange 5" in release(again)
    held_and_stopped(again, exchange=5)  # it goes


def test_a_message_that_went_is_on_hold_no_more(folder, panels):
    """Stopped while it held one, and joined again without `--look`: the message went, its words stayed."""
    kit = open_kit(folder / "kits" / "north")
    with pytest.raises(KeyboardInterrupt):
        held_and_stopped(kit, exchange=5)
    all_take_part(folder, panels, preview=True)
    assert not (kit.private / HELD).exists()
    with pytest.raises(InputError, match="holds no message now"):
        release(kit)


def held_and_stopped(kit, exchange):
    """Hold a message; who waits for its release says Ctrl-C."""

    def stop(seconds):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmiss.network.outbox.time.sleep", stop)
        holder(kit)(exchange, [], [])


def test_data_that_do_not_fit_the_study_are_refused(tmp_path, folder, panels):
    kit = open_kit(folder / "kits" / "north")
    assert "visits at" in dry_run(kit, panels["north"])[0]
    write_json(kit.folder / "study.json", read_json(kit.folder / "study.json") | {"species": "Ardea cinerea"})
    with pytest.raises(InputError, match="is about 'Ardea alba', the study about 'Ardea cinerea'"):
        dry_run(open_kit(kit.folder), panels["north"])
    with pytest.raises(InputError, match="is no kit"):
        open_kit(tmp_path)


def test_the_page_of_a_dry_run_has_the_number_of_own_sites_that_is_asked_for(folder, panels):
    register(app)
    kit = str(folder / "kits" / "south")
    words = ["federation", "join", kit, str(panels["south"]), "--dry-run", "--own-sites", "7"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "and have yours, over 7 sites or more" in " ".join(done.output.split())


@pytest.mark.slow
def test_the_commands_work_without_a_terminal(folder, panels, tmp_path_factory):
    register(app)
    runner, tmp_path = CliRunner(), tmp_path_factory.mktemp("shared")
    kit = str(folder / "kits" / "south")
    words = ["federation", "join", kit, str(panels["south"]), "--dry-run"]
    done = runner.invoke(app, [*words, "--own-sites", "900"])
    assert done.exit_code == 0, done.output
    assert "have fewer than 900 of your own sites" in done.output
    assert open_kit(Path(kit)).own_sites == 0, "a dry run keeps nothing"
    done = runner.invoke(app, [*words, "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "can carry the study" in " ".join(done.output.split())
    assert "Nothing was sent" in done.output
    assert not list(tmp_path.iterdir()), "nothing is written there"
    assert runner.invoke(app, [*words, "--folder", str(tmp_path / "none")]).exit_code == 1
    assert runner.invoke(app, ["federation", "status", kit]).output.startswith("state      not begun")
    for words, said, code in (  # 2 for what was asked, 1 for what lies there
        (["join", kit, str(panels["south"])], "Name yours: fedmiss federation join", 2),
        (["join", kit, str(panels["south"]), "--folder", str(folder)], "lies in the shared folder", 1),
        (["run", str(folder)], "there is no relay to run", 2),
        (["status", str(folder)], "has no relay: how the study stands is known at each organisation", 2),
        (["status", str(tmp_path)], "is neither a kit nor a study's folder", 1),
    ):
        refused = runner.invoke(app, ["federation", *words])
        assert refused.exit_code == code, refused.output
        assert said in " ".join(refused.output.split())
    refused = runner.invoke(app, ["federation", "ledger", kit])
    assert refused.exit_code == 1
    assert "has sent nothing" in refused.output


def test_a_lost_journal_ends_a_job_since_its_masks_were_used(folder, panels):
    kit = open_kit(folder / "kits" / "north")
    all_take_part(folder, panels, preview=True)
    kit.journal.unlink()
    with pytest.raises(ConfigError, match="its journal is gone"):
        take_part(kit, panels["north"], NOBODY)
    assert not kit.journal.exists()


def test_what_was_sent_and_waits_for_the_others_is_in_outbox_and_ledger(folder, panels):
    kit = open_kit(folder / "kits" / "north")
    all_take_part(folder, panels, preview=True)
    _, lines = ledger_of(kit)
    board = Board(CLUBS, patience=0.5)  # the others are away now
    with pytest.raises(EngineError, match="no frame from"):
        take_part(kit, panels["north"], board.seat("north"))
    _, more = ledger_of(kit)
    assert more[:-1] == lines
    assert more[-1][0] == len(lines)
    assert more[-1][2] > 0 == more[-1][3]
    shown = outbox(kit, panels["north"], last=2)
    heads = [line.split(",")[0] for line in shown if line.startswith("---")]
    assert heads == [f"--- exchange {n}" for n in (len(lines) - 1, len(lines))]
    assert shown[-1] == "the others' frames have not all come; when they have, its words stand here"


def test_least_numbers_of_contributors_and_exchanges_are_said(tmp_path):
    for more, words in (
        ({"contributors": 2}, "contributors is 2 (must lie between 3 and 3"),
        ({"contributors": 4}, "contributors is 4 (must lie between 3 and 3"),
        ({"exchanges": 10}, "exchanges is 10 (must lie between 50 and 100,000"),
    ):
        with pytest.raises(ConfigError) as error:
            small_study(**more)
        assert words in str(error.value)
    two = small_study(organisations=("central", "north"), masks=False)
    assert two.contributors == 2
    assert small_study().contributors == 3


def test_why_a_job_stopped_is_on_the_own_screen_and_in_a_file(folder, panels):
    """Another organisation reads nothing; the custodian reads what differed."""
    from fedmiss.network.outbox import REFUSALS, note_refusal

    kit = open_kit(folder / "kits" / "north")
    note_refusal(kit, ConfigError("the season is 5, the approved study has all."))
    said = (kit.private / REFUSALS).read_text()
    assert "the job stopped: the season is 5" in said
    assert (kit.private / REFUSALS).stat().st_mode & 0o077 == 0


def test_a_count_that_masks_cannot_carry_is_named_before_anything_is_sent(folder, panels):
    from fedmiss.federation.rules import LARGEST_COUNT

    kit = open_kit(folder / "kits" / "north")
    for count, fine in ((LARGEST_COUNT, True), (LARGEST_COUNT + 1, False), (99_999_999_999, False)):
        visits = next(iter(open_panel(panels["north"]).visits(effort=False)[0].values()))
        at = int(np.argmax(visits.count))
        visits.count[at] = count
        if fine:
            check_counts("north", visits)
            continue
        with pytest.raises(InputError) as error:
            check_counts("north", visits)
        assert f"{count:,}" in str(error.value)
        assert f"limit {LARGEST_COUNT:,}" in str(error.value)
    assert not kit.journal.exists()


@pytest.mark.slow
def test_names_with_their_accents_apart_are_those_of_the_others(folder, panels):
    """A Mac writes "a" and two dots: a region would have one organisation each way, and be left out."""
    kit, panel = open_kit(folder / "kits" / "north"), open_panel(panels["north"])
    visits = next(iter(panel.visits()[0].values()))
    apart, one = "Ma\u0308laren", "M\u00e4laren"
    region = np.where(np.arange(visits.region.size) % 2, apart, one).astype(object)
    own = replace(visits, region=region, covariates={f"{apart}: ja": np.ones(region.size)})
    got = held(kit, SimpleNamespace(visits=lambda effort: ({"north": own}, {})))
    assert (set(got.region), set(got.covariates)) == ({one}, {f"{one}: ja"})


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


@pytest.mark.slow
def test_a_replay_shows_what_was_asked_and_answered(folder, panels):
    results = all_take_part(folder, panels)
    kit = open_kit(folder / "kits" / "south")
    again = replay(kit, panels["south"])
    np.testing.assert_array_equal(
        again.joint.totals, np.array(read_json(results["south"] / "totals.json")["totals"])
    )


def test_a_relay_says_for_whom_the_others_wait(folder, monkeypatch):
    """North looks at its message: it is there and answers, so nobody was missing, and nobody knew why nothing went on."""
    monkeypatch.setattr("fedmiss.federation.gather.PAUSE", 0.01)
    monkeypatch.setattr("fedmiss.network.engine.LONG", 0.05)
    seats, seen, looked = {c: Seat(c) for c in CLUBS}, [], threading.Event()

    def job(name):
        for exchange in range(3):
            if (name, exchange) == ("north", 1):
                assert looked.wait(20)
            all_of(seats[name], CLUBS, name, exchange, b"frame")
        seats[name].end(True)

    def ask(packets):
        if (stands := status(folder / "hub"))["missing"]:
            seen.append((stands["state"], stands["missing"]))
            looked.set()
        return {n: seats[n].answer(packet) for n, packet in packets.items()}

    got = together({c: (lambda c=c: job(c)) for c in CLUBS} | {"relay": lambda: relay(folder / "hub", ask)})
    assert set(got.values()) == {None}
    assert {(state, *missing) for state, missing in seen} == {("waiting", "north")}
    assert (status(folder / "hub")["state"], status(folder / "hub")["missing"]) == ("done", [])


def test_what_is_on_hold_is_said_over_a_relay_too(folder, panels, monkeypatch):
    """The engine's own process holds the message: its words went into the log, and `join --look` waited without one."""
    kit, said, there = open_kit(folder / "kits" / "north"), [], [True]
    engine = SimpleNamespace(start_member=lambda *given: SimpleNamespace(poll=lambda: None))
    for name in ("check_certificate", "check_connection", "start", "end_leftovers", "end"):
        monkeypatch.setattr(operate, name, lambda *given, **more: None)
    monkeypatch.setattr(operate, "engine_of", lambda study: engine)
    monkeypatch.setattr(operate, "_listens", lambda *given: there[0])

    def look():
        for exchange in (1, 2):
            holder(kit, pause=0.02)(exchange, [], [])
        there[0] = False
        kit.result.mkdir()

    def heard(line):
        said.append(line)
        if "on hold" in line:
            release(kit)

    how = {"say": heard, "look": True, "preview": False}
    job = threading.Thread(target=look, daemon=True)
    job.start()
    together({"join": lambda: operate._join_engine(kit, panels["north"], kit.result, **how)})
    where = (
        f"Read it in {kit.private / HELD}; `fedmiss federation outbox {kit.folder} PANEL --release` sends it."
    )
    held = [line for line in said if "on hold" in line]
    assert held == [f"north: exchange {exchange} is on hold. {where}" for exchange in (1, 2)]


def test_a_message_that_is_released_meanwhile_is_not_said(folder, monkeypatch):
    """Its file went away between a look whether it is there and its reading; an empty line was said."""
    kit, said, exists = open_kit(folder / "kits" / "north"), [], Path.exists
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: path.name == HELD or exists(path))
        assert on_hold(kit) == ""

    def released(kit):
        release(kit)
        return ""

    monkeypatch.setattr("fedmiss.network.outbox.on_hold", released)
    holder(kit, said.append, pause=0.01)(1, [], [])
    assert said == []


@pytest.mark.parametrize("end", ["join", "run"])
def test_a_second_process_on_one_engine_is_refused(tmp_path, panels, monkeypatch, end):
    """Each ended the other's engine as a leftover; a second `join` let a message go that the first one held."""
    study = make_study(small_study(engine="nvflare"), tmp_path / "study", engine_files)
    (study / "hub" / "engine").mkdir()
    kits = [open_kit(study / "kits" / club) for club in CLUBS]
    collect_roster(study, [enrol(kit) for kit in kits])
    ended = []
    monkeypatch.setattr(operate, "check_certificate", lambda *given, **more: None)
    monkeypatch.setattr(operate, "end_leftovers", ended.append)

    def second():
        if end == "run":
            operate.run(study)
        else:
            operate.join(kits[0], panels["central"])

    there = (study / "hub" if end == "run" else kits[0].folder) / "engine"
    with locked(there):
        got = together({"second": second})["second"]
    assert isinstance(got, EngineError)
    assert re.search(rf"`fedmiss federation {end}` runs here already \(process \d+ on ", str(got))
    assert not ended
    assert not (kits[0].private / DATA).exists()


def test_a_relays_engine_that_dies_while_it_waits_for_organisations_is_started_again(tmp_path, monkeypatch):
    """`run` ended, with words about paths and the disk."""
    study = make_study(small_study(engine="nvflare"), tmp_path / "study", engine_files)
    collect_roster(study, [enrol(open_kit(study / "kits" / club)) for club in CLUBS])
    (study / "hub" / "engine").mkdir()
    codes, said = [], []

    def started(hub, log):
        codes.append(None)
        n = len(codes) - 1
        return SimpleNamespace(poll=lambda: codes[n], wait=lambda seconds: codes[n])

    def connected():
        if len(codes) == 1:
            codes[0] = -9
            raise OSError("cannot connect to server")
        return list(CLUBS)

    def submit():
        job = job_hash(read_study(study), read_roster(study / "hub", read_study(study))).hex()
        Status(study / "hub" / STATUS, job, CLUBS).write(state="done")
        return "job"

    control = SimpleNamespace(connected=connected, submit=submit, close=lambda: None)
    for name in ("check_certificate", "check_port", "end_leftovers", "end"):
        monkeypatch.setattr(operate, name, lambda *given, **more: None)
    monkeypatch.setattr(operate, "engine_of", lambda study: SimpleNamespace(start_relay=started))
    monkeypatch.setattr(operate, "_session", lambda *given: control)
    operate.run(study, say=said.append)
    assert len(codes) == 2
    assert [line.partition(".")[0] for line in said] == [
        "the engine ended and is started again",
        "all organisations are connected; job job is under way",
    ]


def test_a_job_in_which_somebody_has_no_part_is_ended(folder, monkeypatch):
    """A site that was started again while a job began was waited for, without a word, for ten minutes."""
    monkeypatch.setattr(operate, "CHECK", 0.0)
    idle, said, ended = iter([["north"], [], *[["north"]] * operate.IDLE]), [], []
    control = SimpleNamespace(over=lambda job: False, idle=lambda job: next(idle), abort=ended.append)
    process = SimpleNamespace(poll=lambda: None)
    operate._watch(control, "job", process, folder / "hub", said.append)
    assert (ended, list(idle)) == (["job"], [])
    assert said == ["north has no part in job job: started again while it began."]


def test_an_engine_names_who_answers_and_who_has_no_part(folder):
    """It lists one that has left for minutes; one that sleeps lets the question run out."""
    rows = {
        "central": {"status": "started", "job_id": "7"},
        "north": {"status": "no_jobs"},
        "west": {"status": "no_reply"},
    }

    def told(names):
        if names == ["south"]:
            raise OSError("cannot connect to server")
        return [rows[n] for n in names]

    admin = Admin.__new__(Admin)
    admin.study = small_study(organisations=(*CLUBS, "west"))
    listed = SimpleNamespace(client_info=[SimpleNamespace(name=c) for c in (*CLUBS, "west")])
    admin.session = SimpleNamespace(get_system_info=lambda: listed, get_client_job_status=told)
    assert admin.connected() == ["central", "north"]
    assert admin.idle("7") == ["north", "south", "west"]
    assert admin.idle("8") == []  # it has begun nowhere


@pytest.mark.slow
def test_the_status_names_who_has_not_joined(folder):
    hub, study = folder / "hub", small_study()
    assert status(hub)["state"] == "not begun"

    class Connections:
        there = iter([["north"], ["north", "south"], list(CLUBS)])

        def connected(self):
            stood.append(status(hub))
            return next(self.there)

    stood, said = [], []
    _all_there(Connections(), hub, study, said.append)
    assert [s["missing"] for s in stood] == [[], ["central", "south"], ["central"]]
    assert {s["state"] for s in stood[1:]} == {"waiting"}
    assert status(hub)["missing"] == []
    assert len(said) == 2


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
    register(app)
    command = CliRunner().invoke(
        app, ["federation", "revise", str(folder), "--with", "west", "--from", str(kits["north"].folder)]
    )
    assert command.exit_code == 0, command.output
    assert "revision 2, of central, north, south, west" in command.output
    assert f"{folder / 'kits' / 'west'} to west" in command.output
    west = open_kit(folder / "kits" / "west")
    with pytest.raises(ConfigError, match="the roster of this revision"):
        _ = west.job
    mine = kits["north"].folder
    assert (
        new_revision(folder, ["west"], source=mine).revision == 3
    )  # one that never enrolled can be left out again
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
    sites = fourth_panel(panels["north"], tmp_path / "west")
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


def fourth_panel(panel, out):
    """Another club with the same counts at places of its own."""
    shutil.copytree(panel, out)
    return out


def stale_kit(folder, tmp_path):
    """A kit that has not got the present revision."""
    there = tmp_path / "stale"
    shutil.copytree(folder / "kits" / "north", there)
    raw = read_json(there / "study.json")
    write_json(there / "study.json", raw | {"revision": 1})  # the same roster: another job for this alone
    return there


def test_a_revision_that_was_killed_is_made_again(folder, tmp_path, monkeypatch):
    """Wherever it was killed, the same command gives what it would have given."""
    mine = open_kit(folder / "kits" / "north")
    write_json(mine.onward, {"job": "first", "revision": 1, "models": []})
    monkeypatch.setattr("fedmiss.network.study.read_before", lambda *_: ())
    genuine, left = files.atomic_file, [0]

    def killed(path, **more):
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return genuine(path, **more)

    monkeypatch.setattr(files, "atomic_file", killed)
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


def test_certificates_admit_nobody_later(tmp_path):
    study = small_study(engine="nvflare", patience=60.0)
    out = make_study(study, tmp_path / "study", engine_files)
    collect_roster(out, [enrol(open_kit(out / "kits" / c)) for c in CLUBS])
    with pytest.raises(ConfigError, match="certificates of engine nvflare are made once"):
        new_revision(out, added=["west"])


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


def test_a_study_of_two_admits_a_third(tmp_path):
    study = small_study(organisations=("north", "south"), masks=False)
    assert study.contributors == 2
    out = make_study(study, tmp_path / "study", engine_files)
    collect_roster(out, [enrol(open_kit(out / "kits" / c)) for c in ("north", "south")])
    new = new_revision(out, added=["west"])
    assert (new.contributors, new.organisations) == (3, ("north", "south", "west"))


def test_a_newer_fedmiss_finds_what_a_job_has_come_to(folder, monkeypatch):
    kit = open_kit(folder / "kits" / "north")
    settings = asdict(CountSettings(rank=1))
    kept = {"job": kit.job.hex(), "revision": 1, "models": [{"settings": settings}]}
    write_json(kit.onward, kept)
    monkeypatch.setattr("fedmiss.network.study.__version__", "9.9")
    assert not open_kit(kit.folder).onward.exists()  # the job's number covers the version
    new = new_revision(folder, source=kit.folder)
    assert new.order().before[0].settings.rank == 1


def test_a_status_is_that_of_the_present_job(folder):
    """Done was said of a revision that nobody had joined."""
    register(app)
    kit = open_kit(folder / "kits" / "north")
    Status(kit.private / STATUS, kit.job.hex(), CLUBS).write(state="done")
    words = ["federation", "status", str(kit.folder)]
    assert CliRunner().invoke(app, words).output.startswith("state      done")
    new_revision(folder)
    assert (
        CliRunner()
        .invoke(app, words)
        .output.startswith("The kit's present job is not begun. The last one:\nstate")
    )
    write_json(
        kit.folder / "study.json", read_json(kit.folder / "study.json") | {"organisations": ["a", "b", "c"]}
    )
    assert CliRunner().invoke(app, words).output.startswith("state      done")  # it has left


def test_a_revision_goes_on_from_the_job_that_was_approved_last(folder):
    """One with a key that was lost is another job of the same revision: which one was taken was chance."""
    kit = open_kit(folder / "kits" / "north")
    settings = asdict(CountSettings(rank=1))
    kept = {"job": kit.job.hex(), "revision": 1, "models": [{"settings": settings}]}
    write_json(kit.onward, kept)
    for digit in "0f":
        other = kept | {"job": digit * 64, "models": [{"settings": settings | {"rank": 2}}]}
        write_json(kit.private / f"onward-{digit * 16}.json", other)
    new = new_revision(folder, source=kit.folder)
    assert new.before["job"] == kept["job"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [(bytes(20), "'north' is none .20 bytes"), (b"", "'north' is none .0 bytes"), (None, "is none")],
)
def test_a_roster_with_what_is_no_key_is_refused_by_the_organisations_name(tmp_path, raw, words):
    study, keys = small_study(), {c: base64.b64encode(bytes([i]) * 64).decode() for i, c in enumerate(CLUBS)}
    keys["north"] = "$$$" if raw is None else base64.b64encode(raw).decode()
    write_json(tmp_path / "roster.json", keys)
    with pytest.raises(ConfigError, match=words):
        read_roster(tmp_path, study)


def test_a_key_that_makes_any_secret_zero_is_refused_by_its_name(folder):
    kit = open_kit(folder / "kits" / "north")
    zero = base64.b64encode(bytes(32) + base64.b64decode(kit.roster["south"])[32:]).decode()
    party = Masks("north", identity(kit.key_file), kit.roster | {"south": zero}, kit.job)
    with pytest.raises(ConfigError, match="key of 'south' is one that no secret"):
        party.stream(1, 5)


def test_the_page_shows_every_setting_of_the_model(folder):
    """A proposer could have named an effort term, or observers, without a line of the page that says so."""
    kit = open_kit(folder / "kits" / "north")
    kit.study = replace(kit.study, model=QUICK | {"effort": "distance", "observers": True, "seed": 4})
    assert "effort = 'distance', observers = True, seed = 4" in page(kit)


def test_an_impossible_least_number_is_refused():
    with pytest.raises(ConfigError, match="between 2 and 1,000,000"):
        small_study(minimum=1 << 70)
    with pytest.raises(ConfigError, match="seed is 1180591620717411303424"):
        small_study(model=QUICK | {"seed": 1 << 70})


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (QUICK, "negbin, rank 0, 4 bootstrap replicates, no folds: one model"),
        (QUICK | {"rank": "auto", "folds": 7}, "negbin, rank auto, 4 bootstrap replicates, 7 folds"),
    ],
)
def test_folds_are_named_where_there_is_something_to_choose(model, said, tmp_path):
    """The page said "5 folds" of a study of one model, which holds out nothing."""
    out = make_study(small_study(model=model), tmp_path / "study", engine_files)
    collect_roster(out, [enrol(open_kit(out / "kits" / c)) for c in CLUBS])
    assert said in page(open_kit(out / "kits" / "north"))
