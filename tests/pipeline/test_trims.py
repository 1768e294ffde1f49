"""A coordinator's spreadsheet of many species with five faults: good results, five failures named, the same on any cores."""

import os

import numpy as np
import openpyxl
import pandas as pd
import pytest

from fedmiss.errors import InputError
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.counts import read_counts
from fedmiss.etl.species import read_groups
from fedmiss.files import read_manifest
from fedmiss.pipeline.chain import run_recipe
from fedmiss.pipeline.failures import not_of_the_run
from fedmiss.pipeline.recipe import read_recipe, slug
from fedmiss.pipeline.trims import Trims, run_trims
from fedmiss.report.species import log_covariance
from fedmiss.report.trim import TrimSettings, fit_trim
from fedmiss.report.trim.files import Shown
from tests.blank import draw_nothing
from tests.cli.terminal import fedmiss
from tests.folders import content
from tests.report.trim_readers import Tof

ZERO, SHORT, TWICE, ABSENT, MISSPELT = (
    "Alauda nullus", "Anthus brevis", "Corvus geminus", "Strix absens", "Parus maior",
)  # fmt: skip
GROUPS = ("farmland", "forest", "wetland")
PLAN = Trims(settings=TrimSettings(overdispersion=True, serial_correlation=True), covariates=("Region",))


def names(n):
    good = (f"{g} {e}us" for g in ("Turdus", "Sylvia", "Falco", "Larus", "Sitta") for e in "abcdefgh")
    return [*["Parus major", *good][: n - 5], ZERO, SHORT, TWICE]


def write(folder, species, sites, years, seed=1):
    """A workbook of the species asked for, but two, with a title above its header; and a table of habitats."""
    rng, rows = np.random.default_rng(seed), []
    first = 2001
    for name in names(species):
        level, slope = rng.normal(1.5, 0.8, sites), rng.normal(0, 0.03)
        for s in range(sites):
            for y in range(2 if name == SHORT else years):
                if rng.random() < 0.7 or (s, y) == (3, 1):
                    n = 0 if name == ZERO else int(rng.poisson(np.exp(level[s] + slope * y)))
                    rows.append([f"S{s:03d}", name, first + y, n, ("North", "South")[s % 2]])
                    if name == TWICE and (s, y) == (3, 1):
                        rows.append([f"S{s:03d}", name, first + y, n + 1, "South"])
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Counts")
    for row in (["Breeding birds"], [], ["Site", "Species", "Year", "Count", "Region"], *rows):
        sheet.append(row)
    book.save(folder / "counts.xlsx")
    asked = [MISSPELT if n == "Parus major" else n for n in names(species)] + [ABSENT]
    lines = [f"{name};{GROUPS[k % 3]}" for k, name in enumerate(asked)]
    (folder / "habitats.csv").write_text("\n".join(["species;habitat", *lines]) + "\n", encoding="utf-8")
    return folder / "counts.xlsx", folder / "habitats.csv"


def files_of(folder):
    """Contents of all files, but marks that hold a random number."""
    return {path: held for path, held in content(folder).items() if not path.endswith(".fedmiss-made")}


