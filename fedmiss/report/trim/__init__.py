"""TRIM's models of counts with holes: counts ~ site + time, for those who use them and as a baseline.

The incumbent of bird monitoring: model 1 (no change), 2 (slopes between change points, chosen stepwise on request),
3 (one effect for each time point), with months, covariates, weights, overdispersion and serial correlation.

Source: Pannekoek and van Strien (2001), TRIM 3 manual; van der Loo, Bogaart and Pannekoek, rtrim. Differs from rtrim
in: iterates to 1e-10 instead of 1e-5; standard errors are not rounded to integers; months may have covariates; years
are positions on an axis, so a gap between them keeps its length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedmiss.errors import ConfigError, InputError, listed
from fedmiss.report.trim.cells import (
    Cells,
    Covariates,
    Weights,
    check_links,
    make_cells,
    rows_of,
    stray_times,
)
from fedmiss.report.trim.design import TrimSettings, make_design, positions_of
from fedmiss.report.trim.fit import Step, Stratum, TrimFit
from fedmiss.report.trim.solve import estimate, information
from fedmiss.report.words import number
from fedmiss.settings import kinds_checked

__all__ = ["Stratum", "TrimFit", "TrimSettings", "fit_trim"]

_P_REMOVE, _P_ENTER = 0.2, 0.15  # TRIM's and rtrim's own
_SCATTER = 1.5  # overdispersion from which a note is given


@kinds_checked
def fit_trim(
    site: ArrayLike,
    time: ArrayLike,
    count: ArrayLike,
    settings: TrimSettings | None = None,
    *,
    month: ArrayLike | None = None,
    weights: Weights = None,
    covariates: Covariates = None,
) -> TrimFit:
    """Fit one of TRIM's models to counts in long form.

    Without serial correlation this is maximum likelihood of a Poisson GLM with site effects; with it, generalised
    estimating equations with ``R = rho^|i-j|`` over the time points (of one month) start from that fit. Weights
    count in totals only; they do not change the expected counts.

    Parameters
    ----------
    site, time, count : (N,) one row per cell; a NaN count, or a cell that is not listed, is missing. Times are numbers, as
        years, so that a gap keeps its length; numbers written as texts are numbers. Dates are a year apart (a month, where
        a year has several), and other texts are names of points one step apart
    month : (N,) a second time axis inside the time points (``count ~ site + time + month``), or None
    weights : (N,), or mapping site -> weight, in the totals; None for 1 each
    covariates : mapping name -> (N,) categories of the sites; slopes or time effects differ between them

    Raises
    ------
    ConfigError : an unknown model or change point
    InputError : columns of different lengths, doubled cells, counts below 0 or that are no number, or counts that do not
        determine the model; each says where.

    Examples
    --------
    >>> import fedmiss
    >>> site, year = ["a", "a", "b", "b"], [2001, 2002, 2001, 2002]
    >>> fit = fedmiss.fit_trim(site, year, [4, 6, 10, float("nan")])
    >>> fit.index()["index"].round(6).to_list()
    [1.0, 1.5]
    """
    settings = settings or TrimSettings()
    if settings.model not in (1, 2, 3):
        raise ConfigError(f"the model is {settings.model}; TRIM's models are 1, 2 and 3.")
    if settings.model != 2 and (settings.changepoints or settings.stepwise):
        raise ConfigError(
            f"change points, and --stepwise, belong to model 2, and the model is {settings.model}. Say --model 2, or leave "
            "them out."
        )
    if settings.stepwise and settings.changepoints == "auto":
        raise ConfigError(
            "--stepwise does nothing beside --changepoints auto, which removes change points step by step. Leave "
            "--stepwise out."
        )
    rows = rows_of(site, time, count, month)
    cells = make_cells(rows, weights, covariates, every_year=settings.model != 3)
    notes = stray_times(rows)
    if settings.model == 3:
        check_links(cells)
    if settings.model != 2:
        return _fit(cells, settings, (), notes=notes)
    thin = settings.stepwise
    if isinstance(settings.changepoints, str):
        if settings.changepoints not in ("auto", "all"):
            raise ConfigError(
                f"changepoints is {settings.changepoints!r}; give time points, or auto, or all."
            )
        points, left_out = _those_with_counts(cells)
        notes += left_out
        thin = thin or settings.changepoints == "auto"
    else:
        points = positions_of(settings.changepoints, cells.times)
    if thin:
        return _stepwise(cells, settings, points or (0,), notes)
    return _fit(cells, settings, points, notes=notes)


def _fit(
    cells: Cells,
    settings: TrimSettings,
    changepoints: tuple[int, ...],
    steps: tuple[Step, ...] = (),
    notes: tuple[str, ...] = (),
) -> TrimFit:
    design = make_design(cells, settings.model, changepoints)
    estimated = estimate(cells, design, serial=settings.serial_correlation)
    f, seen = np.nan_to_num(cells.counts), cells.seen
    df = int(seen.sum()) - len(cells.sites) - estimated.beta.size
    chi2 = float(np.where(seen, (f - estimated.mu) ** 2 / estimated.mu, 0.0).sum())
    scattered = df > 0 and chi2 > 1e-12 * f.sum()  # less is rounding
    # Pearson's estimate of the overdispersion.
    sigma2 = chi2 / df if settings.overdispersion and scattered else 1.0
    positive = seen & (f > 0)
    # Deviance: 2 sum f log(f / mu); the terms f - mu add up to 0 in the Poisson fit, which fits every site's total.
    lr = 2.0 * float((f[positive] * np.log(f[positive] / estimated.mu[positive])).sum())
    if settings.overdispersion and not scattered:
        notes = (
            *notes,
            "there are no more counts than parameters, or the model meets each exactly, so overdispersion cannot be "
            "estimated: standard errors and classes are those of Poisson counts.",
        )
    if not settings.overdispersion and df > 0 and chi2 > _SCATTER * df:
        notes = (
            *notes,
            f"the counts vary {number(chi2 / df)} times as much as the model's Poisson counts would: standard errors "
            "and classes are too sure without overdispersion (--overdispersion).",
        )
    info = information(cells, design, estimated, sigma2)
    return TrimFit(settings, cells, design, estimated, info, sigma2, df, chi2, lr, steps, notes)


def _those_with_counts(cells: Cells) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return all change points but those whose stretch has no positive count; say which these are."""
    gone: list[str] = []
    counted = cells.seen.reshape(-1, len(cells.times)).any(axis=0)
    points = tuple(range(int(np.argmax(counted)), len(cells.times) - 1))
    while True:
        try:
            make_design(cells, 2, points)
            beside = f"the stretch beside {'them' if gone[1:] else 'it'}"
            said = f"no change point at {listed(gone, 4)}: no positive count in {beside}."
            return points, (said,) if gone else ()
        except InputError as error:
            at = int(error.fields["changepoint"])
            if points == (at,):
                raise
            points = tuple(point for point in points if point != at)
            gone.append(str(cells.times[at]))


