"""Filters that auk has, and what files hold where something is missing or wrong."""

import datetime as dt
import gzip
from functools import partial

import pandas as pd
import polars as pl
import pytest
from ebird_files import EBD_52, SED_33, WARBLER, seen, text, visit, write_pair

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl import fields
from fedmiss.etl.cells import export_table
from fedmiss.etl.cells import harmless as guarded
from fedmiss.etl.filters import Filters
from fedmiss.etl.panel import PanelSettings, make_panel
from fedmiss.files import read_manifest
from fedmiss.report.exchange import harmless

MUSCOVY = ("Cairina moschata", "Muscovy Duck")


def many(field: str, values) -> list[dict[str, str]]:
    return [visit(f"S{k}", **{field: v}) for k, v in enumerate(values, 1)]


def test_a_value_that_no_row_has_is_told(pair):
    rows = many("BCR CODE", ["5"])
    asked = Filters(bcrs=("55",), projects=("X",), states=("Wahsington",))
    told = pair([seen(rows[0], "2")], rows, filters=asked).warnings
    for words in ("Bird Conservation Region names '55'", "project names 'X'", "near names: 'washington'"):
        assert words in told


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {"S1": 1, "S2": 2, "S3": 3, "S4": 0}), ({"breeding": ("any",)}, {"S1": 1, "S2": 2, "S4": 0}),
        ({"breeding": ("ny",)}, {"S2": 2, "S4": 0}), ({"reviewed_only": True}, {"S3": 3, "S4": 0}),
    ],
)  # fmt: skip
def test_records_that_are_not_asked_for_are_no_zeros(pair, settings, wanted):
    """A bird seen without the breeding code asked for was there: its checklist is missing, not a zero."""
    rows = many("COUNTY", ["King"] * 4)
    records = [
        seen(rows[0], "1", **{"BREEDING CODE": "FL"}),
        seen(rows[1], "2", **{"BREEDING CODE": "NY"}),
        seen(rows[2], "3", REVIEWED="1"),
    ]
    out = pair(records, rows, **settings)
    assert out.visits() == wanted
    assert "no record has the breeding code" not in out.warnings
    assert "no record has the breeding code 'FL,NY'" in pair(records, rows, breeding=("FL,NY",)).warnings


def test_breeding_codes_of_older_files(pair):
    rows = many("COUNTY", ["King"] * 2)
    records = [seen(rows[0], "1", **{"BREEDING BIRD ATLAS CODE": "NY"}), seen(rows[1], "1")]
    assert pair(records, rows, write={"layout": 46}, breeding=("NY",)).visits() == {"S1": 1}


def test_the_placeholder_of_an_unknown_date_is_a_missing_date(pair):
    rows = [
        visit("S1"),
        visit("S2", **{"OBSERVATION DATE": "1900-01-01"}),
        visit("S3", **{"OBSERVATION DATE": "1900-01-02"}),
    ]
    out = pair([seen(rows[0], "2"), seen(rows[1], "7"), seen(rows[2], "3")], rows)
    assert out.visits() == {"S1": 2, "S3": 3}
    assert out.checklists["date"].min() == dt.date(1900, 1, 2)
    assert out.manifest["results"]["orphans"] == 0
    assert out.flow("records: malformed") == out.flow("checklists: malformed") == -1
    assert sum("date unknown (eBird writes 1900-01-01)" in w for w in out.manifest["warnings"]) == 2


EXPORT = "Submission ID,Common Name,Scientific Name,Count,State/Province,Location,Date,Time,Duration (Min),All Obs Reported"
BIRD = "Wood Thrush,Hylocichla mustelina"


def test_the_placeholder_in_a_personal_export(plain):
    rows = [f"S1,{BIRD},2,,Meadow,2020-05-14,,,1", f"S2,{BIRD},9,,Meadow,1900-01-01,,,0"]
    out = plain("\n".join([EXPORT, *rows, ""]), "MyEBirdData.csv")
    assert out.visits() == {"S1": 2}
    assert "date unknown" in out.warnings


def test_domestic_types_belong_to_their_species(pair):
    rows = many("COUNTY", ["King"] * 3)
    name, common = MUSCOVY
    domestic = {"species": (f"{name} (Domestic type)", f"{common} (Domestic type)"), "CATEGORY": "domestic"}
    records = [seen(rows[0], "2", MUSCOVY), seen(rows[1], "3", **domestic), seen(rows[0], "1", **domestic)]
    out = pair(records, rows, species=(common,))
    assert out.visits(common) == {"S1": 3, "S2": 3, "S3": 0}
    assert [(s["species"], s["common_name"]) for s in out.manifest["results"]["species"]] == [MUSCOVY]


