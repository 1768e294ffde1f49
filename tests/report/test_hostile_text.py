"""Texts of users are drawn as they are, and TRIM's files start as its readers want."""

from __future__ import annotations

import re

import pytest

from fedmiss.report.style import figure, style, svg_text

HOSTILE = ["$\\frac0$", "$^{0$", "\\\\", "a_b", "100 %", "\U0001f426", "x" * 40]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_is_drawn_as_it_is_written(name):
    with style():
        fig = figure()
        axes = fig.add_subplot(title=name, xlabel=name)
        axes.plot([0, 1], [0, 1], label=name)
        axes.set_xticks([0], [name])
        axes.text(0.5, 0.5, name)
        axes.legend()
    assert svg_text(fig).count(f">{name}</text>") >= 5


def test_trim_files_say_their_version_and_the_class_of_the_screen():
    from fedmiss.report.trim import TrimSettings, fit_trim
    from fedmiss.report.trim.files import out_text
    from fedmiss.report.trim.fit import Shown

    site = [s for s in "abcd" for _ in range(6)]
    time = list(range(2000, 2006)) * 4
    count = [3 + (7 * i) % 11 + i % 6 for i in range(24)]
    fit = fit_trim(site, time, count, TrimSettings(model=3))
    for rule in ("rtrim", "trim", "pecbms"):
        text = out_text(fit, "skylark", Shown(rule))
        assert re.search(r"TRIM (\d\.\d+) :  TRend analysis", text)[1] == "3.61"
        for name, which in (("MODEL", "model"), ("IMPUTED", "imputed")):
            block = re.search(rf"OVERALL SLOPE {name}.*?\n[ \t]*(?:\n|$)", text, re.S)[0].splitlines()
            row = fit.overall(which, rule=rule).iloc[0]
            assert row["label"] in block[0]
            assert float(block[2].split()[0]) == pytest.approx(row["slope"], abs=1e-4)
