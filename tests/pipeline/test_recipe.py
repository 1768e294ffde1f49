"""A recipe says the same as the command line, in the same words."""

from dataclasses import asdict, fields

import pytest

from fedmiss.errors import ConfigError
from fedmiss.etl.filters import Filters
from fedmiss.pipeline.recipe import ingest_options, read_recipe, slug
from fedmiss.pipeline.settings import FitSettings


def recipe(tmp_path, text):
    path = tmp_path / "r.toml"
    path.write_text('[ingest]\nfiles = "a.txt"\n' + text, encoding="utf-8")
    return read_recipe(path)


EVERY = {
    "country": ("US", '"US"'), "sheet": ("Counts", '"Counts"'), "header-row": ("3", "3"),
    "state": ("US-WA", '["US-WA"]'), "county": ("King", '"King"'), "bcr": ("9", '["9"]'),
    "bbox": ("-123,47,-122,48", "[-123, 47, -122, 48]"), "locality": ("L100", '"L100"'),
    "site": ("grid:3km", '"grid:3km"'), "start": ("2020-01-01", '"2020-01-01"'),
    "end": ("2020-12-31", '"2020-12-31"'), "year": ("2019", "[2019]"),
    "last-edited": ("2020-01-01..2021-01-01", '["2020-01-01", "2021-01-01"]'),
    "season": ("05-01..06-30", '["05-01", "06-30"]'), "time": ("06:00..07:00", '"06:00..07:00"'),
    "protocol": ("Traveling", '["Traveling"]'), "project": ("EBIRD", '"EBIRD"'), "breeding": ("NY", '["NY"]'),
    "keep": ("AGE/SEX", '["AGE/SEX"]'), "duration": ("5..300", "[5, 300]"), "distance": ("0..10", '"0..10"'),
    "max-speed": ("100", "100"), "max-observers": ("10", "10"), "observer": ("obsr1", '"obsr1"'),
    "without-observer": ("obsr9", '"obsr9"'), "groups": ("raw", '"raw"'), "exotic": ("N", '["N"]'),
    "sensitive": ("Veery", '"Veery"'), "decimals": ("3", "3"),
    "preset": ("best-practices-v2", '"best-practices-v2"'),
    "map": ("observer=who,site=plot", '{ observer = "who", site = "plot" }'), "species": ("Veery", '"Veery"'),
    "repeats": ("max", '"max"'), "spellings": ("join", '"join"'), "dates": ("day-first", '"day-first"'),
    "missing": ("999", '"999"'), "first-year": ("1984", "1984"),
}  # fmt: skip
FLAGS = ("complete", "reviewed", "hotspots", "allow-absent", "assume-complete", "drop-suspected", "wide")


def of_the_command(monkeypatch, words):
    """Settings that `fedmiss ingest` makes of these words."""
    from tests.cli.terminal import fedmiss

    seen = []

    def catch(files, out, settings, **more):
        seen.append(settings)
        raise ConfigError("caught")

    monkeypatch.setattr("fedmiss.etl.ingest.ingest", catch)
    done = fedmiss("ingest", "a.txt", *words)
    assert "caught" in done.err, done.err
    return seen[0]


@pytest.mark.slow
@pytest.mark.parametrize("option", [*EVERY, *FLAGS])
def test_every_option_of_ingest_says_the_same_in_a_recipe(option, tmp_path, monkeypatch):
    if option in FLAGS:
        typed, written = (f"--{option}",), "true"
    else:
        typed, written = (f"--{option}={EVERY[option][0]}",), EVERY[option][1]
    assert recipe(tmp_path, f"{option} = {written}\n").ingest == of_the_command(monkeypatch, typed)


def test_no_option_of_ingest_is_missing_in_recipes():
    import typer

    from fedmiss.cli.steps import ingest

    app = typer.Typer()
    app.command()(ingest)
    options = {p.opts[0].removeprefix("--").replace("-", "_") for p in typer.main.get_command(app).params}
    apart = {"files", "sampling", "unvetted", "out", "cache", "no_cache", "overwrite"}
    apart |= {"install_completion", "show_completion"}
    assert options - apart == set(ingest_options())
    tried = {o.replace("-", "_") for o in (*EVERY, *FLAGS)}
    assert tried | {"polygon", "last_years"} == set(ingest_options())


