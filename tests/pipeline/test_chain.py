"""The chain of a recipe: what is redone when something changes, what one failure costs, what is told."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedmiss.cli.show import _describe
from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.panel import PanelSettings, make_panel
from fedmiss.files import read_manifest, write_manifest
from fedmiss.folders import FitFacts
from fedmiss.pipeline.chain import run_recipe, run_species
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.panels import open_panel
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.pipeline.settings import FitSettings
from fedmiss.pipeline.steps import step
from fedmiss.report.build import build_report
from fedmiss.report.inputs import read_inputs
from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird
from tests.cli.terminal import fedmiss, tree
from tests.folders import frame

pytestmark = pytest.mark.usefixtures("blank_figures")
RECIPE = """
species = "American Wigeon"
[ingest]
files = "sim/ebd_sim.txt"
sampling = "sim/ebd_sim_sampling.txt"
complete = true
[panel]
groups = 3
[fit]
model = "log1p"
rank = 0
bootstrap = 4
[report]
date = "2026-01-01"
"""
STEPS = ("panel", "fit", "impute", "report")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with simulated files and a recipe, run once."""
    folder = tmp_path_factory.mktemp("chain")
    simulate_ebird(
        folder / "sim", EbirdSettings(records=1000, species=3, start="2018-01", end="2020-12", seed=3)
    )
    (folder / "trend.toml").write_text(RECIPE, encoding="utf-8")
    first = run_recipe(read_recipe(folder / "trend.toml"))
    assert [r.redone for r in first] == [STEPS]
    return folder


def run(place: Path, old: str = "", new: str = "", **more):
    """Run the recipe with one text replaced; return what was redone and what was said."""
    assert old in RECIPE
    text = RECIPE.replace(old, new) if old else RECIPE
    (place / "trend.toml").write_text(text, encoding="utf-8")
    said: list[str] = []
    (result,) = run_recipe(read_recipe(place / "trend.toml"), say=said.append)
    assert result.page is not None
    assert result.page.exists()
    return result.redone, said


def times(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_the_folder_holds_every_step(place):
    out = place / "trend-out"
    made = {
        name: read_manifest(out / name, name) for name in ("records", "panel", "fit", "imputed", "report")
    }
    assert (out / "report" / "index.html").exists()
    assert made["records"]["terms"]["citation"]
    flow = [row["step"] for row in made["records"]["flow"]]
    for manifest in made.values():
        assert manifest["terms"] == made["records"]["terms"], "terms travel with everything derived"
        assert [row["step"] for row in manifest["flow"]][: len(flow)] == flow


def test_imputed_cells_carry_the_names_of_the_axes(place):
    out = place / "trend-out"
    cells = frame(out / "imputed" / "imputed")
    sites = frame(out / "panel" / "sites").set_index("site_index")["site_id"]
    months = frame(out / "panel" / "months").set_index("month_index")["month"]
    assert len(cells) == len(sites) * len(months)
    assert (cells["site_id"].to_numpy() == sites.loc[cells["site_index"]].to_numpy()).all()
    assert (cells["month"].to_numpy() == months.loc[cells["month_index"]].to_numpy()).all()


def test_totals_are_calibrated_whether_or_not_sites_were_dropped(place):
    out = place / "trend-out"
    settings = PanelSettings(species="Mareca americana", groups=3, sites="all")
    make_panel(out / "records", place / "all-sites", settings)
    smears = []
    for panel, chosen in ((out / "panel", True), (place / "all-sites", False)):
        assert open_panel(panel).chosen_by_detection == chosen
        fit_panel(panel, place / f"fit-{chosen}", FitSettings(model="negbin", rank="0", bootstrap=0))
        smears.append(read_manifest(place / f"fit-{chosen}")["results"]["smear"])
    assert smears[0] < smears[1]
    assert smears[1] > 1.0


def test_a_second_run_redoes_nothing(place):
    run(place)
    before = times(place / "trend-out")
    redone, said = run(place)
    assert redone == ()
    assert said.count("  unchanged, kept") == 5
    assert times(place / "trend-out") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "redone"),
    [
        ('date = "2026-01-01"', 'date = "2026-02-02"', ("report",)),
        pytest.param("bootstrap = 4", "bootstrap = 5", ("fit", "impute", "report"), marks=pytest.mark.slow),
        pytest.param("groups = 3", "groups = 2", STEPS, marks=pytest.mark.nightly),
        pytest.param("complete = true", "complete = false", STEPS, marks=pytest.mark.nightly),
    ],
)
def test_a_changed_setting_redoes_what_depends_on_it(place, old, new, redone):
    run(place)
    assert run(place, old, new)[0] == redone


