"""Sections B, C and D of the specification: shared checklists, taxa, counts, duplicates, and which zeros are true."""

import pytest
from ebird_files import EBD_52, THRUSH, WARBLER, seen, text, visit, write_pair

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.filters import Filters

A, B, C = visit("S1"), visit("S2"), visit("S3")
PIGEON = ("Columba livia", "Rock Pigeon")
G = {"GROUP IDENTIFIER": "G7"}


def shared(*events: str, **more: str) -> list[dict[str, str]]:
    return [visit(e, **{"OBSERVER ID": f"obs-{e}", **G, **more}) for e in events]


COPIES = S1, S2, S3 = shared("S1", "S2", "S3")
FAR = S1 | {"EFFORT DISTANCE KM": "30"}
PARTLY = {**B, "ALL SPECIES REPORTED": "0"}
SOON, LATER = ({"LAST EDITED DATE": f"202{k}-01-01 08:00:00"} for k in (0, 1))
EDITED = seen(A, "4", **SOON)
FORMS = [("coronata", "3"), ("auduboni", "2")]
ESCAPED = [
    seen(row, n, **{"EXOTIC CODE": code}) for row, n, code in ((A, "3", "X"), (B, "2", "N"), (C, "1", "P"))
]
BIG = {"S1": 2**31, "S2": 99999999999}
CASES = {  # lines of the specification, and records, checklists, settings, visits of the thrush or of others
    "the count is of the kept copy, not the largest (10)":
        ([seen(S3, "7"), seen(S2, "X"), seen(S1, "5")], [S3, S1, S2], {}, {"S1": 5}),
    "a species on any copy counts for the group (11)":
        ([seen(S1, "1", WARBLER), seen(S2, "4")], [S1, S2], {},
         {THRUSH[1]: {"S1": 4}, WARBLER[1]: {"S1": 1}}),
    "the kept copy first, then its forms: Myrtle 3 and Audubon's 2 are 5, where auk says 3 (18)":
        ([seen(row, n, WARBLER, CATEGORY="issf", **{"SUBSPECIES SCIENTIFIC NAME": f"{WARBLER[0]} {form}"})
          for row in (S1, S2) for form, n in FORMS], [S1, S2], {}, {WARBLER[1]: {"S1": 5}}),
    "where a filter drops the kept copy, no other one steps in":
        ([seen(FAR, "1"), seen(S2, "1")], [FAR, S2], {"filters": Filters(distance=(None, 10.0))}, {}),
    "a record on a copy that the sampling file lacks still speaks for its group":
        ([seen(S2, "6")], [S1], {}, {"S1": 6}),
    "subspecies are summed into their species: 10+5+5+1 (15, 17)":
        ([seen(A, n, WARBLER, CATEGORY=kind) for n, kind in
          (("10", "species"), ("5", "issf"), ("5", "intergrade"), ("1", "form"))], [A], {},
         {WARBLER[1]: {"S1": 21}}),
    "one X among the parts makes the sum X (17)":
        ([seen(A, "10"), seen(A, "X", CATEGORY="issf")], [A], {}, {"S1": None}),
    "0 on a complete list is a zero, on an incomplete one missing, beside a count nothing (20)":
        ([seen(A, "0"), seen(PARTLY, "0"), seen(C, "0"), seen(C, "4", CATEGORY="issf")], [A, PARTLY, C], {},
         {"S1": 0, "S3": 4}),
    "counts of 2^31 and more, which auk turns into X (21)":
        ([seen(visit(k), str(n)) for k, n in BIG.items()], [A, B], {}, BIG),
    "a record that was re-identified in a later download (22)":
        ([EDITED, EDITED | LATER | {"SCIENTIFIC NAME": WARBLER[0], "COMMON NAME": WARBLER[1]}, seen(B, "1")],
         [A, B], {"species": ("Wood Thrush",)}, {"S1": 0, "S2": 1}),
    "no bundled taxonomy drops an unknown species (22)":
        ([seen(A, "1", ("Novus inventus", "New Bird"))], [A], {}, {"New Bird": {"S1": 1}}),
    "complete and not listed is 0, incomplete is missing, and lists without birds count (24, 25)":
        ([seen(C, "2")], [A, PARTLY, C], {}, {"S1": 0, "S3": 2}),
    "rows that are not approved hold back zeros (30)":
        ([seen(A, "3", APPROVED="0"), seen(B, "2")], [A, B], {}, {"S2": 2}),
    "escapees are left out, and make the visit missing (31)": (ESCAPED, [A, B, C], {}, {"S2": 2, "S3": 1}),
    "escapees as asked for (31)": (ESCAPED, [A, B, C], {"exotic": ("", "X")}, {"S1": 3}),
}  # fmt: skip


