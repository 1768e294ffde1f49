"""The demo: three organisations on one computer, the embedded survey split by the regions of its agencies."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedmiss.atomic import atomic_file, read_json, write_json
from fedmiss.errors import EngineError
from fedmiss.etl.ingest import ingest
from fedmiss.etl.panel import make_panel
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.hub.job import JobResult, run_job
from fedmiss.federation.link import InProcess, Link
from fedmiss.files import SECRET, check_free, read_manifest
from fedmiss.folders import JointFacts
from fedmiss.network.engine import provision
from fedmiss.network.kits import Kit, enrol, open_kit
from fedmiss.network.member import held
from fedmiss.network.processes import stop_on_request
from fedmiss.network.proposer import collect_roster, make_study
from fedmiss.network.study import Study, read_study
from fedmiss.pipeline.demo import peak_counts
from fedmiss.pipeline.panels import open_panel
from fedmiss.system import change_owner, in_own_group, interrupt_process, is_administrator
from fedmiss.tables import read_table

CLUBS = ("central", "north", "south")
PORT = 8102
REGIONS_OF = {
    "north": ("Loxahatchee (WCA 1)",),  # a national wildlife refuge
    "central": ("WCA 2", "WCA 3"),  # of the state
    "south": ("Everglades National Park", "elsewhere"),
}


def club_panels(out: Path) -> dict[str, Path]:
    """Write each organisation's yearly counts of great egrets and make its panel; organisation -> panel folder."""
    table = peak_counts().filter(pl.col("species") == "Ardea alba")
    panels = {}
    for club in CLUBS:
        mine = table.filter(pl.col("region").is_in(REGIONS_OF[club]))
        folder = out / club
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / "counts.csv") as tmp:
            mine.write_csv(tmp)
        ingest([folder / "counts.csv"], folder / "records", overwrite=True)
        panels[club] = folder / "panel"
        make_panel(folder / "records", panels[club], overwrite=True)
    return panels


def demo_study(*, bootstrap: int, port: int = PORT, masks: bool = True, engine: str = "folder") -> Study:
    """The study of the demo. The model is the one that cross-validation of all models chooses on these counts, too."""
    relay: dict[str, Any] = {"port": port, "patience": 120.0} if engine == "nvflare" else {}
    return Study(
        name="egrets", species="Ardea alba", organisations=CLUBS, minimum=5, masks=masks, engine=engine,
        model={"model": "quasi", "max_rank": 2, "bootstrap": bootstrap}, **relay,
    )  # fmt: skip


def prepare(out: Path, study: Study) -> tuple[Path, dict[str, Path]]:
    """Panels, kits, keys and approvals of the demo: the study's folder, and club -> panel."""
    panels = club_panels(out / "clubs")
    folder = make_study(study, out / "study", provision, overwrite=True)
    kits = [open_kit(folder / "kits" / club) for club in study.organisations]
    collect_roster(folder, [enrol(kit) for kit in kits])
    return folder, panels


def in_process(folder: Path, panels: dict[str, Path]) -> JobResult:
    """The same job in this process, without network, journal and masks: what the network's answer is compared with."""
    study = read_study(folder)
    programs, job = {}, bytes(8)
    for club, panel in panels.items():
        kit = open_kit(folder / "kits" / club)
        job = kit.job[:8]
        programs[club] = GroupProgram(
            club, held(kit, open_panel(panel)), secret=(kit.private / SECRET).read_bytes(),
            jointly=True, minimum=study.minimum, contributors=study.contributors, own_sites=kit.own_sites,
        )  # fmt: skip
    # folds and replicates follow from the secrets and the job
    return run_job(Link(InProcess(programs), job, bytes(8)), study.order())


