"""What a reader may ask of a page: other base, window, region, rule, sites left out; and what the page needs to answer.

``answer`` is the report's own arithmetic for one choice. The page holds ``stored`` and computes the same in the browser
(``reports/question.js``); a test holds the two against each other.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, DTypeLike

from fedmiss.arrays import I64
from fedmiss.errors import ConfigError
from fedmiss.folders import ALL
from fedmiss.report.analysis import Analysis
from fedmiss.report.classes import MIN_DRAWS, NOT_CLASSIFIED, SKEWED, normal_quantile, student_quantile
from fedmiss.report.findings import Findings, Part
from fedmiss.report.scatter import ODDS, RUNS
from fedmiss.report.series import MIN_YEARS, NOUGHT, MonthlySeries
from fedmiss.report.settings import RULES
from fedmiss.report.words import count

SITE_BYTES = 300_000  # the page stays below 1 MB at 200 sites, and below 3 MB at 10,000
REGION_BYTES = 250_000

NO_DRAWS = "the replicates held are totals of whole regions, so with single sites left out there is no interval and no class"
NO_BASE = "The base has no year with enough counts here; choose another."
NO_SITE = "Every site is left out; take one back."
OTHER_SEASON = (
    "This region is compared in other months than the whole; neither it nor a site of it can be left out."
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One question. ``None`` is what the report itself uses.

    ``region`` a name or ``all``; ``without``: everything but that region; ``base`` and ``window`` first and last year;
    ``left_out`` rows of ``sites.parquet``.
    """

    region: str = ALL
    without: bool = False
    base: tuple[int, int] | None = None
    window: tuple[int, int] | None = None
    rule: str | None = None
    convention: str | None = None
    left_out: frozenset[int] = frozenset()


class Answer(NamedTuple):
    """``yearly`` one row a year, as ``yearly_index``; ``trend`` as ``overall_trend``."""

    yearly: pd.DataFrame
    trend: pd.Series


def answer(findings: Findings, choice: Choice) -> Answer:
    """Compute what the report would say for a choice; it has a base, so some year has enough counts.

    Raises ConfigError: a base without a usable year, no site left, or a region whose season differs, with sites left out.
    """
    series, refuse = _chosen(findings, choice)
    published = findings.yearly.attrs["base"]
    first, last = choice.base or (int(published[0]), int(published[-1]))
    base, years = f"{first}-{last}", series.years
    if not (years.used & (years.year >= first) & (years.year <= last)).any():
        raise ConfigError(NO_BASE)
    trend = series.trend(
        base=base,
        rule=choice.rule or findings.settings.rule,
        years=choice.window,
        refuse=refuse,
        convention=choice.convention or findings.settings.convention,
    )
    return Answer(series.index(base), trend.iloc[0])


def _chosen(findings: Findings, choice: Choice) -> tuple[MonthlySeries, str | None]:
    """Return the series of a choice, and why it gets no class."""
    whole = findings.whole
    part = whole if choice.region == ALL else findings.parts[choice.region]
    series, refuse = part.series, part.refuse
    if (choice.without or choice.left_out) and not _same_season(findings, part):
        raise ConfigError(OTHER_SEASON)
    if choice.without and part is not whole:
        # Replicates are paired: draw k of the region is of the same
        # fit as draw k of the whole, so their difference is one too.
        draws = (
            None
            if series.draws is None or findings.series.draws is None
            else findings.series.draws - series.draws
        )
        rest = findings.series.totals - series.totals
        series = MonthlySeries.of(rest, findings.series.months, draws, findings.series.n_observed)
        # Without a region the rest is judged as the whole is: which of its sites have counts is not counted anew.
        refuse = whole.refuse
    if choice.left_out and isinstance(findings, Analysis):
        inside = np.ones(findings.n_sites, dtype=bool)
        if choice.region != ALL:
            inside = ((findings.data.sites["region"] == choice.region) != choice.without).to_numpy()
        out = np.array(sorted(site for site in choice.left_out if inside[site]), dtype=np.int64)
        if out.size == inside.sum():
            raise ConfigError(NO_SITE)
        if out.size:
            # Totals are sums over sites of expected counts: a site is taken out by subtraction, and no model is fitted.
            rest = series.totals - findings.data.expected[out].sum(axis=0)
            series, refuse = MonthlySeries.of(rest, series.months, None, series.n_observed), NO_DRAWS
    return series, refuse


def _same_season(findings: Findings, part: Part) -> bool:
    return part.series.years.season == findings.years.season


# -- what the page holds -------------------------------------------------------------------------------------


def _packed(values: ArrayLike, kind: DTypeLike = "<f8") -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def _source(findings: Findings, name: str, part: Part) -> dict[str, Any]:
    series = part.series
    draws = series.yearly_draws
    return {
        "name": name,
        "n": part.n_sites,
        # One character a year.
        "used": "".join("1" if used else "0" for used in series.years.used),
        "refuse": part.refuse,
        "same": _same_season(findings, part),
        "total": _packed(series.yearly),
        "draws": None if draws is None else _packed(draws),
        "b": 0 if draws is None else len(draws),
    }


