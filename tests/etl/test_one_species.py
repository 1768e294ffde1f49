"""A species column is a filter, always: however a table writes it, no count of another species is ever read."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmiss
from fedmiss.errors import ConfigError, FedmissError, InputError, fold
from fedmiss.etl.cells import entry_of
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.counts import read_counts
from fedmiss.etl.species import same_names, species_columns

LARK, TIT = "Alauda arvensis", "Parus major"
COLUMNS = (
    "species", "Species", "SPECIES", "scientific_name", "scientificName", "Scientific Name", "species_code",
    "Common Name", "taxon", "Espèce", "Art", "vogelsoort", "Euring", " species ", "Bird species (English)",
)  # fmt: skip


def table(sites, years, *, together):
    """Rows of two species: the tit's counts are 1,000 more, so that one of them in a sum is seen."""
    rng, rows = np.random.default_rng(3), []
    for i in range(sites):
        for y in range(years):
            for at, (name, more) in enumerate(((LARK, 0), (TIT, 1000))):
                if together or (i + y) % 2 == at:
                    rows.append((f"s{i}", name, 2000 + y, int(rng.integers(0, 50)) + more))
    return pd.DataFrame(rows, columns=["site", "species", "year", "count"])


def spelt(name, how):
    return {
        "as is": name, "upper": name.upper(), "lower": name.lower(), "blanks": f" {name.replace(' ', '  ')} ",
        "underscore": name.replace(" ", "_"),
    }[how]  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    column=st.sampled_from(COLUMNS),
    separator=st.sampled_from(",;\t"),
    order=st.permutations(["site", "species", "year", "count"]),
    hows=st.lists(
        st.sampled_from(["as is", "upper", "lower", "blanks", "underscore"]), min_size=3, max_size=3
    ),
    together=st.booleans(),
    shuffled=st.integers(0, 5),
    repeats=st.sampled_from(["refuse", "sum", "max", "mean"]),
)
def test_no_table_is_read_over_species(
    tmp_path_factory, column, separator, order, hows, together, shuffled, repeats
):
    made = table(4, 5, together=together)
    written = made.assign(species=[spelt(n, hows[i % 2]) for i, n in enumerate(made["species"])])
    written = written[order].rename(columns={"species": column}).sample(frac=1, random_state=shuffled)
    path = tmp_path_factory.mktemp("t") / "counts.csv"
    written.to_csv(path, sep=separator, index=False)
    with pytest.raises(ConfigError, match=r"2 species .* never added up"):
        read_counts(path, CountOptions(repeats=repeats))
    got = read_counts(path, CountOptions(repeats=repeats, species=spelt(LARK, hows[2]))).frame
    own = made[made["species"] == LARK]
    got = got.to_pandas().set_index(["site", "year"])["count"].sort_index()
    pd.testing.assert_series_equal(
        got, own.set_index(["site", "year"])["count"].astype(float).sort_index(), check_names=False
    )
    with pytest.raises(ConfigError, match="in none of the columns"):
        read_counts(path, CountOptions(repeats=repeats, species="Ostrich bird"))


@pytest.mark.slow
def test_every_way_in_asks_for_a_species(tmp_path):
    frame = table(4, 6, together=True)
    source, mapped = tmp_path / "counts.parquet", {"site": "site", "year": "year", "count": "count"}
    frame.to_parquet(source)

    def refused(words, **more):
        with pytest.raises(ConfigError, match=words):
            fedmiss.ingest([source], tmp_path / "no", fedmiss.IngestSettings(**more))

    maps = {"column_map": mapped}, {"column_map": {**mapped, "species": "species"}}
    for at, more in enumerate(({}, {"repeats": "sum"}, *maps)):
        refused("never added up", **more)
        refused(r"'Parus mayor'.*Did you mean Parus major", species=("Parus mayor",), **more)
        refused("each species is imported by itself", species=(LARK, TIT), **more)
        out = tmp_path / f"records-{at}"
        done = fedmiss.ingest([source], out, fedmiss.IngestSettings(species=(LARK,), **more))
        records = pl.read_parquet(out / "records.parquet")
        assert set(records["species"]) == {LARK}
        assert records["count"].max() < 1000
        flow = {row["step"]: row["rows"] for row in done["flow"]}
        assert flow["records: of other species"] == -24
        assert "records: missing counts" not in flow
    with pytest.raises(ConfigError, match="never added up"):
        fedmiss.from_dataframe(frame, time="year")
    panel = fedmiss.from_dataframe(frame, time="year", species="alauda ARVENSIS")
    same = fedmiss.from_dataframe(pl.from_pandas(frame), time="year", species=LARK)
    assert repr(panel) == repr(same) == "GroupPanel(4 sites x 6 months, 24 visits, groups 1)"
    with pytest.raises(InputError, match="is a list; give a data frame"):
        fedmiss.from_dataframe([1, 2])
    assert panel.m == 24
    assert max(g.count.max() for g in panel.groups) < 1000


def test_records_of_plain_tables_join_spellings_of_one_species(plain):
    names = (LARK, " alauda  arvensis", TIT)
    rows = [f"o,p{i},2020-05-0{1 + k},{n},{k + 1}" for i in range(3) for k, n in enumerate(names)]
    text = "\n".join(["observer,site,date,species,count", *rows, ""])
    out = plain(text, species=("ALAUDA ARVENSIS",), column_map={"auto": ""})
    assert sorted(out.records["count"]) == [1, 1, 1, 2, 2, 2]


