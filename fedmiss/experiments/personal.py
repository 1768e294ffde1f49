"""The gain of personal models of observers, on held-out egret counts and on simulated observer turnover."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from fedmiss.arrays import F64, I64
from fedmiss.experiments.folder import Column, Folder, columns_of, experiment_folder
from fedmiss.models.personal import KINDS, Personal, PersonalFit, PersonalVisits, fit_personal, size_of
from fedmiss.pipeline.demo import write_survey
from fedmiss.progress import progress
from fedmiss.rng import rng_for

__all__ = ["SCENARIOS", "main", "simulate_turnover"]


class Tuning(TypedDict, total=False):
    """Settings of a kind that are chosen by their score."""

    k: int
    sd: float


GRID: dict[str, list[Tuning]] = {
    "none": [{}],
    "scalar": [{"sd": 0.25}, {"sd": 0.5}, {"sd": 1.0}],
    "factors": [{"k": 1, "sd": 0.25}, {"k": 1, "sd": 0.5}, {"k": 2, "sd": 0.5}],
    "mixture": [{"k": 2, "sd": 0.25}, {"k": 2, "sd": 0.5}, {"k": 3, "sd": 0.5}],
}
SCENARIOS = ("no effects", "levels", "levels and factors", "two kinds")
GROUPS = 10


def main(out: Path, *, quick: bool, seed: int, data: Path | None, overwrite: bool) -> Path:
    """Scores of none, scalar, factors and mixture: three settings each, chosen on a fifth of one training set."""
    with experiment_folder(out, "personal", quick=quick, overwrite=overwrite) as folder:
        folder.say(
            "Every observer's own log mean is eta (site, season, year, month) plus: nothing; a level o_i (scalar); o_i + "
            "f_i . (A_site + B_season), rank 2 over sites x months (factors); or a mixture of shared components "
            "with the observer's own weights (Marfoq et al. 2021). Private parameters stay in the group. "
            "Tuning budget: three settings a kind (none: one), chosen on a fifth of the first training set; the same size "
            "of the negative binomial for all, from the fit without observers."
        )
        _egrets(folder, seed, quick)
        _turnover(folder, seed, quick)
        settings = {"quick": quick, "seed": seed, "groups": GROUPS, "rounds": _rounds(quick), "grid": GRID}
        folder.finish("Personal models of observers: are they worth it?", settings, {})
    return out


def nb_deviance(y: F64, mu: F64, size: float) -> F64:
    """Deviance of each count under the negative binomial, 0 where the mean is the count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(y > 0, y * np.log(y / mu), 0.0)
    return np.asarray(2.0 * (first - (y + size) * np.log((y + size) / (mu + size))))


def egret_visits(seed: int) -> tuple[list[PersonalVisits], int, I64, I64]:
    """Nesting counts of the demo's survey, observers dealt to ten groups; number of sites, season and year of months."""
    with tempfile.TemporaryDirectory() as tmp:
        write_survey(Path(tmp) / "survey.csv")
        t = pd.read_csv(Path(tmp) / "survey.csv")
    site, sites = pd.factorize(t["site"], sort=True)
    month, months = pd.factorize(t["date"].str[:7], sort=True)
    observer, people = pd.factorize(t["observer"], sort=True)
    season = np.unique([int(m[5:]) for m in months], return_inverse=True)[1]
    year = np.unique([int(m[:4]) for m in months], return_inverse=True)[1]
    deal = rng_for(seed, "egret groups").permutation(len(people)) % GROUPS
    y = t["count"].to_numpy(float)
    return (
        _groups(site, month, observer, y, deal),
        len(sites),
        season.astype(np.int64),
        year.astype(np.int64),
    )


def _groups(site: I64, month: I64, observer: I64, y: F64, deal: I64) -> list[PersonalVisits]:
    out = []
    for g in np.unique(deal[observer]):
        at = deal[observer] == g
        people, own = np.unique(observer[at], return_inverse=True)
        out.append(
            PersonalVisits(
                site[at].astype(np.int64),
                month[at].astype(np.int64),
                own.astype(np.int64),
                y[at],
                len(people),
            )
        )
    return out