@pytest.mark.parametrize("kind", ["ebd", "sampling"])
def test_a_file_without_column_names_is_explained(run, tmp_path, kind):
    row = visit("S1")
    rows, columns = ([seen(row, "2")], EBD_52) if kind == "ebd" else ([row], SED_33)
    path = tmp_path / "cut.txt"
    path.write_bytes(text(rows, columns).split(b"\n", 1)[1])
    with pytest.raises(InputError, match=r"cut\.txt has no line of column names: its first line is a row"):
        run(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_an_end_is_refused_early(run, tmp_path, monkeypatch, packed):
    """Every byte is looked at once: a search that begins anew for every portion would take hours."""
    looked = 0
    genuine = fields._last_line_end

    def counting(buf, have, seen_before):
        nonlocal looked
        looked += have - seen_before
        return genuine(buf, have, seen_before)

    monkeypatch.setattr(fields, "_last_line_end", counting)
    ebd, _ = write_pair(tmp_path, [seen(visit("S1"), "2")], [visit("S1")])
    content = ebd.read_bytes() + b"S2\t" + b"x" * (16 << 20)
    path = tmp_path / ("long.txt.gz" if packed else "long.txt")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    with pytest.raises(InputError, match=r"line 3 has more than 8,388,608 bytes and no end"):
        run(path)
    assert looked < 1.1 * (8 << 20) + (4 << 20)


def test_cells_that_a_spreadsheet_would_run():
    safe = ["-9.5", "+3", "a=b", "", "Meadow - north"]
    table = harmless(pd.DataFrame({"name": [*safe, None], "n": range(6)}))
    assert table["name"].tolist()[:5] == safe
    assert table["name"].isna().tolist()[5]
    assert table["n"].tolist() == list(range(6))
    for sign in "=+-@\t\r":  # both guards, each sign alone
        frame = pl.DataFrame({"a": [f"{sign}x", f"x{sign}", ""], "n": [1, 2, 3]})
        wanted = [f"'{sign}x", f"x{sign}", ""]
        assert guarded(frame.lazy()).collect()["a"].to_list() == wanted
        assert harmless(frame.to_pandas())["a"].tolist() == wanted


@pytest.mark.slow
def test_personal_exports_make_one_group_each(run, tmp_path):
    for k, (who, state) in enumerate((("ann", "US-WA"), ("bob", "FR-75"))):
        rows = [
            f"S{100 * k + m},{BIRD},{m},{state},Meadow {who},2020-{m:02d}-14,07:05,60,1" for m in range(1, 10)
        ]
        (tmp_path / f"{who}.csv").write_text("\n".join([EXPORT, *rows]) + "\n")
    out = run(tmp_path / "ann.csv", tmp_path / "bob.csv")
    made = make_panel(out.folder, tmp_path / "p", PanelSettings(group_by="file"))
    assert sorted(p.name for p in (made / "groups").iterdir()) == ["ann", "bob"]
    assert any("no region in common" in w for w in read_manifest(made)["warnings"])
    # the same party in two folders: other ids, one outing
    (tmp_path / "cid.csv").write_text((tmp_path / "ann.csv").read_text().replace("\nS", "\nS9"))
    both = [run(tmp_path / f"{who}.csv").folder for who in ("ann", "cid")]
    assert pl.read_parquet(make_panel(both, tmp_path / "q") / "sites.parquet").height == 1
    assert read_manifest(tmp_path / "q")["results"]["n_visits"] == 9
    rows = many("COUNTY", ["King"])
    ebd, sed = write_pair(tmp_path, [seen(rows[0], "2")], rows)
    with pytest.raises(ConfigError, match="--group-by file is for observers' own exports"):
        make_panel(run(ebd, sampling=[sed]).folder, tmp_path / "r", PanelSettings(group_by="file"))


def test_the_table_of_records_and_the_zero_filled_one(pair, tmp_path):
    """What other programs read is what the panel is made of; nothing in it runs in a spreadsheet."""
    rows = [visit(f"S{k}", LOCALITY="=HYPERLINK(1)" if k == 1 else "Meadow") for k in range(1, 5)]
    out = pair([seen(rows[0], "2"), seen(rows[1], "X"), seen(rows[2], "1", WARBLER)], rows)
    for name in ("t.csv", "t.txt", "t.parquet"):
        assert export_table(out.folder, tmp_path / name, "wood thrush", zero_filled=True) == 4
        read = (
            pl.read_parquet
            if name.endswith("parquet")
            else partial(pl.read_csv, separator="," if name.endswith("csv") else "\t")
        )
        table = read(tmp_path / name)
        assert dict(zip(table["checklist_id"], table["count"], strict=True)) == out.visits()
        assert table["site_name"][0] == ("=HYPERLINK(1)" if name.endswith("parquet") else "'=HYPERLINK(1)")
    assert export_table(out.folder, tmp_path / "all.csv") == out.records.height == 3
    table = pl.read_csv(tmp_path / "all.csv")
    assert set(out.checklists.columns) <= set(table.columns)
    for bad, word in (
        ({"out": "all.csv"}, "exists already"),
        ({"out": "x.xlsx"}, "'.xlsx'"),
        ({"out": "new.csv", "zero_filled": True}, "holds 2 species"),
    ):
        with pytest.raises(ConfigError, match=word):
            export_table(out.folder, tmp_path / bad.pop("out"), **bad)
