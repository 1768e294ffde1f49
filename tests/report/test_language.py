"""The page in another language: what the file has is said in it, what it lacks is listed, and no number is lost."""

import re
from dataclasses import replace
from datetime import date, timedelta

import polars as pl
import pytest

from fedmiss.errors import ConfigError
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.counts import read_counts
from fedmiss.etl.months import panel_months
from fedmiss.models.saem.algorithm import louis
from fedmiss.pipeline import saem
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.settings import FitSettings
from fedmiss.report.analysis import Analysis
from fedmiss.report.build import _names, build_report
from fedmiss.report.figures import all_figures
from fedmiss.report.html import page as whole_page
from fedmiss.report.language import (
    UNTRANSLATED,
    Catalog,
    Entry,
    languages,
    names_of,
    parse_po,
    read_catalog,
    translated,
    write_po,
)
from fedmiss.report.settings import ReportSettings
from fedmiss.simulate.panel_folder import write_panel
from fedmiss.simulate.panels import simulate_panel
from tests.blank import draw_nothing

from .conftest import analysed
from .page import NUMBER, Page

DATE = ReportSettings(date="2026-01-02")


def catalog(**more) -> Catalog:
    return Catalog("de", more.pop("sentences", {}), more.pop("words", {}), **more)


def test_numbers_names_and_months_are_slots_and_take_their_place():
    sentences = {"At {1} {2} of {3} {4} were seen in {5}.": "Im {5} wurden in {1} {2} von {3} {4} gesehen."}
    c = catalog(sentences=sentences, words={"Feb": "Februar", "birds": "Vögeln"}, decimal=",", group=".")
    page = '<html lang="en"><p>At Pond 7 &amp; Mill 1,203.5 of −2,000 birds were seen in Feb. All well.</p></html>'
    said = c.page(page, ["Pond 7 & Mill", "Pond", "birds"])
    assert said == (
        '<html lang="de"><p>Im Februar wurden in Pond 7 &amp; Mill 1.203,5 von −2.000 Vögeln gesehen. All well.</p></html>'
    )
    assert list(c.missing) == ["All well."]
    c = catalog(sentences={"{1} birds": "{1} Vögel"}, decimal=",")
    assert c.page("<p>1.2 × 10⁻⁷ birds</p>", []) == "<p>1,2 × 10⁻⁷ Vögel</p>"
    assert not c.missing


def test_words_in_slots_that_a_catalogue_lacks_are_listed_from_the_first_page_on(tmp_path):
    """They were not in untranslated.po, so a French page said Feb, and its translator did not know."""
    page = "<p>From Feb to Jun and Jul 3 birds were seen at Mill.</p>"
    names = ["Mill", "birds"]
    first = catalog()
    first.page(page, names)
    first.write_missing(tmp_path / UNTRANSLATED)
    lacking = [e for e in parse_po((tmp_path / UNTRANSLATED).read_text(encoding="utf-8")) if e.english]
    assert [e.english for e in lacking if e.context == "word"] == ["Feb", "Jun", "Jul", "and", "birds"]
    assert [e.english for e in lacking if not e.context] == ["From {1} to {2} {3} {4} were seen at {5}."]
    again = catalog(sentences={e.english: e.english for e in lacking if not e.context}, words={"Feb": "Fév"})
    again.page(page, names)
    assert not again.missing
    assert list(again.unknown) == ["Jun", "Jul", "and", "birds"]


def test_what_is_not_text_is_left_alone():
    c = catalog(sentences={"Sites": "Orte"}, decimal=",")
    page = '<style>p{top:1.5em}</style><script>x = "Sites"</script><!-- Sites --><path d="M 1.5"/><b title="Sites">0.2.0</b>'
    assert c.page(page, []) == page.replace('title="Sites"', 'title="Orte"')
    assert not c.missing


def test_values_with_commas_between_them_are_one_slot_and_pieces_have_their_own_translations():
    sentences = {"{1} have no count": "{1} ohne Zählung", "Map of {1} sites": "Karte von {1} Orten"}
    sentences |= {"{1} stable": "{1} stabil"}
    c = catalog(sentences=sentences, words={"and": "und", "Feb": "Februar"})
    page = "<p>2004, 2010 and Feb have no count</p><p>Map of 12 sites: 3 stable, 9 stable.</p><p>Map of 12 sites: 3 odd.</p>"
    assert c.page(page, []) == (
        "<p>2004, 2010 und Februar ohne Zählung</p><p>Karte von 12 Orten: 3 stabil, 9 stabil.</p>"
        "<p>Map of 12 sites: 3 odd.</p>"
    )
    assert list(c.missing) == ["Map of {1} sites: {2} odd."]


