"""Several species in one table of yearly counts: a run imports, fits and reports each by itself."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from openpyxl import Workbook

from fedmiss.cli.steps import conclude
from fedmiss.errors import ConfigError, InputError
from fedmiss.etl import ingest, rows
from fedmiss.etl.settings import IngestSettings
from fedmiss.files import MANIFEST, read_manifest
from fedmiss.pipeline import steps
from fedmiss.pipeline.chain import run_recipe
from fedmiss.pipeline.demo import COMPLETE, SPECIES, peak_counts, published_totals, run_demo
from fedmiss.pipeline.failures import AGAIN, failed, next_move, say_left
from fedmiss.pipeline.recipe import read_recipe, slug
from fedmiss.pipeline.steps import claimed
from fedmiss.pipeline.trims import run_trims
from fedmiss.resources import resource
from fedmiss.tables import read_table
from tests.folders import content, frame

pytestmark = pytest.mark.usefixtures("blank_figures")
NAMES = {"Alauda arvensis": "Skylark", "Parus major": "Great Tit", "Turdus merula": "Blackbird"}
RECIPE = """
out = "out"
species = {species}
min_records = 20
[ingest]
files = "counts.csv"
[fit]
model = "quasi"
rank = 0
bootstrap = 0
[report]
date = "2026-01-02"
"""


def write(folder: Path, species: str, names=NAMES, doubled: str = "") -> Path:
    """8 sites, 8 years; every species was counted at sites of its own."""
    rows = ["site;species;common name;year;count"]
    for k, (latin, english) in enumerate(names.items()):
        for s in range(k, k + 8):
            for y in range(2012, 2020):
                if (s + y + k) % 5:
                    rows.append(f"S{s};{latin};{english};{y};{(s + 3) * (k + 2) + (s * y) % 4}")
        if latin == doubled:
            rows.append(f"S{k};{latin};{english};2014;77")
    rows.append("S1;Struthio camelus;Ostrich;2013;1")
    (folder / "counts.csv").write_text("\n".join(rows) + "\n")
    (folder / "r.toml").write_text(RECIPE.format(species=species))
    return folder / "r.toml"


@pytest.mark.slow
def test_all_species_of_a_table_each_by_itself(tmp_path, capsys):
    said: list[str] = []
    recipe = read_recipe(write(tmp_path, '"all"'))
    results = run_recipe(recipe, jobs=1, say=said.append)
    assert [r.species for r in results] == sorted(NAMES)
    assert all(r.page is not None and r.page.exists() for r in results)
    assert any("1 of 4 species have fewer than 20 rows" in text for text in said)
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    for k, (latin, english) in enumerate(NAMES.items()):
        folder = tmp_path / "out" / slug(latin)
        records = frame(folder / "records" / "records")
        assert set(records["species"]) == {latin}
        sites = read_table(folder / "panel" / "sites.parquet", "sites")["site_id"].to_pylist()
        assert sorted(sites) == sorted(f"S{s}" for s in range(k, k + 8)), "no site of another species"
        assert english in page
    again = run_recipe(recipe, jobs=1)
    assert all(r.redone == () for r in again), "nothing is made twice"
    assert capsys.readouterr().err == ""
    write(tmp_path, '["Skylark", "Great Tit"]')
    run_recipe(read_recipe(tmp_path / "r.toml"), jobs=1)
    told = capsys.readouterr().err
    assert "turdus-merula/report/index.html" in told, "a page of the run before, which this one does not make"
    assert "skylark" not in told


def test_a_folder_of_results_is_of_one_recipe(tmp_path):
    """The second of two recipes with one ``out`` replaced the results of the first without a word."""
    one = write(tmp_path, '["Great Tit"]', names={"Great Tit": "Great Tit"})
    two = tmp_path / "two.toml"
    two.write_text(one.read_text())
    conclude(run_recipe(read_recipe(one), jobs=1))
    before = (tmp_path / "out" / "report" / "index.html").read_bytes()
    with pytest.raises(
        ConfigError, match=r"results of the recipe .*r\.toml, which .*two\.toml would replace.*--out"
    ):
        run_recipe(read_recipe(two), jobs=1)
    assert (tmp_path / "out" / "report" / "index.html").read_bytes() == before
    with claimed(tmp_path / "other", two):
        pass
    one.rename(tmp_path / "renamed.toml")
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    (again,) = run_recipe(read_recipe(moved / "renamed.toml"), jobs=1)
    assert again.redone == ()
    moved.rename(tmp_path)


def test_a_damaged_note_stops_a_run_before_it_replaces_results(tmp_path):
    """All steps ran and replaced the results of another recipe, and then the note was refused."""
    one, two = write(tmp_path, '["Great Tit"]', names={"Great Tit": "Great Tit"}), tmp_path / "two.toml"
    two.write_text(one.read_text().replace("counts.csv", "other.csv"))
    run_recipe(read_recipe(one), jobs=1)
    (tmp_path / "other.csv").write_text((tmp_path / "counts.csv").read_text().replace(";2012;", ";2011;"))
    note, said = tmp_path / "out" / ".recipe.json", []
    for damage in (b"{", b"[]", b'{"recipe": 1}', b'{"recipe": "\\u0000"}', b"\xff"):
        note.write_bytes(damage)
        before = content(tmp_path / "out")
        for recipe in (one, two):
            with pytest.raises(
                ConfigError, match=r"recipe\.json is damaged.* Nothing was run\. Delete it .*--out"
            ):
                run_recipe(read_recipe(recipe), jobs=1, say=said.append)
        assert not said
        assert content(tmp_path / "out") == before
    note.unlink()
    (again,) = run_recipe(read_recipe(one), jobs=1)
    assert again.redone == ()
    with pytest.raises(ConfigError, match="results of the recipe"):
        run_recipe(read_recipe(two), jobs=1)


def test_a_note_is_there_before_results_and_goes_where_none_came(tmp_path, monkeypatch):
    """A first run that was killed left none, and another recipe got in; its removal hides no error of the run."""
    one, two, out = tmp_path / "r.toml", tmp_path / "two.toml", tmp_path / "out"
    one.touch()
    two.touch()

    def stop():
        assert (out / ".recipe.json").exists()
        raise KeyError

    with pytest.raises(KeyError), claimed(out, one):
        stop()
    assert not out.exists()
    with claimed(out, one):
        (out / ".fit.key").touch()
        with pytest.raises(ConfigError, match="results of the recipe"), claimed(out, two):
            pass
    assert [p.name for p in sorted(out.iterdir())] == [".fit.key", ".recipe.json"]
    (out / ".fit.key").unlink()

    def fail(*given):
        raise PermissionError

    monkeypatch.setattr(steps, "remove_file", fail)
    # a killed run made no results
    with pytest.raises(KeyError), claimed(out, two):
        stop()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", pytest.param("xlsx", marks=pytest.mark.nightly)])
def test_a_table_is_imported_once_for_all_its_species(tmp_path, monkeypatch, ending):
    path = write(tmp_path, '["Skylark", "Great Tit", "Turdus merulla"]')
    if ending == "xlsx":
        book = Workbook()
        for line in (tmp_path / "counts.csv").read_text().splitlines():
            book.active.append(line.split(";"))
        book.save(tmp_path / "counts.xlsx")
        path.write_text(path.read_text().replace("counts.csv", "counts.xlsx"))
    called = []
    for module, name in ((ingest, "expand"), (rows.Rows, "chunks")):
        real = getattr(module, name)

        def counted(*arguments, real=real, name=name, **more):
            called.append(name)
            return real(*arguments, **more)

        monkeypatch.setattr(module, name, counted)
    results = run_recipe(read_recipe(path), jobs=1)
    assert [bool(r.page) for r in results] == [True, True, False], "one is no species of the table"
    assert called == ["expand", "chunks"]
    assert all((tmp_path / "out" / slug(n) / "records").exists() for n in ("Skylark", "Great Tit"))


def test_the_next_move_for_a_species_that_one_of_several_tables_lacks_helps(tmp_path):
    rows = {
        "a": "A,Lark,2001,3\nA,Tit,2001,2\n",
        "b": "A,Tit,2002,4\n",
        "zeros": "A,Tit,2002,4\nA,Lark,2002,0\n",
    }
    for name, text in rows.items():
        (tmp_path / f"{name}.csv").write_text("site,species,year,count\n" + text)
    settings = IngestSettings(species=("Lark",))
    with pytest.raises(ConfigError, match=r"b.csv: the species 'Lark'") as error:
        ingest.ingest([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "r", settings, keep_cache=False)
    move = next_move("ingest", error.value.fields["near"], named="near" in error.value.fields)
    assert "rows of it with 0" in move
    ingest.ingest([tmp_path / "a.csv", tmp_path / "zeros.csv"], tmp_path / "r", settings, keep_cache=False)


@pytest.mark.slow
def test_a_species_that_fails_does_not_stop_the_others(tmp_path):
    recipe = read_recipe(
        write(tmp_path, '["Skylark", "Parus major", "Turdus merulla"]', doubled="Parus major")
    )
    results = {r.species: r for r in run_recipe(recipe, jobs=1)}
    assert results["Skylark"].page is not None, "by any of its names"
    assert results["Parus major"].step == results["Turdus merulla"].step == "ingest"
    assert "S1" in results["Parus major"].error, "the doubled row has its place"
    assert "Turdus merula" in results["Turdus merulla"].error, "the near name"
    assert all(results[n].next for n in ("Parus major", "Turdus merulla"))


def test_two_names_of_one_species_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"'Skylark' and 'Alauda arvensis' are one species, Alauda arvensis"
    ):
        run_recipe(read_recipe(write(tmp_path, '["Skylark", "Alauda arvensis"]')), jobs=1)


def test_too_few_rows_of_every_species_are_an_error(tmp_path):
    path = write(tmp_path, '"all"')
    path.write_text(path.read_text().replace("min_records = 20", "min_records = 500"))
    with pytest.raises(ConfigError, match=r"no species has 500 rows \(the most is \d+\); lower min_records"):
        run_recipe(read_recipe(path), jobs=1)


def test_a_faulty_table_of_groups_stops_before_any_species_is_fitted(tmp_path):
    """It was told when all of them were done, and no page of all was made."""
    path = write(tmp_path, '"all"')
    path.write_text('species_groups = "groups.csv"' + path.read_text())
    (tmp_path / "groups.csv").write_text("species,group\nParus major,\n")
    with pytest.raises(InputError, match=r"groups.csv line 2, column 'group': blank"):
        run_recipe(read_recipe(path), jobs=1)
    assert not list((tmp_path / "out").glob("*/panel"))


def test_only_tables_of_counts_are_taken_apart(tmp_path):
    write(tmp_path, '"all"')
    tables, held = ingest.count_tables([tmp_path / "counts.csv"], IngestSettings())
    assert [t.path.name for t in tables] == ["counts.csv"]
    assert sorted(held) == sorted([*NAMES, "Struthio camelus"])
    (tmp_path / "visits.csv").write_text("observer,site,date,species,count\no,S,2020-05-01,Parus major,3\n")
    visits = [tmp_path / "visits.csv"]
    assert ingest.count_tables(visits, IngestSettings(column_map={"auto": ""})) == ([], {})


@pytest.mark.slow
def test_a_table_without_species_is_never_read_as_several(tmp_path):
    (tmp_path / "counts.csv").write_text(
        "site;year;count\n" + "".join(f"a;{y};4\n" for y in range(2001, 2009))
    )
    (tmp_path / "r.toml").write_text(RECIPE.format(species='["wren", "robin"]'))
    with pytest.raises(ConfigError, match="each species is imported by itself"):
        run_recipe(read_recipe(tmp_path / "r.toml"), jobs=1)
    (tmp_path / "r.toml").write_text(
        RECIPE.format(species='"all"').replace("min_records = 20", "min_records = 5")
    )
    (result,) = run_recipe(read_recipe(tmp_path / "r.toml"), jobs=1)
    assert result.species == "counts", "named by its file"


def test_two_species_of_one_folder_are_refused(tmp_path):
    path = write(tmp_path, '"all"', names={"Turdus merula": "a", "Turdus/merula": "b"})
    with pytest.raises(ConfigError, match="would have one folder, turdus-merula"):
        run_recipe(read_recipe(path), jobs=1)
    assert not (tmp_path / "out" / "turdus-merula").exists()


# -- the embedded survey ---------------------------------------------------------------------------------------------------


def test_zeros_of_the_survey_stand_where_its_table_is_complete():
    """A colony has a row in every complete year; counts are those of the table, and none of its colonies' is lost."""
    table = peak_counts().to_pandas()
    raw = pd.read_csv(resource("demo_data", "everglades_peak_counts.csv"), dtype={"site": str, "region": str})
    published = published_totals().to_pandas()
    published = published[published["region"] == "all"].set_index(["species", "year"])["count"]
    assert not table.duplicated(["site", "species", "year"]).any()
    for code, (latin, _) in SPECIES.items():
        mine, part = raw[raw["species"] == code], table[table["species"] == latin]
        wide = part.pivot(index="site", columns="year", values="count")
        full = wide.columns[wide.notna().all()]
        sums = mine.groupby("year")["count"].sum()
        complete = sums.index[sums >= COMPLETE * published[code].reindex(sums.index)]
        assert set(full) == set(complete)
        kept = mine[mine["site"].isin(wide.index)].set_index(["site", "year"])["count"].sort_index()
        found = part[part["count"] > 0].set_index(["site", "year"])["count"].sort_index()
        pd.testing.assert_series_equal(found, kept[kept > 0], check_dtype=False)
        assert mine.groupby("site").size()[wide.index].min() >= 3


