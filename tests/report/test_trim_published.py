"""Every result that TRIM 3.61 and 3.70 printed for the skylark example, from its own command files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from fedmiss.report.exchange import read_ocv
from fedmiss.report.trim.files import Shown, out_text
from tests.report.trim_published import NAMES, case_of, compare, number

pytestmark = pytest.mark.realdata


def folder():
    path = Path(os.environ.get("FEDMISS_DATA") or "/none") / "trim" / "outfiles"
    if not path.is_dir():
        pytest.skip("needs trim/outfiles of rtrim in the folder named by FEDMISS_DATA")
    return path


@pytest.fixture(params=NAMES)
def case(request):
    return request.param, *case_of(folder(), request.param)


def test_every_printed_number(case):
    c = compare(*case)
    assert not c.off, c.off
    assert c.n > 40


def words_of(text):
    """Words of the results, line by line, blank lines kept as separators; the time used is TRIM's own affair."""
    text = text.replace("\r", "")
    keep = [line for line in text[text.rfind(" GOODNESS OF FIT") :].splitlines() if "time used" not in line]
    return [line.split() for line in "\n".join(keep).strip().splitlines()]


def test_the_counts_that_the_guide_quotes():
    """1,899 numbers, 1,893 equal when rounded, six within a unit: the script that prints them says the same."""
    from benchmarks.trim_published import summary

    table, lines = summary(folder())
    assert table[["numbers", "equal", "within_one", "off"]].sum().tolist() == [1899, 1893, 6, 0]
    page = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "trim.md").read_text(encoding="utf-8")
    assert "1,899" in page
    assert "1,893" in page
    for line in lines:
        assert line in page, line


def test_our_out_file_is_trims_line_by_line(case):
    """What reads TRIM's files counts on titles, headings and blank lines: they are the same, and the numbers too."""
    name, _, fit, out = case
    ours, theirs = words_of(out_text(fit, "x", Shown("trim"))), words_of(out)
    if (
        name.startswith("4") or name == "x3"
    ):  # TRIM 3.70 adds the slope through the base; x3 slopes of stretches
        cut = [next(i for i, w in enumerate(x) if w[:2] == ["OVERALL", "SLOPE"]) for x in (ours, theirs)]
        ours, theirs = ours[: cut[0]], theirs[: cut[1]]
    squeeze = [[w for i, w in enumerate(x) if w or (i and x[i - 1])] for x in (ours, theirs)]
    assert len(squeeze[0]) == len(squeeze[1])
    for a, b in zip(*squeeze, strict=True):
        assert len(a) == len(b), (a, b)
        for x, y in zip((w.strip(",") for w in a), (w.strip(",") for w in b), strict=True):
            if re.fullmatch(r"-?\d+(\.\d+)?", y):
                value, unit = number(y)
                p_of_370 = name.startswith("4") and a[0] in ("Chi-square", "Likelihood")
                assert p_of_370 or abs(float(x) - value) <= 1.0001 * unit, (a, b)
            else:
                assert x.strip("-") == y.strip("-"), (a, b)


def test_overall_slopes_of_stretches():
    command, fit, _ = case_of(folder(), "x3")
    assert command.windows == ((1984, 1985), (1985, 1991))
    want = {("imputed", 0): (-0.3180, 0.0942), ("imputed", 1): (0.0783, 0.0157),
            ("model", 0): (-0.3029, 0.0910), ("model", 1): (0.0757, 0.0157)}  # fmt: skip
    for (which, k), (slope, se) in want.items():
        row = fit.overall(which, window=command.windows[k]).iloc[0]
        np.testing.assert_allclose([row["slope"], row["slope_se"]], [slope, se], atol=1.01e-4)


def test_covariance_file():
    _, fit, _ = case_of(folder(), "x1")
    printed = read_ocv(folder() / "skylark-x1.ocv")
    # TRIM stops at a change of 1e-5 or so; its covariances carry that, not their four decimals
    np.testing.assert_allclose(fit.var_imputed, printed, rtol=2e-4, atol=0.05)