@pytest.mark.slow
def test_a_touched_file_is_the_same_and_a_changed_one_is_not(place):
    run(place)
    ebd = place / "sim" / "ebd_sim.txt"
    content = ebd.read_bytes()
    ebd.write_bytes(content)
    assert run(place)[0] == ()
    ebd.write_bytes(content[: content.rstrip(b"\n").rfind(b"\n") + 1])  # one record less
    try:
        _, said = run(place)
        assert said[:2] == ["ingest", "  done"]
    finally:
        ebd.write_bytes(content)


@pytest.mark.slow
def test_a_step_that_was_cut_off_is_done_again(place):
    """A folder is trusted once its key is there, which is written last; until then the key is that of no settings."""
    run(place)
    (place / "trend-out" / ".fit.key").write_text("0" * 64 + "\n")
    assert run(place)[0] in (("fit",), ("fit", "impute", "report"))
    assert run(place)[0] == ()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["records", "panel", "fit"])
def test_a_folder_that_no_run_made_stays(place, tmp_path, step):
    """Somebody's own records, panel or fit in the folder of results is not made again."""
    shutil.copytree(place / "trend-out" / step, tmp_path / "out" / step)
    before = times(tmp_path)
    done = fedmiss("run", place / "trend.toml", "--out", tmp_path / "out")
    assert done.code == 2
    assert f"{step} exists already, and no run of a recipe made it" in done.err
    after = times(tmp_path)
    assert before.items() <= after.items()


def test_a_report_is_of_one_chain(place, tmp_path):
    """A fit of the same sites and months with other settings, or a panel of other groups, has other numbers."""
    run(place)
    panel, fit, imputed = (place / "trend-out" / name for name in ("panel", "fit", "imputed"))
    other = fit_panel(panel, tmp_path / "fit", FitSettings(model="log1p", rank=1, bootstrap=0))
    with pytest.raises(InputError, match=r"was not imputed from .*fit"):
        read_inputs(panel, other, imputed)
    make_panel([place / "trend-out" / "records"], tmp_path / "panel", PanelSettings(groups=2))
    with pytest.raises(
        InputError, match=r"fitted on .*: their tables differ. It belongs to .*trend-out/panel: name that"
    ):
        read_inputs(tmp_path / "panel", fit, imputed)
    alone = shutil.copytree(fit, tmp_path / "alone" / "fit")
    with pytest.raises(InputError, match=r"their tables differ\. Run `fedmiss fit` on this panel"):
        read_inputs(tmp_path / "panel", alone, imputed)


def test_the_result_of_a_study_names_the_own_fit_beside_it(tmp_path):
    """A kit has both: the joint result, which has no sites, and the fit of the organisation's own."""
    write_manifest(made := tmp_path / "result", "joint", settings={}, inputs={}, results={})
    with pytest.raises(InputError, match="but a 'fit' is needed here; `fedmiss fit` makes one"):
        read_manifest(made, "fit")
    (own := tmp_path / "report" / "fit").mkdir(parents=True)
    with pytest.raises(InputError, match=f"which knows no site; that of your sites is {own}"):
        read_manifest(made, "fit")


def test_a_log1p_fit_whose_factor_went_with_something_else_is_not_read(place, tmp_path):
    run(place)
    facts = read_manifest(place / "trend-out" / "fit")["results"]
    assert FitFacts.of(facts).lognormal
    with pytest.raises(InputError, match=r"a fit holds a log1p fit of an earlier version.*Fit again\."):
        FitFacts.of(old := {name: value for name, value in facts.items() if name != "lognormal"}, "a fit")
    (tmp_path / "old").mkdir()
    write_manifest(tmp_path / "old", "fit", settings={}, inputs={}, results=old)
    for shown in ("old", "."):
        with pytest.raises(InputError, match="old holds a log1p fit"):
            _describe(tmp_path / shown)


@pytest.mark.slow
def test_the_same_result_through_the_chain_and_step_by_step(place, tmp_path, monkeypatch):
    """`fedmiss run` writes what the single commands write: every table, byte for byte."""
    run(place)
    monkeypatch.chdir(tmp_path)
    files = (place / "sim" / "ebd_sim.txt", "--sampling", place / "sim" / "ebd_sim_sampling.txt")
    wigeon = ("--species", "American Wigeon")
    for words in (
        ("ingest", *files, "--complete", *wigeon, "--no-cache", "--out", "records"),
        ("panel", "records", "--groups", 3, *wigeon, "--out", "panel"),
        ("fit", "panel", "--model", "log1p", "--rank", 0, "--bootstrap", 4, "--out", "fit"),
        ("impute", "panel", "fit", "--out", "imputed"),
    ):
        done = fedmiss(*words)
        assert done.code == 0, done.err
    for path in sorted(tmp_path.rglob("*.parquet")):
        if path.name != "trace.parquet":  # it holds seconds
            twin = place / "trend-out" / path.relative_to(tmp_path)
            assert twin.read_bytes() == path.read_bytes(), path


