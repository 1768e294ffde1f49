"""Figures of how a model was chosen and fitted."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import NullFormatter

from fedmiss.report.analysis import Analysis
from fedmiss.report.findings import Findings
from fedmiss.report.prose import progress_words
from fedmiss.report.style import BLUE, GREY, INK, ORANGE, SKY, Plot, axes, figure
from fedmiss.report.words import count, number


def cross_validation(findings: Findings) -> Plot | None:
    """Draw the held-out deviance of each candidate."""
    if findings.data.cv is None or findings.data.cv.empty:
        return None
    cv = findings.data.cv
    weighted = cv.assign(deviance=cv["deviance"] * cv["n"])
    table = weighted.groupby(["candidate", "model", "rank"], as_index=False)[["deviance", "n"]].sum()
    table = table.assign(deviance=table["deviance"] / table["n"])
    fig, ax = axes(height=2.9)
    colours, marks = (BLUE, ORANGE, INK, GREY, SKY), "osD^v"
    for i, (model, part) in enumerate(table.groupby("model")):
        part = part.sort_values("rank")
        mark, colour = marks[i % 5], colours[i % 5]
        ax.plot(part["rank"], part["deviance"], marker=mark, ms=4, lw=1.2, color=colour, label=str(model))
    ax.set_xticks(sorted(table["rank"].unique()))
    ax.legend(frameon=False, fontsize=8.5)
    ax.set_xlabel("rank of the interaction")
    ax.set_ylabel("held-out deviance per visit")
    best = table.iloc[int(table["deviance"].to_numpy().argmin())]
    caption = "Deviance of visits that the fit did not see (lower is better), for each candidate model."
    alt = (
        f"Held-out deviance of {len(table)} candidates; lowest, {number(best['deviance'])} per visit, for "
        f"{best['model']} with rank {int(best['rank'])}."
    )
    return Plot("cv", "Model choice", caption, alt, fig, table)


def convergence(analysis: Analysis) -> Plot | None:
    """Draw the norm of the mean field and the bytes sent, per round."""
    trace = analysis.data.trace
    if trace is None or trace.empty:
        return None
    megabytes = (trace["bytes_up"] + trace["bytes_down"]).cumsum() / 1e6
    # a journal holds no bytes of rounds: an organisation's own report has none
    known = bool(megabytes.iloc[-1] > 0)
    fig = figure(height=3.4 if known else 1.9)
    top, *rest = fig.subplots(1 + known, 1, sharex=True, squeeze=False)[:, 0]
    norm = np.sqrt(trace["h_norm2"].clip(lower=0.0))
    one = len(trace) == 1
    top.plot(trace["round"], norm.where(norm > 0), color=BLUE, lw=1.4, marker="o" if one else None)
    if (norm > 0).any():
        top.set_yscale("log")
        top.yaxis.set_major_formatter("{x:g}")
        top.yaxis.set_minor_formatter(NullFormatter())
    top.set_ylabel("change" if analysis.data.fact("method") == "fast" else "||h||")
    for low in rest:
        low.plot(trace["round"], megabytes, color=ORANGE, lw=1.4, marker="o" if one else None)
        low.set_ylabel("MB sent\n(cumulative)")
        low.set_ylim(bottom=0)
    (rest or [top])[-1].set_xlabel("round")
    what = progress_words(analysis)
    caption = (
        f"Above: {what}, which is 0 at a solution. Below: size of all messages so far, in this fit alone; no record is "
        "among them."
        if known
        else f"{what[0].upper()}{what[1:]}, which is 0 at a solution."
    )
    sent = f"; {number(float(megabytes.iloc[-1]))} MB were sent" if known else ""
    alt = (
        f"Convergence over {count(trace['round'].max())} rounds: the {what} goes from {number(float(norm.iloc[0]))} to "
        f"{number(float(norm.iloc[-1]))}{sent}."
    )
    data = trace[["round", "h_norm2", "objective", "active", "bytes_up", "bytes_down", "seconds"]]
    return Plot("convergence", "Convergence and communication", caption, alt, fig, data)
