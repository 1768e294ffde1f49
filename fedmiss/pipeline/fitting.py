"""The fit step: panel folder in, fit folder out; can be interrupted at any moment and resumed."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError, InputError
from fedmiss.federation.hub.agree import Plan
from fedmiss.federation.ledger import Ledger
from fedmiss.federation.local import Draws, LocalFederation
from fedmiss.federation.results import CountFit, Posterior, coefficient_names, site_slopes, visited_totals
from fedmiss.files import (
    MANIFEST,
    hash_file,
    hash_json,
    making,
    read_checked,
    read_manifest,
    replace_folder,
    seal,
    write_checked,
    write_manifest,
)
from fedmiss.folders import FitFacts
from fedmiss.models.lowrank.choice import Choice, default_candidates, model_name
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.solver import Fit, Theta
from fedmiss.pipeline.panels import PanelFolder, effort_names, open_panel, panel_hash
from fedmiss.pipeline.settings import MODELS, FitSettings
from fedmiss.progress import note, progress
from fedmiss.tables import read_table, write_table

__all__ = [
    "base_settings",
    "candidates",
    "check_fixed",
    "federation_of",
    "fit_facts",
    "fit_panel",
    "read_fit",
    "saved",
    "write_fit",
    "write_fit_manifest",
    "write_totals",
]

CHOSEN_SITES = (
    " Sites where the species was never detected were left out of the panel, so the totals of held-out visits are those of"
    " sites that were lucky: a model below them is not wrong for that (`fedmiss panel --sites all` keeps every site)."
)


def check_fixed(s: FitSettings) -> None:
    """Refuse what the plain site and time model does not have."""
    other = {
        "--method": s.method != "fast",
        "--model": s.model not in ("auto", "quasi"),
        "--rank": s.rank not in ("auto", 0),
        "--penalty": s.penalty is not None,
        "--effort": s.effort not in ("auto", "none"),
        "--observers": s.observers,
        "--minimum": s.minimum > 1,
    }
    wrong = [name for name, bad in other.items() if bad]
    if s.time == "fixed" and wrong:
        raise ConfigError(
            f"--time fixed is the plain site and time model of Poisson counts: leave out {', '.join(wrong)}. (With a least "
            "number behind each sum it cannot be fitted: a pair of months may rest on one site.)"
        )


def base_settings(s: FitSettings, *, calibrate: bool = True) -> CountSettings:
    """Translate the step's settings into the model's, before rank and model are chosen."""
    if s.time == "fixed":
        return CountSettings(time="fixed", rank=0, season=False, slopes=False, seed=s.seed)
    chosen = MODELS["negbin" if s.model == "auto" else s.model]
    rank = 2 if s.rank == "auto" else s.rank
    return CountSettings(
        rank=rank, penalty=s.penalty, observers=s.observers, seed=s.seed, calibrate=calibrate,
        **chosen,  # type: ignore[arg-type]
    )  # fmt: skip


def candidates(s: FitSettings, base: CountSettings) -> list[CountSettings]:
    """Candidates of the cross-validation; one means that nothing is to be chosen."""
    if s.time == "fixed":
        return [base]
    if s.rank == "auto" and s.model == "auto":
        return default_candidates(base, s.max_rank)
    if s.rank == "auto":
        return [replace(base, rank=r) for r in range(s.max_rank + 1)]
    if s.model == "auto":
        if s.penalty is not None:
            return [base]
        other = (MODELS[name] for name in ("quasi", "log1p"))
        return [base, *(replace(base, **{"scale": "raw", "dispersion": "quasi"} | m) for m in other)]  # type: ignore[arg-type]
    return [base]


def presence_if_uncounted(folder: PanelFolder, settings: FitSettings) -> FitSettings:
    """Fit presence and absence where a species was found and never counted (all X): its counts are all 0 and say nothing."""
    if settings.model == "auto" and folder.facts.birds == 0 and folder.facts.n_detected > 0:
        return replace(settings, model="bernoulli")
    return settings


def fit_panel(
    panel_path: str | Path, out: str | Path, settings: FitSettings | None = None, *, overwrite: bool = False
) -> Path:
    """Fit a panel and write the fit folder.

    Work goes to ``<out>.partial`` and is renamed at the end; a second call with the same panel and settings goes on
    from what is there and gives the same bits as one that was never interrupted.

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> fedmiss.open_fit(panel, fit).fit.settings.rank
    0
    """
    settings = settings or FitSettings()
    with making(out, "fit", overwrite=overwrite, inputs=[panel_path]):
        return _fit(panel_path, Path(out), settings)


def _fit(panel_path: str | Path, out: Path, settings: FitSettings) -> Path:
    check_fixed(settings)
    if settings.method == "fedmissem":
        from fedmiss.pipeline.algorithm7 import fit_algorithm7

        return fit_algorithm7(panel_path, out, settings)
    if settings.method == "saem":
        from fedmiss.pipeline.saem import fit_saem

        return fit_saem(panel_path, out, settings)
    if settings.method == "wire":
        from fedmiss.pipeline.wire import fit_wire

        return fit_wire(panel_path, out, settings)
    folder = open_panel(panel_path)
    settings = presence_if_uncounted(folder, settings)
    hashes = panel_hash(folder)
    federation = federation_of(folder, settings)  # a damaged table is told here, before anything is written
    kept = {name: hashlib.sha256(b"kept" + s).hexdigest() for name, s in folder.secrets().items()}
    work = partial_folder(out, hash_json([asdict(settings), hashes, kept]))
    started = time.perf_counter()
    base = base_settings(settings, calibrate=not folder.chosen_by_detection)
    ledger = Kept(work / "ledger.json", federation.link.ledger)
    choice = _choose(
        federation,
        ledger,
        candidates(settings, base),
        replace(settings, site_visits=settings.site_visits and not folder.listed_by_detection),
        work,
    )
    if choice.advice and folder.chosen_by_detection:
        choice = replace(choice, advice=choice.advice + CHOSEN_SITES)
    trace: list[dict[str, float]] = []
    with progress("fitting") as show:
        total = federation.link.ledger.total

        def watch(k: int, objective: float, move: float) -> None:
            trace.append(
                {
                    "objective": objective,
                    "h_norm2": move**2,
                    "seconds": time.perf_counter() - started,
                    "bytes_up": total.bytes_up,
                    "bytes_down": total.bytes_down,
                }
            )
            show(k)

        before = {"bytes_up": total.bytes_up, "bytes_down": total.bytes_down}
        fit = federation.fit(choice.best, watch=watch)
    ledger.save("fit")
    draws = _bootstrap(federation, ledger, fit, settings, work) if settings.bootstrap else None
    write_fit(work, fit)
    _write_trace(work, trace, before, len(federation.programs))
    if draws is not None:
        _write_draws(work, draws, folder, fit, list(federation.hub.regions))
        for k, name in enumerate(federation.programs if settings.own else ()):
            write_totals(work / "own" / name / "draws.parquet", draws.own[:, k : k + 1], ["all"])
    traffic = ledger.as_dict()
    facts = replace(
        fit_facts(fit, federation, folder, choice, settings),
        h_norm=trace[-1]["h_norm2"] ** 0.5 if trace else None,
        exchanges=traffic["exchanges"],
        bytes_up=traffic["bytes_up"],
        bytes_down=traffic["bytes_down"],
        ledger=traffic,
        shared_sites=federation.agreement.shared,
        joint_sites=federation.hub.n_joint,
        withheld_visits=federation.agreement.withheld,
        duplicate_visits=federation.agreement.duplicates,
    )
    write_fit_manifest(work, folder, settings, hashes, facts, federation.agreement.notes)
    return finish(work, out)


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
        settings=asdict(settings),
        inputs=hashes,
        results=facts.as_results(),
        flow=folder.manifest["flow"],
        terms=folder.manifest["terms"],
        warnings=[*folder.manifest["warnings"], *notes],
    )


def federation_of(folder: PanelFolder, s: FitSettings) -> LocalFederation:
    """Groups of a panel folder and a hub, agreed on axes, effort terms and shared sites."""
    plan = Plan(
        species=folder.facts.species,
        months=folder.stamps,
        effort=folder.wanted_terms("none" if s.time == "fixed" else s.effort),
        detections=MODELS.get(s.model, MODELS["quasi"])["family"] == "bernoulli",
        joint=s.joint and s.time != "fixed",
        duplicates=folder.several_sources,
        minimum=s.minimum,
    )
    held, at = folder.visits(effort=s.effort != "none" and s.time != "fixed")
    return LocalFederation(
        held,
        at,
        len(folder.sites),
        plan,
        secrets=folder.secrets(),
        more=hash_json(asdict(s)).encode(),
        own=s.own,
    )


def partial_folder(out: Path, key: str) -> Path:
    """Return the folder of unfinished work, emptied when it belongs to other settings or another panel, or is damaged."""
    work = out.with_name(out.name + ".partial")
    ours = (work / "key.json").exists() or (work / MANIFEST).exists()
    if work.is_symlink() or (work.exists() and not ours and any(p.name[0] != "." for p in work.iterdir())):
        raise ConfigError(
            f"{work} is in the way of unfinished work, and fedmiss did not make it; remove it or rename it."
        )
    if work.exists():
        for left in work.glob(".*"):  # of a write that was cut off
            left.unlink()
        ledger = (work / "ledger.json").exists() and saved(work / "ledger.json") is None
        if ledger or saved(work / "key.json") != key.encode():
            shutil.rmtree(work)
    write_checked(work / "key.json", key.encode())
    return work


def saved(path: Path) -> bytes | None:
    """Content of a file of unfinished work; None where there is none, or a damaged one: then it is removed, and said."""
    if not path.exists():
        return None
    try:
        return read_checked(path)
    except InputError as error:
        note(f"{error} What it held is done again.")
        path.unlink()
        return None


def finish(work: Path, out: Path) -> Path:
    """Remove the checkpoints and rename the work folder to its final name."""
    shutil.rmtree(work / "checkpoint", ignore_errors=True)
    for path in (*(work / name for name in ("choice.json", "ledger.json")), *work.glob("draws-*.npz")):
        path.unlink(missing_ok=True)
    (work / "key.json").unlink()
    seal(work)
    replace_folder(work, out)
    return out


class Kept:
    """The ledger of a job that may be interrupted: parts that were done before the interruption keep their lines."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path, self.ledger = path, ledger
        before = saved(path)
        self.parts: dict[str, dict[str, Any]] = json.loads(before) if before else {}
        self.save("agree")

    def save(self, stage: str, part: int = 0) -> None:
        """Write down what has crossed since the last call; a part that is done again replaces its line."""
        line = self.ledger.total.as_dict() | {"messages": dict(self.ledger.kinds)}
        self.parts.setdefault(stage, {})[str(part)] = line
        self.ledger.clear()
        write_checked(self.path, json.dumps(self.parts).encode())

    def as_dict(self) -> dict[str, Any]:
        """Lines of all stages, their sum, and messages by kind."""
        numbers = ("exchanges", "bytes_up", "bytes_down")
        stages = {
            stage: {key: sum(line[key] for line in parts.values()) for key in numbers}
            for stage, parts in self.parts.items()
        }
        messages: dict[str, int] = {}
        for parts in self.parts.values():
            for line in parts.values():
                for kind, n in line["messages"].items():
                    messages[kind] = messages.get(kind, 0) + n
        sums = {key: sum(line[key] for line in stages.values()) for key in numbers}
        return sums | {"stages": stages, "messages": dict(sorted(messages.items()))}


