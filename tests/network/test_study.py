"""Studies, kits, approvals, and what custodians read: all that needs no engine."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmiss.cli.app import app
from fedmiss.cli.commands import register
from fedmiss.errors import ConfigError, InputError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import Envelope, encode
from fedmiss.federation.link import InProcess
from fedmiss.files import read_json, read_manifest, write_json
from fedmiss.network.demo import CLUBS, in_process
from fedmiss.network.hub import preview_study, run_study, status
from fedmiss.network.kits import approve, collect_roster, enrol, make_study, new_revision, open_kit, page
from fedmiss.network.operate import _all_there
from fedmiss.network.outbox import HELD, holder, ledger_of, outbox, release
from fedmiss.network.report import joint_report, own_report
from fedmiss.network.site import check_counts, dry_run, program_of
from fedmiss.network.study import Study, job_hash, read_study_toml
from fedmiss.pipeline.panels import open_panel
from fedmiss.report.html import assets

from .conftest import QUICK, Direct, engine_files, small_study

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
        ("bootstrap = 20", "folds = 1", "must be at least 2"),
        ("season = [2, 3, 4]", "season = [13]", "1 to 12"),
        ("minimum = 5", "port = 80", "port is 80"),
        ("minimum = 5", 'engine = "post"', "engine 'post' is unknown"),
        ('species = "Ardea alba"', "", "lacks 'species'"),
        ('name = "egrets"', "name = ", "not valid TOML"),
    ):
        path.write_text(TOML.replace(old, new))
        with pytest.raises((ConfigError, InputError), match=re.escape(words)):
            read_study_toml(path)


def test_the_hash_covers_whatever_matters():
    study, roster = small_study(), {c: f"key-{c}" for c in CLUBS}
    base = job_hash(study, roster)
    assert base == job_hash(small_study(), dict(reversed(roster.items())))
    others = [
        job_hash(replace(study, **{name: value}), roster)
        for name, value in (
            ("revision", 2), ("minimum", 6), ("share", 0.9), ("masks", False), ("season", (2,)),
            ("species", "Ardea cinerea"),
            ("duplicates", True), ("model", QUICK | {"seed": 1}), ("months", ("2004-01", "2010-12")),
        )
    ]  # fmt: skip
    others.append(job_hash(study, roster | {"north": "another key"}))
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
        program_of(kit, panels["north"])
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
    program_of(kit, panels["north"]).close()


def test_a_key_that_somebody_changed_is_noticed(tmp_path):
    out = make_study(small_study(), tmp_path / "study", engine_files)
    files = [enrol(open_kit(out / "kits" / c)) for c in CLUBS]
    theirs = read_json(files[0])
    mine = read_json(files[1])
    write_json(files[1], mine | {"key": theirs["key"]})
    with pytest.raises(ConfigError, match="another key of 'north' than its fingerprint says"):
        collect_roster(out, files)


def test_two_custodians_are_told_what_the_hub_can_compute(tmp_path, panels):
    study = Study("pair", "Ardea alba", ("north", "south"), masks=False, model=QUICK)
    out = make_study(study, tmp_path / "study", engine_files)
    collect_roster(out, [enrol(open_kit(out / "kits" / c)) for c in ("north", "south")])
    text = page(open_kit(out / "kits" / "north"))
    assert "NOT masked" in text
    assert "can compute from them: your birds and visits of every month" in text
    assert "has the other's" in text


def test_another_roster_is_another_job_and_what_it_tells_is_said(folder, panels):
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
        program_of(kit, panels["north"])
    assert "WARNING: you took part in egrets revision 1" in page(kit)


def test_a_study_from_kits_to_both_reports(folder, panels, tmp_path):
    wire = Direct(folder, panels)
    result = run_study(folder / "hub", wire)
    assert status(folder / "hub")["state"] == "done"
    here = in_process(folder, panels)
    totals = np.array(read_json(result / "totals.json")["totals"])
    np.testing.assert_allclose(totals, here.totals, rtol=1e-8)
    assert run_study(folder / "hub", wire) == result  # done once
    joint = joint_report(result, tmp_path / "joint").read_text()
    assert "Ardea alba" in joint
    assert "<svg" in joint
    wire.close()
    plain = joint.replace(str(assets()["css"]), "")  # which has words like "hidden", the name of a colony
    kit = open_kit(folder / "kits" / "north")
    own = own_report(kit, panels["north"], tmp_path / "own")
    assert own.exists()
    sites = set(read_json_column(tmp_path / "own" / "panel" / "sites.parquet", "site_id"))
    for club in ("central", "south"):
        others = set(read_json_column(panels[club] / "sites.parquet", "site_id"))
        assert not sites & others
        assert not [s for s in others if len(s) > 5 and s in plain]  # some colonies are called "8"
    # what went, in bytes and in words
    ledger, lines = ledger_of(kit)
    counted = read_manifest(result, "joint")["results"]["ledger"]["groups"]["north"]
    assert (ledger.total.bytes_up, ledger.total.bytes_down) == (counted["bytes_up"], counted["bytes_down"])
    text = "\n".join(outbox(kit, panels["north"]))
    assert text.count("--- exchange") == len(lines) == counted["exchanges"]
    assert (
        "months: gradient and curvature of every month's coefficients [(n, L, f (f + 3) / 2); masked]" in text
    )
    assert "hashes: SipHash-2-4" in text
    assert text.count("\nasked ") == text.count("\nanswered ") > len(lines)
    assert "asked Open: opens a batch of fits" in text
    only = outbox(kit, panels["north"], last=2)
    assert only[0].startswith(f"--- exchange {len(lines) - 2},")
    assert sum(line.startswith("---") for line in only) == 2


def test_a_copied_kit_without_its_journal_cannot_take_over(folder, panels, tmp_path):
    """And neither can a study be run under another's name: the roster's key of the name is not the thief's."""
    import shutil

    frames = []

    class Tap(Direct):
        def ask(self, asked):
            frames.append(asked["north"])
            return super().ask(asked)

    wire = Tap(folder, panels)
    run_study(folder / "hub", wire)
    wire.close()
    copy = tmp_path / "stolen"
    shutil.copytree(folder / "kits" / "north", copy)
    for journal in (copy / "private").glob("*.journal"):
        journal.unlink()
    with pytest.raises(ConfigError, match="its journal is gone"):
        program_of(open_kit(copy), panels["north"])
    (copy / "private" / "begun.json").unlink()
    thief = program_of(open_kit(copy), panels["north"])
    thief.answer(frames[30])
    assert "in order" in str(thief.program.refusal)
    assert thief.exchange == -1
    thief.close()
    write_json(copy / "kit.json", read_json(copy / "kit.json") | {"organisation": "south"})
    named = open_kit(copy)
    with pytest.raises(ConfigError, match="the roster's key of 'south' is not this group's"):
        program_of(named, panels["north"])