def test_one_name_of_several_species_is_refused_and_a_further_name_chooses(read):
    text = (
        "site,year,count,species,common name,species code\n"
        "a,2001,1,Parus major,Great Tit,gt\na,2001,2,Parus minor,Great Tit,jt\na,2001,4,Parus ater,Coal Tit,ct\n"
    )
    with pytest.raises(ConfigError, match=r"'great tit' .* is 2 species .*Parus major, Parus minor"):
        read(text, species="great tit")
    assert read(text, species="coal tit").species == "Parus ater"
    assert read(text, species="jt").frame["count"].to_list() == [2.0]


def test_a_common_name_of_two_species_chooses_neither(plain):
    rows = "".join(f"o,A,2024-05-06,{name},Tit,3\n" for name in ("Parus major", "Parus ater"))
    text = "observer,site,date,species,common name,count\n" + rows
    chosen = {"column_map": {"auto": ""}}
    assert set(plain(text, **chosen).records["species"]) == {"Parus ater", "Parus major"}
    with pytest.raises(
        ConfigError, match=r"'Tit' is the common name of 2 species \(Parus ater, Parus major\)"
    ):
        plain(text, species=("Tit",), **chosen)
    entries = [{"species": name, "common_name": "Tit"} for name in ("Parus ater", "Parus major")]
    with pytest.raises(ConfigError, match="name one of them by its scientific name"):
        entry_of(entries, "tit")
    assert entry_of(entries, "parus major") == entries[1]


def test_a_column_under_a_name_of_its_own_is_found_by_what_it_holds_or_named(read):
    with pytest.raises(ConfigError, match="the column 'x9' names 2 species"):
        read("site,year,count,x9\na,2001,1,Parus major\na,2001,2,Parus minor\n", repeats="sum")
    text = "site,year,count,x9\na,2001,1,lark\na,2001,2,tit\n"
    with pytest.raises(InputError, match="'x9' tells them apart"):
        read(text)
    assert any("'x9' tells them apart" in s for s in read(text, repeats="sum").said)
    # months that are left out name no species, and are repeats
    months = "site,year,month,count\na,2001,5,1\na,2001,6,2\n"
    with pytest.raises(InputError, match=r"stands 2 times .*Repeated cells: 1\.$"):
        read(months, months=False)
    # A column in which the species asked for stands is the column of species.
    for named in ({"species": "x9"}, None):
        assert read(text, columns=named, species="Tit").frame["count"].to_list() == [2.0]


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_a_frame_too_has_its_species_found_by_what_stands_in_a_column(kind):
    plain = {"site": ["a", "a", "b"], "year": [2001, 2001, 2002], "count": [1.0, 200.0, 3.0]}
    frame = kind(plain | {"x9": ["Parus major", "Parus minor", "Parus major"]})
    with pytest.raises(ConfigError, match="the column 'x9' names 2 species"):
        fedmiss.from_dataframe(frame, time="year")
    panel = fedmiss.from_dataframe(frame, time="year", species="parus MAJOR")
    assert sorted(n for g in panel.groups for n in g.count) == [1.0, 3.0]
    lark = kind(plain | {"x9": ["tit", "lark", None], "code": [7, 8, 7]})
    for asked in ("LARK", "8"):
        assert fedmiss.from_dataframe(lark, time="year", species=asked).m == 1
    assert fedmiss.from_dataframe(lark, time="year").m == 3


def test_sites_that_look_like_scientific_names_are_sites(read):
    sites = ["North wood", "South field"]
    text = "site,year,count\nNorth wood,2001,1\nSouth field,2001,2\n"
    assert read(text).frame["site"].to_list() == sites
    assert read(text.replace("site", "where"), columns={"site": "where"}).frame["site"].to_list() == sites
    frame = pd.DataFrame({"site": sites, "year": [2001, 2001], "count": [1, 2]})
    assert fedmiss.from_dataframe(frame, time="year").J == 2


def test_rows_without_a_name_are_left_out_and_said(read):
    got = read("site,year,count,species\na,2001,1,Parus major\na,2002,2,\nb,2001,3,Parus major\n")
    assert got.frame["count"].to_list() == [1.0, 3.0]
    assert any("no species in the column 'species': 1 row left out." in s for s in got.said)
    # A column that is blank says nothing.
    assert read("site,year,count,species\na,2001,1,\na,2002,2,\n").frame.height == 2


@pytest.mark.parametrize(
    "name", ["n species", "Species richness", "target_species", "all_species_reported", "count"]
)
def test_columns_that_count_species_name_none(name):
    assert species_columns(["site", "year", name]) == []


def test_names_fold_and_join():
    assert fold(" Mésange_charbonnière ") == fold("MESANGE  charbonniere")
    got = same_names(pl.Series("species", ["A b", "a  B", "A b", None, "C d"]))
    assert got.to_list() == ["A b", "A b", "A b", None, "C d"]


def test_two_columns_of_one_name_are_refused(read):
    with pytest.raises(FedmissError, match="columns 3 and 4 are both named 'Count'"):
        read("site,year,count,Count\na,2001,1,2\n")


def test_a_species_in_several_spellings_is_one_and_that_is_said(tmp_path):
    rows = [
        f"a;{2000 + i};{name};3" for i, name in enumerate(("Grünfink", "grünfink", "Grunfink", "Grünfink"))
    ]
    (tmp_path / "t.csv").write_text(
        "\n".join(["Gebiet;Jahr;Art;Anzahl", *rows, "a;2005;Wren;3", "a;2006;Wren;3"])
    )
    for asked, said in (
        ("GRÜNFINK", "Art = Grünfink, 4 of 6 rows, in 3 spellings."),
        ("wren", "Art = Wren, 2 of 6 rows."),
    ):
        assert any(said in one for one in read_counts(tmp_path / "t.csv", CountOptions(species=asked)).said)
