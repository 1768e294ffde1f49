"""All species together beside each alone: made-up communities, hidden cells, coverage, size, real data, peers.

    python benchmarks/community.py worlds     a further visit to each site: own counts + covariates, all species, both
    python benchmarks/community.py hidden     50, 80, 95 % of cells hidden: the chosen model beside rank 0, GLM, softImpute
    python benchmarks/community.py coverage   held-out counts inside their 95 % interval
    python benchmarks/community.py associations   true correlations inside their 95 % interval
    python benchmarks/community.py groups     ten groups beside one: seconds
    python benchmarks/community.py size --work FOLDER   1,000 sites x 300 species x 240 months of checklists, from files
    python benchmarks/community.py real       peak counts of the Everglades, by colony and species
    python benchmarks/community.py presence   found or not, 6 to 30 species: the chosen model beside rank 0 on hidden cells
    python benchmarks/community.py gllvm      data sets of R's vegan: beside GLLVMs of glmmTMB (both packages of R needed)

Made-up communities: log mean = site + species + response to one covariate + rank 3 factors (spread .7 a loading); counts
negative binomial of size 1 at each of 1 to 10 visits.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import lowrank_peers as peers
import numpy as np
import pandas as pd
from scipy.special import polygamma

from fedmiss.community.associations import associations as intervals
from fedmiss.community.model import Cells, Community, fit_community
from fedmiss.community.outputs import axes_of, left_out_scores
from fedmiss.community.settings import CommunitySettings
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON, negbin_deviance
from fedmiss.models.lowrank.settings import CountSettings

SIZE = 1.0


@dataclass(frozen=True, eq=False)
class World:
    """A community: log means (J, S), a covariate and visits (J,) of the sites, and the truth's random numbers."""

    eta: np.ndarray
    x: np.ndarray
    visits: np.ndarray
    rng: np.random.Generator

    def counts(self, shape: tuple[int, ...]) -> np.ndarray:
        mean = np.exp(self.eta)
        return self.rng.poisson(self.rng.gamma(SIZE, np.broadcast_to(mean / SIZE, shape)))


def world(seed: int, J: int, S: int, rank: int, most: int = 10) -> World:
    r = np.random.default_rng([seed, J, S, rank])
    x = r.normal(size=J)
    eta = r.normal(-1.0, 1.2, S) + r.normal(0, 0.3, J)[:, None] + np.outer(x, r.normal(0, 0.5, S))
    if rank:
        eta = eta + r.normal(size=(J, rank)) @ r.normal(0, 0.7, (rank, S))
    return World(eta, x, r.integers(1, most + 1, J), r)


def whole(w: World, count: np.ndarray, hide: float = 0.0) -> tuple[Cells, np.ndarray]:
    """Cells that sum the visits, and which (J, S) of them are hidden."""
    J, S = w.eta.shape
    hidden = w.rng.random((J, S)) < hide
    j, s = np.nonzero(~hidden)
    return Cells(J, S, j, s, count[j, s].astype(float), w.visits[j].astype(float), np.ones(j.size)), hidden


