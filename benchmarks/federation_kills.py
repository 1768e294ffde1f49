"""Random kills -9 of a study's ends: ``python benchmarks/federation_kills.py --kills 50 [--engine nvflare]``.

A study of three clubs is run again and again from the same start; in each run some ends are killed at random: the engine of
an organisation, `join` with its engine, or `run` with its engine. `join` and `run` are started again, nothing else is done.
Every result must have the bits of the run that was not interrupted. ``--away .33``: what was killed stays away until it has
been off for this share of the time since it was started.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fedmiss.atomic import read_json  # noqa: E402
from fedmiss.network.demo import CLUBS  # noqa: E402
from tests.network.ends import Ends, prepared_study, result_of  # noqa: E402

PER_RUN = 3  # kills in one run, unless --per-run says otherwise


def started(folder: Path, panels: dict[str, Path]) -> Ends:
    ends = Ends(folder, panels)
    for name in ends.names:
        ends.start(name)
    return ends


def killed(ends: Ends, chance: random.Random, kills: int, exchanges: int, away: float) -> list[str]:
    """Run to the end with so many kills at random ones of its exchanges; what was killed."""
    done, since = [], dict.fromkeys(ends.names, time.monotonic())
    at = sorted(chance.randrange(2, exchanges) for _ in range(kills))
    for exchange in at:
        try:
            ends.until(exchange, seconds=300)
        except AssertionError:
            break
        what = chance.choice(["organisation"] if ends.by_folder else ["engine", "organisation", "hub"])
        name = "hub" if what == "hub" else chance.choice(CLUBS)
        if ends.processes[name].poll() is not None:
            break
        if what == "engine":
            ends.kill_engine_only(name)
        else:
            ends.kill(name)
            off = (time.monotonic() - since[name]) * away / (1.0 - away)
            time.sleep(off)
            ends.start(name)
            since[name] = time.monotonic()
            what = f"{what}, away {off:.0f} s" if away else what
        done.append(f"{name} ({what}) at {exchange}")
    ends.wait(seconds=600)
    return done


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--engine", default="folder")
    options.add_argument("--per-run", type=int, default=PER_RUN)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--port", type=int, default=8152)
    options.add_argument("--away", type=float, default=0.0)
    given = options.parse_args()
    chance, total, same, runs = random.Random(given.seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as tmp:
        folder, panels = prepared_study(Path(tmp), engine=given.engine, port=given.port)
        reference, exchanges = None, 0
        print("| run | killed | seconds | same bits |\n|---|---|---|---|")
        while total < given.kills or reference is None:
            copy = folder.parent / f"run-{runs}"
            shutil.copytree(folder, copy)
            begun, ends = time.monotonic(), started(copy, panels)
            try:
                kills = 0 if reference is None else min(given.per_run, given.kills - total)
                what = killed(ends, chance, kills, exchanges, given.away)
            finally:
                ends.stop()
            stands = read_json(copy / "kits" / CLUBS[0] / "private" / "status.json")
            got, exchanges = result_of(copy), int(stands["exchanges"])
            reference = got if reference is None else reference
            equal = bool(np.array_equal(got, reference))
            total, same, runs = total + len(what), same + equal, runs + 1
            print(
                f"| {runs} | {'; '.join(what) or 'nothing'} | {time.monotonic() - begun:.0f} | {equal} |",
                flush=True,
            )
            shutil.rmtree(copy)
    print(f"\n{total} kills in {runs - 1} runs, {same - 1} with the bits of the run without")


if __name__ == "__main__":
    main()
