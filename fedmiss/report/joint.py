"""The report of several organisations together: what a report states of months and regions, and nothing of any site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, Bool
from fedmiss.atomic import read_json
from fedmiss.errors import InputError, several
from fedmiss.files import atomic_folder, hash_file, read_manifest, write_manifest
from fedmiss.folders import ALL, VISITED, JointFacts
from fedmiss.report.build import report_results, write_figures
from fedmiss.report.cautions import absences, moved_season, none_found, uncounted
from fedmiss.report.coverage import (
    MIN_CELLS_PER_YEAR,
    MIN_DETECTIONS,
    linked_years,
    seasons_apart,
    uncounted_slope,
)
from fedmiss.report.exchange import write_totals
from fedmiss.report.findings import ONE_TREND, Findings, Part, found_in, never_found, region_table
from fedmiss.report.finds import FindsOnly, finds_caution, finds_only, finds_reason, split
from fedmiss.report.fitted import fitted_years
from fedmiss.report.html import citation, rendered_page, write_html
from fedmiss.report.inputs import Source, read_draws
from fedmiss.report.language import names_of, translated
from fedmiss.report.prose import Headline, headline_of, model_caveats, not_converged
from fedmiss.report.sections import Section, index, model, question, season
from fedmiss.report.sections.headline import found
from fedmiss.report.sections.reading import closing
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.tables import shared_tables, write_csv
from fedmiss.report.words import count, left_out, share
from fedmiss.report.years import Years, month_table
from fedmiss.tables import read_table


@dataclass(frozen=True, kw_only=True)
class JointSource(Source):
    """The joint result of a study.

    ``totals`` region -> (L,) expected birds, the whole under ``all``; ``visits`` (L,) visits behind every released month;
    ``found`` and ``uncounted`` (L,) visits that found the species, and those of them without a number (X), which are not
    among ``visits``; in a result made before it had them those of presence, else None.
    """

    joint: Mapping[str, Any]
    totals: Mapping[str, F64]
    visits: F64
    found: F64 | None
    uncounted: F64

    @property
    def manifests(self) -> tuple[Mapping[str, Any], ...]:
        """What the joint result says of itself; its settings are those of the study, not of a fit."""
        results = self.joint["results"]
        return ({"results": results | {"exchanges": results["ledger"]["exchanges"]}},)

    @property
    def result(self) -> JointFacts:
        """The facts of the result, with types."""
        return JointFacts.of(self.joint["results"], "the joint result")

    @classmethod
    def read(cls, result: Path, exponents: Mapping[str, float]) -> JointSource:
        """Read a study's result.

        Raises InputError: the folder is no joint result, or is damaged.
        """
        manifest = read_manifest(result, "joint", verify=True)
        raw = read_json(result / "totals.json")
        months = month_table(np.array(raw["months"], dtype=np.int64))
        labels = [str(region) for region in raw["regions"]]
        draws = read_draws(result / "draws.parquet", len(months))
        if not labels or labels[0] != ALL or len(raw["totals"]) != len(labels):
            raise InputError(
                f"{result}/totals.json names the regions {', '.join(labels) or 'none'}; join the study again to write it."
            )
        visited = read_table(result / "visited.parquet", "visited").to_pandas()
        # Where the result does not say how many visits stand behind a month, the weight of the fitted ones does.
        behind = np.bincount(visited["month_index"], visited["weight"], len(months))
        cv = result / "cv.parquet"
        finds = raw.get("finds")
        if finds is None and manifest["results"]["family"] == "bernoulli":
            finds = np.bincount(visited["month_index"], visited["counted"], len(months))
        return cls(
            months=months,
            draws=draws,
            cv=read_table(cv, "cv").to_pandas() if cv.exists() else None,
            visited=visited,
            effort=exponents,
            yearly_counts=months["month_of_year"].nunique() == 1,
            joint=manifest,
            totals={
                label: np.array(total, dtype=float)
                for label, total in zip(labels, raw["totals"], strict=True)
            },
            visits=np.array(behind if raw["visits"] is None else raw["visits"], dtype=float),
            found=None if finds is None else np.array(finds, dtype=float),
            uncounted=np.array(raw.get("uncounted", np.zeros(len(months))), dtype=float),
        )

    @property
    def every(self) -> F64:
        """Visits (L,) with a number and without."""
        return self.visits + self.uncounted

    @property
    def entering(self) -> Bool:
        """Months (L,) with a visit behind them."""
        out: Bool = self.every > 0
        return out

    @property
    def told(self) -> tuple[int, int, int] | None:
        """Visits, those that found the species, and those of them without a number."""
        if self.found is None:
            return None
        return round(self.every.sum()), round(self.found.sum()), round(self.uncounted.sum())


@dataclass(frozen=True, kw_only=True)
class JointFindings(Findings):
    """The numbers of a joint report."""

    data: JointSource

    @property
    def redrawn(self) -> str:
        """Whose weights the replicates draw: whether an organisation knows its observers is not known to the others."""
        return "sites" if self.data.result.sites_redrawn else "observers or sites"

    @property
    def organisations(self) -> str:
        """Their names, in a sentence."""
        *first, last = [str(organisation) for organisation in self.data.joint["settings"]["organisations"]]
        return f"{', '.join(first)} and {last}"

    @property
    def job(self) -> str:
        """The beginning of the job's number, as pages show it."""
        return str(self.data.joint["inputs"]["job"])[:16]


