"""Studies, rosters, approvals, and what custodians read: all that needs no engine."""

import base64
import re
import shutil
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.atomic import read_json, write_json
from fedmiss.errors import ConfigError, EngineError, InputError
from fedmiss.federation.gather import Board
from fedmiss.federation.masks import Masks, fingerprint, identity
from fedmiss.federation.messages import Description
from fedmiss.network.approval import approve, page
from fedmiss.network.demo import CLUBS
from fedmiss.network.kits import enrol, job_hash, open_kit, read_roster
from fedmiss.network.member import held, take_part
from fedmiss.network.proposer import collect_roster, make_study, new_revision
from fedmiss.network.status import Usage
from fedmiss.network.study import Study, read_study_toml
from fedmiss.pipeline.panels import open_panel
from tests.cli.terminal import fedmiss

from .conftest import QUICK, engine_files, enrolled, small_study

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
        ("minimum = 5", 'minimum = "5"', "not of the right kind; write a whole number, without quotes"),
        ("season = [2, 3, 4]", 'season = "2-4"', "of the right kind; write a list in square brackets"),
        ('"north"', '"North Club"', "'North Club' cannot be used"),
        ('"north", ', "", "masks need 3 organisations, the study has 2"),
        ('"north"', '"south"', "each once"),
        ("bootstrap = 20", "bootstraps = 20", "the setting 'bootstraps' is unknown"),
        ("bootstrap = 20", "folds = 1", "must be between 2 and 1000"),
        ("season = [2, 3, 4]", "season = [13]", "1 to 12"),
        ("minimum = 5", 'engine = "nvflare"\nport = 80', "port is 80"),
        ("minimum = 5", 'engine = "nvflare"\nhost = "http://relay.org"', "host is 'http://relay.org' (must"),
        ("minimum = 5", 'engine = "nvflare"\nhost = "relay.org:8102"', "The port has a line of its own"),
        ("minimum = 5", 'engine = "nvflare"\nhost = ""', "host is '' (must be"),
        ("minimum = 5", 'engine = "nvflare"\nhost = "fd00::1"', "no IPv6"),
        ("minimum = 5", 'engine = "nvflare"', "needs host, the name by which all organisations reach"),
        ("minimum = 5", 'engine = "nvflare"\nhost = "south"', "called 'south': that is the relay's end"),
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
    with pytest.raises(ConfigError, match="called 'server': that is the relay's end"):
        small_study(organisations=("server", "north", "south"), engine="nvflare")
    assert small_study(organisations=("server", "north", "south")), "a folder has no relay"


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


def test_the_months_of_a_study_are_a_first_and_a_last_one():
    assert small_study(months=("2004-01", "2004-01")).months
    for months in (("2010-12", "2004-01"), ("2004-01",), ("2004-01", "2004-13")):
        with pytest.raises(ConfigError, match="the first and the last one"):
            small_study(months=months)


def test_under_masks_only_a_study_that_names_them_fits_models_whose_sums_are_linear_in_the_counts():
    """Quasi-Poisson and log1p; of two organisations, who see each other's sums anyway, all are tried."""
    three, two = ("north", "east", "west"), ("north", "east")
    masked = Study("egrets", "Ardea alba", three)
    named = replace(masked, model={"model": "auto"})
    open_to_each = Study("egrets", "Ardea alba", two, masks=False)
    kinds = [{c.dispersion for c in study.order().candidates} for study in (masked, named, open_to_each)]
    assert kinds == [{"negbin"}, {"negbin", "quasi"}, {"negbin", "quasi"}]
    assert {c.family for c in masked.order().candidates} == {"poisson"}


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
    with pytest.raises(ConfigError, match="the approval is of job 0123456789ab"):
        approve(kit, ask=None, given="0123456789ab")  # what was read out by telephone is of another job
    with pytest.raises(EngineError, match="no frame from central, south"):
        take_part(kit, panels["north"], NOBODY)


def test_an_approval_is_of_the_job_and_the_first_frame_binds_the_data(kit, panels):
    """Until it is shown nothing has left: data may be put right, and `join` says what they bring; then they stand."""
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


def test_a_lost_key_is_said_before_a_job_is_approved_that_cannot_be_joined(folder, kit, panels):
    (kit.private / "approval.json").unlink()
    (kit.private / "history.json").unlink()
    words = ["federation", "join", str(kit.folder), str(panels["north"])]
    known = fingerprint(kit.roster["north"])
    kit.key_file.unlink()
    assert fedmiss(*words, "--dry-run").code == 0, "whoever reads a kit for another needs no key"
    refused = fedmiss(*words, "--approve", kit.job.hex())
    assert refused.code == 2
    assert f"the roster has {known} as the key of 'north', and there is no" in " ".join(refused.err.split())
    enrol(kit)
    refused = fedmiss(*words, "--approve", kit.job.hex())
    assert "identity.key holds" in " ".join(refused.err.split())
    assert kit.approval() is None
    assert not kit.history(), "nobody took part"


