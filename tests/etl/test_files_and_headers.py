"""Section A of the specification: bytes, headers, ragged lines, archives."""

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from ebird_files import EBD_52, SED_33, THRUSH, seen, text, visit, write_pair

from fedmiss.errors import ConfigError, InputError, SchemaError
from fedmiss.etl import ingest as importing
from fedmiss.etl.filters import Filters
from fedmiss.etl.ingest import IngestSettings, ingest
from fedmiss.etl.sources import expand
from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird
from fedmiss.simulate.truth import TERMS
from fedmiss.tables import read_table

A = visit("S11")
B = visit("S12", **{"OBSERVATION DATE": "2020-06-02"})


def test_quotes_are_data(pair):
    """Line 1: no quoting; a lone quote must not swallow the following rows."""
    odd = {"CHECKLIST COMMENTS": '"unclosed', "SPECIES COMMENTS": 'a "b" c"'}
    out = pair([seen(A, "3", **odd), seen(B, "4")], [{**A, **odd}, B])
    assert out.visits() == {"S11": 3, "S12": 4}


def test_non_ascii_names_survive(pair):
    """Line 2: UTF-8."""
    a = {**A, "LOCALITY": "Reserva Ñandú — 森"}
    out = pair([seen(a, "3")], [a])
    assert out.checklists["site_name"].to_list() == ["Reserva Ñandú — 森"]


def test_byte_order_mark_is_accepted(tmp_path, run):
    """Line 2: a BOM is not part of the first column's name."""
    ebd, sed = write_pair(tmp_path, [seen(A, "3")], [A])
    for path in (ebd, sed):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert run(ebd, sampling=[sed]).visits() == {"S11": 3}


@pytest.mark.parametrize("which", [0, 1])
def test_latin1_names_the_line(tmp_path, run, which):
    """Line 2: undecodable bytes stop the import with their line."""
    rows = [{**A, "LOCALITY": "x"}] * 5 + [{**B, "LOCALITY": "caf\u00e9"}]
    paths = write_pair(tmp_path, [seen(r, "1") for r in rows], rows)
    paths[which].write_bytes(paths[which].read_bytes().decode().encode("latin-1"))
    with pytest.raises(InputError, match=r"line 7: the byte 0xe9 is not UTF-8"):
        run(paths[0], sampling=[paths[1]])


@pytest.mark.parametrize(
    ("layout", "trailing_tab", "end"),
    [(46, False, "\r\n"), (46, True, "\n"), (49, True, "\r\n"), (52, False, "\n"), (52, True, "\r\n")],
)
def test_every_generation_gives_the_same_tables(pair, layout, trailing_tab, end):
    """Lines 3, 4, 6, 7: 46, 49 and 52 columns, blank last column, CRLF: one answer."""
    write = {"layout": layout, "trailing_tab": trailing_tab, "end": end}
    out = pair([seen(A, "3"), seen(B, "X")], [A, B, visit("S13")], write=write)
    assert out.visits() == {"S11": 3, "S12": None, "S13": 0}
    assert out.checklists["protocol"].to_list() == ["Traveling"] * 3
    assert out.checklists.row(0, named=True)["region"] == "US-WA-033"
    assert not [w for w in out.manifest["warnings"] if "rows have" in w]


def test_carriage_return_is_not_part_of_the_last_column(tmp_path, run):
    """Line 3: the last value loses its CR even where the last column is one that counts."""
    columns = [c for c in EBD_52 if c != "SCIENTIFIC NAME"] + ["SCIENTIFIC NAME"]
    ebd = tmp_path / "ebd.txt"
    ebd.write_bytes(text([seen(A, "3")], columns, end="\r\n"))
    assert run(ebd).records["species"].to_list() == [THRUSH[0]]


def test_header_variants_of_custom_downloads(tmp_path, run):
    """Line 5: case, underscores and slashes do not matter; unknown columns are ignored; SUBNATIONAL1_CODE."""
    ebd, sed = write_pair(tmp_path, [seen(A, "3")], [A])
    for path in (ebd, sed):
        lines = path.read_text().split("\n")
        lines[0] = lines[0].lower().replace(" ", "_").replace("state_code", "subnational1_code")
        lines[0] = lines[0].replace("state\t", "state_province\t")
        path.write_text("\n".join(line + "\textra" if line else line for line in lines))
    out = run(ebd, sampling=[sed], filters=Filters(states=("US-WA",)))
    assert out.visits() == {"S11": 3}


