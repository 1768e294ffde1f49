"""Sections H and I of the specification, and plain tables."""

import datetime as dt
import itertools

import polars as pl
import pytest
from ebird_files import GBIF, MAP, NEW, OLD, PLAIN, csv, gbif_row, new_row, seen, visit, write_pair

from fedmiss.errors import ConfigError, InputError, SchemaError
from fedmiss.etl.filters import Filters, preset
from fedmiss.etl.others import suspected_copies


def test_myebird_new_generation(tmp_path, run):
    """Line H: ragged rows, quotes, AM/PM, '.659', X; complete lists with birds give zeros."""
    rows = [
        new_row(tail='45,1,.659,,2,,"said ""hello"", twice"'),
        new_row(sub="S2", count="X", time="01:05 PM"),
        new_row(sub="S3", name="Veery", sci="Catharus fuscescens", time=""),
        new_row(sub="S4", name="Veery", sci="Catharus fuscescens", tail="45,0,1.0,,1"),
    ]
    out = run(csv(tmp_path, "ann.csv", rows))
    assert out.visits() == {"S1": 2, "S2": None, "S3": 0}
    table = out.checklists.sort("checklist_id")
    assert table["start_minutes"].to_list() == [390, 785, None, 390]
    assert table["distance_km"].to_list() == [0.659, 0.659, 0.659, 1.0]
    assert table["observer_id"].unique().to_list() == ["ann"]
    assert table["protocol"].unique().to_list() == ["Traveling"]
    assert table["site_id"].unique().to_list() == ["L9"]
    out.check_flow_adds_up()
    out.check_cells()
    best = run(tmp_path / "ann.csv", filters=preset("best-practices-v2"))
    assert best.visits() == {"S1": 2, "S2": None, "S3": 0}


def test_myebird_old_generation(tmp_path, run):
    """21 columns: no location id, MM-DD-YYYY."""
    row = "S1,Wood Thrush,Hylocichla mustelina,27000,3,US-CT,Tolland,Old Mill,41.5,-72.25,05-02-2011,06:30 AM"
    out = run(csv(tmp_path, "ann.csv", [row + ",eBird - Stationary Count,30,1,,,1"], OLD))
    got = out.checklists.row(0, named=True)
    assert str(got["date"]) == "2011-05-02"
    assert got["site_id"] == "Old Mill | 41.5 | -72.25"
    assert got["distance_km"] == 0.0


def test_myebird_rolls_up_by_two_words(tmp_path, run):
    """Line H: exact taxa; six kinds of names are no species."""
    taxa = {
        "Columba livia (Feral Pigeon)": 1,
        "Columba livia (Wild type)": 2,
        "Setophaga coronata coronata x auduboni": 4,
        "Perisoreus canadensis capitalis/bicolor": 8,
        "Larus sp.": 16,
        "Larus occidentalis/glaucescens": 32,
        "Larus occidentalis x glaucescens": 64,
        "Scytalopus [undescribed form]": 128,
        "Accipitridae gen. sp.": 256,
        "Anas platyrhynchos x Cairina moschata": 512,
        "Anas platyrhynchos \u00d7 rubripes": 1024,  # as GBIF and others write it
    }
    rows = [new_row(sci=t, name=t.split(" (")[0], count=str(n)) for t, n in taxa.items()]
    out = run(csv(tmp_path, "ann.csv", rows))
    got = dict(out.records.select("species", "count").iter_rows())
    assert got == {"Columba livia": 3, "Setophaga coronata": 4, "Perisoreus canadensis": 8}
    assert out.flow("records: taxa above species") == -7
    out.check_flow_adds_up()


def test_friends_copies_are_suspected(tmp_path, run):
    """Line H: the same place, date, time and duration under two ids in two files."""
    ann = csv(tmp_path, "ann.csv", [new_row("S10", count="2"), new_row("S12", time="09:00 AM")])
    bob = csv(tmp_path, "bob.csv", [new_row("S9", count="5")])
    out = run(ann, bob)
    assert out.visits() == {"S10": 2, "S12": 2, "S9": 5}
    assert "2 lists look like copies of 1 shared" in out.warnings
    dropped = run(ann, bob, drop_suspected=True)
    assert dropped.visits() == {"S12": 2, "S9": 5}
    dropped.check_flow_adds_up()


