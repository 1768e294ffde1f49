"""A fitted TRIM model: totals, indices, slopes, tests; whole and for each category of a covariate."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import pandas as pd
from scipy.special import chdtrc, stdtr

from fedmiss.arrays import F64, Bool
from fedmiss.errors import ConfigError
from fedmiss.notebook import card
from fedmiss.report.classes import classify, normal_quantile, ratio_to_base
from fedmiss.report.trim.cells import Cells, Label
from fedmiss.report.trim.design import Design, TrimSettings
from fedmiss.report.trim.solve import Estimate, Information


class Step(TypedDict):
    """A step of the stepwise choice: a change point ``deleted`` or ``taken back``, and its p-value."""

    step: str
    changepoint: Label
    p: float


def limits(value: F64, se: F64, level: float | None) -> dict[str, F64]:
    """Return the ends ``lo`` and ``hi`` of intervals that are symmetric on the log scale; nothing without a level.

    ``value * exp(-+ z se / value)``, as in the report: both ends are positive. A value of 0 has no interval (NaN).
    """
    if level is None:
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):
        half = normal_quantile(level) * np.where(value > 0, se / value, np.nan)
    return {"lo": value * np.exp(-half), "hi": value * np.exp(half)}


def _wald(value: F64, V: F64, df: int) -> tuple[float, int, float]:
    """Wald's statistic of contrasts with covariance ``V``, its degrees of freedom, and the p-value."""
    # Contrasts may be linearly dependent (deviations from a line are): hence a pseudo-inverse.
    W = float(value @ np.linalg.pinv(V, rcond=1e-10) @ value)
    return W, df, float(chdtrc(df, W))


@dataclass(frozen=True)
class Stratum:
    """Totals of some sites: ``model``, ``imputed`` (J,) with ``var_model``, ``var_imputed`` (J, J)."""

    model: F64
    var_model: F64
    imputed: F64
    var_imputed: F64


