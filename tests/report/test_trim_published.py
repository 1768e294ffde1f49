"""Every result that TRIM 3.61 and 3.70 printed for the skylark example, from its own command files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from fedmiss.report.exchange import read_ocv
from fedmiss.report.trim import fit_trim
from fedmiss.report.trim.command import read_tcf
from fedmiss.report.trim.files import out_text
from tests.report.trim_outfiles import block, number, table_after

pytestmark = pytest.mark.realdata
NAMES = [f"1{c}" for c in "abcdef"] + ["2a", "2b", "3a"] + [f"4{c}" for c in "abcdef"] + ["x1", "x2", "x3"]


def folder():
    path = Path(os.environ.get("FEDMISS_DATA") or "/none") / "trim" / "outfiles"
    if not path.is_dir():
        pytest.skip("needs trim/outfiles of rtrim in the folder named by FEDMISS_DATA")
    return path


@pytest.fixture(params=NAMES)
def case(request):
    tcf = folder() / f"skylark-{request.param}.tcf"
    command = read_tcf(tcf)
    fit = fit_trim(**command.arguments)
    out = tcf.with_suffix(".out").read_text(encoding="latin-1").replace("\r", "")
    return request.param, command, fit, out


class Checker:
    def __init__(self):
        self.n, self.off = 0, []

    def near(self, what, got, text, units=1.0):
        value, unit = number(text)
        self.n += 1
        if not abs(got - value) <= units * unit * 1.0001:
            self.off.append(f"{what}: {got:.6g} printed {text}")


def test_every_printed_number(case):
    name, command, fit, out = case
    c = Checker()
    gof = fit.goodness_of_fit().set_index("test")
    for title, key in (("Chi-square", "chi-square"), ("Likelihood Ratio", "likelihood ratio")):
        value, df, p = re.findall(rf"{title}\s+([\d.]+), df\s+(\d+), p ([\d.]+)", out)[-1]
        c.near(key, gof.loc[key, "statistic"], value)
        assert gof.loc[key, "df"] == int(df)
        if not name.startswith("4"):  # TRIM 3.70 prints p 0.0000 whatever the statistic is
            c.near(f"p of {key}", gof.loc[key, "p"], p)
    c.near("AIC", fit.aic, re.findall(r"AIC \(up to a constant\)\s+([-\d.]+)", out)[-1])
    for title, got in (("Overdispersion", fit.sigma2), ("Serial Correlation", fit.rho)):
        found = re.findall(rf"Estimated {title}\s+=\s+([\d.]+)", out)
        if found:
            c.near(title, got, found[-1])
    totals = table_after(out, "TIME TOTALS", 5)
    assert len(totals) == 8
    for row, m, i in zip(totals, fit.totals("model").itertuples(), fit.totals().itertuples(), strict=True):
        assert int(row[0]) == m.time
        for what, got, text in zip(
            ("total model", "se", "total imputed", "se"), (m.total, m.se, i.total, i.se), row[1:], strict=True
        ):
            c.near(f"{what} {m.time}", got, text)
    index = table_after(out, "Time INDICES", 5)
    for row, m, i in zip(index, fit.index("model").itertuples(), fit.index().itertuples(), strict=True):
        for got, text in zip((m.index, m.se, i.index, i.se), row[1:], strict=False):
            if len(row) == 5:
                c.near(f"index {m.time}", got, text)
    ways = [("OVERALL SLOPE MODEL", "model", False), ("OVERALL SLOPE IMPUTED", "imputed", False)]
    if name.startswith("4"):
        ways = [
            (f"{title} ({how}", which, base)
            for title, which, _ in ways
            for how, base in (("with intercept", False), ("through base", True))
        ]
    for title, which, base in ways:
        words = block(out, title)
        row = fit.overall(which, rule="trim", through_base=base).iloc[0]
        for key, text in zip(
            ("slope", "slope_se", "multiplicative", "multiplicative_se"), words, strict=True
        ):
            c.near(f"{title}: {key}", row[key], text)
        label = re.search(rf"{re.escape(title)}[^:\n]*: ([^*\n]+)", out)
        if label:
            assert row["label"] == label[1].strip()
    check_tests(c, fit, out)
    check_parameters(c, command, fit, out)
    assert not c.off, c.off
    assert c.n > 40


def check_tests(c, fit, out):
    wald = fit.wald()
    part = out[out.rfind("WALD-TEST FOR SIGNIFICANCE OF CHANGES") :] if "OF CHANGES" in out else ""
    for row in re.findall(r"^\s+(\d+)\s+([\d.]+)\s+(\d+)\s+([\d.]+)$", part, re.M)[: len(fit.changepoints)]:
        mine = wald[(wald["test"] == "change of slope") & (wald["of"] == int(row[0]))].iloc[0]
        c.near(f"Wald {row[0]}", mine["statistic"], row[1])
        assert mine["df"] == int(row[2])
        c.near(f"p {row[0]}", mine["p"], row[3])
    for title, test in (
        ("DEVIATIONS FROM LINEAR TREND", "deviations from a line"),
        ("SLOPE PARAMETER", "slope"),
    ):
        found = re.search(rf"OF {title} \n\s+Wald-Test\s+([\d.]+), df\s+(\d+), p\s+([\d.]+)", out)
        if found:
            mine = wald[wald["test"] == test].iloc[0]
            c.near(test, mine["statistic"], found[1])
            assert mine["df"] == int(found[2])
            c.near(f"p {test}", mine["p"], found[3])
    covariate = re.findall(r"^\s+HABITAT\s+([\d.]+)\s+(\d+)\s+([\d.]+)$", out, re.M)
    if covariate:
        mine = wald[wald["test"] == "covariate"].iloc[0]
        c.near("covariate", mine["statistic"], covariate[-1][0])
        assert mine["df"] == int(covariate[-1][1])
        c.near("p covariate", mine["p"], covariate[-1][2])
    deleted = re.findall(r"Deleted ChangePoint\s+(\d+)\s+Significance to delete ([\d.]+)", out)
    assert [str(s["changepoint"]) for s in fit.steps] == [d[0] for d in deleted]
    for step, (_, p) in zip(fit.steps, deleted, strict=True):
        c.near("stepwise p", step["p"], p)
    if deleted:
        assert fit.changepoints == (1, 2)


def check_parameters(c, command, fit, out):
    keys = ["additive", "se", "multiplicative", "multiplicative_se"]
    b = fit.coefficients()
    if command.settings.model == 3 and not command.covariates:
        for row, mine in zip(
            table_after(out, "Parameters for Each Time Point", 5)[1:], b.itertuples(), strict=True
        ):
            for text, key in zip(row[1:], keys, strict=True):
                c.near(f"time {mine.upto} {key}", getattr(mine, key), text)
        d = fit.deviations()
        words = re.search(r"^ Slope\s+(.+)$", out, re.M)[1].split()
        printed = [words, *(r[1:] for r in table_after(out, "Time Deviations", 5))]
        for row, (_, mine) in zip(printed, d.iterrows(), strict=True):
            for text, key in zip(row, keys, strict=True):
                c.near(f"deviation {mine['time']} {key}", mine[key], text)
    elif command.settings.model == 3:
        printed = [
            r[-4:]
            for r in re.findall(
                r"^\s+(?:Time)?\s+(\d+)\s+([-\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)$",
                out[out.find("PARAMETER ESTIMATES") : out.find("Time INDICES")],
                re.M,
            )
        ]
        printed = [r for i, r in enumerate(printed) if i % 8]
        assert len(printed) == len(b)
        for row, (_, mine) in zip(printed, b.iterrows(), strict=True):
            for text, key in zip(row, keys, strict=True):
                c.near(f"time {mine['upto']} {mine['category']} {key}", mine[key], text)
    elif command.covariates:
        part = out[out.rfind("PARAMETER ESTIMATES") :]
        constant = re.findall(r"^ Constant\s+(.+)$", part, re.M)
        second = re.findall(r"^ Category   2\s+(.+)$", part, re.M)
        assert len(constant) + len(second) == len(b)
        for row, (_, mine) in zip(constant + second, b.iterrows(), strict=True):
            for text, key in zip(row.split(), keys, strict=True):
                c.near(f"slope {mine['from']} {mine['category']} {key}", mine[key], text)
    else:
        printed = (
            [[*b.iloc[0][["from", "upto"]], *re.search(r"^ Slope\s+(.+)$", out, re.M)[1].split()]]
            if "Slope for Time Intervals" not in out
            else [
                line.split()
                for line in re.search(r"Slope for Time Intervals\n[^\n]*\n((?:\s+\d.*\n)+)", out)[
                    1
                ].splitlines()
            ]
        )
        assert len(printed) == len(b)
        for row, (_, mine) in zip(printed, b.iterrows(), strict=True):
            assert (int(row[0]), int(row[1])) == (mine["from"], mine["upto"])
            for text, key in zip(row[2:], keys, strict=True):
                c.near(f"slope {mine['from']} {key}", mine[key], text)


def words_of(text):
    """Words of the results, line by line, blank lines kept as separators; the time used is TRIM's own affair."""
    text = text.replace("\r", "")
    keep = [line for line in text[text.rfind(" GOODNESS OF FIT") :].splitlines() if "time used" not in line]
    return [line.split() for line in "\n".join(keep).strip().splitlines()]