def test_a_list_that_is_like_those_of_two_groups_is_of_the_lower_one():
    """One id with two times in two files: which group it is of must not depend on the order of rows."""
    when = {"site": "L1", "date": dt.date(2020, 5, 1), "duration": 30.0}
    rows = [("ann", 10, 420), ("bob", 9, 420), ("ann", 10, 540), ("bob", 12, 540), ("bob", 8, 540)]
    found = set()
    for order in itertools.permutations(rows):
        parts = [
            (who, pl.DataFrame([{"event": e, "start": t, **when} for w, e, t in order if w == who]))
            for who in ("ann", "bob")
        ]
        found.add(tuple(suspected_copies(parts).rows()))
    assert found == {((8, 8), (9, 9), (10, 8), (12, 8))}


def test_myebird_file_given_twice_counts_once(tmp_path, run):
    one = csv(tmp_path, "ann.csv", [new_row("S10", count="2")])
    two = csv(tmp_path, "ann_again.csv", [new_row("S10", count="2")])
    assert run(one, two).visits() == {"S10": 2}


def test_a_quote_that_is_never_closed_is_told(tmp_path, run):
    path = tmp_path / "ann.csv"
    path.write_text(NEW + "\n" + new_row() + ',,,"cut here')
    with pytest.raises(InputError, match="line 2: unexpected end of data"):
        run(path)


def test_gbif_is_presence_only(tmp_path, run):
    """Line I: no checklists, so no zeros; blank count is a detection; sites are rounded coordinates."""
    rows = [
        gbif_row(1),
        gbif_row(2, count=""),
        gbif_row(3, day="2007-02-26T00:00:00"),
        gbif_row(4, day=""),  # year, month, day columns say it
        gbif_row(5, day="2007-02-01/2007-02-28"),  # no day
        gbif_row(6, lat=""),
        gbif_row(9, lat="0", lon="0"),
        gbif_row(7, status="ABSENT", count="0"),
        gbif_row(8, species=""),
    ]
    out = run(csv(tmp_path, "0001.csv", rows, GBIF))
    assert out.visits("Spheniscus mendiculus") == {"1": 7, "2": None, "3": 7, "4": 7, "7": 0}
    assert set(out.checklists["site_id"]) == {"-0.26,-91.45"}
    assert not out.checklists["zero_ok"].any()
    assert out.flow("records: malformed") == -3
    assert out.flow("records: taxa above species") == -1
    assert "no zeros are made" in out.warnings
    assert out.manifest["terms"]["licence"] == "CC_BY_4_0"
    assert set(run(tmp_path / "0001.csv", decimals=0).checklists["site_id"]) == {"0.0,-91.0"}


def test_gbif_counts_of_individuals_and_no_specimens(tmp_path, run):
    """Individuals as organismQuantity were not counted; a skin in a museum and reads of DNA were visits."""
    more = [
        ("", "9", "individuals", "HUMAN_OBSERVATION"), ("3", "9", "Individuals", "MachineObservation"),
        ("", "244", "DNA sequence reads", "OBSERVATION"), ("", "", "", ""),
        *[("1", "", "", kind) for kind in ("PRESERVED_SPECIMEN", "FossilSpecimen", "LIVING_SPECIMEN") * 5],
        ("", "80", "individuals", "MATERIAL_SAMPLE"), ("1", "", "", "MaterialCitation"),
    ]  # fmt: skip
    rows = ["\t".join((gbif_row(k, count=count), *rest)) for k, (count, *rest) in enumerate(more, 1)]
    out = run(
        csv(tmp_path, "0001.csv", rows, GBIF + "\torganismQuantity\torganismQuantityType\tbasisOfRecord")
    )
    assert out.visits("Spheniscus mendiculus") == {"1": 9, "2": 3, "3": None, "4": None}
    assert "17 of 21 rows were left out; line 6: specimen or sample (basisOfRecord) 'PRES" in out.warnings
    out.check_flow_adds_up()