@dataclass(frozen=True, repr=False, eq=False)
class TrimFit:
    """A fitted model; in an imputed total an observed count is kept and a missing one is its expectation ``mu``.

    ``chi2`` is Pearson's, ``likelihood_ratio`` against the saturated model, both with ``df`` degrees of freedom;
    ``steps`` lists the steps of the stepwise choice of change points.

    Examples
    --------
    >>> import fedmiss
    >>> fit = fedmiss.fit_trim(["a", "a", "b", "b"], [1, 2, 1, 2], [4, 6, 10, 15])
    >>> fit.totals()["total"].round(6).to_list()
    [14.0, 21.0]
    >>> round(float(fit.overall()["multiplicative"].iloc[0]), 6)
    1.5
    """

    settings: TrimSettings
    cells: Cells
    design: Design
    estimate: Estimate
    info: Information
    sigma2: float
    df: int
    chi2: float
    likelihood_ratio: float
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    _kept: dict[str, Stratum] = field(default_factory=dict, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"TrimFit(model {self.settings.model}, {len(self.sites)} sites, chi2 {self.chi2:.4g} with {self.df} df)"

    def _repr_html_(self) -> str:
        """Show the slope, its class, and the tests in a notebook."""
        slope = self.overall().iloc[0]
        return card(
            f"TRIM, model {self.settings.model}",
            {
                "trend": slope["label"],
                "change per year": f"{slope['multiplicative']:.4f} (standard error {slope['multiplicative_se']:.4f})",
                "sites": len(self.sites),
                "time points": f"{self.cells.times[0]} to {self.cells.times[-1]}",
                "chi-square": f"{self.chi2:.4g} with {self.df} degrees of freedom",
                "overdispersion": self.sigma2 if self.settings.overdispersion else None,
                "notes": self.notes,
            },
        )

    # -- what was fitted ---------------------------------------------------------------------------------------

    @property
    def sites(self) -> tuple[Label, ...]:
        """Sites with a positive count."""
        return self.cells.sites

    @property
    def times(self) -> tuple[Label, ...]:
        """Time points of the totals."""
        return self.cells.times

    @property
    def dropped(self) -> tuple[Label, ...]:
        """Sites left out because they have no positive count."""
        return self.cells.dropped

    @property
    def mu(self) -> F64:
        """Expected counts, (I, T)."""
        return self.estimate.mu

    @property
    def filled(self) -> F64:
        """Counts, and where there are none what is expected, (I, T): what imputed totals are made of."""
        return np.where(self.cells.seen, self.cells.counts, self.mu)

    @property
    def rho(self) -> float:
        """Serial correlation; 0 when it was not estimated."""
        return self.estimate.rho

    @property
    def changepoints(self) -> tuple[Label, ...]:
        """Change points of model 2, as time points."""
        return tuple(self.times[changepoint] for changepoint in self.design.changepoints)

    @property
    def aic(self) -> float:
        """TRIM's AIC up to a constant: likelihood ratio minus twice the degrees of freedom."""
        return self.likelihood_ratio - 2 * self.df

    @property
    def gamma(self) -> F64:
        """Log time effects of model 3 against the first time point, (J,)."""
        return np.append(0.0, self.estimate.beta[self.design.where(kind="time", covariate=-1)])

    @property
    def var_gamma(self) -> F64:
        """Covariance of ``gamma``, (J, J)."""
        at = self.design.where(kind="time", covariate=-1)
        out = np.zeros((len(at) + 1,) * 2)
        out[1:, 1:] = self.info.var_beta[np.ix_(at, at)]
        return out

    # -- totals, indices, slopes -------------------------------------------------------------------------------

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the strata: ``all``, and ``covariate=category`` for each category."""
        return tuple(name for name, _, _ in self.cells.groups())

    def stratum(self, name: str = "all") -> Stratum:
        """Return the totals of a stratum with their covariances.

        Raises
        ------
        ConfigError : an unknown stratum; the message lists them
        """
        if name not in self._kept:
            self._kept[name] = self._totals(self._members(name))
        return self._kept[name]

    def n_sites(self, name: str = "all") -> int:
        """Return how many sites with a positive count a stratum has."""
        return int(self._members(name).sum())

    def _members(self, name: str) -> Bool:
        masks = {stratum: mask for stratum, _, mask in self.cells.groups()}
        if name not in masks:
            raise ConfigError(f"there is no stratum {name!r}; there are {', '.join(masks)}.")
        return masks[name]

    def _totals(self, members: Bool) -> Stratum:
        """Sum over sites and months, with covariances by the delta method (TRIM 3 manual, appendix)."""
        cells, estimate, info = self.cells, self.estimate, self.info
        _n, M, J = cells.shape
        seen, mu = cells.seen, np.where(members[:, None], cells.weights * estimate.mu, 0.0)
        A = np.tile(np.eye(J), M)  # (J, T): sum over months

        def of_totals(m: F64) -> F64:
            # d total / d alpha_i = m_i; d total / d beta, alpha profiled = sum_i m_i x_i - (m_i / d_i) W_i' x_i
            # Given beta the site effects are independent with variance 1 / d_i.
            by_site = m @ A.T / np.sqrt(info.d)[:, None]
            G = np.zeros((A.shape[1], info.var_beta.shape[0]))
            for c, X in enumerate(self.design.X):
                mine = self.design.site_class == c
                G += m[mine].sum(axis=0)[:, None] * X
                G -= (m[mine] / info.d[mine][:, None]).T @ (info.W[mine] @ X)
            D = A @ G
            return by_site.T @ by_site + D @ info.var_beta @ D.T

        # Covariance of the counts themselves: sigma2 mu^(1/2) R mu^(1/2) within a month; months of a year are independent.
        root = np.where(members[:, None] & seen, cells.weights * np.sqrt(estimate.mu), 0.0)
        observed = np.zeros((J, J))
        for month in range(M):
            part = root[:, month * J : (month + 1) * J]
            observed += self.sigma2 * estimate.R * (part.T @ part)
        var_model = of_totals(mu)
        # Replace what the fitted values of observed cells contribute by what the counts themselves do.
        var_imputed = var_model - of_totals(np.where(seen, mu, 0.0)) + observed
        filled = np.where(members[:, None], cells.weights * self.filled, 0.0)
        return Stratum(A @ mu.sum(axis=0), var_model, A @ filled.sum(axis=0), var_imputed)

    def _chosen(self, which: str, stratum: str = "all") -> tuple[F64, F64]:
        if which not in ("imputed", "model"):
            raise ConfigError(f"which is {which!r}; it must be imputed or model.")
        chosen = self.stratum(stratum)
        return (
            (chosen.imputed, chosen.var_imputed) if which == "imputed" else (chosen.model, chosen.var_model)
        )

    @property
    def total_model(self) -> F64:
        """Expected totals of all sites, (J,)."""
        return self.stratum().model

    @property
    def var_model(self) -> F64:
        """Covariance of ``total_model``, (J, J)."""
        return self.stratum().var_model

    @property
    def total_imputed(self) -> F64:
        """Totals of all sites with missing counts filled, (J,)."""
        return self.stratum().imputed

    @property
    def var_imputed(self) -> F64:
        """Covariance of ``total_imputed``, (J, J)."""
        return self.stratum().var_imputed

    def totals(
        self, which: str = "imputed", stratum: str = "all", level: float | None = None
    ) -> pd.DataFrame:
        """Return ``time``, ``total``, ``se`` (birds); with a ``level`` also ``lo`` and ``hi`` (see ``limits``)."""
        total, var = self._chosen(which, stratum)
        se = np.sqrt(np.diag(var))
        return pd.DataFrame({"time": self.times, "total": total, "se": se, **limits(total, se, level)})

    def _as_time(self, label: Label) -> Label:
        """Return a time point as the fit names it: years that were texts are numbers here."""
        if isinstance(label, str) and label not in self.times:
            with contextlib.suppress(ValueError):
                return next((time for time in self.times if time == float(label)), label)
        return label

    def index(
        self,
        which: str = "imputed",
        base: Label | Sequence[Label] | None = None,
        stratum: str = "all",
        level: float | None = None,
    ) -> pd.DataFrame:
        """Return ``time``, ``index``, ``se`` against a base time point or a list of them (default: the first).

        With a ``level`` also ``lo`` and ``hi`` (see ``limits``).
        """
        total, var = self._chosen(which, stratum)
        base = self.times[0] if base is None else base
        given: list[Any] = [base] if isinstance(base, str) or np.ndim(base) == 0 else list(base)  # type: ignore[arg-type]
        wanted = [self._as_time(label) for label in given]
        mask = np.isin(np.asarray(self.times), wanted)
        if lacking := [label for label in wanted if label not in self.times]:
            raise ConfigError(
                f"the base {lacking[0]!r} is not among the time points {self.times[0]} to {self.times[-1]}."
            )
        ratio, se = ratio_to_base(total, var, mask)
        return pd.DataFrame({"time": self.times, "index": ratio, "se": se, **limits(ratio, se, level)})

    def overall(
        self,
        which: str = "imputed",
        rule: str = "rtrim",
        stratum: str = "all",
        window: tuple[Label, Label] | None = None,
        *,
        through_base: bool = False,
    ) -> pd.DataFrame:
        """Return the overall slope: OLS of log totals on time, sandwich standard error, class; one row.

        Parameters
        ----------
        window : first and last time point, both included; default all
        through_base : the line passes through the first total instead of near it

        Returns
        -------
        ``slope``, ``slope_se`` (log per time step), ``multiplicative``, ``multiplicative_se``, ``p``,
        ``trend_class``, ``label``
        """
        total, var = self._chosen(which, stratum)
        time = self.cells.time
        if window is not None:
            window = self._as_time(window[0]), self._as_time(window[1])
            if lacking := [label for label in window if label not in self.times]:
                raise ConfigError(
                    f"{lacking[0]!r} is not among the time points {self.times[0]} to {self.times[-1]}."
                )
            first, last = (self.times.index(label) for label in window)
            if first >= last:
                raise ConfigError(f"the window {window[0]} to {window[1]} has no two time points in order.")
            inside = slice(first, last + 1)
            total, var, time = total[inside], var[inside, inside], time[inside]
        J = total.size
        if through_base:
            u = time - time[0]
            # Slope of a line through the first point: c @ (log total - log total_1), hence the weight of the first total.
            c = u / (u @ u)
            c[0] = -c.sum()
        else:
            c = (time - time.mean()) / ((time - time.mean()) ** 2).sum()
        safe = np.where(total < 1e-6, 1.0, total)  # rtrim: a zero total enters as log 1
        slope = float(c @ np.log(safe))
        # Delta method: var log total = var / (total total'), with the covariances between the years in it.
        se = float(np.sqrt(max((c / safe) @ var @ (c / safe), 0.0)))
        p_value = 2 * stdtr(J - 2, -abs(slope / se)) if J > 2 and se > 0 else np.nan
        kind = classify(slope, se, J, rule)
        factor = np.exp(slope)
        columns = "slope slope_se multiplicative multiplicative_se p trend_class label".split()
        return pd.DataFrame(
            [(slope, se, factor, factor * se, p_value, kind.name, kind.label)], columns=columns
        )

    # -- parameters and tests ----------------------------------------------------------------------------------

    def coefficients(self) -> pd.DataFrame:
        """Return the parameters, one row each, slopes per time step of their stretch.

        Columns: ``kind``, ``covariate``, ``category``, ``from``, ``upto``, ``additive``,
        ``se``, ``multiplicative``, ``multiplicative_se``.
        """
        cells, rows = self.cells, []
        ends = [*self.design.changepoints[1:], len(self.times) - 1]
        for i, term in enumerate(self.design.terms):
            if term.kind == "slope":
                start, upto = self.times[self.design.changepoints[term.at]], self.times[ends[term.at]]
            else:
                start = upto = cells.months[term.at] if term.kind == "month" else self.times[term.at]
            covariate: str = ""
            category: Label = ""
            if term.covariate >= 0:
                covariate = cells.covariates[term.covariate]
                category = cells.labels[term.covariate][term.category]
            value, se = self.estimate.beta[i], np.sqrt(self.info.var_beta[i, i])
            rows.append(
                (term.kind, covariate, category, start, upto, value, se, np.exp(value), np.exp(value) * se)
            )
        columns = "kind covariate category from upto additive se multiplicative multiplicative_se".split()
        return pd.DataFrame(rows, columns=columns)

    def _line(self) -> tuple[F64, F64]:
        """Slope and deviations (J + 1,) of the time effects, and their covariance."""
        x = self.cells.time - self.cells.time.mean()
        row = x / (x @ x)
        # Projections: the least-squares slope of the time effects, and what is left of them beside level and slope.
        P = np.vstack([row, np.eye(x.size) - 1.0 / x.size - np.outer(x, row)])
        return P @ self.gamma, P @ self.var_gamma @ P.T

    def deviations(self) -> pd.DataFrame:
        """Split the time effects of model 3 into a straight line and deviations: rows ``slope``, then each time point."""
        value, var = self._line()
        se = np.sqrt(np.maximum(np.diag(var), 0.0))
        return pd.DataFrame(
            {
                "time": ["slope", *self.times],
                "additive": value,
                "se": se,
                "multiplicative": np.exp(value),
                "multiplicative_se": np.exp(value) * se,
            }
        )

    def _wald(self, L: F64) -> tuple[float, int, float]:
        return _wald(L @ self.estimate.beta, L @ self.info.var_beta @ L.T, int(np.linalg.matrix_rank(L)))

    def wald(self) -> pd.DataFrame:
        """Return TRIM's Wald tests that fit the model: ``test``, ``of``, ``statistic``, ``df``, ``p``.

        ``slope`` (model 2, one slope), ``change of slope`` at each change point (covariates included),
        ``deviations from a line`` (model 3 without covariates), ``covariate``.
        """
        rows: list[tuple[str, Label, float, int, float]] = []
        design, unit = self.design, np.eye(self.estimate.beta.size)
        if self.settings.model == 3 and not self.cells.covariates and len(self.times) > 2:
            rows.append(("deviations from a line", "time effects", *self.wald_deviations()))
        for place, name in enumerate(self.cells.covariates if self.settings.model > 1 else ()):
            rows.append(("covariate", name, *self._wald(unit[design.where(covariate=place)])))
        if self.settings.model == 2:
            single = design.changepoints == (0,) and not self.settings.changepoints
            for place, at in enumerate(self.changepoints):
                rows.append(("slope" if single else "change of slope", at, *self.wald_change(place)))
        return pd.DataFrame(rows, columns=["test", "of", "statistic", "df", "p"])

    def wald_change(self, k: int) -> tuple[float, int, float]:
        """Test the change of all slopes at change point number ``k``: Wald statistic, its df, p-value."""
        unit = np.eye(self.estimate.beta.size)
        L = unit[self.design.where(kind="slope", at=k)]
        # All categories of all covariates at once: their slopes before
        # and after the change point are equal under the hypothesis.
        return self._wald(L - unit[self.design.where(kind="slope", at=k - 1)] if k > 0 else L)

    def wald_deviations(self) -> tuple[float, int, float]:
        """Test the deviations of the time effects from a straight line: Wald statistic, its df, p-value."""
        value, var = self._line()
        return _wald(value[1:], var[1:, 1:], len(self.times) - 2)

    def goodness_of_fit(self) -> pd.DataFrame:
        """Return ``test``, ``statistic``, ``df``, ``p`` for Pearson's chi-square and the likelihood ratio."""
        rows = [
            (name, v, self.df, float(chdtrc(self.df, v)) if self.df > 0 else np.nan)
            for name, v in (("chi-square", self.chi2), ("likelihood ratio", self.likelihood_ratio))
        ]
        return pd.DataFrame(rows, columns=["test", "statistic", "df", "p"])