@pytest.mark.parametrize(("records", "lists", "asked", "wanted"), CASES.values(), ids=CASES)
def test_visits_are_those_of_the_rules(pair, records, lists, asked, wanted):
    out = pair(records, lists, **asked)
    by_species = wanted if any(isinstance(found, dict) for found in wanted.values()) else {THRUSH[1]: wanted}
    for species, found in by_species.items():
        assert out.visits(species) == found


@pytest.mark.parametrize(("asked", "n"), [({}, 1), ({"exotic": ("X",)}, 2)])
def test_exotic_codes_that_are_left_out_are_not_all_escapees(pair, asked, n):
    """With --exotic X the naturalised birds were called escapees in the row flow."""
    out = pair(ESCAPED, [A, B, C], **asked)
    assert out.flow("records: exotic codes not asked for") == -n


def test_group_id_with_one_copy_in_the_file(pair):
    """Line 9: still its group's id."""
    out = pair([seen(shared("S1")[0], "3")], shared("S1"))
    assert out.checklists["group_id"].to_list() == ["G7"]


def test_lowest_is_numeric(pair):
    """Line 10: S99999999 stands before S100000001, with its own observer, site and effort (t21)."""
    late, early = shared("S100000001", "S99999999")
    early |= {"LOCALITY ID": "L5", "DURATION MINUTES": "33"}
    out = pair([seen(late, "8"), seen(early, "2")], [late, early])
    assert out.visits() == {"S99999999": 2}
    row = out.checklists.row(0, named=True)
    assert (row["observer_id"], row["site_id"], row["duration_minutes"]) == ("obs-S99999999", "L5", 33.0)


@pytest.mark.slow
def test_members_that_disagree_on_completeness_give_no_false_zero(pair):
    """Line 13 (t43): the incomplete copy saw 3; the complete one, kept or not, must not turn that into 0."""
    a, b = shared("S1", "S2")
    b["ALL SPECIES REPORTED"] = "0"
    for records, visits in (([seen(b, "3")], [a, b]), ([seen(b, "3"), seen(a, "1", WARBLER)], [a, b])):
        for filters in (Filters(), Filters(complete_only=True)):
            assert pair(records, visits, filters=filters).visits() == {"S1": 3}
    a["ALL SPECIES REPORTED"], b["ALL SPECIES REPORTED"] = "0", "1"
    out = pair([seen(a, "3"), seen(b, "1", WARBLER)], [a, b], filters=Filters(complete_only=True))
    assert out.visits() == {}  # the kept copy is incomplete: missing, not 0


def test_first_merged_and_raw(pair):
    """Line 14: who owns the visit under each policy."""
    a, b, single = *shared("S20", "S3"), visit("S5", **{"OBSERVER ID": "solo"})
    rows, visits = [seen(a, "9"), seen(b, "2"), seen(single, "1")], [a, b, single]
    first = pair(rows, visits)
    assert first.visits() == {"S3": 2, "S5": 1}
    assert sorted(first.checklists["observer_id"]) == ["obs-S3", "solo"]
    merged = pair(rows, visits, groups="merged")
    assert merged.visits() == {"S3": 2, "S5": 1}
    assert sorted(merged.checklists["observer_id"]) == ["obs-S3,obs-S20", "solo"]
    raw = pair(rows, visits, groups="raw")
    assert raw.visits() == {"S20": 9, "S3": 2, "S5": 1}
    assert raw.flow("checklists: copies of shared lists") == 0
    with pytest.raises(ConfigError, match="--groups is 'largest'"):
        pair(rows, visits, groups="largest")


def test_copies_that_name_another_locality_are_counted(pair):
    a, b, c = shared("S20", "S3", "S7")
    b["LOCALITY ID"] = c["LOCALITY ID"] = "L1"
    a["LOCALITY ID"] = "L2"
    out = pair([seen(a, "9")], [a, b, c])
    assert out.visits() == {"S3": 9}
    row = next(r for r in out.manifest["flow"] if r["step"] == "checklists: copies of shared lists")
    assert (row["rows"], row["note"][:31]) == (-2, "1 of them name another locality")


