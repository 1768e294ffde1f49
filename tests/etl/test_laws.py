"""Laws of the importer on random files, and a reader that never falls over and never misreads in silence."""

import errno
import gzip
import os
import random
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from ebird_files import (
    BIRDS,
    EBD_52,
    MAP,
    SED_33,
    random_rows,
    seen,
    small_file,
    text,
    visit,
    write_pair,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmiss.errors import FedmissError, InputError
from fedmiss.etl import projection, resolve
from fedmiss.etl.cells import aggregate, species_visits
from fedmiss.etl.filters import Filters
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.select import Events, find_sorted


def cells(out: Path) -> dict[str, list[tuple]]:
    """All cells of all species, as plain values."""
    total = aggregate(out)
    names = sorted(total.detections["species"].unique())
    return {n: total.cells(n).rows() for n in names}


def run(folder: Path, files: list[Path], sampling: list[Path], **more) -> dict:
    out = folder / f"out{len(list(folder.glob('out*')))}"
    ingest(files, out, IngestSettings(**more), sampling=sampling, cache=folder / "cache")
    return cells(out)


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["first", "merged", "raw"])
@pytest.mark.parametrize("seed", [1, 2])
def test_cells_do_not_depend_on_how_the_rows_come(tmp_path, seed, groups):
    """Order of rows, split in two files, gzip, order of columns: one aggregate."""
    records, visits = random_rows(seed)
    ebd, sed = write_pair(tmp_path / "a", records, visits)
    expected = run(tmp_path, [ebd], [sed], groups=groups)
    assert sum(len(v) for v in expected.values()) > 5

    rng = random.Random(seed)
    shuffled = [rng.sample(records, len(records)), rng.sample(visits, len(visits))]
    ebd2, sed2 = write_pair(tmp_path / "b", *shuffled)
    assert run(tmp_path, [ebd2], [sed2], groups=groups) == expected

    halves = [write_pair(tmp_path / f"h{i}", records[i::2], visits[i::2]) for i in range(2)]
    assert run(tmp_path, [h[0] for h in halves], [h[1] for h in halves], groups=groups) == expected

    packed = []
    for path in (ebd, sed):
        packed.append(path.with_name(path.name + ".gz"))
        packed[-1].write_bytes(gzip.compress(path.read_bytes()))
    assert run(tmp_path, packed[:1], packed[1:], groups=groups) == expected

    columns = rng.sample(EBD_52, len(EBD_52)), rng.sample(SED_33, len(SED_33))
    other = tmp_path / "e.txt", tmp_path / "e_sampling.txt"
    for path, rows, names in zip(other, (records, visits), columns, strict=True):
        path.write_bytes(text(rows, names))
    assert run(tmp_path, [other[0]], [other[1]], groups=groups) == expected


def test_portions_and_row_groups_do_not_change_the_answer(tmp_path, monkeypatch):
    """Records that do not fit in memory at once go through in portions that keep shared lists together."""
    ebd, sed = write_pair(tmp_path, *random_rows(5, 200, 900))
    expected = run(tmp_path, [ebd], [sed])
    monkeypatch.setattr(resolve, "PORTION", 70)
    monkeypatch.setattr(projection, "ROW_GROUP", 64)
    monkeypatch.setattr("fedmiss.etl.fields.BLOCK_BYTES", 4096)
    ingest([ebd], tmp_path / "small", sampling=[sed], cache=tmp_path / "cache2")
    assert cells(tmp_path / "small") == expected


def slow_truth(records, visits, policy):
    """The rules, written as plainly as they are said: dictionaries and loops."""
    groups: dict[str, list[dict]] = {}
    for v in visits:
        shared = v["GROUP IDENTIFIER"] if policy != "raw" else ""
        groups.setdefault(shared or v["SAMPLING EVENT IDENTIFIER"], []).append(v)
    result = {}
    for members in groups.values():
        members = sorted(members, key=lambda v: int(v["SAMPLING EVENT IDENTIFIER"][1:]))
        kept = members[0]
        for sci, _ in BIRDS[:2]:
            answer: int | str | None = "missing" if kept["ALL SPECIES REPORTED"] == "0" else 0
            for m in members:
                counts = [
                    r["OBSERVATION COUNT"]
                    for r in records
                    if r["SAMPLING EVENT IDENTIFIER"] == m["SAMPLING EVENT IDENTIFIER"]
                    and r["SCIENTIFIC NAME"] == sci
                    and r["OBSERVATION COUNT"] != "0"
                ]
                if counts:
                    answer = None if "X" in counts else sum(map(int, counts))
                    break
            if answer != "missing":
                result[kept["SAMPLING EVENT IDENTIFIER"], sci] = answer
    return result


