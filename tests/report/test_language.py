"""The page in another language: what the file has is said in it, what it lacks is listed, and no number is lost."""

import html
import re
from dataclasses import replace
from datetime import date, timedelta
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedmiss.errors import ConfigError, several
from fedmiss.etl.checks import AT_ZERO
from fedmiss.etl.codes import NO_DATE, NO_SIGHTING
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.counts import read_counts
from fedmiss.etl.filtering import unmatched
from fedmiss.etl.flow import _RECORD_STEPS, row_flow, source_warnings, why_no_zeros
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.months import panel_months
from fedmiss.etl.panel import PanelSettings, make_panel
from fedmiss.etl.sources import Faults
from fedmiss.federation.hub.structure import STEPS
from fedmiss.files import read_manifest
from fedmiss.report import prose
from fedmiss.report.analysis import Analysis
from fedmiss.report.build import _translated, build_report
from fedmiss.report.cautions import least_words
from fedmiss.report.coverage import seasons_apart
from fedmiss.report.figures import all_figures
from fedmiss.report.fitted import lack_of_fit
from fedmiss.report.html import page as whole_page
from fedmiss.report.language import UNTRANSLATED, Catalog, Entry, languages, parse_po, read_catalog, write_po
from fedmiss.report.prose import _SAID, _room, headline
from fedmiss.report.series import _reason
from fedmiss.report.settings import ReportSettings
from fedmiss.report.words import left_out
from fedmiss.report.years import season_text

from .conftest import analysed
from .page import NUMBER, Page

DATE = ReportSettings(date="2026-01-02")
# what rows of the kinds of files must have
USABLE = (
    "observer", "site", "species", "date (write it as 2024-05-31)", "Submission ID", "Date", "record id",
    "eventDate (a full day)", "coordinates", "SAMPLING EVENT IDENTIFIER", "GROUP IDENTIFIER", "OBSERVATION DATE",
    "SCIENTIFIC NAME", "LOCALITY ID",
)  # fmt: skip


def catalog(**more) -> Catalog:
    return Catalog("de", more.pop("sentences", {}), more.pop("words", {}), **more)


def lacking(language, *lines, names=()) -> list[str]:
    """The sentences of some lines that a language of fedmiss does not have."""
    catalog = read_catalog(language)
    catalog.page("".join(f"<p>{line}</p>" for line in lines), names)
    return list(catalog.missing)


def test_numbers_names_and_months_are_slots_and_take_their_place():
    c = catalog(
        sentences={
            "At {1} {2} of {3} {4} were seen in {5}.": "Im {5} wurden in {1} {2} von {3} {4} gesehen."
        },
        words={"Feb": "Februar", "birds": "Vögeln"},
        decimal=",",
        group=".",
    )
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
    c = catalog(
        sentences={
            "{1} have no count": "{1} ohne Zählung",
            "Map of {1} sites": "Karte von {1} Orten",
            "{1} stable": "{1} stabil",
        },
        words={"and": "und", "Feb": "Februar"},
    )
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


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("value", ["7h", 'it\'s: 3, "x"; line 2.', "\\ 'a' and 5"])
def test_what_is_said_of_values_and_rows_that_could_not_be_used_is_translated(language, value):
    """A value of a user's stands in the note as it is, whatever signs are in it."""
    said = []
    for n in (1, 2):
        faults = Faults()
        for key in ("duration", "OBSERVATION COUNT", AT_ZERO):
            faults.add(faults.unreadable, key, n, 5, value)
            meta = {"source": "birds.csv", "rows": 9, "absent_columns": [], **vars(faults)}
            said += source_warnings(SimpleNamespace(meta=meta))
        for why in (NO_DATE, NO_SIGHTING, *(f"no usable {what}" for what in USABLE)):
            faults = Faults()
            faults.add(faults.malformed, why, n, 5, value)
            said += source_warnings(SimpleNamespace(meta={**meta, **vars(faults)}))
    lost = {"absent_columns": ["CATEGORY", "GROUP IDENTIFIER", "GLOBAL UNIQUE IDENTIFIER"], "malformed": {}}
    absent = source_warnings(SimpleNamespace(meta={**meta, **lost, "unreadable": {}}))
    absent += [why_no_zeros(family) for family in ("gbif", "ebird")]
    filters = ("protocol", "project", "observer")
    absent += unmatched({(name, ("Stationary",)): {"x"} for name in filters})
    for n in (1, 2):
        rows = {"long_rows": n, "short_rows": n, "unterminated": True, "malformed": {}, "unreadable": {}}
        absent += source_warnings(SimpleNamespace(meta={**meta, **rows}))
    assert len(absent) == 14
    assert not lacking(language, *map(html.escape, absent))
    page = read_catalog(language)
    text = page.page("".join(f"<p>{html.escape(line)}</p>" for line in said), [])
    assert not page.missing
    assert html.unescape(text).count(repr(value)) == len(said)


