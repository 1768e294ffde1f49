"""Two reports: the joint one at the hub, of months and regions; and each organisation's own, of its sites."""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedmiss.arrays import F64, I64
from fedmiss.errors import InputError
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.hub.job import FIRST_REPLICATES
from fedmiss.federation.messages import Outcome
from fedmiss.federation.results import AverageFit, CountFit, Posterior, site_slopes
from fedmiss.files import Manifest, atomic_folder, hash_file, read_json, read_manifest, write_manifest
from fedmiss.folders import FitFacts, JointFacts, or_nan
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.theta import Fit
from fedmiss.network.kits import Kit
from fedmiss.network.site import open_data, replayed
from fedmiss.parsing import parse_json
from fedmiss.pipeline.fit_folder import write_fit, write_totals
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.panels import PanelFolder, effort_names, open_panel, panel_hash
from fedmiss.report.build import build_report
from fedmiss.report.fitted import fitted_years, lack_of_fit
from fedmiss.report.html import assets, environment
from fedmiss.report.series import MonthlySeries
from fedmiss.report.style import BLUE, ORANGE, SKY, Plot, figure, style
from fedmiss.report.tables import write_csv
from fedmiss.report.words import number, per_year, percent
from fedmiss.tables import read_table, write_table

__all__ = ["joint_report", "own_report"]


def _months(stamps: I64) -> pd.DataFrame:
    year, month = stamps // 12, stamps % 12 + 1
    return pd.DataFrame(
        {
            "month_index": np.arange(stamps.size, dtype=np.int32),
            "month": [f"{y:04d}-{m:02d}" for y, m in zip(year, month, strict=True)],
            "year": year.astype(np.int32),
            "month_of_year": month.astype(np.int32),
        }
    )


# -- the joint report ----------------------------------------------------------------------------------------


def joint_report(result: Path, out: Path, *, date: str | None = None, overwrite: bool = False) -> Path:
    """Write the joint report of a study's result; return its page."""
    manifest = read_manifest(result, "joint")
    raw = read_json(result / "totals.json")
    months = _months(np.array(raw["months"], dtype=np.int64))
    totals, labels = np.array(raw["totals"]), list(raw["regions"])
    draws = _draws(result / "draws.parquet", labels, len(months))
    behind = None if raw["visits"] is None else np.array(raw["visits"])
    series = [MonthlySeries.of(t, months, d, behind) for t, d in zip(totals, draws, strict=True)]
    monthly, yearly = series[0].monthly(), series[0].index()
    rows = [s.trend().assign(region=label) for s, label in zip(series, labels, strict=True)]
    trends = pd.concat(rows, ignore_index=True)
    plot = _figure(yearly, trends.iloc[0])
    fitted = fitted_years(read_table(result / "visited.parquet", "visited").to_pandas(), months)
    notes = [n for n in (lack_of_fit(fitted), *manifest["warnings"]) if n]
    with atomic_folder(out, "joint_report", overwrite=overwrite, inputs=[result]) as tmp:
        (tmp / "tables").mkdir()
        for name, table in (("monthly", monthly), ("yearly", yearly), ("trend", trends), ("fitted", fitted)):
            write_csv(table, tmp / "tables" / f"{name}.csv")
        (tmp / "index.html").write_text(
            _page(manifest, yearly, trends, fitted, plot, notes, date or dt.date.today().isoformat()),
            encoding="utf-8",
        )
        write_manifest(
            tmp, "joint_report", settings={"date": date}, inputs={"totals.json": hash_file(result / "totals.json")},
            results={"headline": _headline(manifest, trends.iloc[0])}, warnings=manifest["warnings"],
        )  # fmt: skip
    return out / "index.html"


def _draws(path: Path, labels: list[str], L: int) -> list[F64 | None]:
    table = read_table(path, "draws").to_pandas()
    out: list[F64 | None] = []
    for label in labels:
        part = table[table["region"] == label].sort_values(["draw", "month_index"])
        out.append(part["total"].to_numpy(float).reshape(-1, L) if len(part) else None)
    return out