def stored(findings: Findings, places: Mapping[int, tuple[float, float]] | None = None) -> dict[str, Any]:
    """Return what a page needs to answer questions, as a JSON object; arrays are base64 of little-endian floats.

    ``places``: site -> its point in the map's own units; sites without one cannot be clicked.
    """
    n_years = findings.years.year.size
    each = 11 * n_years * (1 + findings.n_draws)  # bytes of a region: eight a number, and a third for base64
    room = max(1, REGION_BYTES // max(each, 1))
    # The largest regions first, as many as there is room for; one at least.
    parts = dict(sorted(findings.parts.items(), key=lambda p: -p[1].series.totals.sum())[:room])
    notes = []
    if len(parts) < len(findings.parts):
        notes.append(
            f"The page holds the replicates of the {len(parts)} largest of {count(len(findings.parts))} regions."
        )
    df = range(1, max(n_years - 1, 1))
    sites = None
    if isinstance(findings, Analysis):
        table = site_years(findings)
        sites = _sites(findings, table, parts, places or {})
        n_held = len(sites["index"])
        if n_held < findings.n_sites:
            notes.append(
                f"The page holds the yearly numbers of the {count(n_held)} largest of "
                f"{count(findings.n_sites)} sites; the others cannot be chosen or left out."
            )
        notes.append(
            f"{NO_DRAWS[0].upper()}{NO_DRAWS[1:]}."
            + (" With a whole region left out there are both." if len(findings.parts) > 1 else "")
        )
        if findings.settings.coarse_map > 0:
            notes.append("Positions are coarse, so counts of single sites are not on the page.")
    return {
        "years": findings.years.year.tolist(),
        "base": [int(year) for year in findings.yearly.attrs["base"]],
        "rule": findings.settings.rule,
        "rules": list(RULES),
        "convention": findings.settings.convention,
        "unit": findings.unit_of_site,
        "z": normal_quantile(0.95),
        "t": [student_quantile(0.95, degrees) for degrees in df],
        "runs": [RUNS, ODDS],
        "skewed": SKEWED,
        "least": [MIN_YEARS, MIN_DRAWS, NOUGHT],
        "none": NOT_CLASSIFIED,
        "said": {"draws": NO_DRAWS, "base": NO_BASE, "site": NO_SITE, "season": OTHER_SEASON},
        "notes": notes,
        "absent": [part for part in findings.parts if part not in parts],
        "sources": [
            _source(findings, ALL, findings.whole),
            *(_source(findings, name, part) for name, part in parts.items()),
        ],
        "sites": sites,
    }


def _kept_sites(analysis: Analysis) -> I64:
    """Sites whose yearly numbers the page holds: the largest, as many as fit."""
    each = 27 * analysis.years.year.size + 60  # a double and three floats a year, and a third for base64
    order = np.argsort(-analysis.sites["mean_total"].fillna(0.0).to_numpy(), kind="stable")
    return np.sort(order[: max(1, SITE_BYTES // each)])


def site_years(analysis: Analysis) -> pd.DataFrame:
    """Return what was counted and what is expected at each site in each year (schema ``report_site_years``).

    ``lo``, ``hi``: means over the season's months of the limits of each month, which are the limits of the year where it
    has one month; where it has more, they are as wide as if all months erred alike. Counts are withheld where positions are
    coarse. Sites that the page has no room for are left out, the smallest first.
    """
    keep, weights, n_years = _kept_sites(analysis), analysis.years.W, analysis.years.year.size
    cells, member = analysis.data.cells, weights > 0
    month = cells["month_index"].to_numpy()
    # Each month is in one year only; months outside the season are in none, and get the weight 0 by ``season``.
    place = (cells["site_index"].to_numpy(), member.argmax(axis=0)[month])
    season = np.asarray(member.any(axis=0))[month]
    visits, birds = np.zeros((analysis.n_sites, n_years)), np.zeros((analysis.n_sites, n_years))
    np.add.at(visits, place, season * cells["n_used"].to_numpy())
    np.add.at(birds, place, season * analysis.data.sums.to_numpy())
    visits, birds = visits[keep], birds[keep]
    with np.errstate(invalid="ignore"):
        mean = np.where(visits > 0, birds / np.maximum(visits, 1), np.nan)
    if analysis.settings.coarse_map > 0:
        visits, mean = np.zeros_like(visits), np.full_like(mean, np.nan)
    lo, hi = (limit[keep].astype(np.float64) @ weights.T for limit in analysis.data.limits)
    return pd.DataFrame(
        {
            "site_index": np.repeat(keep.astype(np.int32), n_years),
            "year": np.tile(analysis.years.year.astype(np.int32), keep.size),
            "visits": visits.ravel().astype(np.int64),
            "mean_count": mean.ravel(),
            "expected": (analysis.data.expected[keep] @ weights.T).ravel(),
            "lo": lo.ravel(),
            "hi": hi.ravel(),
        }
    )


def _sites(
    analysis: Analysis,
    table: pd.DataFrame,
    parts: Mapping[str, Part],
    places: Mapping[int, tuple[float, float]],
) -> dict[str, Any]:
    n_years = analysis.years.year.size
    index = table["site_index"].to_numpy()[::n_years]
    rows = analysis.sites.iloc[index]
    number = {name: at + 1 for at, name in enumerate(parts)}
    return {
        "index": index.tolist(),
        "name": [analysis.site_names[site] for site in index],
        "region": [number.get(region, 0) if isinstance(region, str) else 0 for region in rows["region"]],
        "at": [places.get(int(site)) for site in index],
        "kind": rows["trend_class"].tolist(),
        "slope": _packed(rows["slope"].to_numpy()),
        "ends": [_packed(rows[name].to_numpy()) for name in ("percent_lo", "percent_hi")],
        "expected": _packed(table["expected"].to_numpy()),
        # Single precision where a number is only drawn; double where the browser goes on computing with it.
        **{name: _packed(table[name].to_numpy(), "<f4") for name in ("mean_count", "lo", "hi")},
    }