@pytest.mark.parametrize(
    ("seed", "groups"), [(0, "first"), (1, "first"), (2, "merged"), (3, "raw"), (4, "raw")]
)
def test_visits_equal_the_rules_written_plainly(tmp_path, seed, groups):
    records, visits = random_rows(100 + seed, 80, 250)
    ebd, sed = write_pair(tmp_path, records, visits)
    ingest([ebd], tmp_path / "out", IngestSettings(groups=groups), sampling=[sed], cache=tmp_path / "cache")
    got = {}
    for sci, _ in BIRDS[:2]:
        frame = species_visits(tmp_path / "out", sci).collect()
        got |= {(c, sci): n for c, n in frame.select("checklist_id", "count").iter_rows()}
    assert got == slow_truth(records, visits, groups)


def damage(raw: bytearray, rng: random.Random) -> bytes:
    """Some bytes changed, cut out, put in; separators in the wrong place."""
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(raw))
        kind = rng.choice(["byte", "cut", "insert", "separator"])
        if kind == "byte":
            raw[at] = rng.randrange(256)
        elif kind == "cut":
            del raw[at : at + rng.randrange(1, 40)]
        elif kind == "insert":
            raw[at:at] = rng.randbytes(rng.randrange(1, 12))
        else:
            raw[at : at + 1] = rng.choice([b"\t", b"\n", b"\r\n", b'"', b"\0", b","])
        raw = raw or bytearray(b"x")
    return bytes(raw)


def check_damaged(folder: Path, kind: str, seed: int) -> bool:
    """Import a damaged file: either the flow adds up, or one clear error and nothing on disk."""
    rng = random.Random(seed)
    path, sampling = small_file(folder, kind)
    target = rng.choice([path, *sampling])
    target.write_bytes(damage(bytearray(target.read_bytes()), rng))
    wanted = IngestSettings(column_map=MAP if kind == "plain" else None)
    try:
        manifest = ingest([path], folder / "out", wanted, sampling=sampling, keep_cache=False)
    except FedmissError as error:
        message = str(error)
        assert (len(message) > 20, (folder / "out").exists()) == (True, False)
        return False
    for table in ("checklists", "records"):
        rows = [r for r in manifest["flow"] if r["step"].startswith(table)]
        written = pl.read_parquet(folder / "out" / f"{table}.parquet").height
        assert sum(r["rows"] for r in rows if not r["step"].endswith("written")) == written
    return True


KINDS = ("ebird", "myebird", "gbif", "plain")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        *((kind, range(15)) for kind in KINDS),
        ("ebird", range(1000, 1050)),
        *(pytest.param(k, range(f, f + 200), marks=pytest.mark.nightly) for k in KINDS for f in (1000, 1200)),
    ],
)
def test_damaged_files_give_an_answer_or_one_clear_error(tmp_path, kind, seeds):
    """Random bytes, cut lines and wrong types: no traceback, and what is read adds up."""
    fates = set()
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        fates.add(check_damaged(tmp_path / str(seed), kind, seed))
    assert fates == {True, False}


