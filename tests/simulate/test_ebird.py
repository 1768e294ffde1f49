"""Simulated eBird files: the format to the letter, the truth checked by a slow reading of the text itself."""

import gzip
import re
from collections import defaultdict

import numpy as np
import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.files import read_manifest
from fedmiss.simulate.checklists import draw_block
from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird
from fedmiss.simulate.text import LAYOUTS
from fedmiss.simulate.truth import read_expected
from fedmiss.simulate.world import EFFORT_SLOPE, UNTIMED_MINUTES, make_world
from tests.etl.ebird_files import LAYOUTS as EBIRD


def read(path):
    """Read a text file the slow, obvious way: lines split on tabs, nothing else."""
    data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    lines = data.decode("utf-8").split("\n")
    assert lines.pop() == "", "the last line ends with a line feed"
    header = lines[0].split("\t")
    rows = [line.split("\t") for line in lines[1:]]
    assert {len(row) for row in rows} == {len(header)}
    return header, [dict(zip(header, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def sim(tmp_path_factory):
    """Four thousand records of the default layout."""
    return simulate_ebird(tmp_path_factory.mktemp("ebd") / "sim", EbirdSettings(records=4000, seed=5))


@pytest.fixture(scope="module")
def texts(sim):
    return read(sim / "ebd_sim.txt"), read(sim / "ebd_sim_sampling.txt")


def table(sim, name):
    return pl.read_parquet(sim / "truth" / f"{name}.parquet")


def test_columns_are_ebirds(texts):
    (ebd, _), (sampling, _) = texts
    assert (ebd, sampling) == EBIRD[52]
    for width, (observations, lists) in EBIRD.items():
        layout = LAYOUTS[str(width)]
        assert (layout.observation_header, layout.sampling_header) == (tuple(observations), tuple(lists))


def test_fields_look_like_ebirds(texts):
    (_, rows), (_, lists) = texts
    shapes = {
        "GLOBAL UNIQUE IDENTIFIER": r"URN:CornellLabOfOrnithology:EBIRD:OBS\d+",
        "LAST EDITED DATE": r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?",
        "CATEGORY": r"species|issf|intergrade|form|domestic|spuh|slash|hybrid",
        "OBSERVATION COUNT": r"X|[1-9]\d*", "EXOTIC CODE": r"N?", "LOCALITY ID": r"L\d+",
        "LATITUDE": r"\d+\.\d{1,7}", "OBSERVATION DATE": r"20(1\d|20)-[01]\d-[0-3]\d",
        "TIME OBSERVATIONS STARTED": r"|[0-2]\d:[0-5]\d:00", "OBSERVER ID": r"obsr\d+",
        "SAMPLING EVENT IDENTIFIER": r"S\d+", "PROTOCOL CODE": r"P\d\d", "DURATION MINUTES": r"|\d+",
        "EFFORT DISTANCE KM": r"|\d+\.\d{1,3}", "NUMBER OBSERVERS": r"|[1-9]\d*",
        "ALL SPECIES REPORTED": r"[01]", "GROUP IDENTIFIER": r"|G\d+", "APPROVED": "1",
    }  # fmt: skip
    for column, shape in shapes.items():
        odd = [r[column] for r in rows if not re.fullmatch(shape, r[column])]
        assert not odd, (column, odd[:3])
    for unique, of in (("GLOBAL UNIQUE IDENTIFIER", rows), ("SAMPLING EVENT IDENTIFIER", lists)):
        assert len({r[unique] for r in of}) == len(of)
    by_id = {r["SAMPLING EVENT IDENTIFIER"]: r for r in lists}
    for row in rows:  # both files say the same of a checklist
        twin = by_id[row["SAMPLING EVENT IDENTIFIER"]]
        assert all(row[c] == twin[c] for c in twin)


def test_the_traps_are_there(texts):
    (_, rows), (_, lists) = texts
    assert any('"' in r["CHECKLIST COMMENTS"] for r in lists)
    assert any(not r["SPECIES COMMENTS"].isascii() for r in rows)
    assert {r["CATEGORY"] for r in rows} >= {"species", "issf", "domestic", "spuh", "slash", "hybrid"}
    assert any(r["OBSERVATION COUNT"] == "X" for r in rows)
    assert any(r["BREEDING CODE"] == "S " for r in rows)
    with_birds = {r["SAMPLING EVENT IDENTIFIER"] for r in rows}
    assert any(r["SAMPLING EVENT IDENTIFIER"] not in with_birds for r in lists)
    assert {r["PROTOCOL NAME"] for r in lists} >= {"Traveling", "Stationary", "Incidental", "Historical"}
    assert any(r["PROTOCOL NAME"] == "Incidental" and r["ALL SPECIES REPORTED"] == "1" for r in lists)
    parties = defaultdict(list)
    for r in lists:
        if r["GROUP IDENTIFIER"]:
            parties[r["GROUP IDENTIFIER"]].append(r)
    several = [p for p in parties.values() if len(p) > 1]
    assert all(len({r["OBSERVER ID"] for r in p}) == len(p) for p in several)
    ids = [[r["SAMPLING EVENT IDENTIFIER"] for r in p] for p in several]
    as_text = sum(min(p) != min(p, key=lambda s: int(s[1:])) for p in ids)
    assert 0.1 < as_text / len(ids) < 0.9  # lowest as text is not lowest as number
    for column in ("LOCALITY ID", "DURATION MINUTES"):
        assert any(len({r[column] for r in p}) > 1 for p in several)


def test_truth_is_what_a_slow_reading_of_the_files_keeps(sim, texts):
    """Lowest number stands for the party; forms are summed; X wins; the lowest list with the species speaks."""
    (_, rows), (_, lists) = texts

    def key(r):
        return r["GROUP IDENTIFIER"] or r["SAMPLING EVENT IDENTIFIER"]

    def number(r):
        return int(r["SAMPLING EVENT IDENTIFIER"][1:])

    parties = defaultdict(list)
    for r in lists:
        parties[key(r)].append(r)
    kept = {k: min(p, key=number) for k, p in parties.items()}
    reports = defaultdict(lambda: defaultdict(list))
    for r in rows:
        if r["CATEGORY"] not in ("spuh", "slash", "hybrid"):
            reports[key(r), r["SCIENTIFIC NAME"]][number(r)].append(r["OBSERVATION COUNT"])
    expected = set()
    for (party, species), by_member in reports.items():
        counts = by_member[min(by_member)]
        value = None if "X" in counts else sum(int(c) for c in counts)
        expected.add((kept[party]["SAMPLING EVENT IDENTIFIER"], species, value))
    visits = table(sim, "truth_visits")
    assert set(visits.select("checklist_id", "species", "count").rows()) == expected
    assert visits.height == len(expected)

    want = {
        (
            r["SAMPLING EVENT IDENTIFIER"], r["GROUP IDENTIFIER"] or None, r["OBSERVER ID"], r["LOCALITY ID"],
            r["OBSERVATION DATE"], r["ALL SPECIES REPORTED"] == "1", len(parties[key(r)]),
        )
        for r in kept.values()
    }  # fmt: skip
    lists_kept = table(sim, "truth_checklists").with_columns(pl.col("date").cast(pl.String))
    assert set(lists_kept.rows()) == want


def test_totals_are_the_sum_of_the_expected_counts(sim):
    months = table(sim, "truth_months")["month"].unique().sort().to_list()
    for species in ("Mareca americana", "Setophaga coronata"):
        sites = table(sim, "truth_sites").filter(pl.col("species") == species)["site_id"].to_list()
        expected = read_expected(sim / "truth", species, sites, months)
        assert expected.shape == (len(sites), len(months))
        total = table(sim, "truth_totals").filter(pl.col("species") == species).sort("month")["total"]
        assert np.allclose(expected.sum(axis=0), total, rtol=1e-6)
        some = read_expected(sim / "truth", species, sites[3:5][::-1], months[7:8])
        assert np.array_equal(some[:, 0], expected[[4, 3], 7])
    with pytest.raises(InputError, match="'L1'"):
        read_expected(sim / "truth", "Mareca americana", ["L1"], months)
    with pytest.raises(InputError, match="Passer passer"):
        read_expected(sim / "truth", "Passer passer", sites, months)


def test_truth_on_file_is_the_law_that_drew_the_counts(tmp_path):
    settings = EbirdSettings(
        records=1000, species=4, sites=60, observers=20, start="2015-03", end="2016-08", seed=9
    )
    sim = simulate_ebird(tmp_path / "sim", settings)
    world = make_world(9, n_species=4, checklists=1, sites=60, observers=20, start="2015-03", end="2016-08")
    ids = table(sim, "truth_sites")["site_id"].unique().to_list()
    site = np.array([int(i[1:]) - 100_000 for i in ids])
    for s, bird in enumerate(world.species):
        expected = read_expected(sim / "truth", bird.scientific, ids, world.months.tolist())
        for month in range(18):
            eta = world.log_mean(np.full(site.size, s), site, np.full(site.size, month))
            assert np.allclose(np.log(expected[:, month]), eta, atol=1e-5)
    effects = dict(table(sim, "truth_observers").rows())
    for i, number in enumerate(world.observer_number):
        assert effects.get(f"obsr{number}", world.observer_effect[i]) == world.observer_effect[i]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"sites": 2, "observers": 2}, {"start": "2015-06", "end": "2015-06"},
        {"start": "2015-11", "end": "2016-02", "species": 1}, {"species": 24},
    ],
)  # fmt: skip
def test_small_countries_work(tmp_path, options):
    out = simulate_ebird(tmp_path / "sim", EbirdSettings(records=1000, **options))
    (_, rows), (_, lists) = read(out / "ebd_sim.txt"), read(out / "ebd_sim_sampling.txt")
    assert len(rows) >= 1000
    assert len({r["LOCALITY ID"] for r in lists}) <= options.get("sites", 10**9)
    months = {r["OBSERVATION DATE"][:7] for r in lists}
    assert min(months) >= options.get("start", "2010-01")
    assert max(months) <= options.get("end", "2020-12")
    for party in {r["GROUP IDENTIFIER"] for r in lists} - {""}:
        members = [r["OBSERVER ID"] for r in lists if r["GROUP IDENTIFIER"] == party]
        assert len(set(members)) == len(members)


