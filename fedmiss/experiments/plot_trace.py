"""Draw a trace table: the rounds of a run."""

from __future__ import annotations

from pathlib import Path

from fedmiss.atomic import atomic_file
from fedmiss.errors import ConfigError, InputError
from fedmiss.experiments.folder import save, subplots
from fedmiss.files import making_files
from fedmiss.tables import read_table

_AXES = {"round": "round", "epochs": "epochs", "bytes": "bytes up", "seconds": "seconds"}
_ENDINGS = ("svg", "png", "csv")


def plot_trace(
    path: Path, out: Path | None = None, by: str = "round", *, overwrite: bool = False
) -> list[Path]:
    """Draw a trace.parquet (or that of a folder) to svg and png, with the drawn numbers as csv.

    Parameters
    ----------
    path : the table, or a folder that holds a trace.parquet
    out : name of the figures without ending; default: FOLDER-trace beside the folder that holds the table
    by : horizontal axis: round, epochs, bytes (sum of bytes up so far) or seconds

    Returns
    -------
    The files written

    Raises
    ------
    ConfigError    a file of that name is there and not to be overwritten, was not written by fedmiss, or would lie
        inside a folder of fedmiss
    """
    if by not in _AXES:
        raise ConfigError(f"--by {by} is unknown; use {', '.join(_AXES)}.")
    file = path / "trace.parquet" if path.is_dir() else path
    if not file.exists() or file.suffix != ".parquet":
        raise InputError(
            f"{file} is no trace (trace.parquet); `fedmiss fit` and `fedmiss experiment` write one, and plot takes their "
            "folder.",
            path=str(file),
        )
    folder = file.resolve().parent
    base = out or folder.with_name(f"{folder.name}-trace")
    if not base.name:
        raise ConfigError(
            f"--out {base} is a folder; give the figures a name in it, as {base}/trace.", path=str(base)
        )
    targets = [base.with_name(f"{base.name}.{ending}") for ending in _ENDINGS]
    with making_files(*targets, overwrite=overwrite):
        _draw(file, targets, by)
    return targets


def _draw(file: Path, targets: list[Path], by: str) -> None:
    frame = read_table(file, "trace").to_pandas()
    if len(frame) == 0:
        raise InputError(f"the trace {file} has 0 rounds; there is nothing to draw.", path=str(file))
    if "run" not in frame:
        frame["run"] = ""
    frame["bytes"] = frame.groupby("run", sort=False)["bytes_up"].cumsum()
    has_objective = bool(frame["objective"].notna().any())

    fig, axes = subplots(1 + has_objective, 6.5, 4.2)
    drawn = [name for name in ("h_norm2", "true_h_norm2") if name in frame]
    for i, (run, part) in enumerate(frame.groupby("run", sort=False)):
        for column, style in zip(drawn, ("-", "--"), strict=False):
            # A logarithmic axis has no place for 0 and NaN.
            seen = part[column] > 0
            words = "||H||^2" if column == "h_norm2" else "||h(S)||^2"
            look = {"color": f"C{i}", "lw": 0.8, "label": f"{run} ${words}$".strip()}
            axes[0].semilogy(part.loc[seen, by], part.loc[seen, column], style, **look)
        if has_objective:
            seen = part["objective"].notna()
            axes[1].plot(
                part.loc[seen, by], part.loc[seen, "objective"], color=f"C{i}", label=str(run) or None
            )
    axes[0].set(xlabel=_AXES[by], ylabel="squared norm of the field")
    axes[0].legend(fontsize=8)
    if has_objective:
        axes[1].set(xlabel=_AXES[by], ylabel="penalised objective")
    for ax in axes:
        ax.grid(alpha=0.3)
    for ending, target in zip(_ENDINGS, targets, strict=True):
        with atomic_file(target) as tmp:
            if ending == "csv":
                columns = ["run", by, *drawn, *(["objective"] if has_objective else [])]
                frame[list(dict.fromkeys(columns))].to_csv(tmp, index=False, float_format="%.10g")
            else:
                save(fig, tmp, ending)
