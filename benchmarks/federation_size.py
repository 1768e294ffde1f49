"""How a study grows with its organisations, and a fit in one process with its groups.

    python benchmarks/federation_size.py --organisations 3 20 --groups 10 100 1000

Organisations are threads of one process with everything real: programs, keys, masks, signatures, journals; frames lie on a
board. Sites are dealt in turn, so that every organisation has 15 of them (60 with ``--whole``), and 12 years of months.
``frames`` are the bytes that one organisation sends, ``received`` those that it reads, ``CPU`` is of all organisations, per
organisation; ``gap`` is the largest relative difference of totals and draws to the same job in one process without masks.
Each study is run with whole sums and with differences on a lattice (``compress``). ``--whole`` runs the default job (rank,
structure and dispersion are chosen) instead of one fit of rank 1, over ``--months`` months.
Groups are of one person, of the same visits dealt by site: rank 0 to 2, one fit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np

from fedmiss.federation.circle import Circle
from fedmiss.federation.gather import Board
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits, digest_of
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobResult, JobSpec, run_job
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.masks import Masks, identity, public_key
from fedmiss.federation.member import Member
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.network.study import Study

JOB = hashlib.sha256(b"size").digest()
NEGBIN = CountSettings(rank=1, dispersion="negbin")


def counts(sites: int, months: int = 144, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Site, month and count of visits to 35 % of all cells."""
    rng = np.random.default_rng(seed)
    t = np.arange(months)
    eta = 1.5 + rng.normal(0, 0.7, sites)[:, None] + 0.5 * np.cos(2 * np.pi * t / 12) - 0.03 * t / 12
    eta = eta + 0.4 * rng.normal(0, 1, sites)[:, None] * np.sin(2 * np.pi * t / 12)
    site, month = np.nonzero(rng.random((sites, months)) < 0.35)
    return site, month, rng.poisson(np.exp(eta[site, month]) * rng.gamma(2, 0.5, site.size)).astype(float)


def visits_of(name: str, site: np.ndarray, month: np.ndarray, count: np.ndarray) -> Visits:
    """What one organisation holds."""
    own, at = np.unique(site, return_inverse=True)
    return Visits(
        site_id=np.array([f"{name}-{s}" for s in own], dtype=object), site=at.astype(np.int32), month=24000 + month,
        count=count, detected=count > 0, observer=(at % 5).astype(np.int32), effort=np.zeros((site.size, 0)),
        weight=np.ones(site.size), region=np.full(own.size, "", dtype=object), given=True, calendar=True,
    )  # fmt: skip


def study(
    n: int, draws: int, folder: Path, *, compress: bool = False, whole: bool = False, months: int = 144
) -> tuple[dict[str, JobResult], dict[str, Link], float, float, JobResult]:
    """Run a job at ``n`` organisations and in one process: results, links, CPU and wall seconds, the reference."""
    site, month, count = counts((60 if whole else 15) * n, months)
    names = [f"o{k:03d}" for k in range(n)]
    held = {
        name: visits_of(name, site[m], month[m], count[m])
        for k, name in enumerate(names)
        for m in [site % n == k]
    }
    keys = {name: identity(folder / name / "identity.key") for name in names}
    roster = {name: public_key(k) for name, k in keys.items()}
    plan = DataSpec(jointly=True, minimum=5)
    proposed = Study("size", "a species", tuple(names), model={"bootstrap": draws}).order()
    order = replace(proposed, plan=plan) if whole else JobSpec(plan, [NEGBIN], bootstrap=draws)

    def program(name: str) -> GroupProgram:
        return GroupProgram(
            name, held[name], secret=name.encode(), settings=bytes(8), jointly=True, minimum=5
        )

    board, results, links, errors = Board(names, patience=3600.0), {}, {}, []

    def one(name: str) -> None:
        try:
            party = Masks(name, keys[name], roster, JOB)
            circle = Circle(party, folder / f"{name}.journal", board.seat(name), digest_of(held[name]))
            links[name] = Link(
                Member(program(name), circle, compress=compress), JOB[:8], bytes(8), masked=True
            )
            results[name] = run_job(links[name], order)
        except BaseException as error:
            errors.append(error)

    here = run_job(Link(InProcess({name: program(name) for name in names}), bytes(8), bytes(8)), order)
    wall, cpu = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results, links, time.process_time() - cpu, time.perf_counter() - wall, here


def gap(a: JobResult, b: JobResult) -> float:
    """Largest relative difference of totals and draws."""
    pairs = ((a.totals, b.totals), (a.draws, b.draws))
    return max(float((np.abs(x - y) / np.abs(y)).max()) for x, y in pairs if y.size)


def groups(n: int) -> tuple[float, float]:
    """CPU and wall seconds of one fit of ranks 0 to 2 with ``n`` groups of one person."""
    site, month, count = counts(2000)
    parts = [Group.of(f"g{k:04d}", site[m], month[m], count[m]) for k in range(n) for m in [site % n == k]]
    t = np.arange(144)
    panel = GroupPanel.of(2000, 144, parts, (t % 12 + 1, 2000 + t // 12))
    cpu, wall = time.process_time(), time.perf_counter()
    LocalFederation.of_panel(panel).fit(CountSettings(rank=2, dispersion="negbin"))
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--organisations", type=int, nargs="*", default=[3, 20, 100])
    parser.add_argument("--groups", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--bootstrap", type=int, default=20)
    parser.add_argument("--whole", action="store_true", help="the default job")
    parser.add_argument("--months", type=int, default=144)
    args = parser.parse_args()
    if args.organisations:
        with tempfile.TemporaryDirectory() as folder:
            study(3, 1, Path(folder))  # compiles
        print("| organisations | sums | exchanges | frames, MB | received, MB | CPU s each | wall s | gap |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for n, compress in itertools.product(args.organisations, (False, True)):
            with tempfile.TemporaryDirectory() as folder:
                results, links, cpu, wall, here = study(
                    n, args.bootstrap, Path(folder), compress=compress, whole=args.whole, months=args.months
                )
            total = links["o000"].ledger.total
            up = total.bytes_up / n
            worst = max(gap(r, here) for r in results.values())
            sums = "differences" if compress else "whole"
            sent = f"{links['o000'].exchange} | {up / 1e6:.2f} | {up * (n - 1) / 1e6:.1f}"
            print(f"| {n} | {sums} | {sent} | {cpu / n:.2f} | {wall:.0f} | {worst:.1e} |", flush=True)
    if args.groups:
        groups(3)
        print("\n| groups of one person | CPU s | wall s |\n|---|---|---|", flush=True)
        for n in args.groups:
            cpu, wall = groups(n)
            print(f"| {n} | {cpu:.1f} | {wall:.1f} |", flush=True)


if __name__ == "__main__":
    main()
