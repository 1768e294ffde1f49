"""Monthly totals with their replicates, and the index, trend, season and curve that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError
from fedmiss.report.classes import MIN_DRAWS, NOT_CLASSIFIED, interval, normal_quantile
from fedmiss.report.loess import choose_span, loess
from fedmiss.report.scatter import contrast_error, scatter_of_years
from fedmiss.report.slopes import trend_row
from fedmiss.report.years import Years, base_years, decimal_year, make_years

MIN_YEARS = 5  # fewer complete years than this: a slope is reported, a class is refused
# of the largest total: years without a find, whose logarithm is the model's and not the counts'
NOUGHT = 1e-6


@dataclass(frozen=True, eq=False)
class MonthlySeries:
    """The monthly totals of a species over sites, with what is known about them. Make one with ``of``.

    The methods return the tables that the functions of the same purpose in ``trends`` and ``changes`` describe.

    Attributes
    ----------
    totals : (L,) birds at standard effort, summed over sites
    months : L rows, the columns of schema ``months``
    draws : (B, L) bootstrap replicates of the totals, in birds; None when there are none: then every limit is NaN and
        no class is given
    n_observed : (L,) number of cells with a count in each month, or None when not known; years without any are left
        out of trends
    """

    totals: F64
    months: pd.DataFrame
    draws: F64 | None = None
    n_observed: F64 | None = None

    @classmethod
    def of(
        cls,
        totals: ArrayLike,
        months: pd.DataFrame,
        draws: ArrayLike | None = None,
        n_observed: ArrayLike | None = None,
    ) -> MonthlySeries:
        """Check the shapes.

        Raises
        ------
        ConfigError : totals, draws or numbers of counts that do not have one value for each month, a table of months
            that is none, or has one twice
        """
        given: object = months  # of whatever type
        if not (isinstance(given, pd.DataFrame) and {"year", "month_of_year"} <= set(given.columns)):
            raise ConfigError("months is no table of pandas with the columns year and month_of_year.")
        if not months["month_of_year"].isin(range(1, 13)).all():
            raise ConfigError("some month_of_year is none of 1 to 12.")
        if (twice := months.duplicated(["year", "month_of_year"])).any():
            year, month = months.loc[twice, ["year", "month_of_year"]].iloc[0]
            raise ConfigError(f"month {month} of {year} is there twice; add up its totals.")
        values = np.asarray(totals, dtype=np.float64)
        if values.shape != (len(months),):
            raise ConfigError(
                f"there are {values.size} monthly totals for {len(months)} months; give one for each month."
            )
        replicates = None if draws is None else np.asarray(draws, dtype=np.float64)
        if replicates is not None and (replicates.ndim != 2 or replicates.shape[1] != values.size):
            raise ConfigError(
                f"the draws have the shape {replicates.shape}; they must be (B, {values.size}), one column a month."
            )
        counted = None if n_observed is None else np.asarray(n_observed, dtype=np.float64)
        if counted is not None and counted.shape != values.shape:
            raise ConfigError(
                f"there are {counted.size} numbers of counts for {len(months)} months; give one for each month."
            )
        return cls(values, months, replicates, counted)

    @cached_property
    def years(self) -> Years:
        """The year axis."""
        return make_years(self.months, self.n_observed)

    @cached_property
    def yearly(self) -> F64:
        """Mean over the season's months of each year, (Y,) birds."""
        return self.years.W @ self.totals

    @cached_property
    def yearly_draws(self) -> F64 | None:
        """Replicates of the yearly means, (B, Y) birds."""
        return None if self.draws is None else self.draws @ self.years.W.T

    def without(self, mask: Bool) -> MonthlySeries:
        """Return the series with the years in a mask (Y,) left out of index and trend, and the same season."""
        seen = np.ones(self.totals.size) if self.n_observed is None else np.nan_to_num(self.n_observed)
        out = np.isin(self.years.of_month, self.years.year[mask])
        return replace(self, n_observed=np.where(out, -np.abs(seen), seen))

    def within(self, mask: Bool) -> tuple[I64, F64, F64 | None]:
        """Return the years of a mask (Y,), their totals and replicates, none between 0 and a millionth of the largest total.

        Counts cannot tell so few from none, and where nothing was left a replicate that has none has no logarithm.
        """

        def raised(v: F64) -> F64:
            return np.where((v >= 0) & (v < self.nought), self.nought, v)[..., mask]

        draws = self.yearly_draws
        return self.years.year[mask], raised(self.yearly), None if draws is None else raised(draws)

    @cached_property
    def nought(self) -> float:
        """What counts cannot tell from 0: a millionth of the largest total of a used year."""
        return NOUGHT * float(self.yearly[self.years.used].max(initial=0.0))

    def monthly(self, level: float = 0.95) -> pd.DataFrame:
        """Return the total of each month with its interval."""
        limits = interval(self.totals, self.draws, level)
        frame = self.months[["month_index", "month", "year", "month_of_year"]].reset_index(drop=True)
        return frame.assign(total=self.totals, lo=limits.lo, hi=limits.hi, se_log=limits.se_log)

    def index(self, base: str | int | None = None, level: float = 0.95) -> pd.DataFrame:
        """Return yearly totals and the index: total of the year as a percentage of the base period."""
        years, total, values = self.years, self.yearly, self.yearly_draws
        mask = base_years(base, years)
        limits = interval(total, values, level)
        index = np.full(total.size, np.nan)
        ratio_draws: F64 | None = None
        if mask.any() and total[mask].mean() > 0:
            index = 100.0 * total / total[mask].mean()
            if values is not None:
                reference = values[:, mask].mean(axis=1, keepdims=True)
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratio_draws = 100.0 * values / reference
        index[~years.used] = np.nan
        band = interval(index, ratio_draws, level)
        se = np.full(total.size, np.nan)
        if values is not None and len(values) >= 2:
            se = _on_log_scale(total, values).std(axis=0, ddof=1)
        frame = pd.DataFrame(
            {
                "year": years.year, "n_months": years.n_months, "complete": years.complete, "used": years.used,
                "total": total, "total_lo": limits.lo, "total_hi": limits.hi, "total_se": se, "index": index,
                "index_lo": np.where(years.used, band.lo, np.nan),
                "index_hi": np.where(years.used, band.hi, np.nan),
                "index_se_log": np.where(years.used, band.se_log, np.nan),
            }
        )  # fmt: skip
        frame.attrs.update(
            base=[int(year) for year in years.year[mask]], season=list(years.season), level=level
        )
        return frame

    def covariance(self) -> tuple[I64, F64, F64]:
        """Return the used years (Y,), their totals (Y,) and the covariance (Y, Y) of the totals over the replicates.

        The covariance is on the delta-method scale, ``diag(total) cov(log replicates) diag(total)``, so that a
        standard error divided by its total is the standard error of the logarithm that every interval of the report
        uses; of years of which a replicate is not positive it is the plain covariance.
        """
        used, values = self.years.used, self.yearly_draws
        if values is None or len(values) < 2:
            raise ConfigError(
                "covariances need bootstrap replicates (fit/draws.parquet); fit with --bootstrap 200."
            )
        total = self.yearly[used]
        return (
            self.years.year[used],
            total,
            np.atleast_2d(np.cov(_on_log_scale(total, values[:, used]), rowvar=False)),
        )

    def trend(
        self,
        *,
        base: str | int | None = None,
        rule: str = "pecbms",
        years: tuple[int, int] | None = None,
        refuse: str | None = None,
        convention: str = "long-term",
        level: float = 0.95,
    ) -> pd.DataFrame:
        """Return the trend per year, its class, and the change since the base period: one row."""
        axis = self.years
        mask = np.ones(axis.year.size, bool)
        if years is not None:
            mask = (axis.year >= years[0]) & (axis.year <= years[1])
            if not mask.any():
                raise ConfigError(
                    f"the years {years[0]} to {years[1]} are none of the totals' ({axis.year[0]} to {axis.year[-1]}); give "
                    "the first and the last one, in this order."
                )
        mask &= axis.used
        year, total, values = self.within(mask)
        row = trend_row(year, total, values, rule, convention)
        reason = refuse or _reason(year.size, total, values)
        nought = total <= self.nought
        # A direction that is clear stays so however near to 0 these totals are.
        if not reason and (nought.all() or (nought.any() and row["trend_class"] in ("stable", "uncertain"))):
            reason = "the total of some year is less than a millionth of the largest, which counts cannot tell from 0"
        if reason:
            row["trend_class"] = row["trend_class_sampling"] = NOT_CLASSIFIED
        row |= {"rule": rule, "reason": reason}
        return pd.DataFrame([row | self._change(base, convention, level)])

    def _change(self, base: str | int | None, convention: str, level: float) -> dict[str, float | str]:
        """Change of the last used year against the base period, in percent; the scatter of both is in its limits."""
        total, values = self.yearly, self.yearly_draws
        mask = base_years(base, self.years)
        names = ("change_percent", "change_lo", "change_hi", "change_lo_sampling", "change_hi_sampling")
        out = dict.fromkeys(names, np.nan) | {"base": _base_text(self.years.year[mask])}
        if not mask.any() or total[mask].mean() <= 0:
            return out
        used = np.flatnonzero(self.years.used)
        last = int(used[-1])
        ratio = total[last] / total[mask].mean()
        draws = None
        if values is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                draws = (values[:, last] / values[:, mask].mean(axis=1))[:, None]
        band = interval(ratio, draws, level)
        lo, hi = float(band.lo[0]), float(band.hi[0])
        out |= {"change_lo_sampling": 100.0 * (lo - 1.0), "change_hi_sampling": 100.0 * (hi - 1.0)}
        if convention != "trim":
            # The contrast log(last) - mean log(base), a base of several years taken as their mean of logarithms.
            weights = -mask[used].astype(np.float64) / mask.sum()
            weights[-1] += 1.0
            scatter = scatter_of_years(*self.within(self.years.used))
            sd, quantile = contrast_error(weights, 0.0, scatter, level)
            # Squares of the distances add up; those of quantiles differ on the two sides.
            with np.errstate(divide="ignore"):
                ends = (
                    np.log(np.array([lo, hi]) / ratio) / normal_quantile(level)
                    if ratio > 0
                    else np.full(2, np.nan)
                )
            down, up = quantile * np.hypot(ends, sd) if np.isfinite(sd) else (np.nan, np.nan)
            lo, hi = ratio * np.exp(-down), ratio * np.exp(up)
        changes = (100.0 * (ratio - 1.0), 100.0 * (lo - 1.0), 100.0 * (hi - 1.0))
        return out | dict(zip(names[:3], changes, strict=True))

    def season(self, level: float = 0.95) -> pd.DataFrame:
        """Return the mean total of each month of the year, over the used years."""
        axis = self.years
        keep = np.isin(axis.of_month, axis.year[axis.used])
        season = np.asarray(axis.season, dtype=np.int64)
        member = (self.months["month_of_year"].to_numpy()[None, :] == season[:, None]) & keep[None, :]
        weights = member / np.maximum(member.sum(axis=1), 1)[:, None]
        profile = weights @ self.totals
        by_draw = None if self.draws is None else self.draws @ weights.T
        mean = profile.mean() if profile.size else np.nan
        relative = profile / mean if profile.size and mean > 0 else np.full(profile.size, np.nan)
        relative_draws = None
        if by_draw is not None and by_draw.size:
            with np.errstate(divide="ignore", invalid="ignore"):
                # Each replicate is set against its own mean: a level that
                # is unknown for all months does not widen the profile.
                relative_draws = by_draw / by_draw.mean(axis=1, keepdims=True)
        limits, band = interval(profile, by_draw, level), interval(relative, relative_draws, level)
        return pd.DataFrame(
            {
                "month_of_year": season, "n_years": member.sum(axis=1), "total": profile, "lo": limits.lo,
                "hi": limits.hi, "relative": relative, "relative_lo": band.lo, "relative_hi": band.hi,
            }
        )  # fmt: skip

    def smooth(self, n_missing: F64, span: float | None = None) -> pd.DataFrame:
        """Return the LOESS curve of the monthly totals, and that of ``n_missing`` (L,), what is missing in each month.

        The totals are divided by their seasonal profile first (mean 1), so the curve is of an average month: robust
        weights would take a season of few months for outliers. ``span=None`` chooses the span by leaving out whole years,
        and never one that holds less than four seasons (see ``loess.choose_span``). The curve of every replicate is fitted
        with the same span; the band is the interval of the curve, not of the months. Months of years that lack a part of
        the season are not smoothed (NaN).

        Columns: ``month_index``, ``month``, ``time`` (decimal year), ``total``, ``smooth``, ``smooth_lo``,
        ``smooth_hi`` (birds), ``missing``, ``missing_smooth`` (cells).
        ``attrs``: ``span``, ``it``, ``span_chosen`` (bool).
        """
        months, axis, time = self.months, self.years, decimal_year(self.months)
        chosen, it = span is None, 3  # robust iterations, as is usual
        # A year that lacks months (often the last) would bend the end of the curve with its season, so it is left out.
        keep: Bool = np.ones(time.size, dtype=bool)
        if axis.complete.any():
            keep = np.asarray((axis.W[axis.complete] > 0).any(axis=0))
        month = months["month_of_year"].to_numpy(dtype=np.int64)[keep]
        if axis.complete.sum() < 2:  # of one year the season is all there is
            month = np.ones_like(month)
        xs, ys = time[keep], _without_season(self.totals[keep], month)
        if span is None:
            # At least four seasons in a window, or the curve would follow the season itself.
            least = min(0.8, 4.0 * len(axis.season) / max(xs.size, 1))
            span = choose_span(xs, ys, axis.of_month[keep], it, least)
        curve = loess(xs, ys, span, it)
        # One span for all replicates: choosing it anew in each would mix its choice into the band.
        curves = (
            None if self.draws is None else loess(xs, _without_season(self.draws[:, keep], month), span, it)
        )
        if (self.totals >= 0).all():
            curve = np.maximum(curve, 0.0)  # a local line may dip below zero beside a peak; birds cannot
        band = interval(curve, curves)
        frame = months[["month_index", "month"]].reset_index(drop=True).assign(time=time, total=self.totals)
        frame[["smooth", "smooth_lo", "smooth_hi"]] = np.nan
        frame.loc[keep, ["smooth", "smooth_lo", "smooth_hi"]] = np.column_stack([curve, band.lo, band.hi])
        frame["missing"] = n_missing
        frame.loc[keep, "missing_smooth"] = loess(xs, n_missing[keep], span, it)
        frame.attrs.update(span=span, it=it, span_chosen=chosen)
        return frame


