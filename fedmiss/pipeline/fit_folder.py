"""The fit folder: its tables, its manifest, and the unfinished work beside it; every method writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedmiss.arrays import F64, I64, Columns
from fedmiss.atomic import read_checked, work_of, write_checked
from fedmiss.core import Result
from fedmiss.errors import InputError
from fedmiss.federation.fit_tables import site_slopes, visited_totals
from fedmiss.federation.results import AverageFit, CountFit, Posterior, coefficient_names
from fedmiss.files import Manifest, read_manifest, replace_folder, seal, write_manifest
from fedmiss.folders import FitFacts, JointFacts, ModelFacts, PanelFacts, or_nan
from fedmiss.models.lowrank.occupancy import ChainPosterior
from fedmiss.models.lowrank.own_lines import OwnLines
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.theta import Fit, Theta
from fedmiss.owner import (
    begin_work,
    drop_unfinished,
    empty_part,
    empty_work,
    end_work,
    files_of,
    refuse_strangers,
)
from fedmiss.pipeline.panels import PanelFolder, effort_names
from fedmiss.pipeline.settings import FitSettings
from fedmiss.progress import note
from fedmiss.tables import read_table, write_table

MEMBERS = "members"  # folder of the fits that are averaged with the chosen one


def partial_folder(out: Path, key: str) -> Path:
    """Return the folder of unfinished work, emptied when it is of other settings, another panel or version, or damaged."""
    work = work_of(out)
    begin_work(work)
    ledger = (work / "ledger.json").exists() and saved(work / "ledger.json") is None
    # A damaged ledger makes all work worthless: its bytes could not be told any more.
    if files_of(work) and (ledger or saved(work / "key.json") != key.encode()):
        if (work / "key.json").exists():
            note(
                f"the unfinished work in {work} is of other settings, another panel or another version: it is not used."
            )
        empty_work(work)
        begin_work(work)
    write_checked(work / "key.json", key.encode())
    return work


def saved(path: Path) -> bytes | None:
    """Return a file of unfinished work; None, and a note, for a damaged one; None for a missing one."""
    if not path.exists():
        return None
    try:
        return read_checked(path)
    except InputError as error:
        note(f"{error} What it held is done again.")
        return None


def checkpoint(work: Path) -> Path:
    """Return the checkpoint of a run through the core; a damaged one is removed."""
    path = work / "checkpoint" / "run.npz"
    path.parent.mkdir(exist_ok=True)
    if path.exists() and saved(path) is None:
        empty_work(work, ["checkpoint/run.npz"])
    return path


def finish(work: Path, out: Path) -> Path:
    """Remove the checkpoints and rename the work folder to its final name."""
    drop_unfinished(work)
    refuse_strangers(work)  # somebody may have put one there meanwhile
    # The key first: work without one is done anew. With a key and without its ledger it would go on, and count anew.
    names = ("key.json", "choice.json", "ledger.json", *(path.name for path in work.glob("draws-*.npz")))
    empty_work(work, names)
    empty_part(work / "checkpoint")
    seal(work)
    replace_folder(work, out)
    end_work(out)
    return out


def write_fit(work: Path, fit: CountFit | AverageFit) -> None:
    """Write the fit, those that are averaged with it into ``members``, and the counted and fitted totals of the visits."""
    for i, one in enumerate(fit.fits):
        _write_factors(work / MEMBERS / str(i + 1) if i else work, one)
    states = [
        (one.state, one.settings)
        for one in fit.fits
        if one.state is not None and one.state.visited is not None
    ]
    if states:
        write_table(visited_totals(states), work / "visited.parquet", "visited")


def _write_factors(work: Path, fit: CountFit) -> None:
    """Write factors (and, for a variational fit, the covariances that the expected counts need)."""
    theta = fit.theta
    sites: Columns = {"site_index": np.arange(fit.J, dtype=np.int32), "a": theta.a}
    months: Columns = {"month_index": np.arange(fit.L, dtype=np.int32), "b": theta.b}
    names = coefficient_names(theta.rank, slopes=fit.slopes)
    sites |= {site: theta.U[:, at] for at, (site, _) in enumerate(names)}
    months |= {month: theta.V[:, at] for at, (_, month) in enumerate(names)}
    if fit.posterior is not None:
        for table, cov in ((sites, fit.posterior.C), (months, fit.posterior.D)):
            # Lower triangles: covariances are symmetric.
            table |= {f"cov_{i}_{j}": cov[:, i, j] for i in range(cov.shape[1]) for j in range(i + 1)}
        for table, common in ((sites, fit.posterior.common_sites), (months, fit.posterior.common_months)):
            for i, errors in enumerate(common):
                table |= {f"common_{i}_{k}": errors[:, k] for k in range(errors.shape[1])}
    if fit.presence is not None:
        assert fit.year is not None
        months["year"] = fit.year.astype(np.int32)
        for year in range(fit.presence.came.shape[1]):
            sites |= {
                f"came_{year}": fit.presence.came[:, year],
                f"stayed_{year}": fit.presence.stayed[:, year],
            }
    if (lines := fit.lines) is not None:
        sites |= {
            "s_mean": lines.mean,
            "first_year": lines.first,
            "last_year": lines.last,
            "s_more": lines.more,
        }
        months["line_year"] = lines.year
    write_table(sites, work / "site_factors.parquet", "site_factors")
    write_table(months, work / "month_factors.parquet", "month_factors")


def read_fit(path: str | Path) -> tuple[Manifest, CountFit | AverageFit]:
    """Read a fit folder back as (manifest, fit); the observer effects are not in it."""
    path = Path(path)
    manifest = read_manifest(path, "fit", verify=True)
    facts = FitFacts.of(manifest["results"], path)
    fits = [_read_member(path, facts, facts)]
    # The first member is the folder itself.
    for i, member in enumerate(facts.members[1:]):
        fits.append(_read_member(path / MEMBERS / str(i + 2), ModelFacts.of(member, path), facts))
    return manifest, fits[0] if len(fits) == 1 else AverageFit(tuple(fits))


def _read_member(path: Path, facts: ModelFacts, of: FitFacts) -> CountFit:
    """One of the models of a fit, from the tables in ``path``."""
    sites = read_table(path / "site_factors.parquet", "site_factors").to_pandas()
    months = read_table(path / "month_factors.parquet", "month_factors").to_pandas()
    names = coefficient_names(facts.rank + facts.slopes, slopes=facts.slopes)
    U = sites[[site for site, _ in names]].to_numpy(float)
    V = months[[month for _, month in names]].to_numpy(float)
    theta = Theta(facts.mu, sites["a"].to_numpy(float), months["b"].to_numpy(float), U, V)
    settings = CountSettings(
        family=facts.family, scale=facts.scale, rank=facts.rank, penalty=facts.penalty,
        dispersion=facts.dispersion_model, effects=facts.effects, observers=of.observer_effects,
        occupancy=bool(facts.occupancy),
    )  # fmt: skip
    J, L, p = len(sites), len(months), 1 + len(names)
    posterior = None
    if "cov_0_0" in sites.columns:
        posterior = Posterior(
            theta.mu, np.column_stack([theta.a, U]), _covariances(sites, p), np.column_stack([theta.b, V]),
            _covariances(months, p), np.asarray(facts.site_variances or np.full(p, np.inf)), np.zeros((L, p)),
            np.asarray(facts.month_variances or np.full(p, np.inf)),
            *(_in_common(table, p) for table in (sites, months)),
        )  # fmt: skip
    presence, year = None, None
    if facts.occupancy:
        year = months["year"].to_numpy(np.int64)
        both = (
            sites[[f"{kind}_{at}" for at in range(int(year.max()) + 1)]].to_numpy(float)
            for kind in ("came", "stayed")
        )
        presence = ChainPosterior(*both)
    lines = None
    if "s_mean" in sites.columns:  # a fit of before has none, and goes on straight
        first, last = (sites[name].to_numpy(np.int64) for name in ("first_year", "last_year"))
        lines = OwnLines.of(
            first,
            last,
            sites["s_mean"].to_numpy(float),
            months["line_year"].to_numpy(np.int64),
            months["x"].to_numpy(float),
            sites["s_more"].to_numpy(float) if "s_more" in sites.columns else np.zeros(J),
        )
    # Observer effects stay in the groups; what prediction needs of them is their variance.
    ridge = of.observer_sd**-2 if of.observer_sd else 0.0
    aux = Auxiliary(np.zeros(0), (), facts.negbin_size or float("inf"), facts.phi, ridge)
    fit = Fit(theta, [], facts.converged, facts.stop_reason, facts.rounds)
    dispersion, edf = or_nan(facts.dispersion), or_nan(facts.edf)
    return CountFit(
        settings, J, L, fit, aux, dispersion, edf, of.n_counted, facts.smear, posterior, None, presence, year, lines
    )  # fmt: skip


def _covariances(table: pd.DataFrame, p: int) -> F64:
    out = np.empty((len(table), p, p))
    for i in range(p):
        for j in range(i + 1):
            out[:, i, j] = out[:, j, i] = table[f"cov_{i}_{j}"].to_numpy(float)
    return out


def _in_common(table: pd.DataFrame, p: int) -> tuple[F64, ...]:
    """What sites or months err in common; a fit of before has none, and its intervals lack it."""
    return tuple(table.filter(regex=f"^common_{i}_").to_numpy(float) for i in range(p))


def write_totals(path: Path, totals: F64, labels: list[str]) -> None:
    """Write replicates of monthly totals (B, R, L) by region."""
    B, R, L = totals.shape
    write_table(
        {
            "draw": np.repeat(np.arange(B, dtype=np.int32), R * L),
            "region": np.tile(np.repeat(np.array(labels), L), B),
            "month_index": np.tile(np.arange(L, dtype=np.int32), B * R),
            "total": totals.ravel(),
        },
        path,
        "draws",
    )


def write_draws(
    work: Path,
    totals: F64,
    slopes: F64,
    fit: CountFit | AverageFit,
    calendar: tuple[I64, I64],
    labels: list[str],
) -> None:
    """Write replicates of monthly totals (B, R, L), and the sites' slopes with the spread of theirs, (B or 0, J)."""
    write_totals(work / "draws.parquet", totals, labels)
    slope, mean = site_slopes(fit, calendar[1], calendar[0])
    known, few = ~np.isnan(slope), len(slopes) < 2
    # No spread from fewer than two replicates; a site of unknown slope has blanks in both columns.
    spread = np.zeros(slope.size) if few else slopes.std(axis=0, ddof=1)
    write_table(
        {
            "site_index": np.arange(fit.J, dtype=np.int32),
            "slope": pa.array(slope, mask=~known),
            "slope_se": pa.array(spread, mask=~known | few),
            "mean_total": mean,
        },
        work / "site_trends.parquet",
        "site_trends",
    )


