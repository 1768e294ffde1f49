"""The fit step with ``--method wire``: compressed normal equations by site and month through the federated core.

For the research half: dithered messages, absences and memories on the count model's penalised objective. What travels are
sums by site, so it protects nobody's sites (docs/guide/privacy.md); the default job asks for sums over sites instead.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from fedmiss.compressors import Dithering, Identity
from fedmiss.compressors.registry import compressor_of
from fedmiss.core import Bernoulli, Full
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError
from fedmiss.federation.penalised import marginal_cells, result_of
from fedmiss.files import hash_json
from fedmiss.models.lowrank.federated import FederatedFit, fit_federated
from fedmiss.models.lowrank.theta import Fit
from fedmiss.pipeline.fit_folder import finish, fit_facts, partial_folder, write_fit, write_fit_manifest
from fedmiss.pipeline.panels import open_panel, panel_hash
from fedmiss.pipeline.plans import base_settings, federation_of
from fedmiss.pipeline.settings import WireSettings, sent
from fedmiss.tables import write_table

__all__ = ["fit_wire"]

ROUNDS = 100


def fit_wire(panel_path: str | Path, out: Path, settings: WireSettings) -> Path:
    """Write a fit folder made over the wire, at the dispersion and ridges of the default's rank-0 fit.

    It has no intervals.
    """
    if settings.model == "auto":
        raise ConfigError("--method wire needs a --model: quasi, negbin, log1p, gaussian or bernoulli.")
    rounds = ROUNDS if settings.rounds is None else settings.rounds
    folder = open_panel(panel_path)
    hashes = panel_hash(folder)
    federation = federation_of(folder, settings)
    work = partial_folder(out, hash_json([asdict(settings), hashes]))
    model = base_settings(settings, calibrate=not folder.chosen_by_detection)
    model = replace(model, penalty=1.0) if model.penalty is None else model
    p = model.rank + 1
    if settings.compressor:
        quant = compressor_of(settings.compressor)
    else:  # each site's sums apart
        quant = Dithering(settings.levels, block=p * (p + 3) // 2) if settings.levels else Identity()
    state, cells, penalty = marginal_cells(federation, model)
    found = fit_federated(
        cells,
        federation.J,
        federation.L,
        engine=LocalEngine,
        compressor=quant,
        participation=Full() if settings.participation == 1.0 else Bernoulli(settings.participation),
        family=model.family,
        rank=model.rank,
        penalty=penalty,
        rounds=rounds,
        alpha=settings.alpha,
        seed=settings.seed,
    )
    _check_course(found, settings)
    history = _history(found)
    fit = result_of(federation, state, model, history, cells, penalty)
    write_fit(work, fit)
    _write_trace(found, len(cells), work / "trace.parquet")
    facts = replace(
        fit_facts(fit, federation, folder, None, settings),
        method="wire",
        h_norm=None,
        exchanges=2 * found.rounds,
        bytes_up=int(found.bytes_up[-1]),
        bytes_down=int(found.bytes_down[-1]),
        compressor=sent(settings),
        participation=settings.participation,
    )
    note = (
        "Sums by site and month travelled (--method wire): the server can compute a group's counts from them."
    )
    write_fit_manifest(work, folder, settings, hashes, facts, [note])
    return finish(work, out)


def _write_trace(found: FederatedFit, n_groups: int, path: Path) -> None:
    k = found.rounds
    up, down = (np.diff(x, prepend=0.0).astype(np.int64) for x in (found.bytes_up, found.bytes_down))
    rounds = {
        "round": np.arange(1, k + 1, dtype=np.int32),
        "h_norm2": np.diff(found.objective, prepend=found.objective[0]) ** 2,
        "objective": found.objective,
        "active": np.full(k, n_groups, np.int32),
        "bytes_up": up,
        "bytes_down": down,
        "epochs": np.arange(1, k + 1, dtype=float),
        "seconds": found.seconds,
    }
    write_table(rounds, path, "trace")


def _check_course(found: FederatedFit, settings: WireSettings) -> None:
    """Refuse a run whose objective rose: its parameters mean nothing."""
    first, last = found.objective[0], found.objective[-1]
    if not np.isfinite(last) or last > first + 0.1 * abs(first):
        raise DomainError(
            f"--method wire diverged: its objective went from {first:.4g} to {last:.4g} in {found.rounds} rounds. The "
            f"normal equations bear little noise of compression (compressor={sent(settings)}, "
            f"participation={settings.participation:g}): use dithering with more --levels, topk, or identity."
        )


def _history(found: FederatedFit) -> Fit:
    """The course of the fit; it has converged when the last round hardly moved the objective."""
    move = abs(float(np.diff(found.objective[-2:])[0])) if found.rounds > 1 else float("inf")
    converged = move <= 1e-6 * (1.0 + abs(float(found.objective[-1])))
    reason = f"{found.rounds} rounds done; the last one moved the objective by {move:.3g}"
    return Fit(found.theta, found.objective.tolist(), converged, reason, found.rounds)
