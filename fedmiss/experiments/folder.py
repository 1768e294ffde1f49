"""What every experiment writes: figures with their CSV, the trace, a manifest and a text of what is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fedmiss.arrays import F64
from fedmiss.core import Result
from fedmiss.files import write_manifest
from fedmiss.pipeline.fit_folder import trace_columns
from fedmiss.tables import write_table

Band = tuple[F64, F64, F64]  # mean, lower and upper edge
Column = NDArray[Any]  # numbers or words, one a row


def subplots(panels: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of panels beside each other, ``width`` and ``height`` inches each."""
    fig = Figure(figsize=(width * panels, height), layout="constrained")
    return fig, [fig.add_subplot(1, panels, i + 1) for i in range(panels)]


def save(fig: Figure, path: Path, ending: str) -> None:
    """Write a figure as svg or png: no date and no random names in it, the same numbers give the same bytes."""
    with rc_context({"svg.hashsalt": "fedmiss"}):
        fig.savefig(path, format=ending, dpi=150, metadata={"Date": None} if ending == "svg" else None)


class Folder:
    """An experiment's folder while it is being made."""

    def __init__(self, path: Path, *, quick: bool, seed: int, data: Path | None) -> None:
        self.path, self.quick, self.seed, self.data = path, quick, seed, data
        self.results: dict[str, object] = {}
        self.inputs: dict[str, str] = {}  # hashes of what was read
        self._traces: list[pd.DataFrame] = []
        self._lines: list[str] = []

    def say(self, text: str) -> None:
        """Add a paragraph to the text of what is seen."""
        self._lines.append(text)

    def trace(self, result: Result, total: int, run: str | None = None) -> None:
        """Keep a run for trace.parquet: columns of schema ``trace``, its name if there are several, what was observed."""
        trace, columns = result.trace, trace_columns(result, total)
        if run is not None:
            columns["run"] = np.full(len(trace["k"]), run)
        known = {*columns, "k", "evaluations", "gamma", "dropped"}
        seen = {name: trace[name] for name in trace if name not in known}
        self._traces.append(pd.DataFrame(columns | seen))

    def table(self, name: str, columns: Mapping[str, ArrayLike]) -> None:
        """Write NAME.csv; columns that are shorter than others end in blanks."""
        table = pd.DataFrame({column: pd.Series(np.asarray(values)) for column, values in columns.items()})
        table.to_csv(self.path / f"{name}.csv", index=False, float_format="%.10g")

    def figure(
        self,
        name: str,
        draw: Callable[[Sequence[Axes]], None],
        columns: Mapping[str, ArrayLike],
        *,
        panels: int = 1,
        size: tuple[float, float] = (6.0, 4.0),
        legend: float | None = None,
    ) -> None:
        """Draw NAME.svg and NAME.png, with the numbers in NAME.csv beside them; ``legend``: font size of the legends."""
        fig, axes = subplots(panels, *size)
        draw(axes)
        for ax in axes:
            ax.grid(alpha=0.3)
            if ax.get_legend_handles_labels()[0]:
                ax.legend(fontsize=legend)
        if self.quick:
            fig.suptitle("quick setting, smaller than the paper's", fontsize=9, color="#a33")
        for ending in ("svg", "png"):
            save(fig, self.path / f"{name}.{ending}", ending)
        self.table(name, columns)

    def finish(self, title: str, **settings: object) -> None:
        """Write trace.parquet, what_is_seen.md and the manifest with the ``settings`` of this experiment."""
        if self._traces:
            # Runs may have observed different things: a column that a run lacks is NaN.
            table = pd.concat(self._traces, ignore_index=True)
            columns = {name: table[name].to_numpy() for name in table}
            write_table(columns, self.path / "trace.parquet", "trace")
        quick = "Quick setting: smaller than the paper's, for a first look only."
        setting = quick if self.quick else "Full setting."
        text = "\n\n".join([f"# {title}", setting, *self._lines])
        (self.path / "what_is_seen.md").write_text(text + "\n", encoding="utf-8")
        settings = {"quick": self.quick, "seed": self.seed, **settings}
        write_manifest(self.path, "experiment", settings=settings, inputs=self.inputs, results=self.results)


def band(values: Sequence[F64]) -> Band:
    """Mean over seeds, and mean -/+ 2 standard errors (not below a tenth of the mean, for a log axis)."""
    stack = np.array(values)
    mean = stack.mean(axis=0)
    error = stack.std(axis=0, ddof=1) / np.sqrt(len(stack)) if len(stack) > 1 else np.zeros_like(mean)
    return mean, np.maximum(mean - 2 * error, 0.1 * mean), mean + 2 * error


def plot_band(ax: Axes, x: ArrayLike, values: Band, colour: str, label: str) -> None:
    """Draw the mean on a log axis, with its edges shaded."""
    mean, low, high = values
    ax.semilogy(x, mean, color=colour, label=label)
    ax.fill_between(x, low, high, color=colour, alpha=0.25, lw=0)


def band_columns(bands: Mapping[str, Band]) -> dict[str, F64]:
    """Columns of means and edges, by the words before each."""
    edges = ("mean", "low", "high")
    return {f"{words} {edge}": values[i] for words, values in bands.items() for i, edge in enumerate(edges)}


def columns_of(names: Sequence[str], rows: Iterable[Sequence[str | float]]) -> dict[str, Column]:
    """Turn rows into the columns of a table."""
    return {name: np.array(value) for name, value in zip(names, zip(*rows, strict=True), strict=True)}
