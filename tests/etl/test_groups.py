"""Section B of the specification: shared checklists, and all taxa of the kept copy."""

from __future__ import annotations

import pytest
from ebird_files import EBD_52, WARBLER, seen, text, visit

from fedmiss.errors import ConfigError
from fedmiss.etl.filters import Filters

G = {"GROUP IDENTIFIER": "G7"}


def shared(*events: str, **more: str) -> list[dict[str, str]]:
    return [visit(e, **{"OBSERVER ID": f"obs-{e}", **G, **more}) for e in events]


def test_group_id_with_one_copy_in_the_file(pair):
    """Line 9: still its group's id."""
    out = pair([seen(shared("S1")[0], "3")], shared("S1"))
    assert out.checklists["group_id"].to_list() == ["G7"]


def test_count_comes_from_the_kept_copy_not_the_largest(pair):
    """Line 10: counts 5, X, 7 give 5 (t20)."""
    a, b, c = shared("S1", "S2", "S3")
    out = pair([seen(c, "7"), seen(b, "X"), seen(a, "5")], [c, a, b])
    assert out.visits() == {"S1": 5}


def test_lowest_is_numeric(pair):
    """Line 10: S99999999 stands before S100000001, with its own observer, site and effort (t21)."""
    late, early = shared("S100000001", "S99999999")
    early |= {"LOCALITY ID": "L5", "DURATION MINUTES": "33"}
    out = pair([seen(late, "8"), seen(early, "2")], [late, early])
    assert out.visits() == {"S99999999": 2}
    row = out.checklists.row(0, named=True)
    assert (row["observer_id"], row["site_id"], row["duration_minutes"]) == ("obs-S99999999", "L5", 33.0)


def test_union_of_the_members_lists(pair):
    """Line 11: a species on any copy counts for the group."""
    a, b = shared("S1", "S2")
    out = pair([seen(a, "1", WARBLER), seen(b, "4")], [a, b])
    assert out.visits() == {"S1": 4}
    assert out.visits("Yellow-rumped Warbler") == {"S1": 1}


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


def test_kept_copy_first_then_rollup(pair):
    """Line 18 (t23): Myrtle 3 + Audubon's 2 on a shared list are 5, where auk says 3."""
    a, b = shared("S1", "S2")
    forms = [("issf", "Setophaga coronata coronata", "3"), ("issf", "Setophaga coronata auduboni", "2")]
    rows = [
        seen(m, n, WARBLER, **{"CATEGORY": c, "SUBSPECIES SCIENTIFIC NAME": s})
        for m in (a, b)
        for c, s, n in forms
    ]
    out = pair(rows, [a, b])
    assert out.visits("Yellow-rumped Warbler") == {"S1": 5}


def test_the_kept_copy_does_not_depend_on_the_filters(pair):
    """A filter that the kept copy fails removes the party's visit; another copy does not step in."""
    a, b = shared("S1", "S2")
    a["EFFORT DISTANCE KM"] = "30"
    out = pair([seen(a, "1"), seen(b, "1")], [a, b], filters=Filters(distance=(None, 10.0)))
    assert out.checklists.height == 0


def test_orphan_copy_of_a_known_group_is_no_false_zero(pair):
    """A record on a copy that the sampling file lacks still speaks for its group."""
    a, b = shared("S1", "S2")
    assert pair([seen(b, "6")], [a]).visits() == {"S1": 6}


def test_copies_without_sampling_file(tmp_path, run):
    """Presence only: the records' own group ids decide."""
    a, b = shared("S1", "S2")
    path = tmp_path / "ebd.txt"
    path.write_bytes(text([seen(a, "5"), seen(b, "7"), seen(visit("S9"), "1")], EBD_52))
    out = run(path)
    assert out.visits() == {"S1": 5, "S9": 1}
    out.check_flow_adds_up()
