"""``fedmiss trim`` from the command line: what it prints is what the functions give, and its files are read back."""

import json

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from fedmiss.report.exchange import read_ocv, read_out_totals
from fedmiss.report.trim import TrimSettings, fit_trim
from fedmiss.report.trim.command import read_tcf


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    s, y, m = (a.ravel() for a in np.indices((12, 6, 3)))
    count = pd.Series(rng.poisson(np.exp(1.5 + 0.1 * s - 0.05 * y + 0.4 * (m == 1))), dtype="Int64")
    frame = pd.DataFrame({"Plot": [f"plot {k}" for k in s], "Jahr": 2010 + y, "Monat": m + 4})
    frame["Anzahl"] = count.mask((rng.random(count.size) < 0.3) & (s > 1))
    frame["Gewicht"] = np.where(s < 6, "1,5", "2")
    frame["Habitat"] = np.where(s % 2, "Moor", "Heide")
    path = tmp_path / "zählung 2015.csv"
    frame.to_csv(path, sep=";", index=False, na_rep="NA")
    return path, frame


def trim(*words):
    from fedmiss.cli import commands

    app = typer.Typer()
    commands.register(app)
    return CliRunner().invoke(app, ["trim", *map(str, words)])


def test_json_is_the_fit(table):
    path, frame = table
    done = trim(path, "--covariate", "Habitat", "--overdispersion", "--serial", "--json")
    assert done.exit_code == 0, done.output
    got = json.loads(done.stdout)
    want = fit_trim(
        frame["Plot"], frame["Jahr"], frame["Anzahl"].astype(float),
        TrimSettings(overdispersion=True, serial_correlation=True),
        month=frame["Monat"], weights=frame["Gewicht"].str.replace(",", ".").astype(float),
        covariates={"Habitat": frame["Habitat"]},
    )  # fmt: skip
    assert got["overdispersion"] == pytest.approx(want.sigma2)
    assert got["months"] == [4, 5, 6]
    for name in ("all", "Habitat=Moor", "Habitat=Heide"):
        for which in ("imputed", "model"):
            rows = pd.DataFrame(got["strata"][name][which]["totals"])
            np.testing.assert_allclose(rows["total"], want.totals(which, name)["total"])
            np.testing.assert_allclose(rows["se"], want.totals(which, name)["se"])
    assert "Anzahl" in done.stderr  # what was found is said
    assert "decimal comma" in done.stderr


def test_a_model_without_change_has_no_table_of_parameters(table):
    done = trim(table[0], "--model", "1", "--no-months", "--repeats", "mean", "--no-weights")
    assert done.exit_code == 0, done.output
    assert "Empty" not in done.stdout
    assert "slope, model      0.00000" in done.stdout


def test_files_are_those_of_trim(table, tmp_path):
    path, frame = table
    model = ("--model", "2", "--changepoints", "auto")
    done = trim(path, *model, "--no-weights", "--no-months", "--repeats", "sum", "-o", tmp_path / "o")
    assert done.exit_code == 0, done.output
    out = next((tmp_path / "o").glob("*.out"))
    totals = pd.read_csv(tmp_path / "o" / "totals.csv")
    imputed = totals[(totals["which"] == "imputed") & (totals["stratum"] == "all")]
    read = read_out_totals(out)
    np.testing.assert_allclose(read["imputed"], imputed["total"].round(), atol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(read_ocv(out.with_suffix(".ocv")))), imputed["se"], atol=1e-4)
    cells = pd.read_csv(tmp_path / "o" / "imputed.csv")
    np.testing.assert_allclose(cells.groupby("time")["imputed"].sum(), imputed["total"], rtol=1e-9)
    seen = cells["observed"].notna()
    assert (cells["observed"] == cells["imputed"])[seen].all()
    assert cells["observed"].sum() == frame["Anzahl"].sum()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--covariate", "Wetter"], 2, "the table's covariates are Habitat"),
        (["--stepwise"], 2, "belong to model 2, and the model is 3. Say --model 2"),
        (["--changepoints", "neun"], 2, "--changepoints is 'neun'"),
        (["--model", "2", "--changepoints", "1999"], 2, "change point 1999"),
        (["--no-months"], 1, "stands 3 times"),
        (["--level", "1"], 2, "--level is 1 (must lie between 0 and 1"),
        (["--level", "nan"], 2, "--level is nan (must lie between 0 and 1"),
        (["--stepwise", "--model", "2", "--changepoints", "auto"], 2, "--stepwise does nothing"),
        (["--overwrite"], 2, "--overwrite does nothing"),
        (["--species", "Parus major"], 2, "--species does nothing"),
    ],
)
def test_what_is_wrong_or_does_nothing_is_named(table, words, code, said):
    done = trim(table[0], *words)
    assert done.exit_code == code
    assert said in done.stderr.replace("\n", " ")


