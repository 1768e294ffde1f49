"""All species of a site between organisations, as threads: the pooled fit, what is left out, what stays at home."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmiss.community.associations import associations
from fedmiss.community.model import _calibrated, cells_of, effort_of, plain_model
from fedmiss.community.outputs import axes_of, gains_by, steps_of, usual_visits
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.study import CommunitySeat, Terms, beside, run_community
from fedmiss.community.tables import numbers_of
from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.community import read_lists, scores_without
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import Circle
from fedmiss.federation.gather import Board
from fedmiss.federation.hub.directions import begin_factors
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.masks import Masks, Party
from fedmiss.files import read_manifest
from fedmiss.network.kits import open_kit
from fedmiss.network.study import Study
from fedmiss.tables import read_table
from tests.cli.terminal import fedmiss as run
from tests.community.worlds import lists_of, records_of, world
from tests.federation import network
from tests.federation.network import keys_of

CLUBS = ("east", "north", "west")
JOB = hashlib.sha256(b"a community").digest()


def split(table, folder):
    """Each club's records: every third site is its own."""
    out, number = {}, table["site"].str[1:].astype(int)
    for k, name in enumerate(CLUBS):
        (folder / name).mkdir(parents=True)
        out[name] = records_of(table[number % 3 == k], folder / name)
    return out


def scarce_in_north(table, species):
    """Rows of a species that leave it at two of north's sites, if they are another's."""
    number = table["site"].str[1:].astype(int)
    return table["species"].eq(species) & (number % 3 == 1) & (number > 4)


def sent_of(table, odd, folder):
    """Each club's records, where some rows are of another species."""
    other = table.assign(species=table["species"].mask(odd, "Avis species08"))
    return split(other.drop_duplicates(["checklist", "species"]), folder)


def together(records, terms, folder, **more):
    """Run the job at all clubs; what each of them knows at the end."""
    folder.mkdir(exist_ok=True)
    (keys, roster), board = keys_of(CLUBS, folder), Board(CLUBS, patience=60)

    def one(name):
        party = (Masks if terms.masks else Party)(name, keys[name], roster, JOB)
        circle = Circle(party, folder / f"{name}.journal", board.seat(name))
        try:
            return run_community(
                CommunitySeat(circle, records[name], name.encode(), **more.get(name, {})), terms
            )
        finally:
            circle.close()

    done = network.together({n: (lambda n=n: one(n)) for n in CLUBS})
    for name in CLUBS:
        if isinstance(done[name], BaseException):
            raise done[name]
    return done


def terms_of(species, *, masks=False, **more):
    settings = CommunitySettings(**{"rank": 1, "folds": 2} | more)
    return Terms(settings, tuple(species), 3, 0.8, 3, masks, JOB, b"digest..")


