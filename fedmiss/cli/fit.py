"""``fedmiss fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["fit"]


def fit(
    panel: Annotated[Path, typer.Argument(help="Panel folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")] = Path("fit"),
    method: Annotated[
        str,
        typer.Option(
            help="fast (count model), fedmissem (the paper's Algorithm 7), wire (dithered normal equations), or saem (count "
            "model by chains: a check of fast on small panels; rank auto is 0)."
        ),
    ] = "fast",
    model: Annotated[str, typer.Option(help="auto, quasi, negbin, log1p, gaussian or bernoulli.")] = "auto",
    rank: Annotated[str, typer.Option(help="auto (by cross-validation) or a number.")] = "auto",
    penalty: Annotated[
        float | None, typer.Option(help="Ridge on the factors; left out, their variances are estimated.")
    ] = None,
    time: Annotated[
        str,
        typer.Option(
            help="smooth, or fixed: the plain site and time model (Poisson, no effort), which is TRIM's model 3."
        ),
    ] = "smooth",
    effort: Annotated[str, typer.Option(help="auto, none, or some of duration,distance,observers.")] = "auto",
    observers: Annotated[
        str,
        typer.Option(help="Observer effects, kept inside groups (yes or no); they may take part of a trend."),
    ] = "no",
    folds: Annotated[int, typer.Option(help="Folds of the cross-validation.")] = 5,
    folds_by: Annotated[
        str,
        typer.Option(
            help="What a fold holds out: cell (site x month), block (site x year), visit, observer, or auto: cells or "
            "blocks, like the gaps of the panel."
        ),
    ] = "auto",
    one_se: Annotated[
        bool, typer.Option("--one-se", help="Prefer the smallest rank within one standard error.")
    ] = False,
    average: Annotated[
        bool,
        typer.Option(help="Average the ranks that cross-validation cannot tell from the best one."),
    ] = True,
    site_visits: Annotated[
        bool,
        typer.Option(
            help="With the cross-validation, try whether a site's number of visits speaks for its abundance; used only "
            "where left-out sites are predicted clearly better."
        ),
    ] = True,
    max_rank: Annotated[int, typer.Option(help="Largest rank tried.")] = 4,
    bootstrap: Annotated[int, typer.Option(help="Bootstrap replicates for the intervals; 0 for none.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    joint: Annotated[
        bool,
        typer.Option(
            help="Groups exchange sums by site for sites that several of them visit: right where one person holds them all."
        ),
    ] = True,
    minimum: Annotated[
        int,
        typer.Option(
            help="Least number of a group's sites behind a month's sums; visits of months with fewer are withheld."
        ),
    ] = 0,
    own: Annotated[
        bool,
        typer.Option(
            "--own", help="Keep what each group needs for a report about its own sites (fedmiss own)."
        ),
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(help="fedmissem, wire, saem: rounds; left out, 2,000, 100 and 900.")
    ] = None,
    gamma: Annotated[
        float, typer.Option(help="fedmissem: step of the server; 0 for p/(1+omega), less with minibatches.")
    ] = 0.0,
    alpha: Annotated[
        float, typer.Option(help="fedmissem, wire: step size of the memories; 0 for 1/(1+omega).")
    ] = 0.0,
    levels: Annotated[
        int, typer.Option(help="fedmissem, wire: levels of the random dithering; 0 sends floats.")
    ] = 16,
    participation: Annotated[
        float, typer.Option(help="fedmissem, wire, saem: probability that a group answers a round.")
    ] = 1.0,
    batch: Annotated[int, typer.Option(help="fedmissem: visits per round and group; 0 for all.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the folder if it is there.")
    ] = False,
) -> None:
    """Fit the model of a panel over its groups; run it again after an interruption and it goes on."""
    from fedmiss.cli.show import say_written
    from fedmiss.pipeline.fitting import FitSettings, fit_panel

    settings = FitSettings(
        method=method,
        model=model,
        rank=rank,
        penalty=penalty,
        time=time,
        effort=effort,
        observers=observers,
        folds=folds,
        folds_by=folds_by,
        one_se=one_se,
        average=average,
        site_visits=site_visits,
        max_rank=max_rank,
        bootstrap=bootstrap,
        seed=seed,
        joint=joint,
        minimum=minimum,
        own=own,
        rounds=rounds,
        gamma=gamma,
        alpha=alpha,
        levels=levels,
        participation=participation,
        batch=batch,
    )
    say_written(fit_panel(panel, out, settings, overwrite=overwrite), panel)