def _choose(
    federation: LocalFederation, ledger: Kept, cands: list[CountSettings], s: FitSettings, work: Path
) -> Choice:
    if len(cands) == 1:
        return Choice(pd.DataFrame(), pd.DataFrame(), cands[0], "")
    before = saved(work / "choice.json")
    raw = json.loads(before) if before else {}
    table_file = work / "cv.parquet"
    if raw and table_file.exists() and hash_file(table_file) == raw["table"]:
        table = read_table(table_file, "cv").to_pandas()
        best = replace(cands[raw["best"]], site_visits=raw["site_visits"])
        if best.site_visits:
            federation.ask_visits()
            ledger.ledger.clear()  # it crossed before the interruption too, and stands in that part's line
        return Choice(table, pd.DataFrame(raw["summary"]), best, raw["advice"])
    with progress("cross-validation", len(cands) * s.folds) as show:
        choice = federation.cross_validate(
            cands,
            folds=s.folds,
            by=s.folds_by,
            seed=s.seed,
            one_se=s.one_se,
            site_visits=s.site_visits,
            watch=show,
        )
    ledger.save("cross-validation")
    write_table(choice.table, table_file, "cv")
    summary = json.loads(choice.summary.to_json(orient="records"))
    raw = {
        "best": cands.index(replace(choice.best, site_visits=False)),
        "site_visits": choice.best.site_visits,
        "advice": choice.advice,
        "summary": summary,
    }
    write_checked(work / "choice.json", json.dumps(raw | {"table": hash_file(table_file)}).encode())
    return choice


