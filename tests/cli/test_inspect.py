"""``fedmiss inspect`` says in words what anything that fedmiss made holds."""

import re

import pytest
from bad_inputs import ebd, interrupted, of
from terminal import fedmiss

from fedmiss.files import read_manifest
from fedmiss.tables import load_schema


def said(path) -> str:
    done = fedmiss("inspect", path)
    assert done.code == 0, done.err
    assert done.err == ""
    assert str(path) in done.out
    assert "None" not in done.out
    assert "{" not in done.out
    assert not re.search(r"\.\d{9}", done.out)  # digits that mean nothing
    return done.out


@pytest.mark.slow
def test_records_name_their_species_the_filters_and_the_terms(base, here):
    text = said(base / "records")
    results = read_manifest(base / "records")["results"]
    assert f"{results['n_records']:,} records on {results['n_checklists']:,} checklists" in text
    words = "American Wigeon (|Golden Eagle (|3 species|Rows on the way here:|Licence: |Citation: "
    assert all(word in text for word in words.split("|"))
    fedmiss("ingest", ebd(base), "--duration", "5..300", "--complete", "--no-cache", "--out", here / "few")
    text = said(here / "few")
    assert "duration=[5.0, 300.0]" in text
    assert "complete_only=True" in text
    assert "bbox" not in text


@pytest.mark.slow
def test_panel_fit_imputed_and_report(base, here):
    folders = of(base, panel="panel", fit="fit", imputed="imputed")
    assert fedmiss("report", *folders, "--out", here / "report").code == 0
    panel = (
        "Mareca americana", "visits", "observers in 3 groups", "sites in", "36 months (2018-01 to 2020-12)",
    )  # fmt: skip
    for name, words in (
        (here / "report", ("report, made by fedmiss", "American Wigeon")),
        ("panel", panel),
        ("fit", ("Gaussian on log1p of rank 0 (as asked for)", "3 groups", "converged after")),
        ("imputed", ("Mareca americana", "cells", "% of the total is imputed", "Standard effort: one visit")),
        ("sim", ("simulation", "records 1,0", "seed=3", "Licence: CC0")),
    ):
        text = said(base / name)
        for word in words:
            assert word in text, (name, word)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "schema"),
    [
        ("records/records.parquet", "records"), ("records/checklists.parquet", "checklists"),
        ("panel/sites.parquet", "sites"), ("panel/groups/g01/visits.parquet", "visits"),
        ("panel/groups/g01/cells.parquet", "cells"), ("fit/site_factors.parquet", "site_factors"),
        ("fit/trace.parquet", "trace"), ("imputed/imputed.parquet", "imputed"),
    ],
)  # fmt: skip
def test_a_table_with_every_column_and_its_meaning(base, table, schema):
    text = said(base / table)
    spec = load_schema(schema)
    assert f"schema {schema}.v{spec.version}" in text
    assert spec.description in text
    for column in spec.columns:
        assert column["name"] in text
        assert column["description"] in text


@pytest.mark.slow
def test_a_group_a_recipes_folder_loose_tables_and_unfinished_work(base, here):
    assert "one group" in said(base / "panel" / "groups" / "g01")
    text = said(base)
    for word in ("panel: panel. Mareca americana", "records: records. ", "fit: fit. "):
        assert word in text
    assert "truth_sites" in said(base / "sim" / "truth")
    with interrupted(here):
        fedmiss(
            "fit", base / "panel", "--model", "log1p", "--rank", 0, "--bootstrap", 5, "--out", here / "fit"
        )
    assert "an unfinished fit" in said(here / "fit.partial")


def test_one_of_a_thing_is_in_the_singular(tmp_path):
    """A first trial of one site said "1 sites" and "1 zeros"."""
    (tmp_path / "counts.csv").write_text("site,year,count\nA,2001,3\nB,2001,0\n")
    records, panel = tmp_path / "records", tmp_path / "panel"
    assert fedmiss("ingest", tmp_path / "counts.csv", "--out", records, "--no-cache").code == 0
    assert fedmiss("panel", records, "--out", panel).code == 0
    texts = [said(records), said(panel)]
    assert "at 1 site in 1 year (2001 to 2001); cells with a count: 1 of 1." in texts[1]
    assert "never detected (1 site; --sites all keeps it)" in texts[1]
    for text in texts:
        assert not re.search(r"\b1 (sites|zeros|counts|visits|years|groups|rows|files|observers)\b", text)
