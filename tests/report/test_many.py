"""The index page of many species."""

import re

import numpy as np
import pandas as pd
import pytest

from fedmiss import atomic, owner
from fedmiss.errors import ConfigError, InputError
from fedmiss.files import read_manifest
from fedmiss.report.analysis import ReportSettings
from fedmiss.report.build import build_report
from fedmiss.report.many import ALL, _indicator_words, _indicators, _shown, _units, _unlike, build_index
from fedmiss.report.species import Species, _season, read_species

from .conftest import World, make_folders

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    out = []
    for i, (slope, draws) in enumerate(((0.12, 40), (-0.12, 40), (0.0, 0))):
        world = World(
            n_sites=12, n_years=8, season=(4, 5), last_months=2, slope=slope, n_draws=draws, seen=0.6, regions=0,
            trace=False, cv=False,
        )  # fmt: skip
        f = make_folders(root / f"in{i}", world, seed=i)
        build_report(**f, out=root / "reports" / f"s{i}", settings=ReportSettings(date="2026-01-02"))
        out.append(root / "reports" / f"s{i}")
    return root / "reports", out


@pytest.mark.slow
def test_species_are_sorted_by_trend_and_failures_are_shown(three):
    root, reports = three
    more = {"failures": {"Corvus <x>": "no counts at all"}, "date": "2026-01-02"}
    page = build_index(reports, root, **more)
    text = page.read_text(encoding="utf-8")
    assert re.findall(r'href="(s\d/index.html)"', text) == ["s1/index.html", "s0/index.html", "s2/index.html"]
    assert "Corvus &lt;x&gt;" in text
    assert "1 declines, 1 increases, " in text
    assert "those of TRIM's results take the species' errors for independent" in text
    table = pd.read_parquet(root / "index.parquet")
    assert table["trend_class"].tolist() == ["strong decline", "strong increase", "not classified"]
    assert table["folder"].tolist() == ["s1", "s0", "s2"]
    first = page.read_bytes()
    assert build_index(reports[::-1], root, **more).read_bytes() == first
    assert read_manifest(root)["results"] == {"n_species": 3, "n_failed": 1}
    assert all((r / "index.html").exists() for r in reports)


def test_reports_of_one_species_or_of_other_seasons_are_said():
    """Two reports of a species had the weight of two, and winters were joined with summers, without a word."""
    nothing = pd.DataFrame()
    seasons = {"a": (5, 6), "b": (11, 12, 1, 2), "c": ()}
    found = {folder: Species({}, nothing, None, nothing, "", season) for folder, season in seasons.items()}
    frame = pd.DataFrame(
        {"folder": list(seasons), "species": ["Alauda arvensis", "Alauda arvensis", "Corvus corax"]}
    )
    twice, other = _unlike(frame, found)
    assert "Alauda arvensis has 2 reports here, each with the weight of a species in indicators" in twice
    assert (
        "May to Jun of Alauda arvensis; Nov to Feb of Alauda arvensis. An indicator of these mixes" in other
    )
    assert not list(_unlike(frame.iloc[[0, 2]], found))


def test_visits_in_june_alone_are_a_season_and_yearly_counts_are_none(tmp_path):
    """A study of Junes was taken for yearly counts, and joined with winters without a word."""
    folders = make_folders(
        tmp_path, World(n_sites=6, n_years=6, season=(6,), last_months=1, trace=False, cv=False)
    )
    report = build_report(
        **folders, out=tmp_path / "report", settings=ReportSettings(date="2026-01-02")
    ).parent
    assert read_species(report).season == (6,)
    table = report / "tables" / "season.parquet"
    assert _season(table, yearly=True) == ()
    assert _season(table, yearly=None) == ()  # of a report that does not say it
    (report / "index.html").write_text("with a sentence of the club's own")
    (report / "tables" / "yearly.csv").write_text("as a spreadsheet saves it")
    assert read_species(report).season == (6,)
    yearly = report / "tables" / "yearly.parquet"
    yearly.write_bytes(yearly.read_bytes()[:-1])  # it went into the page of all species
    with pytest.raises(InputError, match=r"yearly\.parquet is damaged"):
        read_species(report)


@pytest.mark.slow
def test_an_index_page_of_somebody_else_is_left_alone(three, tmp_path):
    _, reports = three
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ConfigError, match="was not written by fedmiss"):
        build_index(reports, tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


@pytest.mark.slow
def test_what_is_not_a_report_is_named(three, tmp_path):
    root, _reports = three
    with pytest.raises(InputError, match="in0"):
        build_index([root.parent / "in0"], tmp_path)
    with pytest.raises(ConfigError, match="no report to list"):
        build_index([], tmp_path)


@pytest.mark.slow
def test_a_group_without_an_indicator_is_named(three, tmp_path):
    """A habitat of one species was on the page nowhere."""
    page = build_index(three[1], tmp_path, date="2026-01-02", groups={"farmland": ["Alauda arvensis"]})
    assert "No indicator of farmland: it takes two species" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_index_that_was_stopped_between_two_files_is_made_again(three, tmp_path, monkeypatch):
    """No manifest lists the files yet: a table says itself who wrote it, the others are in the mark of the folder."""
    _, reports = three
    whole = build_index(reports, tmp_path / "whole", date="2026-01-02").parent
    wanted = {p.name: p.read_bytes() for p in whole.iterdir() if p.suffix in (".html", ".csv", ".parquet")}
    real = owner.put_file
    for stop in range(1, 6):
        out, put = tmp_path / str(stop), []

        def stopped(tmp, path, ours=None, put=put, stop=stop):
            real(tmp, path, ours)
            put.append(path)
            if len(put) == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(atomic, "put_file", stopped)
        with pytest.raises(KeyboardInterrupt):
            build_index(reports, out, date="2026-01-02")
        monkeypatch.setattr(atomic, "put_file", real)
        build_index(reports, out, date="2026-01-02")
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.name in wanted} == wanted