def _stepwise(
    cells: Cells, settings: TrimSettings, points: tuple[int, ...], notes: tuple[str, ...]
) -> TrimFit:
    """Drop the change point with the largest p-value above 0.2; take back one with a p-value below 0.15; repeat."""
    fit = _fit(cells, settings, points)
    steps: list[Step] = []
    removed: list[int] = []
    # Sets of change points that were fitted: a step that leads back to one of them would go round for ever.
    visited = {points}
    while len(fit.design.changepoints) > 1:
        points = fit.design.changepoints
        chances = [fit.wald_change(at)[2] for at in range(len(points))]
        worst = int(np.argmax(chances))
        if chances[worst] <= _P_REMOVE:
            break
        gone = points[worst]
        steps.append({"step": "deleted", "changepoint": cells.times[gone], "p": chances[worst]})
        # Only points removed in earlier steps may come back: the one of this step has just failed.
        candidates = [point for point in removed if point not in points]
        fit = _fit(cells, settings, tuple(point for point in points if point != gone))
        removed.append(gone)
        best, best_p = None, _P_ENTER
        for back in candidates:
            trial = _fit(cells, settings, tuple(sorted((*fit.design.changepoints, back))))
            trial_p = trial.wald_change(trial.design.changepoints.index(back))[2]
            if trial_p < best_p:
                best, best_p = trial, trial_p
                entered = back
        if best is not None and best.design.changepoints not in visited:
            fit = best
            steps.append({"step": "taken back", "changepoint": cells.times[entered], "p": best_p})
        visited.add(fit.design.changepoints)
    return _fit(cells, settings, fit.design.changepoints, tuple(steps), notes)
