"""FL-SAEM: what quantization does to a chain, how the estimate converges, what compression costs, and the users' model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fedmiss.arrays import F64, I64
from fedmiss.compressors import Dithering, Identity, TopK
from fedmiss.core import (
    Bernoulli,
    Downlink,
    FedEM,
    Full,
    Participation,
    Remembered,
    Roster,
    SaemSteps,
    ServerState,
    em,
    run,
)
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError
from fedmiss.experiments.folder import Folder, columns_of
from fedmiss.models.saem.algorithm import fed_saem, louis
from fedmiss.models.saem.chains import Chains, Langevin, langevin_variance
from fedmiss.models.saem.counts import Counts, simulate_counts
from fedmiss.models.saem.months import GaussMonths, Months, PoissonMonths, first_statistics, simulate_months
from fedmiss.rng import rng_for


def main(folder: Folder) -> None:
    """Five figures: variance of the chain, bias on counts, distance to the MLE, error against bytes, model C."""
    _variance(folder)
    n, sites, L = (4, 20, 8) if folder.quick else (10, 40, 20)
    counts = simulate_months(n, sites, L, seed=folder.seed)
    model, roster = PoissonMonths(L), Roster.of([sites] * n)
    # The truth of all figures is the maximum-likelihood estimate by quadrature, not the parameters that made the counts.
    S_0 = first_statistics(model, counts).mean(axis=0)
    truth = model.T(em(model, counts, roster, S_0, rounds=400, tol=1e-20)[0])
    _counts_bias(folder, model, counts, truth)
    _distance(folder, model, counts, roster, S_0, truth)
    _bytes(folder)
    _model_c(folder)
    folder.say(
        "A quantized gradient of a chain is used inside the worker and never travels: it saves no bytes and gives no "
        "privacy. It is here because the report has it."
    )
    title = "FL-SAEM: quantized Langevin E-steps and compressed statistics"
    folder.finish(title, workers=n, sites=sites, months=L)


def _variance(folder: Folder) -> None:
    d, chains, steps = 20, (100 if folder.quick else 500), (150 if folder.quick else 400)
    gammas, kinds = (0.1, 0.2, 0.4, 0.8), (None, 16, 4, 1)
    table = []
    for levels in kinds:
        for gamma in gammas:
            rng = rng_for(folder.seed, "variance", levels or 0, int(100 * gamma))
            z, total = np.zeros((chains, d)), 0.0
            kernel = Langevin(gamma, levels, adjust=False)
            for step in range(steps):
                z, _ = kernel.move(rng, z, np.ones(d), lambda at: (-0.5 * at * at, -at), np.array([0]))
                # After a third of the steps: the chain starts at 0, below its stationary spread.
                total += float((z * z).mean()) if step >= steps // 3 else 0.0
            measured = total / (steps - steps // 3)
            table.append((gamma, levels or 0, measured, langevin_variance(gamma, d, levels)))
    frame = columns_of(("gamma", "levels", "measured", "formula"), table)

    def draw(axes: Sequence[Axes]) -> None:
        fine = np.linspace(0.02, 0.8, 60)
        for i, levels in enumerate(kinds):
            at = frame["levels"] == (levels or 0)
            words = "no quantizer" if levels is None else f"{levels} level{'s' * (levels > 1)}"
            axes[0].plot(frame["gamma"][at], frame["measured"][at], "o", ms=4, color=f"C{i}", label=words)
            axes[0].plot(fine, [langevin_variance(gamma, d, levels) for gamma in fine], color=f"C{i}", lw=0.9)
        axes[0].set(xlabel="step / variance", ylabel="variance / target", yscale="log")
        axes[0].set_title(f"unadjusted chain, d = {d}")

    folder.figure("variance", draw, frame, legend=7)
    one, none = (
        frame["measured"][(frame["levels"] == levels) & (frame["gamma"] == 0.8)][0] for levels in (1, 0)
    )
    folder.say(
        f"Unadjusted Langevin on a Gaussian in {d} dimensions: stationary variance against the formula, largest relative "
        f"difference {100 * np.max(np.abs(frame['measured'] / frame['formula'] - 1)):.1f} %. At step 0.8 one level "
        f"multiplies the variance by {one:.2f}, no quantizer by {none:.2f}."
    )


def _counts_bias(folder: Folder, model: PoissonMonths, counts: F64, truth: Months) -> None:
    rows, M, steps = counts.reshape(-1, model.L), (8 if folder.quick else 20), (150 if folder.quick else 500)
    exact = model.s_bar(truth, rows)
    gammas = (0.1, 0.25, 0.5, 1.0)
    table = []
    for name, adjust, levels in (
        ("Langevin", False, None), ("Langevin, 4 levels", False, 4), ("Metropolis", True, None),
        ("Metropolis, 4 levels", True, 4),
    ):  # fmt: skip
        for gamma in gammas:
            rng, state = rng_for(folder.seed, "bias", int(100 * gamma)), model.latent_start(rows, M)
            total, share, kernel = np.zeros(model.q), 0.0, Langevin(gamma, levels, adjust=adjust)
            for step in range(steps):
                state, accepted = model.move(truth, rows, state, kernel, rng)
                if step >= steps // 4:
                    total += model.statistic(rows, state)
                    share += accepted
            # Posterior moments by the chain minus those by quadrature, at the same theta.
            shift = total / (steps - steps // 4) - exact
            parts = (shift[: model.L].mean(), shift[model.L :].mean(), share / (steps - steps // 4))
            table.append((name, gamma, *parts))
    frame = columns_of(("kernel", "gamma", "shift_z", "shift_z2", "accepted"), table)
    names = list(dict.fromkeys(frame["kernel"]))

    def draw(axes: Sequence[Axes]) -> None:
        for ax, key, words in ((axes[0], "shift_z", "mean of z"), (axes[1], "shift_z2", "mean of z^2")):
            for i, name in enumerate(names):
                at = frame["kernel"] == name
                ax.plot(frame["gamma"][at], frame[key][at], "o-", ms=4, color=f"C{i}", label=name)
            ax.axhline(0.0, color="0.6", lw=0.7)
            ax.set(
                xlabel="step", title="Poisson counts, at the MLE", ylabel=f"shift of the posterior {words}"
            )

    folder.figure("counts", draw, frame, panels=2, size=(4.6, 3.8), legend=7)
    worst = {name: float(np.abs(frame["shift_z2"][frame["kernel"] == name]).max()) for name in names}
    folder.say(
        "Shift of the posterior mean of z^2 on Poisson counts, largest over steps 0.1 to 1: "
        + "; ".join(f"{key} {value:.3f}" for key, value in worst.items())
        + ". Metropolis removes the bias of the step and of the quantizer; quantization then costs acceptance ("
        + ", ".join(
            f"{100 * frame['accepted'][(frame['kernel'] == case) & (frame['gamma'] == 0.25)][0]:.0f} % {case}"
            for case in worst
            if "Metro" in case
        )
        + " at step 0.25)."
    )


def errors(model: PoissonMonths, S: F64, truth: Months) -> tuple[float, float]:
    """Rms over months of beta and of log tau2 against the quadrature estimate; inf outside the domain of T."""
    try:
        theta = model.T(S)
    except DomainError:
        return np.inf, np.inf
    gaps = (theta.beta - truth.beta, np.log(theta.tau2 / truth.tau2))
    return float(np.sqrt(np.mean(gaps[0] ** 2))), float(np.sqrt(np.mean(gaps[1] ** 2)))


def _distance(
    folder: Folder, model: PoissonMonths, counts: F64, roster: Roster, S_0: F64, truth: Months
) -> None:
    rounds = 200 if folder.quick else 800
    at = np.unique(np.geomspace(5, rounds, 25).astype(int))
    curves: dict[str, F64] = {}
    shown = ("distance_beta", "distance_log_tau2")
    ways = {"rho = 1": (0.0, 1), "a = 1": (1.0, 1), "a = 0.7": (0.7, 1), "a = 0.7, M = 4": (0.7, 4)}
    for name, (a, M) in ways.items():
        algo = fed_saem(
            model, roster, Identity(), how="server", estep=Chains(5, M), steps=SaemSteps(50, a), seed=folder.seed
        )  # fmt: skip

        def observe(server: ServerState, down: Downlink) -> dict[str, float]:
            return dict(zip(shown, errors(model, server.S_hat, truth), strict=True))

        result = run(
            algo, LocalEngine(counts), S_0, stop=rounds + 1, init="zero", observe=observe, label=f"saem: {name}"
        )  # fmt: skip
        folder.trace(result, roster.total, run=name)
        curves[name] = np.column_stack([result.trace[column][at] for column in shown])

    def draw(axes: Sequence[Axes]) -> None:
        for ax, which, words in ((axes[0], 0, "beta"), (axes[1], 1, "log tau2")):
            for name, curve in curves.items():
                ax.loglog(at, curve[:, which], label=name)
            late = at >= 50
            line = curves["a = 0.7"][late, which][0] * (at[late] / at[late][0]) ** -0.5
            ax.loglog(at[late], line, "k:", lw=0.8, label="r^(-1/2)")
            ax.set(xlabel="rounds", ylabel=f"rms distance to the MLE, {words}")

    columns: dict[str, F64 | I64] = {"round": at}
    for name, curve in curves.items():
        columns |= {f"{name} beta": curve[:, 0], f"{name} log tau2": curve[:, 1]}
    folder.figure("distance", draw, columns, panels=2, size=(4.6, 3.8), legend=7)
    folder.say(
        f"Distance to the quadrature MLE after {at[-1]} rounds (beta / log tau2): "
        + "; ".join(f"{key} {curve[-1, 0]:.4f} / {curve[-1, 1]:.4f}" for key, curve in curves.items())
        + ". A constant step never averages."
        + ("" if folder.quick else " Steps of 1/r freeze a slow EM: hence a = 0.7.")
    )


def _bytes(folder: Folder) -> None:
    """Exact statistics of model A: the compressor alone."""
    n, sites, L, rounds = 10, 40, 20, (600 if folder.quick else 2000)
    data = simulate_months(n, sites, L, counts=False, seed=folder.seed)
    model, roster = GaussMonths(L), Roster.of([sites] * n)
    S_0 = first_statistics(model, data).mean(axis=0)
    exact = em(model, data, roster, S_0, rounds=4000, tol=1e-28)[0]
    table = []
    for share in (1.0, 0.5):
        for name, compressor, memory in (
            ("float64", Identity(), "field"), ("one-level dithering, V", Dithering(1), "field"),
            ("Top-10 of the statistic (report)", TopK(10), "bare"), ("Top-10, no memory", TopK(10), "none"),
            ("Top-10, error feedback", TopK(10), "error"), ("Top-10, EF21", TopK(10), "field"),
        ):  # fmt: skip
            if share < 1 and memory == "bare":
                continue  # a silent worker would count as zero
            who: Participation = Full() if share == 1.0 else Bernoulli(share)
            who = Remembered(who) if isinstance(compressor, TopK) else who
            # Statistics are exact and the step is constant: what is left of the error is the compressor's.
            algo = FedEM(model, compressor, roster, 0.2, memory=memory, participation=who, seed=folder.seed)
            last, each, left = _until_it_leaves(algo, data, S_0, rounds, f"saem: {name}")
            gap = float(np.linalg.norm(last - exact) / np.linalg.norm(exact))
            table.append((name, share, gap, each, left))
    frame = columns_of(("sent", "p", "error", "bytes_a_message", "left_the_domain"), table)

    def draw(axes: Sequence[Axes]) -> None:
        for i, name in enumerate(dict.fromkeys(frame["sent"])):
            at = frame["sent"] == name
            error = np.maximum(frame["error"][at], 1e-12)
            axes[0].loglog(frame["bytes_a_message"][at], error, "os"[i % 2], color=f"C{i}", label=name)
        title = f"exact statistics, {rounds} rounds"
        axes[0].set(xlabel="bytes a message", ylabel="relative error of S", title=title)

    folder.figure("bytes", draw, frame, legend=6)
    folder.say(
        f"The compressor alone (model A, exact statistics, gamma = 0.2, {rounds} rounds), relative error of S:\n\n"
        "| sent | p | error | bytes a message | left the domain of T at round |\n|---|---|---|---|---|\n"
        + "\n".join(
            f"| {sent} | {share:g} | {error:.2g} | {size:.0f} | {left or 'never'} |"
            for sent, share, error, size, left in table
        )
    )


def _until_it_leaves(algo: FedEM, data: F64, S_0: F64, rounds: int, label: str) -> tuple[F64, float, int]:
    """Return the last statistic, the bytes of a message, and the round that left the domain of T (0: none did)."""
    last = S_0

    def observe(server: ServerState, down: Downlink) -> dict[str, float]:
        nonlocal last
        last = server.S_hat
        return {}

    try:
        result = run(algo, LocalEngine(data), S_0, stop=rounds, observe=observe, label=label)
    except DomainError as error:
        return last, np.nan, int(error.fields.get("k", 0))
    sent = result.trace["active"].sum()
    return result.server.S_hat, result.trace["bytes_up"].sum() / sent if sent else np.nan, 0


def _model_c(folder: Folder) -> None:
    workers, sites, L = (3, 12, 6) if folder.quick else (6, 20, 12)
    data = simulate_counts(workers, sites, L, seed=folder.seed)
    model, roster = Counts(L), Roster.of([len(rows) for rows in data], "pooled")
    V = first_statistics(model, data)
    S = em(model, data, roster, roster.weights @ V, rounds=400, tol=1e-16)[0]
    truth, rounds = model.T(S), (200 if folder.quick else 900)
    best = sum(len(rows) * model.log_likelihood(truth, rows) for rows in data)
    found, table = {}, []
    for name, how, compressor, who in (
        ("all present, float64", "server", Identity(), Full()),
        ("p = 0.5, Top-k of the change", "memory", TopK(model.q // 5), Bernoulli(0.5)),
    ):
        steps = SaemSteps(rounds // 3, cap=1.0 if how == "server" else 0.2)
        algo = fed_saem(model, roster, compressor, how=how, participation=who, steps=steps, seed=folder.seed)
        result = run(
            algo, LocalEngine(data), roster.weights @ V, stop=rounds, init=V if how == "memory" else "zero",
            label=f"saem: model C, {name}",
        )  # fmt: skip
        theta, true_w = result.theta, truth.w[:, 0]
        # (w, u) and (-w, -u) are one model: compare the nearer sign.
        sign = 1.0 if float(theta.w[:, 0] @ true_w) > 0 else -1.0
        beta, w = theta.beta, sign * theta.w[:, 0]
        found[name] = (beta, w)
        gaps = [np.sqrt(np.mean(gap**2)) for gap in (beta - truth.beta, w - true_w)]
        below = best - sum(len(rows) * model.log_likelihood(theta, rows) for rows in data)
        megabytes = result.trace["bytes_up"].sum() / 1e6
        table.append((name, *gaps, abs(np.log(theta.s2 / truth.s2)), below, megabytes))
    try:
        error = np.sqrt(np.diag(louis(model, truth, data, rounds=100, seed=folder.seed)))
    except ConfigError as reason:  # an overdispersion near 0 is not determined by few visits
        error = np.full(len(model.vector(truth)), np.nan)
        folder.say(f"Model C has no standard errors here: {reason}")
    _draw_model_c(folder, found, (truth.beta, truth.w[:, 0]), (error[:L], error[L : 2 * L]))
    folder.say(
        f"Model C, r = 1, {roster.n} workers, {roster.total} visits, q = {model.q}, against quadrature (log-likelihood "
        f"{best:.3f}), {rounds} rounds:\n\n"
        "| run | rms beta | rms w | abs. log s2 | log-likelihood below the maximum | MB up |\n"
        "|---|---|---|---|---|---|\n"
        + "\n".join(
            f"| {case} | {rms_beta:.3f} | {rms_w:.3f} | {log_s2:.3f} | {below:.2f} | {megabytes:.3f} |"
            for case, rms_beta, rms_w, log_s2, below, megabytes in table
        )
    )


Pair = tuple[F64, F64]  # beta and w of each month


def _draw_model_c(folder: Folder, found: dict[str, Pair], exact: Pair, error: Pair) -> None:
    """Draw the parameters of the runs beside the quadrature estimate with its standard errors."""
    month = np.arange(1, exact[0].size + 1)

    def draw(axes: Sequence[Axes]) -> None:
        words = "quadrature MLE, 2 s.e. (Louis)"
        for i, (ax, name) in enumerate(zip(axes, ("beta", "w"), strict=True)):
            ax.errorbar(month, exact[i], 2 * error[i], fmt="k_", capsize=2, label=words)
            for j, (run_name, value) in enumerate(found.items()):
                ax.plot(month + 0.1 * (j + 1), value[i], "o", ms=4, color=f"C{j}", label=run_name)
            ax.set(xlabel="month", ylabel=name)

    columns: dict[str, F64 | I64] = {
        "month": month, "beta": exact[0], "w": exact[1], "beta_se": error[0], "w_se": error[1],
    }  # fmt: skip
    for name, (beta, loadings) in found.items():
        columns |= {f"{name} beta": beta, f"{name} w": loadings}
    folder.figure("model_c", draw, columns, panels=2, size=(4.6, 3.8), legend=7)
