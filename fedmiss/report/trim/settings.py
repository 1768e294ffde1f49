"""What may be chosen: TRIM's model, and how its results are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedmiss.report.trim.cells import Label
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class TrimSettings:
    """Which model, and how.

    ``model`` 1 (no change over time), 2 (slopes between change points) or 3 (one effect for each time point);
    ``changepoints`` time points, or ``"auto"``: all of them, thinned stepwise; ``stepwise`` thins those given;
    ``overdispersion`` scales variances by Pearson's chi-square over its degrees of freedom; ``serial_correlation``
    estimates the correlation between neighbouring time points of a site. Both are off, as in rtrim.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.TrimSettings(model=2, changepoints="auto", overdispersion=True).model
    2
    """

    model: int = 3
    changepoints: Sequence[Label] | str = ()
    stepwise: bool = False
    overdispersion: bool = False
    serial_correlation: bool = False


class Shown(NamedTuple):
    """How results are shown: rule of the trend class, base of the index, level of intervals (None: none).

    ``windows``: first and last time points of stretches whose overall slopes are wanted too.
    """

    rule: str = "rtrim"
    base: Label | None = None
    level: float | None = None
    windows: tuple[tuple[Label, Label], ...] = ()