def _figure(yearly: pd.DataFrame, trend: pd.Series) -> Plot:
    with style():
        fig = figure()
        ax = fig.subplots()
        used = yearly[yearly["used"]]
        year = used["year"].to_numpy(float)
        if used["index_lo"].notna().any():
            ax.vlines(year, used["index_lo"], used["index_hi"], color=SKY, lw=5, alpha=0.6)
        # unused years are NaN, so that the line breaks instead of bridging a year without data
        ax.plot(yearly["year"], yearly["index"], color=BLUE, marker="o", ms=4, lw=1.2)
        if len(used) >= 2 and np.isfinite(trend["slope"]):
            level = np.log(used["index"]).mean()
            ax.plot(year, np.exp(level + trend["slope"] * (year - year.mean())), color=ORANGE, lw=1.6)
        ax.set_ylabel(f"index ({trend['base']} = 100)")
        ax.set_ylim(bottom=0)
        alt = f"Yearly index, trend {per_year(trend['percent_per_year'], trend['percent_lo'], trend['percent_hi'])}."
        return Plot(
            "trend",
            "Yearly index and trend",
            "Bars: 95 % interval. Orange: straight trend.",
            alt,
            fig,
            yearly,
        )


def _headline(manifest: Manifest, t: pd.Series) -> str:
    change = per_year(t["percent_per_year"], t["percent_lo"], t["percent_hi"])
    names = ", ".join(manifest["settings"]["organisations"])
    reason = f" No class: {t['reason']}." if t["reason"] else ""
    return (
        f"{manifest['results']['species']}, {t['from_year']} to {t['to_year']}, of {names} together: {t['trend_class']}, "
        f"{change}.{reason}"
    )


def _page(
    manifest: Manifest,
    yearly: pd.DataFrame,
    trends: pd.DataFrame,
    fitted: pd.DataFrame,
    plot: Plot,
    notes: list[str],
    date: str,
) -> str:
    rows = [
        [str(r["year"]), number(r["total"]), number(r["index"]), _interval(r), "yes" if r["used"] else "no"]
        for r in yearly.to_dict("records")
    ]
    regions = [
        [
            r["region"],
            per_year(r["percent_per_year"], r["percent_lo"], r["percent_hi"]),
            str(r["trend_class"]),
            f"{percent(r['percent_lo_sampling'])} to {percent(r['percent_hi_sampling'])}"
            if np.isfinite(r["percent_lo_sampling"])
            else "n/a",
            str(r["reason"]),
        ]
        for r in trends.to_dict("records")
    ]
    follows = [
        [str(r["year"]), f"{r['visits']:,.0f}", number(r["counted"]), number(r["fitted"]), number(r["ratio"])]
        for r in fitted.to_dict("records")
    ]
    told, settings = JointFacts.of(manifest["results"]), manifest["settings"]
    facts = [
        ("Organisations", ", ".join(settings["organisations"])),
        ("Visits with a count", f"{told.n_counted:,}"),
        ("Sites", f"{told.n_sites_all:,.0f}"),
        ("Model", _model_words(told)),
        ("Bootstrap replicates", str(told.bootstrap)),
        ("Sums masked", "yes: the hub saw sums over all organisations only" if settings["masks"] else "no"),
        ("Left out", f"{told.withheld_visits:,} visits, for least numbers ({settings['minimum']}) behind a sum"),
        ("Crossed the network", _traffic(told.ledger)),
        ("Job", manifest["inputs"]["job"][:16]),
    ]  # fmt: skip
    return environment().get_template("joint/page.html.j2").render(
        title=f"{told.species}: joint trend", headline=_headline(manifest, trends.iloc[0]), date=date, figure=plot,
        yearly=rows, regions=regions, fitted=follows, facts=facts, notes=notes, advice=told.advice, **assets(),
    )  # fmt: skip


