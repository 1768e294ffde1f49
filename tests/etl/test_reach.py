"""An EBD cut more narrowly than its sampling file: no false zeros beyond what the records reach."""

from datetime import date

import pytest
from ebird_files import EBD_52, SED_33, THRUSH, WARBLER, seen, text, visit, write_pair

from fedmiss.etl import resolve

HERE = {"OBSERVATION DATE": "2020-05-14"}
OREGON = {
    "STATE": "Oregon", "STATE CODE": "US-OR", "COUNTY": "Lane", "COUNTY CODE": "US-OR-039",
    "LOCALITY ID": "L200",
}  # fmt: skip
LISTS = {
    "S1": HERE,
    "S2": HERE,  # looked for and missed, within every reach
    "S3": {"OBSERVATION DATE": "2019-05-14"},
    "S4": {"OBSERVATION DATE": "2021-05-14"},
    "S5": HERE | OREGON,
    "S6": HERE | {"COUNTY": "Skagit", "COUNTY CODE": "US-WA-057", "LOCALITY ID": "L300"},
}
VISITS = {event: visit(event, **more) for event, more in LISTS.items()}


def giving_zeros(out):
    return set(out.checklists.filter("zero_ok")["checklist_id"])


def zeros(run, tmp_path, records, name: str):
    """Import records under a file name; return the lists that give zeros, and the sentence about reach."""
    ebd, sed = write_pair(tmp_path / "in", records, list(VISITS.values()), name=name)
    out = run(ebd, sampling=[sed])
    out.check_flow_adds_up()
    out.check_cells()
    said = [w for w in out.manifest["warnings"] if "complete checklists lie" in w]
    assert sorted(out.checklists["checklist_id"]) == sorted(LISTS)
    return giving_zeros(out), said


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ebd_US-WA_woothr_202001_202012_relApr-2025", {"S1", "S2", "S6"}),
        ("ebd_US-WA-033_woothr_202005_202005_prv_relApr-2025", {"S1", "S2"}),
        ("ebd_US_woothr_201905_202004_relApr-2025", {"S3"}),
        ("ebd_US_relApr-2025", set(LISTS)),
        ("ebd_US-OR_202001_202012", {"S5"}),
        ("ebd_BCR27_woothr_202101_202112_relApr-2025", {"S4"}),
        ("ebd_CA_relApr-2025", set(LISTS)),  # no such code in the files: they cannot tell
    ],
)
def test_the_file_name_says_what_was_asked_for(run, tmp_path, name, expected):
    ok, said = zeros(run, tmp_path, [seen(VISITS["S1"], "3")], name)
    assert ok == expected
    cut = [w for w in said if "lie beyond the records" in w]
    assert bool(cut) == (expected != set(LISTS))
    assert not cut or cut[0].startswith(f"{len(LISTS) - len(expected)} complete")


@pytest.mark.slow
@pytest.mark.parametrize("counties", [True, False])
def test_many_species_have_records_wherever_somebody_looked(run, tmp_path, monkeypatch, counties):
    """All species of a region and a time: days, counties or states without any record are not in the file."""
    if not counties:
        for v in VISITS.values():
            monkeypatch.setitem(v, "COUNTY CODE", "")
    records = [
        seen(VISITS[event], "1", (f"{genus} species{chr(97 + k)}", f"{genus} {k}"))
        for event, genus in (("S1", "Avis"), ("S6" if counties else "S2", "Ales"))
        for k in range(26)
    ]
    ok, said = zeros(run, tmp_path, records, "birds")
    assert ok == {"S1", "S2", "S6"}
    assert "3 complete checklists lie beyond the records" in said[0]
    assert "2020-05-14 to 2020-05-14" in said[0]


@pytest.mark.parametrize(
    "lost", [("COUNTY CODE",), ("COUNTY CODE", "STATE CODE", "COUNTRY CODE", "OBSERVATION DATE")]
)
@pytest.mark.parametrize("of", ["records", "lists"])
def test_columns_that_a_custom_download_lacks_cut_nothing(run, tmp_path, lost, of):
    """Where one file tells less than the other, only what both tell counts."""
    columns = {"records": EBD_52, "lists": SED_33}
    if of == "lists":
        lost = tuple(c for c in lost if c != "OBSERVATION DATE")  # a sampling file without dates is of no use
    columns[of] = [c for c in columns[of] if c not in lost]
    names = [(f"Avis species{chr(97 + k)}{x}", f"Bird {k}{x}") for k in range(26) for x in "ab"]
    ebd, sed = tmp_path / "ebd_US_201901_202112_relApr-2025.txt", tmp_path / "sampling.txt"
    ebd.write_bytes(text([seen(VISITS[e], "1", n) for n in names for e in ("S1", "S3")], columns["records"]))
    sed.write_bytes(text(list(VISITS.values()), columns["lists"]))
    out = run(ebd, sampling=[sed])
    ok = giving_zeros(out)
    dated = set(LISTS) - {"S4"}  # after the last record of any species
    if lost == ("COUNTY CODE",):
        assert ok == dated - {"S5"}  # Oregon; Skagit cannot be told from King
    else:
        assert ok == (set(LISTS) if of == "records" else dated)