def run_demo(
    out: Path,
    *,
    bootstrap: int = 200,
    port: int = PORT,
    masks: bool = True,
    engine: str = "folder",
    say: Callable[[str], None] = print,
) -> dict[str, object]:
    """Run the demo's study with every end in its own process, and compare with the answer in one process."""
    check_free(out, overwrite=False)
    stop_on_request()
    begun = time.monotonic()
    study = demo_study(bootstrap=bootstrap, port=port, masks=masks, engine=engine)
    folder, panels = prepare(out, study)
    users = _users(folder, panels, engine)
    say(f"study {study.name}: {', '.join(CLUBS)}; each is a process" + (" of its own user" if users else ""))
    job = open_kit(folder / "kits" / CLUBS[0]).job.hex()
    shared = out / "shared-folder"
    shared.mkdir()
    if users:
        shared.chmod(0o777)
    ends = {}
    for club in CLUBS:
        end = [str(folder / "kits" / club), str(panels[club])]
        command = ["join", *end, "--approve", job[:12], "--unit", "nests"]
        way = ["--folder", str(shared)] if engine == "folder" else []
        ends[club] = _fedmiss([*command, *way], out / f"{club}.log", users.get(club))
    if engine != "folder":
        ends["relay"] = _fedmiss(["run", str(folder)], out / "relay.log", None)
    try:
        _wait(ends, out)
    finally:
        for process in ends.values():
            stop(process)
    seconds = time.monotonic() - begun
    kits = {c: open_kit(folder / "kits" / c) for c in CLUBS}
    summary = compare(folder, panels, kits) | {
        "seconds_in_all": seconds,
        "engine": engine, "bootstrap": bootstrap, "masks": masks, "separate_users": bool(users), "job": job,
        "joint_report": str(kits[CLUBS[0]].folder / "joint" / "index.html"),
        "own_reports": {c: str(k.folder / "report" / "report" / "index.html") for c, k in kits.items()},
    }  # fmt: skip
    write_json(out / "summary.json", summary)
    say(f"largest relative difference to one process: {summary['largest_relative_difference']:.1e}")
    say(
        f"{summary['exchanges']} exchanges, {summary['seconds_of_job']:.0f} s of the job, {seconds:.0f} s in all"
    )
    say(f"joint report: {summary['joint_report']}")
    say(f"own report:   {summary['own_reports'][CLUBS[0]]}")
    say(f"summary:      {out / 'summary.json'}")
    return summary


def compare(folder: Path, panels: dict[str, Path], kits: dict[str, Kit]) -> dict[str, Any]:
    """The answer of each organisation beside that of one process, and what it cost."""
    here, pairs = in_process(folder, panels), []
    for kit in kits.values():
        totals = np.array(read_json(kit.result / "totals.json")["totals"])
        table = read_table(kit.result / "draws.parquet", "draws").to_pandas()
        draws = table["total"].to_numpy(float).reshape(here.draws.shape)
        pairs += [(totals, here.totals), (draws, here.draws)]
    gap = max(float((np.abs(a - b) / np.maximum(np.abs(b), 1e-300)).max(initial=0.0)) for a, b in pairs)
    manifest = read_manifest(next(iter(kits.values())).result, "joint")
    r = JointFacts.of(manifest["results"], "the joint result")
    return {
        "largest_relative_difference": gap, "bits_equal": all(np.array_equal(a, b) for a, b in pairs),
        "exchanges": r.ledger["exchanges"], "bytes_of_frames": r.ledger["bytes_up"],
        "seconds_of_job": r.seconds, "model": r.model, "rank": r.rank, "withheld_visits": r.withheld_visits,
    }  # fmt: skip


def _fedmiss(arguments: list[str], log: Path, user: int | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedmiss.cli.app", "federation", *arguments]
    home = {} if user is None else {"HOME": str(log.parent / "clubs" / log.stem)}
    with open(log, "ab") as stream:
        return subprocess.Popen(
            command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env={**os.environ, **home},
            **in_own_group(), user=user, group=user, extra_groups=None if user is None else [],
        )  # fmt: skip


def _users(folder: Path, panels: dict[str, Path], engine: str) -> dict[str, int]:
    """Return a user number for every club, where this process may change owners and such users may run Python."""
    if not is_administrator():
        return {}
    users = {club: 61001 + i for i, club in enumerate(CLUBS)}
    first = users[CLUBS[0]]
    with tempfile.TemporaryDirectory(prefix="fedmiss-") as home:
        change_owner(home, first)
        try:
            probe = subprocess.run(
                [sys.executable, "-c", f"import fedmiss.network.{engine}"], user=first, group=first, extra_groups=[],
                capture_output=True, cwd="/", env={**os.environ, "HOME": home},
            )  # fmt: skip
        except OSError:
            return {}
    if probe.returncode != 0 or not all(os.stat(p).st_mode & 0o001 for p in folder.resolve().parents):
        return {}
    give_away(folder, panels, users)
    return users


def give_away(folder: Path, panels: dict[str, Path], users: dict[str, int]) -> None:
    """Make every club's user the only owner of its kit and data; do the same for the relay's folder."""
    for club, user in users.items():
        for root in (folder / "kits" / club, panels[club].parent):
            for path in [root, *root.rglob("*")]:
                change_owner(path, user)
            root.chmod(0o700)
    (folder / "hub").chmod(0o700)


def _wait(ends: dict[str, subprocess.Popen[bytes]], out: Path) -> None:
    """Wait until all ends are done; the first that fails ends the demo, with its last line."""
    left = dict(ends)
    while left:
        for name, process in list(left.items()):
            if process.poll() is None:
                continue
            del left[name]
            if process.returncode:
                lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
                raise EngineError(
                    f"{name} ended with {process.returncode}: {lines[-1] if lines else 'no reason given'}"
                )
        time.sleep(0.2)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, so that it ends its engine too."""
    if process.poll() is None:
        interrupt_process(process)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