@pytest.fixture(scope="module")
def clubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clubs")
    w = world(7, J=36, S=9, rank=1)
    table = lists_of(w, folder / "all.csv")
    table["minutes"] = 20 + 10 * (table["checklist"].str[1:].astype(int) % 7)
    whole = folder / "pooled"
    whole.mkdir()
    return folder, table, split(table, folder), records_of(table, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("masks", "digits"), [pytest.param(False, 1e-10, marks=pytest.mark.nightly), (True, 1e-8)]
)
def test_the_joint_community_is_the_pooled_one(clubs, tmp_path, masks, digits):
    """Fit, effort, axes, associations, numbers of the species: as if one person held the records of all."""
    _, table, records, pooled = clubs
    terms = terms_of(sorted(table["species"].unique()), masks=masks)
    asked = []
    done = together(records, terms, tmp_path, east={"told": lambda member: asked.extend(member.questions)})
    lists = read_lists(pooled, species=terms.species)
    cells = cells_of(lists, effort_of(lists), "counts")
    some = done["east"]
    whole = LocalFederation.of_panel(cells.panel({}, None))
    # the axis begins as between clubs: with the pairs that may be told
    pairs = next(q.pairs for q in asked if isinstance(q, msg.Product))
    between = replace(whole.hub, pairs=pairs, least=terms.minimum)  # shares the start with the hub
    begin_factors(whole.link, between, plain_model(terms.settings))
    fit, raised = _calibrated(whole.fit(some.fit.fit.settings))
    whole = replace(some.fit, fit=fit, cells=cells, raised=raised)
    axes = replace(axes_of(whole), effort=axes_of(some.fit, some.sums).effort)  # between clubs rounded
    for club in done.values():
        at = np.searchsorted(lists.sites["site_id"].to_numpy(), club.lists.sites["site_id"].to_numpy())
        np.testing.assert_allclose(club.fit.fit.expected(), fit.expected()[at], rtol=digits)
        mine = axes_of(club.fit, club.sums)
        np.testing.assert_allclose(mine.scores, axes.scores[at], atol=digits)
        np.testing.assert_allclose(mine.loadings, axes.loadings, atol=digits)
        for a, b in zip(associations(club.fit, mine), associations(whole, axes), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)  # draws in single precision
        np.testing.assert_allclose(club.numbers, numbers_of(lists, whole), rtol=10 * digits)
        assert abs(usual_visits(club.fit, club.sums) - usual_visits(whole)) <= 1.0  # of rounded sums
        steps = np.bincount(steps_of(lists.visits), minlength=4)
        # not the four sites of two clubs, nor what would tell of them by difference
        kept = club.step_sites > 0
        np.testing.assert_array_equal(club.step_sites, steps * kept)
        assert kept.tolist() == [False, False, True, False]
        assert (club.step_gains[kept] > 0).all()
        assert not club.step_gains[~kept].any()
        assert club.n_lists == lists.site.size
        np.testing.assert_array_equal(club.gains, some.gains)
    own = sum(gains_by(c.fit, c.lists.visits)[0] for c in done.values())
    np.testing.assert_allclose(some.gains, own, rtol=1e-6)
    judged = (some.gains > 0).all(axis=1)
    assert judged.sum() == 8
    assert not some.gains[~judged].any()
    assert any(
        note.startswith("1 of 9 species has too few sites in one of the 2 folds") for note in some.notes
    )


@pytest.mark.slow
@pytest.mark.parametrize("own_sites", [0, 4])
def test_a_folds_part_of_a_species_rests_on_as_many_finds(tmp_path, own_sites):
    """Sites without it hide nothing: the sum of a part with it at one site is what was counted there.

    Gradients and curvatures of a first round add up to weighted counts, and four sizes tell the weight of a single one.
    """
    w = world(8, J=120, S=14, rank=1)
    w.eta[:] -= np.linspace(0.0, 3.0, 14)
    table = lists_of(w, tmp_path / "all.csv")
    names = sorted(table["species"].unique())
    more = {"north": {"own_sites": own_sites}}
    terms = terms_of(names, effort="none", folds=4)
    done = together(split(table, tmp_path), terms, tmp_path / "job", **more)
    parts = pd.concat([club.fit.gains.assign(club=name) for name, club in done.items()])
    released = parts[parts["none"].notna() & (parts["weight"] > 0) & (parts["count"] > 0)]
    by = released.groupby(["species", "fold"])
    assert (by.size() >= 3).all()
    assert (by["club"].nunique() == 3).all()
    assert (released[released["club"] == "north"].groupby(["species", "fold"]).size() >= own_sites).all()
    assert 3 < released["species"].nunique() < len(done["east"].lists.species)