def test_two_organisations_without_masks(tmp_path, panels):
    study = Study("pair", "Ardea alba", ("north", "south"), masks=False, model=QUICK, share=1.0)
    out = make_study(study, tmp_path / "study", engine_files)
    kits = {c: open_kit(out / "kits" / c) for c in study.organisations}
    collect_roster(out, [enrol(k) for k in kits.values()])
    for kit in kits.values():
        approve(kit, ask=None, given=kit.job.hex())
    programs = {c: program_of(k, panels[c]) for c, k in kits.items()}
    result = run_study(out / "hub", InProcess(programs))
    pair = {c: panels[c] for c in study.organisations}
    here = in_process(out, pair)
    np.testing.assert_array_equal(np.array(read_json(result / "totals.json")["totals"]), here.totals)


def test_a_preview_says_what_is_lost_and_the_job_goes_on_from_it(folder, panels):
    wire = Direct(folder, panels)
    raw = read_json(preview_study(folder / "hub", wire))
    assert status(folder / "hub")["state"] == "previewed"
    asked = wire.programs["north"].exchange
    result = run_study(folder / "hub", wire)
    manifest = read_manifest(result, "joint")["results"]
    assert manifest["engine"] is None
    assert asked >= 6
    assert raw["withheld"] == manifest["withheld_visits"] > 0
    assert raw["visits"] == manifest["n_counted"]
    assert raw["released_months"] < raw["months"] == manifest["n_months"]
    assert set(raw["months_left_out"]) == {
        "fewer visits or sites, or fewer than 3 organisations", "too large a share of the visits",
    }  # fmt: skip
    left_out = [m for months in raw["months_left_out"].values() for m in months]
    assert len(set(left_out)) == len(left_out) > 0
    assert raw["months"] - raw["released_months"] >= len(left_out)  # some months have no visit at all
    wire.close()


def read_json_column(path, name):
    import polars as pl

    return pl.read_parquet(path)[name].to_list()


