"""Columns of the files that are kept with the records on request."""

import csv as csv_module

import polars as pl
import pytest
from ebird_files import GBIF, MAP, NEW, PLAIN, WARBLER, csv, gbif_row, new_row, seen, visit

from fedmiss.errors import ConfigError
from fedmiss.etl import resolve
from fedmiss.etl.cells import export_table
from fedmiss.etl.panel import make_panel
from fedmiss.etl.settings import PanelSettings

KEEP = ("BREEDING CODE", "Species comments")


def kept(code, comments):
    return {"BREEDING CODE": code, "SPECIES COMMENTS": comments}


def files_of(pair, **more):
    rows = [visit(f"S{i}", **({"GROUP IDENTIFIER": "G1"} if i < 3 else {})) for i in range(1, 7)]
    records = [
        seen(rows[1], "3", WARBLER, CATEGORY="issf", **kept("NY", "two\xa0broods")),
        seen(rows[1], "2", WARBLER, CATEGORY="form", **kept("FL", "=A1+1")),
        seen(rows[1], "1", WARBLER, CATEGORY="form", **kept("NY", "")),
        seen(rows[3], "4", WARBLER, **kept("", "")),
        seen(rows[4], "X", WARBLER, **kept("", "árbol, with commas")),
        seen(rows[5], "9", **{"SPECIES COMMENTS": "another species"}),
    ]
    return pair(records, rows, **more)


WANTED = {
    "S1": ("NY; FL", "two\xa0broods; =A1+1"), "S4": (None, None), "S5": (None, "árbol, with commas"),
    "S6": (None, "another species"),
}  # fmt: skip


@pytest.mark.parametrize("portion", [150_000, 2])
def test_texts_stay_with_the_records_they_are_of(pair, monkeypatch, portion):
    monkeypatch.setattr(resolve, "PORTION", portion)
    out = files_of(pair, keep=KEEP)
    got = {r["checklist_id"]: (r[KEEP[0]], r[KEEP[1]]) for r in out.records.iter_rows(named=True)}
    assert got == WANTED
    plain = files_of(pair)
    assert plain.records.equals(out.records.drop(KEEP))
    assert plain.manifest["results"] == out.manifest["results"]


def test_tables_for_other_programs_have_them_and_panels_do_not(pair, tmp_path):
    out = files_of(pair, keep=KEEP)
    export_table(out.folder, tmp_path / "zeros.csv", WARBLER[1], zero_filled=True)
    with open(tmp_path / "zeros.csv", encoding="utf-8", newline="") as stream:
        rows = {r["checklist_id"]: r for r in csv_module.DictReader(stream)}
    assert set(rows) == {"S1", "S3", "S4", "S5", "S6"}
    assert rows["S6"]["count"] == "0"
    assert rows["S6"][KEEP[1]] == ""
    assert rows["S1"][KEEP[1]] == "two\xa0broods; =A1+1"
    export_table(out.folder, tmp_path / "all.csv")
    assert "another species" in (tmp_path / "all.csv").read_text(encoding="utf-8")
    make_panel([out.folder], tmp_path / "panel", PanelSettings(species=WARBLER[1], groups=1))
    for path in (tmp_path / "panel").rglob("*.parquet"):
        assert not any("broods" in str(v) for row in pl.read_parquet(path).rows() for v in row)


def test_files_in_which_a_column_has_another_name(pair):
    row = visit("S1")
    old = [seen(row, "2", **{"BREEDING BIRD ATLAS CODE": "ON", "TRIP COMMENTS": "rain"})]
    out = pair(old, [row], write={"layout": 46}, keep=("Breeding Code", "CHECKLIST COMMENTS"))
    assert out.records["Breeding Code"].to_list() == ["ON"]
    assert out.records["CHECKLIST COMMENTS"].to_list() == ["rain"]


def test_other_kinds_of_files(run, tmp_path):
    def texts(path, name, **more):
        return run(path, keep=(name,), **more).records[name].to_list()

    mine = csv(tmp_path, "ann.csv", [new_row("S1"), new_row("S2", "Blackbird", "Turdus merula")], NEW)
    assert texts(mine, "Location") == ["Old Mill"] * 2
    assert sorted(texts(csv(tmp_path, "0001.csv", [gbif_row(1), gbif_row(2)], GBIF), "gbifID")) == ["1", "2"]
    header, rows = f"{PLAIN},ring", [f"a,p{i},2020-05-01,greg,3,30,1,r{i}" for i in range(3)]
    assert texts(csv(tmp_path, "plots.csv", rows, header), "ring", column_map=MAP) == ["r0", "r1", "r2"]


HARD = ("備考", "メモ", "größe", "grüße", "Ring no.", "Ring-no", "row")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_that_are_alike_or_of_other_alphabets(run, tmp_path, suffix):
    rows = [f"a,p{i},2020-05-01,greg,3,30,1," + ",".join(f"{h}{i}" for h in HARD) for i in range(3)]
    path = csv(tmp_path, "plots.csv", rows, f"{PLAIN},{','.join(HARD)}")
    if suffix == "parquet":
        frame = pl.read_csv(path, infer_schema=False)
        path = tmp_path / "plots.parquet"
        frame.write_parquet(path)
    for name in HARD:
        keep = (name, "n" if name == "row" else "who")
        assert run(path, keep=keep, column_map=MAP).records[name].to_list() == [
            f"{name}{i}" for i in range(3)
        ]
    for keep, message in (
        (("ring NO",), "several columns like 'ring NO': 'Ring no.', 'Ring-no'; write one exactly"),
        (("who", "WHO"), "'WHO' is a column that is kept already"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(path, keep=keep, column_map=MAP)


@pytest.mark.parametrize(("rule", "count"), [("sum", 21), ("max", 7), ("mean", 5)])
def test_counts_that_become_one_keep_all_their_texts(run, tmp_path, rule, count):
    counts = ((5, "five"), (7, "seven"), (7, "five"), (2, ""))
    rows = [f"a,p1,2020-05-01,greg,{n},30,1,{note}" for n, note in counts]
    path = csv(tmp_path, "plots.csv", rows, f"{PLAIN},note")
    got = run(path, keep=("note",), column_map=MAP, repeats=rule).records.select("count", "note")
    assert got.rows() == [(count, "five; seven")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SPECIES COMMENT", "has no column 'SPECIES COMMENT'; did you mean 'SPECIES COMMENTS'"),
        ("zzz", "has no column 'zzz'; it has GLOBAL UNIQUE IDENTIFIER, LAST EDITED DATE"),
        ("REASON", "have a column 'reason' already"),
        (" ", "give the name of a column"),
    ],
)
def test_columns_that_cannot_be_kept(pair, name, message):
    with pytest.raises(ConfigError, match=message):
        files_of(pair, keep=(name,))


def test_tables_of_counts_keep_nothing(plain):
    with pytest.raises(ConfigError, match=r"t\.csv is a table of counts"):
        plain("site;year;count;plot\na;2001;4;x\nb;2001;10;y\n", keep=("plot",))
