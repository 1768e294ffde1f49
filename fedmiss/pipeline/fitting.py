"""The fit step: panel folder in, fit folder out; can be interrupted at any moment and resumed."""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, Columns
from fedmiss.atomic import hash_json, write_checked
from fedmiss.errors import ConfigError
from fedmiss.federation.hub.job import Chosen, JobSpec, Stages, Watch, run_job
from fedmiss.federation.hub.members import FittedModel
from fedmiss.federation.hub.onward import read_before, written
from fedmiss.federation.ledger import Ledger
from fedmiss.federation.local import Draws, LocalFederation
from fedmiss.federation.resume import versions
from fedmiss.files import hash_file, making
from fedmiss.folders import ALL, FitFacts
from fedmiss.group_names import group_name
from fedmiss.models.lowrank.choice import Choice, Trial
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.owner import empty_part
from fedmiss.pipeline.algorithm7 import fit_algorithm7
from fedmiss.pipeline.fit_folder import (
    effort_of,
    finish,
    has_large_site,
    job_trace,
    partial_folder,
    saved,
    write_draws,
    write_fit,
    write_fit_manifest,
    write_totals,
)
from fedmiss.pipeline.panels import open_panel, panel_hash
from fedmiss.pipeline.plans import check_fixed, federation_of, job_of, presence_if_uncounted
from fedmiss.pipeline.saem import fit_saem
from fedmiss.pipeline.settings import FastSettings, FedMissEMSettings, FitSettings, SaemSettings
from fedmiss.progress import note, progress
from fedmiss.settings import kinds_checked
from fedmiss.tables import read_table, write_table

CHOSEN_SITES = (
    " Sites where the species was never detected were left out of the panel, so the totals of held-out visits are those of"
    " sites that were lucky: a model below them is not wrong for that (`fedmiss panel --sites all` keeps every site)."
)


@kinds_checked
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
    order = job_of(folder, settings)
    federation.ask_features(order.candidates, order.structure)
    kept = {name: hashlib.sha256(b"kept" + secret).hexdigest() for name, secret in folder.secrets().items()}
    work = partial_folder(out, hash_json([versions(), asdict(settings), hashes, kept]))
    stages = KeptStages(federation, order, work, CHOSEN_SITES if folder.chosen_by_detection else "")
    job = run_job(federation.link, order, stages, (federation.agreement, federation.hub))
    fit = federation.average(job.members)
    write_fit(work, fit)
    write_table(stages.trace, work / "trace.parquet", "trace")
    if settings.bootstrap:
        drawn = Draws.joined(stages.parts)
        write_draws(work, job.draws, drawn.slopes, fit, folder.calendar, federation.hub.rows)
        groups = [name for part in federation.groups_of.values() for name in part]
        for at, name in enumerate(groups if settings.own else ()):
            write_totals(work / "own" / name / "draws.parquet", drawn.own[:, at : at + 1], [ALL])
    stages.ledger.save("end")
    traffic = stages.ledger.as_dict()
    facts = FitFacts.of(
        job.facts.as_results() | {
            "common_name": folder.facts.common_name, "effort": effort_of(job.facts), "ledger": traffic,
            "n_visits": folder.facts.n_visits, "n_sites": federation.J, "n_cells_observed": federation.n_cells(),
            "h_norm": job.trace[-1] if job.trace.size else None, "duplicate_visits": federation.dropped,
            "n_groups": len(folder.groups), "n_solved": len(federation.programs),
            "large_site": has_large_site(fit),
            **{name: traffic[name] for name in ("exchanges", "bytes_up", "bytes_down")},
        }
    )  # fmt: skip
    notes = list(dict.fromkeys([*federation.notes, *job.facts.notes]))
    names = {*federation.groups_of, *(group.name for group in folder.groups)}
    notes = [_with_names(said, names) for said in notes]
    write_fit_manifest(work, folder, settings, hashes, facts, notes)
    return finish(work, out)


