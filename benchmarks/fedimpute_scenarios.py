"""FedImpute's scenarios re-stated: clients whose values are missing in different ways, and who imputes them best.

    python benchmarks/fedimpute_scenarios.py [--seeds 5]

Scenarios (Min et al., FedImpute: a benchmarking platform for federated imputation): values missing completely at random,
depending on another column (MAR), or on themselves (MNAR, more often where large); the same for all clients, or with
directions and shares that differ between them. FedImpute itself is not run: it brings an environment of its own.

Gaussian tables: ten clients with rows of one normal law of twelve columns and rank 3. ICE is chained linear regression
(scikit-learn's IterativeImputer with ridge): of each client alone, and on all rows pooled, which is what FedImpute's
averaging strategies aim at. fedmiss is the core's FedEM on the multivariate normal with missing entries (EM: Dempster,
Laird, Rubin 1977, section 4.1.3), compressed by dithering. Bytes a client: what crossed; of federated ICE one regression for
each column with gaps, 8 bytes a weight, in each of ten iterations.

Counts: the demo's great egrets in the years that are complete, clients the agencies' regions; scores are the root mean
square error of log(1 + count) and the Poisson deviance.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass

import numpy as np
from league_methods import deviance
from lowrank_peers import markdown
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer
from sklearn.linear_model import BayesianRidge

from fedmiss import Group, GroupPanel
from fedmiss.compressors import Dithering
from fedmiss.core import FedEM, Roster, Stop, pooled_s_bar, run
from fedmiss.engines import LocalEngine
from fedmiss.errors import DomainError
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.pipeline.demo import peak_counts

ICE_ROUNDS = 10
EM_ROUNDS = 30


@dataclass(frozen=True)
class Normal:
    """Parameters of the multivariate normal."""

    mu: np.ndarray
    Sigma: np.ndarray


class MissingNormal:
    """The multivariate normal with missing entries (NaN), s(x) = (x, lower triangle of x x')."""

    def __init__(self, d: int) -> None:
        self.d, self.at = d, np.tril_indices(d)

    @property
    def q(self) -> int:
        return self.d + self.at[0].size

    def moments(self, theta: Normal, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Conditional means (m, d) and covariances (m, d, d) of rows given what is seen of them."""
        seen = np.isfinite(rows)
        gap = np.where(seen, rows - theta.mu, 0.0)
        K = theta.Sigma * (seen[:, :, None] & seen[:, None, :])
        K[
            :, np.arange(self.d), np.arange(self.d)
        ] += ~seen  # ones where nothing is seen: those parts are not used
        C = theta.Sigma * seen[:, None, :]  # covariance of every column with the seen ones
        G = np.linalg.solve(K, C.transpose(0, 2, 1)).transpose(0, 2, 1)
        mean = theta.mu + np.einsum("mij,mj->mi", G, gap)
        return np.where(seen, rows, mean), theta.Sigma - G @ C.transpose(0, 2, 1)

    def s_bar(self, theta: Normal, rows: np.ndarray) -> np.ndarray:
        mean, cov = self.moments(theta, rows)
        second = (np.einsum("mi,mj->ij", mean, mean) + cov.sum(axis=0)) / len(rows)
        return np.concatenate([mean.mean(axis=0), second[self.at]])

    def T(self, S: np.ndarray) -> Normal:
        mu, Sigma = S[: self.d], np.zeros((self.d, self.d))
        Sigma[self.at] = S[self.d :]
        Sigma = Sigma + np.tril(Sigma, -1).T - np.outer(mu, mu)
        if np.linalg.eigvalsh(Sigma)[0] <= 1e-6:
            raise DomainError("the covariance is not positive definite.")
        return Normal(mu, Sigma)


def gaps(
    X: np.ndarray, client: np.ndarray, how: str, rng: np.random.Generator, share: float = 0.3
) -> np.ndarray:
    """(rows, columns) what is hidden, by the scenario ``MECHANISM homogeneous|heterogeneous``; no row is hidden whole."""
    kind, spread = how.split()
    rank = np.argsort(np.argsort(X, axis=0), axis=0) / len(X)
    out = np.zeros(X.shape, dtype=bool)
    for c in np.unique(client):
        mine = client == c
        part, sign = (rng.uniform(0.1, 0.5), rng.choice([-1, 1])) if spread == "heterogeneous" else (share, 1)
        drive = {"MCAR": np.full(X.shape, 0.5), "MAR": np.roll(rank, 1, axis=1), "MNAR": rank}[kind]
        weight = np.exp(2.0 * sign * (drive - 0.5))
        p = np.clip(part * weight / weight[mine].mean(), 0, 0.9)
        out |= (rng.random(X.shape) < p) & mine[:, None]
    out[out.all(axis=1), 0] = False
    return out


SCENARIOS = [
    f"{kind} {spread}" for kind in ("MCAR", "MAR", "MNAR") for spread in ("homogeneous", "heterogeneous")
]


def ice(X: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ten iterations have not converged
        return IterativeImputer(BayesianRidge(), max_iter=ICE_ROUNDS, keep_empty_features=True).fit_transform(
            X
        )


def alone(X: np.ndarray, client: np.ndarray) -> np.ndarray:
    out = np.empty_like(X)
    for c in np.unique(client):
        out[client == c] = ice(X[client == c])
    return out


def fed_em(X: np.ndarray, client: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """The imputed table, and the bytes that a client sent."""
    model, shards = MissingNormal(X.shape[1]), [X[client == c] for c in np.unique(client)]
    roster = Roster.of([len(s) for s in shards])
    first = Normal(np.nanmean(X, axis=0), np.diag(np.nanvar(X, axis=0)))
    start = pooled_s_bar(model, first, shards, roster)
    algo = FedEM(model, Dithering.of(model.q), roster, gamma=0.5, seed=seed)
    result = run(algo, LocalEngine(shards), start, stop=Stop(rounds=EM_ROUNDS))
    out = np.empty_like(X)
    for c, rows in zip(np.unique(client), shards, strict=True):
        out[client == c] = model.moments(result.theta, rows)[0]
    return out, float(result.trace["bytes_up"].sum()) / len(shards)


def gaussian(seeds: int) -> None:
    body = []
    for how in SCENARIOS:
        rmse, sent = {"mean": [], "ICE alone": [], "ICE pooled": [], "FedEM": []}, []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, SCENARIOS.index(how)])
            d, clients = 12, 10
            W = rng.standard_normal((d, 3))
            Y = rng.standard_normal((1500, 3)) @ W.T + 0.7 * rng.standard_normal((1500, d))
            Y = (Y - Y.mean(axis=0)) / Y.std(axis=0)
            client = rng.choice(clients, 1500, p=rng.dirichlet(np.full(clients, 3.0)))
            away = gaps(Y, client, how, rng)
            X = np.where(away, np.nan, Y)
            em, byte = fed_em(X, client, seed)
            sent.append(byte)
            mean = np.where(away, np.nanmean(X, axis=0), X)
            for name, filled in (
                ("mean", mean),
                ("ICE alone", alone(X, client)),
                ("ICE pooled", ice(X)),
                ("FedEM", em),
            ):
                rmse[name].append(np.sqrt(((filled - Y)[away] ** 2).mean()))
        best = np.mean(rmse["ICE pooled"])
        ice_bytes = ICE_ROUNDS * d * d * 8
        body.append((how, *(f"{np.mean(v):.3f}" for v in rmse.values()), f"{np.mean(rmse['FedEM']) / best:.3f}",
                     f"{np.mean(sent):,.0f}", f"{np.mean(sent) / ice_bytes:.2f}"))  # fmt: skip
    head = ["Gaussian table", *rmse, "FedEM / ICE pooled", "bytes a client", "of ICE's"]
    print(markdown(head, body))


def counts(seeds: int) -> None:
    table = peak_counts().to_pandas()
    table = table[table["species"] == "Ardea alba"]
    wide = table.pivot(index="site", columns="year", values="count").dropna(axis=1)
    wide = wide[wide.gt(0).sum(axis=1) >= 3]
    region = table.drop_duplicates("site").set_index("site")["region"].reindex(wide.index)
    client = np.unique(region, return_inverse=True)[1]
    Y, years = wide.to_numpy(float), wide.columns.to_numpy()
    body = []
    for how in SCENARIOS:
        scores = {"mean": [], "ICE alone": [], "ICE pooled": [], "fedmiss": []}
        for seed in range(seeds):
            rng = np.random.default_rng([seed, 50 + SCENARIOS.index(how)])
            away = gaps(Y + rng.uniform(0, 1e-3, Y.shape), client, how, rng)
            X = np.where(away, np.nan, Y)
            L = np.log1p(X)
            filled = {
                "mean": np.where(away, np.nanmean(X, axis=1, keepdims=True), X),
                "ICE alone": np.expm1(np.clip(alone(L, client), 0, 12)),
                "ICE pooled": np.expm1(np.clip(ice(L), 0, 12)),
                "fedmiss": np.where(away, _fedmiss(X, client, years), X),
            }
            for name, value in filled.items():
                error = np.log1p(value[away]) - np.log1p(Y[away])
                scores[name].append((np.sqrt((error**2).mean()), deviance(Y[away], value[away]).mean()))
        means = {k: np.mean(v, axis=0) for k, v in scores.items()}
        body.append((how, *(f"{a:.2f} / {b:.0f}" for a, b in means.values())))
    print(f"\n{Y.shape[0]} colonies, {Y.shape[1]} years, clients {np.bincount(client).tolist()}\n")
    print(markdown(["great egrets: log error / deviance", *scores], body))


def _fedmiss(X: np.ndarray, client: np.ndarray, years: np.ndarray) -> np.ndarray:
    """Expected counts of the default fit, a group for each client."""
    groups = []
    for c in np.unique(client):
        j, t = np.nonzero(np.isfinite(X) & (client == c)[:, None])
        groups.append(Group.of(f"client {c}", j, t, X[j, t], j))
    panel = GroupPanel.of(*X.shape, groups, (np.ones(years.size, np.int64), years.astype(np.int64)))
    federation = LocalFederation.of_panel(panel)
    choice = federation.cross_validate(
        default_candidates(CountSettings(dispersion="negbin")), structure=FEATURES
    )
    return federation.fit_average(choice.members).expected()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    gaussian(seeds)
    counts(seeds)


if __name__ == "__main__":
    main()