def test_tabs_in_comments_and_short_rows_are_counted(tmp_path, run):
    """Line 8: extra fields belong to the comments, short rows are blank at the end; both are reported."""
    C = visit("S13")
    ebd, sed = write_pair(tmp_path, [seen(A, "3"), seen(B, "4"), seen(C, "5")], [A, B, C])
    lines = ebd.read_text().split("\n")
    lines[1] += "\tmore\ttabs"
    lines[2] = lines[2].rstrip("\t")
    ebd.write_text("\n".join(lines))
    out = run(ebd, sampling=[sed])
    assert out.visits() == {"S11": 3, "S12": 4, "S13": 5}
    assert "1 row has more columns" in out.warnings
    assert "1 row has fewer columns" in out.warnings


def test_header_only_gives_no_rows(pair):
    """Line 8: a header-only EBD is an extract in which nothing was found."""
    out = pair([], [A, B], species=(THRUSH[0],))
    assert out.visits(THRUSH[0]) == {"S11": 0, "S12": 0}
    assert pair([], [], species=(THRUSH[0],)).checklists.height == 0


def test_wrong_path_proposes_the_right_one(tmp_path):
    write_pair(tmp_path, [seen(A, "3")], [A])
    with pytest.raises(InputError, match=r"Did you mean ebd_test.txt"):
        expand(tmp_path / "ebd_tets.txt")
    with pytest.raises(InputError, match="is a folder"):
        expand(tmp_path)