def test_two_custodians_are_told_what_the_other_can_compute(tmp_path):
    study = Study("pair", "Ardea alba", ("north", "south"), masks=False, model=QUICK)
    text = page(enrolled(study, tmp_path / "study")[1]["north"])
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
    text = " ".join(page(enrolled(small_study(**more), tmp_path / "study")[1]["north"]).split())
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


def test_the_page_of_a_dry_run_has_the_number_of_own_sites_that_is_asked_for(folder, panels):
    words = [
        "federation",
        "join",
        folder / "kits" / "south",
        panels["south"],
        "--dry-run",
        "--own-sites",
        "7",
    ]
    done = fedmiss(*words)
    assert done.code == 0, done
    assert "and have yours, over 7 sites or more" in " ".join(done.out.split())


def test_least_numbers_of_contributors_and_exchanges_are_said():
    for more, words in (
        ({"contributors": 2}, "contributors is 2 .must lie between 3 and 3"),
        ({"contributors": 4}, "contributors is 4 .must lie between 3 and 3"),
        ({"exchanges": 10}, "exchanges is 10 .must lie between 50 and 100,000"),
    ):
        with pytest.raises(ConfigError, match=words):
            small_study(**more)
    two = small_study(organisations=("central", "north"), masks=False)
    assert two.contributors == 2
    assert small_study().contributors == 3


@pytest.mark.slow
def test_a_study_of_an_older_version_that_names_places_is_revised_without_them(tmp_path):
    """It could be read no more: neither revised nor shown."""
    study = small_study(model=QUICK | {"structure": "covariates,smooth"})
    with pytest.raises(ConfigError, match="where a site lies is not told"):
        study.order()
    assert new_revision(enrolled(study, tmp_path / "study")[0]).model["structure"] == "covariates"


def test_names_with_their_accents_apart_are_those_of_the_others(folder, panels):
    """A Mac writes "a" and two dots: a region would have one organisation each way, and be left out."""
    kit, panel = open_kit(folder / "kits" / "north"), open_panel(panels["north"])
    visits = next(iter(panel.visits()[0].values()))
    apart, one = "Ma\u0308laren", "M\u00e4laren"
    region = np.where(np.arange(visits.region.size) % 2, apart, one).astype(object)
    own = replace(visits, region=region, covariates={f"{apart}: ja": np.ones(region.size)})
    got = held(kit, SimpleNamespace(visits=lambda effort: ({"north": own}, {})))
    assert (set(got.region), set(got.covariates)) == ({one}, {f"{one}: ja"})


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


def test_a_key_that_makes_any_secret_zero_is_refused_by_its_name(kit):
    zero = base64.b64encode(bytes(32) + base64.b64decode(kit.roster["south"])[32:]).decode()
    party = Masks("north", identity(kit.key_file), kit.roster | {"south": zero}, kit.job)
    with pytest.raises(ConfigError, match="key of 'south' is one that no secret"):
        party.stream(1, 5)


def test_the_page_shows_every_setting_of_the_model(kit):
    """A proposer could have named an effort term, or observers, without a line of the page that says so."""
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
    assert said in page(enrolled(small_study(model=model), tmp_path / "study")[1]["north"])


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 0), ("", 0), ("[3]", 0), ('{"seconds": {}}', 0), ('{"seconds": 3}', 3)]
)
def test_seconds_that_were_damaged_stop_no_job(tmp_path, text, seconds):
    if text is not None:
        (tmp_path / "usage.json").write_text(text)
    assert Usage(tmp_path / "usage.json").before == seconds


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('season = ["Nov"]', "season is ['Nov']; give numbers of calendar months, 1 to 12"),
        ("season = [11.5]", "season is [11.5]; give numbers"),
        ("season = [true]", "season is [True]; give numbers"),
        ("months = [2013, 2018]", "months is [2013, 2018]; give the first and the last one as 2004-01"),
        ("months = [2013-01-01, 2018-01-01]", "months is ['2013-01-01', '2018-01-01']; give the first"),
        ("[model]\neffort = 'duration, wind'", "the effort term 'wind' is unknown; choose auto, none, or"),
        ("[model]\neffort = 1", "the effort term '1' is unknown"),
        ("organisations = [1, 2, 3]", "the name '1' cannot be used"),
    ],
)
def test_entries_of_another_kind_are_refused_with_what_to_write(tmp_path, line, said):
    """A season of names gave Python's own words; half a month was taken, and no visit was ever in it."""
    names = "" if "organisations" in line else "organisations = ['a', 'b', 'c']\n"
    (tmp_path / "study.toml").write_text(f"name = 'larks'\nspecies = 'Alauda arvensis'\n{names}{line}\n")
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_study_toml(tmp_path / "study.toml")


def test_a_study_of_one_species_names_it():
    """The page said of it that it has a method of its own."""
    with pytest.raises(ConfigError, match="species is blank"):
        small_study(species=" ")