@pytest.mark.slow
def test_all_species_with_enough_records(place, tmp_path):
    text = RECIPE.replace('species = "American Wigeon"', 'species = "all"\nmin_records = 9999')
    (place / "all.toml").write_text(text, encoding="utf-8")
    recipe = read_recipe(place / "all.toml", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"no species has 9999 records \(the most is \d+\)"):
        run_recipe(recipe)
    said: list[str] = []
    results = run_recipe(replace(recipe, min_records=150), jobs=1, say=said.append)
    counts = frame(tmp_path / "out" / "records" / "records")["species"].value_counts()
    assert [r.species for r in results] == sorted(counts[counts >= 150].index)
    assert 0 < len(results) < len(counts)
    few = f"{len(counts) - len(results)} of {len(counts)} species have fewer than 150 records (min_records)"
    assert f"{few} and are left out" in said


def test_several_species_and_none_named(place, tmp_path):
    (place / "none.toml").write_text(RECIPE.replace('species = "American Wigeon"', ""), encoding="utf-8")
    with pytest.raises(ConfigError, match="the records hold 3 species; name them"):
        run_recipe(read_recipe(place / "none.toml", tmp_path / "out"))


def test_a_missing_file_stops_before_anything_is_written(place, tmp_path):
    recipe = replace(read_recipe(place / "trend.toml", tmp_path / "out"), sampling=(place / "gone.txt",))
    with pytest.raises(InputError, match=r"gone\.txt \(named by the recipe trend\)"):
        run_recipe(recipe)
    assert tree(tmp_path) == {}


@pytest.mark.slow
def test_the_polygon_is_read_beside_the_recipe_and_its_content_counts(place):
    ring = [[-180, -80], [180, -80], [180, 80], [-180, 80], [-180, -80]]
    shape = place / "area.json"
    shape.write_text(f'{{"type": "Polygon", "coordinates": [{ring}]}}', encoding="utf-8")
    run(place, "complete = true", 'complete = true\npolygon = "area.json"')
    assert run(place, "complete = true", 'complete = true\npolygon = "area.json"')[0] == ()
    shape.write_text(shape.read_text(encoding="utf-8").replace("80", "79"), encoding="utf-8")
    _, said = run(place, "complete = true", 'complete = true\npolygon = "area.json"')
    assert said[:2] == ["ingest", "  done"]


@pytest.mark.slow
def test_what_a_page_shows_is_read_beside_the_recipe_and_its_content_counts(place, monkeypatch):
    picture, catalogue = place / "bird.png", place / "own.po"
    picture.write_bytes(b"\x89PNG one")
    catalogue.write_text('msgid ""\nmsgstr "Language: fr\\n"\n', encoding="utf-8")
    more = 'date = "2026-01-01"', 'date = "2026-01-01"\nphoto = "bird.png"\nlanguage = "own.po"'
    run(place)
    assert run(place, *more)[0] == ("report",)
    monkeypatch.chdir(place)
    assert run(Path(), *more)[0] == (), "the same recipe from another folder"
    picture.write_bytes(b"\x89PNG two")
    assert run(place, *more)[0] == ("report",)
    catalogue.write_text('msgid ""\nmsgstr "Language: nl\\n"\n', encoding="utf-8")
    assert run(place, *more)[0] == ("report",)
    picture.unlink()
    with pytest.raises(InputError, match=r"there is no file .*bird.png"):
        run(place, *more)


