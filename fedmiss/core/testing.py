"""Laws that any plug-in must satisfy: run ``check_model``, ``check_compressor``, ``check_oracle`` in tests of your own.

They raise AssertionError with the law, the value and the limit. Monte-Carlo laws use tolerances from standard
errors (5 of them), so that correct code fails about once in a million runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.likelihood import broken_law
from fedmiss.core.messages import compress_rows
from fedmiss.core.oracles import s_bar_many
from fedmiss.core.protocols import Compressor, Model, Oracle, Rows, Shards, Theta, WorkerContext
from fedmiss.core.state import Downlink
from fedmiss.errors import DomainError, UplinkError
from fedmiss.rng import rng_for


def _law(holds: bool, words: str) -> None:
    if not holds:
        raise AssertionError(words)


def _vectors(rng: np.random.Generator, q: int) -> dict[str, F64]:
    spike = np.zeros(q)
    spike[q // 2] = -3.0
    one_large = rng.standard_normal(q)
    one_large[0] = 1e3
    sparse = rng.standard_normal(q) * (rng.random(q) < 0.2)
    return {
        "gaussian": rng.standard_normal(q), "sparse": sparse, "constant": np.full(q, -0.7), "spike": spike,
        "one large": one_large, "tiny": 1e-12 * rng.standard_normal(q), "huge": 1e12 * rng.standard_normal(q),
    }  # fmt: skip


def _unbiased(name: str, x: F64, X_hat: F64, bias: float) -> float:
    """Check that the mean of the redraws (draws, q) is ``x``; return its largest distance in standard errors."""
    draws = len(X_hat)
    error = np.abs(X_hat.mean(axis=0) - x) - bias * np.abs(x)
    # entries that never varied must be exact up to rounding; the others are judged by their standard error
    sure = np.ptp(X_hat, axis=0) == 0.0
    error[sure] = np.abs(X_hat[0] - x)[sure] - bias * np.abs(x)[sure]
    _law(
        bool((error[sure] <= 1e-12 * np.abs(x[sure]) + 5.0 / draws * np.sqrt(float(x @ x))).all()),
        f"{name}: an entry without randomness is off by {error[sure].max(initial=0.0):.3g}",
    )
    # A6: E Quant(x) = x, in standard errors of the mean of the redraws.
    z = error[~sure] / (X_hat.std(axis=0, ddof=1)[~sure] / np.sqrt(draws))
    max_z = float(z.max(initial=0.0))
    _law(max_z < 5.5, f"{name}: E Quant(x) is {max_z:.1f} standard errors from x (limit 5.5)")
    return max_z


def check_compressor(
    compressor: Compressor, q: int, *, draws: int = 2000, seed: int = 0, bias: float = 0.0
) -> dict[str, float]:
    """Check E Quant(x) = x, E||Quant(x) - x||^2 <= omega ||x||^2, Quant(0) = 0, and that bytes are real.

    A biased compressor (with ``delta``) is checked for ||C(x) - x||^2 <= (1 - delta) ||x||^2 in every draw instead.

    Parameters
    ----------
    q : length of the vectors tried: Gaussian, sparse, constant, one large entry, scales from 1e-12 to 1e12
    draws : redraws of each
    bias : relative bias allowed, for encodings that round (float32: 2^-24)

    Returns
    -------
    dict with ``variance_ratio`` (largest E||Quant(x) - x||^2 / ||x||^2 seen), ``omega`` or ``delta``, ``max_z``
    """
    rng = rng_for(seed, "check_compressor")
    size, share = compressor.draws(q), getattr(compressor, "delta", None)
    delta = None if share is None else float(share(q))
    _law(delta is None or 0 < delta <= 1, f"delta(q={q}) is {delta} (must be in (0, 1])")
    omega = compressor.omega(q) if delta is None else 0.0
    _law(omega >= 0, f"omega(q={q}) is {omega} (must be >= 0)")
    worst, max_z = 0.0, 0.0
    vectors = _vectors(rng, q)
    for name, x in vectors.items():
        U = rng.random((draws, size))
        X = np.broadcast_to(x, (draws, q))
        X_hat, nbytes = compress_rows(compressor, X, U)
        turned, _ = compress_rows(compressor, np.asfortranarray(X[:3]), U[:3])
        _law(np.array_equal(turned, X_hat[:3]), f"{name}: compress_batch depends on the order of memory")
        for i in range(3):
            code = compressor.encode(x, U[i])
            words = f"{name}: compress_batch counts {nbytes[i]} bytes, encode gives {len(code)}"
            _law(len(code) == nbytes[i], words)
            same = np.array_equal(compressor.decode(code, q), X_hat[i])
            _law(same, f"{name}: decode(encode(x)) is not compress_batch(x)")
        norm2 = float(x @ x)
        if delta is not None:
            left = float(((X_hat - x) ** 2).sum(axis=1).max()) / max(norm2, 1e-300)
            worst = max(worst, left)
            words = f"{name}: ||C(x) - x||^2 is {left:.6g} ||x||^2, above 1 - delta = {1 - delta:.6g}"
            _law(left <= (1 - delta) * (1 + 1e-9) + 1e-15, words)
            continue
        max_z = max(max_z, _unbiased(name, x, X_hat, bias))
        if norm2 > 0:
            # A6: E ||Quant(x)||^2 <= (1 + omega) ||x||^2, which for no bias is E ||Quant(x) - x||^2 <= omega ||x||^2.
            ratio = ((X_hat - x) ** 2).sum(axis=1) / norm2
            value, error_of_it = float(ratio.mean()), float(ratio.std(ddof=1) / np.sqrt(draws))
            worst = max(worst, value)
            limit = (omega + 4 * bias**2) * (1 + 1e-9) + 5 * error_of_it + 1e-300
            words = f"{name}: E||Quant(x) - x||^2 is {value:.6g} ||x||^2, above omega = {omega:.6g}"
            _law(value <= limit, words)
    zero, _ = compress_rows(compressor, np.zeros((1, q)), rng.random((1, size)))
    _law(not zero.any(), "Quant(0) is not 0")
    code = compressor.encode(vectors["gaussian"], rng.random(size))
    for broken in (b"", code[: len(code) // 3]):
        try:
            out = compressor.decode(broken, q)
        except UplinkError:
            continue
        _law(
            out.shape == (q,), f"decode of {len(broken)} bytes neither raises UplinkError nor gives q numbers"
        )
    if delta is not None:
        return {"variance_ratio": worst, "delta": delta, "max_z": 0.0}
    return {"variance_ratio": worst, "omega": omega, "max_z": max_z}


def check_oracle(
    oracle: Oracle,
    model: Model,
    data: Sequence[Rows],
    S_hat: F64,
    *,
    rounds: int = 6,
    unbiased: int = 0,
    seed: int = 0,
) -> dict[str, float]:
    """Check that ``many`` gives each worker the bits that it gets alone, over rounds with absences, memory, unbiasedness.

    Parameters
    ----------
    data : rows of at least 3 workers
    S_hat : (q,) where the oracle is asked; it moves a little from round to round
    unbiased : number of redraws of the first answer whose mean is compared with s_bar_c(T(S_hat)), 0 for none (an oracle
        that is not meant to be unbiased: SPIDER in later rounds, local steps)

    Returns
    -------
    dict with ``evaluations`` of all answers and ``max_z`` of the unbiasedness
    """
    n, q = len(data), model.q
    _law(n >= 3, f"give the rows of at least 3 workers, got {n}")
    _law(oracle.draws >= 0, f"draws is {oracle.draws} (must be >= 0)")
    rng = rng_for(seed, "check_oracle")
    memory = oracle.start_many(n, q)
    single, alone = [oracle.start_many(1, q) for _ in range(n)], np.zeros(1, dtype=np.int64)
    total, V = 0, 0.01 * rng.standard_normal((n, q))

    def own(k: int, slots: I64) -> tuple[WorkerContext, ...]:
        if not getattr(oracle, "wants_own", False):
            return ()
        return (WorkerContext(V[slots], lambda i=0: rng_for(seed, "estep", k, int(slots[i]))),)

    for k in range(rounds):
        S = S_hat * (1 + 1e-3 * k)
        mean = V.mean(axis=0) if getattr(oracle, "corrects", False) else None
        down = Downlink(k, S, model.T(S), V=mean)
        slots = np.flatnonzero(rng.random(n) < 0.6 if k else np.ones(n)).astype(np.int64)
        if k == rounds // 2:  # as after a checkpoint
            memory = oracle.unpack(model, oracle.pack(memory), n, q)
        if not slots.size:
            continue
        u = rng.random((slots.size, oracle.draws))
        many, count = oracle.many(model, memory, down, data, slots, u, *own(k, slots))
        _law(many.shape == (slots.size, q), f"many gives {many.shape}, expected {(slots.size, q)}")
        each = 0
        for i, c in enumerate(slots.tolist()):
            mine = own(k, np.array([c]))
            estimate, cost = oracle.many(model, single[c], down, [data[c]], alone, u[i : i + 1], *mine)
            words = f"round {k}: among others worker {c} does not get the bits that it gets alone"
            _law(np.array_equal(estimate[0], many[i]), words)
            each += cost
        _law(each == count, f"round {k}: many counts {count} evaluations, one by one they are {each}")
        total += count
    if not unbiased:
        return {"evaluations": float(total), "max_z": 0.0}
    down, draws = Downlink(0, S_hat, model.T(S_hat), V=V.mean(axis=0)), []
    for i in range(unbiased):
        mine = (WorkerContext(V[:1], lambda _=0, i=i: rng_for(seed, "unbiased", i)),) if own(0, alone) else ()
        memory, u = oracle.start_many(1, q), rng.random((1, oracle.draws))
        draws.append(oracle.many(model, memory, down, [data[0]], alone, u, *mine)[0][0])
    z = _standard_errors(np.array(draws), model.s_bar(down.theta, data[0]))
    _law(z < 5.5, f"the mean answer is {z:.1f} standard errors from s_bar_c (limit 5.5)")
    return {"evaluations": float(total), "max_z": z}


def _standard_errors(sample: F64, exact: F64) -> float:
    """Largest distance of the mean of a sample from ``exact``, in standard errors."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    off = np.abs(sample.mean(axis=0) - exact)
    return float((off / np.maximum(error, 1e-12 * np.abs(exact).max() + 1e-300)).max())