def job_trace(h_norm2: F64, groups: int, bytes_up: I64, bytes_down: I64, seconds: F64) -> Columns:
    """Columns of schema ``trace`` of a job's first fit, (rounds,) each: all ``groups`` answer in every round."""
    k = h_norm2.size
    return {
        "round": np.arange(1, k + 1, dtype=np.int32), "h_norm2": h_norm2, "objective": pa.nulls(k, pa.float64()),
        "active": np.full(k, groups, np.int32), "bytes_up": bytes_up, "bytes_down": bytes_down,
        "epochs": np.arange(1, k + 1, dtype=float), "seconds": seconds,
    }  # fmt: skip


def trace_columns(result: Result, n_rows: int) -> Columns:
    """Columns of schema ``trace`` of a run through the core over ``n_rows`` rows of data."""
    trace = result.trace
    return {
        "round": (trace["k"] + 1).astype(np.int32),
        "h_norm2": trace["h_norm2"],
        "objective": trace.get("objective", np.full(len(trace["k"]), np.nan)),
        "active": trace["active"].astype(np.int32),
        "bytes_up": trace["bytes_up"].astype(np.int64),
        "bytes_down": trace["bytes_down"].astype(np.int64),
        "epochs": np.cumsum(trace["evaluations"]) / n_rows,
        "seconds": trace["seconds"],
    }