@pytest.mark.slow
def test_the_cache_answers_the_second_time(tmp_path, monkeypatch):
    """Another species of the same file reads no text; a changed file is read again."""
    ebd, sed = write_pair(tmp_path, *random_rows(3))
    first = run(tmp_path, [ebd], [sed])
    with monkeypatch.context() as patch:
        patch.setattr("fedmiss.etl.ebird.read_blocks", lambda *a, **k: pytest.fail("the text was read again"))
        assert run(tmp_path, [ebd], [sed], groups="raw") != first
        patch.setattr(
            "fedmiss.etl.select.write_checklists", lambda *a, **k: pytest.fail("the lists were made again")
        )
        assert run(tmp_path, [ebd], [sed]) == first
    raw = ebd.read_bytes()
    ebd.write_bytes(raw.replace(b"\t5\t", b"\t6\t"))
    stat = ebd.stat()
    os.utime(ebd, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert run(tmp_path, [ebd], [sed]) != first


@pytest.mark.parametrize("what", ["", "events", "lists", "repeats"])
def test_an_import_goes_on_without_its_cache_where_the_disk_is_full(tmp_path, monkeypatch, capsys, what):
    """Nothing of what the cache was to hold is needed twice; a full disk ended the import."""
    (tmp_path / "b").mkdir()
    pair, other = write_pair(tmp_path, *random_rows(3)), write_pair(tmp_path / "b", *random_rows(4))
    files, lists = zip(pair, other, strict=True)
    plan = IngestSettings(filters=Filters(complete_only=True))
    ingest(files, tmp_path / "usual", plan, sampling=lists, keep_cache=False)
    usual, stopped = projection.atomic_folder, []

    @contextmanager
    def full(path, **more):
        with usual(path, **more) as folder:
            yield folder
            if path.parent.name == ".fedmiss-cache" and path.name.startswith(what):
                stopped.append(path.name)
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(projection, "atomic_folder", full)
    ingest(files, tmp_path / "full", plan, sampling=lists)
    assert len(stopped) == 1
    assert f"without the cache {tmp_path / '.fedmiss-cache'}." in capsys.readouterr().err
    for name in ("records.parquet", "checklists.parquet"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "usual" / name).read_bytes()


def test_a_disk_that_the_cache_fills_is_told_with_the_way_without_it(tmp_path, monkeypatch):
    """The message asked to free some space, and said nothing of the cache that took it."""
    ebd, sed = write_pair(tmp_path, *random_rows(3))

    def full(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedmiss.etl.ingest.write_records", full)
    with pytest.raises(
        InputError, match=r"disk is full.*The cache .*\.fedmiss-cache holds 0\.\d MB.*--no-cache"
    ):
        ingest([ebd], tmp_path / "out", sampling=[sed])
    with pytest.raises(InputError, match="disk is full") as told:
        ingest([ebd], tmp_path / "out", sampling=[sed], keep_cache=False)
    assert "--no-cache" not in str(told.value)


def test_a_cache_inside_a_file_is_refused_in_words(tmp_path):
    """It ended with the words of the system, File exists."""
    (tmp_path / "t.csv").write_text("site,year,count\na,2001,3\na,2002,4\n")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file; choose another folder"):
        ingest([tmp_path / "t.csv"], tmp_path / "out", cache=tmp_path / "file")


@pytest.mark.parametrize("groups", ["first", "merged", "raw"])
def test_other_filters_take_over_which_copies_stand(tmp_path, monkeypatch, groups):
    """With filters not used before, the copies are not resolved again, and the answer is that of a fresh import."""
    ebd, sed = write_pair(tmp_path, *random_rows(5))
    run(tmp_path, [ebd], [sed], groups=groups)
    tables = []
    for cache in ("cache", "fresh"):
        out = tmp_path / f"filtered-{cache}"
        settings = IngestSettings(groups=groups, filters=Filters(complete_only=True, localities=("L1", "L2")))
        with monkeypatch.context() as patch:
            if cache == "cache":
                patch.setattr(Events, "load", lambda *a, **k: pytest.fail("the copies were resolved again"))
            ingest([ebd], out, settings, sampling=[sed], cache=tmp_path / cache)
        tables.append([pl.read_parquet(out / f"{t}.parquet") for t in ("checklists", "records")])
    assert tables[0][0].height > 5
    assert all(a.equals(b) for a, b in zip(*tables, strict=True))


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(0, 60) | st.integers(10**8, 10**8 + 10**6) | st.integers(0, 2**62), max_size=40)
)
def test_ids_are_found_wherever_they_lie(ids):
    """However unevenly the ids are spread, and for ids below, between and above them."""
    held = np.unique(np.array(ids[::2], dtype=np.int64))
    wanted = np.array([*ids, -1, 0, 2**62 + 1], dtype=np.int64)
    expected = [held.tolist().index(w) if w in held else -1 for w in wanted.tolist()]
    assert find_sorted(held, wanted).tolist() == expected


def test_an_interrupted_import_leaves_nothing(tmp_path, monkeypatch):
    ebd, sed = write_pair(tmp_path / "in", *random_rows(3))

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    for target in ("fedmiss.etl.ebird._check_end", "fedmiss.etl.ingest.write_records"):
        with monkeypatch.context() as patch:
            patch.setattr(target, stop)
            with pytest.raises(KeyboardInterrupt):
                ingest([ebd], tmp_path / "work" / "out", sampling=[sed])
        left = [p for p in (tmp_path / "work").rglob("*") if p.is_file() and ".fedmiss-cache" not in p.parts]
        assert left == []
    assert not [p for p in (tmp_path / "work").rglob(".*.tmp-*")]