def test_sites_of_the_truth_are_those_of_the_files(sim, texts):
    (_, _), (_, lists) = texts
    assert set(table(sim, "truth_sites")["site_id"]) == {r["LOCALITY ID"] for r in lists}
    assert set(table(sim, "truth_observers")["observer_id"]) == {r["OBSERVER ID"] for r in lists}


def test_counts_follow_the_truth():
    """Detections and counts of 65,000 outings agree with the law that the truth states, in standard errors."""
    world = make_world(3, n_species=16, checklists=80_000, start="2012-01", end="2016-12")
    for k in range(2):
        block = draw_block(world, k)
        alone = np.bincount(block.outing - block.outing[0])[block.outing - block.outing[0]] == 1
        assert (block.shared & alone).any()  # group ids of which one list only is on file
        assert not (~block.shared & ~alone).any()
        first = np.flatnonzero(np.diff(block.outing, prepend=-1))  # owners: copies differ at times
        complete = block.complete[first]
        site, month, observer = (getattr(block, f)[first] for f in ("site", "month", "observer"))
        minutes = np.where(block.duration[first] > 0, block.duration[first], UNTIMED_MINUTES)
        nuisance = world.observer_effect[observer] + EFFORT_SLOPE * np.log(minutes / 60)
        at = np.full(block.outing.size, -1)
        at[first] = np.arange(first.size)
        for s, bird in enumerate(world.species):
            mean = np.exp(world.log_mean(np.full(first.size, s), site, month) + nuisance)
            given = mean / world.met[s]
            chance = (world.met[s] * (1 - (1 + given / bird.size) ** -bird.size))[complete]
            rows = (block.species == s) & (at[block.checklist] >= 0)
            seen = np.zeros(first.size, dtype=bool)
            seen[at[block.checklist[rows]]] = True
            z = (seen[complete] - chance).sum() / np.sqrt((chance * (1 - chance)).sum())
            assert abs(z) < 5, (bird.common, z)
            # X hides numbers evenly, so the numbers left add up to (1 - x_share) of the mean
            if not bird.forms:
                number = np.zeros(first.size)
                number[at[block.checklist[rows]]] = np.maximum(block.count[rows], 0)
                gap = (number - (1 - bird.x_share) * mean)[complete]
                assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(gap.size), bird.common


