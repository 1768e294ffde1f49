"""Choice of rank, ridge and family by federated cross-validation.

Folds are drawn inside each group, so a held-out visit never leaves it: a group sends the sums of its training
visits, and for each candidate three numbers (deviance, squared log error, predicted and observed totals).
Count models are scored on the same scale, birds, whatever scale they were fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.counts import (
    CountFit,
    CountSettings,
    fit_prepared,
    marginal_fit,
    prepare,
    to_counts,
)
from fedmiss.models.lowrank.data import Cells, Group, GroupPanel
from fedmiss.models.lowrank.families import deviance
from fedmiss.models.lowrank.visits import visit_offset
from fedmiss.rng import rng_for

__all__ = ["Choice", "assign_folds", "cross_validate", "default_candidates", "model_name"]


def model_name(s: CountSettings) -> str:
    """Short name of the distribution of a candidate."""
    if s.family == "poisson":
        return {"quasi": "quasi-Poisson", "negbin": "negative binomial", "none": "Poisson"}[s.dispersion]
    return "Gaussian on log1p" if s.scale == "log1p" else s.family.capitalize()


FEW_BLOCKS = 50  # ten for each of five folds


def default_candidates(settings: CountSettings, max_rank: int = 4) -> list[CountSettings]:
    """Ranks 0..max_rank; for counts of the negative binomial, with ranks 0 and 2 of its rivals after it.

    The negative binomial comes first, hence is the model that rivals have to beat (:func:`cross_validate`): it has the
    Poisson as its limit, and under heavy tails a quasi-Poisson fit of rank 1 or more chases single counts.
    """
    if settings.family != "poisson" or settings.penalty is not None:
        return [replace(settings, rank=r) for r in range(max_rank + 1)]
    main = [replace(settings, rank=r, dispersion="negbin") for r in range(max_rank + 1)]
    quasi = [replace(settings, rank=r, dispersion="quasi") for r in (0, 2)]
    log = [replace(settings, rank=r, family="gaussian", scale="log1p", dispersion="quasi") for r in (0, 2)]
    return main + quasi + log


def assign_folds(group: Group, folds: int, by: str, seed: int, years: I64 | None = None) -> I64:
    """Draw a fold 0..folds-1 for every visit of a group, inside the group.

    ``by="cell"`` draws site x month cells, whoever visits them: a fit that has seen one visit of a cell knows much about
    the others, while a cell that is imputed has none. ``"visit"`` draws visits; ``"observer"`` whole observers;
    ``"block"`` whole site x year blocks, ``years`` (L,) being the year 0, 1, ... of each month (None: twelve months each).
    """
    rng = rng_for(seed, "folds", group.name)
    if by == "visit":
        return _spread(rng, group.count.size, folds)
    if by in ("cell", "block"):  # drawn by place and time alone: the same in every group that goes there
        fold = np.empty(group.count.size, dtype=np.int64)
        if not fold.size:
            return fold
        unit: I64 = group.month.astype(np.int64)
        if by == "block":
            unit = unit // 12 if years is None else years[unit]
        sites, first = np.unique(group.site, return_index=True)  # visits are sorted by site
        for site, mine in zip(sites, np.split(np.arange(fold.size), first[1:]), strict=True):
            u = rng_for(seed, f"{by} folds", int(site)).random(int(unit[mine[-1]]) + 1)
            fold[mine] = (u[unit[mine]] * folds).astype(np.int64)
        return fold
    if by != "observer":
        raise ConfigError(f"folds by {by!r} are unknown; choose auto, cell, visit, block or observer.")
    units, inverse = np.unique(group.observer.astype(np.int64), return_inverse=True)
    return _spread(rng, units.size, folds)[inverse]


def folds_like_gaps(panel: GroupPanel) -> str:
    """``"block"`` when most missing cells lie in years of a site without any count, else ``"cell"``.

    What is held out should be missed as the real gaps are: a cell whose neighbours in time were counted is easier to
    predict than a year of a site without any visit, and by cells a rank is chosen that is too high for whole years.
    Cells also where there are no more than ``FEW_BLOCKS`` blocks with a count. Needs the groups' observed cells, not counts.
    """
    L, years = panel.L, _years(panel)
    length = np.bincount(years)
    if length.max() <= 1:
        return "cell"  # a year is one cell
    cells = np.unique(
        np.concatenate([np.unique(g.site.astype(np.int64) * L + g.month) for g in panel.groups])
    )
    blocks = np.unique(cells // L * length.size + years[cells % L])
    missing = panel.J * L - cells.size
    in_empty_blocks = panel.J * L - int(length[blocks % length.size].sum())
    return "block" if blocks.size > FEW_BLOCKS and in_empty_blocks > 0.5 * missing else "cell"


def _years(panel: GroupPanel) -> I64:
    """Year 0, 1, ... of every month: calendar years, or twelve months each where there is no calendar."""
    if panel.calendar is None:
        return np.arange(panel.L) // 12
    year: I64 = np.unique(panel.calendar[1], return_inverse=True)[1].astype(np.int64)
    return year


def _spread(rng: np.random.Generator, n: int, folds: int) -> I64:
    """Folds of n units, as even as can be, starting at a random one: small groups must not all fill fold 0."""
    out: I64 = (rng.permutation(n) + rng.integers(folds)) % folds
    return out


HELD_OUT = {
    "cell": "Folds held out single site x month cells.",
    "block": "Folds held out whole years of sites.",
    "visit": "Folds held out single visits.",
    "observer": "Folds held out observers.",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Outcome of a cross-validation.

    ``table`` has one row per candidate and fold (schema ``cv``), ``summary`` one per candidate, ``best`` the chosen
    settings, ``advice`` a sentence that says which candidate wins which score.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    best: CountSettings
    advice: str


def cross_validate(
    panel: GroupPanel,
    candidates: Sequence[CountSettings],
    *,
    folds: int = 5,
    by: str = "auto",
    seed: int = 0,
    one_se: bool = False,
    watch: Callable[[int], None] | None = None,
) -> Choice:
    """Score every candidate on held-out visits and choose the one with the lowest deviance.

    Between distributions the evidence has to be clear: another distribution than the first candidate's is chosen only
    if its deviance is lower by more than two standard errors of the paired difference over folds. With heavy-tailed
    counts few large ones decide a fold's deviance, and the best of many candidates is often the luckiest.

    Parameters
    ----------
    candidates : settings to compare; the first one's distribution is the default. Those that differ in rank or penalty
        only share their marginal fits, and each is warm-started at the one before it (give them by rank, then by
        falling penalty)
    by : what a fold holds out (:func:`assign_folds`); ``auto`` is cells or blocks, like the gaps (:func:`folds_like_gaps`)
    one_se : choose the smallest rank (then the largest penalty) within one standard error of the lowest deviance,
        the standard error being that of the paired difference over folds
    """
    if folds < 2:
        raise ConfigError(f"cross-validation with {folds} fold is impossible; choose 2 or more.")
    if not candidates:
        raise ConfigError("cross-validation has no candidate; give at least one rank.")
    scales = {c.family if c.scale == "raw" else "poisson" for c in candidates}
    if len(scales) > 1:
        raise ConfigError(
            f"candidates of the families {', '.join(sorted(scales))} have no common score; compare them apart."
        )
    by = folds_like_gaps(panel) if by == "auto" else by
    years = _years(panel)
    rows: list[dict[str, object]] = []
    done = 0
    shared = [replace(c, rank=0, penalty=None if c.effects else 0.0) for c in candidates]
    for marginal_settings in dict.fromkeys(shared):
        members = [(i, c) for i, c in enumerate(candidates) if shared[i] == marginal_settings]
        ready, cells = prepare(panel, members[0][1])
        fold_of = [assign_folds(g, folds, by, seed, years) for g in panel.groups]
        for fold in range(folds):
            train = replace(
                ready,
                groups=tuple(
                    g.reweighted(g.weight * (f != fold)) for g, f in zip(ready.groups, fold_of, strict=True)
                ),
            )
            if not sum(float(g.weight.sum()) for g in train.groups):
                raise ConfigError(
                    f"fold {fold} leaves no visit to train on; use fewer folds or folds by visit."
                )
            marginal = marginal_fit(train, cells, members[0][1])
            last: CountFit | None = (
                None  # the path: a candidate starts at the one before it (a variational one, if that is of lower rank)
            )
            for i, settings in members:
                quick = replace(
                    settings, tol=max(settings.tol, 1e-5), max_sweeps=min(settings.max_sweeps, 100)
                )
                bayes = settings.penalty is None
                if last and (
                    bayes != (last.posterior is not None) or (bayes and last.theta.rank >= settings.rank)
                ):
                    last = None
                last = fit = fit_prepared(train, cells, quick, start=last or marginal)
                score = _score(panel, train, cells, fit, fold_of, fold)
                rows.append(
                    {
                        "candidate": i,
                        "model": model_name(settings),
                        "rank": settings.rank,
                        "penalty": np.nan if settings.penalty is None else settings.penalty,
                        "fold": fold,
                    }
                    | score
                )
                done += 1
                if watch:
                    watch(done)
    table = pd.DataFrame(rows).sort_values(["candidate", "fold"], ignore_index=True)
    summary = _summarise(table)
    chosen = _choose(table, summary, candidates, one_se)
    return Choice(table, summary, candidates[chosen], f"{_advice(summary, chosen)} {HELD_OUT[by]}")


def _score(
    panel: GroupPanel,
    train: GroupPanel,
    cells: Sequence[Cells],
    fit: CountFit,
    fold_of: Sequence[I64],
    fold: int,
) -> dict[str, float]:
    """Scores of the held-out visits, summed over groups."""
    dev = sq = n = predicted = observed = 0.0
    s = fit.settings
    for i, (raw, g, c, f) in enumerate(zip(panel.groups, train.groups, cells, fold_of, strict=True)):
        test = f == fold
        if not test.any():
            continue
        eta = c.eta[c.cell][test]
        if s.family != "bernoulli":
            eta = eta + visit_offset(g, fit.aux, i)[test]
        mu = to_counts(eta, s, fit.smear)
        y = raw.count[test]
        if s.family == "bernoulli":
            y = (y > 0).astype(float)
        elif s.family == "poisson" or s.scale == "log1p":
            mu = np.maximum(mu, 1e-3)  # a count model may not bet everything on zero
        score_family = "poisson" if s.scale == "log1p" else s.family
        w = raw.weight[test]
        dev += float((w * deviance(y, mu, score_family)).sum())
        if score_family != "gaussian":
            sq += float((w * (np.log1p(y) - np.log1p(mu)) ** 2).sum())
        else:
            sq += float((w * (y - mu) ** 2).sum())
        predicted += float((w * mu).sum())
        observed += float((w * y).sum())
        n += float(w.sum())
    if n == 0:
        return {"n": 0, "deviance": np.nan, "log_rmse": np.nan, "total_bias": np.nan}
    return {
        "n": int(n),
        "deviance": dev / n,
        "log_rmse": float(np.sqrt(sq / n)),
        "total_bias": predicted / observed if observed else np.nan,
    }


def _summarise(table: pd.DataFrame) -> pd.DataFrame:
    def one(g: pd.DataFrame) -> pd.Series:
        w = g["n"] / max(g["n"].sum(), 1)
        k = len(g)
        return pd.Series(
            {
                "model": g["model"].iloc[0],
                "rank": int(g["rank"].iloc[0]),
                "penalty": g["penalty"].iloc[0],
                "deviance": float((w * g["deviance"]).sum()),
                "deviance_se": float(g["deviance"].std(ddof=1) / np.sqrt(g["deviance"].count()))
                if k > 1
                else np.nan,
                "log_rmse": float(np.sqrt((w * g["log_rmse"] ** 2).sum())),
                "total_bias": float((w * g["total_bias"]).sum()),
            }
        )

    return pd.DataFrame([one(g) for _, g in table.groupby("candidate", sort=True)])


def _choose(
    table: pd.DataFrame, summary: pd.DataFrame, candidates: Sequence[CountSettings], one_se: bool
) -> int:
    score = summary["deviance"].to_numpy(dtype=float)
    name = summary["model"].to_numpy()
    wide = table.pivot(index="fold", columns="candidate", values="deviance")

    def above(best: int) -> tuple[F64, F64]:
        """Mean over folds of the deviance above that of ``best``, and its standard error."""
        excess = wide.sub(wide[best], axis=0)
        bound: pd.Series = excess.std(ddof=1) / np.sqrt(excess.count())
        return excess.mean().to_numpy(dtype=float), bound.to_numpy(dtype=float)

    best = int(np.where(name == name[0], score, np.inf).argmin())
    mean, error = above(best)
    clear = mean < -2 * error
    if clear.any():
        best = int(np.where(clear, score, np.inf).argmin())
    if not one_se:
        return best
    mean, error = above(best)
    near = [i for i in range(len(candidates)) if name[i] == name[best] and mean[i] <= error[i]] or [best]
    return min(near, key=lambda i: (candidates[i].rank, -(candidates[i].penalty or 0.0)))


def _label(row: pd.Series) -> str:
    ridge = "" if np.isnan(row["penalty"]) else f", ridge {row['penalty']:g}"
    return f"{row['model']} of rank {int(row['rank'])}{ridge}"


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
        text += (
            f" For typical sites rather than totals, {_label(by_log)} is closer (log error {by_log['log_rmse']:.2f} "
            f"against {best['log_rmse']:.2f}), but its totals are {by_log['total_bias']:.2f} of the observed."
        )
    if by_total.name != best.name and abs(float(best["total_bias"]) - 1) > 0.1:
        text += f" {_label(by_total)} gets the total nearest ({by_total['total_bias']:.2f})."
    return text