def test_effort_in_terms_of_the_humboldt_extension(tmp_path, run):
    rows = [
        gbif_row(k) + f"\t{v}\t{u}"
        for k, (v, u) in enumerate([(2, "hours"), (45, "minutes"), (3, "trap days"), ("", "")], 1)
    ]
    out = run(csv(tmp_path, "0001.csv", rows, GBIF + "\tsamplingEffortValue\tsamplingEffortUnit"))
    known = out.checklists.sort("checklist_id")["duration_minutes"].to_list()
    assert known == [120.0, 45.0, None, None]
    assert "samplingEffortUnit" in out.warnings


def test_gbif_written_again_by_r_or_a_spreadsheet(tmp_path, run):
    head, row = GBIF.replace("\t", '"\t"'), gbif_row(1).replace('Isla "x', "Isla; x").replace("\t", '"\t"')
    tabs = csv(tmp_path, "r.txt", [f'"{row}"'], f'"{head}"')
    semicolons = csv(tmp_path, "s.csv", [f'"{row}"'.replace("\t", ";")], f'"{head}"'.replace("\t", ";"))
    for path in (tabs, semicolons):
        assert run(path).visits("Spheniscus mendiculus") == {"1": 7}


def test_occurrences_of_an_archive_of_events_lack_places(tmp_path, run):
    """They were to be downloaded again with columns that this table never has."""
    head = "id\toccurrenceID\tbasisOfRecord\tindividualCount\toccurrenceStatus\tscientificName"
    table = csv(tmp_path, "occurrence.txt", ["e1\to1\tHumanObservation\t3\tpresent\tTurdus merula"], head)
    with pytest.raises(SchemaError, match=r"event\.txt has the places and dates.*join both tables"):
        run(table)


def test_gbif_lower_case_names(tmp_path, run):
    """Line I: the bulk file writes its names in lower case."""
    out = run(csv(tmp_path, "eod.csv", [gbif_row(1)], GBIF.lower()))
    assert out.visits("Spheniscus mendiculus") == {"1": 7}


def test_plain_table_proposes_its_map(tmp_path, run):
    path = csv(tmp_path, "plots.csv", ["a,p1,2020-05-01,greg,3,30,1"], PLAIN)
    with pytest.raises(ConfigError, match=r"observer=who,site=plot,date=day,count=n,duration=minutes"):
        run(path)
    path = csv(tmp_path, "odd.csv", ["1,2,3"], "alpha,beta,gamma")
    with pytest.raises(ConfigError, match="is no eBird, MyEBirdData or GBIF file"):
        run(path)


def test_plain_table(tmp_path, run):
    """Rows of one visit are summed; explicit zeros stay; absence is zero only where it was said so."""
    rows = [
        "a,p1,2020-05-01,greg,3,30,1", "a,p1,2020-05-01,greg,4,30,1", "a,p1,2020-05-01,caeg,0,30,1",
        "b,p2,2020-05-01,caeg,X,30,0", "b,p3,2020-05-02,caeg,NA,x,0", "b,p3,2020-13-02,caeg,1,1,0",
    ]  # fmt: skip
    path = csv(tmp_path, "plots.csv", rows, PLAIN)
    full = MAP | {"duration": "minutes", "complete": "all_species_reported"}
    out = run(path, column_map=full)
    assert out.visits("greg") == {"a|p1|2020-05-01|": 7}
    # X is a presence; NA is nothing
    assert out.visits("caeg") == {"a|p1|2020-05-01|": 0, "b|p2|2020-05-01|": None}
    assert out.flow("records: missing counts") == -1
    assert out.flow("records: malformed") == -1
    assert "line 7: no usable date" in out.warnings
    assert any("duration" in w and "'x'" in w for w in out.manifest["warnings"])
    everything = run(path, column_map=MAP, assume_complete=True)
    assert everything.visits("greg") == {"a|p1|2020-05-01|": 7, "b|p2|2020-05-01|": 0, "b|p3|2020-05-02|": 0}
    # on a complete visit NA is no zero either, while the other species stays one
    assert everything.visits("caeg") == {"a|p1|2020-05-01|": 0, "b|p2|2020-05-01|": None}
    for done in (out, everything):
        done.check_cells()