@pytest.mark.slow
def test_marginals_are_near_those_of_real_extracts(tmp_path):
    """At 150,000 records every calibrated marginal is within the tolerance that the guide states."""
    out = simulate_ebird(tmp_path / "sim", EbirdSettings(records=150_000, seed=1))
    rows = {r["what"]: r for r in read_manifest(out, "simulation")["results"]["marginals"]}
    assert len(rows) == 14
    for what, upto, most in (
        *((f"{what} per observer", 5, 2.1) for what in ("checklists", "sites", "months")),
        ("visits per site", 5, 2.1),
        *((f"counts of species {species}", 4, 1.75) for species in (1, 2)),
    ):
        ratio = np.array(rows[what]["simulated"][:upto]) / np.array(rows[what]["real"][:upto])
        assert 1 / most <= ratio.min() <= ratio.max() <= most, (what, ratio)
    for what, tolerance in (
        ("share of complete checklists with species 1", 0.15),
        ("share of complete checklists with species 2", 0.15),
        ("share of X in records of species 1", 0.3),
        ("share of X in records of species 2", 0.5),
        ("share of checklists that are shared copies", 0.05),
        ("share of checklists by the top tenth of observers", 0.2),
        ("growth of checklists over ten years", 0.4),
    ):
        assert rows[what]["simulated"][0] == pytest.approx(rows[what]["real"][0], rel=tolerance), what
    months = rows["share of checklists by month, January to December"]
    assert np.abs(np.array(months["simulated"]) - months["real"]).max() < 0.05


