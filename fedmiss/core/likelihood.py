"""Likelihood of a model that states one: the mean over workers, a column of the trace, and the laws that EM owes it.

Slopes are finite differences along straight lines between parameters that the model itself has produced. Domains of
parameters (probabilities, variances, covariance matrices) are convex, so such lines stay inside, and nothing has to be
known of a parameter but its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.protocols import Model, Rows, Shards, Theta
from fedmiss.core.state import Downlink, Roster, ServerState
from fedmiss.errors import ConfigError, DomainError
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked

_STEP = 1e-3  # of the way to the other parameter; the five-point formulas leave an error of its fourth power
_SLOPES = 2e-5  # relative, of two slopes that must agree: E-steps by quadrature are exact to about 1e-6
_OFFSET = 1e-4  # of the way to the other parameter, between T(S) and the minimum along the line


@kinds_checked
def log_likelihood(model: Model, theta: Theta, data: Shards, roster: Roster) -> float:
    """sum_c w_c (mean of log p(y; theta) over the rows of c): sees all rows, so it exists in simulations only."""
    one = getattr(model, "log_likelihood", None)
    if one is None:
        raise ConfigError(
            f"{type(model).__name__} has no member log_likelihood(theta, rows); add one, or watch ||H||^2."
        )
    return float(sum(w * one(theta, data[c]) for c, w in enumerate(roster.weights)))


@kinds_checked
def watch_likelihood(
    model: Model, data: Shards, roster: Roster
) -> Callable[[ServerState, Downlink], Mapping[str, float]]:
    """Observer for ``run(observe=...)``: the column ``log_likelihood`` of the trace. SIMULATION ONLY."""

    def observe(server: ServerState, down: Downlink) -> Mapping[str, float]:
        return {"log_likelihood": log_likelihood(model, down.theta, data, roster)}

    return observe


# ---- lines between parameters ---------------------------------------------------------------------------------------


def _mix(a: Any, b: Any, t: float, leaf: int | None, seen: list[int]) -> Any:
    """The point a + t (b - a), in all arrays or in the ``leaf``-th alone; whatever is no float stays as in ``a``."""
    if isinstance(a, Mapping):
        return {name: _mix(a[name], b[name], t, leaf, seen) for name in a}
    if isinstance(a, tuple | list):
        parts = [_mix(x, y, t, leaf, seen) for x, y in zip(a, b, strict=True)]
        return type(a)(*parts) if hasattr(a, "_fields") else type(a)(parts)
    if is_dataclass(a) and not isinstance(a, type):
        own = [f.name for f in fields(a) if f.init]
        return replace(a, **{name: _mix(getattr(a, name), getattr(b, name), t, leaf, seen) for name in own})
    if not isinstance(a, float | np.ndarray) or np.asarray(a).dtype.kind != "f":
        return a
    seen[0] += 1
    return a + t * (b - a) if leaf is None or leaf == seen[0] - 1 else a


def _lines(theta: Theta, others: list[Theta]) -> Iterator[tuple[str, Callable[[float], Theta]]]:
    """Lines from ``a`` to each of the ``others``: all arrays together, then one array at a time."""
    count = [0]
    _mix(theta, theta, 0.0, None, count)
    for i, b in enumerate(others):
        for leaf in (None, *range(count[0])) if count[0] > 1 else (None,):
            words = "all entries" if leaf is None else f"array {leaf + 1} of {count[0]} of theta"
            yield f"{words}, line {i + 1}", lambda t, b=b, leaf=leaf: _mix(theta, b, t, leaf, [0])  # type: ignore[misc]


def _slope(function: Callable[[Theta], float], line: Callable[[float], Theta]) -> tuple[float, float]:
    """First and second derivative of ``function`` along the line at 0, by five points."""
    h = _STEP
    l2, l1, mid, r1, r2 = (function(line(t)) for t in (-2 * h, -h, 0.0, h, 2 * h))
    # Five-point formulas, of an error of h^4: f' = (8 (r1 - l1) - (r2 - l2)) / 12 h.
    first = (8 * (r1 - l1) - (r2 - l2)) / (12 * h)
    return first, (16 * (l1 + r1) - (l2 + r2) - 30 * mid) / (12 * h * h)


# ---- laws -----------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # a wrong model may leave every domain; its nan is then the finding
def broken_law(model: Model, rows: Rows, theta: Theta, *, seed: int = 0) -> str:
    """Say which law a model breaks against its own ``log_likelihood`` and ``surrogate``; empty when it keeps all.

    1. ``T`` is the argmin of ``surrogate(., S)``: its slope vanishes at T(S) and no other parameter is lower.
    2. The E-step is a posterior mean. By Fisher's identity the slope of log p(y; theta) - R(theta) at theta is minus
       that of surrogate(., s_bar(theta)) at theta.
    3. EM raises log p - R at every step, and where EM stays, its slope is zero.

    A model without these members is asked nothing. What ``theta`` and T both hold fixed (entries that are equal, or
    zero, or a frozen array) cannot be told from a constraint of the model: give a theta in general position.
    """
    value: Any = getattr(model, "log_likelihood", None)
    surrogate: Any = getattr(model, "surrogate", None)
    penalty: Any = getattr(model, "penalty", lambda theta: 0.0)
    if value is None and surrogate is None:
        return ""
    rng = rng_for(seed, "likelihood")
    S = model.s_bar(theta, rows)
    others = [theta]
    for _ in range(8):  # parameters of random halves: close to T(S), and in other directions each
        half = rows[np.sort(rng.permutation(len(rows))[: max(len(rows) // 2, 2)])]
        try:
            others.append(model.T(model.s_bar(theta, half)))
        except DomainError:
            continue
    first = model.T(S)
    if surrogate is not None and (words := _no_argmin(surrogate, first, S, others)):
        return words
    if value is None:
        return ""

    def gain(at: Theta) -> float:
        return float(value(at, rows)) - float(penalty(at))

    if surrogate is not None:
        for at in (theta, _mix(first, theta, 0.5, None, [0]), first):
            if words := _no_posterior(gain, surrogate, model.s_bar(at, rows), at, [first, *others]):
                return words
    return _no_ascent(model, gain, S, rows, others)


def _no_argmin(surrogate: Any, first: Theta, S: F64, others: list[Theta]) -> str:
    best = float(surrogate(first, S))
    for name, line in _lines(first, others):
        end = float(surrogate(line(1.0), S))
        if end < best - 1e-10 * (1 + abs(best)):
            return f"T(S) is not the argmin of the surrogate: {best:.9g} there, {end:.9g} at another theta ({name})"
        slope, bend = _slope(lambda theta: float(surrogate(theta, S)), line)
        # The argmin may be off by _OFFSET of the way: a slope of up to that times the curvature is allowed.
        if not abs(slope) <= _OFFSET * abs(bend) + 1e-9 * (1 + abs(best)):  # nan is no slope of 0
            return (
                f"T(S) is not the argmin of the surrogate: its slope there is {slope:.3g} ({name}, curvature "
                f"{bend:.3g}, limit {_OFFSET:g} of it); look at that part of T"
            )
    return ""


def _no_posterior(
    gain: Callable[[Theta], float], surrogate: Any, S: F64, at: Theta, others: list[Theta]
) -> str:
    for name, line in _lines(at, others):
        # Fisher's identity: grad log p(y; theta) - grad R = -grad surrogate(theta, s_bar(theta)).
        left, bend = _slope(gain, line)
        right, curve = _slope(lambda theta: -float(surrogate(theta, S)), line)
        limit = _SLOPES * (abs(left) + abs(right) + abs(bend) + abs(curve)) + 1e-9 * (1 + abs(gain(at)))
        if not abs(left - right) <= limit:
            return (
                f"s_bar is not the posterior mean (Fisher's identity, {name}): the log-likelihood has slope {left:.6g}, "
                f"the surrogate at s_bar(theta) {right:.6g} (limit {limit:.2g}); look at s_bar, or at the two functions"
            )
    return ""


def _no_ascent(model: Model, gain: Callable[[Theta], float], s: F64, rows: Rows, others: list[Theta]) -> str:
    at = model.T(s)
    before = gain(at)
    for i in range(50):
        s = model.s_bar(at, rows)
        at = model.T(s)
        now = gain(at)
        # Jensen: log p - R never falls from theta_k to T(s_bar(theta_k)), but for rounding.
        if not now >= before - 1e-9 * (1 + abs(before)):
            return f"EM lowers the log-likelihood at step {i + 1}: from {before:.12g} to {now:.12g}"
        before = now
    moved = [np.inf, np.inf]
    for _ in range(2000):
        new = model.s_bar(at, rows)
        moved = [moved[1], float(np.linalg.norm(new - s)) / (1 + float(np.linalg.norm(s)))]
        s, at = new, model.T(new)
        if moved[1] < 1e-9:
            break
    rate = moved[1] / moved[0] if moved[0] else 0.0
    # EM's last error times the rate, summed over all steps to come (a geometric series).
    left = moved[1] / max(1 - rate, 1e-6)  # how far the limit still is, by the rate of the last two steps
    if left > 1e-5:
        return ""  # EM is too slow here to judge where it stays; the other laws stand
    for name, line in _lines(at, others):
        slope, bend = _slope(gain, line)
        limit = (1e-4 + 100 * left) * abs(bend) + 1e-7 * (1 + abs(before))
        if not abs(slope) <= limit:
            return (
                f"EM stays where the log-likelihood still has slope {slope:.3g} ({name}, limit {limit:.2g}); "
                "look at T and s_bar, or give the model's penalty(theta)"
            )
    return ""