def test_a_preset_with_a_change(tmp_path, monkeypatch):
    typed = of_the_command(
        monkeypatch, ["--preset", "best-practices-v2", "--no-complete", "--exotic", "x, n"]
    )
    assert (typed.filters.complete_only, typed.filters.max_speed) == (False, 100.0)
    assert typed.exotic == ("", "X", "N")  # natives stay
    chosen = recipe(tmp_path, 'preset = "best-practices-v2"\nduration = "..30"\n').ingest.filters
    assert chosen.duration == (None, 30.0)
    assert chosen.max_speed == 100.0


def test_numbers_words_and_what_is_left_out(tmp_path):
    r = recipe(tmp_path, '[fit]\nmethod = "fedmissem"\nrank = 2\npenalty = 3\n[panel]\ngroup-by = "region"\n')
    assert (r.fit.rank, r.fit.penalty, r.panel.group_by) == (2, 3.0, "region")
    assert isinstance(r.fit.penalty, float)
    plain = recipe(tmp_path, "")
    assert plain.fit == FitSettings()
    assert plain.ingest.filters == Filters()
    assert plain.files == (tmp_path / "a.txt",)
    assert plain.out == tmp_path / "r-out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("complete = 1\n", "ingest.complete is 1"), ("duration = [1, 2, 3]\n", "a list of 2"),
        ('bbox = ["a", 1, 2, 3]\n', r"ingest.bbox\[1\] is 'a'"),
        ("country = [1, true]\n", r"ingest.country\[2\] is True"),
        ("decimals = 2.5\n", "decimals is 2.5 .*whole number"),
        ("countries = 'US'\n", "'countries' is unknown. Did you mean 'country'"),
        ('preset = "best"\n', "no preset 'best'"), ("[fit]\nseed = true\n", "fit.seed is True"),
        ("[report]\nrule = 'trim'\n", "'trim'"), ("map = 3\n", "ingest.map is 3"),
        ('start = "2020"\n', r"r.toml: ingest: '2020' is not a date \(--start\)"),
        ("max-speed = -1\n", "ingest.max-speed is -1"),
        ('[report]\nbase = "x"\n', "r.toml: report: the base 'x' is not a year"),
        ("[report]\nbase = '2012-2010'\n", "write --base 2010-2012"),
        ('[report]\nlanguage = "xx"\n', "r.toml: report: --language: there is no file xx; fedmiss itself has de"),
        ('duration = "5"\n', "r.toml: ingest.duration: .*write it as 5..300"),
    ],
)  # fmt: skip
def test_mistakes_are_told_by_their_place(text, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as caught:
        recipe(tmp_path, text)
    assert len(str(caught.value).splitlines()) == 1


def test_dates_may_stand_without_quotes_as_toml_has_them(tmp_path):
    bare = recipe(
        tmp_path, "start = 2020-01-01\nlast-edited = [2020-01-01, 2021-01-01]\n[report]\ndate = 2026-01-02\n"
    )
    assert bare.ingest.filters.first_date == "2020-01-01"
    assert bare.ingest.filters.last_edited == ("2020-01-01", "2021-01-01")
    assert bare.report.date == "2026-01-02"


def test_settings_of_a_recipe_can_be_written_down(tmp_path):
    """Keys of the chain are hashes of JSON: every setting must survive it."""
    import json

    r = recipe(tmp_path, 'duration = [5, 300]\n[fit]\nrank = "auto"\n')
    for part in (r.ingest, r.panel, r.fit, r.report):
        assert json.loads(json.dumps(asdict(part)))
        assert fields(part)


def test_slugs():
    assert slug("Black-crowned Night Heron (Eurasian)") == "black-crowned-night-heron-eurasian"
    assert slug("Ardea alba") == "ardea-alba"
    assert slug("!!!") == "species"
    assert len({slug(name) for name in ("Полевой жаворонок", "Кряква", "ヒバリ", "species")}) == 4