def write_run_trace(work: Path, result: Result, n_rows: int) -> None:
    """Write the trace of a run through the core over ``n_rows`` rows of data."""
    columns = trace_columns(result, n_rows)
    known = [None if np.isnan(value) else value for value in columns["objective"]]
    write_table({**columns, "objective": known}, work / "trace.parquet", "trace")


def model_facts(fit: CountFit, name: str) -> ModelFacts:
    """Facts of a model, called ``name``, that no job has fitted (:mod:`fedmiss.federation.hub.job` has those of a job's)."""
    settings, posterior = fit.settings, fit.posterior
    return ModelFacts(
        family=settings.family,
        scale=settings.scale,
        model=name,
        effects=settings.effects,
        dispersion_model=settings.dispersion,
        rank=settings.rank,
        slopes=fit.slopes,
        penalty=settings.penalty,
        mu=fit.theta.mu,
        phi=fit.aux.phi,
        dispersion=None,
        negbin_size=None,
        edf=None,
        smear=fit.smear,
        site_variances=None if posterior is None else posterior.tau.tolist(),
        month_variances=None if posterior is None else posterior.noise.tolist(),
        converged=fit.fit.converged,
        stop_reason=fit.fit.stop_reason,
        rounds=fit.fit.sweeps,
    )


def run_facts(fit: CountFit, panel: PanelFacts, result: Result) -> dict[str, Any]:
    """Facts of a fit that a run through the core made, beside those of its model; it has no bootstrap."""
    trace = result.trace
    return {
        "species": panel.species, "common_name": panel.common_name, "n_visits": panel.n_visits, "n_counted": fit.n_counted,
        "n_sites": fit.J, "n_months": fit.L, "bootstrap": 0, "h_norm": float(np.sqrt(trace["h_norm2"][-1])),
        "bytes_up": int(trace["bytes_up"].sum()), "bytes_down": int(trace["bytes_down"].sum()),
    }  # fmt: skip


def has_large_site(fit: CountFit | AverageFit) -> bool:
    """Whether a site has so many of the birds that it has a slope of its own."""
    return any(one.lines is not None and bool(one.lines.more.any()) for one in fit.fits)


def effort_of(job: JointFacts) -> dict[str, float]:
    """Effort coefficients of a job by the names of their covariates."""
    return dict(zip(effort_names(tuple(job.terms), tuple(job.blanks)), job.kappa, strict=True))


def write_fit_manifest(
    work: Path,
    folder: PanelFolder,
    settings: FitSettings,
    hashes: dict[str, str],
    facts: FitFacts,
    notes: Sequence[str],
) -> None:
    """Write the manifest of a fit of a panel folder; ``notes`` are added to the panel's warnings."""
    write_manifest(
        work,
        "fit",
        settings=asdict(settings),  # type: ignore[call-overload]
        inputs=hashes,
        results=facts.as_results(),
        flow=folder.manifest["flow"],
        terms=folder.manifest["terms"],
        warnings=[*folder.manifest["warnings"], *notes],
    )