@pytest.mark.slow
def test_what_too_few_found_is_left_out_and_told_nothing_of(clubs, tmp_path):
    """A species of one club only, one of two, one at two sites, one counted there only, one nobody found; own rules."""
    _, table, _, _ = clubs
    number = table["site"].str[1:].astype(int)
    lone, pair, rare, scarce = (f"Avis species0{k}" for k in range(4))
    odd = table["species"].eq(lone) & (number % 3 != 0) | table["species"].eq(pair) & (number % 3 == 2)
    odd |= table["species"].eq(rare) & ~number.isin(number[table["species"].eq(rare)].unique()[:2])
    # elsewhere it was there: its birds are those of two sites
    uncounted = table["species"].eq("Avis species04")
    uncounted &= ~number.isin(number[uncounted].unique()[:2])
    table = table.assign(count=table["count"].mask(uncounted, "X"))
    records = sent_of(table, odd | scarce_in_north(table, scarce), tmp_path / "records")
    names = [*sorted(table["species"].unique()), "Avis nobody"]
    seen = {n: [] for n in CLUBS}
    more = {n: {"told": lambda member, n=n: seen[n].extend(member.answers)} for n in CLUBS}
    more["north"]["own_sites"] = 3
    done = together(records, terms_of(names, masks=True, effort="none", rank=0), tmp_path / "job", **more)
    for club in done.values():
        left_out = {n for names in club.left_out.values() for n in names}
        assert left_out == {lone, pair, rare, scarce, "Avis species04", "Avis nobody"}
        assert club.left_out["found on no complete checklist"] == ("Avis nobody",)
        assert club.lists.species == tuple(n for n in names if n in club.lists.species)
        assert len(club.lists.species) == len(names) - 6
    # in clear nothing but what all have in common, and no text of a species or a site
    for a in (a for answers in seen.values() for a in answers if isinstance(a, msg.Description)):
        assert (a.species, a.regions) == ("", ())
        assert a.months.tolist() in ([0, len(names) - 1], [0, len(names) - 7])


@pytest.mark.slow
def test_a_species_below_the_own_least_number_brings_nothing_to_the_joint_tables(clubs, tmp_path):
    """Two of the others are enough here to tell of it: all of them together would have its sites, lists, birds, deviance."""
    _, table, _, _ = clubs
    scarce = "Avis species03"
    records = sent_of(table, scarce_in_north(table, scarce), tmp_path / "records")
    names, answered = sorted(table["species"].unique()), []
    terms = replace(terms_of(names, masks=True, effort="none"), contributors=2)
    more = {"north": {"own_sites": 3, "told": lambda member: answered.extend(member.answers)}}
    done = together(records, terms, tmp_path / "job", **more)["north"]
    _, _, steps, told = (a.sums for a in answered if isinstance(a, msg.SpeciesSums))
    S, at = len(names), done.lists.species.index(scarce)
    assert done.lists.summed()[2][:, at].any()
    numbers, gains = told[: 4 * S].reshape(S, 4), told[4 * S : 6 * S].reshape(S, 2)
    assert not numbers[at, :3].any()
    assert not gains[at].any()
    assert numbers[np.arange(S) != at, :3].all()
    assert done.numbers[at, 0] > 0
    # nor do numbers of checklists that fewer of the own sites have, or one such number beside the rest
    own = np.bincount(steps_of(done.lists.visits), minlength=4)
    assert ((own > 0) & (own < 3)).any()
    assert not steps.reshape(3, -1)[0][own < 3].any()
    assert own.sum() - steps.reshape(3, -1)[0].sum() >= 3


@pytest.mark.slow
def test_presence_tells_no_birds(clubs, tmp_path):
    """A species found at many sites may have a number at one."""
    _, table, records, _ = clubs
    terms = terms_of(sorted(table["species"].unique()), model="presence", rank=0)
    numbers = together(records, terms, tmp_path)["west"].numbers
    assert numbers[:, :2].all()
    assert not numbers[:, 2].any()


@pytest.mark.slow
@pytest.mark.parametrize("common", [False, True])
def test_covariates_take_part_where_a_species_has_no_more_sums_than_its_sites_bear(clubs, tmp_path, common):
    """Who knows the covariates of all sites has equations of the counts of each; of three finds these are the counts."""
    _, table, records, _ = clubs
    asked, least = [], table.groupby("species")["site"].nunique().min()

    def covariates(lists):
        return {"height": np.array([float(site[1:]) ** 1.5 for site in lists.sites["site_id"].to_list()])}

    more = {n: {"covariates": covariates} for n in CLUBS}
    more["east"]["told"] = lambda member: asked.extend(member.questions)
    terms = terms_of(sorted(table["species"].unique()), effort="none", rank=0)
    assert least == 9  # three sums, of the covariate and its square too, of three sites each
    done = together(records, replace(terms, minimum=3 if common else 4), tmp_path / "job", **more)["east"]
    tried = any(question.responses for question in asked if isinstance(question, msg.Open))
    told = [
        note for note in done.notes if note.startswith("covariates are left out: with them a species has 3")
    ]
    assert (tried, len(told)) == ((True, 0) if common else (False, 1))


