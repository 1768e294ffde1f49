"""Speed of `fedmiss simulate`: rows per CPU second and peak memory, by number of records.

python benchmarks/simulate_files.py            10,000 to 2,000,000 records
python benchmarks/simulate_files.py --full     10,000,000 too (writes 4 GB to a temporary folder)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = (10_000, 200_000, 2_000_000)


def measure(words: list[str]) -> tuple[float, float, float]:
    """Run a command; return CPU seconds, seconds by the clock, peak memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(words)} failed with status {status}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024


def main() -> None:
    fedmiss = [sys.executable, "-c", "from fedmiss.cli.app import main; main()"]
    print(f"{'what':>34} {'CPU s':>8} {'clock s':>8} {'rows per CPU s':>15} {'peak MiB':>9} {'file MB':>8}")
    sizes = (*SIZES, 10_000_000) if "--full" in sys.argv else SIZES
    for records in sizes:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "sim"
            words = [*fedmiss, "simulate", "--records", str(records), "--out", str(out)]
            cpu, clock, peak = measure(words)
            size = sum(p.stat().st_size for p in out.glob("*.txt")) / 1e6
        what = f"files, {records:,} records"
        print(
            f"{what:>34} {cpu:8.1f} {clock:8.1f} {records / cpu:15,.0f} {peak:9.0f} {size:8.0f}", flush=True
        )
    call = "from fedmiss.simulate.panels import simulate_panel as s; s(10_000, 300, {0}, visits={1}, observers=5000)"
    for cells, visits in ((0.03, 100_000), (0.3, 1_000_000), (0.6, 10_000_000)):
        cpu, clock, peak = measure([sys.executable, "-c", call.format(cells, visits)])
        what = f"panel in memory, {visits:,} visits"
        print(f"{what:>34} {cpu:8.1f} {clock:8.1f} {visits / cpu:15,.0f} {peak:9.0f} {'':>8}", flush=True)


if __name__ == "__main__":
    main()
