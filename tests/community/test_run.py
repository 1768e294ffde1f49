"""``fedmiss community``: its folder, its page, what it says of bad records, and trends that follow other species."""

import shutil
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedmiss.community.associations import _found
from fedmiss.community.model import Effort, cells_of, fit_community
from fedmiss.community.page import _headline, write_page
from fedmiss.community.pictures import LETTER, LINE, _associations, ends, named_places
from fedmiss.community.run import _said, build_community
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.tables import tables_of
from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.community import read_lists, scores_without
from fedmiss.etl.panel import make_panel
from fedmiss.etl.settings import PanelSettings
from fedmiss.files import hash_file, read_manifest, update_manifest
from fedmiss.pipeline.chain import run_recipe
from fedmiss.pipeline.panels import open_panel
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.report.words import MINUS
from fedmiss.tables import read_table
from tests.blank import draw_nothing
from tests.cli.terminal import fedmiss as run
from tests.community.worlds import MAP, lists_of, records_of, world

BARE = CommunitySettings(rank=0, folds=2, season="none", effort="none")
TABLES = "species seasons sites loadings responses associations visits scores expected".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Lists of a world of rank 1, its records, and its community."""
    folder = tmp_path_factory.mktemp("community")
    w = world(7, J=40, S=14, rank=1, covariate=True)
    table = lists_of(w, folder / "lists.csv")
    records = records_of(table, folder)
    sites = pd.DataFrame({"site_id": [f"s{j:03d}" for j in range(40)], "wet": w.x})
    sites.to_csv(folder / "sites.csv", index=False)
    return table, records, build_community(records, folder / "community", settings_of(folder))


def settings_of(folder):
    return CommunitySettings(
        rank=1, folds=2, max_rank=0, fedmissem=True, site_table=str(folder / "sites.csv")
    )


def frame(folder, name):
    return read_table(folder / f"{name}.parquet", f"community_{name}").to_pandas()


# --- the folder


def test_the_folder_holds_every_table_by_its_schema(made):
    table, _, out = made
    for name in TABLES:
        exact = frame(out, name)
        if name not in ("expected", "scores"):  # a row for each site and species: for programs
            csv = pd.read_csv(
                out / f"{name}.csv",
                keep_default_na=False,
                na_values={c: "" for c in exact.select_dtypes("number")},
            )
            pd.testing.assert_frame_equal(
                csv,
                exact.fillna({c: "" for c in exact.select_dtypes(exclude="number")}),
                check_dtype=False,
                rtol=1e-5,
            )
    species = frame(out, "species").set_index("species")
    lists = table.groupby("species")["checklist"].nunique()
    pd.testing.assert_series_equal(
        species["n_lists"], lists[species.index], check_names=False, check_dtype=False
    )
    birds = table.assign(count=table["count"].astype(int)).groupby("species")["count"].sum()
    pd.testing.assert_series_equal(
        species["birds"], birds[species.index], check_names=False, check_dtype=False
    )
    sites = frame(out, "sites").set_index("site_id")
    rich = table.groupby("site")["species"].nunique()
    pd.testing.assert_series_equal(sites["found"], rich[sites.index], check_names=False, check_dtype=False)
    assert (sites["richness_lower"] <= sites["richness"]).all()
    assert (sites["richness"] <= sites["richness_upper"]).all()
    S, J = len(species), len(sites)
    assert len(frame(out, "associations")) == S * (S - 1) // 2
    assert len(frame(out, "expected")) == S * J
    assert len(frame(out, "scores")) == J * (1 + S), "by all species, and by all but each"
    r = read_manifest(out, "community", verify=True)["results"]
    assert (r["n_sites"], r["n_species"], r["rank"]) == (J, S, 1)
    assert r["n_lists"] == table["checklist"].nunique()


def test_algorithm_7_has_a_table_of_factors_and_stands_on_the_page(made):
    out = made[2]
    factors, told = frame(out, "fedmissem"), read_manifest(out, "community")["results"]
    J, S = told["n_sites"], told["n_species"]
    assert len(factors) == (S + J) * told["fedmissem"]["rank"]
    named = set(factors.loc[factors["of"] == "species", "name"])
    assert named == set(frame(out, "species")["species"])
    assert "FedMissEM, " in (out / "index.html").read_text()


def test_expected_counts_are_of_one_standard_visit(made):
    table, _, out = made
    e = frame(out, "expected")
    counted = table.assign(count=table["count"].astype(int)).groupby(["site", "species"])["count"].sum()
    total = (e["expected"] * e["visits"]).sum()
    assert total == pytest.approx(counted.sum(), rel=0.1)
    lists = table.groupby("site")["checklist"].nunique()
    np.testing.assert_allclose(e["visits"], lists[e["site_id"]], rtol=1e-9)


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(made, tmp_path):
    _, records, one = made
    two = build_community(records, tmp_path / "two", settings_of(one.parent))
    for path in sorted(one.rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            assert path.read_bytes() == (two / path.relative_to(one)).read_bytes(), path


def test_the_page_shows_what_the_tables_say(made):
    _, _, out = made
    page = (out / "index.html").read_text()
    assert "These are associations and no interactions" in page
    assert "power -" not in page  # a minus is no hyphen
    for name in ("ordination", "axis-1", "associations", "richness", "gain-by-lists", "gain-by-species"):
        assert f'id="fig-{name}"' in page
        for ending in ("svg", "png", "csv"):
            assert (out / "figures" / f"{name}.{ending}").stat().st_size > 0
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "wet" in page, "the covariate"


@pytest.mark.slow
def test_species_of_one_common_name_are_told_apart(made, tmp_path):
    """The page of such a community ended in an error of Python."""
    records, name = tmp_path / "records", {"Avis species00": "gull", "Avis species01": "gull"}
    shutil.copytree(made[1], records)
    results = read_manifest(records)["results"]
    for entry in results["species"]:
        entry["common_name"] = name.get(entry["species"], "")
    update_manifest(records, results=results)
    out = build_community(records, tmp_path / "out", replace(BARE, rank=1))
    page = (out / "index.html").read_text()
    assert "gull (Avis species00)" in page
    assert "gull (Avis species01)" in page
    header = (out / "figures" / "associations.csv").read_text().splitlines()[0].split(",")
    assert len(set(header)) == len(header) == 15


@pytest.mark.slow
def test_axes_that_were_asked_for_and_are_worse_than_none_add_to_the_deviance(made, tmp_path):
    _, records, _ = made
    lists = read_lists(records, counted=True)
    effort = Effort(np.ones(lists.site.size))
    tables = tables_of(lists, fit_community(cells_of(lists, effort, "counts"), replace(BARE, rank=1)), effort)
    worse = tables.species.assign(deviance=1.04 * tables.species["deviance_alone"])
    assert "takes" in _headline(tables)
    assert "adds 4.0 % to the deviance" in _headline(replace(tables, species=worse))
    # an organisation whose own least number keeps its sites out of all folds was told that axes take 100 % off
    unjudged = tables.species.assign(deviance=0.0, deviance_alone=0.0, gain=np.nan)
    write_page(
        tmp_path,
        replace(tables, species=unjudged, visits=tables.visits[:0]),
        replace(BARE, rank=1),
        [],
        "2026-01-02",
    )
    page = (tmp_path / "index.html").read_text()
    assert (
        "No counts of these sites were left out and predicted: how near the axes come to them is not known."
        in page
    )
    assert "100 %" not in page
    assert "gain-by-species" not in page
    assert f"{MINUS}n/a" not in page
    assert tables.names is tables.names  # asked for by each row of a table, and put together once


@pytest.mark.slow
def test_presence_has_probabilities(made, tmp_path):
    _, records, _ = made
    out = build_community(
        records, tmp_path / "presence", CommunitySettings(model="presence", rank=1, folds=2)
    )
    e = frame(out, "expected")
    assert e["expected"].between(0, 1).all()
    assert (e["lower"] <= e["upper"]).all()
    with pytest.raises(ConfigError, match="whatever their effort"):
        build_community(records, tmp_path / "no", CommunitySettings(model="presence", effort="duration"))


# --- bad records


def edited(table, tmp_path, edit):
    return records_of(edit(table.copy()), tmp_path)


def test_lists_that_are_not_complete_are_left_out_and_counted(made, tmp_path):
    table, _, _ = made
    some = {f"c{n}" for n in range(0, 30)}
    records = edited(table, tmp_path, lambda t: t.assign(complete=(~t["checklist"].isin(some)).astype(int)))
    lists = read_lists(records)
    assert lists.site.size == table["checklist"].nunique() - len(some & set(table["checklist"]))
    step, n, _ = lists.flow[1]
    assert n == -len(some & set(table["checklist"]))
    assert "not complete" in step


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t.assign(complete=0), r"has no complete checklist \(\d+ checklists in all\)"),
        (lambda t: t[t["species"].isin(["Avis species00"])],
         "1 species that were counted at 3 sites or more"),
        (lambda t: t.assign(count="X"), "0 species that were counted at 3 sites or more.*--model presence"),
        (lambda t: t[t["site"].isin(["s000", "s001"])], "complete checklists at 2 sites"),
    ],
)  # fmt: skip
def test_too_little_for_a_community_is_a_sentence(made, tmp_path, edit, said):
    records = edited(made[0], tmp_path, edit)
    with pytest.raises(InputError, match=said):
        build_community(records, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rare_species_are_left_out_and_named(made, tmp_path):
    table, _, _ = made
    first = table.iloc[[0]].assign(species="Rara avis")
    lists = read_lists(edited(table, tmp_path, lambda t: pd.concat([t, first])))
    assert "Rara avis" not in lists.species
    assert any(
        step.startswith("left out: species at fewer") and "Rara avis" in note for step, _, note in lists.flow
    )


def test_present_but_not_counted_is_no_part_of_the_counts(made, tmp_path):
    table, _, _ = made
    name, site = table.iloc[0][["species", "site"]]
    mine = (table["species"] == name) & (table["site"] == site)
    lists = read_lists(edited(table, tmp_path, lambda t: t.assign(count=t["count"].where(~mine, "X"))))
    birds, exposure, found = lists.summed()
    j, s = lists.sites["site_id"].to_list().index(site), lists.species.index(name)
    n = table[table["site"] == site]["checklist"].nunique()
    assert (birds[j, s], exposure[j, s], found[j, s]) == (0.0, n - mine.sum(), mine.sum())


def test_a_species_that_nobody_counted_is_no_part_of_a_fit_of_counts(made, tmp_path):
    table, _, _ = made
    name = table.iloc[0]["species"]
    records = edited(table, tmp_path, lambda t: t.assign(count=t["count"].where(t["species"] != name, "X")))
    assert name in read_lists(records).species
    lists = read_lists(records, counted=True)
    assert name not in lists.species
    assert any("counted at fewer than 3 sites" in step and name in note for step, _, note in lists.flow)


def test_what_fits_find_of_an_axis_is_told_of_that_axis():
    """A correction may have made the second axis the larger one."""
    truth = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 2)))[0] * [0.8, 1.3]
    np.testing.assert_allclose(_found(truth, [truth * [0.9, 0.6]]), [0.81, 0.36])


def test_no_species_stands_at_both_ends_of_an_axis():
    high, low = (named.tolist() for named in ends(np.array([0.5, -0.2, 0.1, -0.9])))
    assert (high, low) == ([0, 2], [3, 1])


def test_one_species_in_two_names_is_noticed(made, tmp_path):
    table, _, _ = made
    half = (table["species"] == "Avis species03") & (table["site"] > "s020")
    lists = read_lists(
        edited(table, tmp_path, lambda t: t.assign(species=t["species"].where(~half, "Avis species03b")))
    )
    assert any("Avis species03" in w and "one species in two names" in w for w in lists.warnings)


@pytest.mark.slow
def test_a_species_on_every_list_is_named(made, tmp_path):
    table, _, _ = made
    one = table.drop_duplicates("checklist").assign(species="Avis ubique", count="3")
    records = edited(table, tmp_path, lambda t: pd.concat([t, one]))
    out = build_community(records, tmp_path / "out", BARE)
    assert any(w.startswith("On every list: Avis ubique") for w in read_manifest(out)["warnings"])


# --- trends that follow the others


def test_a_panel_takes_the_scores_that_its_own_counts_have_no_part_in(made, tmp_path):
    _, records, out = made
    name = "Avis species05"
    panel = make_panel(
        records, tmp_path / "panel", PanelSettings(species=name, community=str(out), sites="all")
    )
    folder = open_panel(panel)
    scores = frame(out, "scores")
    own = scores[scores["without"] == name].set_index("site_id")["score"]
    np.testing.assert_allclose(
        folder.covariates()["axis 1 of other species"], own[folder.sites["site_id"].to_list()]
    )
    every = scores[scores["without"].isna()].set_index("site_id")["score"]
    assert np.abs(own - every).max() > 1e-3
    m = read_manifest(panel, "panel")
    assert m["settings"]["community"] == "community"
    assert "community" in m["inputs"]


def test_covariates_of_the_sites_stand_beside_the_scores(made, tmp_path):
    _, records, out = made
    (tmp_path / "more.csv").write_text("site_id,height\ns000,5\ns001,7\nelsewhere,9\n")
    settings = PanelSettings(
        species="Avis species05", community=str(out), site_table=str(tmp_path / "more.csv"), sites="all"
    )
    columns = open_panel(make_panel(records, tmp_path / "panel", settings)).covariates()
    assert columns["height"][:2].tolist() == [5.0, 7.0]
    assert np.isnan(columns["height"][2:]).all()
    assert np.isfinite(columns["axis 1 of other species"]).all()


def test_a_species_without_part_takes_the_scores_of_all(made):
    _, _, out = made
    scores = frame(out, "scores")
    every = scores[scores["without"].isna()].set_index("site_id")["score"]
    table = scores_without(out, "Rara avis")
    np.testing.assert_allclose(
        table.frame["axis 1 of other species"], every[table.frame["site_id"].to_list()]
    )


def test_a_species_in_another_case_or_by_its_common_name_takes_no_scores_of_its_own_counts(made):
    _, _, out = made
    own = scores_without(out, "Avis species05").frame
    assert scores_without(out, "AVIS species05").frame.equals(own)
    assert scores_without(out, "Rara avis", "avis Species05").frame.equals(own)


def test_a_common_name_of_several_species_takes_no_scores(made, tmp_path):
    shutil.copytree(made[2], tmp_path / "out")
    file = tmp_path / "out" / "species.parquet"
    pl.read_parquet(file).with_columns(common_name=pl.lit("Tit")).write_parquet(file)
    entry = {"bytes": file.stat().st_size, "sha256": hash_file(file)}
    update_manifest(file.parent, files=read_manifest(file.parent)["files"] | {file.name: entry})
    with pytest.raises(ConfigError, match="'Tit' is the common name of"):
        scores_without(tmp_path / "out", "Rara avis", "Tit")


@pytest.mark.slow
def test_a_community_without_axes_is_no_help_and_says_so(made, tmp_path):
    _, records, _ = made
    out = build_community(records, tmp_path / "none", BARE)
    assert "as asked for (--season none)" in (out / "index.html").read_text()
    with pytest.raises(InputError, match="has no axes"):
        make_panel(records, tmp_path / "panel", PanelSettings(species="Avis species05", community=str(out)))
    with pytest.raises(InputError, match="a 'community' is needed here"):
        make_panel(
            records, tmp_path / "panel", PanelSettings(species="Avis species05", community=str(records))
        )


@pytest.mark.slow
def test_a_recipe_fits_all_species_first_and_the_trends_follow(made, tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    table, _, _ = made
    table.to_csv(tmp_path / "lists.csv", index=False)
    columns = ", ".join(f'{a} = "{b}"' for a, b in (pair.split("=") for pair in MAP.split(",")))
    text = (
        'species = ["Avis species05"]\n'
        f'[ingest]\nfiles = ["lists.csv"]\nmap = {{ {columns} }}\n'
        '[community]\nrank = 1\nfolds = 2\n[panel]\nsites = "all"\ngroups = 2\n'
        '[fit]\nrank = 0\nbootstrap = 0\nstructure = "covariates"\n'
    )
    (tmp_path / "two.toml").write_text(text)
    recipe = read_recipe(tmp_path / "two.toml", tmp_path / "out")
    done = run_recipe(recipe, jobs=1)
    assert [r.error for r in done] == [""], done
    for r in done:
        m = read_manifest(r.folder / "panel")
        assert m["settings"]["community"] == "community"
        assert open_panel(r.folder / "panel").covariates()["axis 1 of other species"].size == 40
    assert run_recipe(recipe, jobs=1)[0].redone == (), "nothing changed, nothing is made again"
    (tmp_path / "no.toml").write_text(text.replace('sites = "all"', 'community = "x"'))
    with pytest.raises(ConfigError, match="leave one of them out"):
        read_recipe(tmp_path / "no.toml")


@pytest.mark.parametrize("seed", range(6))
def test_no_name_lies_on_an_arrow_or_another_name(seed):
    """Names were moved up and down from their tips, onto the heads of longer arrows."""
    rng = np.random.default_rng(seed)
    tips = rng.normal(size=(14, 2)) * [50.0, 35.0] + [40.0, 0.0]
    names = ["Reed Warbler"[: rng.integers(4, 13)] for _ in tips]
    places = named_places(tips, names)
    width = np.array([LETTER * len(name) for name in names])
    left = np.where(places[:, 0] >= tips[:, 0], places[:, 0], places[:, 0] - width)
    x, up = np.moveaxis(np.linspace(0, 1, 200)[:, None, None] * tips, 2, 0)
    for i in range(14):
        inside = (x > left[i] + 2) & (x < left[i] + width[i] - 2) & (np.abs(up - places[i, 1]) < LINE / 2 - 2)
        assert not inside.any(), names[i]
        near = np.abs(places[:i, 1] - places[i, 1]) < LINE - 1e-9
        assert not (near & (left[:i] < left[i] + width[i]) & (left[i] < left[:i] + width[:i])).any()


def test_the_command_says_what_it_wrote(made, tmp_path):
    _, records, _ = made
    told = run("community", records, "--out", tmp_path / "c", "--rank", "0", "--folds", "2")
    assert told.code == 0, told.err
    assert "n species 14" in told.out
    assert "No axes were tried: rank 0 was asked for" in " ".join(told.out.split())
    assert "index.html" in told.out
    assert run("inspect", tmp_path / "c").code == 0
    again = run("community", records, "--out", tmp_path / "c", "--rank", "0")
    assert again.code != 0
    assert "--overwrite" in again.err


def test_notes_name_species_as_the_page_does():
    fit = SimpleNamespace(
        fit=SimpleNamespace(fit=SimpleNamespace(converged=True)), tried=[SimpleNamespace(rank=1)], rank=1
    )
    tables = SimpleNamespace(
        fit=fit, lists=SimpleNamespace(site=np.zeros(3), species=("Passer domesticus", "Parus major")),
        species=pd.DataFrame({"n_lists": [3, 3]}),
        names={"Passer domesticus": "House Sparrow", "Parus major": "Parus major"},
    )  # fmt: skip
    assert _said(tables, with_covariates=False) == ["On every list: House Sparrow, Parus major."]


def test_no_axes_beside_covariates_is_said_beside_them():
    """The page said that species say nothing of each other beside levels alone, where they say what covariates do."""
    fit = SimpleNamespace(
        fit=SimpleNamespace(
            fit=SimpleNamespace(converged=True), settings=SimpleNamespace(family="poisson")
        ),
        tried=[SimpleNamespace(rank=1)], rank=0, responses=("wetness",),
    )  # fmt: skip
    lists, species = SimpleNamespace(site=np.zeros(3)), pd.DataFrame({"n_lists": [1]})
    tables = SimpleNamespace(fit=fit, lists=lists, species=species, names={"a": "a"})
    assert "nothing of each other beyond the covariates that" in _headline(tables)
    assert "better than covariates and levels of site" in _said(tables, with_covariates=True)[0]


def test_the_words_under_few_species_are_not_cut_off():
    names = np.array(["Parus major", "Turdus merula", "Anas platyrhynchos", "Acrocephalus scirpaceus"])
    of = pd.DataFrame({"correlation": [0.9] * 6, "lower": [0.8] * 6, "upper": [0.95] * 6})
    tables = SimpleNamespace(lists=SimpleNamespace(S=4), associations=of, at=lambda which: names[which])
    fig = _associations(tables).figure
    fig.savefig(BytesIO())  # places all words
    bar = fig.axes[1].xaxis
    assert bar.label.get_window_extent().x1 <= fig.bbox.x1
    ticks = [t.get_window_extent() for t in bar.get_ticklabels()]
    assert all(a.x1 < b.x0 for a, b in pairwise(ticks))
