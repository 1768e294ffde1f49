"""One club's process is off for a third of the time: ``python benchmarks/federation_absence.py [--engine nvflare]``.

A study of three clubs, every end a process, is run twice from the same start. In the second run one club's process is
killed -9 after a third of the exchanges and stays off for half of the first run's time; the others wait for it. Nothing else
is done. The table has the seconds, the exchanges, and whether the results have the same bits.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fedmiss.files import read_json  # noqa: E402
from fedmiss.network.demo import CLUBS  # noqa: E402
from tests.network.ends import Ends, prepared_study, result_of  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--engine", default="folder")
    options.add_argument("--port", type=int, default=8153)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        folder, panels = prepared_study(Path(tmp), engine=given.engine, port=given.port)
        whole, exchanges, results = 0.0, 0, []
        print("| run | seconds | off | exchanges | same bits |\n|---|---|---|---|---|")
        for run in ("all present", f"{CLUBS[0]} off"):
            copy = folder.parent / run.replace(" ", "-")
            shutil.copytree(folder, copy)
            begun, off, ends = time.monotonic(), 0.0, Ends(copy, panels)
            try:
                for name in ends.names:
                    ends.start(name)
                if results:
                    ends.until(exchanges // 3, seconds=300)
                    ends.kill(CLUBS[0])
                    off = 0.5 * whole
                    time.sleep(off)
                    ends.start(CLUBS[0])
                ends.wait(900)
            finally:
                ends.stop()
            seconds = time.monotonic() - begun
            whole = whole or seconds
            stands = read_json(copy / "kits" / CLUBS[0] / "private" / "status.json")
            exchanges = int(stands["exchanges"])
            results.append(result_of(copy))
            equal = bool(np.array_equal(results[0], results[-1]))
            print(f"| {run} | {seconds:.0f} | {off:.0f} | {exchanges} | {equal} |", flush=True)


if __name__ == "__main__":
    main()
