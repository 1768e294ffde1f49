"""Every sentence that pages may hold is said in the languages that come along."""

import html
import json
from dataclasses import replace
from datetime import date
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedmiss.errors import several
from fedmiss.etl.checks import AT_ZERO, observers_alike, settle_spellings
from fedmiss.etl.codes import NO_DATE, NO_SIGHTING
from fedmiss.etl.columns import said_of_unused
from fedmiss.etl.filtering import steps_of, unmatched
from fedmiss.etl.filters import Filters
from fedmiss.etl.flow import _RECORD_STEPS, orphan_warning, row_flow, source_warnings, why_no_zeros
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.months import panel_months
from fedmiss.etl.panel import PanelSettings, make_panel
from fedmiss.etl.reach import Limits, Reach, reach_warnings
from fedmiss.etl.sources import Faults
from fedmiss.federation.hub.features import covariates_of
from fedmiss.federation.hub.structure import STEPS
from fedmiss.files import read_manifest
from fedmiss.report import prose
from fedmiss.report.cautions import least_words
from fedmiss.report.coverage import seasons_apart
from fedmiss.report.fitted import lack_of_fit, level_off
from fedmiss.report.language import languages, read_catalog
from fedmiss.report.prose import _SAID, headline, headline_of
from fedmiss.report.series import _reason
from fedmiss.report.settings import ReportSettings
from fedmiss.report.words import left_out
from fedmiss.report.years import season_text
from fedmiss.settings import definitions

DATE = ReportSettings(date="2026-01-02")
SEVEN = "2003, 2004, 2005, 2006, 2007, 2008 and 2011"
# what rows of the kinds of files must have
USABLE = (
    "observer", "site", "species", "date (write it as 2024-05-31)", "Submission ID", "Date", "record id",
    "eventDate (a full day)", "coordinates", "SAMPLING EVENT IDENTIFIER", "GROUP IDENTIFIER", "OBSERVATION DATE",
    "SCIENTIFIC NAME", "LOCALITY ID",
)  # fmt: skip


@pytest.fixture(params=languages())
def language(request):
    return request.param


def lacking(language, *lines, names=()) -> list[str]:
    """The sentences of some lines that a language of fedmiss does not have."""
    catalog = read_catalog(language)
    catalog.page("".join(f"<p>{line}</p>" for line in lines), names)
    return list(catalog.missing)


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
    for n in (1, 2):
        rows = {"long_rows": n, "short_rows": n, "unterminated": True, "malformed": {}, "unreadable": {}}
        absent += source_warnings(SimpleNamespace(meta={**meta, **rows}))
    assert len(absent) == 11
    assert not lacking(language, *map(html.escape, absent))
    page = read_catalog(language)
    text = page.page("".join(f"<p>{html.escape(line)}</p>" for line in said), [])
    assert not page.missing
    assert html.unescape(text).count(repr(value)) == len(said)


def test_every_filter_is_named_in_each_language(language, tmp_path):
    square = {"type": "Polygon", "coordinates": [[[0, 0], [0, 9], [9, 9], [0, 0]]]}
    (tmp_path / "p.json").write_text(json.dumps(square))
    texts = "countries states counties bcrs localities protocols projects observers".split()
    every = Filters(
        **dict.fromkeys(texts, ("Abe",)), without_observers=("me",), bbox=(0, 0, 9, 9), polygon=str(tmp_path / "p.json"),
        hotspots_only=True, first_date="2015-01-01", last_date="2019-01-01", last_years=5, years=(2016,), party=(1, 4),
        last_edited=("2020-01-01", None), max_speed=9.0, season=("05-01", "07-01"), start=(300, 600), complete_only=True,
        duration=(5, 300), distance=(0, 9),
    )  # fmt: skip
    assert all(getattr(every, name) != getattr(Filters(), name) for name in definitions(Filters))
    met = {}
    text = iter(["5"] * 99)
    names = [name for name, _ in steps_of(every, lambda *_: pl.Series([next(text)]), 18000, met)]
    steps = [f"checklists: filter: {name}" for name in names]
    steps += [f"records: on checklists left out: {name}" for name in names]
    said = unmatched({key: {"x", "abel"} for key in met})
    assert (len(set(names)), len(said)) == (23, 9)
    assert not lacking(language, *steps, *map(html.escape, said))