@pytest.mark.parametrize("language", languages())
def test_what_an_own_report_of_a_study_says_is_translated(language):
    """Of months that the study left out, regions without replicates, and fits whose messages nobody has kept the size of."""
    change = "ean change of the fitted values from one round to the next"
    said = [
        "Pale bars, not in the trend: 2003, 2004, 2005, 2006, 2007, 2008....",
        "7 years (2003 to 2009) have no count and are left out of index and trend.",
        "the fit kept no bootstrap replicates of this region",
        "No class: the fit kept no bootstrap replicates of this region.",
        "visits withheld", "in months that too few stand behind", f"M{change}, which is 0 at a solution.",
        f"Convergence over 13 rounds: the m{change} goes from 0.483 to 0.00097.",
        "Of the sites of this panel about 1 was occupied in its first year, 4 in its last.",
    ]  # fmt: skip
    assert not lacking(language, *said)


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
    assert all(catalog.words.get(word) for word in [*months, "and", "birds", "occupied sites"])
    for english, other in catalog.sentences.items():
        lost = set(re.findall(r"\{\d+\}", english)) - set(re.findall(r"\{\d+\}", other))
        assert not lost, (english, lost)


def test_units_of_counts_and_totals_and_covariates_are_slots(folders, tmp_path, monkeypatch):
    """A fit of presence has totals of occupied sites, of counts of nests: "Nests counted" was a sentence without a slot."""
    full = analysed(folders, language="de", unit="nests")
    monkeypatch.setattr(Analysis, "unit", "occupied sites")
    monkeypatch.setitem(full.data.fit["results"], "site_covariates", ["altitude"])
    page = _translated(
        full,
        "<p>Nests counted</p><p>3 of 9 sites have no altitude; they count as the mean of the others.</p>"
        "<p>1 of 9 sites has no altitude; it counts as the mean of the others.</p>",
        tmp_path,
    )
    assert "Gezählt: Nester" in page
    assert "keine Angabe zu altitude" in page
    assert "21,9 besetzte Gebiete" in _translated(full, "<p>21.9 occupied sites</p>", tmp_path)
    assert not (tmp_path / UNTRANSLATED).exists()


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize(
    "options",
    [
        {"rule": "rtrim", "convention": "trim", "base": "2010-2012"},
        {"rule": "rtrim"},
        {"convention": "trim", "coarse_map": 0.1},
    ],
)
def test_pages_by_other_rules_and_of_a_base_of_several_years_are_translated(folders, tmp_path, options):
    """Each option left a dozen of sentences in English, and sentences of two languages."""
    missing = []
    for at, more in enumerate(({}, options)):
        analysis, folder = analysed(folders, language="de", **more), tmp_path / str(at)
        folder.mkdir()
        _translated(analysis, whole_page(analysis, all_figures(analysis)), folder)
        file = folder / UNTRANSLATED
        missing.append(
            {e.english for e in parse_po(file.read_text(encoding="utf-8"))} if file.exists() else set()
        )
    assert not missing[1] - missing[0]


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
def test_what_other_settings_say_is_translated(folders, tmp_path, language):
    """TRIM's convention, the rule of rtrim, and a base of several years: sixteen sentences were English."""
    settings = ReportSettings(language=language, rule="rtrim", convention="trim", base="2010-2012")
    page = build_report(**folders, out=tmp_path / "page", settings=settings)
    text = (page.parent / UNTRANSLATED).read_text(encoding="utf-8")
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
def test_why_there_is_no_class_and_what_was_left_out_are_translated(language):
    """A first trial, of few birds or replicates, said in English why it gives no class."""
    few = [
        "the region has 1 site; a class needs 3", "the region has 2 sites; a class needs 3",
        *(_reason(n, np.ones(n), np.ones((draws, n))) for n, draws in ((1, 30), (2, 30), (9, 12), (9, 0))),
        _reason(9, np.zeros(9), None), _reason(9, np.ones(9), np.zeros((30, 9))),
        "9 visits found the species; a class needs 10", "1 visit found the species; a class needs 10",
        "1 site was counted in two or more years; a class needs 5",
        "2 sites were counted in two or more years; a class needs 5",
        *(f"one site-{time} holds 84 % of all that was counted" for time in ("month", "year")),
        *(
            f"the median year has {n} with a count; a class needs 3"
            for time in ("month", "year")
            for n in (f"1 site-{time}", f"2.5 site-{time}s")
        ),
        "only 1 of 9 years is linked by sites counted in more than one of them",
        "only 4 of 9 years are linked by sites counted in more than one of them",
        *seasons_apart(4, 9),
        *(f"the class or an alert depends on {years}, when next to no visit without a find was reported" for years in (
            "2008", "2008 and 2009", "9 years (2005 to 2013)"
        )),
    ]  # fmt: skip
    assert all(few)
    lines = [
        f"{start}: {why}."
        for why in few
        for start in ("No class where", "No class and no alert where", "No class")
    ]
    lines += [
        *(
            f"{n} places more than 100 km apart (W1); {their} the mean of them, which may be far from all. See "
            "whether latitude and longitude are swapped in some rows, or two sites have one name."
            for n, their in (("1 site has", "its place is"), ("2 sites have", "their places are"))
        ),
        *(
            f"None of the 20 visits of {years} found the species: how near to 0 the total came then is the model's guess, "
            "and the change per year depends on it. Check whether these zeros are true."
            for years in ("2009", "2005 and 2009", "2003, 2005 and 2009", "7 years (2003 to 2019)")
        ),
        "TRIM's model cannot be fitted to these counts: the model needs a site with a positive count and two time points; "
        "there are fewer.",
        "TRIM's model cannot be fitted to these counts: time point 2009 has no positive count (1 such points), so its "
        "effect cannot be estimated; leave it out, join it with its neighbour, or fit model 2, which draws a line "
        "through it.",
        "one count, 1,000 birds at W1 on 2012-05-01, is larger than all others together (900 birds); check it, since it can "
        "decide totals and trend.",
        "birds.csv: 1 of 2 rows was left out; line 2: no usable date (write it as 2024-05-31) '31.05.20'.",
        "birds.csv: not UTF-8, read as Windows text (CP1252); look at the names in line 2.",
        "birds.csv: Art = Wren, 4 of 6 rows, in 3 spellings.",
        "birds 2021.xlsx: the column names stand in row 3; what is above them is left out (--header-row says otherwise).",
        "log(hours) 0.25, log(1 + km) -0.1",
        "log(hours) 0.2, duration unknown 0.1, log(observers) 0.3",
        "log(1 + km) 0.1, distance unknown -0.1, observers unknown 0.2",
        "log(observers) 1.02",
        "birds 2021.xlsx: site = Ort, year = Jahr, count = Anzahl; covariates = Wer + Wie.",
        "It speaks of the one site in the panel, not of a country or a population: places that nobody visits are not in it.",
    ]
    for drift in (0.1, -0.1):
        table = pd.DataFrame(
            {"year": range(2001, 2010), "ratio": np.exp(drift * np.arange(9)), "ratio_se": 0.05}
        )
        lines.append(lack_of_fit(table))
    lines += [
        "Stable, resting on one site or count", "Wren: uncertain, resting on one site or count",
        "Strong decline, provisional since the fit has not converged",
        "81 % of all birds counted are from the site W1 in 2013.",
        "6 % of all birds counted are from the site W1 in 2013-05.",
        "If that count is a mistake, the result is one: check it first.",
        "The site W1 holds 81 % of the total over all sites and years: index and trend are mostly its own.",
        "Without the site W1 the totals would change by −3 % per year instead of +2 %: the trend rests on that site.",
        "Index of the mean total of the one site, 2010 = 100.",
        "trend report · 2010 to 2019 · 1 site · made on 2026-01-02 with fedmiss 0.3.0",
        "For orientation only, the estimated change is −2 % per year (95 % interval −8 % to +2 %), at 1 site.",
        *(
            left_out(years, "lacks", "lack", f"some months of the season ({season})")[0]
            for years in ([2014], [2014, 2020], [2014, 2015, 2016, 2020])
            for season in ("all months", "Nov to Feb")
        ),
        "1 of 10 years has no visit (2014); it is estimated from the others.",
    ]  # fmt: skip
    lines += [
        f"{several(n, 'site')}{more}"
        for n, more in ((1, "; --sites all keeps it"), (2, "; --sites all keeps them"), (1, ""))
    ]
    lines += [f"Wren: no trend class is given for 2012 to 2023, because {why}." for why in few[2:]]
    counted = dict.fromkeys(
        ("duplicates", "elsewhere", "copies", "no coordinates", "written", "zero_ok", "read"), 1
    )
    kept = dict.fromkeys((*_RECORD_STEPS, "held back", "written", "X"), 1)
    of = {"rows": 9, "source": "birds.csv", "malformed": {"count": 1}}
    of |= dict.fromkeys(("other_species", "joined", "missing", "without_birds"), 1)
    for tables in (("records",), ("events",), ("records", "events")):
        read = [SimpleNamespace(meta=of, has=name.__eq__) for name in tables]
        flow = row_flow(read, counted, kept, {"species": []}, presence_only=False)
        lines += [row[key] for row in flow for key in ("step", "note") if row["rows"]]
    assert not lacking(language, *lines, names=["Wren", "W1", "birds", "birds 2021.xlsx"])


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("n", [1, 2])
def test_what_is_said_of_the_columns_of_a_table_and_of_a_folder_without_the_species_is_translated(
    language, n, tmp_path
):
    header = "Ort;Jahr;Art;Anzahl;effort;distance;Länge;Wer's war"
    rows = [f"O{k};2011;Wren;{'3,0' if k < n else 3};5;1;a;b" for k in range(4)]
    rows += [f"P{k};2011;;3;5;1;a;b" for k in range(n)]
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    (tmp_path / "no.csv").write_text("site,year,count,species\na,2011,1,Robin\n")
    (tmp_path / "c.csv").write_text(
        "observer,site,date,species,count,complete\n" + "o,s,2011-05-06,Robin,1,1\n" * n
    )
    ingest([tmp_path / "t.csv"], tmp_path / "t", IngestSettings())
    ingest([tmp_path / "no.csv"], tmp_path / "no", IngestSettings())
    ingest([tmp_path / "c.csv"], tmp_path / "Club A", IngestSettings(column_map={"auto": ""}))
    folders = [tmp_path / name for name in ("t", "no", "Club A")]
    make_panel(folders, tmp_path / "panel", PanelSettings(species="Wren"))
    said = read_manifest(tmp_path / "panel", "panel")["warnings"]
    for words in (
        "decimal comma",
        "no species in",
        "duration",
        "distance",
        "not used",
        "no part",
        "zeros of",
    ):
        assert any(words in line for line in said), words
    assert not lacking(language, *map(html.escape, said), names=["Wren"])


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_months_without_a_visit_are_said_in_each_language(language, n):
    """The note had as many slots as months, and a catalogue one sentence."""
    said: list[str] = []
    out = {(2005, month) for month in range(2, n + 2)}
    days = [date(y, m, 1) for y in (2004, 2005, 2006) for m in range(1, 13) if (y, m) not in out]
    panel_months(pl.Series(days), said, yearly=False)
    assert f"{n} of 36 months" in said[0]
    assert not lacking(language, *said)


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("kind", [*_SAID, "uncertain"])
def test_every_headline_is_translated(full, language, kind):
    limits = pd.Series({"trend_class": kind, "percent_lo": -6.0, "percent_hi": 2.0})
    head = headline(replace(full, trend=limits.combine_first(full.trend)))
    assert not lacking(language, head.sentence, head.sure, head.support, names=[full.name, full.unit])


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("season", [tuple(range(1, 13)), (6,), (1, 12), (4, 5, 7), (1, 2, 6, 10, 11)])
@pytest.mark.parametrize("n", [1, 12])
def test_headlines_of_one_site_and_of_every_season_are_translated(language, season, n):
    """Of a study of Junes, and of one site, the first sentence of the page was English."""
    where = f"at {several(n, 'site')}, {season_text(season)}"
    sites = "of the one site" if n == 1 else f"over all {n} sites"
    years = "2009 and 2022 lack" if n > 1 else "2009 lacks"
    are = "are" if n > 1 else "is"
    interval = "95 % interval −12.6 % to +3.1 %"
    said = [
        *(f"For orientation only, the estimated change is −4.8 % per year ({of}), {where}."
          for of in (interval, "no interval available")),
        *(f"The estimate is −4.8 % per year ({interval}); the interval includes no change and leaves room for "
          f"{_room(lo, hi)}, {where}."
          for lo, hi in ((-12.0, 9.0), (-12.0, 1.0), (-1.0, 9.0), (-2.0, 2.0))),
        *(f"Wren{found} {kind} from 2010 to 2019: −4.8 % per year ({interval}), {where}."
          for kind in _SAID.values() for found in ("", ", as counted where it was found,")),
        f"Wren was found on none of 153 visits {where}.",
        f"Between the two years the total changed by −3.1 % per year ({interval}, of the error of the totals alone), {where}"
        "; two years cannot tell a trend from the ups and downs of single years.",
        f"Index of the mean total {sites} ({season_text(season)}), 2010 = 100.",
        f"{years} some months of the season ({season_text(season)}) and {are} left out of index and trend.",
        "Wren: the panel has 0 complete years with enough counts, so there is no trend to report.",
    ]  # fmt: skip
    assert not lacking(language, *said, names=["Wren"])


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("cell", ["site-month", "site-year"])
def test_what_a_panel_of_few_sites_asks_of_a_year_is_translated(language, cell):
    said = set()
    for n_sites in range(1, 15):
        for months in range(1, 13) if cell == "site-month" else (1,):
            analysis = SimpleNamespace(
                cell=cell, coverage=SimpleNamespace(n_sites=n_sites), years=SimpleNamespace(season=range(months)),
                settings=ReportSettings(),
            )  # fmt: skip
            said.add(f": {least_words(analysis)}")
    why = (
        f"one {cell} holds 64 % of all that was counted", f"the median year has 1 {cell} with a count",
        f"the median year has 2.5 {cell}s with a count", "0 sites were counted in two or more years; a class needs 5",
        "only 1 of 7 years is linked by sites counted in more than one of them", *seasons_apart(3, 5),
        "only 3 of 7 years are linked by sites counted in more than one of them",
    )  # fmt: skip
    for first in why:
        for start in (
            "No class where: ",
            "No class and no alert where: ",
            "Wren: no trend class is given for 2010 to 2019, because ",
        ):
            said.add(f"{start}{first}; 1 visit found the species; a class needs 20.")
    said |= {
        "sites of the panel that the table of sites lacks: 1 of 4 (g1).",
        "Covariates of such a site count as the mean of the others.",
        "sites of the panel that the table of sites lacks: 4 of 9 (g1, g1, g1, ...).",
        "g1 is at 50.00, 9.00 in the records and at 50.00, 9.95 in the table of sites; the records' place is used.",
        "1 of 9 sites of the table lies beyond what visited sites span in g1 (1.2 to 3.4); it counts as the edge of it.",
        "group 'g1' never saw the species.",
        "group 'g1' alone has visits before all others.",
        "group 'g1' alone has visits after all others.",
        "g1: no region in common with another group.",
        "Groups share the course of the months; where regions differ in it, make a panel of each region.",
        "in none of the files: 'Otis tarda'; every complete checklist counts as a zero for it.",
    }
    assert not lacking(language, *said, names=["Wren", "birds", "g1"])


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("season", [(5,), (4, 5, 9), (11, 12, 1, 2), (4, 6), tuple(range(1, 13))])
@pytest.mark.parametrize(("low", "high"), [(-6.0, 2.0), (-6.0, 6.0), (-2.0, 6.0), (-2.0, 2.0)])
def test_every_season_and_room_of_a_headline_is_translated(full, language, season, low, high, monkeypatch):
    """German pages of counts of one month began in English."""
    monkeypatch.setattr(prose, "season_text", lambda _: season_text(season))
    for kind in ("uncertain", "stable", "not classified"):
        said = {
            "trend_class": kind,
            "percent_lo": low,
            "percent_hi": high,
            "reason": "there are 20 bootstrap replicates",
        }
        head = headline(replace(full, trend=pd.Series(said).combine_first(full.trend)))
        assert not lacking(language, head.sentence, names=[full.name, full.unit])


@pytest.mark.parametrize("language", languages())
def test_every_model_of_counts_and_every_step_of_the_structure_is_translated(language):
    for model in ("Bernoulli", "Gaussian", "Gaussian on log1p", "negative binomial", "quasi-Poisson"):
        held = f"Held-out deviance of 3 candidates; lowest, 1.2 per visit, for {model} with rank 1."
        assert not lacking(language, model, f"{model} (chosen)", f"{model} (averaged with it)", held)
    for step in STEPS.values():
        most = f"Of the steps that were tried, '{step}' changes the trend most, by 0.3 % per year."
        assert not lacking(language, step, most)


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("kind", [*_SAID, "uncertain", "not classified"])
def test_trim_beside_is_translated_with_every_class(language, kind):
    trend = f"−3.2 % per year (95 % interval −5.1 % to −1.0 %), {kind}, overdispersion 1.2"
    beside = f"TRIM: {trend}.", f"The same counts in TRIM's model 3: {trend}."
    regions = "Trends by region: N −3.2 % per year; South −1.0 % per year."
    assert not lacking(language, *beside, regions, names=["N", "South"])
