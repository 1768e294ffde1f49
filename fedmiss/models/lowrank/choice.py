"""Which candidate cross-validation chooses, and why in words. Needs scores only, never visits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.families import FAMILIES, SCALES, counted_family
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.notebook import card


def model_name(settings: CountSettings) -> str:
    """Short name of the distribution of a candidate."""
    if settings.time == "fixed":
        return "Poisson with fixed times"
    title = FAMILIES[settings.family].title(settings.dispersion)
    return f"{title} on {settings.scale}" if SCALES[settings.scale].log else title


def default_candidates(settings: CountSettings, max_rank: int = 4) -> list[CountSettings]:
    """Ranks 0..max_rank; for counts of the negative binomial, with ranks 0 and 2 (at most max_rank) of its rivals after it.

    The negative binomial comes first, hence is the model that rivals have to beat (:func:`cross_validate`): it has the
    Poisson as its limit, and under heavy tails a quasi-Poisson fit of rank 1 or more overfits single counts.
    """
    if not FAMILIES[settings.family].sized:
        return [replace(settings, rank=rank) for rank in range(max_rank + 1)]
    main = [replace(settings, rank=rank, dispersion="negbin") for rank in range(max_rank + 1)]
    quasi = [replace(settings, rank=rank, dispersion="quasi") for rank in sorted({0, min(2, max_rank)})]
    log = [replace(rival, family="gaussian", scale="log1p") for rival in quasi]
    return main + quasi + log


NEAR_ERRORS, NEAR_SHARE = 2.0, 0.05  # a member is worse by at most so many standard errors and this share
WORSE = 0.1  # a rank that predicts worse by this share is the last that is tried
SAME = 1e-3  # relative difference of a fold's scores below which two candidates are one fit
HELD_OUT = {
    "cell": "single cells of site and time",
    "block": "whole years of sites",
    "visit": "single visits",
    "observer": "observers",
    "site": "whole sites",
}


class Trial(NamedTuple):
    """A step of the structure that was tried.

    ``what`` it is and ``judged_by`` in words; ``gain``: share by which the deviance of held-out data was lower;
    ``error``: its standard error; whether it was ``taken``; ``shift``: what it adds to the slope of the totals, log per
    year, None where that is not known.
    """

    what: str
    judged_by: str
    gain: float
    error: float
    taken: bool = False
    shift: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Outcome of a cross-validation.

    ``table`` has one row per candidate and fold (schema ``cv``), ``summary`` one per candidate, ``best`` the chosen
    settings, ``advice`` a sentence that says which candidate wins which score, ``near`` the other ranks of its distribution
    whose scores hardly differ from its (:func:`_near`), ``trials`` the steps of its structure that were tried.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    best: CountSettings
    advice: str
    near: tuple[CountSettings, ...] = ()
    trials: tuple[Trial, ...] = ()

    def _repr_html_(self) -> str:
        """Show which candidate won in a notebook."""
        score = {f"deviance of {_label(row)}": row["deviance"] for _, row in self.summary.iterrows()}
        return card("Cross-validation", {"chosen rank": self.best.rank, "advice": self.advice, **score})

    @property
    def members(self) -> tuple[CountSettings, ...]:
        """Models whose expected counts are averaged, the chosen one first."""
        return (self.best, *self.near)


def check_candidates(candidates: Sequence[CountSettings], folds: int) -> None:
    """Raise ConfigError unless the candidates can be compared."""
    if not 2 <= folds <= 1000:  # each is a fit
        raise ConfigError(f"cross-validation has {folds} folds (must be 2 to 1,000).")
    if not candidates:
        raise ConfigError("cross-validation has no candidate; give at least one rank.")
    if any(candidate.time == "fixed" for candidate in candidates):
        raise ConfigError(
            "the plain site and time model (time fixed) is no candidate: it has no rank. Fit it alone."
        )
    scales = {counted_family(candidate.family, candidate.scale).name for candidate in candidates}
    if len(scales) > 1:
        raise ConfigError(
            f"candidates of the families {', '.join(sorted(scales))} have no common score; compare them apart."
        )


def scores(sums: F64) -> dict[str, float]:
    """Row of the table of scores from five sums over held-out visits.

    ``sums`` (5,): deviance, squared log error, predicted and counted total, visits.
    """
    dev, sq, predicted, observed, weight = (float(value) for value in sums)
    if weight == 0:
        return {"n": 0, "deviance": np.nan, "log_rmse": np.nan, "total_bias": np.nan}
    return {
        "n": int(weight),
        "deviance": dev / weight,
        "log_rmse": float(np.sqrt(sq / weight)),
        "total_bias": predicted / observed if observed else np.nan,
    }


def enough(deviance: Sequence[float]) -> bool:
    """Whether further ranks are worth no fit, given the deviance per held-out visit of those so far.

    The last one predicts worse by ``WORSE`` than the best. Of 128 panels none chose otherwise without the ranks above it.
    """
    return deviance[-1] > (1.0 + WORSE) * min(deviance)


def choose(
    table: pd.DataFrame,
    candidates: Sequence[CountSettings],
    *,
    by: str,
    one_se: bool = False,
    visits: int = 0,
) -> Choice:
    """Choose among candidates with a row of :func:`scores` for each fold.

    Between distributions the evidence has to be clear: another distribution than the first candidate's is chosen only
    if its deviance is lower by more than two standard errors of the paired difference over folds. With heavy-tailed
    counts few large ones decide a fold's deviance, and the best of many candidates is often the luckiest.

    Parameters
    ----------
    table : columns candidate, model, rank, penalty, fold and those of :func:`scores`; candidates without a row are ranks
        that were left out (:func:`enough`)
    by : what a fold held out
    one_se : choose the smallest rank within one standard error of the lowest deviance,
        the standard error being that of the paired difference over folds
    visits : how many take part; said beside those that folds held out, where these are less than half

    Raises
    ------
    ConfigError : no fold holds out a visit
    """
    if table.empty:
        raise ConfigError(
            "no fold holds out a visit that may be told, so nothing says which model predicts best; use fewer folds, folds "
            "by visit, a lower least number of sites (--minimum), or name the model, as --model negbin --rank 0, which "
            "needs no folds."
        )
    table = table.sort_values(["candidate", "fold"], ignore_index=True)
    there = np.unique(table["candidate"])
    scored = [candidates[i] for i in there]
    among = table.assign(candidate=np.searchsorted(there, table["candidate"]))
    summary = _summarise(among)
    chosen = _choose(among, summary, scored, one_se)
    near = () if one_se else tuple(scored[at] for at in _near(among, summary, chosen))
    said = f"{_advice(summary, chosen)} Folds held out {HELD_OUT[by]}."
    if (held := round(table.loc[table["candidate"] == there[0], "n"].sum())) < visits / 2:
        said += (
            f" They hold {held:,} of {visits:,} visits: in other months the least numbers left out some fold."
        )
    left = {replace(candidates[i], rank=0) for i in set(range(len(candidates))) - set(there)}
    cut = {(model_name(one), max(s.rank for s in scored if replace(s, rank=0) == one)) for one in left}
    for name, most in sorted(cut):
        worse = f"that one predicts worse by more than {WORSE:.0%} than its best"
        said += f" Of the {name} ranks above {most} were left out: {worse}."
    return Choice(table, summary, scored[chosen], said, near)


def _near(table: pd.DataFrame, summary: pd.DataFrame, chosen: int) -> list[int]:
    """Ranks of the chosen distribution that predict held-out visits hardly worse than the chosen one.

    Hardly: by at most two standard errors of the paired difference over folds, and by at most 5 % of the deviance. The
    second limit matters on small panels, where few folds leave large errors. Of candidates with the same scores (ranks above
    what the panel can bear are one fit) only the first is kept.
    """
    wide = table.pivot(index="fold", columns="candidate", values="deviance")
    mean, error = _above(wide, chosen)
    name = summary["model"].to_numpy()
    hardly = (
        (mean <= NEAR_ERRORS * error) & (mean <= NEAR_SHARE * wide[chosen].mean()) & (name == name[chosen])
    )
    near: list[int] = []
    for candidate in wide.columns[hardly]:
        if not any(_same(wide[candidate], wide[other]) for other in (chosen, *near)):
            near.append(int(candidate))
    return near


def _above(wide: pd.DataFrame, best: int) -> tuple[F64, F64]:
    """Mean over folds of each candidate's deviance above that of ``best``, and its standard error.

    Differences within a fold: a fold with a flock is bad for every candidate, and that is no evidence between them.
    """
    excess = wide.sub(wide[best], axis=0)
    error: pd.Series = excess.std(ddof=1) / np.sqrt(excess.count())
    return excess.mean().to_numpy(dtype=float), error.to_numpy(dtype=float)


def _same(scores: pd.Series, others: pd.Series) -> bool:
    return bool(np.allclose(scores, others, rtol=SAME, equal_nan=True))


def _summarise(table: pd.DataFrame) -> pd.DataFrame:
    def one(folds: pd.DataFrame) -> pd.Series:
        share = folds["n"] / max(folds["n"].sum(), 1)
        n_folds = len(folds)
        return pd.Series(
            {
                "model": folds["model"].iloc[0],
                "rank": int(folds["rank"].iloc[0]),
                "penalty": folds["penalty"].iloc[0],
                "deviance": float((share * folds["deviance"]).sum()),
                "deviance_se": float(folds["deviance"].std(ddof=1) / np.sqrt(folds["deviance"].count()))
                if n_folds > 1
                else np.nan,
                # Folds weigh by their visits; a root mean square is averaged as a mean square.
                "log_rmse": float(np.sqrt((share * folds["log_rmse"] ** 2).sum())),
                "total_bias": float((share * folds["total_bias"]).sum()),
            }
        )

    return pd.DataFrame([one(part) for _, part in table.groupby("candidate", sort=True)])


def _choose(
    table: pd.DataFrame, summary: pd.DataFrame, candidates: Sequence[CountSettings], one_se: bool
) -> int:
    score = summary["deviance"].to_numpy(dtype=float)
    name = summary["model"].to_numpy()
    wide = table.pivot(index="fold", columns="candidate", values="deviance")
    # First the best rank of the first candidate's distribution; a rival has to be clearly better than that one.
    best = int(np.where(name == name[0], score, np.inf).argmin())
    mean, error = _above(wide, best)
    clear = mean < -2 * error
    if clear.any():
        best = int(np.where(clear, score, np.inf).argmin())
    if not one_se:
        # Factors that the panel does not bear switch themselves off: of ranks that are one fit, the lowest.
        one = [int(i) for i in np.flatnonzero(name == name[best]) if _same(wide[i], wide[best])]
        return min(one, key=lambda i: candidates[i].rank)
    mean, error = _above(wide, best)
    near = [i for i in range(len(candidates)) if name[i] == name[best] and mean[i] <= error[i]] or [best]
    return min(near, key=lambda i: candidates[i].rank)


def _label(row: pd.Series) -> str:
    return f"{row['model']} of rank {int(row['rank'])}"


def _advice(summary: pd.DataFrame, chosen: int) -> str:
    best = summary.iloc[chosen]
    by_deviance = summary.iloc[int(summary["deviance"].to_numpy().argmin())]
    by_log = summary.iloc[int(summary["log_rmse"].to_numpy().argmin())]
    total = np.abs(np.log(np.clip(summary["total_bias"].to_numpy(dtype=float), 1e-9, None)))
    by_total = summary.iloc[int(total.argmin())]
    scores = f"deviance {best['deviance']:.3g} per visit, total {best['total_bias']:.2f} of the observed"
    if by_deviance.name == best.name:
        text = f"{_label(best)} predicts held-out visits best ({scores})."
    else:
        text = (
            f"{_label(best)} is recommended ({scores}): {_label(by_deviance)} has a lower deviance "
            f"({by_deviance['deviance']:.3g}), but not clearly."
        )
    if by_log.name != best.name and by_log["log_rmse"] < 0.98 * best["log_rmse"]:
        worse = abs(np.log(max(by_log["total_bias"], 1e-9) / max(best["total_bias"], 1e-9))) >= 0.005
        text += (
            f" For typical sites rather than totals, {_label(by_log)} is closer (log error {by_log['log_rmse']:.2f} "
            f"against {best['log_rmse']:.2f})"
            + (f", with totals {by_log['total_bias']:.2f} of the observed." if worse else ".")
        )
    if by_total.name != best.name and abs(float(best["total_bias"]) - 1) > 0.1:
        text += f" {_label(by_total)} gets the total nearest ({by_total['total_bias']:.2f})."
    return text
