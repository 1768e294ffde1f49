"""Speed of the federated core: `python benchmarks/core_speed.py [--mnist FOLDER]`.

Prints CPU and wall seconds, the ratio to scikit-learn where there is one, and peak memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
import warnings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fedmiss.compressors import Dithering
from fedmiss.core import FedEM, Minibatch, Roster, Spider, Stop, pooled_s_bar, run
from fedmiss.engines import LocalEngine
from fedmiss.experiments.mixture import Mixture, Setting
from fedmiss.models.gmm import GMM, GMMParams, random_rows, second_moment


class Means:
    """s_bar is the mean of the rows: nothing but the core's own work is timed."""

    def __init__(self, q):
        self.q = q

    def s_bar(self, theta, rows):
        return rows.mean(axis=0)

    def s_bar_many(self, theta, data, slots, index):
        return data[slots, 0] if index is None else data[slots[:, None], index].mean(axis=1)

    def T(self, S):
        return S


def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    out = work()
    return out, time.perf_counter() - wall, time.process_time() - cpu


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def row(name, wall, cpu, note=""):
    print(f"{name:58} {wall:8.3f} {cpu:8.3f} {peak():9.0f}  {note}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mnist", help="folder of the four IDX files, to time the whole experiment")
    args = parser.parse_args()
    print(f"{'':58} {'wall s':>8} {'CPU s':>8} {'peak MB':>9}")

    mix = Mixture()
    for s in (Setting(Minibatch(20)), Setting(Spider(5, 20))):  # compile
        run(mix.algo(s), LocalEngine(mix.data), mix.S_0, stop=25)
    total = [0.0, 0.0]
    for name, s in (("FedEM", Setting(Minibatch(20))), ("VR-FedEM", Setting(Spider(5, 20)))):
        r, wall, cpu = timed(
            lambda s=s: run(mix.algo(s), LocalEngine(mix.data), mix.S_0, stop=Stop(epochs=500))
        )
        total = [total[0] + wall, total[1] + cpu]
        row(f"gmm, 500 epochs, {name}", wall, cpu, f"{len(r.trace['k'])} rounds")
    row("gmm, 500 epochs, both", *total)

    for n, q in ((2500, 1000), (5000, 1000), (10_000, 1000), (10_000, 500), (10_000, 250)):
        data = np.random.default_rng(0).normal(size=(n, 1, q))
        algo = FedEM(Means(q), Dithering(), Roster.of([1] * n), 0.1)
        engine = LocalEngine(data)
        run(algo, engine, np.zeros(q), stop=2)
        _, wall, cpu = timed(lambda a=algo, e=engine, q=q: run(a, e, np.zeros(q), stop=10))
        row(
            f"one round, n = {n:,}, q = {q}, dithering + encoding",
            wall / 10,
            cpu / 10,
            f"{wall / 10 / n / q * 1e9:.1f} ns/number",
        )

    rng = np.random.default_rng(0)
    Y = (
        rng.normal(size=(70_000, 20)) * np.linspace(2.5, 0.5, 20)
        + 2 * rng.normal(size=(10, 20))[rng.integers(0, 10, 70_000)]
    )
    model = GMM(10, 20, "tied", YY=second_moment(Y))
    theta = GMMParams(np.full(10, 0.1), random_rows(Y, 10), np.cov(Y.T), "tied")
    shards, roster = Y.reshape(100, 700, 20), Roster.of([700] * 100)
    S = pooled_s_bar(model, theta, shards, roster)

    def ours(count):
        s = S
        for _ in range(count):
            s = pooled_s_bar(model, model.T(s), shards, roster)

    ours(2)
    _, wall, cpu = timed(lambda: ours(20))
    row("one EM iteration, 70,000 x 20, G = 10, fedmiss", wall / 20, cpu / 20)
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError:
        print("scikit-learn is not installed: no ratio")
    else:
        warnings.simplefilter("ignore")
        times = []
        for iterations in (1, 21):
            peer = GaussianMixture(
                10, covariance_type="tied", tol=0, reg_covar=0, max_iter=iterations, weights_init=theta.pi,
                means_init=theta.mu, precisions_init=np.linalg.inv(theta.Sigma),
            )  # fmt: skip
            times.append(timed(lambda p=peer: p.fit(Y))[1:])
        peer_wall, peer_cpu = ((b - a) / 20 for a, b in zip(*times, strict=True))
        row(
            "one EM iteration, the same, scikit-learn tied",
            peer_wall,
            peer_cpu,
            f"ratio {cpu / 20 / peer_cpu:.2f} (CPU)",
        )

    if args.mnist:
        import tempfile
        from pathlib import Path

        from fedmiss.experiments import run_experiment

        with tempfile.TemporaryDirectory() as tmp:
            out = Path(tmp) / "mnist"
            _, wall, cpu = timed(lambda: run_experiment("mnist", out, data=Path(args.mnist), overwrite=True))
            row("experiment mnist: four fits, pooled EM, scikit-learn", wall, cpu)
            print((out / "what_is_seen.md").read_text())


if __name__ == "__main__":
    main()
