"""The fit step: panel folder in, fit folder out; can be interrupted at any moment and resumed."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedmiss.arrays import Columns
from fedmiss.errors import ConfigError
from fedmiss.federation.ledger import Ledger
from fedmiss.federation.local import Draws, LocalFederation
from fedmiss.federation.results import AverageFit, CountFit, site_slopes
from fedmiss.files import hash_file, hash_json, making, write_checked
from fedmiss.folders import ALL
from fedmiss.models.lowrank.choice import Choice, Trial
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.owner import empty_part
from fedmiss.pipeline.algorithm7 import fit_algorithm7
from fedmiss.pipeline.fit_folder import (
    finish,
    fit_facts,
    partial_folder,
    saved,
    write_fit,
    write_fit_manifest,
    write_totals,
)
from fedmiss.pipeline.panels import PanelFolder, open_panel, panel_hash
from fedmiss.pipeline.plans import (
    base_settings,
    candidates,
    check_fixed,
    federation_of,
    presence_if_uncounted,
    tried,
)
from fedmiss.pipeline.saem import fit_saem
from fedmiss.pipeline.settings import FastSettings, FedMissEMSettings, FitSettings, SaemSettings
from fedmiss.progress import note, progress
from fedmiss.tables import read_table, write_table

__all__ = ["fit_panel"]

CHOSEN_SITES = (
    " Sites where the species was never detected were left out of the panel, so the totals of held-out visits are those of"
    " sites that were lucky: a model below them is not wrong for that (`fedmiss panel --sites all` keeps every site)."
)


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
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> fedmiss.open_fit(panel, fit).fit.settings.rank
    0
    """
    settings = settings or FitSettings()
    with making(out, "fit", overwrite=overwrite, inputs=[panel_path]):
        return _fit(panel_path, Path(out), settings)


