"""How long a report takes, and how much memory, at sizes from a small survey to the paper's.

    python benchmarks/report_size.py [--sizes 200x135 1000x240 9721x525]

Folders of the shapes that panel, fit and impute write are made first, by the same code as the tests use; the time is
that of ``build_report`` alone, in a fresh process, so that the peak memory is its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

CHILD = """
import resource, sys, time
from pathlib import Path
from fedmiss.report.analysis import ReportSettings
from fedmiss.report.build import build_report
root = Path(sys.argv[1])
before = time.process_time()
page = build_report(root / "panel", root / "fit", root / "imputed", root / "report", ReportSettings(date="2026-01-02"))
cpu = time.process_time() - before
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{cpu:.2f} {peak:.0f} {page.stat().st_size / 1e6:.2f}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["200x135", "1000x240", "9721x249", "9721x525"])
    parser.add_argument("--draws", type=int, default=200)
    args = parser.parse_args()
    from report.conftest import World, make_folders

    print(
        f"{'sites x months':>16} {'cells':>11} {'draws':>6} {'CPU s':>7} {'wall s':>7} {'peak MiB':>9} {'page MB':>8}"
    )
    for size in args.sizes:
        sites, months = (int(v) for v in size.split("x"))
        with tempfile.TemporaryDirectory() as tmp:
            years, rest = divmod(months, 12)
            world = World(
                n_sites=sites, n_years=years + (rest > 0), last_months=rest or 12, first=2026 - years,
                seen=min(0.25, 12_185 / (sites * months)), n_draws=args.draws, regions=0,
            )  # fmt: skip
            make_folders(Path(tmp), world)
            start = time.perf_counter()
            run = subprocess.run(
                [sys.executable, "-c", CHILD, tmp], capture_output=True, text=True, check=True
            )
            wall = time.perf_counter() - start
            cpu, peak, page = run.stdout.split()
        print(
            f"{size:>16} {sites * months:>11,} {args.draws:>6} {cpu:>7} {wall:>7.2f} {peak:>9} {page:>8}",
            flush=True,
        )


if __name__ == "__main__":
    main()