def test_too_few_species_to_tell_anything_is_a_sentence(clubs, tmp_path):
    _, table, records, _ = clubs
    with pytest.raises(
        InputError, match="fewer than 3 species of the study's 3 were found at 3 sites or more of 3 org"
    ):
        together(records, terms_of([table["species"].iloc[0], "Avis a", "Avis b"], rank=0), tmp_path)


def test_the_custodian_reads_what_stays_at_home(clubs):
    _, _, records, _ = clubs
    said = beside(["Avis species00", "Avis specie001", "Strix alba"], records["east"], "east")
    assert said[0].endswith("at 12 sites, 1 of the study's 3 species on them")
    assert "not on your checklists, each of which is a zero for them: Avis specie001, Strix alba" in said[1]
    assert "stay at home: Avis species01, Avis species02" in said[2]
    assert any(
        "Avis species01 of yours and Avis specie001 of the study: perhaps one species" in s for s in said
    )


def test_a_species_in_other_capitals_is_the_studys(clubs, tmp_path):
    """Else each checklist of an organisation that writes it so would be a zero, although it was found there."""
    _, table, _, pooled = clubs
    names = tuple(sorted(table["species"].unique()))
    loud = table.assign(species=table["species"].replace(names[0], f" {names[0].upper()}"))
    mine = records_of(loud, tmp_path, sensitive=(names[1],))
    heard, meant = read_lists(mine, species=names), read_lists(pooled, species=names)
    for given, wanted in zip(heard.summed(), meant.summed(), strict=True):
        np.testing.assert_array_equal(np.delete(given, 1, axis=1), np.delete(wanted, 1, axis=1))
    said = "\n".join(beside(names, mine, "east"))
    assert f"{len(names) - 1} of the study's {len(names)} species" in said
    assert "stay at home" not in said
    assert f"nothing of them is used: {names[1]}" in said


def test_a_subspecies_may_be_the_studys_species(clubs, tmp_path):
    _, table, _, _ = clubs
    rows = table.assign(species=table["species"].replace("Avis species00", "Avis species00 minor"))
    said = beside(["Avis species00", "Avis species01", "Avis species02"], records_of(rows, tmp_path), "east")
    assert any(
        "Avis species00 minor of yours and Avis species00 of the study: perhaps one" in s for s in said
    )


def test_checklists_of_other_months_tell_nothing_of_effort(tmp_path):
    """Clubs that share no calendar month: the sentence is about checklists and effort, with what to do."""
    table = lists_of(world(5, J=36, S=8, rank=1), tmp_path / "lists.csv")
    number = table["site"].str[1:].astype(int)
    late = table["date"].str.replace("-05-", "-09-")
    records = split(table.assign(date=table["date"].where(number % 3 != 1, late)), tmp_path)
    names = sorted(table["species"].unique())
    with pytest.raises(
        InputError, match=r"no calendar month has checklists .* effort = \"none\" in \[community\]"
    ):
        together(records, replace(terms_of(names, rank=0), minimum=3), tmp_path / "together")


def test_nothing_is_used_of_what_somebody_names_as_sensitive(clubs, tmp_path):
    """Withheld in places, so that its absence from a list is no zero: left out, or unknown on an agreed list."""
    _, table, _, pooled = clubs
    names = tuple(sorted(table["species"].unique()))
    hidden = read_lists(records_of(table, tmp_path, sensitive=names[1:3]))
    assert set(hidden.species) == set(names) - set(names[1:3])
    assert ("left out: species without zeros (sensitive)", -2) in {step[:2] for step in hidden.flow}
    agreed, plain = (read_lists(folder, species=names) for folder in (tmp_path / "records", pooled))
    birds, exposure, found = agreed.summed()
    for mine, theirs in zip((birds, exposure, found), plain.summed(), strict=True):
        assert not mine[:, 1:3].any()
        np.testing.assert_array_equal(np.delete(mine, (1, 2), axis=1), np.delete(theirs, (1, 2), axis=1))
    said = beside([*names, "Strix alba"], tmp_path / "records", "east")
    assert f"{len(names) - 2} of the study's {len(names) + 1} species" in said[0]
    assert said[1].endswith("for them: Strix alba")
    assert (
        said[2] == "  named as sensitive by you, so nothing of them is used: Avis species01, Avis species02"
    )


