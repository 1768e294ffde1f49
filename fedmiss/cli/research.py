"""Commands of method researchers: made-up data, the papers' figures, traces of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from fedmiss.cli.options import Out, Overwrite, refuse_typed
from fedmiss.cli.show import say_written
from fedmiss.files import read_manifest

_OF_FILES = ("records", "species", "end", "columns", "blank_last", "gz")
_OF_PANELS = ("months", "observed", "family", "rank", "groups", "observer_sd", "effort_sd")


def simulate(
    context: typer.Context,
    out: Out = Path("simulated"),
    records: int = Option(200_000, help="Rows of the observation file, 1000 to 50 million."),
    seed: int = Option(0, help="Seed: the same seed gives the same files."),
    species: int = Option(16, help="Number of species, 1 to 24."),
    start: str = Option("2010-01", help="First month, YYYY-MM."),
    end: str = Option("2020-12", help="Last month, YYYY-MM."),
    sites: int = Option(0, help="Sites of the country (1,000 for --panel); 0 chooses a realistic number."),
    observers: int = Option(
        0, help="Observers of the country (100 for --panel); 0 chooses a realistic number."
    ),
    columns: str = Option("52", help="Layout: 52 (since 2025), 49 (2021-2024) or 46 columns (to 2020)."),
    blank_last: bool = Option(
        False, "--blank-last", help="End each line with a tab, as some eBird files do."
    ),
    gz: bool = Option(False, "--gz", help="Write .txt.gz."),
    panel: str = Option(
        "",
        help="Write a panel folder that `fedmiss fit` reads, not eBird files: random, preferential or weak.",
    ),
    months: int = Option(200, help="With --panel: number of months, from --start."),
    observed: float = Option(0.1, help="With --panel: share of cells with a visit."),
    family: str = Option("poisson", help="With --panel: poisson, negbin or bernoulli."),
    rank: int = Option(2, help="With --panel: rank of the interactions."),
    groups: int = Option(10, help="With --panel: number of groups of observers."),
    observer_sd: float = Option(
        0.0, help="With --panel: standard deviation of observer effects (log scale)."
    ),
    effort_sd: float = Option(
        0.0, help="With --panel: standard deviation of log effort; 0 makes all visits one hour."
    ),
    overwrite: Overwrite = False,
) -> None:
    """Write simulated data with known truth: eBird-format files of any size, or a panel."""
    if panel:
        refuse_typed(context, _OF_FILES, "it is for eBird files, and --panel writes a panel")
        from fedmiss.simulate.panel_folder import write_panel
        from fedmiss.simulate.panels import simulate_panel

        options: dict[str, Any] = {
            "sites": sites or 1000, "months": months, "observed": observed, "kind": panel, "family": family,
            "rank": rank, "seed": seed, "observers": observers or max(100, groups), "groups": groups,
            "observer_sd": observer_sd, "effort_sd": effort_sd,
        }  # fmt: skip
        made = simulate_panel(**options)
        say_written(write_panel(made, out, start=start, settings=options, overwrite=overwrite))
        return
    refuse_typed(context, _OF_PANELS, "it is for --panel, and eBird files are written")
    from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird

    settings = EbirdSettings(records, species, start, end, sites, observers, columns, blank_last, gz, seed)
    say_written(simulate_ebird(out, settings, overwrite=overwrite))
    typer.echo("How realistic it is (quantiles are 25/50/75/90/99 % and the maximum):")
    for row in read_manifest(out)["results"]["marginals"]:
        real, got = (" / ".join(f"{value:g}" for value in row[key]) for key in ("real", "simulated"))
        typer.echo(f"  {row['what']}: {got} (real extracts: {real})")


def experiment(
    name: str = Argument(help="Name of the experiment; a wrong name lists all names."),
    out: Path | None = Option(None, "--out", "-o", help="Folder to make; default experiment-NAME."),
    quick: bool = Option(False, "--quick", help="A smaller setting, labelled so, in a few seconds."),
    seed: int = Option(0, help="Seed: the same seed gives the same numbers."),
    data: Path | None = Option(
        None, "--data", help="Folder of input data, for experiments that need them (mnist)."
    ),
    overwrite: Overwrite = False,
) -> None:
    """Reproduce a figure of the papers: figures, their numbers, and a text of what is seen."""
    from fedmiss.experiments import run_experiment

    where = out or Path(f"experiment-{name}")
    folder = run_experiment(name, where, quick=quick, seed=seed, data=data, overwrite=overwrite)
    typer.echo((folder / "what_is_seen.md").read_text(encoding="utf-8").strip())
    typer.echo(f"\nFigures and tables: {folder}")


def plot(
    path: Path = Argument(help="A trace.parquet, or the folder of a fit or an experiment."),
    out: Path | None = Option(
        None,
        "--out",
        "-o",
        help="Name of the figures, no extension.",
        show_default="FOLDER-trace beside the folder",
    ),
    by: str = Option("round", help="Horizontal axis: round, epochs, bytes or seconds."),
    overwrite: bool = Option(False, "--overwrite", help="Replace figures that fedmiss wrote."),
) -> None:
    """Draw the trace of a run: ||H||^2, the true field and the objective where known (svg, png, csv)."""
    from fedmiss.experiments.plot_trace import plot_trace

    for file in plot_trace(path, out, by, overwrite=overwrite):
        typer.echo(f"wrote {file}")