def check_set(out, results, good, poor=()):
    """What holds for a set of any size: good results, five named ones, tables of all.

    Of the five the ``poor`` have a report that gives no class and says why; the others failed, with their next move.
    """
    failed = {r.species: r for r in results if r.page is None}
    assert sorted([*failed, *poor]) == sorted([ZERO, SHORT, TWICE, ABSENT, MISSPELT])
    assert len(results) - 5 == good
    assert all(r.next.endswith("what is finished is kept.") for r in failed.values())
    assert failed[MISSPELT].next.startswith("write Parus major")
    assert "if that is meant, or take the name out" in failed[MISSPELT].next
    page = (out / "index.html").read_text(encoding="utf-8")
    assert all(name in page for name in failed)
    assert len(pd.read_csv(out / "failures.csv")) == 5 - len(poor)
    index, trends = pd.read_csv(out / "index.csv"), pd.read_csv(out / "trends.csv")
    unclassed = index[index["trend_class"] == "not classified"]
    assert sorted(unclassed["species"]) == sorted(poor)
    assert all(f"<dd>Not classified: {why}" in page for why in unclassed["reason"])
    assert len(index) == good + len(poor)
    trends = trends[~trends["species"].isin(poor)]
    index = index[~index["species"].isin(poor)]
    assert (trends["slope_se"] > 0).all()
    assert sorted(trends[trends["stratum"] == "all"]["species"]) == sorted(index["species"])
    both = pd.read_csv(out / "indicator.csv")
    assert list(dict.fromkeys(both["group"])) == ["all", *GROUPS]
    whole = both[both["group"] == "all"]
    assert (whole["lo"][1:] < whole["index"][1:]).all()
    assert whole["smooth"].notna().all()
    assert set(pd.read_csv(out / "indicator_trends.csv")["group"]) == {"all", *GROUPS}
    return failed, index, trends, both