@pytest.mark.parametrize("n", [1, 2])
def test_what_is_said_of_files_that_do_not_cover_each_other_is_translated(language, n, tmp_path):
    lists = [SimpleNamespace(meta={"prefix": "S"})]
    said = [
        orphan_warning(lists, SimpleNamespace(steps={"orphans": rows}, orphans=set(range(k))), tmp_path)
        for rows in (1, 9)
        for k in (n, 9)
    ]
    for reach in (Reach(10000, 12000, "", None), Reach(None, None, "US", ("US",))):
        seen = {"out of reach": n, "nothing seen": n, "zero_ok": 2}
        said += reach_warnings(Limits(((reach,),), (reach,), 10), seen, 0.5)
    for names in (["height"], list("abcde")):
        sides = {
            "north": SimpleNamespace(site_covariates=names, magnitudes=np.full(len(names), 20)),
            "south": SimpleNamespace(site_covariates=[], magnitudes=np.zeros(0)),
            "west": SimpleNamespace(site_covariates=names, magnitudes=np.ones(len(names))),
        }
        for jointly in (True, False):
            covariates_of(sides, said, jointly=jointly)
    for known in ({"site": 0}, {"site": 0, "distance": 1}):
        said += said_of_unused(["plot", "km", "sky", "ground"], known)
    assert not lacking(language, *map(html.escape, said), names=["south"])


@pytest.mark.parametrize("sites", [["A", "a"], ["A", "a", "B", "b ", "B"]])
def test_what_is_said_of_spellings_is_translated(language, sites):
    frame = pl.DataFrame({"site": sites, "observer": sites, "line": range(2, 2 + len(sites))})
    said = [*observers_alike(frame), *settle_spellings(frame, "t.csv", "join")[1]]
    assert len(said) == 2
    assert not lacking(language, *map(html.escape, said))


