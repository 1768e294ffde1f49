"""Make the gallery's second report: simulated eBird files through the whole chain, ``python docs/make_gallery.py FOLDER``.

The gallery says beside it what the simulated truth is.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

RECIPE = """out = "out"
species = ["American Wigeon"]

[ingest]
files = ["sim/ebd_sim.txt"]
sampling = ["sim/ebd_sim_sampling.txt"]
species = ["American Wigeon"]
complete = true

[panel]
groups = 5

[fit]
rank = 1
model = "negbin"
bootstrap = 40

[report]
title = "American Wigeon, simulated"
date = "2026-01-01"
author = "the fedmiss developers"
"""


def make(folder: Path) -> Path:
    """Simulate, import, fit and report in ``folder``; return the report's folder."""
    import fedmiss

    folder.mkdir(parents=True, exist_ok=True)
    settings = fedmiss.simulate.EbirdSettings(records=12_000, species=2, seed=7)
    fedmiss.simulate.simulate_ebird(folder / "sim", settings, overwrite=True)
    (folder / "wigeon.toml").write_text(RECIPE, encoding="utf-8")
    done = fedmiss.pipeline.run_recipe(fedmiss.pipeline.read_recipe(folder / "wigeon.toml"))[0]
    if done.page is None:
        raise SystemExit(f"the gallery's simulated report failed: {done.error}")
    return done.page.parent


def place(target: Path) -> None:
    """Put the report into ``target``, made again only when the version changes."""
    import tempfile

    import fedmiss

    stamp = target / "manifest.json"
    if stamp.exists() and f'"{fedmiss.__version__}"' in stamp.read_text(encoding="utf-8"):
        return
    with tempfile.TemporaryDirectory() as work:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(make(Path(work)), target)


if __name__ == "__main__":
    print(make(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery")))
