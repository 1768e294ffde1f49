"""TRIM's command files (``.tcf``): which table, which model."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmiss.errors import InputError
from fedmiss.report.trim.design import TrimSettings

_KEYS = (
    "file title ntimes ncovars labels end missing weight comment weighting overdisp serialcor model covariates "
    "changepoints overallchangepoints stepwise run outputfiles impcovout covin autodelete"
).split()


class TrimCommand(NamedTuple):
    """What a command file asks for.

    ``arguments`` are those of :func:`fedmiss.report.trim.fit_trim`: the counts of its table, the settings, weights and
    covariates if asked for; ``windows`` the stretches for which an overall slope is wanted.
    """

    arguments: dict[str, Any]
    windows: tuple[tuple[int, int], ...]


def read_tcf(path: str | Path) -> TrimCommand:
    """Read a command file and the table that it names; the table is looked for beside the command file.

    Raises
    ------
    InputError : no such file, a line with an unknown word or a value that it cannot have, a table with another number of
        columns or with words for numbers
    """
    path = Path(path)
    said = _lines(path)
    labels = said["labels"] or [f"covariate{i + 1}" for i in range(_number(path, said, "ncovars", 0))]
    has_weight = _on(path, said, "weight", "present", "absent")
    weighted = _on(path, said, "weighting")
    if weighted and not has_weight:
        raise InputError(
            f"{path}: weighting is on, and its table has no weights; write weight present or weighting off."
        )
    if _on(path, said, "covin"):
        raise InputError(
            f"{path}: covin is on, and fedmiss reads no covariances of counts; use rtrim, or a table of single counts."
        )
    columns = ["site", "time", "count", *(["weight"] if has_weight else []), *labels]
    table = _table(path, " ".join(said["file"]), columns, _missing(path, said))
    chosen = {str(number): label for number, label in enumerate(labels, 1)}
    covariates = " ".join(said["covariates"]).split()
    if wrong := [number for number in covariates if number not in chosen]:
        raise InputError(
            f"{path}: covariates says {wrong[0]!r}; write places of covariates, 1 to {len(labels)}."
            if labels
            else f"{path}: covariates says {wrong[0]!r}, and its table has none."
        )
    times = sorted(table["time"].unique().tolist())
    points = _points(path, said, "changepoints", times)
    overall = sorted({times[0], *_points(path, said, "overallchangepoints", times), times[-1]})
    settings = TrimSettings(
        model=_number(path, said, "model", 2),
        changepoints=points if _number(path, said, "model", 2) == 2 else (),
        stepwise=_on(path, said, "stepwise"),
        overdispersion=_on(path, said, "overdisp"),
        serial_correlation=_on(path, said, "serialcor"),
    )
    windows = tuple(pairwise(overall)) if said["overallchangepoints"] else ()
    arguments = {name: table[name] for name in ("site", "time", "count")} | {
        "settings": settings,
        "weights": table["weight"] if weighted else None,
        "covariates": {chosen[number]: table[chosen[number]] for number in covariates},
    }
    return TrimCommand(arguments, windows)


def _lines(path: Path) -> dict[str, list[str]]:
    try:
        text = path.read_text(encoding="latin-1")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    said: dict[str, list[str]] = {key: [] for key in _KEYS}
    in_labels = False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(maxsplit=1)
        if not words:
            continue
        key = words[0].lower()
        if key == "end":
            in_labels = False
        elif in_labels:
            said["labels"].append(line.strip())
        elif key == "labels":
            in_labels = True
        elif key not in said:
            raise InputError(
                f"{path} line {number}: {words[0]!r} is no word of TRIM's command files ({', '.join(_KEYS)})."
            )
        else:
            said[key] = [words[1].strip()] if len(words) > 1 else []
    return said


def _on(path: Path, said: dict[str, list[str]], key: str, yes: str = "on", no: str = "off") -> bool:
    text = " ".join(said[key]).lower()
    if text not in ("", yes, no):
        raise InputError(f"{path}: {key} is {text!r}; it must be {yes} or {no}.")
    return text == yes


def _missing(path: Path, said: dict[str, list[str]]) -> float:
    text = " ".join(said["missing"]) or "nan"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{path}: missing is {text!r}; it must be a number.") from None


def _number(path: Path, said: dict[str, list[str]], key: str, default: int) -> int:
    text = " ".join(said[key]) or str(default)
    if not re.fullmatch(r"\d+", text):
        raise InputError(f"{path}: {key} is {text!r}; it must be a whole number.")
    return int(text)


def _points(path: Path, said: dict[str, list[str]], key: str, times: list[int]) -> tuple[int, ...]:
    """Read time points given as themselves or as 1, 2, ... into the time points of the table."""
    # TRIM counts time points from 1, and its users write years: a number that is no year is a position.
    known = {str(at): time for at, time in enumerate(times, 1)} | {str(time): time for time in times}
    given = " ".join(said[key]).split()
    if wrong := [word for word in given if word not in known]:
        raise InputError(
            f"{path}: {key} says {wrong[0]!r}; write time points of the table, {times[0]} to {times[-1]}, or their places, "
            f"1 to {len(times)}."
        )
    return tuple(known[word] for word in given)


def _table(path: Path, name: str, columns: list[str], missing: float) -> pd.DataFrame:
    # TRIM ran on Windows: its command files name tables by backslashes, and by paths of that machine.
    named = Path(name.strip('"').replace("\\", "/"))
    places = [named, path.parent / named, path.parent / named.name]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(
            f"{path} names the table {name!r}, which is not there; put it beside the command file."
        )
    lines = enumerate(found.read_text(encoding="latin-1").splitlines(), 1)
    rows = {number: words for number, line in lines if (words := line.split())}
    if not rows:
        raise InputError(f"{found} has no row; {path.name} names it as its table.")
    for number, words in rows.items():
        if len(words) != len(columns):
            raise InputError(
                f"{found} line {number} has {len(words)} columns, but {path.name} speaks of {len(columns)} "
                f"({', '.join(columns)})."
            )
    table = pd.DataFrame(list(rows.values()), index=list(rows), columns=columns)
    for name in columns:
        value = pd.to_numeric(table[name], errors="coerce")
        word = value.isna() & ~table[name].str.lower().isin(["na", "nan"])
        if not word.any():
            table[name] = value
        elif name in ("time", "count", "weight"):  # sites and categories may be words
            at = int(np.argmax(word))
            raise InputError(
                f"{found} line {table.index[at]}: the {name} is {table[name].iloc[at]!r}; it must be a number."
            )
    count = table["count"].astype(float)
    return table.assign(count=count.where(count != missing)).reset_index(drop=True)