def test_a_sentence_may_begin_with_a_name_in_small_initials_or_with_a_number():
    """Two sentences were taken for one, which no catalogue has."""
    c = catalog(sentences={"Cite {1}.": "Zitat {1}.", "{1}: trend report.": "{1}: Trendbericht."})
    page = "<p>Cite 2026. wren: trend report.</p><p>Cite 2026. Wren: trend report.</p><p>Cite 1. 2: trend report.</p>"
    said = c.page(page, ["wren", "Wren"])
    assert said == (
        "<p>Zitat 2026. wren: Trendbericht.</p><p>Zitat 2026. Wren: Trendbericht.</p><p>Zitat 1. 2: Trendbericht.</p>"
    )
    assert not c.missing


def test_a_catalogue_is_read_as_it_was_written_and_as_tools_write_it():
    entries = [Entry('a "quoted" \\ sign\n{1}', "ü {1}"), Entry("Feb", "Februar", "word")]
    text = write_po(entries, {"Language": "de"})
    head, *found = parse_po(text)
    assert head.other == "Language: de\n"
    assert [(e.english, e.other, e.context) for e in found] == [
        (e.english, e.other, e.context) for e in entries
    ]
    tools = '#. why\n#, fuzzy\nmsgid "x"\nmsgstr "y"\n\n#~ msgid "old"\nmsgid ""\n"two "\n"lines"\nmsgstr "z"'
    assert [(e.english, e.other) for e in parse_po(tools)] == [("two lines", "z")]


@pytest.mark.nightly
@pytest.mark.slow
def test_every_sentence_of_a_page_can_be_translated_and_no_number_is_lost(folders, tmp_path):
    plain = build_report(**folders, out=tmp_path / "plain", settings=DATE).read_text(encoding="utf-8")
    start = tmp_path / "xx.po"
    start.write_text(write_po([], {"Language": "en"}), encoding="utf-8")
    settings = replace(DATE, language=str(start))
    page = build_report(**folders, out=tmp_path / "none", settings=settings)
    spoken = re.compile('<template id="ask-words".*</template>\n')  # by the script, in the page's language
    assert spoken.sub("", page.read_text(encoding="utf-8")) == plain, "an empty catalogue changes no byte"
    lacking = [e for e in parse_po((page.parent / UNTRANSLATED).read_text(encoding="utf-8")) if e.english]
    assert len(lacking) > 100
    start.write_text(
        write_po([Entry(e.english, f"«{e.english}»", e.context) for e in lacking], {"Language": "en"}),
        encoding="utf-8",
    )
    page = build_report(**folders, out=tmp_path / "all", settings=settings)
    assert not (page.parent / UNTRANSLATED).exists()
    text = page.read_text(encoding="utf-8")
    assert numbers(text) == numbers(plain)
    assert text.count("«") > 100


@pytest.mark.parametrize("language", languages())
def test_a_language_that_comes_along_is_well_made(language):
    """Every slot of the English is in the translation too, unless the sentence says it in words."""
    catalog = read_catalog(language)
    assert len(catalog.sentences) > 400
    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    assert all(catalog.words.get(word) for word in [*months, "and", "birds", "sites with a find"])
    for english, other in catalog.sentences.items():
        lost = set(re.findall(r"\{\d+\}", english)) - set(re.findall(r"\{\d+\}", other))
        assert not lost, (english, lost)


def test_units_of_counts_and_totals_and_covariates_are_slots(folders, tmp_path, monkeypatch):
    """Totals of presence are of sites, those of nests of nests: "Nests counted" was a sentence without a slot."""
    full = analysed(folders, language="de", unit="nests")
    monkeypatch.setattr(Analysis, "unit", "sites with a find")
    monkeypatch.setitem(full.data.fit["results"], "site_covariates", ["altitude"])
    said = (
        "<p>Nests counted</p><p>3 of 9 sites have no altitude; they count as the mean of the others.</p>"
        "<p>1 of 9 sites has no altitude; it counts as the mean of the others.</p>"
    )
    page = translated(said, "de", names_of(full), tmp_path)
    assert "Gezählt: Nester" in page
    assert "keine Angabe zu altitude" in page
    assert "21,9 Gebiete mit Nachweis" in translated(
        "<p>21.9 sites with a find</p>", "de", names_of(full), tmp_path
    )
    assert not (tmp_path / UNTRANSLATED).exists()


# What a change of the page may add before somebody has translated it: it stays English, and is listed beside the page.
NEW = 0.1


@pytest.mark.slow
def test_german_says_the_page_and_changes_no_number(report, german_report):
    english = (report / "index.html").read_text(encoding="utf-8")
    german = (german_report / "index.html").read_text(encoding="utf-8")
    lacking = german_report / UNTRANSLATED
    new = [e.english for e in parse_po(lacking.read_text(encoding="utf-8"))][1:] if lacking.exists() else []
    assert len(new) < NEW * len(read_catalog("de").sentences), new
    assert 'lang="de"' in german
    assert digits(german) == digits(english)


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize(
    "more",
    [{"rule": "rtrim"}, {"convention": "trim", "coarse_map": 0.1},
     {"rule": "rtrim", "convention": "trim", "base": "2010-2012"}],
)  # fmt: skip
def test_what_other_settings_say_is_translated(folders, tmp_path, language, more, monkeypatch):
    """TRIM's convention, the rule of rtrim, and a base of several years: sixteen sentences were English."""
    draw_nothing(monkeypatch)
    analysis = analysed(folders, language=language, **more)
    translated(whole_page(analysis, all_figures(analysis)), language, _names(analysis), tmp_path)
    text = (tmp_path / UNTRANSLATED).read_text(encoding="utf-8")
    # of the folders themselves
    assert {entry.english for entry in parse_po(text)} == {"", "v1", "a warning"}


