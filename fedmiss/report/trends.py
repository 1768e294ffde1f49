"""Totals, indices, seasonal profile and overall trend, from monthly totals and their replicates.

Every function takes the monthly totals ``monthly`` (L,) in birds, the month axis ``months`` (a frame with the
columns of schema ``months``), and ``draws`` (B, L), bootstrap replicates of the totals, or None when there are
none: then every limit is NaN and no class is given. ``n_observed`` (L,) is the number of cells with a count in
each month; years without any are left out of trends. All return pandas frames; ``attrs`` says how.

Each is a method of :class:`fedmiss.report.series.MonthlySeries`, which holds these four once, and has more.
"""

from __future__ import annotations

import pandas as pd
from numpy.typing import ArrayLike

from fedmiss.report.series import MonthlySeries


def monthly_totals(
    monthly: ArrayLike, months: pd.DataFrame, draws: ArrayLike | None = None, *, level: float = 0.95
) -> pd.DataFrame:
    """Return the total over sites of each month with its interval.

    Columns: ``month_index``, ``month``, ``year``, ``month_of_year``, ``total``, ``lo``, ``hi`` (birds at standard
    effort, summed over sites), ``se_log``.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> fedmiss.report.monthly_totals(totals, months)["total"].iloc[-1].round(2).item()
    77.38
    """
    return MonthlySeries.of(monthly, months, draws).monthly(level)


def yearly_index(
    monthly: ArrayLike,
    months: pd.DataFrame,
    draws: ArrayLike | None = None,
    *,
    base: str | int | None = None,
    n_observed: ArrayLike | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """Return yearly totals and the index: total of the year as a percentage of the base period.

    The total of a year is the mean over the months of the season of the total over sites (birds on an average
    month of the season). The index of the base period is 100; its interval in a single base year is a point, as
    in rtrim, and those of other years are of the ratio to the base, which uses the covariance of the two.

    Columns: ``year``, ``n_months``, ``complete``, ``used``, ``total``, ``total_lo``, ``total_hi``, ``total_se``
    (birds), ``index``, ``index_lo``, ``index_hi`` (percent of the base), ``index_se_log``. Years that are not
    ``used`` have a total (of the months they have) and no index.
    ``attrs``: ``base`` (list of years), ``season``.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> fedmiss.report.yearly_index(totals, months)["index"].round(1).to_list()
    [100.0, 95.0, 90.3, 85.7, 81.5, 77.4]
    """
    return MonthlySeries.of(monthly, months, draws, n_observed).index(base, level)


def overall_trend(
    monthly: ArrayLike,
    months: pd.DataFrame,
    draws: ArrayLike | None = None,
    *,
    base: str | int | None = None,
    rule: str = "pecbms",
    n_observed: ArrayLike | None = None,
    years: tuple[int, int] | None = None,
    refuse: str | None = None,
    convention: str = "long-term",
    level: float = 0.95,
) -> pd.DataFrame:
    """Return the overall multiplicative trend per year, its class, and the change since the base period: one row.

    The slope is that of log yearly totals on the year. ``slope_se_sampling`` is its standard deviation over the
    replicates, which equals TRIM's sandwich ``(X'X)^-1 X' cov(log totals) X (X'X)^-1`` with the replicates'
    covariance. ``slope_se`` also holds the scatter of the years about their line (``year_sd``, see
    ``scatter.scatter_of_years``), unless ``convention`` is ``trim``. ``lo`` and ``hi`` are the limits by which the ``rule``
    decides (see ``classify``). The slope does not depend on the base; ``change_percent`` does.

    ``level`` is that of the limits of the change; those of the slope are always of 95 %, which classes are made for.

    A class is refused, with the ``reason``, for fewer than 5 complete years, fewer than 20 replicates, a total that
    is not positive (nor in a replicate), totals below a millionth of the largest without a clear direction, or the reason
    given as ``refuse``.

    Columns: ``from_year``, ``to_year``, ``n_years``, ``slope``, ``slope_se`` (log per year), ``multiplicative``,
    ``lo``, ``hi`` (factor per year), ``percent_per_year``, ``percent_lo``, ``percent_hi``, ``trend_class``,
    ``label``, ``convention``, ``year_sd`` (log), ``slope_se_sampling``, ``percent_lo_sampling``,
    ``percent_hi_sampling``, ``trend_class_sampling`` (by TRIM's convention), ``rule``, ``reason``, ``change_percent``,
    ``change_lo``, ``change_hi``, ``change_lo_sampling``, ``change_hi_sampling`` (percent, last used year against the
    base period), ``base``.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> round(float(fedmiss.report.overall_trend(totals, months)["percent_per_year"].iloc[0]), 6)
    -5.0
    """
    # Ten parameters, because they are documented API; code of the package calls the method of the series.
    return MonthlySeries.of(monthly, months, draws, n_observed).trend(
        base=base, rule=rule, years=years, refuse=refuse, convention=convention, level=level
    )


def seasonal(
    monthly: ArrayLike,
    months: pd.DataFrame,
    draws: ArrayLike | None = None,
    *,
    n_observed: ArrayLike | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """Return the seasonal profile: the mean total of each month of the year, over the used years.

    Columns: ``month_of_year``, ``n_years``, ``total``, ``lo``, ``hi`` (birds, mean over years), ``relative``,
    ``relative_lo``, ``relative_hi`` (1 = the mean of the season's months).

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> season = fedmiss.report.seasonal(totals * (1 + (months["month_of_year"] == 5)), months)
    >>> int(season["total"].to_numpy().argmax()) + 1  # the month with most
    5
    """
    return MonthlySeries.of(monthly, months, draws, n_observed).season(level)