def test_merged_observers_are_the_same_for_every_species(pair):
    """Line 11 (t22): observers come from the sampling file, so they do not depend on who listed the species."""
    a, b, c = shared("S1", "S2", "S3")
    out = pair([seen(b, "1"), seen(c, "2", WARBLER)], [a, b, c], groups="merged")
    assert out.checklists["observer_id"].to_list() == ["obs-S1,obs-S2,obs-S3"]
    assert out.visits() == {"S1": 1}
    assert out.visits("Yellow-rumped Warbler") == {"S1": 2}


def test_copies_without_sampling_file(tmp_path, run):
    """Presence only: the records' own group ids decide."""
    a, b = shared("S1", "S2")
    path = tmp_path / "ebd.txt"
    path.write_bytes(text([seen(a, "5"), seen(b, "7"), seen(visit("S9"), "1")], EBD_52))
    out = run(path)
    assert out.visits() == {"S1": 5, "S9": 1}
    out.check_flow_adds_up()


def test_categories(pair):
    """Line 16: feral pigeons stay (t32); spuh, slash, hybrid and 'sp. (Domestic type)' are above species."""
    rows = [
        seen(A, "7", PIGEON, CATEGORY="domestic", **{"EXOTIC CODE": "N"}),
        seen(A, "1", PIGEON, CATEGORY="hybrid"),
        seen(A, "1", ("Larus sp.", "gull sp."), CATEGORY="spuh"),
        seen(A, "1", ("Larus occidentalis/glaucescens", "Western/Glaucous-winged Gull"), CATEGORY="slash"),
        seen(A, "1", ("Larus occidentalis x glaucescens", "hybrid gull"), CATEGORY="hybrid"),
        seen(A, "1", ("Anser sp. (Domestic type)", "Domestic goose sp."), CATEGORY="domestic"),
    ]
    out = pair(rows, [A])
    assert out.records.select("species", "count").rows() == [("Columba livia", 7)]
    assert out.flow("records: taxa above species") == -5
    with pytest.raises(ConfigError, match="is a slash, not a species"):
        pair(rows, [A], species=("Western/Glaucous-winged Gull",))


def test_x_is_present_but_not_counted(pair):
    """Line 19: never 0, never 1."""
    out = pair([seen(A, "X")], [A])
    row = out.records.row(0, named=True)
    assert (row["count"], row["detected"], row["reason"]) == (None, True, "X")


@pytest.mark.parametrize("bad", ["-3", "3.5", "abc", "1e3", "9" * 30, ""])
def test_unreadable_counts_are_seen_but_not_counted(pair, bad):
    """A value that is no count is reported, and the checklist is neither a zero nor a guess."""
    out = pair([seen(A, bad), seen(B, "2")], [A, B])
    assert out.visits() == {"S1": None, "S2": 2}
    said = [w for w in out.manifest["warnings"] if "OBSERVATION COUNT" in w and "could not be read" in w]
    assert len(said) == 1
    assert "line 2" in said[0]


def test_duplicates_keep_the_latest_edit(pair):
    """Line 22 (t34): two downloads concatenated; auk sums them."""
    old = seen(A, "4", **{"LAST EDITED DATE": "2020-01-01 08:00:00.9"})
    new = {**old, "OBSERVATION COUNT": "6", "LAST EDITED DATE": "2020-01-01 08:00:01.1"}
    for rows in ([old, new], [new, old], [old, new, new]):
        out = pair(rows, [A])
        assert out.visits() == {"S1": 6}
        assert out.flow("records: duplicates") == 1 - len(rows)


def test_duplicated_checklists_keep_the_latest_edit(pair):
    old = {**A, "DURATION MINUTES": "10"}
    new = {**A, "DURATION MINUTES": "20", "LAST EDITED DATE": "2025-01-01 00:00:00"}
    for visits in ([old, new], [new, old]):
        out = pair([seen(A, "4")], visits)
        assert out.checklists["duration_minutes"].to_list() == [20.0]
        assert out.flow("checklists: duplicates") == -1