@pytest.mark.parametrize("at_once", [100, 2500, 100_000])
@pytest.mark.parametrize("n_files", [1, 3])
def test_repeated_identifiers_are_all_found(tmp_path, monkeypatch, at_once, n_files):
    """However many portions they are compared in: exactly the records whose identifier is repeated are listed."""
    monkeypatch.setattr(projection, "AT_ONCE", at_once)
    rng = np.random.default_rng(at_once)
    guid = rng.integers(0, 4000, 5000) * np.int64(0x9E3779B97F4A7) * rng.choice([-1, 1], 5000)  # 0 is a blank
    files = []
    for k in range(n_files):
        mine = slice(k, None, n_files)
        table = {c: np.zeros(5000, t)[mine] for c, t in projection.RECORD_COLUMNS.items()}
        table |= {"guid": guid[mine], "edited": np.arange(5000)[mine]}
        files.append(tmp_path / f"records{k}.parquet")
        with projection.ParquetSink(files[-1], projection.RECORD_COLUMNS, by="taxon") as sink:
            sink.add(table)
    projection.write_repeats(files, tmp_path / "repeats.parquet")
    values, n = np.unique(guid[guid != 0], return_counts=True)
    expected = np.flatnonzero(np.isin(guid, values[n > 1]))
    found = pl.read_parquet(tmp_path / "repeats.parquet").sort("edited")
    assert found["edited"].to_list() == expected.tolist()
    assert (found["guid"].to_numpy() == guid[expected]).all()
    assert 0 < expected.size < 5000


def test_several_files_are_compared_once(tmp_path, monkeypatch):
    """A record that a later download has under another species and list counts there; the cache knows it."""
    lists = [visit("S1"), visit("S2")]
    old = seen(lists[0], "4", BIRDS[0])
    new = old | seen(lists[1], "7", BIRDS[1]) | {k: old[k] for k in ("GLOBAL UNIQUE IDENTIFIER",)}
    new["LAST EDITED DATE"] = "2024-07-01 09:00:00"
    first, sed = write_pair(tmp_path / "a", [old, seen(lists[1], "2", BIRDS[0])], lists)
    second, _ = write_pair(tmp_path / "b", [new], lists)
    out = tmp_path / "out"
    thrush = IngestSettings(species=("Wood Thrush",))
    for _ in range(2):
        ingest([first, second], out, thrush, sampling=[sed], cache=tmp_path / "cache", overwrite=True)
        assert pl.read_parquet(out / "records.parquet").select("checklist_id", "count").rows() == [("S2", 2)]
        monkeypatch.setattr(projection, "write_repeats", lambda *a: pytest.fail("compared again"))
    monkeypatch.setattr(resolve, "PORTION", 1)
    both = tmp_path / "both"
    ingest([first, second], both, sampling=[sed], cache=tmp_path / "cache")
    found = pl.read_parquet(both / "records.parquet").select("checklist_id", "species", "count")
    assert sorted(found.rows()) == [("S2", BIRDS[0][0], 2), ("S2", BIRDS[1][0], 7)]


def test_row_groups_without_the_taxa_are_passed_over(tmp_path, monkeypatch):
    """A reader of some taxa gets every row of theirs, and not every row group."""
    monkeypatch.setattr(projection, "ROW_GROUP", 50)
    rng = np.random.default_rng(2)
    taxon = rng.integers(0, 40, 1000).astype(np.int32)
    table = {k: np.arange(1000) for k in projection.RECORD_COLUMNS} | {"taxon": taxon}
    with projection.ParquetSink(tmp_path / "r.parquet", projection.RECORD_COLUMNS, by="taxon") as sink:
        for i in range(0, 1000, 100):
            sink.add({k: v[i : i + 100] for k, v in table.items()})
    n_read = []
    for wanted in (np.array([i, i + 7], np.int32) for i in range(33)):
        parts = list(projection.row_groups(tmp_path / "r.parquet", ["taxon", "event"], wanted))
        read = {k: np.concatenate([p[k] for p in parts]) for k in ("taxon", "event")}
        mine = np.isin(read["taxon"], wanted)
        assert sorted(read["event"][mine].tolist()) == np.flatnonzero(np.isin(taxon, wanted)).tolist()
        n_read.append(read["event"].size)
    assert max(n_read) < 600


def test_a_species_that_is_named_twice_is_counted_once(tmp_path):
    ebd, sed = write_pair(tmp_path, *random_rows(3))
    ingest([ebd], tmp_path / "out", sampling=[sed], cache=tmp_path / "cache")
    once = aggregate(tmp_path / "out", ["Turdus merula"])
    twice = aggregate(tmp_path / "out", ["Blackbird", "Turdus merula", "Turdus merula"])
    assert once.detections.height > 3
    assert twice.detections.equals(once.detections)