def _bootstrap(federation: LocalFederation, ledger: Kept, fit: CountFit, s: FitSettings, work: Path) -> Draws:
    parts: list[Draws] = []
    with progress("bootstrap of observers", s.bootstrap) as show:
        size = federation.lockstep_size()
        for first in range(0, s.bootstrap, size):
            numbers = range(first, min(first + size, s.bootstrap))
            path = work / f"draws-{first:05d}.npz"
            if before := saved(path):
                with np.load(io.BytesIO(before)) as file:
                    parts.append(Draws(file["totals"], file["slopes"], file["own"]))
            else:
                part = federation.replicates(fit.settings, numbers, seed=s.seed)
                # The ledger first: a kill between the two files redoes the part, which replaces its line.
                # The other order would keep the draws and lose the line.
                ledger.save("bootstrap", first)
                buffer = io.BytesIO()
                np.savez(buffer, totals=part.totals, slopes=part.slopes, own=part.own)
                write_checked(path, buffer.getvalue())
                parts.append(part)
            show(numbers[-1] + 1)
    return Draws.joined(parts)


def write_fit(work: Path, fit: CountFit) -> None:
    """Write factors (and, for a variational fit, the covariances that the expected counts need)."""
    t = fit.theta
    sites: dict[str, Any] = {"site_index": np.arange(fit.J, dtype=np.int32), "a": t.a}
    months: dict[str, Any] = {"month_index": np.arange(fit.L, dtype=np.int32), "b": t.b}
    names = coefficient_names(t.rank, slopes=fit.slopes)
    sites |= {site: t.U[:, k] for k, (site, _) in enumerate(names)}
    months |= {month: t.V[:, k] for k, (_, month) in enumerate(names)}
    if fit.posterior is not None:
        for table, cov in ((sites, fit.posterior.C), (months, fit.posterior.D)):
            table |= {f"cov_{i}_{j}": cov[:, i, j] for i in range(cov.shape[1]) for j in range(i + 1)}
    write_table(sites, work / "site_factors.parquet", "site_factors")
    write_table(months, work / "month_factors.parquet", "month_factors")
    if fit.state is not None and fit.state.visited is not None:
        write_table(visited_totals(fit.state, fit.settings), work / "visited.parquet", "visited")