def simulate_turnover(
    scenario: str, seed: int, *, J: int = 60, years: int = 10
) -> tuple[list[PersonalVisits], I64, I64, F64]:
    """A panel of four seasons a year whose observers come and go; returns groups, season, year, log yearly totals (true).

    Five new observers a year, each active for two years; 40 % of cells have a visit; slope 0.05 a year on the log scale;
    negative binomial counts of size 3. Observers' levels have standard deviation 0.4 ("levels"), and respond to sites (sd
    0.3) and seasons (0.4) along one shared direction ("levels and factors"), or half of them see 0.5 less and the seasons
    otherwise ("two kinds").
    """
    rng = rng_for(seed, "turnover", SCENARIOS.index(scenario))
    L = 4 * years
    season, year = np.arange(L) % 4, np.arange(L) // 4
    shape = np.array([0.5, 0.2, -0.5, -0.2])
    eta = 1.5 + rng.standard_normal(J)[:, None] + shape[season] + 0.05 * (year - year.mean())
    eta = eta + 0.1 * rng.standard_normal(L)
    site, month = np.nonzero(rng.random((J, L)) < 0.4)
    first = np.repeat(np.arange(-1, years), 5)
    who = np.array([rng.choice(np.flatnonzero((first == t) | (first == t - 1))) for t in year[month]])
    n = len(first)
    own = np.zeros(len(site))
    if scenario in ("levels", "levels and factors"):
        own += 0.4 * rng.standard_normal(n)[who]
    if scenario == "levels and factors":
        direction = 0.3 * rng.standard_normal(J)[site] + 0.4 * np.array([1.0, -1.0, 1.0, -1.0])[season[month]]
        own += rng.standard_normal(n)[who] * direction
    if scenario == "two kinds":
        kind = rng.random(n) < 0.5
        own += np.where(kind[who], -0.5 - 1.5 * shape[season[month]], 0.0)
    y = rng.poisson(np.exp(eta[site, month] + own) * rng.gamma(3.0, 1 / 3.0, len(site))).astype(float)
    truth = np.log([np.exp(eta[:, year == t]).sum() for t in range(years)])
    return (
        _groups(site, month, who, y, rng.permutation(n) % GROUPS),
        season.astype(np.int64),
        year.astype(np.int64),
        truth,
    )


def _held(
    groups: Sequence[PersonalVisits], year: I64, by: str, fold: int, seed: int, *key: str | int
) -> list[np.ndarray]:
    """Which visits of each group are in a fold of five: single visits, or whole years of sites."""
    out = []
    block = rng_for(seed, *key, "blocks").random(
        (max(int(v.site.max()) for v in groups) + 1, int(year.max()) + 1)
    )
    for i, v in enumerate(groups):
        single = rng_for(seed, *key, "visits", i).random(len(v.y))
        out.append(np.floor(5 * (single if by == "visits" else block[v.site, year[v.month]])) == fold)
    return out


def _split(
    groups: Sequence[PersonalVisits], held: list[np.ndarray]
) -> tuple[list[PersonalVisits], list[PersonalVisits]]:
    pairs = list(zip(groups, held, strict=True))
    return [v.take(~h) for v, h in pairs], [v.take(h) for v, h in pairs]


def _score(fit: PersonalFit, test: Sequence[PersonalVisits]) -> float:
    y = np.concatenate([v.y for v in test])
    return float(nb_deviance(y, np.concatenate(fit.mean(test)), fit.model.size).mean())


class _Study:
    """Fits of the four kinds on one panel's axes."""

    def __init__(self, J: int, season: I64, year: I64, seed: int, quick: bool) -> None:
        self.J, self.season, self.year, self.seed, self.quick = J, season, year, seed, quick
        self.chosen: dict[str, Tuning] = {}

    def fits(
        self, train: Sequence[PersonalVisits], settings: Sequence[tuple[str, Tuning]]
    ) -> list[PersonalFit]:
        """Return fits of (kind, settings), all with the size and the start of the fit without observers."""
        rounds = _rounds(self.quick)
        first = fit_personal(Personal("none", self.J, self.season, self.year), train, rounds=rounds)
        size = size_of(train, first.mean(train))
        return [
            fit_personal(
                Personal(kind, self.J, self.season, self.year, size=size, **more),
                train, rounds=rounds, start=first.x, seed=self.seed,
            )
            for kind, more in settings
        ]  # fmt: skip

    def best(self, train: Sequence[PersonalVisits]) -> dict[str, PersonalFit]:
        """The four kinds at their chosen settings."""
        return dict(zip(self.chosen, self.fits(train, list(self.chosen.items())), strict=True))

    def tune(self, train: Sequence[PersonalVisits]) -> None:
        """Choose each kind's settings on a fifth of the training visits."""
        if self.quick:
            self.chosen = {kind: GRID[kind][min(1, len(GRID[kind]) - 1)] for kind in KINDS}
            return
        inner, check = _split(train, _held(train, self.year, "visits", 0, self.seed, "tune"))
        tried = [(kind, more) for kind in KINDS for more in GRID[kind]]
        scores = [_score(fit, check) for fit in self.fits(inner, tried)]
        for kind in KINDS:
            own = [
                (score, i) for i, (score, (k, _)) in enumerate(zip(scores, tried, strict=True)) if k == kind
            ]
            self.chosen[kind] = tried[min(own)[1]][1]


