"""What one table must not do silently, two tables of one import must not do either."""

import polars as pl
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.cells import export_table
from fedmiss.etl.filters import Filters
from fedmiss.etl.ingest import IngestSettings, count_tables
from fedmiss.etl.panel import make_panel
from fedmiss.etl.settings import PanelSettings
from fedmiss.files import read_manifest

COUNTS, VISITS = "site,year,species,count\n", "observer,site,date,species,count\n"


@pytest.fixture
def tables(run, tmp_path):
    """Ingest texts as a.csv, b.csv, ...; the settings by keyword."""

    def _tables(*texts, **settings):
        paths = [tmp_path / f"{letter}.csv" for letter, _ in zip("abc", texts, strict=False)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return run(*paths, **settings)

    return _tables


@pytest.mark.parametrize(
    ("head", "asked"), [(COUNTS, ("ANAS CRECCA",)), (VISITS, ("Anas crecca",)), (COUNTS, ()), (VISITS, ())]
)
def test_a_name_in_another_case_is_the_same_species_and_makes_no_zero(tables, head, asked):
    texts = [head + "A,2019,Anas crecca,3\nB,2019,Anas crecca,4\n", head + "A,2020,anas crecca,5\n"]
    if head == VISITS:
        texts = [text.replace("A,20", "o,A,20").replace("B,20", "o,B,20").replace(",Anas", "-05-01,Anas")
                 .replace(",anas", "-05-01,anas") for text in texts]  # fmt: skip
    got = tables(*texts, species=asked, column_map={"auto": ""} if head == VISITS else None)
    assert got.records["species"].unique().to_list() == ["Anas crecca"]
    assert sorted(got.records["count"]) == [3, 4, 5]


def test_tables_of_counts_are_of_one_species(tables):
    texts = COUNTS + "A,2019,Wren,3\n", COUNTS + "B,2019,Robin,4\n"
    with pytest.raises(ConfigError, match=r"a.csv, b.csv are of several species"):
        tables(*texts)
    bare = [text.replace(",species", "").replace(",Wren", "").replace(",Robin", "") for text in texts]
    with pytest.raises(ConfigError, match="say it with --species"):
        tables(*bare)  # named by their files
    assert tables(*bare, species=("Wren",)).records.height == 2


def test_visits_of_two_tables_that_have_one_number_are_two(tables, tmp_path):
    head = "visit,observer,site,date,species,count,note\n"
    got = tables(
        head + "1,ann,A,2020-05-01,Wren,3,of ann\n", head + "1,bob,B,2021-05-01,Wren,4,of bob\n",
        column_map={"auto": ""}, keep=("note",),
    )  # fmt: skip
    assert got.checklists.select("observer_id", "site_id").rows() == [("ann", "A"), ("bob", "B")]
    assert got.records["count"].to_list() == [3, 4]
    assert export_table(got.folder, tmp_path / "wren.parquet", species="Wren", zero_filled=True) == 2
    assert pl.read_parquet(tmp_path / "wren.parquet").select("site_id", "note").rows() == [
        ("A", "of ann"), ("B", "of bob"),
    ]  # fmt: skip


def test_a_cell_of_two_tables_is_refused_as_one_of_two_rows_is(tables):
    text = COUNTS + "A,2019,Wren,3\nB,2019,Wren,4\n"
    for repeats in ("refuse", "max"):
        with pytest.raises(
            InputError, match=r"2 counts of a site and time stand in more than one of a.csv, b.csv"
        ):
            tables(text, text, repeats=repeats)
    assert sorted(tables(text, text, repeats="sum").records["count"]) == [6, 8]


def test_a_visit_of_two_tables_is_added_up_aloud(tables):
    text = VISITS + "o,A,2019-05-01,Wren,3\n"
    said = tables(text, text, column_map={"auto": ""}).manifest["warnings"]
    assert any("on a visit that has another of it" in sentence for sentence in said)


def test_no_complete_lists_are_asked_of_a_table_of_counts(tables):
    with pytest.raises(ConfigError, match="no lists of all species"):
        tables(COUNTS + "A,2019,Wren,3\n", filters=Filters(complete_only=True))


@pytest.mark.parametrize("how", ["refuse", "join"])
def test_a_site_that_two_tables_write_in_two_ways_is_refused(tables, how):
    texts = COUNTS + "Mill pond,2019,Wren,3\n", COUNTS + "mill  pond,2020,Wren,4\n"
    with pytest.raises(InputError, match=r"b.csv: the site 'mill  pond' is written 'Mill pond' in a.csv"):
        tables(*texts, spellings=how)
    assert tables(*texts, spellings="apart").checklists["site_id"].n_unique() == 2


def test_a_recipe_sees_one_species_in_two_spellings_of_two_tables(tmp_path):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, name in zip(paths, ("Anas crecca", "anas  Crecca"), strict=True):
        path.write_text(f"{COUNTS}A,2019,{name},3\nB,2019,{name},4\n", encoding="utf-8")
    assert count_tables(paths, IngestSettings())[1] == {"Anas crecca": 4}


def test_a_table_of_counts_of_one_species_gives_no_zeros_of_another(tables, tmp_path):
    """A club that calls the bird otherwise must not turn its counts of it into zeros."""
    named = [
        tables(f"site,year,count\n{site},2019,3\n{site},2020,4\n", species=(name,)).folder
        for site, name in (("A", "Anas crecca"), ("B", "Teal"))
    ]
    made = make_panel(named, tmp_path / "panel", PanelSettings(species="Anas crecca", sites="all"))
    assert read_manifest(made, "panel")["results"]["n_visits"] == 2
    assert "it has no part in the panel" in " ".join(read_manifest(made, "panel")["warnings"])


def test_a_site_that_two_folders_write_in_two_ways_is_said(tables, tmp_path):
    named = [
        tables(f"site,year,count\n{site},2019,3\n", species=("Wren",)).folder for site in ("Pond", "pond")
    ]
    made = make_panel(named, tmp_path / "panel", PanelSettings())
    assert "are two in this panel: 'Pond' and 'pond'" in " ".join(read_manifest(made, "panel")["warnings"])
