"""``fedmiss fit --method saem``: the count model by maximum likelihood with chains, the check of the approximations.

The default fit has a factorised Gaussian posterior and estimates its variances by variational EM. Here the same model of a
small panel (site level, months, effort, observers, factors, overdispersion) is fitted by FL-SAEM: Metropolis-corrected
chains draw the latents, so nothing is approximated but by Monte Carlo, which falls with the rounds. Standard errors of the
variances are Louis'. It is slow, it has no season that would fill a month without counts, and it is no default.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.atomic import hash_json
from fedmiss.compressors import Identity
from fedmiss.core import Bernoulli, Full, Result, Roster, SaemSteps, Stop, run
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import CountFit, Posterior
from fedmiss.folders import FitFacts
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.theta import Fit
from fedmiss.models.saem.algorithm import fed_saem, louis
from fedmiss.models.saem.chains import Langevin
from fedmiss.models.saem.counts import Counts, CountsTheta, ShiftedCounts, Visits
from fedmiss.models.saem.months import first_statistics
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
from fedmiss.pipeline.panels import effort_names, open_panel, panel_hash
from fedmiss.pipeline.plans import federation_of, refuse_uncounted
from fedmiss.pipeline.settings import SaemSettings
from fedmiss.rng import rng_for

ROUNDS = 900
MOST_VISITS = 20_000  # about 4 ms a chain step on one core
MOST_FACTORS = 4
MOST_NUMBERS = 2_500  # of the statistic: Louis' identity needs its covariance


def workers_of(federation: LocalFederation) -> dict[str, tuple[Visits, I64]]:
    """Visits of each worker and the panel's rows of its sites; groups that share sites are one (:func:`.visits.unite`).

    A site's factor is one latent, and a chain that does not see all visits of the site would draw another one.
    """
    out = {}
    for name, program in federation.programs.items():
        used = program.used
        if used is None or not used.count.size:
            continue
        site = federation.at[name][used.site]
        visits = Visits.of(site, used.month, used.count, used.observer, None, used.effort)
        out[name] = (visits, np.unique(site).astype(np.int64))
    return out


def posterior_of_sites(
    model: Counts,
    theta: CountsTheta,
    rows: Visits,
    *,
    rounds: int = 200,
    M: int = 4,
    seed: int = 0,
    worker: int = 0,
) -> tuple[F64, F64]:
    """Posterior means (J, r) and covariances (J, r, r) of the factors of a worker's sites at theta, by ``M`` chains.

    Draws are keyed by seed and worker: with their sum a worker of one seed would have those of its neighbour of the next.
    """
    burn, moves = 50, 5  # rounds left out, moves of a round
    rng, state, kernel = rng_for(seed, "posterior of sites", worker), model.latent_start(rows, M), Langevin()
    J, r, count = len(rows.starts), model.r, 0
    # Moments of the factors' draws at a fixed theta: first and second, over all chains and rounds after the burn-in.
    mean, square = np.zeros((J, r)), np.zeros((J, r, r))
    for k in range(burn + rounds):
        for _ in range(moves):
            state, _ = model.move(theta, rows, state, kernel, rng)
        if k >= burn:
            u = np.asarray(state["u"]).reshape(M, J, r)
            mean += u.sum(axis=0)
            square += np.einsum("mja,mjb->jab", u, u)
            count += M
    mean /= count
    return mean, square / count - mean[:, :, None] * mean[:, None, :]


def _check(settings: SaemSettings, federation: LocalFederation, model: Counts, labels: list[str]) -> None:
    """Refuse panels that maximum likelihood cannot fit, and panels that would take hours."""
    used = [program.used for program in federation.programs.values() if program.used is not None]
    visits = sum(one.count.size for one in used)
    for words, value, limit in (
        ("counted visits", visits, MOST_VISITS), ("numbers in the statistic", model.q, MOST_NUMBERS),
    ):  # fmt: skip
        if value > limit:
            raise ConfigError(
                f"--method saem: the panel has {value:,} {words} (at most {limit:,}): it is the check of the approximations "
                "on small panels. Take fewer months or sites (`fedmiss panel`), or fit with --method fast."
            )
    month = np.concatenate([one.month for one in used])
    seen = np.bincount(month, minlength=model.L)
    # The estimate of a month without a bird is minus infinity.
    birds = np.bincount(month, np.concatenate([one.count for one in used]), model.L)
    # With factors, a month has as many coefficients of its own as the model has factors: its visits must determine them.
    few = 2 * model.r if model.r > 1 else 1
    for bad, what in (
        (seen < few, f"fewer than {few} counted visits"), (birds <= 0, "zero birds in all visits"),
    ):  # fmt: skip
        if bad.any():
            raise ConfigError(
                f"--method saem: {int(bad.sum())} of {model.L} months have {what} (first {labels[int(np.argmax(bad))]}): "
                "they have no maximum-likelihood estimate. Import other months (`fedmiss ingest --season`), or fit with "
                "--method fast, whose season and walk fill them."
            )
    if settings.observers and sum(int(one.observer.max()) + 1 for one in used if one.observer.size) < 3:
        raise ConfigError(
            "--method saem --observers: a variance needs at least 3 observers; leave --observers out."
        )


def _rounds(settings: SaemSettings) -> int:
    """Refuse settings that FL-SAEM does not have; return the number of its rounds."""
    if settings.rank != "auto" and int(settings.rank) > MOST_FACTORS:
        raise ConfigError(
            f"--method saem --rank {settings.rank}: at most {MOST_FACTORS} factors, whose loadings are free in each month."
        )
    rounds = ROUNDS if settings.rounds is None else settings.rounds
    if rounds < 10:
        raise ConfigError(f"--rounds is {rounds} (must be at least 10; the default is {ROUNDS}).")
    return rounds


def fit_saem(panel_path: str | Path, out: Path, settings: SaemSettings) -> Path:
    """Write a fit folder made by FL-SAEM (model C: :class:`fedmiss.models.saem.counts.ShiftedCounts`).

    Rank 0 has a site level, rank r also r factors with loadings free in each month; S is averaged over the second half of
    the rounds. It has no bootstrap. With ``participation`` below 1 silent workers count with what is remembered of them.

    Raises ConfigError: a panel that is too large, months without a bird.

    Source: Karimi's weekly report of 2021; Kuhn and Lavielle (2005). Differs in what ``models/saem/algorithm.py`` says.
    """
    rounds = _rounds(settings)
    folder = open_panel(panel_path)
    refuse_uncounted(folder, settings.method, "--method")
    hashes = panel_hash(folder)
    federation = federation_of(folder, settings)
    n_effort = next(
        program.used.effort.shape[1] for program in federation.programs.values() if program.used is not None
    )
    rank, observers = 0 if settings.rank == "auto" else settings.rank, settings.observers
    model = ShiftedCounts(federation.L, r=1 + rank, d=n_effort, observers=observers, level=True)
    _check(settings, federation, model, folder.months["month"].tolist())
    workers = workers_of(federation)
    names, data = list(workers), [rows for rows, _ in workers.values()]
    work = partial_folder(out, hash_json([asdict(settings), hashes]))
    result = _run(model, names, data, settings, rounds, checkpoint(work))
    # The mean of S over the second half has less Monte-Carlo error than the last S; theta follows by one M-step.
    theta = model.T(result.server.S_hat if result.S_mean is None else result.S_mean)
    fit = _count_fit(model, theta, workers, federation, settings.seed, rounds)
    write_fit(work, fit)
    errors, notes = _errors(model, theta, data, settings.seed)
    agreed = federation.agreement
    write_run_trace(work, result, sum(len(rows) for rows in data))
    facts = FitFacts.of_members(
        [model_facts(fit, "Poisson log-normal")],
        **run_facts(fit, folder.facts, result),
        method="saem",
        effort=dict(zip(effort_names(agreed.terms, agreed.blanks), theta.kappa.tolist(), strict=True)),
        standard_effort=agreed.standard_effort,
        observer_effects=observers,
        observer_sd=float(np.sqrt(theta.tau2_o)) if observers else None,
        n_groups=len(folder.groups),
        n_solved=len(federation.programs),
        n_cells_observed=federation.n_cells(),
        exchanges=len(result.trace["k"]),
        participation=settings.participation,
        workers=len(names),
        overdispersion=theta.s2,
        standard_errors=errors,
    )
    made = "made by chains (--method saem), the check of the default fit's approximations; no intervals."
    write_fit_manifest(work, folder, settings, hashes, facts, [made, *notes])
    return finish(work, out)


def _run(
    model: Counts, names: list[str], data: list[Visits], settings: SaemSettings, rounds: int, file: Path
) -> Result:
    roster = Roster.of({name: len(rows) for name, rows in zip(names, data, strict=True)}, "pooled")
    first = first_statistics(model, data)
    full = settings.participation == 1.0
    algo = fed_saem(
        model,
        roster,
        Identity(),
        how="server" if full else "memory",
        steps=SaemSteps(rounds // 3, cap=1.0 if full else 0.2),
        participation=Full() if full else Bernoulli(settings.participation),
        seed=settings.seed,
    )
    return run(
        algo, LocalEngine(data), roster.weights @ first, stop=Stop(rounds=rounds), init="zero" if full else first,
        average_from=rounds // 2, checkpoint=file, label="SAEM rounds",
    )  # fmt: skip


def _count_fit(
    model: Counts,
    theta: CountsTheta,
    workers: dict[str, tuple[Visits, I64]],
    federation: LocalFederation,
    seed: int,
    rounds: int,
) -> CountFit:
    """The fit in the count model's parameters: a_j = w u_j0; expected counts have the factor exp(s2 / 2)."""
    J, p, level = federation.J, model.r, float(theta.w[0, 0])
    # u_j0 has variance 1 and the loading ``level`` in every month: a_j = level u_j0 is the count model's site effect.
    scale = np.r_[level, np.ones(p - 1)]
    P, C = np.zeros((J, p)), np.tile(np.diag(scale**2), (J, 1, 1))  # a site without counts has the prior
    for i, (rows, at) in enumerate(workers.values()):
        mean, cov = posterior_of_sites(model, theta, rows, seed=seed, worker=i)
        P[at], C[at] = mean * scale, cov * scale[:, None] * scale
    mu = float(theta.beta.mean())
    T = np.column_stack([theta.beta - mu, theta.w[:, 1:]])
    prior = np.zeros((model.L, p))
    posterior = Posterior(mu, P, C, T, np.zeros((model.L, p, p)), scale**2, prior, np.zeros(p))
    settings = CountSettings(rank=p - 1, dispersion="none", observers=model.observers)
    history = Fit(posterior.theta(), [], True, f"{rounds} rounds done, averaged over the second half", rounds)
    ridge = 1.0 / theta.tau2_o if model.observers else 0.0
    aux = Auxiliary(theta.kappa, (), float("inf"), 1.0, ridge)
    # E exp(eps) of N(0, s2): it takes the place of the calibration of totals.
    mean_factor, nan = float(np.exp(0.5 * theta.s2)), float("nan")
    n_counted = federation.n_counted
    return CountFit(settings, J, model.L, history, aux, nan, nan, n_counted, mean_factor, posterior)


def _errors(
    model: Counts, theta: CountsTheta, data: list[Visits], seed: int
) -> tuple[dict[str, float] | None, list[str]]:
    """Louis' standard errors of the site level, the overdispersion and the observers' variance, or why there are none."""
    try:
        # Louis' parameter vector ends with the level's loading, s2
        # and the observers' variance: its tail is what is reported.
        se = np.sqrt(np.diag(louis(model, theta, data, rounds=1000, seed=seed)))
    except ConfigError as error:
        return None, [f"no standard errors of the variances: {error}"]
    names = ["overdispersion", "observer_variance"] if model.observers else ["overdispersion"]
    tail = ["site_sd", *names]
    return dict(zip(tail, se[-len(tail) :].tolist(), strict=True)), []
