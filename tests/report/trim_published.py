"""Set fitted TRIM models against every number that TRIM printed for rtrim's skylark example, line by line of its files."""

import re
from pathlib import Path

from fedmiss.report.trim import fit_trim
from fedmiss.report.trim.command import read_tcf
from fedmiss.report.trim.files import Shown, out_text

NAMES = [f"1{c}" for c in "abcdef"] + ["2a", "2b", "3a"] + [f"4{c}" for c in "abcdef"] + ["x1", "x2", "x3"]


def case_of(folder: Path, name: str):
    """Return the command, our fit, and TRIM's own output."""
    tcf = folder / f"skylark-{name}.tcf"
    command = read_tcf(tcf)
    fit = fit_trim(**command.arguments)
    return command, fit, tcf.with_suffix(".out").read_text(encoding="latin-1").replace("\r", "")


def number(text):
    """Return the value and one unit of its last printed digit."""
    return float(text), 10.0 ** -len(text.partition(".")[2])


class Checker:
    """``n`` numbers compared; ``near_misses`` differ as printed, by one unit at most; ``off`` by more."""

    def __init__(self):
        self.n, self.near_misses, self.off = 0, [], []

    def near(self, what, ours, text):
        value, unit = number(text)
        self.n += 1
        if float(ours) != value:
            near = abs(float(ours) - value) <= 1.0001 * unit
            (self.near_misses if near else self.off).append(f"{what}: {ours}, printed {text}")


def words_of(text):
    """Words of the results, line by line, one blank line where there are any; the time used is TRIM's own affair."""
    titles = (" STEPWISE SELECTION", "  Estimated ", " GOODNESS OF FIT")
    text = text[next(text.index(title) for title in titles if title in text) :].rstrip()
    lines = [line.split() for line in text.splitlines() if "time used" not in line]
    return [words for i, words in enumerate(lines) if words or (i and lines[i - 1])]


def compare(name, command, fit, out) -> Checker:
    """Compare our file with TRIM's, word by word; what is no number must be equal, but for rules of hyphens and commas."""
    c, title = Checker(), ""
    both = [out_text(fit, "x", Shown("trim", windows=command.windows)), out]
    if name.startswith("4"):  # TRIM 3.70 prints no class, and the slope through the base too
        both = [text.partition(" OVERALL SLOPE")[0] for text in both]
        slopes_of_370(c, fit, out)
    ours, theirs = map(words_of, both)
    assert len(ours) == len(theirs)
    for a, b, before in zip(ours, theirs, [[], *theirs], strict=False):
        assert len(a) == len(b), (a, b)
        title = title if before else " ".join(b)
        p_of_370 = name.startswith("4") and b[:1] in (["Chi-square"], ["Likelihood"])  # 0.0000 whatever it is
        for x, y in zip((w.strip(",") for w in a), (w.strip(",") for w in b), strict=True):
            if not re.fullmatch(r"-?\d+(\.\d+)?", y):
                assert x.strip("-") == y.strip("-"), (a, b)
            elif not (p_of_370 and y == "0.0000"):
                c.near(f"{title}, {b[0]}", x, y)
    return c


def slopes_of_370(c, fit, out):
    """The overall slopes of TRIM 3.70, with an intercept and through the base."""
    for which in ("model", "imputed"):
        for how, base in (("with intercept", False), ("through base", True)):
            title = f"OVERALL SLOPE {which.upper()} ({how}"
            printed = re.search(r"^\s+(-?\d[-\d. ]*)$", out[out.index(title) :], re.M)[1].split()
            row = fit.overall(which, rule="trim", through_base=base).iloc[0]
            for key, text in zip(
                ("slope", "slope_se", "multiplicative", "multiplicative_se"), printed, strict=True
            ):
                c.near(f"{title}: {key}", f"{row[key]:.4f}", text)