def digits(page: str) -> list[str]:
    """All numbers of the text, without the signs between their digits."""
    text = " ".join(block for _, block in Page(page).blocks)
    return sorted(re.sub(r"[.,]", "", n) for n in re.findall(r"\d[\d.,]*\d|\d", text))


def numbers(text: str) -> list[str]:
    return [n for _, block in Page(text).blocks for n in re.findall(NUMBER, block)]


PO = 'msgid ""\nmsgstr ""\n"Language: {}\\n"\n\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file .* fedmiss itself has de"),
        ("language = ", "line 1 is 'language =', which no .po file has"),
        ('msgid "a"', "has no msgstr"),
        (PO.format("German!"), "language as browsers know it"),
        (PO.format("de") + 'msgid "{1} sites"\nmsgstr "{2} Orte"', r"line 5: .* slot \{2\}"),
    ],
)
def test_a_bad_file_is_refused_before_anything_is_made(folders, tmp_path, content, said):
    path = tmp_path / "de.po"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_catalog(path)
    with pytest.raises(ConfigError, match=said):
        build_report(**folders, out=tmp_path / "report", settings=replace(DATE, language=str(path)))
    assert not (tmp_path / "report").exists()


def test_months_alone_are_short_and_regions_of_one_letter_are_names():
    """Whole names of twelve months ran into one another under a figure; N and S were words to be translated."""
    c = catalog(sentences={"Feb": "Feb.", "Trend of {1}.": "Trend: {1}."}, words={"Feb": "Februar"})
    said = c.page(
        "<text>Feb</text><p>Trend of Feb. Trend of N. Trend of S.</p><text>N (3)</text>", ["N", "S", "A"]
    )
    assert said == "<text>Feb.</text><p>Trend: Februar. Trend: N. Trend: S.</p><text>N (3)</text>"
    assert not c.missing


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("odd", [date(2109, 6, 15), date(1900, 1, 1)])
@pytest.mark.parametrize(("n", "later"), [(1, 0), (2, 0), (2, 1)])
def test_what_is_said_of_an_imported_table_is_translated(language, odd, n, later, tmp_path):
    rows = [f"a;{name};{year};3;x;y" for name in ("wren", "robin") for year in range(2001, 2010)]
    (tmp_path / "birds.csv").write_text(
        "\n".join(["plot;species;year;n (pairs);region;height", *rows]) + "\n"
    )
    said = list(
        read_counts(tmp_path / "birds.csv", CountOptions(columns={"count": "n (pairs)"}, species="wren")).said
    )
    assert len(said) == 2
    usual = [date(year, 6, 15) for year in range(2001, 2010) for _ in range(5)]
    odds = [odd + timedelta(days=later * k) for k in range(n)]
    panel_months(pl.Series([*usual, *odds]), said, yearly=True)
    catalog = read_catalog(language)
    page = catalog.page("".join(f"<p>{line}</p>" for line in said), ["wren"])
    assert not catalog.missing
    columns = "birds.csv: site = plot, year = year, count = n (pairs); covariates = region + height."
    assert f"{columns} 1 Gebiet, 9 Jahre (2001 bis 2009)" in page


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize(
    "settings",
    [{"method": "fedmissem", "model": "gaussian"}, {"method": "saem", "rank": 1},
     {"method": "fedmissem", "compressor": "randk:k=20", "batch": 9}],
)  # fmt: skip
def test_pages_of_the_other_methods_are_translated(language, settings, tmp_path, monkeypatch):
    """A dozen of their sentences were English."""
    draw_nothing(monkeypatch)
    monkeypatch.setattr(saem, "louis", lambda *given, rounds, seed: louis(*given, rounds=20, seed=seed))
    panel = write_panel(simulate_panel(16, 24, 0.8, seed=1, groups=2), tmp_path / "panel")
    fit = fit_panel(panel, tmp_path / "fit", FitSettings(rounds=10, **settings))
    imputed = impute_panel(panel, fit, tmp_path / "imputed")
    page = build_report(panel, fit, imputed, tmp_path / "report", replace(DATE, language=language))
    missing = [e.english for e in parse_po((page.parent / UNTRANSLATED).read_text(encoding="utf-8"))]
    assert missing == ["", "visits simulated", "kind random"]