def _rounds(quick: bool) -> int:
    return 30 if quick else 120


def _paired(differences: F64) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval (Student)."""
    d = np.asarray(differences, dtype=float)
    return float(d.mean()), float(stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d)))


def _words(mean: float, error: float) -> str:
    return "better" if mean < -error else "worse" if mean > error else "no clear difference"


def _egrets(folder: Folder, seed: int, quick: bool) -> None:
    groups, J, season, year = egret_visits(seed)
    study, splits = _Study(J, season, year, seed, quick), 2 if quick else 5
    rows = []
    with progress("egrets", 2 * splits) as show:
        for by in ("visits", "blocks"):
            for i in range(splits):
                train, test = _split(groups, _held(groups, year, by, i, seed, "egret", by))
                if not study.chosen:
                    study.tune(train)
                rows += [(by, i, kind, _score(fit, test)) for kind, fit in study.best(train).items()]
                show(i + 1 + splits * (by == "blocks"))
    totals = {k: _yearly(f.totals(), year) for k, f in study.best(groups).items()}
    t = columns_of(("held_out", "split", "kind", "deviance"), rows)
    _draw_egrets(folder, t, np.unique(year), totals)
    folder.table("egret_index", {"year": np.unique(year), **{k: v - v.mean() for k, v in totals.items()}})
    lines, verdicts = [], {"visits": list[str](), "blocks": list[str]()}
    for by in ("visits", "blocks"):
        none = t["deviance"][(t["held_out"] == by) & (t["kind"] == "none")]
        for kind in KINDS[1:]:
            mean, error = _paired(t["deviance"][(t["held_out"] == by) & (t["kind"] == kind)] - none)
            lines.append(
                f"| {by} | {kind} | {none.mean():.4f} | {mean:+.4f} | {error:.4f} | {_words(mean, error)} |"
            )
            folder.results[f"egrets {by} {kind}"] = {"difference": mean, "half_interval": error}
            verdicts[by].append(f"{kind} {_words(mean, error)}")
    slopes = ", ".join(f"{k} {_slope(v):+.4f}" for k, v in totals.items())
    seen = "; ".join(
        f"{'visits of observers who are known' if by == 'visits' else 'whole years of sites'}: {', '.join(verdicts[by])}"
        for by in verdicts
    )
    folder.say(
        f"Egret nests: {sum(len(v.y) for v in groups):,} counts, {J} sites, {len(season)} months, "
        f"{sum(v.observers for v in groups)} observers. Negative binomial deviance a held-out visit, "
        f"{splits} of five folds, +- half the 95 % interval of the paired difference, "
        f"chosen settings {study.chosen}:"
        "\n\n| held out | kind | none | difference | +- | verdict |\n|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nYearly slope of the log index on all visits: {slopes}.\n\n"
        f"Verdict on the egrets, against no observer effects: {seen}."
    )


def _draw_egrets(folder: Folder, t: dict[str, Column], years: I64, totals: dict[str, F64]) -> None:
    """Draw the held-out deviance of every split, less that of none, and the yearly index of every kind."""

    def draw(axes: Sequence[Axes]) -> None:
        for ax, by in zip(axes, ("visits", "blocks"), strict=False):
            none = t["deviance"][(t["held_out"] == by) & (t["kind"] == "none")]
            for i, kind in enumerate(KINDS[1:]):
                d = t["deviance"][(t["held_out"] == by) & (t["kind"] == kind)] - none
                ax.plot(np.full(len(d), i), d, "o", ms=4, color=f"C{i}", alpha=0.6)
                ax.plot([i - 0.2, i + 0.2], [d.mean()] * 2, color=f"C{i}", lw=2)
            ax.axhline(0.0, color="0.5", lw=0.8)
            ax.set(
                xticks=range(3), xticklabels=KINDS[1:], ylabel="held-out deviance a visit, less that of none",
                title=f"egrets, held out: {'single visits' if by == 'visits' else 'whole years of sites'}",
            )  # fmt: skip
        for kind, values in totals.items():
            axes[2].plot(years, values - values.mean(), label=kind)
        axes[2].set(
            xlabel="year of the survey", ylabel="log yearly index, centred", title="egrets, all visits"
        )
        axes[2].legend(fontsize=7)

    folder.figure("egrets", draw, t, panels=3, size=(4.3, 3.8))


def _yearly(totals: F64, year: I64) -> F64:
    """Log of the mean monthly total of each year."""
    return np.asarray(np.log(np.bincount(year, totals) / np.bincount(year)))


def _slope(log_index: F64) -> float:
    return float(np.polyfit(np.arange(len(log_index)), log_index, 1)[0])


def _turnover(folder: Folder, seed: int, quick: bool) -> None:
    seeds = range(1000 * seed, 1000 * seed + (2 if quick else 6))
    scenarios = SCENARIOS[1:3] if quick else SCENARIOS
    size = {"J": 30, "years": 6} if quick else {}
    rows = []
    chosen = {}
    with progress("panels with turnover", len(seeds) * len(scenarios)) as show:
        for scenario in scenarios:
            study = None
            for i, own in enumerate(seeds):
                groups, season, year, truth = simulate_turnover(scenario, own, **size)
                train, test = _split(groups, _held(groups, year, "visits", 0, seed, scenario, i))
                if study is None:
                    study = _Study(size.get("J", 60), season, year, seed, quick)
                    study.tune(train)
                    chosen[scenario] = study.chosen
                for kind, fit in study.best(train).items():
                    index = _yearly(fit.totals(), year)
                    gap = index - index.mean() - (truth - truth.mean())
                    errors = (_slope(index) - _slope(truth), float(np.sqrt(np.mean(gap**2))))
                    rows.append((scenario, own, kind, _score(fit, test), *errors))
                show(len(rows) // len(KINDS))
    t = columns_of(("scenario", "seed", "kind", "deviance", "slope_error", "index_rmse"), rows)
    _draw_turnover(folder, t, scenarios)
    folder.say(
        f"Simulated panels whose observers stay two years, seeds {seeds[0]} to {seeds[-1]}; "
        f"chosen settings {chosen}. "
        "Mean (half the 95 % interval) of the difference of held-out deviance to none, of the slope's error (truth 0.05), "
        "mean "
        "absolute error of the slope, r.m.s. error of the log index; verdict for predicting visits / for the index:\n\n"
        "| observers | kind | deviance | slope's error | absolute | index | verdict |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(_compared(folder, t, scenario, kind) for scenario in scenarios for kind in KINDS)
    )


def _compared(folder: Folder, t: dict[str, Column], scenario: str, kind: str) -> str:
    """Compare a kind with none in a scenario: keep the means, and return the row of the table."""
    at, none = ((t["scenario"] == scenario) & (t["kind"] == k) for k in (kind, "none"))
    deviance, bias, rmse = t["deviance"], t["slope_error"][at], t["index_rmse"]
    mean, error = _paired(deviance[at] - deviance[none])
    change, around = _paired(rmse[at] - rmse[none])
    verdict = "" if kind == "none" else f"{_words(mean, error)} / {_words(change, around)}"
    slope, slope_error = _paired(bias)
    level = float(rmse[at].mean())
    folder.results[f"turnover {scenario} {kind}"] = {"deviance": mean, "index_rmse": level}
    return (
        f"| {scenario} | {kind} | {mean:+.4f} ({error:.4f}) | {slope:+.4f} ({slope_error:.4f}) | "
        f"{np.abs(bias).mean():.4f} | {level:.4f} | {verdict} |"
    )


def _draw_turnover(folder: Folder, t: dict[str, Column], scenarios: Sequence[str]) -> None:
    """Draw deviance, error of the slope and of the index for every kind and scenario."""

    def draw(axes: Sequence[Axes]) -> None:
        for ax, column, words in (
            (axes[0], "deviance", "held-out deviance a visit, less that of none"),
            (axes[1], "slope_error", "error of the yearly slope"),
            (axes[2], "index_rmse", "r.m.s. error of the log index"),
        ):
            for i, kind in enumerate(KINDS):
                for j, scenario in enumerate(scenarios):
                    v = t[column][(t["scenario"] == scenario) & (t["kind"] == kind)]
                    if column == "deviance":
                        v = v - t[column][(t["scenario"] == scenario) & (t["kind"] == "none")]
                    x, label = j + 0.18 * (i - 1.5), kind if j == 0 else None
                    ax.plot(np.full(len(v), x), v, ".", ms=4, color=f"C{i}", alpha=0.6)
                    ax.plot([x - 0.07, x + 0.07], [v.mean()] * 2, color=f"C{i}", lw=2, label=label)
            ax.axhline(0.0, color="0.5", lw=0.8)
            ax.set(xticks=range(len(scenarios)), ylabel=words)
            ax.set_xticklabels(scenarios, fontsize=7)
            ax.legend(fontsize=7)

    folder.figure("turnover", draw, t, panels=3, size=(4.6, 3.8))