def test_our_out_file_is_trims_line_by_line(case):
    """What reads TRIM's files counts on titles, headings and blank lines: they are the same, and the numbers too."""
    name, _, fit, out = case
    ours, theirs = words_of(out_text(fit, "x")), words_of(out)
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
    command = read_tcf(folder() / "skylark-x3.tcf")
    t = command.table
    fit = fit_trim(t["site"], t["time"], t["count"], command.settings)
    assert command.windows == ((1984, 1985), (1985, 1991))
    want = {("imputed", 0): (-0.3180, 0.0942), ("imputed", 1): (0.0783, 0.0157),
            ("model", 0): (-0.3029, 0.0910), ("model", 1): (0.0757, 0.0157)}  # fmt: skip
    for (which, k), (slope, se) in want.items():
        row = fit.overall(which, window=command.windows[k]).iloc[0]
        np.testing.assert_allclose([row["slope"], row["slope_se"]], [slope, se], atol=1.01e-4)


def test_covariance_file():
    command = read_tcf(folder() / "skylark-x1.tcf")
    t = command.table
    fit = fit_trim(t["site"], t["time"], t["count"], command.settings)
    printed = read_ocv(folder() / "skylark-x1.ocv")
    # TRIM stops at a change of 1e-5 or so; its covariances carry that, not their four decimals
    np.testing.assert_allclose(fit.var_imputed, printed, rtol=2e-4, atol=0.05)