def _on_log_scale(total: F64, values: F64) -> F64:
    """Return replicates (B, Y) as totals (Y,) times their logarithms; as they are in years where one is not positive."""
    ok = (values > 0).all(axis=0) & (total > 0)
    return np.where(ok, total * np.log(np.where(ok, values, 1.0)), values)


def _reason(n_years: int, total: F64, values: F64 | None) -> str:
    if n_years < MIN_YEARS:
        are, s = ("is", "") if n_years == 1 else ("are", "s")
        return f"there {are} {n_years} complete year{s} with counts; a class needs {MIN_YEARS}"
    if not (total > 0).all():
        return "the total of some year is not positive"
    if values is None or not len(values):
        return "no bootstrap replicates were made, so no interval is available"
    if len(values) < MIN_DRAWS:
        return f"there are {len(values)} bootstrap replicates; an interval needs {MIN_DRAWS}"
    if not (values > 0).all():
        return "the total of some year is not positive in some replicate"
    return ""


def _base_text(chosen: I64) -> str:
    if chosen.size == 0:
        return ""
    return str(chosen[0]) if chosen.size == 1 else f"{chosen[0]}-{chosen[-1]}"


def _without_season(y: F64, month_of_year: I64) -> F64:
    """Divide each series of (..., L) by its profile over the months of the year, of mean 1.

    Where some month's mean is not positive, as of values that are no counts, the profile is taken off instead.
    """
    member = (month_of_year == np.unique(month_of_year)[:, None]).astype(np.float64)
    mean = y @ (member / member.sum(axis=1, keepdims=True)).T
    level, ok = mean.mean(axis=-1, keepdims=True), (mean > 0).all(axis=-1, keepdims=True)
    profile = np.divide(mean, level, out=np.ones_like(mean), where=ok)
    return np.asarray(np.where(ok, y / (profile @ member), y - (mean - level) @ member))