def test_what_an_own_report_of_a_study_says_is_translated(language):
    """Of months that the study left out, regions without replicates, and fits whose messages nobody has kept the size of."""
    change = "ean change of the fitted values from one round to the next"
    said = [
        "Pale bars, not in the trend: 7 years (2003 to 2009).", "Not in the trend: 7 years (2003 to 2009).",
        f"Pale bars, not in the trend: {SEVEN}.",
        "7 years (2003 to 2009) have no count and are left out of index and trend.",
        f"{SEVEN} have no count and are left out of index and trend.",
        "the fit kept no bootstrap replicates of this region",
        "No class: the fit kept no bootstrap replicates of this region.",
        "visits withheld", "in months that too few stand behind", f"M{change}, which is 0 at a solution.",
        f"Convergence over 13 rounds: the m{change} goes from 0.483 to 0.00097.",
        "Of the sites of this panel about 1 was occupied in its first year, 4 in its last.",
    ]  # fmt: skip
    assert not lacking(language, *said)


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
            "2008", "2008 and 2009", "9 years (2005 to 2013)", SEVEN
        )),
    ]  # fmt: skip
    assert all(few)
    starts = ("No class where", "No class and no alert where", "No class")
    lines = [f"{start}: {why}." for why in few for start in starts]
    lines += [
        *(
            f"{n} places more than 100 km apart (W1); {their} the mean of them, which may be far from all. See "
            "whether latitude and longitude are swapped in some rows, or two sites have one name."
            for n, their in (("1 site has", "its place is"), ("2 sites have", "their places are"))
        ),
        *(
            f"None of the 20 visits of {years} found the species: how near to 0 the total came then is the model's guess, "
            "and the change per year depends on it. Check whether these zeros are true."
            for years in ("2009", "2005 and 2009", "2003, 2005 and 2009", "7 years (2003 to 2009)", SEVEN)
        ),
        "trend report · 2009 to 2021 · 1 site · made on 2026-01-02 with fedmiss 0.2.1",
        "In 2009 the estimated total over all sites was 12 birds (no interval available).",
        "Wren was found on none of 253 visits at 24 sites.",
        "less than 0.1 %",
        "251 visits went to 75 % of 336 site-years.",
        "Share of each year's total that comes from site-years without a count (bars), and share of the site-years with a "
        "count (dots).",
        "One site (its name is withheld) holds 51 % of the total over all sites and years: index and trend are mostly its "
        "own.",
        *(
            "The fit did not converge (it stopped because: after 500 rounds, the limit, predictors or months still moved by "
            "0.0054 a round (root mean square; a fit ends below 0.003, or less where it creeps). The counts are too few for "
            f"so many terms: choose {what}). Use no number before a fit converges: give it more rounds where the method "
            "takes them (--rounds), else fewer terms (--rank 0)."
            for what in ("--rank 0", "a larger area or a longer span of years for the panel")
        ),
        *(
            f"Recorded effort {went}: by itself it changes counts by −4.0 % a year, which the model takes out as far as "
            f"effort was recorded rightly. If it is off by half, as guessed durations are, the trend may be +14.6 % per "
            f"year{interval}."
            for went, interval in (("grew", ""), ("fell", " (95 % interval −16.0 % to +40.6 %)"))
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
        ratio = np.exp(drift * np.arange(9))
        lines.append(lack_of_fit(pd.DataFrame({"year": range(2001, 2010), "ratio": ratio, "ratio_se": 0.05})))
    lines += [level_off(pd.DataFrame({"counted": [100.0], "fitted": [fitted]})) for fitted in (80.0, 120.0)]
    lines.append(level_off(pd.DataFrame({"counted": [100.0], "fitted": [80.0]}), scaled=True))
    lines += [
        "Stable, resting on one site or count", "Wren: uncertain, resting on one site or count",
        "Strong decline, provisional since the fit has not converged",
        "81 % of all birds counted are from the site W1 in 2013.",
        "The fit is of presence and absence: totals are expected numbers of sites at which one standard visit finds the "
        "species, not of birds. Sites at which it is overlooked are not in them.",
        "Effort in the model (coefficients)", "Error, birds",
        "No bootstrap replicates were made, so no number has an interval. Fit with --method fast before using the trend.",
        "Dots: share of visits with a find in each year, at the effort that it had.",
        "Dots: share of visits with a find in the season of each year, at the effort that it had.",
        "TRIM takes the share of visits with a find of every site-month, without effort, observers, or trends that differ "
        "between sites.",
        "TRIM takes the share of visits with a find of every site-year, without effort, observers, or trends that differ "
        "between sites.",
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
    counted = dict.fromkeys("duplicates,elsewhere,copies,no coordinates,written,zero_ok,read".split(","), 1)
    kept = dict.fromkeys((*_RECORD_STEPS, "held back", "written", "X"), 1)
    of = {"rows": 9, "source": "birds.csv", "malformed": {"count": 1}}
    of |= dict.fromkeys(("other_species", "joined", "missing", "without_birds"), 1)
    for tables in (("records",), ("events",), ("records", "events")):
        read = [SimpleNamespace(meta=of, has=name.__eq__) for name in tables]
        flow = row_flow(read, counted, kept, {"species": []}, presence_only=False)
        lines += [row[key] for row in flow for key in ("step", "note") if row["rows"]]
    assert not lacking(language, *lines, names=["Wren", "W1", "birds", "birds 2021.xlsx"])


@pytest.mark.parametrize("n", [1, 2])
def test_what_is_said_of_the_columns_of_a_table_and_of_a_folder_without_the_species_is_translated(
    language, n, tmp_path
):
    header = "Ort;Jahr;Art;Anzahl;effort;distance;Länge;Wer's war"
    rows = [f"O{k};2011;Wren;{'3,0' if k < n else 3};5;1;a;b" for k in range(4)]
    rows += [f"P{k};2011;;3;5;1;a;b" for k in range(n)]
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    (tmp_path / "no.csv").write_text("site,year,count,species\na,2011,1,Robin\n")
    visits = "observer,site,date,species,count,complete\n" + "o,s,2011-05-06,Robin,1,1\n" * n
    (tmp_path / "c.csv").write_text(visits)
    ingest([tmp_path / "t.csv"], tmp_path / "t", IngestSettings())
    ingest([tmp_path / "no.csv"], tmp_path / "no", IngestSettings())
    ingest([tmp_path / "c.csv"], tmp_path / "Club A", IngestSettings(column_map={"auto": ""}))
    folders = [tmp_path / name for name in ("t", "no", "Club A")]
    make_panel(folders, tmp_path / "panel", PanelSettings(species="Wren"))
    said = read_manifest(tmp_path / "panel", "panel")["warnings"]
    for words in "decimal comma|no species in|duration|distance|not used|no part|zeros of".split("|"):
        assert any(words in line for line in said), words
    assert not lacking(language, *map(html.escape, said), names=["Wren"])


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_months_without_a_visit_are_said_in_each_language(language, n):
    """The note had as many slots as months, and a catalogue one sentence."""
    said: list[str] = []
    out = {(2005, month) for month in range(2, n + 2)}
    days = [date(y, m, 1) for y in (2004, 2005, 2006) for m in range(1, 13) if (y, m) not in out]
    panel_months(pl.Series(days), said, yearly=False)
    assert f"{n} of 36 months" in said[0]
    assert not lacking(language, *said)


@pytest.mark.parametrize(
    "season", [tuple(range(1, 13)), (6,), (1, 12), (4, 5, 7), (11, 12, 1, 2), (1, 2, 6, 10, 11)]
)
@pytest.mark.parametrize("n", [1, 12])
def test_headlines_of_every_class_season_and_number_of_sites_are_translated(
    full, language, season, n, monkeypatch
):
    """German pages of counts of one month, of a study of Junes, and of one site began in English."""
    where, trend = f"at {several(n, 'site')}, {season_text(season)}", dict(full.trend)
    monkeypatch.setattr(prose, "_where", lambda _: where)
    sites = "of the one site" if n == 1 else f"over all {n} sites"
    years = "2009 and 2022 lack some months" if n > 1 else "2009 lacks some months"
    said = [
        f"Wren was found on none of 153 visits {where}.",
        f"Index of the mean total {sites} ({season_text(season)}), 2010 = 100.",
        f"{years} of the season ({season_text(season)}) and {'are' if n > 1 else 'is'} left out of index and trend.",
        "Wren: the panel has 0 complete years with enough counts, so there is no trend to report.",
        headline(full).support,
    ]
    cases = [(kind, -2.0, 2.0, -1.0) for kind in _SAID]
    cases += [("uncertain", lo, hi, -1.0) for lo in (-6.0, -2.0) for hi in (2.0, 6.0)]
    # without an interval, with that of the totals alone, and with both
    cases += [
        ("not classified", lo, -lo, narrow) for lo, narrow in ((np.nan, np.nan), (np.nan, -1.0), (-2.0, -1.0))
    ]
    for kind, lo, hi, narrow in cases:
        own = {"trend_class": kind, "percent_lo": lo, "percent_hi": hi, "percent_lo_sampling": narrow}
        a = replace(full, trend=pd.Series(trend | own | {"reason": "there are 20 bootstrap replicates"}))
        for found in ("", ", as counted where it was found,"):
            head = headline_of(a, "", full.name + found)
            said += [head.sentence, head.sure]
    assert not lacking(language, *said, names=[full.name, full.unit, "Wren"])


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
        for start in ("No class where: ", "No class and no alert where: ",
                      "Wren: no trend class is given for 2010 to 2019, because "):  # fmt: skip
            said.add(f"{start}{first}; 1 visit found the species; a class needs 20.")
    said |= {
        "sites of the panel that the table of sites lacks: 1 of 4 (g1).",
        "Covariates of such a site count as the mean of the others.",
        "sites of the panel that the table of sites lacks: 4 of 9 (g1, g1, g1, ...).",
        "g1 is at 50.00, 9.00 in the records and at 50.00, 9.95 in the table of sites; the records' place is used.",
        "1 of 9 sites of the table lies beyond what visited sites span in g1 (1.2 to 3.4); it counts as the edge of it.",
        "in the column 'habitat', no visited site has 'bog', 'a fen'; sites that have it are expected to be like the "
        "mean.",
        "in the column 'a', no visited site has 'b', 'c', 'd', 'e', ...; sites that have it are expected to be like the "
        "mean.",
        "This page knows no sites: where the same ones were visited as often as ever, no visit lacks.",
        "The own page of each organisation compares them.",
        "group 'g1' never saw the species.",
        "group 'g1' alone has visits before all others.",
        "group 'g1' alone has visits after all others.",
        "g1: no region in common with another group.",
        "Groups share the course of the months; where regions differ in it, make a panel of each region.",
        "in none of the files: 'Otis tarda'; every complete checklist counts as a zero for it.",
    }
    assert not lacking(language, *said, names=["Wren", "birds", "g1"])


def test_every_model_of_counts_and_every_step_of_the_structure_is_translated(language):
    for model in ("Bernoulli", "Gaussian", "Gaussian on log1p", "negative binomial", "quasi-Poisson"):
        held = f"Held-out deviance of 3 candidates; lowest, 1.2 per visit, for {model} with rank 1."
        assert not lacking(language, model, f"{model} (chosen)", f"{model} (averaged with it)", held)
    for step in STEPS.values():
        most = f"Of the steps that were tried, '{step}' changes the trend most, by 0.3 % per year."
        assert not lacking(language, step, most)
    later = "Observers who come a year later differ by +0.5 % in what they count of the same birds"
    assert not lacking(language, f"{later}, as far as the counts tell; the trend leaves that out.")


@pytest.mark.parametrize("kind", [*_SAID, "uncertain", "not classified"])
def test_trim_beside_is_translated_with_every_class(language, kind):
    trend = f"−3.2 % per year (95 % interval −5.1 % to −1.0 %), {kind}, overdispersion 1.2"
    beside = f"TRIM: {trend}.", f"The same counts in TRIM's model 3: {trend}."
    regions = "Trends by region: N −3.2 % per year; South −1.0 % per year."
    assert not lacking(language, *beside, regions, names=["N", "South"])