def test_few_species_may_truly_be_absent(run, tmp_path):
    """Nothing is cut, but what may be a false zero is pointed out."""
    ok, said = zeros(run, tmp_path, [seen(VISITS["S1"], "3")], "birds")
    assert ok == set(LISTS)
    assert len(said) == 1
    assert said[0].startswith("3 of 6 complete checklists lie outside the dates or the states")


THRUSH_2020, OREGON_2020 = "ebd_US-WA_woothr_202001_202012", "ebd_US-OR_woothr_202001_202012"
TWO_PERIODS = {"S1", "S2", "S3", "S6"}


@pytest.mark.parametrize(
    ("name", "other", "records", "asked", "expected"),
    [
        # in Oregon the species was found, or looked for and never found: true zeros either way
        (THRUSH_2020, OREGON_2020, [("S5", THRUSH)], (), {"S1", "S2", "S5", "S6"}),
        (THRUSH_2020, OREGON_2020, [], (), {"S1", "S2", "S5", "S6"}),
        (THRUSH_2020, "ebd_US-WA_woothr_201901_201912", [("S3", WARBLER)], (), TWO_PERIODS),
        # wood thrushes of 2019 would stand in a file of 2019 only: their absence from that of warblers is no zero
        (THRUSH_2020, "ebd_US-WA_yerwar_201901_201912", [("S3", WARBLER)], (), set()),
        # all species, wood thrushes among them
        (THRUSH_2020, "ebd_US-WA_201901_202012", [("S3", WARBLER)], (), TWO_PERIODS),
        # one species of the whole world has no region in its name
        ("ebd_woothr_202001_202012_relApr-2025", "ebd_yerwar_201901_201912_smp_relApr-2025", [("S3", WARBLER)], (), set()),
        # a word in a name is no species where several are in the file
        (THRUSH_2020, "ebd_subset_201901_201912", [("S3", WARBLER), ("S3", THRUSH)], (), {"S3"}),
        # a species that is not asked for takes no zeros
        (THRUSH_2020, "ebd_US-WA_yerwar_201901_201912", [("S3", WARBLER)], ("Wood Thrush",), {"S1", "S2", "S6"}),
    ],
)  # fmt: skip
def test_a_file_beside_another_widens_the_reach_of_its_own_species_only(
    run, tmp_path, name, other, records, asked, expected
):
    ebd, sed = write_pair(tmp_path, [seen(VISITS["S1"], "3")], list(VISITS.values()), name=name)
    more = [seen(VISITS[event], "3", kind) for event, kind in records]
    files = ebd, write_pair(tmp_path, more, [], name=other)[0]
    out = run(*files, sampling=[sed], species=asked)
    assert giving_zeros(out) == expected
    assert f"{len(LISTS) - len(expected)} complete checklists lie beyond" in out.warnings
    assert run(*files, sampling=[sed], species=asked).warnings == out.warnings  # said from the cache too


def test_months_of_a_file_name_are_whole():
    from fedmiss.etl.reach import _days

    for year, month, last in (("2020", "02", 29), ("2021", "02", 28), ("2020", "12", 31), ("2020", "04", 30)):
        end = date(1970, 1, 1).toordinal() + _days(year, month, end=True)
        assert date.fromordinal(end) == date(int(year), int(month), last)


@pytest.mark.parametrize("n_species", [9, 10])
@pytest.mark.parametrize("n_lists", [20, 21])
def test_a_file_that_was_cut_at_a_line_end_leaves_lists_without_any_record(run, tmp_path, n_species, n_lists):
    """One of 20 checklists may truly be without a bird; more are pointed out where several species were asked for."""
    visits = [visit(f"S{k}", **HERE) for k in range(n_lists)]
    names = [(f"Avis species{chr(97 + k)}", f"Bird {k}") for k in range(n_species)]
    records = [seen(v, "1", names[k % n_species]) for k, v in enumerate(visits[:19])]
    ebd, sed = write_pair(tmp_path / "in", records, visits, name="birds")
    out = run(ebd, sampling=[sed])
    said = [w for w in out.manifest["warnings"] if "no record of any species" in w]
    assert giving_zeros(out) == {v["SAMPLING EVENT IDENTIFIER"] for v in visits}
    assert [w.split()[0] for w in said] == (["10"] if n_species == 10 and n_lists == 21 else [])


@pytest.mark.parametrize(
    ("sample", "expected"),  # S400; S10, S20, ..., S400; all
    [(1, []), (40, ["32"]), (10**6, ["33"])],
)
def test_the_share_without_records_is_that_of_a_part_of_the_checklists(
    run, tmp_path, monkeypatch, sample, expected
):
    monkeypatch.setattr(resolve, "SAMPLE", sample)
    visits = [visit(f"S{k}", **HERE) for k in range(1, 401)]
    names = [(f"Avis species{chr(97 + k)}", f"Bird {k}") for k in range(10)]
    records = [seen(v, "1", names[k % 10]) for k, v in enumerate(visits) if (k + 1) % 3]  # not S3, S6, ...
    ebd, sed = write_pair(tmp_path / "in", records, visits, name="birds")
    said = [w for w in run(ebd, sampling=[sed]).manifest["warnings"] if "no record of any species" in w]
    assert [w.split()[0] for w in said] == expected