def read_fit(path: str | Path) -> tuple[dict[str, Any], CountFit]:
    """Read a fit folder back as (manifest, CountFit); the observer effects are not in it."""
    path = Path(path)
    manifest = read_manifest(path, "fit", verify=True)
    r = FitFacts.of(manifest["results"], path)
    sites = read_table(path / "site_factors.parquet", "site_factors").to_pandas()
    months = read_table(path / "month_factors.parquet", "month_factors").to_pandas()
    names = coefficient_names(r.rank + r.slopes, slopes=r.slopes)
    U = sites[[site for site, _ in names]].to_numpy(float)
    V = months[[month for _, month in names]].to_numpy(float)
    theta = Theta(r.mu, sites["a"].to_numpy(float), months["b"].to_numpy(float), U, V)
    settings = CountSettings(
        family=r.family,
        scale=r.scale,
        rank=r.rank,
        penalty=r.penalty,
        dispersion=r.dispersion_model,
        effects=r.effects,
    )
    J, L, p = len(sites), len(months), 1 + len(names)
    posterior = None
    if "cov_0_0" in sites.columns:
        posterior = Posterior(
            theta.mu,
            np.column_stack([theta.a, U]),
            _covariances(sites, p),
            np.column_stack([theta.b, V]),
            _covariances(months, p),
            np.asarray(r.site_variances or np.full(p, np.inf)),
            np.zeros((L, p)),
            np.asarray(r.month_variances or np.full(p, np.inf)),
        )
    aux = Auxiliary(np.zeros(0), (), r.negbin_size or float("inf"), r.phi, 0.0, 0.0, 0.0)
    fit = Fit(theta, [], r.converged, r.stop_reason, r.rounds)
    dispersion, edf = (float("nan") if value is None else value for value in (r.dispersion, r.edf))
    return manifest, CountFit(settings, J, L, fit, aux, dispersion, edf, r.n_counted, r.smear, posterior)