def _fit(panel_path: str | Path, out: Path, settings: FitSettings) -> Path:
    if isinstance(settings, FedMissEMSettings):
        return fit_algorithm7(panel_path, out, settings)
    if isinstance(settings, SaemSettings):
        return fit_saem(panel_path, out, settings)
    if not isinstance(settings, FastSettings):
        raise ConfigError(f"settings is {settings!r} (must be made by FitSettings).")
    check_fixed(settings)
    folder = open_panel(panel_path)
    settings = presence_if_uncounted(folder, settings)
    hashes = panel_hash(folder)
    federation = federation_of(folder, settings)  # raises for a damaged table before anything is written
    kept = {name: hashlib.sha256(b"kept" + s).hexdigest() for name, s in folder.secrets().items()}
    work = partial_folder(out, hash_json([asdict(settings), hashes, kept]))
    started = time.perf_counter()
    ledger = Kept(work / "ledger.json", federation.link.ledger)
    choice = _choose(federation, ledger, folder, settings, work)
    if choice.advice and folder.chosen_by_detection:
        choice = replace(choice, advice=choice.advice + CHOSEN_SITES)
    members = choice.members if settings.average else (choice.best,)
    with federation.kept(work / "checkpoint" / "fit"):
        fit, trace = _fit_members(federation, members, started)
        federation.groups.save()  # replicates start from it
    ledger.save("fit")
    draws = _bootstrap(federation, ledger, settings, work) if settings.bootstrap else None
    write_fit(work, fit)
    write_table(trace, work / "trace.parquet", "trace")
    if draws is not None:
        _write_draws(work, draws, folder, fit, federation.hub.rows)
        for k, name in enumerate(federation.programs if settings.own else ()):
            write_totals(work / "own" / name / "draws.parquet", draws.own[:, k : k + 1], [ALL])
    traffic = ledger.as_dict()
    facts = replace(
        fit_facts(fit, federation, folder, choice, settings),
        h_norm=trace["h_norm2"][-1] ** 0.5 if len(trace["h_norm2"]) else None,
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


def _fit_members(
    federation: LocalFederation, wanted: Sequence[CountSettings], started: float
) -> tuple[CountFit | AverageFit, Columns]:
    """Fit the chosen model, or the average of several; also returns the columns of the trace of the first.

    The bytes are those that crossed in its rounds, as the ledger counted them; seconds are since ``started``.
    """
    total = federation.link.ledger.total
    crossed = [(total.bytes_up, total.bytes_down)]
    rounds: list[tuple[float, float]] = []
    with progress("fitting") as show:

        def watch(k: int, move: float) -> None:
            rounds.append((move**2, time.perf_counter() - started))
            crossed.append((total.bytes_up, total.bytes_down))
            show(k)

        fit: CountFit | AverageFit
        if len(wanted) > 1:
            fit = federation.fit_average(wanted, watch=watch)
        else:
            fit = federation.fit(wanted[0], watch=watch)
    k = len(rounds)
    h_norm2, seconds = np.array(rounds, dtype=float).reshape(k, 2).T
    up, down = np.diff(np.array(crossed, dtype=np.int64), axis=0).T
    return fit, {
        "round": np.arange(1, k + 1, dtype=np.int32),
        "h_norm2": h_norm2,
        "objective": pa.nulls(k, pa.float64()),
        "active": np.full(k, len(federation.programs), np.int32),
        "bytes_up": up,
        "bytes_down": down,
        "epochs": np.arange(1, k + 1, dtype=float),
        "seconds": seconds,
    }


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
    federation: LocalFederation, ledger: Kept, folder: PanelFolder, s: FastSettings, work: Path
) -> Choice:
    """Choose the model by cross-validation, or read what was chosen before an interruption."""
    cands = candidates(s, base_settings(s, calibrate=not folder.chosen_by_detection))
    if len(cands) == 1:
        return Choice(pd.DataFrame(), pd.DataFrame(), cands[0], "")
    before = saved(work / "choice.json")
    raw = json.loads(before) if before else {}
    table_file = work / "cv.parquet"
    if raw and table_file.exists() and hash_file(table_file) == raw["table"]:
        table = read_table(table_file, "cv").to_pandas()
        kept: dict[str, Any] = raw["structure"] | {"features": tuple(raw["structure"]["features"])}
        best, *near = (replace(cands[i], **kept) for i in (raw["best"], *raw["near"]))
        trials = tuple(Trial(**t) for t in raw["trials"])
        return Choice(table, pd.DataFrame(raw["summary"]), best, raw["advice"], tuple(near), trials)
    scored = 0
    with progress("cross-validation", len(cands) * s.folds) as show:

        def watch(done: int) -> None:
            nonlocal scored
            scored = done
            show(done)

        def announce() -> None:
            note(f"continuing: {scored} of {len(cands) * s.folds} fits of the cross-validation kept.")

        with federation.kept(work / "checkpoint" / "cross-validation", announce):
            choice = federation.cross_validate(
                cands,
                folds=s.folds,
                by=s.folds_by,
                seed=s.seed,
                one_se=s.one_se,
                structure=tried(s, folder),
                watch=watch,
            )
    ledger.save("cross-validation")
    write_table(choice.table, table_file, "cv")
    summary = json.loads(choice.summary.to_json(orient="records"))
    before_trial: dict[str, Any] = {
        name: getattr(cands[0], name) for name in ("features", "observers", "learning", "occupancy", "slopes")
    }
    raw = {
        "best": cands.index(replace(choice.best, **before_trial)),
        "near": [cands.index(replace(c, **before_trial)) for c in choice.near],
        "structure": {name: getattr(choice.best, name) for name in before_trial},
        "trials": [t._asdict() for t in choice.trials],
        "advice": choice.advice,
        "summary": summary,
    }
    write_checked(work / "choice.json", json.dumps(raw | {"table": hash_file(table_file)}).encode())
    empty_part(work / "checkpoint" / "cross-validation")
    return choice


def _bootstrap(federation: LocalFederation, ledger: Kept, s: FastSettings, work: Path) -> Draws:
    parts: list[Draws] = []
    kept = 0
    assert federation.last is not None
    with progress("bootstrap of observers", s.bootstrap) as show:
        size = federation.lockstep_size()
        for first in range(0, s.bootstrap, size):
            numbers = range(first, min(first + size, s.bootstrap))
            path = work / f"draws-{first:05d}.npz"
            if before := saved(path):
                with np.load(io.BytesIO(before)) as file:
                    parts.append(Draws(file["totals"], file["slopes"], file["own"]))
                kept += len(numbers)
            else:
                if kept:
                    note(f"continuing: {kept} of {s.bootstrap} replicates kept.")
                    kept = 0
                with federation.kept(work / "checkpoint" / path.stem):
                    part = federation.replicates(numbers, seed=s.seed)
                # The ledger first: a kill between the two files redoes the part, which replaces its line.
                # The other order would keep the draws and lose the line.
                ledger.save("bootstrap", first)
                buffer = io.BytesIO()
                np.savez(buffer, totals=part.totals, slopes=part.slopes, own=part.own)
                write_checked(path, buffer.getvalue())
                empty_part(work / "checkpoint" / path.stem)
                parts.append(part)
            show(numbers[-1] + 1)
    return Draws.joined(parts)


def _write_draws(
    work: Path, draws: Draws, folder: PanelFolder, fit: CountFit | AverageFit, names: list[str]
) -> None:
    B = len(draws.totals)
    write_totals(work / "draws.parquet", draws.totals, names)
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