@pytest.mark.parametrize(
    ("community", "more", "said"),
    [
        ({"species": ["Avis a", "Avis b"]}, {}, "list the scientific names of three or more"),
        ({"species": ["Avis a", "Avis b", 3]}, {}, "list the scientific names of three or more"),
        ({"species": ["Avis a", "Avis b", "Avis a", "Avis c"]}, {},
         r"lists Avis a twice; name each species once"),
        ({"species": ["Avis a", "AVIS a", "Avis b", "Avis c"]}, {},
         r"lists AVIS a, Avis a twice; name each species once"),
        ({"species": ["Avis a", "Avis b", "Avis c"], "rank": 3}, {},
         "rank 3 needs 7 species or more; there are 3"),
        ({"species": ["Avis a", "Avis b", "Avis c"], "site_table": "x"}, {}, "site_table"),
        ({"species": ["Avis a", "Avis b", "Avis c"]}, {"season": (5,)}, "season = .* does nothing here"),
        ({"species": ["Avis a", "Avis b", "Avis c"]}, {"model": {"rank": 0}},
         r"a study has one of \[model\]"),
    ],
)  # fmt: skip
def test_a_study_that_makes_no_sense_is_refused(community, more, said):
    with pytest.raises(ConfigError, match=said):
        Study(name="ponds", species="", organisations=CLUBS, community=community, **more)


@pytest.mark.slow
def test_a_study_by_the_shared_folder_ends_with_joint_tables_and_own_pages(clubs, tmp_path):
    """The commands of the guide, in three processes; then the outbox, and a trend that follows the other species."""
    _, table, records, _ = clubs
    (tmp_path / "study.toml").write_text(
        'name = "ponds"\norganisations = ["east", "north", "west"]\nminimum = 3\n'
        f'[community]\nspecies = "{records["east"]}"\nrank = 1\nfolds = 2\n'
    )
    run("federation", "new", tmp_path / "study.toml", "--out", tmp_path / "study")
    kits = [tmp_path / "study" / "kits" / n for n in CLUBS]
    for kit in kits:
        run("federation", "enrol", kit)
    run("federation", "roster", tmp_path / "study", *(k / f"{k.name}.public.json" for k in kits))
    (tmp_path / "shared").mkdir()
    job = open_kit(kits[0]).job.hex()
    ends = [
        subprocess.Popen(
            [sys.executable, "-m", "fedmiss.cli.app", "federation", "join", str(kit), str(records[kit.name]),
             "--folder", str(tmp_path / "shared"), "--approve", job],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for kit in kits
    ]  # fmt: skip
    said = [e.communicate(timeout=300)[0] for e in ends]
    assert all(e.returncode == 0 for e in ends), said
    joint = [open_kit(k).result for k in kits]
    for name in ("species", "loadings", "associations", "visits"):
        assert len({(f / f"{name}.parquet").read_bytes() for f in joint}) == 1
        read_table(joint[0] / f"{name}.parquet", f"community_{name}")
    told = read_manifest(joint[0], "joint community", verify=True)["results"]
    assert (told["n_sites"], told["rank"]) == (36, 1)
    assert told["n_lists"] == table["checklist"].nunique()
    words = run("federation", "outbox", kits[1], records["north"]).out
    assert "answered SpeciesSums" in words
    assert not [w for w in ("s001", "Avis") if w in words]
    for kit in kits:
        assert "those of east, north, west together" in (kit / "community" / "index.html").read_text()
    scores = scores_without(kits[1] / "community", "Avis species01")
    assert set(scores.frame["site_id"]) == {f"s{j:03d}" for j in range(1, 36, 3)}