def test_options_that_the_table_or_a_command_file_makes_idle_are_refused(tmp_path):
    bare, command = tmp_path / "bare.csv", tmp_path / "x.tcf"
    bare.write_text("site,year,count\na,1,2\nb,1,3\na,2,3\nb,2,\n")
    for flag in ("--no-weights", "--no-months"):
        assert f"{flag} does nothing here" in trim(bare, flag).stderr
    assert "nor any other that is a covariate; add one" in trim(bare, "--covariate=habitat").stderr
    command.write_text("FILE bare.csv\n")
    for flag in ("--serial", "--wide", "--no-weights", "--model=3", "--missing=9"):
        said = trim(command, flag).stderr
        assert flag.partition("=")[0] in said
        assert "does nothing here: x.tcf says" in said


def test_stretches_that_a_command_file_asks_for_are_shown_in_every_form(tmp_path):
    rows = [
        f"{s} {y} {10 * s + 3 * abs(y - 2004) + (s * y) % 3}" for s in (1, 2, 3) for y in range(2001, 2009)
    ]
    (tmp_path / "x.dat").write_text("\n".join(rows))
    command = tmp_path / "x.tcf"
    command.write_text("FILE x.dat\nNTIMES 8\nmodel 3\noverallchangepoints 4\nrun\n")
    said = json.loads(trim(command, "--json").stdout)["strata"]["all"]
    got = read_tcf(command)
    fit = fit_trim(**got.arguments)
    shown, written = trim(command, "--out", tmp_path / "out").stdout, (tmp_path / "out" / "x.out").read_text()
    for which in ("imputed", "model"):
        assert [(s["from"], s["upto"]) for s in said[which]["stretches"]] == [(2001, 2004), (2004, 2008)]
        for row in said[which]["stretches"]:
            want = fit.overall(which, window=(row["from"], row["upto"])).iloc[0]
            assert [row["slope"], row["slope_se"]] == pytest.approx([want["slope"], want["slope_se"]])
            line = f"{row['slope']:10.5f} (SE {row['slope_se']:.5f}): {row['label']}"
            assert f"{row['from']} to {row['upto']}{line}" in shown
            assert f" {row['from']} {row['upto']}{row['slope']:10.4f}{row['slope_se']:10.4f}" in written
    assert said["imputed"]["stretches"][0]["slope"] < 0 < said["imputed"]["stretches"][1]["slope"]
    for key in ("changepoints", "overallchangepoints"):
        for point in ("0", "9", "2010", "soon"):
            command.write_text(f"FILE x.dat\nNTIMES 8\nmodel 2\n{key} 1 {point}\nrun\n")
            assert f"{key} says '{point}'; write time points of the table, 2001 to 2008, or their places" in (
                " ".join(trim(command).stderr.split())
            )