def _with_names(note: str, folders: Iterable[str]) -> str:
    """Call groups by their names, where a note has those of their folders; all at once, since a name may be another's."""
    told = {f"group {name!r} ": f"group {group_name(name)!r} " for name in folders}
    return re.sub("|".join(map(re.escape, told)), lambda found: told[found[0]], note) if told else note


class KeptStages(Stages):
    """Stages of a job on one computer: shown on the way, and kept in a folder of unfinished work.

    Parameters
    ----------
    work : the folder;  advice : words to add to the choice's where it is no model of counts

    Attributes
    ----------
    parts : replicates, with what the groups know of them;  trace : columns of the trace of the first fit
    """

    def __init__(self, federation: LocalFederation, order: JobSpec, work: Path, advice: str) -> None:
        self.federation, self.order, self.work, self.advice = federation, order, work, advice
        self.ledger = Kept(work / "ledger.json", federation.link.ledger)
        self.started = time.perf_counter()
        self.parts: list[Draws] = []
        self.trace: Columns = {}
        self._kept = 0
        self._groups = (np.zeros((0, 0)), np.zeros((0, 0, 0)))

    def choice(self, choose: Callable[[Callable[[int], None] | None], Chosen]) -> Chosen:
        """Choose the model by cross-validation, or read what was chosen before an interruption."""
        cands, folds = self.order.candidates, self.order.folds
        file, table_file = self.work / "choice.json", self.work / "cv.parquet"
        before = saved(file)
        raw = json.loads(before) if before else {}
        # The two files are one result: a choice whose table is of another run is made again.
        if "begun" in raw and table_file.exists() and hash_file(table_file) == raw["table"]:
            choice = read_choice(raw, read_table(table_file, "cv").to_pandas(), cands)
            return choice, read_before(raw["begun"], str(file))
        scored = 0
        with progress("cross-validation", len(cands) * folds) as show:

            def watch(done: int) -> None:
                nonlocal scored
                scored = done
                show(done)

            def announce() -> None:
                note(f"continuing: {scored} of {len(cands) * folds} fits of the cross-validation kept.")

            with self.federation.kept(self.work / "checkpoint" / "cross-validation", announce):
                choice, begun = choose(watch)
            show(len(cands) * folds)  # of which some may have been left out
        # predicted counts are compared with what is expected of such sites (``ends.score``)
        if choice.advice and not FAMILIES[choice.best.family].counts:
            choice = replace(choice, advice=choice.advice + self.advice)
        self.ledger.save("cross-validation")
        write_table(choice.table, table_file, "cv")
        raw = written_choice(choice, cands) | {"table": hash_file(table_file), "begun": written(begun)}
        write_checked(file, json.dumps(raw).encode())
        empty_part(self.work / "checkpoint" / "cross-validation")
        return choice, begun

    def fit(self, fit: Callable[[Watch | None], list[FittedModel]]) -> list[FittedModel]:
        """Fit the chosen model, or those that are averaged.

        The bytes of the trace are those that crossed in its rounds, as the ledger counted them; seconds are since the start.
        """
        total = self.federation.link.ledger.total
        crossed = [(total.bytes_up, total.bytes_down)]
        rounds: list[tuple[float, float]] = []
        with progress("fitting") as show, self.federation.kept(self.work / "checkpoint" / "fit"):

            def watch(k: int, move: float) -> None:
                rounds.append((move**2, time.perf_counter() - self.started))
                crossed.append((total.bytes_up, total.bytes_down))
                show(k)

            members = fit(watch)
            self.federation.groups.save()  # replicates start from it
        k = len(rounds)
        h_norm2, seconds = np.array(rounds, dtype=float).reshape(k, 2).T
        # Bytes are cumulative: a round's own are the difference of two marks.
        up, down = np.diff(np.array(crossed, dtype=np.int64), axis=0).T
        self.trace = job_trace(h_norm2, len(self.federation.programs), up, down, seconds)
        self.ledger.save("fit")
        return members

    def draws(self, numbers: range, draw: Callable[[], F64]) -> F64:
        """Draw replicates, or read those that were drawn before an interruption."""
        wanted = self.order.bootstrap
        path = self.work / f"draws-{numbers[0]:05d}.npz"
        if before := saved(path):
            with np.load(io.BytesIO(before)) as file:
                self.parts.append(Draws(file["totals"], file["slopes"], file["own"]))
            self._kept += len(numbers)
            return self.parts[-1].totals
        if self._kept:
            note(f"continuing: {self._kept} of {wanted} replicates kept.")
            self._kept = 0
        with (
            progress("bootstrap", wanted) as show,
            self.federation.kept(self.work / "checkpoint" / path.stem),
        ):
            show(numbers[0])
            totals = draw()
            show(numbers[-1] + 1)
        slopes, own = self._groups
        # The ledger first: a kill between the two files redoes the part, which replaces its line.
        # The other order would keep the draws and lose the line.
        self.ledger.save("bootstrap", numbers[0])
        buffer = io.BytesIO()
        np.savez(buffer, totals=totals, slopes=slopes, own=own)
        write_checked(path, buffer.getvalue())
        empty_part(self.work / "checkpoint" / path.stem)
        self.parts.append(Draws(totals, slopes, own))
        return totals

    def drawn(self, places: Sequence[tuple[int, int]]) -> None:
        """Take the groups' part of replicates."""
        self._groups = self.federation.drawn(places)


