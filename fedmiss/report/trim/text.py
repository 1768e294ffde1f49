"""A fitted TRIM model in plain words and aligned columns, for a terminal."""

from __future__ import annotations

import pandas as pd

from fedmiss.report.trim.fit import Shown, TrimFit

__all__ = ["describe"]


def describe(fit: TrimFit, shown: Shown = Shown()) -> str:
    """Return what ``fedmiss trim`` prints: fit, tests, slopes, then totals and indices of every stratum."""
    s, c = fit.settings, fit.cells
    what = {1: "no change over time", 2: "slopes between change points", 3: "one effect for each time point"}[
        s.model
    ]
    n = int(c.seen.sum())
    lines = [
        f"Model {s.model} ({what}): {len(c.sites)} sites, {len(c.times)} time points"
        + (f", {len(c.months)} months" if len(c.months) > 1 else "")
        + f", {n} counts, {c.counts.size - n} cells to fill ({1 - n / c.counts.size:.0%})."
    ]
    if c.dropped:
        named = ", ".join(str(d) for d in c.dropped[:5]) + (", ..." if len(c.dropped) > 5 else "")
        lines.append(f"Left out, because they have no positive count: {len(c.dropped)} sites ({named}).")
    if s.overdispersion:
        lines.append(f"Overdispersion: {fit.sigma2:.4g} times the variance of a Poisson count.")
    if s.serial_correlation:
        lines.append(f"Serial correlation of neighbouring time points: {fit.rho:.3f}.")
    for step in fit.steps:
        lines.append(f"Change point {step['changepoint']} {step['step']} (p {step['p']:.4f}).")
    if fit.changepoints:
        lines.append(f"Change points: {', '.join(str(p) for p in fit.changepoints)}.")
    lines += ["", "Goodness of fit", _table(fit.goodness_of_fit()), f"AIC (up to a constant): {fit.aic:.2f}"]
    wald = fit.wald()
    if len(wald):
        lines += ["", "Wald tests", _table(wald)]
    parameters = fit.coefficients()
    if len(parameters) and (s.model == 2 or len(parameters) <= 24):
        kept = parameters[[k for k in parameters if k not in ("covariate", "category") or c.covariates]]
        lines += ["", "Parameters (log scale, and as factors)", _table(kept)]
    for name in fit.strata:
        lines += ["", "All sites" if name == "all" else f"Sites with {name.replace('=', ' = ')}"]
        for which in ("imputed", "model"):
            o = fit.overall(which, shown.rule, name).iloc[0]
            slope = round(o["slope"], 5) + 0.0  # no minus sign before a zero
            lines.append(
                f"  slope, {which:8s}{slope:10.5f} (SE {o['slope_se']:.5f}), per step x {o['multiplicative']:.5f} "
                f"(SE {o['multiplicative_se']:.5f}): {o['label']}"
            )
        t, m = fit.totals(stratum=name), fit.totals("model", name)
        i = fit.index(base=shown.base, stratum=name, level=shown.level)
        joined = pd.DataFrame(
            {
                "time": t["time"],
                "imputed": t["total"],
                "SE": t["se"],
                "index": i["index"],
                "SE ": i["se"],
                **({} if shown.level is None else {f"{shown.level:.4g} from": i["lo"], "to": i["hi"]}),
                "model": m["total"],
                "SE  ": m["se"],
            }
        )
        lines.append(_table(joined))
    return "\n".join(lines)


def _table(frame: pd.DataFrame) -> str:
    return frame.to_string(
        index=False, float_format=lambda v: f"{v:.4f}" if abs(v) < 100 else f"{v:,.1f}", na_rep=""
    )
