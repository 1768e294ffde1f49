"""Every result that TRIM 3.61 and 3.70 printed for the skylark example, from its own command files."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedmiss.report.exchange import read_ocv
from tests.report.trim_published import NAMES, case_of, compare

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


def test_the_counts_that_the_guide_quotes():
    """2,539 numbers, 2,533 equal as printed, six within a unit: the script that prints them says the same."""
    from benchmarks.trim_published import summary

    table, lines = summary(folder())
    assert table[["numbers", "equal", "within_one", "off"]].sum().tolist() == [2539, 2533, 6, 0]
    page = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "trim.md").read_text(encoding="utf-8")
    assert "2,539" in page
    assert "2,533" in page
    for line in lines:
        assert line in page, line


def test_covariance_file():
    _, fit, _ = case_of(folder(), "x1")
    printed = read_ocv(folder() / "skylark-x1.ocv")
    # TRIM stops at a change of 1e-5 or so; its covariances carry that, not their four decimals
    np.testing.assert_allclose(fit.var_imputed, printed, rtol=2e-4, atol=0.05)