def test_a_visit_without_birds_is_a_zero_of_every_species(tmp_path, run):
    """Where it says so: complete, or a count of 0 where all visits are; a planned visit has no count, and says nothing."""
    rows = ["a,p1,2020-05-01,greg,3,30,1", "a,p1,2020-05-08,,,30,yes", "a,p2,2020-05-01, ,0,30,1"]
    unsaid = ["a,p3,2020-05-01,,,30,0", "a,p4,2020-05-01,,0,30,0", "a,p5,2020-05-01,,5,30,1"]
    path = csv(tmp_path, "plots.csv", [*rows, *unsaid], PLAIN)
    out = run(path, column_map=MAP | {"complete": "all_species_reported"})
    assert out.visits("greg") == {"a|p1|2020-05-01|": 3, "a|p1|2020-05-08|": 0, "a|p2|2020-05-01|": 0}
    assert out.flow("records: of visits without birds") == -2
    assert out.flow("records: malformed") == -3
    out.check_flow_adds_up()
    gull = csv(tmp_path, "gull.csv", [rows[0], "a,p2,2020-05-01,,,30,1,Unknown gull"], f"{PLAIN},name")
    named = run(gull, column_map=MAP | {"complete": "all_species_reported", "common_name": "name"})
    assert named.visits("greg") == {"a|p1|2020-05-01|": 3}  # something was seen there
    everything = run(path, column_map=MAP, assume_complete=True)
    assert everything.visits("greg") == {"a|p1|2020-05-01|": 3, "a|p2|2020-05-01|": 0, "a|p4|2020-05-01|": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observer": "nobody"}, "has no column 'nobody'"),
        ({"weather": "n"}, "'weather' is unknown"),
        ({"count": None}, "does not say which column of .* is count"),
    ],
)
def test_maps_are_checked(tmp_path, run, change, message):
    path = csv(tmp_path, "plots.csv", ["a,p1,2020-05-01,greg,3,30,1"], PLAIN)
    wanted = {k: v for k, v in (MAP | change).items() if v}
    with pytest.raises(ConfigError, match=message):
        run(path, column_map=wanted)


def test_a_map_without_an_observer_is_told_what_to_do_and_keeps_what_was_said(tmp_path, run):
    """A table of site, date and count had no next move, and the proposal forgot the user's own columns."""
    path = csv(tmp_path, "weiher.csv", ["W1;1.5.2019;3;4"], "Gebiet;Datum;Anzahl;Zahl 2")
    for wanted in (None, {"auto": ""}, {"site": "Gebiet", "date": "Datum", "count": "Zahl 2"}):
        with pytest.raises(
            ConfigError, match=r"nobody noted the observer, say observer=\.\.\., too"
        ) as caught:
            run(path, column_map=wanted, species=("Wren",))
        count = wanted["count"] if wanted and "count" in wanted else "Anzahl"
        assert f"--map site=Gebiet,date=Datum,count={count}." in str(caught.value)
    whole = {"observer": "Gebiet", "site": "Gebiet", "date": "Datum", "count": "Anzahl"}
    assert run(path, column_map=whole, species=("Wren",)).visits("Wren") == {"W1|W1|2019-05-01|": 3}


def test_a_map_that_leaves_the_species_column_out_takes_it_all_the_same(tmp_path, run):
    path = csv(tmp_path, "plots.csv", ["a,p1,2020-05-01,greg,3,30,1", "a,p1,2020-05-01,caeg,5,30,1"], PLAIN)
    wanted = {k: v for k, v in MAP.items() if k != "species"}
    assert run(path, column_map=wanted, species=("greg",)).visits("greg") == {"a|p1|2020-05-01|": 3}
    other = csv(tmp_path, "odd.csv", ["a,p1,2020-05-01,greg,3,30,1"], PLAIN.replace("sp,", "xx,"))
    with pytest.raises(ConfigError, match="names no species column"):
        run(other, column_map=wanted)


def test_parquet_reads_like_csv(tmp_path, run):
    rows = ["a,p1,2020-05-01,greg,3,30,1", "b,p1,2020-05-03,greg,5,30,0"]
    path = csv(tmp_path, "plots.csv", rows, PLAIN)
    pl.read_csv(path, try_parse_dates=True).write_parquet(tmp_path / "plots.parquet")
    one, two = (run(tmp_path / f"plots.{k}", column_map=MAP) for k in ("csv", "parquet"))
    assert one.checklists.equals(two.checklists)
    assert one.records.equals(two.records)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing more")
    with pytest.raises(InputError, match="not a readable parquet"):
        run(tmp_path / "bad.parquet")


