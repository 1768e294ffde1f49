"""What a study costs on the wire: ``python benchmarks/federation_wire.py --engine nvflare``.

To be run as root, in the environment of the engine's extra. The demo's study runs in a network namespace that has loopback
only. What the system counted on the organisations' connections to the relay (``ss``) are frames, and what TLS, HTTP, polling
and signs of life add; an engine's own processes at one end are not between organisations. Beside that the ledger, the
median time between two exchanges in an organisation's journal, and masks.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fedmiss.federation.masks import Masks, identity  # noqa: E402
from fedmiss.files import read_manifest  # noqa: E402
from fedmiss.network.demo import CLUBS  # noqa: E402
from fedmiss.network.kits import open_kit  # noqa: E402
from fedmiss.network.outbox import ledger_of  # noqa: E402
from tests.network.ends import loopback_only, prepared_study, whole_run  # noqa: E402


class Wire(threading.Thread):
    """Looks at the organisations' connections to the hub again and again, and keeps the last numbers of each."""

    def __init__(self, inside: list[str], port: int) -> None:
        super().__init__(daemon=True)
        self.command = [*inside, "ss", "-tinpHO", f"dport = :{port}"]
        self.last: dict[str, int] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.2):
            for line in subprocess.run(self.command, capture_output=True, text=True).stdout.splitlines():
                pid, ends = re.search(r"pid=(\d+)", line), line.split()[3:5]
                words = Path(f"/proc/{pid[1]}/cmdline") if pid else Path("/nobody")
                try:
                    mine = "/kits/" in words.read_text()
                except OSError:
                    continue
                counted = re.findall(r"bytes_(?:acked|received):(\d+)", line)
                if mine:
                    self.last["-".join(ends)] = sum(map(int, counted))

    def total(self) -> int:
        self.ended.set()
        return sum(self.last.values())


def masks_cost(kit) -> tuple[float, float]:
    """Milliseconds of an exchange's masks at one of three organisations: median and largest by its journal's sizes."""
    party = Masks(kit.name, identity(kit.key_file), kit.roster, kit.job)
    sizes = [line[2] // 8 for line in ledger_of(kit)[1]]
    took = []
    for exchange, size in enumerate(sizes):
        begun = time.perf_counter()
        party.stream(exchange, size)
        took.append(1e3 * (time.perf_counter() - begun))
    return float(np.median(took)), float(np.max(took))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--engine", default="nvflare")
    options.add_argument("--bootstrap", type=int, default=20)
    options.add_argument("--port", type=int, default=8192)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as tmp, loopback_only() as inside:
        if not inside:
            sys.exit(
                "no network namespace can be made here (`ip netns add`): run as root, or read the ledger only"
            )
        folder, panels = prepared_study(
            Path(tmp), engine=given.engine, port=given.port, bootstrap=given.bootstrap
        )
        begun, looking = time.monotonic(), Wire(inside, given.port)
        looking.start()
        whole_run(folder, panels, inside, seconds=3600)
        seconds, wire = time.monotonic() - begun, looking.total()
        kit = open_kit(folder / "kits" / CLUBS[0])
        r = read_manifest(kit.result, "joint")["results"]
        ledger = r["ledger"]["bytes_up"] + r["ledger"]["bytes_down"]
        times = np.diff([line[1] for line in ledger_of(kit)[1]])
        usual, most = masks_cost(kit)
        for name, value in (
            ("engine, B", f"{given.engine}, {given.bootstrap}"),
            ("exchanges", f"{r['ledger']['exchanges']}"),
            ("ledger, both ways", f"{ledger / 1e6:.2f} MB"),
            ("on the wire, over the ledger", f"{wire / ledger - 1:+.2%}"),
            ("median time from exchange to exchange", f"{1e3 * np.median(times):.0f} ms"),
            ("job after all were ready; in all", f"{r['seconds']:.0f} s; {seconds:.0f} s"),
        ):
            print(f"| {name} | {value} |")
        print(f"\nmasks of an exchange, three organisations: median {usual:.2f} ms, largest {most:.2f} ms")


if __name__ == "__main__":
    main()