def zipped(members: dict[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


ROWS = text([seen(A, str(i)) for i in range(3000)], EBD_52)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ebd.txt", b"", r"is empty \(0 bytes\)"),
        ("ebd.txt", ROWS.replace(b"\tREASON\t", b"\tR\xc9ASON\t"),
         r"line 1, byte \d+: b'\\xc9' is not UTF-8"),
        ("note.txt", b"Dear colleague,\nplease find\n", "is no eBird, MyEBirdData or GBIF file"),
        ("note.txt", b"\x00\x01\x02\x03", "is not a text table"),
        ("ebd.txt", ROWS.decode().encode("utf-16"), "UTF-16"),
        ("ebd.txt", ROWS.decode().encode("utf-16-be"), "looks like UTF-16 text without its mark"),
        ("ebd.txt", ROWS.replace(b"\n", b"\r"), "lines that end in a carriage return alone"),
        ("ebd.txt.gz", gzip.compress(ROWS)[:-9000], "damaged or was cut short"),
        ("x.zip", b"PK\x03\x04 this is no zip", "damaged or was cut short"),
        ("x.zip", zipped({"readme.md": "hello"}), "holds no table that fedmiss knows"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_told(tmp_path, run, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((InputError, ConfigError), match=words):
        run(tmp_path / name)


def test_a_pipe_is_told_as_one(tmp_path, run):
    """It was called an empty file, to be downloaded again."""
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="is a pipe or a device; write the table into a file first"):
        run(tmp_path / "pipe.csv")


def test_missing_required_column_is_named(tmp_path, run):
    ebd, sed = tmp_path / "e.txt", tmp_path / "e_sampling.txt"
    ebd.write_bytes(text([seen(A, "3")], [c for c in EBD_52 if c != "OBSERVATION COUNT"]))
    sed.write_bytes(text([A], [c for c in SED_33 if c != "ALL SPECIES REPORTED"]))
    with pytest.raises(SchemaError, match="OBSERVATION COUNT"):
        run(ebd)
    ebd.write_bytes(text([seen(A, "3")], EBD_52))
    with pytest.raises(SchemaError, match="ALL SPECIES REPORTED"):
        run(ebd, sampling=[sed])


def test_a_cut_file_is_noticed(tmp_path, run):
    """A line without its end and without the columns that count: zeros after it would be false."""
    ebd, sed = write_pair(tmp_path, [seen(A, "3"), seen(B, "4")], [A, B])
    whole = ebd.read_bytes()
    ebd.write_bytes(whole[: len(whole) - 60])
    with pytest.raises(InputError, match=r"cut short: its last line \(3\)"):
        run(ebd, sampling=[sed])
    ebd.write_bytes(whole[:-1])  # only the line end is missing: told, not refused
    out = run(ebd, sampling=[sed])
    assert out.visits() == {"S11": 3, "S12": 4}
    assert "no line end" in out.warnings


def test_gzip_zip_and_tar_read_like_plain(tmp_path, run):
    """Archives as downloaded: members are found by their headers, companions are ignored."""
    ebd, sed = write_pair(tmp_path / "in", [seen(A, "3"), seen(B, "X")], [A, B])
    plain = run(ebd, sampling=[sed])
    gz = [tmp_path / f"{p.name}.gz" for p in (ebd, sed)]
    for source, path in zip((ebd, sed), gz, strict=True):
        path.write_bytes(gzip.compress(source.read_bytes()))
    packed, tarred = tmp_path / "ebd_relApr-2025.zip", tmp_path / "ebd_relApr-2025.tar"
    texts = {"terms_of_use.txt": "words", "recommended_citation.txt": "more words"}
    packed.write_bytes(zipped({p.name: p.read_bytes() for p in (ebd, sed)} | texts))
    with tarfile.open(tarred, "w") as t:
        for path in gz:
            t.add(path, path.name)
        info = tarfile.TarInfo("BCRCodes.txt")
        info.size = 9
        t.addfile(info, io.BytesIO(b"a\tb\n1\t2\n\n"))
    for out in (run(*gz), run(packed), run(tarred)):
        assert out.records.equals(plain.records)
        assert out.checklists.equals(plain.checklists)
    assert run(packed).manifest["terms"]["release"] == "Apr-2025"


def test_a_damaged_file_of_ebird_in_an_archive_is_no_missing_one(tmp_path):
    """Without it records would have no zeros, and the message would ask for a file that is there."""
    path, lists = tmp_path / "ebd.zip", text([A], SED_33).decode().encode("utf-16")
    terms = "caf\u00e9".encode("latin-1")
    path.write_bytes(zipped({"ebd_US.txt": ROWS, "ebd_US_sampling.txt": lists, "terms_of_use.txt": terms}))
    with pytest.raises(InputError, match=r"ebd\.zip:ebd_US_sampling\.txt is UTF-16"):
        expand(path)


def test_lines_longer_than_a_block(tmp_path, run):
    long = visit("S13", **{"CHECKLIST COMMENTS": "z" * (5 << 20)})
    ebd, sed = write_pair(tmp_path, [seen(A, "1"), seen(long, "2"), seen(B, "3")], [A, long, B])
    assert run(ebd, sampling=[sed]).visits() == {"S11": 1, "S13": 2, "S12": 3}


def test_malformed_rows_are_counted_with_their_line(tmp_path, run):
    ebd, sed = write_pair(tmp_path, [seen(A, "3"), seen(visit("oops"), "9"), seen(B, "4")], [A, B])
    out = run(ebd, sampling=[sed])
    assert out.flow("records: malformed") == -1
    assert "line 3: no usable SAMPLING EVENT IDENTIFIER 'oops'" in out.warnings
    out.check_flow_adds_up()


def test_mostly_bad_rows_stop_the_import(tmp_path, run):
    ebd, sed = write_pair(tmp_path, [seen(visit(f"bad{i}"), "1") for i in range(30)], [A])
    with pytest.raises(InputError, match="30 of 30 rows cannot be read"):
        run(ebd, sampling=[sed])


def test_the_input_is_hashed(tmp_path, run):
    ebd, sed = write_pair(tmp_path, [seen(A, "3")], [A])
    out = run(ebd, sampling=[sed])
    known = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (ebd, sed)}
    assert out.manifest["inputs"] == known


def test_blanks_around_values_are_not_part_of_them(pair):
    """Line 34: 'S ' as a breeding code is no fault; blanks around names and ids do not make new ones."""
    b = {**B, "LOCALITY ID": A["LOCALITY ID"] + " ", "OBSERVER ID": " " + A["OBSERVER ID"]}
    name, common = THRUSH
    records = [seen(A, "3", **{"BREEDING CODE": "S "}), seen(b, "2", (name + " ", common))]
    out = pair(records, [A, b])
    assert out.manifest["warnings"] == pair([seen(A, "3")], [A]).manifest["warnings"]
    assert out.checklists["site_id"].n_unique() == out.checklists["observer_id"].n_unique() == 1
    assert out.records["species"].to_list() == [name, name]
    assert out.records["count"].to_list() == [3, 2]


CITED = (
    "Please cite: eBird Basic Dataset. Version: EBD_relApr-2025.\r\nCornell Lab of Ornithology, Apr 2025.\n"
)


def test_the_citation_of_the_download_is_kept(run, tmp_path):
    """In the archive, or unpacked beside the files; one of another release is not taken."""
    ebd, sed = write_pair(tmp_path / "in", [seen(A, "3")], [A])
    packed, name = tmp_path / "ebd_US-WA_relApr-2025.zip", "ebd_US-WA_relApr-2025"
    texts = {f"{name}.txt": ebd.read_bytes(), f"{name}_sampling.txt": sed.read_bytes()}
    packed.write_bytes(zipped(texts | {"recommended_citation.txt": CITED}))
    in_words = " ".join(CITED.split())
    assert run(packed).manifest["terms"]["citation"] == in_words
    unnamed = run(ebd, sampling=[sed]).manifest["terms"]["citation"]
    assert unnamed.startswith("eBird Basic Dataset. Version: release")
    ebd.with_name("recommended_citation.txt").write_text(CITED)
    assert run(ebd, sampling=[sed]).manifest["terms"]["citation"] == in_words
    other = ebd.rename(ebd.with_name("ebd_US-WA_relApr-2024.txt"))
    cited = run(other, sampling=[sed.rename(sed.with_name("ebd_US-WA_relApr-2024_sampling.txt"))])
    assert "Version: EBD_relApr-2024." in cited.manifest["terms"]["citation"]


@pytest.mark.slow
def test_simulated_files_are_not_credited_to_ebird(run, tmp_path):
    sim = simulate_ebird(tmp_path / "sim", EbirdSettings(records=1000, seed=4))
    made = sim / "ebd_sim.txt", sim / "ebd_sim_sampling.txt"
    assert run(made[0], sampling=[made[1]]).manifest["terms"] == TERMS
    assert run(made[0]).manifest["terms"] == TERMS
    ebd, sed = write_pair(tmp_path / "in", [seen(A, "3")], [A])
    both = run(made[0], ebd, sampling=[made[1], sed])  # one real list among them, and the terms are eBird's
    assert both.manifest["terms"]["licence"] == "eBird terms of use"


COUNTS = "site;year;count\na;2001;4\na;2002;6\nb;2001;10\nb;2002;3\n"


def test_a_file_that_grows_while_it_is_read_is_refused_and_not_kept(tmp_path, monkeypatch):
    """Half a download was imported, under the hash of more than was read."""
    path = tmp_path / "counts.csv"
    path.write_text(COUNTS)
    usual = importing.project_counts

    def slow(*args, **more):
        meta = usual(*args, **more)
        path.write_text(COUNTS + "c;2001;5\n")
        return meta

    monkeypatch.setattr(importing, "project_counts", slow)
    with pytest.raises(InputError, match=r"counts\.csv was changed while it was read"):
        ingest([path], tmp_path / "records", IngestSettings(species=("wren",)))
    monkeypatch.undo()
    assert not list((tmp_path / ".fedmiss-cache").iterdir())
    made = ingest([path], tmp_path / "records", IngestSettings(species=("wren",)))
    assert made["results"]["n_records"] == 5


def test_a_cache_that_may_not_be_written_to_is_named(tmp_path, monkeypatch):
    """The message named the output, where the user may write, and advised another --out."""
    path, cache = tmp_path / "counts.csv", tmp_path / "cache"
    path.write_text(COUNTS)
    cache.mkdir()
    usual = os.access
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != cache and usual(place, mode))
    with pytest.raises(InputError, match=r"may not write to the cache .*cache; name another .* with --cache"):
        ingest([path], tmp_path / "records", IngestSettings(species=("wren",)), cache=cache)


def test_names_with_a_colon_are_no_addresses(tmp_path, monkeypatch):
    """pyarrow took ``wren:2001/records.parquet`` for the address of a web service."""
    monkeypatch.chdir(tmp_path)
    Path("counts.csv").write_text(COUNTS)
    ingest(["counts.csv"], "wren:2001/records", IngestSettings(species=("wren",)))
    assert read_table("wren:2001/records/records.parquet", "records").num_rows == 4
