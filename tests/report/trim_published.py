"""Set fitted TRIM models against every number that TRIM printed for rtrim's skylark example."""

from __future__ import annotations

import re
from pathlib import Path

from fedmiss.report.trim import fit_trim
from fedmiss.report.trim.command import read_tcf

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


def table_after(text, title, width):
    """Rows of ``width`` numbers after the last place where ``title`` stands; headings between are skipped."""
    at = text.rfind(title)
    assert at >= 0, f"no section {title}"
    rows = []
    for line in text[at + len(title) :].splitlines()[1:]:
        words = line.split()
        if words and all(re.fullmatch(r"-?\d+(\.\d+)?", w) for w in words) and len(words) in (width, 3):
            rows.append(words)
        elif rows:
            break
    return rows


def block(text, title):
    """The first line of numbers after a title."""
    at = text.find(title)
    assert at >= 0, f"no section {title}"
    return re.search(r"^\s+(-?\d[-\d. ]*)$", text[at:], re.M)[1].split()


class Checker:
    """``n`` numbers compared; ``near_misses`` differ when rounded, by one unit at most; ``off`` by more."""

    def __init__(self):
        self.n, self.near_misses, self.off = 0, [], []

    def near(self, what, got, text, units=1.0):
        value, unit = number(text)
        self.n += 1
        said = f"{what}: {got:.7g}, printed {text}"
        if not abs(got - value) <= units * unit * 1.0001:
            self.off.append(said)
        elif not abs(got - value) <= 0.5 * unit * 1.0001:
            self.near_misses.append(said)


def compare(name, command, fit, out) -> Checker:
    """Compare every number; words (labels, change points, degrees of freedom) must be equal."""
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
    return c


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