def test_totals_of_different_things_are_said():
    units = {"a": "birds", "b": "sites with a find", "c": "birds", "d": ""}
    frame = pd.DataFrame({"folder": list(units), "name": ["Wren", "Corncrake", "Skylark", "Rook"]})
    nothing = pd.DataFrame()
    found = {folder: Species({}, nothing, None, nothing, unit) for folder, unit in units.items()}
    said = _units(frame, found)
    assert said.startswith(" Totals are sites with a find of Corncrake; of the others birds, or not known.")
    assert "of the others birds." in _units(frame[frame["name"] != "Rook"], found)
    assert _shown(pd.DataFrame({"species": ["A b", "C d"], "common_name": [None, "X"]})) == ["A b", "X"]
    assert _units(frame[frame["name"] != "Corncrake"], found) == ""


def test_an_indicator_has_an_interval_where_every_species_has_replicates():
    """Species without any were taken to have no error, and two replicates gave a class."""
    years = np.arange(2000, 2010)
    yearly = pd.DataFrame({"year": years, "total": 8.0, "used": True})

    def found(*n_draws):
        rng, out = np.random.default_rng(1), {}
        for name, size in zip("abc", n_draws, strict=False):
            draws = pd.DataFrame(8 * np.exp(rng.normal(0, 0.01, (size, 10))), columns=years) if size else None
            row = {"species": name, "common_name": None}
            out[name] = Species(row, yearly, draws, pd.DataFrame())
        return _indicators(out, {})[ALL]

    table, trends = found(40, 20)
    assert table["lo"].notna().all()
    assert set(trends["trend_class"]) == {"stable"}
    for sizes in ((40, 20, 0), (40, 20, 19)):
        table, trends = found(*sizes)
        assert table["lo"].isna().all()
        assert set(trends["trend_class"]) == {"not classified"}
        assert "needs bootstrap replicates of every species" in _indicator_words(table, trends)


def test_an_indicator_does_not_depend_on_where_the_reports_lie():
    """Random numbers were keyed by the path from the index to a report, and summed in its order."""
    rng, years = np.random.default_rng(2), np.arange(2000, 2010)
    every = []
    for name in ("a", "b", "b", "c"):
        total = rng.gamma(5, 2, 10)
        draws = pd.DataFrame(total * np.exp(rng.normal(0, 0.2, (50, 10))), columns=years)
        yearly = pd.DataFrame({"year": years, "total": total, "used": True})
        every.append(Species({"species": name, "common_name": None}, yearly, draws, pd.DataFrame()))
    groups = {"some": ["a", "c"]}
    here, there = (
        _indicators(dict(zip(folders, order, strict=True)), groups)
        for folders, order in (
            (("a", "b", "b2", "c"), every),
            (("../z/c", "../y/b", "b", "../x/a"), every[::-1]),
        )
    )
    for name in (ALL, "some"):
        for one, other in zip(here[name], there[name], strict=True):
            pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert here[ALL][0]["n_species"].eq(4).all()


def test_a_group_finds_its_species_without_the_accents_of_the_name():
    """A name that was accepted as known, since accents do not count there, was no part of its group's indicator."""
    yearly = pd.DataFrame({"year": [2000, 2001], "total": [3.0, 4.0], "used": True})
    found = {
        name: Species({"species": name, "common_name": None}, yearly, None, pd.DataFrame())
        for name in ("Curruca mérula", "a", "b")
    }
    named = ["curruca  merula", "Curruca me\N{COMBINING ACUTE ACCENT}rula", "a", "b"]
    assert _indicators(found, {"wood": named})["wood"][0]["n_species"].eq(3).all()


def test_a_group_that_is_a_text_or_called_all_is_refused(tmp_path):
    """A text was a list of its letters, of which none is a species: the group had no indicator, without a word."""
    for groups, said in (
        ({"wood": "Parus major"}, "the group 'wood' is 'Parus major' .must be a list"),
        ({"all": ["Parus major"]}, "'all' is the indicator of all species"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_index([tmp_path], tmp_path / "out", groups=groups)
    with pytest.raises(ConfigError, match="build_index: reports is 'reports'"):
        build_index("reports", tmp_path / "out")