def _check_many(model: Model, theta: Theta, rows: Rows, order: I64) -> None:
    """Check the fast path as engines ask it: workers whose rows differ, all of them or the second, all rows or a few."""
    index = np.stack([order[:3], order[1:4]]).astype(np.int64) % (len(rows) - 1)
    shards: list[Shards] = [[rows, rows[order[1:]]]]
    if isinstance(rows, np.ndarray):  # workers of one size are one array
        shards.append(np.stack([rows, rows[order]]))
    for data in shards:
        for slots in ([0, 1], [1]):
            for at in (None, index[: len(slots)]):
                many = s_bar_many(model, theta, data, np.array(slots), at)
                some = [data[c] if at is None else data[c][at[i]] for i, c in enumerate(slots)]
                one = np.stack([model.s_bar(theta, part) for part in some])
                _law(np.array_equal(many, one), "s_bar_many does not give the bits of s_bar")


def check_model(model: Model, rows: Rows, theta: Theta, *, seed: int = 0) -> dict[str, float]:
    """Check that s_bar is a mean over rows with q entries, that T is its inverse in EM's sense, and the fast paths.

    T may not change the statistic that it is given, and gives the same parameters twice.

    A model with ``log_likelihood``, and better with ``surrogate`` beside it, is also checked for what makes it EM: T as
    the argmin, s_bar as a posterior mean, ascent (:func:`fedmiss.core.likelihood.broken_law`). Without them a wrong
    formula passes as long as it is consistent.

    Parameters
    ----------
    rows : at least 4 rows, as the core will index them
    theta : a parameter at which the rows have positive density, in general position: entries that are equal or zero
        in it, and stay so under T, pass as constraints of the model

    Returns
    -------
    dict with ``h_norm2_first`` and ``h_norm2_last`` of 50 EM steps (the last must not be larger)
    """
    m = len(rows)
    _law(m >= 4, f"give at least 4 rows, got {m}")
    S = model.s_bar(theta, rows)
    right = S.shape == (model.q,) and S.dtype == np.float64
    _law(right, f"s_bar gives {S.shape} {S.dtype}, q={model.q} float64")
    _law(bool(np.isfinite(S).all()), "s_bar is not finite")
    _law(np.array_equal(S, model.s_bar(theta, rows)), "s_bar twice gives different bits")
    order = rng_for(seed, "check_model").permutation(m)
    cut = m // 3
    parts = cut * model.s_bar(theta, rows[order[:cut]]) + (m - cut) * model.s_bar(theta, rows[order[cut:]])
    off = float(np.max(np.abs(parts / m - S)) / (np.max(np.abs(S)) + 1e-300))
    words = f"s_bar is not a mean over rows: two parts differ from the whole by {off:.2g} relatively"
    _law(off < 1e-9, words)
    twice = np.concatenate([order, order])
    off = float(np.max(np.abs(model.s_bar(theta, rows[twice]) - S)) / (np.max(np.abs(S)) + 1e-300))
    _law(off < 1e-9, f"s_bar of every row twice differs from s_bar by {off:.2g} relatively")
    _check_many(model, theta, rows, order)
    if hasattr(model, "to_wire"):
        D = rng_for(seed, "check_model", "wire").standard_normal((2, model.q))
        off = float(np.abs(model.from_wire(theta, model.to_wire(theta, D)) - D).max())  # type: ignore[attr-defined]
        _law(off < 1e-6, f"from_wire(to_wire(D)) differs from D by {off:.2g}, where numbers are about 1")
    out = {"h_norm2_first": np.nan, "h_norm2_last": np.nan}
    if not hasattr(model, "carry_start"):
        given = S.copy()
        try:
            at = model.T(given)
        except DomainError as error:
            raise AssertionError(f"s_bar(theta) is outside the domain of T: {error}") from error
        _law(np.array_equal(given, S), "T changes the statistic that it is given; work on a copy")
        again = np.array_equal(model.s_bar(at, rows), model.s_bar(model.T(S.copy()), rows))
        _law(again, "T twice gives different parameters")
        words = broken_law(model, rows, theta, seed=seed)
        _law(not words, words)
        trace: list[float] = []
        s: F64 = S
        for _ in range(50):
            new = model.s_bar(model.T(s), rows)
            trace.append(float((new - s) @ (new - s)))
            s = new
        first, last = trace[0], trace[-1]
        _law(last <= first * (1 + 1e-9) + 1e-28, f"50 EM steps raise ||h||^2 from {first:.3g} to {last:.3g}")
        out = {"h_norm2_first": first, "h_norm2_last": last}
    return out