_SITES_UNKNOWN = (
    "This page knows no sites: where the same ones were visited as often as ever, no visit lacks. The own page of each "
    "organisation compares them."
)


def _thin(data: JointSource, counted: float, series: MonthlySeries, yearly: pd.DataFrame) -> Iterator[str]:
    if data.told is not None and (found := data.told[1]) < MIN_DETECTIONS:
        yield f"{several(found, 'visit')} found the species; a class needs {MIN_DETECTIONS}"
    elif counted < MIN_DETECTIONS:
        yield f"{count(counted)} birds were counted; a class needs {MIN_DETECTIONS}"
    per_year = yearly.loc[yearly["used"], "visits"]
    median = float(per_year.median()) if len(per_year) else 0.0
    if median < MIN_CELLS_PER_YEAR:
        yield f"the median year has {median:g} {data.rests_on}; a class needs {MIN_CELLS_PER_YEAR}"
    years, month_of_year = series.years, data.months["month_of_year"].to_numpy()
    position = np.searchsorted(years.year, years.of_month)
    at = (years.W > 0).any(axis=0) & (data.visits > 0) & years.used[position]
    if at.any():
        sharing = linked_years(month_of_year[at], position[at], 13, years.year.size)
        yield from seasons_apart(sharing, int(years.used.sum()))


def _finds_only(data: JointSource, years: Years) -> list[FindsOnly]:
    """Years of finds only, by month of the year."""
    if data.found is None:
        return []
    of_year = data.months["month_of_year"].to_numpy()
    by_month = split(years, np.arange(of_year.size), of_year, data.every, data.found)
    return finds_only(years.year[years.used], [by_month])


def analyse_joint(data: JointSource, settings: ReportSettings) -> JointFindings:
    """Compute every table of the joint report."""
    birds = float(fitted_years(data.visited, data.months)["counted"].sum())  # all that were counted
    seen = data.visits if birds > 0 else np.zeros_like(data.visits)  # never counted: no year has an index
    series = MonthlySeries.of(data.totals[ALL], data.months, data.draws.get(ALL), seen)
    # Visits add up over the season's months, of which the totals are means: hence the mask of W and not W.
    visits = np.rint((series.years.W > 0) @ data.visits).astype(np.int64)
    monthly, yearly = (
        t if birds > 0 else never_found(t) for t in (series.monthly(), series.index(settings.base))
    )
    yearly = yearly.assign(visits=visits)
    only = _finds_only(data, series.years)
    thin = [*_thin(data, birds, series, yearly), finds_reason(only, series, settings)]
    refuse = "; ".join(filter(None, thin)) or None
    # Without interactions all regions share one trend: a class of each would say the same number of times.
    one = ONE_TREND if data.one_trend else None
    # Sites of a region are not known: regions have trends, and their share of the whole.
    parts = {
        name: Part(
            MonthlySeries.of(total, data.months, data.draws.get(name), data.visits),
            refuse if name == VISITED else refuse or one,
            0,
        )
        for name, total in data.totals.items()
        if name != ALL
    }
    visited = {VISITED: parts.pop(VISITED)} if VISITED in parts else {}
    return JointFindings(
        data=data,
        found=birds > 0,
        monthly=monthly.assign(visits=data.visits),
        yearly=yearly,
        finds_only=only,
        parts=parts,
        regions=region_table(parts, settings, series),
        visited=region_table(visited, settings, series),
        **found_in(
            Part(series, refuse, round(data.result.n_sites_all)), settings, settings.base, data.visits
        ),
    )


# -- words ---------------------------------------------------------------------------------------------------


def headline(findings: JointFindings) -> Headline:
    """The sentence of a local report, and what this one rests on."""
    support = (
        f"It rests on {count(findings.data.result.n_counted)} {findings.data.rests_on}, of {findings.organisations} "
        f"together. Index and trend are of {int(findings.years.used.sum())} of {findings.years.year.size} years."
    )
    if not findings.found:
        return Headline(
            "Never found",
            f"{findings.name} was not counted on any visit. There is no trend to report.",
            support,
        )
    return headline_of(findings, support, findings.name)


