"""``fedmiss doctor``: says whether this installation is sound."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import typer
from typer import Option

_NEEDED = (
    "filelock", "jinja2", "matplotlib", "numba", "numpy", "pandas", "polars", "pyarrow", "python-calamine", "rich", "scipy",
    "shapely", "typer",
)  # fmt: skip
_EXTRAS = {
    "cryptography": "studies between organisations",
    "nvflare": "studies over a relay",
    "scikit-learn": "SiteMonthImputer, experiments",
    "distributed": "runs over a cluster",
}
_FILES = (("data_schema", "visits.v1.json"), ("reports", "species", "page.html.j2"), ("reports", "basemap", "world.npz"),
          ("pipelines", "everglades-egrets.toml"), ("demo_data", "everglades_great_egret_flights_long.csv"),
          ("pipelines", "everglades-birds.toml"), ("demo_data", "everglades_peak_counts.csv"))  # fmt: skip


def doctor(json: bool = Option(False, "--json", help="Print the findings as JSON.")) -> None:
    """Check the installation: versions, threads, files, disk, a tiny import, and a tiny fit with a known answer."""
    import json as to_json

    findings = []
    for name, check in (
        ("python", _python), ("packages", _packages), ("extras", _extras), ("threads", _threads), ("files", _files),
        ("disk", _disk), ("compiled reader and a tiny import", _read), ("compiled loops and a tiny fit", _fit),
    ):  # fmt: skip
        ok, said = _tried(check)
        findings.append({"check": name, "ok": ok, "said": said})
        if not json:
            typer.echo(f"{'ok  ' if ok else 'FAIL'}  {name}: {said}")
    if json:
        typer.echo(to_json.dumps(findings, indent=2))
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(1)


def _tried(check: Callable[[], tuple[bool, str]]) -> tuple[bool, str]:
    try:
        return check()
    except Exception as error:  # a broken installation can fail in any way; the other checks still run
        return False, f"{type(error).__name__}: {error}"


def _python() -> tuple[bool, str]:
    from fedmiss.version import __version__

    at_least = sys.version_info >= (3, 11)
    return (
        at_least,
        f"fedmiss {__version__}, Python {platform.python_version()} (3.11 or newer), {platform.platform()}",
    )


def _packages() -> tuple[bool, str]:
    version = {name: _version(name) for name in _NEEDED}
    lost = [name for name, found in version.items() if not found]
    said = ", ".join(f"{name} {found}" for name, found in version.items() if found)
    return not lost, said + (f"; not installed: {', '.join(lost)}; run pip install fedmiss" if lost else "")


def _extras() -> tuple[bool, str]:
    return True, "; ".join(
        f"{name} {_version(name) or 'not installed'} ({use})" for name, use in _EXTRAS.items()
    )


def _version(package: str) -> str:
    """Return the version of a package; blank when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _threads() -> tuple[bool, str]:
    from fedmiss.loops import CORES
    from fedmiss.system import cores

    return True, f"{cores()} cores for this process, {CORES} threads for compiled loops"


def _files() -> tuple[bool, str]:
    from fedmiss.resources import resource

    for parts in _FILES:
        resource(*parts)
    return True, f"{len(_FILES)} shipped files are where they belong"


def _disk() -> tuple[bool, str]:
    import shutil

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x").write_bytes(b"x" * 1_000_000)
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    return free > 0.5, f"{tempfile.gettempdir()} takes files; {free:,.1f} GB free (0.5 needed)"


def _read() -> tuple[bool, str]:
    from fedmiss.etl.ingest import ingest
    from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        sim = Path(folder) / "sim"
        simulate_ebird(sim, EbirdSettings(records=1000, seed=1))
        text = sim / "ebd_sim.txt"
        flow = ingest(
            [text], Path(folder) / "out", sampling=[sim / "ebd_sim_sampling.txt"], keep_cache=False
        )["flow"]
        lines = len(text.read_bytes().splitlines()) - 1
    read = next(row["rows"] for row in flow if row["step"].startswith("records"))
    # Every line of the simulated file is a record: none may be lost.
    return read == lines, f"{read:,} of {lines:,} rows read, {time.perf_counter() - start:.1f} s"


def _fit() -> tuple[bool, str]:
    import numpy as np

    from fedmiss import CountSettings, Group, GroupPanel, fit_counts

    start = time.perf_counter()
    site, month = (index.ravel() for index in np.indices((8, 6)))
    # Counts that follow the model exactly: the fit must give them back.
    count = np.exp(0.2 * site + 0.1 * month).astype(np.float64)
    settings = CountSettings(rank=0, time="fixed")
    fit = fit_counts(GroupPanel.of(8, 6, [Group.of("a", site, month, count)]), settings)
    fit_counts(GroupPanel.of(8, 6, [Group.of("a", site, month, np.round(count))]), CountSettings(rank=1))
    error = float(np.abs(fit.expected() / count.reshape(8, 6) - 1).max())
    return error < 1e-3, f"right to {error:.0e} (1e-3 allowed), {time.perf_counter() - start:.1f} s"


def first_use() -> None:
    """Say that loops will be compiled, when no compiled ones lie beside them yet."""
    import fedmiss.models.lowrank as home

    folder = Path(str(home.__file__)).parent
    if (
        os.access(folder, os.W_OK)
        and not os.environ.get("NUMBA_CACHE_DIR")
        and not list(folder.glob("__pycache__/*.nbi"))
    ):
        typer.echo(
            "first use: compiling loops takes some seconds; they are kept for the next time.", err=True
        )