def _interval(year: Mapping[Hashable, Any]) -> str:
    if not np.isfinite(year["index_lo"]):
        return "n/a"
    if np.isclose(year["index_lo"], year["index_hi"]):
        return "base"
    return f"{number(year['index_lo'])} to {number(year['index_hi'])}"


def _model_words(told: JointFacts) -> str:
    ranks = [str(m["rank"]) for m in told.members]
    if len(ranks) == 1:
        return f"{told.model}, rank {ranks[0]}"
    return f"{told.model}: the mean of ranks {', '.join(ranks[:-1])} and {ranks[-1]}, with equal weights"


def _traffic(ledger: Mapping[str, int]) -> str:
    up, down = ledger["bytes_up"] / 1e6, ledger["bytes_down"] / 1e6
    return f"{ledger['exchanges']:,} exchanges, {up:.1f} MB up, {down:.1f} MB down"


# -- an organisation's own report ----------------------------------------------------------------------------


def own_report(kit: Kit, data: Path, out: Path, *, overwrite: bool = False) -> Path:
    """Write an organisation's own report from its journal and data; return its page.

    Raises
    ------
    InputError    the job is not done yet
    """
    program, told = replayed(kit, data)
    if not told:
        raise InputError(f"the job {kit.job.hex()[:12]} is not done yet: there is nothing to report.")
    panel = open_data(kit, data)
    with atomic_folder(out, "own", overwrite=overwrite, inputs=[data, kit.folder]) as tmp:
        mine = _own_panel(panel, told[0].months, tmp / "panel")
        _own_fit(kit, program, told, mine, tmp / "fit")
        impute_panel(tmp / "panel", tmp / "fit", tmp / "imputed")
        build_report(tmp / "panel", tmp / "fit", tmp / "imputed", tmp / "report")
        write_manifest(tmp, "own", settings={"study": kit.study.name, "job": kit.job.hex()}, inputs={})
    return out / "report" / "index.html"


def _own_panel(panel: PanelFolder, stamps: I64, out: Path) -> PanelFolder:
    """Make the organisation's panel on the months that all agreed on."""
    at = np.searchsorted(stamps, panel.stamps)
    inside = (at < stamps.size) & (stamps[np.minimum(at, stamps.size - 1)] == panel.stamps)
    source = panel.groups[0]
    kept = {}
    for name in ("visits", "cells"):
        table = read_table(source / f"{name}.parquet", name).to_pandas()
        table = table[inside[table["month_index"].to_numpy()]]
        kept[name] = table.assign(month_index=at[table["month_index"].to_numpy()].astype(np.int32))
        write_table(kept[name], out / "groups" / source.name / f"{name}.parquet", name)
    facts = replace(
        panel.facts,
        n_visits=len(kept["visits"]),
        n_counted=int(kept["visits"]["count"].notna().sum()),
        n_cells_observed=int((kept["cells"]["n_counted"] > 0).sum()),
    )
    write_table(_months(stamps), out / "months.parquet", "months")
    write_table(panel.sites, out / "sites.parquet", "sites")
    old = panel.manifest
    write_manifest(
        out, "panel", settings=old["settings"], inputs=old["inputs"], results=facts.as_results(),
        flow=old["flow"], terms=old["terms"], warnings=old["warnings"],
    )  # fmt: skip
    return open_panel(out)


def _facts(told: Outcome) -> JointFacts:
    """Read the facts of a result that the hub sent; what it sends is not trusted to be JSON, or a table."""
    try:
        raw = parse_json(told.results)
    except ValueError as error:
        raise InputError(
            f"the result that the hub sent is not valid JSON ({error}); tell the coordinator."
        ) from None
    if not isinstance(raw, dict):
        raise InputError("the result that the hub sent is no table of facts; tell the coordinator.")
    return JointFacts.of(raw, "the job")