@pytest.mark.slow
def test_a_set_of_trims_and_its_resumption(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    counts, habitats = write(tmp_path, 12, 14, 9)
    out = tmp_path / "é set"
    failed, _, trends, both = check_set(
        out, run_trims(counts, out, PLAN, groups=habitats, jobs=1, date="2026-01-02"), 7
    )
    assert "Counts" not in failed[ZERO].error
    assert "positive count" in failed[ZERO].error
    assert "2 years only" in failed[SHORT].error
    assert "S003, year 2002 stands 2 times (rows" in failed[TWICE].error

    # each species is what its own table gives, and rtrim's readers find it in its file
    name = "Turdus aus"
    frame = read_counts(counts, CountOptions(species=name)).frame.to_pandas()
    args = (frame["site"], frame["year"], frame["count"], PLAN.settings)
    fit = fit_trim(*args, covariates={"Region": frame["Region"]})
    row = trends.set_index(["species", "stratum"])
    for stratum in ("all", "Region=North", "Region=South"):
        want = fit.overall(stratum=stratum).iloc[0]
        got = row.loc[(name, stratum)]
        assert got["slope"] == pytest.approx(want["slope"], rel=1e-5)
        assert got["slope_se"] == pytest.approx(want["slope_se"], rel=1e-5)
        assert got["n_sites"] == fit.n_sites(stratum)
        assert got["trend_class"] == want["trend_class"]
    tof = Tof((out / slug(name) / f"{slug(name)}.out").read_text())
    assert (tof.version(), tof.n("Time")) == ("3.61", 9)
    np.testing.assert_allclose(np.array(tof.indices())[:, 3], fit.index()["index"], atol=6e-5)
    assert tof.slope("IMPUTED")["Additive"] == pytest.approx(fit.overall().iloc[0]["slope"], abs=6e-5)
    # the indicator of all is the mean of the logarithms of the species' indices
    wide = pd.read_csv(out / "indices.csv").pivot(index="year", columns="species", values="index")
    mean = np.exp(np.log(wide).mean(axis=1)).to_numpy()
    np.testing.assert_allclose(both[both["group"] == "all"]["index"], mean, rtol=1e-4)

    first = files_of(out)
    again = run_trims(counts, out, PLAN, groups=habitats, jobs=1, date="2026-01-02")
    assert not any(r.redone for r in again)
    assert files_of(out) == first
    # a row corrected: that species alone is fitted again
    book = openpyxl.load_workbook(counts)
    rows = book["Counts"]
    keys = {r: [rows.cell(r, k).value for k in (1, 2, 3)] for r in range(4, rows.max_row + 1)}
    twice = [r for r, key in keys.items() if key == ["S003", TWICE, 2002]]
    rows.delete_rows(twice[1])
    book.save(counts)
    mended = run_trims(counts, out, PLAN, groups=habitats, jobs=1, date="2026-01-02")
    assert [r.species for r in mended if r.redone] == [TWICE]
    assert len(pd.read_csv(out / "index.csv")) == 8
    assert len(pd.read_csv(out / "failures.csv")) == 4


@pytest.mark.slow
def test_a_stratum_that_cannot_be_fitted_leaves_the_whole(tmp_path):
    """A region without counts in a year: the species is fitted without regions, and says so."""
    rows = [
        f"{s},{b},{y},{3 + (s * y) % 4},{'N' if s < 3 else 'S'}"
        for b in ("wren", "crow") for s in range(6) for y in range(2001, 2009)
        if not (b == "crow" and s >= 3 and y == 2004)
    ]  # fmt: skip
    (tmp_path / "c.csv").write_text("\n".join(["site,species,year,count,region", *rows]))
    results = run_trims(tmp_path / "c.csv", tmp_path / "o", Trims(covariates=("region",)), jobs=1)
    assert all(r.page for r in results)
    trends = pd.read_csv(tmp_path / "o" / "trends.csv")
    assert trends.groupby("species").size().to_dict() == {"crow": 1, "wren": 3}
    warnings = read_manifest(tmp_path / "o" / "crow")["warnings"]
    assert any("trends by region are missing" in w and "2004" in w for w in warnings)
    assert "trends by region are missing" in (tmp_path / "o" / "crow" / "index.html").read_text()


@pytest.mark.slow
def test_the_base_that_is_shown_does_not_change_an_indicator(tmp_path, monkeypatch):
    """Its errors are of totals. A species without the base fails: the option is what to change."""
    draw_nothing(monkeypatch)
    rows = [
        f"{s},{b},{y},{3 + (s * y + len(b)) % 5}"
        for b, last in (("wren", 2009), ("robin", 2009), ("crow", 2007)) for s in range(6) for y in range(2001, last)
    ]  # fmt: skip
    (tmp_path / "c.csv").write_text("\n".join(["site,species,year,count", *rows]))
    for base in (None, 2005):
        run_trims(tmp_path / "c.csv", tmp_path / str(base), Trims(shown=Shown(base=base)), jobs=1)
    for name in ("indicator.csv", "indicator_trends.csv"):
        assert (tmp_path / "None" / name).read_bytes() == (tmp_path / "2005" / name).read_bytes()
    made = run_trims(tmp_path / "c.csv", tmp_path / "late", Trims(shown=Shown(base=2008)), jobs=1)
    assert [r.next.split(",")[0] for r in made] == ["change the option", "", ""]


def test_an_indicator_of_trim_has_the_covariance_of_its_years(tmp_path, monkeypatch):
    """Drawn year by year, the error of the first year was not in the smooth, and that of the slope was too large."""
    draw_nothing(monkeypatch)
    rng, site, year = np.random.default_rng(3), np.repeat(range(6), 12), np.tile(range(2001, 2013), 6)
    seen = rng.random(site.size) < 0.7
    fits = {}
    for name in ("crow", "wren"):
        count = rng.poisson(8, site.size)
        fits[name] = fit_trim(site[seen], year[seen], count[seen], TrimSettings(overdispersion=True))
        rows = pd.DataFrame({"site": site, "species": name, "year": year, "count": count})[seen]
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    pd.concat(map(pd.read_csv, sorted(tmp_path.glob("*.csv")))).to_csv(tmp_path / "all.csv", index=False)
    settings = Trims(settings=TrimSettings(overdispersion=True))
    run_trims(tmp_path / "all.csv", tmp_path / "o", settings, jobs=1)
    trend = pd.read_csv(tmp_path / "o" / "indicator_trends.csv").iloc[0]
    errors = [fit.overall().iloc[0]["slope_se"] for fit in fits.values()]
    assert trend["slope_se"] == pytest.approx(np.hypot(*errors) / 2, rel=0.1)


def test_a_year_without_birds_has_no_error_in_an_indicator():
    site, year = np.repeat(range(5), 6), np.tile(range(2001, 2007), 5)
    fit = fit_trim(site, year, np.where(year < 2002, 0, 1 + (site * year) % 4), TrimSettings(model=2))
    covariance, total = np.array(log_covariance(fit)), fit.totals()
    assert not covariance[0].any()
    np.testing.assert_allclose(
        np.sqrt(np.diag(covariance))[1:], (total["se"] / total["total"])[1:], rtol=1e-5
    )


@pytest.mark.slow
def test_the_command_writes_the_same_bytes_on_one_core_and_two(tmp_path):
    counts, habitats = write(tmp_path, 12, 12, 8)
    for jobs in (1, 2):
        done = fedmiss(
            "trim", counts, "--all-species", "--overdispersion", "--covariate", "Region", "--species-groups", habitats,
            "--jobs", jobs, "--date", "2026-01-02", "--out", tmp_path / f"o{jobs}",
        )  # fmt: skip
        assert done.code == 1
        assert "7 of 12 species done" in done.out
        assert "row 3" in done.out
        for name in (ZERO, SHORT, TWICE, ABSENT, MISSPELT):
            assert f"{name}: failed at" in done.err
        assert done.err.count("Next: ") == 5
    one, two = files_of(tmp_path / "o1"), files_of(tmp_path / "o2")
    assert {k for k in one if one[k] != two.get(k)} <= {"manifest.json"}
    assert len(one) == len(two)
    for words, said in (
        (("--all-species",), "needs a folder"),
        (("--all-species", "--out", "o", "--species", "wren"), "--species"),
        (("--jobs", "2", "--species", "Turdus aus"), "--jobs"),
    ):
        done = fedmiss("trim", counts, *words)
        assert done.code == 2
        assert said in done.err.replace("\n", " ")


RECIPE = """
out = "reports"
species = "all"
min_records = 1
species_groups = "habitats.csv"
[ingest]
files = "counts.xlsx"
[panel]
groups = 1
[fit]
model = "quasi"
rank = 0
structure = "none"
bootstrap = 20
[report]
date = "2026-01-02"
"""


@pytest.mark.parametrize(
    ("species", "sites", "years"),
    [
        pytest.param(n, sites, years, marks=pytest.mark.nightly)
        for n, sites, years in ((12, 24, 12), (40, 200, 25))
    ],
)
def test_a_workbook_with_five_faults_by_trim_and_by_run(tmp_path, species, sites, years):
    counts, habitats = write(tmp_path, species, sites, years)
    jobs = 1 if species < 40 else os.cpu_count()
    check_set(
        tmp_path / "trims",
        run_trims(counts, tmp_path / "trims", PLAN, groups=habitats, jobs=jobs),
        species - 5,
    )
    (tmp_path / "r.toml").write_text(RECIPE)
    results = run_recipe(read_recipe(tmp_path / "r.toml"), jobs=jobs)
    failed, *_ = check_set(tmp_path / "reports", results, species - 5, poor=(ZERO, SHORT))
    assert failed[ABSENT].step == failed[MISSPELT].step == "groups"
    again = run_recipe(read_recipe(tmp_path / "r.toml"), jobs=jobs)
    assert not any(r.redone for r in again)


def test_a_mistyped_year_is_told_while_all_species_run(tmp_path, monkeypatch):
    """It was on the page of its species only, below a class that rests on it."""
    draw_nothing(monkeypatch)
    cells = [(f"s{s}", year) for s in range(12) for year in range(2005, 2021)]
    rows = [f"{s};wren;{2109 if (s, y) == ('s3', 2019) else y};{60 - (y - 2005)}" for s, y in cells]
    rows += [f"{s};robin;{y};{60 - (y - 2005)}" for s, y in cells]
    (tmp_path / "counts.csv").write_text("\n".join(["site;species;year;count", *rows]) + "\n")
    said: list[str] = []
    run_trims(tmp_path / "counts.csv", tmp_path / "out", jobs=1, say=said.append)
    (line,) = (line for line in said if "check the year" in line)
    assert line.startswith("note: wren: check the year: 1 of 192 counts (2109 at site s3)")


def test_a_name_of_the_groups_that_no_species_or_several_have(tmp_path):
    """Each is told once, with what to write instead; a name that a species has is no failure."""
    groups = {"wood": ("Wren", "Robbin", "Thrush", "Robbin"), "field": ("WREN", "Robbin", "xyzzy")}
    shared = {"thrush": ("Turdus a", "Turdus b")}
    told = not_of_the_run(groups, "g.csv", tmp_path, {"wren": "Wren", "robin": "Robin"}, shared)
    assert [(r.species, r.step) for r in told] == [(name, "groups") for name in ("Robbin", "Thrush", "xyzzy")]
    assert [r.next.partition(" in g.csv, ")[0] for r in told] == [
        "write Robin if that is meant, or take the name out",
        "write the scientific names",
        "correct the name, or take it out",
    ]
    assert "Turdus a, Turdus b; it stands for none of them" in told[1].error


def test_a_group_called_all_is_refused(tmp_path):
    """Its indicator was that of all species, whichever of them it named."""
    habitats = tmp_path / "habitats.csv"
    habitats.write_text("species;habitat\nParus major;all\nTurdus merula;forest\n")
    with pytest.raises(InputError, match=r"line 2.*'all' is the indicator of all species"):
        read_groups(habitats)


def test_the_page_of_a_species_does_not_say_that_the_table_has_its_rows_alone(tmp_path, monkeypatch):
    """It said "t.csv: species = a, 6 of 6 rows" of a table of twelve."""
    draw_nothing(monkeypatch)
    rows = [f"{s};{b};{y};{3 + s + y % 2}" for s in range(2) for b in "ab" for y in (2001, 2002, 2003)]
    (tmp_path / "t.csv").write_text("\n".join(["site;species;year;count", *rows]))
    done = run_trims(tmp_path / "t.csv", tmp_path / "out", jobs=1)
    assert "t.csv: species = a, 6 rows." in read_manifest(done[0].folder, "trim")["warnings"]


def test_a_name_longer_than_a_files_may_be_has_results(tmp_path, monkeypatch):
    """It was advised to give the species more counts."""
    draw_nothing(monkeypatch)
    name = "Passer domesticus " * 20
    lines = [f"{name.strip()},{s},{y},{3 + s + y % 3}" for s in range(3) for y in range(2001, 2006)]
    (tmp_path / "counts.csv").write_text("\n".join(["species,site,year,count", *lines]))
    (result,) = run_trims(tmp_path / "counts.csv", tmp_path / "out", jobs=1)
    assert result.page.exists()
    assert slug(name[:-18]) != slug(name)


def test_what_cannot_be_written_is_no_lack_of_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmiss.pipeline.trims._write", lambda *given, **more: open(tmp_path))  # a folder
    lines = [f"wren,{s},{y},{3 + s + y % 3}" for s in range(3) for y in range(2001, 2006)]
    (tmp_path / "counts.csv").write_text("\n".join(["species,site,year,count", *lines]))
    (result,) = run_trims(tmp_path / "counts.csv", tmp_path / "out", jobs=1)
    assert result.next.startswith("remove the cause, and run")


def test_rows_of_other_species_above_or_changed_fit_nothing_again(tmp_path, monkeypatch):
    """Numbers of lines were part of what a species' folder was kept for."""
    draw_nothing(monkeypatch)
    rows = [(b, s, y, 3 + s + y % 3) for b in ("robin", "wren") for s in range(3) for y in range(2001, 2006)]

    def redone(rows):
        text = "\n".join(["species,site,year,count", *(",".join(map(str, row)) for row in rows)])
        (tmp_path / "counts.csv").write_text(text)
        return [r.species for r in run_trims(tmp_path / "counts.csv", tmp_path / "out", jobs=1) if r.redone]

    assert redone(rows) == ["robin", "wren"]
    assert redone(rows[1:]) == ["robin"]
    assert redone([(b, s, y, c + (b == "robin")) for b, s, y, c in rows[1:]]) == ["robin"]
    assert redone([(b, s, y, c + (b == "robin")) for b, s, y, c in rows[1:-1]]) == ["wren"]