def deviance(y: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Poisson deviance of each count."""
    return POISSON.deviance(y, np.maximum(m, 1e-6))


def alone(w: World, y: np.ndarray, features: dict[str, np.ndarray]) -> np.ndarray:
    """Expected count (J, S) of each species by its own counts on single visits (v, J, S), and features of the sites."""
    v, j = np.nonzero(np.arange(len(y))[:, None] < w.visits)
    out = np.empty(w.eta.shape)
    settings = CountSettings(
        rank=0, dispersion="negbin", season=False, slopes=False, features=("covariates",) if features else ()
    )
    for s in range(out.shape[1]):
        known = {k: f[:, s] if f.ndim == 2 else f for k, f in features.items()}
        panel = GroupPanel.of(len(w.x), len(y), [Group.of("all", j, v, y[v, j, s].astype(float))])
        fit = fit_counts(replace(panel, covariates=known), settings)
        out[:, s] = fit.expected().mean(axis=1)
    return out


def scores_of(c: Community) -> dict[str, np.ndarray]:
    """Left-out scores as features: axis -> (J, S)."""
    axes = axes_of(c)
    if not c.rank:
        return {}
    each = np.stack(list(left_out_scores(c, axes)), axis=1)
    return {f"axis {k + 1}": each[:, :, k] for k in range(c.rank)}


def glm(w: World, c: Cells) -> np.ndarray:
    """Poisson GLM of each species on the covariate, with the visits as offset."""
    import statsmodels.api as sm

    out = np.empty(w.eta.shape)
    X = np.column_stack([np.ones(len(w.x)), w.x])
    for s in range(w.eta.shape[1]):
        mine = c.species == s
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = sm.GLM(
                c.count[mine], X[c.site[mine]], family=sm.families.Poisson(), exposure=c.exposure[mine]
            )
            try:
                beta = model.fit().params
            except ValueError:  # no bird left, or too few
                beta = np.array(
                    [np.log(max(c.count[mine].sum(), 0.5) / max(c.exposure[mine].sum(), 1.0)), 0.0]
                )
        out[:, s] = np.exp(np.clip(X @ beta, -20, 12))
    return out


def soft(w: World, c: Cells) -> np.ndarray:
    """softImpute on log(1 + count a visit), variant and lambda by 10 % of the cells set aside."""
    rate, J, S = c.count / c.exposure, *w.eta.shape
    aside = np.random.default_rng(5).random(rate.size) < 0.1
    j, s = (a.ravel() for a in np.indices((J, S)))
    tried = peers.soft_impute_tried(c.site, c.species, rate, (j, s), (J, S), aside)
    return min(tried, key=lambda v: v[0])[1].reshape(J, S)


def worlds(seeds: int) -> None:
    rows = []
    for S, J in ((5, 200), (20, 200), (60, 200), (300, 200)):
        for rank in (3, 0):
            for seed in range(seeds if S < 300 else 1):
                w = world(seed, J, S, rank)
                y = w.counts((10, J, S))
                seen = np.arange(10)[:, None, None] < w.visits[:, None]
                c, _ = whole(w, (y * seen).sum(axis=0))
                test = w.counts((J, S)).astype(float)
                start = time.process_time()
                made = fit_community(c, CommunitySettings(seed=seed), covariates={"x": w.x})
                seconds = time.process_time() - start
                every = {
                    "own": alone(w, y, {"x": w.x}), "community": made.fit.expected(),
                    "own + others": alone(w, y, {"x": w.x, **scores_of(made)}),
                }  # fmt: skip
                for name, which in (
                    ("1 visit", w.visits == 1),
                    ("2-3", (w.visits > 1) & (w.visits < 4)),
                    ("all", w.visits > 0),
                ):
                    row = {"S": S, "true rank": rank, "rank": made.rank, "sites": name, "CPU s": seconds}
                    base = deviance(test, every["own"])[which].mean()
                    for m, e in every.items():
                        row[m] = deviance(test, e)[which].mean() / base
                        row[f"{m}, log error"] = ((np.log(np.maximum(e, 1e-6)) - w.eta)[which] ** 2).mean()
                    rows.append(row)
    t = pd.DataFrame(rows)
    print(t.groupby(["true rank", "S", "sites"]).mean(numeric_only=True).round(3).to_string())


def hidden(seeds: int) -> None:
    rows = []
    for rank in (3, 0):
        for share in (0.5, 0.8, 0.95):
            for seed in range(seeds):
                w = world(seed, 200, 60, rank)
                y = sum(w.counts((200, 60)) * (v < w.visits[:, None]) for v in range(10))
                c, hid = whole(w, np.asarray(y), share)
                chosen = fit_community(c, CommunitySettings(seed=seed), covariates={"x": w.x})
                zero = fit_community(c, CommunitySettings(seed=seed, rank=0), covariates={"x": w.x})
                n = w.visits[:, None].astype(float)
                base = deviance(y, n * zero.fit.expected())[hid].mean()
                row = {"true rank": rank, "hidden": share, "rank": chosen.rank}
                means = {"chosen": chosen.fit.expected(), "GLM": glm(w, c), "softImpute": soft(w, c)}
                rows.append(row | {k: deviance(y, n * m)[hid].mean() / base for k, m in means.items()})
    t = pd.DataFrame(rows)
    print(t.groupby(["true rank", "hidden"]).agg(["mean", "max"]).round(3).to_string())


def coverage(seeds: int) -> None:
    for rank in (3, 0):
        inside, drawn_inside, n = 0.0, 0.0, 0
        for seed in range(seeds):
            w = world(seed, 200, 60, rank)
            y = sum(w.counts((200, 60)) * (v < w.visits[:, None]) for v in range(10))
            c, hid = whole(w, np.asarray(y), 0.5)
            made = fit_community(c, CommunitySettings(seed=seed), covariates={"x": w.x})
            fit, rng = AverageFit((made.fit,)), np.random.default_rng(seed)
            k = made.fit.aux.size
            drawn = []
            for _ in range(200):
                mean = w.visits[:, None] * np.exp(np.minimum(fit.draw(rng)(slice(None)), 20))
                drawn.append(rng.poisson(rng.gamma(k, mean / k)))
            low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
            inside += float(((y >= low) & (y <= high))[hid].sum())
            below, ties = (np.array(drawn) < y).mean(axis=0), (np.array(drawn) == y).mean(axis=0)
            place = below + rng.random(y.shape) * ties  # a count has no quantile of 2.5 %: ties at random
            drawn_inside += float(((place > 0.025) & (place < 0.975))[hid].sum())
            n += int(hid.sum())
        print(
            f"true rank {rank}: {100 * inside / n:.1f} % of {n:,} held-out counts in their 95 % interval, "
            f"{100 * drawn_inside / n:.1f} % with ties at random"
        )


def associations_of(seed: int, size: float, J: int = 150, S: int = 20) -> tuple[Cells, np.ndarray]:
    """A community of two axes whose cells have a level of their own, for all visits; its true correlations (S, S).

    Rate of a visit: species + site + axes, times a gamma of mean 1 and shape ``size``, one for each cell. The correlation is
    that of the log rates over all sites that there could be, the levels of sites aside.
    """
    r = np.random.default_rng([seed, J, S, round(100 * size)])
    W, v = r.normal(0, 0.7, (S, 2)), r.integers(1, 5, J)
    eta = r.normal(0, 1, S) + r.normal(0, 0.3, J)[:, None] + r.normal(size=(J, 2)) @ W.T
    y = r.poisson(v[:, None] * np.exp(eta) * r.gamma(size, 1 / size, (J, S)))
    j, s = np.indices((J, S)).reshape(2, -1)
    covariance = W @ W.T + polygamma(1, size) * np.eye(S)
    sd = np.sqrt(np.diag(covariance))
    return Cells(
        J, S, j, s, y[j, s].astype(float), v[j].astype(float), np.ones(j.size)
    ), covariance / np.outer(sd, sd)


def associations(seeds: int) -> None:
    rows = []
    for size in (4.0, 1.0, 0.5):
        for seed in range(seeds):
            c, truth = associations_of(seed, size)
            made = fit_community(c, CommunitySettings(seed=seed))
            start = time.process_time()
            estimate, low, high = intervals(made, axes_of(made)) if made.rank else (np.zeros_like(truth),) * 3
            a, b = np.triu_indices(c.S, 1)
            rows.append(
                {
                    "size": size, "axes": made.rank, "held": made.fit.aux.size,
                    "in the interval": ((truth >= low) & (truth <= high))[a, b].mean(),
                    "half-width": ((high - low)[a, b] / 2).mean(),
                    "error": np.sqrt(((estimate - truth)[a, b] ** 2).mean()),
                    "CPU s": time.process_time() - start,
                }
            )  # fmt: skip
            print(pd.DataFrame(rows[-1:]).round(3).to_string(header=len(rows) == 1), flush=True)
    print(pd.DataFrame(rows).groupby("size").mean().round(3).to_string())


def presence(seeds: int) -> None:
    """Lists with and without each species at 150 sites of 1 to 10 lists; log loss of the hidden cells beside rank 0."""
    rows = []
    for S in (6, 12, 30):
        for rank in (3, 0):
            for share in (0.5, 0.8, 0.95):
                for seed in range(seeds):
                    w = world(seed, 150, S, rank)
                    y = w.rng.binomial(w.visits[:, None], 1 / (1 + np.exp(-w.eta - 1.0)))
                    n, hid = np.repeat(w.visits[:, None], S, axis=1), w.rng.random(y.shape) < share
                    j, s = np.nonzero(~hid)
                    weight = np.r_[y[j, s], (n - y)[j, s]].astype(float)
                    c = Cells(150, S, np.r_[j, j], np.r_[s, s], np.repeat([1.0, 0.0], j.size), None, weight)
                    row = {"S": S, "true rank": rank, "hidden": share}
                    for r in ("auto", 0, 2):
                        made = fit_community(
                            c.take(weight > 0), CommunitySettings(model="presence", rank=r, seed=seed)
                        )
                        p = np.clip(made.fit.expected(), 1e-6, 1 - 1e-6)
                        row[str(r)] = -(y * np.log(p) + (n - y) * np.log(1 - p))[hid].mean()
                    rows.append(row | {k: row[k] / row["0"] for k in ("auto", "2", "0")})
    t = pd.DataFrame(rows)
    print(t.groupby(["S", "true rank", "hidden"])[["auto", "2"]].agg(["mean", "max"]).round(3).to_string())


GLLVM = """
suppressMessages(library(glmmTMB))
d <- read.csv("cells.csv"); d$site <- factor(d$site); d$species <- factor(d$species)
for (r in 1:2) {
  f <- as.formula(sprintf("count ~ 0 + species + (1 | site) + rr(0 + species | site, d = %d)", r))
  m <- glmmTMB(f, data = d[d$hidden == 0, ], family = nbinom2())
  d[[paste0("gllvm", r)]] <- predict(m, newdata = d, type = "response", allow.new.levels = TRUE)
}
write.csv(d, "means.csv", row.names = FALSE)
"""


def gllvm(seeds: int) -> None:
    """Species at three sites or more; a fifth of the cells hidden; Poisson deviance, and that of the negative binomial."""
    for name in ("mite", "dune"):
        with tempfile.TemporaryDirectory() as work:
            get = f"library(vegan); data({name}); write.csv({name}, 'table.csv')"
            subprocess.run(["Rscript", "-e", get], cwd=work, check=True, capture_output=True)
            table = pd.read_csv(Path(work) / "table.csv", index_col=0)
            table = table.loc[:, (table > 0).sum() >= 3]

            def peer(y: np.ndarray, hid: np.ndarray, work: str = work) -> dict[str, np.ndarray]:
                j, s = np.indices(y.shape).reshape(2, -1)
                cells = pd.DataFrame(
                    {"site": j, "species": s, "count": y.ravel(), "hidden": hid.ravel().astype(int)}
                )
                cells.to_csv(Path(work) / "cells.csv", index=False)
                subprocess.run(["Rscript", "-e", GLLVM], cwd=work, check=True, capture_output=True)
                made = pd.read_csv(Path(work) / "means.csv")
                return {f"GLLVM {r}": made[f"gllvm{r}"].to_numpy().reshape(y.shape) for r in (1, 2)}

            score_table(table, seeds, name, peer)


def groups(seeds: int) -> None:
    w = world(0, 400, 100, 3)
    y = sum(w.counts((400, 100)) * (v < w.visits[:, None]) for v in range(10))
    c, _ = whole(w, np.asarray(y))
    seconds = {}
    for name, own in (
        ("one", None),
        ("ten", np.array([f"g{j % 10}" for j in range(400)])),
        ("one again", None),
    ):
        start = time.process_time()
        fit_community(c, CommunitySettings(), covariates={"x": w.x}, groups=own)
        seconds[name] = time.process_time() - start
    print(
        {k: round(v, 1) for k, v in seconds.items()}, "ratio", round(seconds["ten"] / seconds["one again"], 2)
    )


def size(work: Path, lists: int) -> None:
    """Checklists of 1,000 sites over 240 months as a file, imported, and the community's CPU seconds and memory."""
    work.mkdir(parents=True, exist_ok=True)
    table = work / f"lists-{lists}.csv"
    if not table.exists():
        w, r = world(1, 1000, 300, 3), np.random.default_rng(1)
        low = w.eta - 1.5  # some 25 species a list
        with table.open("w") as f:
            f.write("checklist,observer,site,date,duration,complete,species,count\n")
            for n in range(lists):
                j, month, minutes = (
                    int(r.integers(1000)),
                    int(r.integers(240)),
                    int(r.choice([15, 30, 60, 120])),
                )
                mean = np.exp(low[j]) * (minutes / 60) ** 0.6
                y = r.poisson(r.gamma(SIZE, mean / SIZE))
                date = f"{2000 + month // 12}-{1 + month % 12:02d}-{int(r.integers(1, 28)):02d}"
                for s in np.flatnonzero(y):
                    f.write(f"c{n},o{n % 500},s{j},{date},{minutes},1,Avis species{s:03d},{y[s]}\n")
    command = [sys.executable, "-m", "fedmiss"]
    if not (work / "records").exists():
        named = (
            ",".join(f"{n}={n}" for n in "site date species count duration complete observer".split())
            + ",visit=checklist"
        )
        subprocess.run([*command, "ingest", table, "--out", work / "records", "--map", named], check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*command, "community", work / "records", "--out", work / "community", "--overwrite"], check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{lists:,} lists: {cpu / 60:.1f} CPU minutes, largest process {after.ru_maxrss / 2**20:.2f} GiB")


def real(seeds: int) -> None:
    """Sums of peak counts 1993 on by colony and species of the embedded survey; a fifth of the cells hidden."""
    from fedmiss.resources import resource as shipped

    t = pd.read_csv(shipped("demo_data", "everglades_peak_counts.csv"))
    score_table(
        t.pivot_table(index="site", columns="species", values="count", aggfunc="sum").fillna(0.0),
        seeds,
        "Everglades",
    )


def score_table(
    table: pd.DataFrame,
    seeds: int,
    name: str,
    peer: Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]] = lambda y, hid: {},
) -> None:
    """Hide a fifth of the cells of a table of counts and predict them."""
    J, S = table.shape
    y, rows = table.to_numpy(dtype=float), []
    for seed in range(seeds):
        w = World(np.zeros((J, S)), np.zeros(J), np.ones(J, dtype=int), np.random.default_rng(seed))
        c, hid = whole(w, y, 0.2)
        made = fit_community(c, CommunitySettings(seed=seed))
        zero = fit_community(c, CommunitySettings(seed=seed, rank=0))
        means = {"chosen": made.fit.expected(), "GLM": glm(w, c), "softImpute": soft(w, c)} | peer(y, hid)

        def ratio(
            judge: Callable[[np.ndarray, np.ndarray], np.ndarray], m: np.ndarray, e0: np.ndarray
        ) -> float:
            return float(judge(y[hid], m[hid]).mean() / judge(y[hid], e0[hid]).mean())  # noqa: B023

        def negbin(y: np.ndarray, m: np.ndarray) -> np.ndarray:
            return negbin_deviance(y, np.maximum(m, 1e-3), zero.widest)  # noqa: B023

        e0 = zero.fit.expected()
        rows.append(
            {"rank": made.rank}
            | {k: ratio(deviance, m, e0) for k, m in means.items()}
            | {f"{k}, negbin": ratio(negbin, m, e0) for k, m in means.items()}
        )
    print(f"{name}: {J} sites x {S} species, {seeds} masks; deviance of hidden cells beside rank 0")
    print(pd.DataFrame(rows).mean().round(3).to_string())


def main() -> None:
    parts = {
        "worlds": worlds, "hidden": hidden, "coverage": coverage, "groups": groups, "real": real, "presence": presence,
        "gllvm": gllvm, "associations": associations,
    }  # fmt: skip
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["size", *parts])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lists", type=int, default=72_000)
    parser.add_argument("--work", type=Path, default=Path("community-size"))
    a = parser.parse_args()
    if a.part == "size":
        size(a.work, a.lists)
    else:
        parts[a.part](a.seeds)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