@pytest.mark.slow
def test_same_seed_same_bytes(sim, tmp_path):
    again = simulate_ebird(tmp_path / "again", EbirdSettings(records=4000, seed=5))
    other = simulate_ebird(tmp_path / "other", EbirdSettings(records=4000, seed=6))
    for name in ("ebd_sim.txt", "ebd_sim_sampling.txt"):
        assert (again / name).read_bytes() == (sim / name).read_bytes()
        assert (other / name).read_bytes() != (sim / name).read_bytes()
    assert read_manifest(again) == read_manifest(sim)
    packed = EbirdSettings(records=1000, seed=5, compress=True)
    one, two = (simulate_ebird(tmp_path / name, packed) for name in ("one", "two"))
    assert (one / "ebd_sim.txt.gz").read_bytes() == (two / "ebd_sim.txt.gz").read_bytes()


def test_longer_file_starts_with_the_shorter_one(tmp_path):
    """With the country fixed, more records only append: nothing depends on where the file stops."""
    country = {"sites": 400, "observers": 90, "seed": 2}
    short = simulate_ebird(tmp_path / "a", EbirdSettings(records=1500, **country))
    long = simulate_ebird(tmp_path / "b", EbirdSettings(records=3000, **country))
    for name in ("ebd_sim.txt", "ebd_sim_sampling.txt"):
        assert (long / name).read_bytes().startswith((short / name).read_bytes())
    assert 1500 <= read_manifest(short)["results"]["records"] < 1500 + 4 * 40


@pytest.mark.parametrize("columns", ["52", "49", "46"])
def test_layouts_hold_the_same_data(sim, texts, tmp_path, columns):
    options = EbirdSettings(records=4000, seed=5, columns=columns, blank_last=True, compress=True)
    out = simulate_ebird(tmp_path / "sim", options)
    header, rows = read(out / "ebd_sim.txt.gz")
    assert header == [*LAYOUTS[columns].observation_header, ""]
    assert all(r[""] == "" for r in rows)
    (_, original), _ = texts
    old = {
        "PROTOCOL NAME": "PROTOCOL TYPE", "CHECKLIST COMMENTS": "TRIP COMMENTS",
        "BREEDING CODE": "BREEDING BIRD ATLAS CODE", "BREEDING CATEGORY": "BREEDING BIRD ATLAS CATEGORY",
    }  # fmt: skip
    compared = 0
    for column in original[0]:
        name = column if column in header else old.get(column)
        if name in header:
            compared += 1
            assert [r[name] for r in rows] == [r[column] for r in original]
    assert compared >= (45 if columns != "46" else 43)
    assert table(out, "truth_visits").equals(table(sim, "truth_visits"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"records": 10}, "--records is 10"), ({"records": 60_000_000}, "--records is 60,000,000"),
        ({"species": 0}, "--species is 0"), ({"species": 25}, "--species is 25"), ({"columns": "51"}, "'51'"),
        ({"start": "2010-13"}, "'2010-13'"), ({"start": "2021-01"}, "2020-12 is before --start 2021-01"),
        ({"seed": -3}, "--seed is -3"), ({"sites": -5}, "--sites -5"), ({"sites": 1}, "--sites 1"),
        ({"observers": 1}, "--observers 1"), ({"observers": 6_000_000}, "6,000,000"),
        ({"records": 10_000_000, "species": 1}, "limit 8,000,000"),
    ],
)  # fmt: skip
def test_bad_settings_write_nothing(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        simulate_ebird(tmp_path / "sim", EbirdSettings(**options))
    assert list(tmp_path.iterdir()) == []