def _told_fit(program: GroupProgram, told: Outcome, n_counted: int) -> CountFit:
    """Build one of the averaged fits: the hub's half from its message, the organisation's own from its program."""
    r = _facts(told)
    P, C = program.site_posterior(told.batch, 0)
    L, p = told.T.shape
    q = Posterior(
        r.mu, P, C, told.T, told.D, np.array(r.site_variances), np.zeros((L, p)), np.array(r.month_variances)
    )
    settings = CountSettings(family=r.family, scale=r.scale, rank=r.rank, dispersion=r.dispersion_model)
    aux = Auxiliary(np.zeros(0), (), r.negbin_size or float("inf"), r.phi, 0.0, 0.0, 0.0)
    edf = or_nan(r.edf)
    history = Fit(q.theta(), [], r.converged, r.stop_reason, r.rounds, edf=edf)
    return CountFit(settings, len(P), L, history, aux, or_nan(r.dispersion), edf, n_counted, r.smear, q)


def _own_fit(kit: Kit, program: GroupProgram, told: list[Outcome], panel: PanelFolder, out: Path) -> None:
    r, own = _facts(told[0]), panel.facts
    fit = AverageFit(tuple(_told_fit(program, t, own.n_counted) for t in told))
    write_fit(out, fit)
    keys = sorted(k for k in program.own_totals if k[0] >= FIRST_REPLICATES)
    if keys:
        write_totals(out / "draws.parquet", np.stack([program.own_totals[k] for k in keys])[:, None], ["all"])
        _own_slopes(out, program, fit, panel, keys)
    trace = told[0].trace
    k = trace.size
    write_table(
        {
            "round": np.arange(1, k + 1, dtype=np.int32), "h_norm2": trace**2, "objective": [None] * k,
            "active": np.full(k, r.n_groups, np.int32), "bytes_up": np.zeros(k, np.int64),
            "bytes_down": np.zeros(k, np.int64), "epochs": np.arange(1, k + 1, dtype=float), "seconds": np.zeros(k),
        },
        out / "trace.parquet", "trace",
    )  # fmt: skip
    effort = dict(zip(effort_names(tuple(r.terms), tuple(r.blanks)), r.kappa, strict=True))
    facts = FitFacts.of(
        r.as_results() | {
            "n_visits": own.n_visits, "n_counted": own.n_counted, "n_cells_observed": own.n_cells_observed,
            "n_sites": len(panel.sites), "common_name": own.common_name, "effort": effort,
        }
    )  # fmt: skip
    note = (
        f"Months, variances and the choice of the model come from {', '.join(kit.roster)} "
        "together; sites, totals and map are "
        f"those of {kit.name}."
    )
    write_manifest(
        out, "fit", settings={"study": kit.study.name, "job": kit.job.hex()}, inputs=panel_hash(panel),
        results=facts.as_results(), flow=panel.manifest["flow"],
        terms=panel.manifest["terms"], warnings=[*panel.manifest["warnings"], *r.notes, note],
    )  # fmt: skip


def _own_slopes(
    out: Path, program: GroupProgram, fit: AverageFit, panel: PanelFolder, keys: list[tuple[int, int]]
) -> None:
    slope, mean = site_slopes(fit, panel.calendar[1], panel.calendar[0])
    draws = [program.slopes[k] for k in keys if k in program.slopes]
    known = ~np.isnan(slope) & (len(draws) >= 2)
    se = np.std(draws, axis=0, ddof=1) if len(draws) >= 2 else np.full(slope.size, np.nan)
    write_table(
        {
            "site_index": np.arange(fit.J, dtype=np.int32),
            "slope": pa.array(slope, mask=np.isnan(slope)),
            "slope_se": pa.array(se, mask=~known),
            "mean_total": mean,
        },
        out / "site_trends.parquet",
        "site_trends",
    )