def test_kinds_are_not_mixed(tmp_path, run):
    ebd, sed = write_pair(tmp_path, [seen(visit("S1"), "1")], [visit("S1")])
    with pytest.raises(ConfigError, match="different kinds"):
        run(ebd, csv(tmp_path, "ann.csv", [new_row()]), sampling=[sed])
    with pytest.raises(InputError, match="another kind of file"):
        run(ebd, sampling=[ebd])


def test_plain_filters(tmp_path, run):
    path = csv(tmp_path, "plots.csv", ["a,p1,2020-05-01,greg,3,30,1", "b,p2,2021-05-01,greg,3,30,1"], PLAIN)
    out = run(path, column_map=MAP, filters=Filters(observers=("b",)))
    assert out.checklists["site_id"].to_list() == ["p2"]
    out.check_flow_adds_up()


def test_windows_text_in_a_csv_is_read_and_said_and_other_bytes_name_the_line(tmp_path, run):
    path = csv(tmp_path, "plots.csv", ["a,p1,2020-05-01,greg,3,30,1"] * 3, PLAIN)
    rows = path.read_bytes()
    path.write_bytes(rows + "é,p1,2020-05-01,greg,3,30,1\n".encode("latin-1"))
    assert any("CP1252" in w and "line 5" in w for w in run(path, column_map=MAP).manifest["warnings"])
    path.write_bytes(rows + b"\xa3,p1,2020-05-01,greg,3,30,1\n")
    with pytest.raises(InputError, match="line 5"):
        run(path, column_map=MAP)


AUK = (
    "checklist_id,observer_id,sampling_event_identifier,locality_id,locality,observation_date,all_species_reported,"
    "scientific_name,observation_count,species_observed\n"
    'G1,"obsr1,obsr2","S1,S2",L1,"Mill, old",2020-06-01,TRUE,Hylocichla mustelina,X,TRUE\n'
    'S3,obsr1,S3,L1,"Mill, old",2020-06-02,TRUE,Hylocichla mustelina,0,FALSE\n'
    "S4,obsr1,S4,L2,Pond,2020-06-02,TRUE,Hylocichla mustelina,7,TRUE\n"
)


def test_a_zero_filled_table_of_auk_is_a_plain_table(plain):
    """Its commas in quotes were read as eBird's text, in which quotes are data."""
    out = plain(AUK, column_map={"auto": ""})
    visits = {"G1|L1|2020-06-01": None, "S3|L1|2020-06-02": 0, "S4|L2|2020-06-02": 7}
    assert out.visits("Hylocichla mustelina") == visits
    assert set(out.checklists["site_name"]) == {"Mill, old", "Pond"}
    lines = AUK.replace('"obsr1,obsr2","S1,S2"', "obsr1,S1").replace('"Mill, old"', "Mill").splitlines()
    rows = [[cell for at, cell in enumerate(line.split(",")) if at not in (2, 7)] for line in lines]
    nameless = "\n".join(map(",".join, rows))
    assert "species_observed" in nameless
    assert "scientific" not in nameless
    assert len(plain(nameless, column_map={"auto": ""}, species=("Wood Thrush",)).visits("Wood Thrush")) == 3


def test_ebird_text_with_commas_is_refused(tmp_path, run):
    """Rows with a comma in a comment or a place lost their columns, were left out, and became zeros."""
    ebd, sed = write_pair(tmp_path, [seen(visit("S1"), "1")], [visit("S1")])
    for file in (ebd, sed):
        frame = pl.read_csv(file, separator="\t", quote_char=None, infer_schema=False)
        frame.write_csv(tmp_path / f"{file.stem}.csv")
    with pytest.raises(InputError, match=r"with ',' between its columns.*tabs"):
        run(tmp_path / "ebd_test.csv", sampling=[sed])
    with pytest.raises(InputError, match=r"with ',' between its columns.*tabs"):
        run(ebd, sampling=[tmp_path / "ebd_test_sampling.csv"])