def caveats(findings: JointFindings) -> list[str]:
    """What a reader must know before using the numbers."""
    yearly = findings.yearly
    least = "the least numbers of visits, sites and organisations"
    least = least if findings.yearly_counts else f"any month with {least} behind it"
    tables = (
        "Sites that nobody visited come from the organisations' own tables of sites. A place that two of them list, or "
        "that one lists and another visited, counts twice: nobody sees the others' sites."
    )
    return [
        *not_converged(findings),
        *_of_visits(findings),
        *(
            f"{said} {_SITES_UNKNOWN}"
            for said in finds_caution(findings.finds_only, findings.series, findings.settings)
        ),
        *moved_season(findings, findings.data.visits),
        *left_out(yearly.loc[~yearly["complete"], "year"], "lacks", "lack", "some months of the season"),
        *left_out(yearly.loc[yearly["complete"] & (yearly["visits"] == 0), "year"], "lacks", "lack", least),
        *([] if findings.visited.empty else [tables]),
        *model_caveats(findings, birds=findings.found),
        *(str(warning) for warning in findings.data.joint["warnings"]),
    ]


def _of_visits(findings: JointFindings) -> Iterator[str]:
    """What the joint numbers of visits say."""
    data = findings.data
    if data.found is None or not data.found.any():
        return
    n_visits, n_found, without = data.told or (0, 0, 0)
    slope = uncounted_slope(findings.years, data.every, data.found, data.visits)
    yield from uncounted(findings, without, n_found, slope)
    yield from absences(n_visits - n_found, n_visits)
    if not without:  # some are told of no month: where nothing else of their organisation is behind them
        yield from none_found(findings, data.found > 0, data.every)


def _study(findings: JointFindings) -> Section:
    result, settings = findings.data.result, findings.data.joint["settings"]
    ledger = result.ledger
    masks = "yes: each organisation saw sums over all of them only" if settings["masks"] else "no"
    facts = [
        ("Organisations", findings.organisations),
        (findings.data.rests_on.capitalize(), count(result.n_counted)),
        ("Sites", count(result.n_sites_all)),
        (
            "Left out",
            f"{count(result.withheld_visits or 0)} visits, for least numbers ({settings['minimum']}) behind a sum",
        ),
        ("Least number of organisations behind a sum", count(settings["contributors"])),
        (
            f"Largest share of one organisation in a {'year' if findings.yearly_counts else 'month'}",
            share(settings["share"]),
        ),
        ("Sums masked", masks),
        (
            "Crossed the network",
            f"{count(ledger['exchanges'])} exchanges, {ledger['bytes_up'] / 1e6:.1f} MB of frames, each to all the others",
        ),
        ("Job", findings.job),
    ]
    return Section("study", "The study", {"facts": facts, "advice": result.advice})


def _sections(findings: JointFindings, plots: dict[str, Any]) -> list[Section]:
    least = (
        f"A year enters index and trend when {'it' if findings.yearly_counts else 'a month of it'} has the least numbers of "
        "visits, sites and organisations behind it that the study asks for."
    )
    sections = [
        found(findings, headline(findings), caveats(findings)),
        *(module.build(findings, plots) for module in (question, index, season, model)),
        _study(findings),
        closing(findings, least),
    ]
    return [section for section in sections if section is not None]


# -- files ---------------------------------------------------------------------------------------------------


def joint_report(
    result: Path,
    out: Path,
    exponents: Mapping[str, float],
    settings: ReportSettings | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the joint report of a study's result; return its page.

    Parameters
    ----------
    result : folder of the joint result
    exponents : effort in the model, by name
    """
    from fedmiss.report.figures import joint_figures  # matplotlib takes a second to load

    findings = analyse_joint(JointSource.read(result, exponents), settings or ReportSettings())
    with atomic_folder(out, "joint_report", overwrite=overwrite, inputs=[result]) as tmp:
        plots = joint_figures(findings)
        html = rendered_page(
            findings,
            plots,
            _sections(findings, plots),
            headline(findings),
            tags={},
            cite=citation(findings, findings.organisations, "joint trend report"),
            kind=f"joint trend report of {findings.organisations}",
            tables="CSV",
        )
        organisations = findings.data.joint["settings"]["organisations"]
        names = [*names_of(findings), *organisations, *findings.parts, findings.job]
        write_html(translated(html, findings.settings.language, names, tmp), tmp / "index.html")
        write_figures(plots, tmp / "figures")
        (tmp / "tables").mkdir()
        for name, table in shared_tables(findings).items():
            # how many sites a region has is not known
            table = table.drop(columns="n_sites") if name in ("regions", "visited") else table
            write_csv(table, tmp / "tables" / f"{name}.csv")
        write_totals(findings, tmp / "exchange")
        write_manifest(
            tmp, "joint_report", settings={"date": findings.date}, inputs={"totals.json": hash_file(result / "totals.json")},
            results={"headline": headline(findings).sentence, **report_results(findings)}, warnings=caveats(findings),
        )  # fmt: skip
    return out / "index.html"