def _covariances(table: pd.DataFrame, p: int) -> F64:
    out = np.empty((len(table), p, p))
    for i in range(p):
        for j in range(i + 1):
            out[:, i, j] = out[:, j, i] = table[f"cov_{i}_{j}"].to_numpy(float)
    return out


def _write_trace(work: Path, trace: list[dict[str, float]], before: dict[str, int], n_groups: int) -> None:
    """Trace of the final fit: the bytes are those that crossed in its rounds, as the ledger counted them."""
    k = len(trace)
    crossed = {
        name: np.diff([before[name], *(int(t[name]) for t in trace)]) for name in ("bytes_up", "bytes_down")
    }
    write_table(
        {
            "round": np.arange(1, k + 1, dtype=np.int32),
            "h_norm2": [t["h_norm2"] for t in trace],
            "objective": [None if np.isnan(t["objective"]) else t["objective"] for t in trace],
            "active": np.full(k, n_groups, np.int32),
            "bytes_up": crossed["bytes_up"],
            "bytes_down": crossed["bytes_down"],
            "epochs": np.arange(1, k + 1, dtype=float),
            "seconds": [t["seconds"] for t in trace],
        },
        work / "trace.parquet",
        "trace",
    )


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


def _write_draws(work: Path, draws: Draws, folder: PanelFolder, fit: CountFit, names: list[str]) -> None:
    B = len(draws.totals)
    write_totals(work / "draws.parquet", draws.totals, ["all", *names])
    slope, mean = site_slopes(fit, folder.calendar[1], folder.calendar[0])
    known = ~np.isnan(slope)
    write_table(
        {
            "site_index": np.arange(fit.J, dtype=np.int32),
            "slope": pa.array(slope, mask=~known),
            "slope_se": pa.array(draws.slopes.std(axis=0, ddof=min(B - 1, 1)), mask=~known | (B < 2)),
            "mean_total": mean,
        },
        work / "site_trends.parquet",
        "site_trends",
    )


def fit_facts(
    fit: CountFit,
    federation: LocalFederation,
    folder: PanelFolder,
    choice: Choice | None,
    s: FitSettings,
) -> FitFacts:
    """What is known of a fit when its rounds are done; what each method adds is put in by ``replace``."""
    q, agreed, panel = fit.posterior, federation.agreement, folder.facts
    estimated = q is not None and bool(np.isfinite(q.tau).all())  # variances; fixed time effects have none
    return FitFacts(
        species=panel.species,
        common_name=panel.common_name,
        family=fit.settings.family,
        scale=fit.settings.scale,
        method="fast",
        model=model_name(fit.settings),
        effects=fit.settings.effects,
        dispersion_model=fit.settings.dispersion,
        rank=fit.settings.rank,
        slopes=fit.slopes,
        site_visits=fit.settings.site_visits,
        lift=fit.state.lift if fit.state is not None else 0.0,
        time=fit.settings.time,
        penalty=fit.settings.penalty,
        mu=fit.theta.mu,
        phi=fit.aux.phi,
        dispersion=fit.dispersion,
        negbin_size=fit.aux.size if np.isfinite(fit.aux.size) else None,
        edf=fit.edf,
        smear=fit.smear,
        site_variances=q.tau.tolist() if q is not None and estimated else None,
        month_variances=q.noise.tolist() if q is not None and estimated else None,
        effort=dict(zip(effort_names(agreed.terms, agreed.blanks), fit.aux.kappa.tolist(), strict=True)),
        standard_effort=agreed.standard_effort,
        observer_effects=fit.settings.observers,
        observer_sd=(1.0 / fit.aux.observers) ** 0.5 if fit.settings.observers else None,
        objective=fit.fit.objective[-1] if fit.fit.objective else None,
        converged=fit.fit.converged,
        stop_reason=fit.fit.stop_reason,
        rounds=fit.fit.sweeps,
        n_groups=len(federation.programs),
        participation=1.0,
        compressor="identity",
        n_visits=panel.n_visits,
        n_counted=fit.n_counted,
        n_sites=federation.J,
        n_months=federation.L,
        n_cells_observed=federation.n_cells(),
        bootstrap=s.bootstrap,
        advice=choice.advice if choice else "",
        cv_summary=json.loads(choice.summary.to_json(orient="records"))
        if choice is not None and len(choice.summary)
        else [],
    )
