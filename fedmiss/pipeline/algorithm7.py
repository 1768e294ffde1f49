"""``fedmiss fit --method fedmissem``: algorithm 7 of the paper through the federated core, round by round."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from fedmiss.atomic import hash_json
from fedmiss.compressors import Dithering, Identity
from fedmiss.compressors.registry import compressor_of
from fedmiss.core import Compressor, Result
from fedmiss.errors import ConfigError, DomainError
from fedmiss.federation.algorithm7 import run_algorithm7
from fedmiss.federation.results import CountFit
from fedmiss.folders import FitFacts, PanelFacts
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.paper import Factors
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.theta import Fit, Theta
from fedmiss.pipeline.fit_folder import (
    checkpoint,
    finish,
    model_facts,
    partial_folder,
    run_facts,
    write_fit,
    write_fit_manifest,
    write_run_trace,
)
from fedmiss.pipeline.panels import open_panel, panel_hash
from fedmiss.pipeline.plans import refuse_uncounted
from fedmiss.pipeline.settings import MODELS, FedMissEMSettings, sent

ROUNDS = 2000
WINDOW = 20  # last rounds whose mean field is judged
STILL = 1e-3  # and how small it is at a solution, beside that of the first round
WARNING = (
    "made by the paper's own algorithm, round by round: see the trace for how far from its fixed point it is; "
    "no intervals (fit with --method fast for them)."
)
FAMILIES = {
    "auto": MODELS["log1p"],
    **{name: MODELS[name] for name in ("log1p", "gaussian", "quasi", "bernoulli")},
}


def fit_algorithm7(panel_path: str | Path, out: Path, settings: FedMissEMSettings) -> Path:
    """Write a fit folder made by algorithm 7. It has no intervals: a bootstrap needs a solver that converges."""
    if settings.model not in FAMILIES:
        raise ConfigError(
            f"--method fedmissem has no model {settings.model!r}; choose {', '.join(FAMILIES)}."
        )
    rounds = ROUNDS if settings.rounds is None else settings.rounds
    chosen = FAMILIES[settings.model]
    family, scale = chosen["family"], chosen.get("scale", "raw")
    rank = 2 if settings.rank == "auto" else settings.rank
    if rank < 1:
        raise ConfigError("--method fedmissem needs --rank 1 or more: its model is U V' alone.")
    folder = open_panel(panel_path)
    if settings.model != "bernoulli":
        refuse_uncounted(folder, settings.method, "--method")
    hashes = panel_hash(folder)
    raw = folder.load(family)
    # All counts of a group may be X, which are left out: it has nothing to fit.
    raw = replace(raw, groups=tuple(group for group in raw.groups if group.count.size))
    panel = raw
    if scale == "log1p":
        panel = replace(
            raw, groups=tuple(replace(group, count=np.log1p(group.count)) for group in raw.groups)
        )
    most = min(panel.J, panel.L)
    if rank > most and settings.rank != "auto":
        raise ConfigError(
            f"--rank is {rank} (must be at most {most}, the lesser of {panel.J} sites and {panel.L} months)."
        )
    work = partial_folder(out, hash_json([asdict(settings), hashes]))
    # The paper's F has 1/n before the sum over groups: 1/n here is the penalty 1 of the pooled objective.
    penalty = 1.0 / len(panel.groups) if settings.penalty is None else settings.penalty
    result, model, rows = run_algorithm7(
        panel, family=family, rank=rank, penalty=penalty, rounds=rounds, gamma=settings.gamma,
        alpha=settings.alpha, compressor=_compressor(settings), participation=settings.participation,
        batch=settings.batch, batch_sum=settings.batch_sum, seed=settings.seed, checkpoint=checkpoint(work),
    )  # fmt: skip
    _check_finite(result, settings)
    fit = _count_fit(result, panel, raw, family, scale, penalty)
    write_fit(work, fit)
    write_run_trace(work, result, sum(len(row) for row in rows))
    facts = _facts(fit, folder.facts, settings, len(panel.groups), model.q, result)
    write_fit_manifest(work, folder, settings, hashes, facts, [WARNING])
    return finish(work, out)


def _compressor(settings: FedMissEMSettings) -> Compressor:
    if settings.compressor:
        quant = compressor_of(settings.compressor)
        if getattr(quant, "delta", None) is not None:
            raise ConfigError(
                f"--method fedmissem needs an unbiased compressor, which {settings.compressor} is not; choose dithering, "
                "natural or randk."
            )
        return quant
    return Dithering(levels=settings.levels) if settings.levels else Identity()


def _facts(
    fit: CountFit, panel: PanelFacts, settings: FedMissEMSettings, n_groups: int, n_cells: int, result: Result
) -> FitFacts:
    chosen, seen = fit.settings, result.trace["objective"]
    # The objective needs all groups' rows and is computed now and then only; blanks lie in between.
    known = seen[~np.isnan(seen)]
    name = chosen.family.capitalize() + (" on log1p" if chosen.scale == "log1p" else "")
    return FitFacts(
        **model_facts(fit, name).as_results(),
        **run_facts(fit, panel, result),
        method="fedmissem",
        effort={},
        standard_effort="one visit",
        observer_effects=False,
        observer_sd=None,
        n_groups=n_groups,
        objective=float(known[-1]),
        objective_start=float(known[0]),
        n_cells_observed=n_cells,
        participation=settings.participation,
        compressor=("random " if not settings.compressor and settings.levels else "") + sent(settings),
    )


def _check_finite(result: Result, settings: FedMissEMSettings) -> None:
    """Refuse a run whose objective rose: its parameters mean nothing."""
    seen = result.trace["objective"]
    seen = seen[~np.isnan(seen)]
    if (
        not np.isfinite(seen).all()
        or seen[-1] > seen[0] + 0.1 * abs(seen[0])
        or np.abs(result.theta.U).max() > 1e6
    ):
        gamma = float(result.trace["gamma"][-1])
        raise DomainError(
            f"FedMissEM diverged: its objective went from {seen[0]:.4g} to {seen[-1]:.4g} in {len(seen)} evaluations. "
            f"gamma={gamma:g}, compressor={sent(settings)}, batch={settings.batch or 'all'}. "
            f"Lower --gamma (try {gamma / 5:.2g}), or use more --levels or a larger --batch."
        )


def _converged(result: Result) -> bool:
    """Whether the mean field of the last rounds is next to nothing of the first: a run ends with its rounds all the same."""
    seen = result.trace["h_norm2"]
    return bool(seen[-WINDOW:].mean() <= STILL**2 * seen[0])


def _count_fit(
    result: Result, panel: GroupPanel, raw: GroupPanel, family: str, scale: str, penalty: float
) -> CountFit:
    theta: Factors = result.theta
    zero = Theta(0.0, np.zeros(panel.J), np.zeros(panel.L), theta.U, theta.V)
    settings = CountSettings(
        family=family, scale=scale, rank=theta.U.shape[1], penalty=penalty, effects=False, dispersion="none"
    )
    smear = 1.0
    if scale == "log1p":  # two sums per group: (1 + count) and exp(eta) on its visits
        top = sum(float((1.0 + group.count).sum()) for group in raw.groups)
        eta = [np.einsum("kr,kr->k", theta.U[group.site], theta.V[group.month]) for group in panel.groups]
        smear = top / sum(float(np.exp(one).sum()) for one in eta)
    aux = Auxiliary(np.zeros(0), (), float("inf"), 1.0, 0.0)
    fit = Fit(zero, [], _converged(result), result.stop_reason, len(result.trace["k"]))
    return CountFit(settings, panel.J, panel.L, fit, aux, float("nan"), float("nan"), panel.m, smear)