@pytest.mark.parametrize(
    ("line", "row", "said"),
    [
        ("covariates 2", "", "covariates says '2'; write places of covariates, 1 to 1"),
        # it was the last one
        ("covariates 0", "", "covariates says '0'; write places of covariates, 1 to 1"),
        ("covariates habitat", "", "covariates says 'habitat'; write places"),
        ("overdisp yes", "", "overdisp is 'yes'; it must be on or off"),  # it was off
        ("weight here", "", "weight is 'here'; it must be present or absent"),
        ("weighting on", "", "weighting is on, and its table has no weights"),  # it was off
        ("covin on", "", "covin is on, and fedmiss reads no covariances"),  # it was off
        ("missing none", "", "missing is 'none'; it must be a number"),
        ("", "1 2009 4", "x.dat line 25 has 3 columns, but x.tcf speaks of 4 (site, time, count, habitat)"),
        ("", "1 2009 4 1 1", "x.dat line 25 has 5 columns, but x.tcf"),
        ("", "1 2009 many 1", "x.dat line 25: the count is 'many'; it must be a number"),
    ],
)
def test_a_command_file_or_its_table_that_says_what_cannot_be_is_refused_by_line(tmp_path, line, row, said):
    rows = [f"{s} {y} {3 + (s * y) % 5} {s % 2}" for s in (1, 2, 3) for y in range(2001, 2009)]
    (tmp_path / "x.dat").write_text("\n".join([*rows, row, ""]))
    command = tmp_path / "x.tcf"
    command.write_text(f"FILE x.dat\nNCOVARS 1\nLABELS\nhabitat\nEND\n{line}\nmodel 3\nrun\n")
    done = trim(command)
    assert done.exit_code == 1
    assert said in " ".join(done.stderr.split())
    (tmp_path / "x.dat").write_text("\n".join(rows))
    command.write_text(
        "FILE x.dat\nNCOVARS 1\nLABELS\nhabitat\nEND\ncovariates 1\noverdisp on\nmodel 3\nrun\n"
    )
    assert trim(command).exit_code == 0


def test_overdispersion_is_off_as_in_rtrim_and_the_scatter_is_said(tmp_path):
    path = tmp_path / "counts.csv"
    rows = [f"{s},{y},{(40, 2)[(s + y) % 2]}" for s in range(8) for y in range(2001, 2007)]
    path.write_text("\n".join(["site,year,count", *rows]), encoding="utf-8")
    plain, scaled = trim(path, "--json"), trim(path, "--overdispersion", "--json")
    assert "times as much as the model's Poisson counts" in plain.stderr
    assert "--overdispersion" in plain.stderr
    assert "times as much" not in scaled.stderr
    one, two = json.loads(plain.stdout), json.loads(scaled.stdout)
    assert one["overdispersion"] is None
    assert two["overdispersion"] > 1.5
    se = [pd.DataFrame(x["strata"]["all"]["model"]["totals"])["se"].to_numpy() for x in (one, two)]
    np.testing.assert_allclose(se[1], se[0] * np.sqrt(two["overdispersion"]), rtol=1e-9)


def test_the_base_and_the_level_hold_on_the_screen_in_json_and_in_files(table, tmp_path):
    words = ("--no-months", "--repeats", "sum", "--base", "2012", "--level", "0.9")
    done = trim(table[0], *words, "--json", "-o", tmp_path / "o")
    assert done.exit_code == 0, done.output
    z = 1.6448536269514722  # the 95 % quantile of the standard normal
    files = pd.read_csv(tmp_path / "o" / "totals.csv")
    for which, parts in json.loads(done.stdout)["strata"]["all"].items():
        index, totals = pd.DataFrame(parts["index"]), pd.DataFrame(parts["totals"])
        assert index.loc[index["time"] == 2012, ["index", "se", "lo", "hi"]].to_numpy().tolist() == [
            [1, 0, 1, 1]
        ]
        for value, rows in (("index", index), ("total", totals)):
            np.testing.assert_allclose(np.sqrt(rows["lo"] * rows["hi"]), rows[value])
            np.testing.assert_allclose(np.log(rows["hi"] / rows["lo"]), 2 * z * rows["se"] / rows[value])
        mine = files[(files["which"] == which) & (files["stratum"] == "all")]
        np.testing.assert_allclose(mine[["index", "index_lo"]], index[["index", "lo"]])
        np.testing.assert_allclose(mine[["lo", "hi"]], totals[["lo", "hi"]])
    out = next((tmp_path / "o").glob("*.out")).read_text()
    first = files["time"].min()  # readers of .out files take the first time for the base
    assert f"{first:>6}     1                       1\n" in out
    assert "0.9 from" in trim(table[0], *words).stdout