def test_mixed_releases_warn(tmp_path, run):
    """Line 23."""
    files = []
    for row, release in ((A, "relApr-2024"), (B, "relApr-2025")):
        files += write_pair(tmp_path, [seen(row, "1")], [row], name=f"ebd_{release}")
    out = run(*files)
    assert "different releases (Apr-2024, Apr-2025)" in out.warnings
    assert out.visits() == {"S1": 1, "S2": 1}


def test_no_sampling_file_no_zeros(tmp_path, run):
    """Line 25: the EBD alone is presence only."""
    path = tmp_path / "ebd.txt"
    path.write_bytes(text([seen(A, "3"), seen(B, "1", WARBLER)], EBD_52))
    out = run(path)
    assert out.visits() == {"S1": 3}
    assert not out.checklists["zero_ok"].any()
    assert "no sampling file was given" in out.warnings


def test_orphans_are_left_out_and_named(pair):
    """Line 26 (t42): records on checklists that the sampling file lacks."""
    out = pair([seen(A, "3"), seen(visit("S77"), "5")], [A, B])
    assert out.visits() == {"S1": 3, "S2": 0}
    assert (out.manifest["results"]["orphans"], out.manifest["results"]["n_zero_ok"]) == (1, 2)
    assert (out.folder / "orphans.txt").read_text() == "S77\n"
    assert "S77" in out.warnings


def test_unvetted_records_hold_back_zeros(tmp_path, run):
    """Lines 24, 30: a species in the unvetted file is missing there, not 0; a reviewed count stands."""
    ebd, sed = write_pair(tmp_path, [seen(A, "3")], [A, B, C])
    raw = tmp_path / "ebd_test_provisional.txt"
    raw.write_bytes(text([seen(B, "9", APPROVED="0"), seen(A, "8")], EBD_52))
    for out in (run(ebd, raw, sampling=[sed]), run(ebd, sampling=[sed], unvetted=[raw])):
        assert out.visits() == {"S1": 3, "S3": 0}
        assert out.records.filter(out.records["reason"] == "unvetted")["checklist_id"].to_list() == ["S2"]
        out.check_flow_adds_up()
        out.check_cells()
    with pytest.raises(ConfigError, match="Unvetted records are no substitute"):
        run(raw, sampling=[sed])


def test_sensitive_species_have_no_zeros(pair):
    """Line 36: withheld records make absence unknown."""
    out = pair([seen(A, "3"), seen(B, "1", WARBLER)], [A, B], sensitive=("Wood Thrush",))
    assert out.visits() == {"S1": 3}
    assert out.visits("Yellow-rumped Warbler") == {"S1": 0, "S2": 1}
    assert "named as sensitive" in out.warnings


def test_species_by_either_name_in_one_pass(pair):
    rows = [seen(A, "3"), seen(A, "2", WARBLER), seen(A, "1", PIGEON)]
    out = pair(rows, [A], species=("wood thrush", "setophaga coronata"))
    assert out.records["species"].to_list() == [THRUSH[0], WARBLER[0]]
    assert out.flow("records: other species") == -1


def test_unknown_species_gets_near_names(pair):
    with pytest.raises(ConfigError, match=r"'wood trush' is not in the files. Did you mean Wood Thrush"):
        pair([seen(A, "3")], [A], species=("wood trush",))


def test_absent_species_can_be_accepted(pair):
    out = pair([seen(A, "3")], [A, B], species=("Turdus merula",), allow_absent=True)
    assert out.visits("Turdus merula") == {"S1": 0, "S2": 0}
    with pytest.raises(InputError, match="is not in"):
        out.visits("Wood Thrush")


def test_two_regions_in_one_call(tmp_path, run):
    parts = []
    for i in (1, 2):
        rows = [visit(f"S{i}{k}", **{"LOCALITY ID": f"L{i}"}) for k in range(2)]
        parts += write_pair(tmp_path / str(i), [seen(rows[0], str(i))], rows)
    out = run(*parts, filters=Filters(localities=("L1", "L2", "L3")))
    assert [w for w in out.manifest["warnings"] if "nowhere" in w] == [
        "the filter locality names 'L3', which is nowhere in the files."
    ]
    assert out.visits() == {"S10": 1, "S11": 0, "S20": 2, "S21": 0}
    out.check_flow_adds_up()