_OF_STRUCTURE = ("features", "observers", "learning", "occupancy", "slopes")  # what trials may change


def written_choice(choice: Choice, candidates: Sequence[CountSettings]) -> dict[str, Any]:
    """A choice as JSON, without its table."""
    # Trials change the structure only: with the first candidate's structure put back, the chosen one is in the list again.
    before: dict[str, Any] = {name: getattr(candidates[0], name) for name in _OF_STRUCTURE}
    return {
        "best": candidates.index(replace(choice.best, **before)),
        "near": [candidates.index(replace(candidate, **before)) for candidate in choice.near],
        "structure": {name: getattr(choice.best, name) for name in _OF_STRUCTURE},
        "trials": [trial._asdict() for trial in choice.trials],
        "advice": choice.advice,
        "summary": json.loads(choice.summary.to_json(orient="records")),
    }


def read_choice(raw: Mapping[str, Any], table: pd.DataFrame, candidates: Sequence[CountSettings]) -> Choice:
    """Read what :func:`written_choice` gave."""
    structure: dict[str, Any] = raw["structure"] | {"features": tuple(raw["structure"]["features"])}
    best, *near = (replace(candidates[at], **structure) for at in (raw["best"], *raw["near"]))
    trials = tuple(Trial(**trial) for trial in raw["trials"])
    return Choice(table, pd.DataFrame(raw["summary"]), best, raw["advice"], tuple(near), trials)


class Kept:
    """The ledger of a job that may be interrupted: parts that were done before the interruption keep their lines."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path, self.ledger = path, ledger
        before = saved(path)
        self.parts: dict[str, dict[str, Any]] = json.loads(before) if before else {}
        self.save("agree")

    def save(self, stage: str, part: int = 0) -> None:
        """Write down what has crossed since the last call; a part that is done again replaces its line."""
        line = asdict(self.ledger.total) | {"messages": dict(self.ledger.kinds)}
        # By stage and part: a part that is done twice counts once.
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
        messages: Counter[str] = Counter()
        for line in (line for parts in self.parts.values() for line in parts.values()):
            messages.update(line["messages"])
        sums = {key: sum(line[key] for line in stages.values()) for key in numbers}
        return sums | {"stages": stages, "messages": dict(sorted(messages.items()))}
