"""How a study grows with its organisations, and a fit in one process with its groups.

    python benchmarks/federation_size.py --organisations 3 20 --groups 10 100 1000

Organisations are threads of one process with everything real: programs, keys, masks, signatures, journals; frames lie on a
board. Sites are dealt in turn, so that every organisation has some 15 of them, and 12 years of months. ``frames`` are the
bytes that one organisation sends, ``received`` those that it reads, ``CPU`` is of all organisations together, per
organisation; ``gap`` is the largest relative difference of totals and draws to the same job in one process without masks.
Groups are of one person, of the same visits dealt by site: rank 0 to 2, one fit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np

from fedmiss.federation.circle import Circle
from fedmiss.federation.gather import Board
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.hub.agree import Plan
from fedmiss.federation.hub.job import Joint, Order, run_job
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.masks import Masks, identity, public_key
from fedmiss.federation.member import Member, digest_of
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

JOB = hashlib.sha256(b"size").digest()
MONTHS = 144
NEGBIN = CountSettings(rank=1, dispersion="negbin")


def counts(sites: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Site, month and count of visits to 35 % of all cells."""
    rng = np.random.default_rng(seed)
    t = np.arange(MONTHS)
    eta = 1.5 + rng.normal(0, 0.7, sites)[:, None] + 0.5 * np.cos(2 * np.pi * t / 12) - 0.03 * t / 12
    eta = eta + 0.4 * rng.normal(0, 1, sites)[:, None] * np.sin(2 * np.pi * t / 12)
    site, month = np.nonzero(rng.random((sites, MONTHS)) < 0.35)
    return site, month, rng.poisson(np.exp(eta[site, month]) * rng.gamma(2, 0.5, site.size)).astype(float)


def visits_of(name: str, site: np.ndarray, month: np.ndarray, count: np.ndarray) -> Visits:
    """What one organisation holds."""
    own, at = np.unique(site, return_inverse=True)
    return Visits(
        site_id=np.array([f"{name}-{s}" for s in own], dtype=object), site=at.astype(np.int32), month=24000 + month,
        count=count, detected=count > 0, observer=(at % 5).astype(np.int32), effort=np.zeros((site.size, 0)),
        weight=np.ones(site.size), region=np.full(own.size, "", dtype=object), given=True, calendar=True,
    )  # fmt: skip


def study(n: int, draws: int, folder: Path) -> tuple[dict[str, Joint], dict[str, Link], float, float, Joint]:
    """Run a job at ``n`` organisations and in one process: results, links, CPU and wall seconds, the reference."""
    site, month, count = counts(15 * n)
    names = [f"o{k:03d}" for k in range(n)]
    held = {
        name: visits_of(name, site[m], month[m], count[m])
        for k, name in enumerate(names)
        for m in [site % n == k]
    }
    keys = {name: identity(folder / name / "identity.key") for name in names}
    roster = {name: public_key(k) for name, k in keys.items()}
    order = Order(Plan(joint=False, jointly=True, minimum=5), [NEGBIN], bootstrap=draws)

    def program(name: str) -> GroupProgram:
        return GroupProgram(
            name, held[name], key=bytes(16), secret=name.encode(), settings=bytes(8), jointly=True, minimum=5
        )

    board, results, links, errors = Board(names, patience=3600.0), {}, {}, []

    def one(name: str) -> None:
        try:
            party = Masks(name, keys[name], roster, JOB)
            circle = Circle(party, folder / f"{name}.journal", board.seat(name), digest_of(held[name]))
            links[name] = Link(Member(program(name), circle), JOB[:8], bytes(8), masked=True)
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


def gap(a: Joint, b: Joint) -> float:
    """Largest relative difference of totals and draws."""
    pairs = ((a.totals, b.totals), (a.draws, b.draws))
    return max(float((np.abs(x - y) / np.abs(y)).max()) for x, y in pairs if y.size)


def groups(n: int) -> tuple[float, float]:
    """CPU and wall seconds of one fit of ranks 0 to 2 with ``n`` groups of one person."""
    site, month, count = counts(2000)
    parts = [Group.of(f"g{k:04d}", site[m], month[m], count[m]) for k in range(n) for m in [site % n == k]]
    t = np.arange(MONTHS)
    panel = GroupPanel.of(2000, MONTHS, parts, (t % 12 + 1, 2000 + t // 12))
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
    args = parser.parse_args()
    if args.organisations:
        with tempfile.TemporaryDirectory() as folder:
            study(3, 1, Path(folder))  # compiles
        print("| organisations | exchanges | frames, MB | received, MB | CPU s each | wall s | gap |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for n in args.organisations:
            with tempfile.TemporaryDirectory() as folder:
                results, links, cpu, wall, here = study(n, args.bootstrap, Path(folder))
            total = links["o000"].ledger.total
            up = total.bytes_up / n
            worst = max(gap(r, here) for r in results.values())
            sent = f"{links['o000'].exchange} | {up / 1e6:.2f} | {up * (n - 1) / 1e6:.1f}"
            print(f"| {n} | {sent} | {cpu / n:.2f} | {wall:.0f} | {worst:.1e} |", flush=True)
    if args.groups:
        groups(3)
        print("\n| groups of one person | CPU s | wall s |\n|---|---|---|", flush=True)
        for n in args.groups:
            cpu, wall = groups(n)
            print(f"| {n} | {cpu:.1f} | {wall:.1f} |", flush=True)


if __name__ == "__main__":
    main()