@pytest.mark.slow
def test_the_same_file_read_as_something_else_is_ingested_again(tmp_path):
    simulate_ebird(tmp_path / "sim", EbirdSettings(records=1000, species=2, start="2018-01", end="2020-12"))
    lines = (tmp_path / "sim" / "ebd_sim.txt").read_text(encoding="utf-8").splitlines()
    for name, part in (("a", lines[:500]), ("b", [lines[0], *lines[500:]])):
        (tmp_path / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")

    def visits(files: str) -> int:
        text = RECIPE.replace('files = "sim/ebd_sim.txt"', files)
        text = text.replace('sampling = "sim/ebd_sim_sampling.txt"', "")
        (tmp_path / "r.toml").write_text(text, encoding="utf-8")
        run_recipe(read_recipe(tmp_path / "r.toml"))
        visited: int = read_manifest(tmp_path / "r-out" / "panel", "panel")["results"]["n_visits"]
        return visited

    both = '"a.txt", "sim/ebd_sim_sampling.txt"'
    held_back = visits(f'files = [{both}]\nunvetted = "b.txt"')
    assert visits(f'files = [{both}, "b.txt"]') > held_back, "unvetted records are no visits"


@pytest.mark.slow
def test_one_changed_count_in_one_of_two_files_of_one_name_goes_through_the_chain(tmp_path):
    def total(first: int) -> float:
        for club, site in (("ann", "A"), ("bob", "B")):
            (tmp_path / club).mkdir(exist_ok=True)
            rows = [
                f"{site}{s},{y},{first if (club, s, y) == ('ann', 0, 2010) else 4 + s}"
                for s in range(3)
                for y in range(2010, 2014)
            ]
            (tmp_path / club / "counts.csv").write_text(
                "\n".join(["site,year,count", *rows]), encoding="utf-8"
            )
        (tmp_path / "r.toml").write_text(
            'species = "wren"\n[ingest]\nfiles = ["ann/counts.csv", "bob/counts.csv"]\n'
            '[fit]\nrank = 0\nmodel = "quasi"\nbootstrap = 0\n',
            encoding="utf-8",
        )
        run_recipe(read_recipe(tmp_path / "r.toml"))
        out = tmp_path / "r-out"
        assert len(read_manifest(out / "records", "records")["inputs"]) == 2, "the hash of each file"
        return float(read_manifest(out / "imputed", "imputed")["results"]["total"])

    assert total(5) < total(60)


@pytest.mark.slow
def test_the_demo_from_an_empty_folder_and_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = fedmiss("demo", "--bootstrap", 2)
    assert done.code == 0, done.err
    page = Path(done.out.strip().splitlines()[-1].removeprefix("Report: "))
    assert page.is_file()
    assert page.is_relative_to(tmp_path / "fedmiss-demo")
    assert "survey: " in done.out
    again = fedmiss("demo", "--bootstrap", 2)
    assert again.code == 0
    assert again.out.count("unchanged, kept") == 5
    panel = read_manifest(tmp_path / "fedmiss-demo" / "panel")["results"]
    assert panel["common_name"] == "Great Egret"
    assert len(panel["groups"]) == 1


def test_a_failed_step_leaves_no_key_behind(tmp_path):
    """A key is the proof that a run made the folder: beside a folder that a user makes later it would give that away."""

    def fails(*, overwrite):
        raise InputError("no")

    with pytest.raises(InputError):
        step(tmp_path / "panel", "a" * 64, fails)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "panel").mkdir()
    (tmp_path / "panel" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no run of a recipe made it"):
        step(tmp_path / "panel", "a" * 64, fails)


def test_a_folder_of_a_species_that_is_a_link_is_refused(tmp_path):
    """What a run makes and replaces would lie in the folder that it points to."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.txt").write_text("mine")
    (tmp_path / "wigeon").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link to"):
        run_species(None, "Wigeon", tmp_path / "records", tmp_path / "wigeon")
    assert [p.name for p in (tmp_path / "elsewhere").iterdir()] == ["mine.txt"]


def test_notes_of_a_fit_name_groups_and_not_their_folders(tmp_path):
    """The page said that the group 'Club%20S%C3%BCd' never saw the species."""
    header = "observer,site,date,species,count,complete\n"
    for name, count, other in (("Nord", 3, ""), ("Süd", 0, "Robin")):
        rows = [
            f"o,{name}{s},{year}-05-06,{other or 'Wren'},{count or 1},1\n"
            for s in range(4)
            for year in range(2010, 2016)
        ]
        (tmp_path / f"{name}.csv").write_text(header + "".join(rows), encoding="utf-8")
        ingest([tmp_path / f"{name}.csv"], tmp_path / f"Club {name}", IngestSettings(column_map={"auto": ""}))
    folders = [tmp_path / "Club Nord", tmp_path / "Club Süd"]
    panel = make_panel(folders, tmp_path / "panel", PanelSettings(species="Wren", sites="all"))
    fit = fit_panel(panel, tmp_path / "fit", FitSettings(model="quasi", rank="0", bootstrap=0))
    assert "group 'Club Süd' never saw the species." in read_manifest(fit, "fit")["warnings"]


def test_nothing_is_chosen_for_a_species_that_was_never_found(tmp_path):
    """Models were compared for as long as of any other, on counts that are all 0."""
    rows = "".join(f"s{s},{y},0\n" for s in range(12) for y in range(2001, 2008))
    (tmp_path / "counts.csv").write_text("site,year,count\n" + rows)
    ingest([tmp_path / "counts.csv"], tmp_path / "records")
    panel = make_panel(tmp_path / "records", tmp_path / "panel")
    fit = fit_panel(panel, tmp_path / "fit", FitSettings(bootstrap=20))
    found = read_manifest(fit, "fit")["results"]
    assert (found["converged"], found["rank"], found["cv_summary"]) == (True, 0, [])
    imputed = impute_panel(panel, fit, tmp_path / "imputed")
    assert "Never found" in build_report(panel, fit, imputed, tmp_path / "report").read_text(encoding="utf-8")