def test_a_message_waits_until_it_is_released(folder, panels):
    kit = open_kit(folder / "kits" / "north")
    wire = Direct(folder, panels)
    wire.programs["north"].look = holder(kit, pause=0.01)
    released = []

    def custodian():
        while len(released) < 5:
            if (kit.private / HELD).exists():
                try:
                    released.append(release(kit))
                except InputError:
                    pass
            time.sleep(0.01)
        wire.programs["north"].look = None
        while not stop.is_set():  # whatever is held at this moment
            if (kit.private / HELD).exists():
                release(kit)
            time.sleep(0.01)

    stop = threading.Event()
    thread = threading.Thread(target=custodian)
    thread.start()
    run_study(folder / "hub", wire)
    stop.set()
    thread.join()
    wire.close()
    assert "exchange 0 of job" in released[0]
    assert any("visits: number of visits" in text for text in released)
    with pytest.raises(InputError, match="holds no message now"):
        release(kit)


def test_data_that_do_not_fit_the_study_are_refused(tmp_path, folder, panels):
    kit = open_kit(folder / "kits" / "north")
    assert "visits at" in dry_run(kit, panels["north"])[0]
    write_json(kit.folder / "study.json", read_json(kit.folder / "study.json") | {"species": "Ardea cinerea"})
    with pytest.raises(InputError, match="is about 'Ardea alba', the study about 'Ardea cinerea'"):
        dry_run(open_kit(kit.folder), panels["north"])
    with pytest.raises(InputError, match="is no kit"):
        open_kit(tmp_path)


@pytest.mark.slow
def test_the_commands_work_without_a_terminal(folder, panels):
    register(app)
    runner = CliRunner()
    kit = str(folder / "kits" / "south")
    done = runner.invoke(app, ["federation", "join", kit, str(panels["south"]), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "Nothing was sent" in done.output
    assert runner.invoke(app, ["federation", "status", str(folder)]).output.startswith("state      not begun")
    refused = runner.invoke(app, ["federation", "ledger", kit])
    assert refused.exit_code == 1
    assert "has sent nothing" in refused.output


def test_a_lost_journal_ends_a_job_since_its_masks_were_used(folder, panels):
    kit = open_kit(folder / "kits" / "north")
    wire = Direct(folder, panels)
    preview_study(folder / "hub", wire)
    wire.close()
    kit.journal.unlink()
    with pytest.raises(ConfigError, match="its journal is gone"):
        program_of(kit, panels["north"])
    assert not kit.journal.exists()


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
    assert two.contributors == two.approved().contributors == 2
    assert small_study().approved().contributors == 3


def test_a_refusal_says_why_on_the_sites_own_screen_and_log(folder, panels):
    """The hub reads a code; the custodian reads what differed, with both values."""
    from fedmiss.network.outbox import REFUSALS, note_refusal

    kit = open_kit(folder / "kits" / "north")
    program = program_of(kit, panels["north"], refused=lambda error: note_refusal(kit, error))
    other = Envelope(kit.job[:8], kit.study.settings(), 0)
    raw = program.answer(encode([msg.Hello("Ardea alba", np.array([5]))], other))
    program.close()
    assert b"own screen" in raw
    assert b"season" not in raw
    said = (kit.private / REFUSALS).read_text()
    assert "exchange 0 is Hello, the approved study has SealKey" in said
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


def test_seconds_and_bytes_add_up_over_the_processes_of_a_job(folder, panels):
    """A hub that is stopped in the middle goes on in a new process: the manifest has what both have carried."""

    class Counting(Direct):
        def __init__(self, *arguments, stop=10**9):
            super().__init__(*arguments)
            self.stop, self.carried = stop, {"bytes_up": 0, "bytes_down": 0}

        def ask(self, frames):
            self.stop -= 1
            if self.stop < 0:
                raise KeyboardInterrupt
            out = super().ask(frames)
            self.carried["bytes_down"] += sum(map(len, frames.values()))
            self.carried["bytes_up"] += sum(map(len, out.values()))
            return out

    first = Counting(folder, panels, stop=20)
    with pytest.raises(KeyboardInterrupt):
        run_study(folder / "hub", first)
    first.close()
    second = Counting(folder, panels)
    begun = read_json(next((folder / "hub").glob("usage-*.json")))
    facts = read_manifest(run_study(folder / "hub", second), "joint")["results"]
    second.close()
    ledger = facts["ledger"]
    assert second.carried["bytes_up"] < ledger["bytes_up"]  # the second process alone has not carried all
    assert facts["engine"] == {k: ledger[k] for k in ("bytes_up", "bytes_down")}
    assert facts["seconds"] > begun["seconds"] > 0


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