def test_a_page_whose_manifest_was_changed_is_named_as_one_of_an_earlier_run(tmp_path, capsys):
    for name in ("old", "foreign"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("")
    (tmp_path / "old" / MANIFEST).write_text("{}")
    say_left(tmp_path, [])
    assert "1 page in" in (told := capsys.readouterr().err)
    assert "old/index.html" in told


def test_a_full_disk_is_no_fault_of_a_species(tmp_path):
    """The next move was to give the species more counts."""
    error = "cannot write trends/wren: the disk is full (0.1 MB are free); free some space or choose another folder."
    assert failed("Wren", tmp_path, "fit", error, "give the species more counts").next == AGAIN
    assert failed("Wren", tmp_path, "fit", "no count.", "give it more").next == "give it more"


def test_a_species_without_a_class_is_named_once(tmp_path, capsys):
    recipe = read_recipe(
        write(tmp_path, '["Great Tit", "Wren"]', names={"Great Tit": "Great Tit", "Wren": "Wren"})
    )
    conclude(run_recipe(recipe, jobs=1))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Wren "))
    assert line.split()[:4] == ["Wren", "no", "trend", "class"]


@pytest.mark.slow
def test_a_common_name_of_two_species_stands_for_neither(tmp_path):
    path = write(tmp_path, '"all"', dict.fromkeys(NAMES, "Bird"))
    path.write_text('species_groups = "groups.csv"' + path.read_text())
    (tmp_path / "groups.csv").write_text("species,group\nBird,wood\nParus major,wood\n")
    for results in (
        run_recipe(read_recipe(path), jobs=1),
        run_trims(tmp_path / "counts.csv", tmp_path / "trims", groups=tmp_path / "groups.csv", jobs=1),
    ):
        errors = {r.species: r.error for r in results}
        assert "Alauda arvensis, Parus major, Turdus merula" in errors["Bird"]
    assert set(pd.read_csv(tmp_path / "out" / "indicator.csv")["group"]) == {"all"}
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert all(f"Bird ({latin})" in page for latin in NAMES), "else nobody can tell the rows apart"


@pytest.mark.nightly
def test_the_demo_of_all_species(tmp_path):
    results = run_demo(tmp_path / "birds", every_species=True, bootstrap=25, date="2026-01-02")
    assert [r.error for r in results] == [""] * len(SPECIES)
    index = frame(tmp_path / "birds" / "index", "report_index")
    assert set(index["common_name"]) == {names[1] for names in SPECIES.values()}
    assert np.isfinite(index["percent_lo"]).all()
    assert read_manifest(tmp_path / "birds")["results"]["n_failed"] == 0
