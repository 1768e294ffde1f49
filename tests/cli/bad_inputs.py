"""What users get wrong: how the folder looks, what they type, and what the answer must name.

``tests/cli/test_bad_input.py`` holds every case to one clear line; ``show_bad_input.py`` prints them all.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from terminal import fedmiss, refusing

Words = tuple[object, ...]


@dataclass(frozen=True)
class Case:
    """One mistake: ``words`` prepares the folder and returns what is typed; ``says`` must be in the answer."""

    name: str
    words: Callable[[Path, Path], Words]
    says: tuple[str, ...]
    code: int = 1
    during: Callable[[Path], AbstractContextManager[None]] = lambda folder: contextlib.nullcontext()


def make_base(folder: Path) -> Path:
    """Make one small set of good files that all cases start from: files, records, a panel, a fit."""
    from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird

    simulate_ebird(
        folder / "sim", EbirdSettings(records=1000, species=3, start="2018-01", end="2020-12", seed=3)
    )
    for words in (
        ("ingest", ebd(folder), "--sampling", sampling(folder), "--no-cache", "--out", folder / "records"),
        ("panel", folder / "records", *WIGEON, "--groups", 3, "--out", folder / "panel"),
        ("panel", folder / "records", "--species", "Golden Eagle", "--groups", 3, "--out", folder / "eagles"),
        ("fit", folder / "panel", *QUICK, "--out", folder / "fit"),
        ("impute", folder / "panel", folder / "fit", "--out", folder / "imputed"),
    ):
        done = fedmiss(*words)
        assert done.code == 0, done.err
    return folder


WIGEON = ("--species", "American Wigeon")
QUICK = ("--model", "log1p", "--rank", 0, "--effort", "none", "--bootstrap", 0)


def ebd(base: Path) -> Path:
    return base / "sim" / "ebd_sim.txt"


def sampling(base: Path) -> Path:
    return base / "sim" / "ebd_sim_sampling.txt"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def csv(
    folder: Path,
    *,
    observers: int = 3,
    counts: tuple[str, ...] = ("3", "0", "5"),
    dates: tuple[str, ...] = (),
) -> Path:
    """Write a plain table: every observer at every date."""
    dates = dates or tuple(f"2020-{m:02d}-11" for m in range(1, 13))
    rows = [
        f"o{i},s{(i + k) % 2},{date},{counts[(i + k) % len(counts)]}"
        for k, date in enumerate(dates)
        for i in range(observers)
    ]
    return write(folder / "counts.csv", "observer,site,date,count\n" + "\n".join(rows) + "\n")


def records_of(folder: Path, **table: object) -> Path:
    words = ("--species", "Wood Stork", "--map", "auto", "--no-cache", "--out", folder / "records")
    done = fedmiss("ingest", csv(folder, **table), *words)  # type: ignore[arg-type]
    assert done.code == 0, done.err
    return folder / "records"


def ingest(*words: object) -> Words:
    return ("ingest", *words, "--no-cache", "--out", "new")


def recipe(folder: Path, text: str) -> Words:
    return ("run", write(folder / "trend.toml", text))


def head(base: Path, lines: int) -> str:
    with open(ebd(base), encoding="utf-8") as stream:
        return "".join(line for line, _ in zip(stream, range(lines), strict=False))


def copy(base: Path, name: str, folder: Path) -> Path:
    return Path(shutil.copytree(base / name, folder / name))


def damaged_panel(base: Path, folder: Path) -> Path:
    panel = copy(base, "panel", folder)
    visits = panel / "groups" / "g02" / "visits.parquet"
    visits.write_bytes(visits.read_bytes()[:-200])
    return panel


def damaged_records(base: Path, folder: Path) -> Path:
    records = copy(base, "records", folder)
    (records / "records.parquet").write_bytes(b"PAR1 not really PAR1")
    return records


def cut_gz(base: Path, folder: Path) -> Path:
    path = folder / "ebd_cut.txt.gz"
    path.write_bytes(gzip.compress(ebd(base).read_bytes())[:-5000])
    return path


def broken_manifest(base: Path, folder: Path) -> Path:
    panel = copy(base, "panel", folder)
    manifest = panel / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8")[:300], encoding="utf-8")
    return panel


def not_ours(folder: Path) -> Path:
    (folder / "thesis").mkdir()
    write(folder / "thesis" / "chapter1.txt", "years of work")
    return folder / "thesis"


def mine(base: Path, folder: Path, name: str) -> Path:
    copy(base, name, folder)
    return folder / name


def forbidden(folder: Path) -> Path:
    (folder / "locked").mkdir()
    return folder / "locked"


def full(folder: Path) -> AbstractContextManager[None]:
    """Every rename onto a final name fails as on a full disk."""
    return refusing("replace", errno.ENOSPC, folder)


def read_only(folder: Path) -> AbstractContextManager[None]:
    return refusing("mkdir", errno.EACCES, folder / "locked")


def interrupted(folder: Path) -> AbstractContextManager[None]:
    """Ctrl-C at the first bootstrap replicate."""
    return mock.patch("fedmiss.federation.hub.job.replicates", side_effect=KeyboardInterrupt)


CASES = (
    # --- the twenty of the plan, in its order
    Case("wrong path", lambda b, f: ingest("ebd_WA.txt"), ("there is no file ebd_WA.txt",)),
    Case("empty file", lambda b, f: ingest(write(f / "ebd.txt", "")), ("ebd.txt is empty", "0 bytes")),
    Case(
        "header without rows",
        lambda b, f: ingest(write(f / "ebd.txt", head(b, 1))),
        ("ebd.txt", "header and no rows"),
    ),
    Case(
        "not an eBird file",
        lambda b, f: ingest(write(f / "letter.txt", "Dear Sir,\nno birds today.\n")),
        ("letter.txt is no eBird", "--map"),
        2,
    ),
    Case(
        "unknown column",
        lambda b, f: ingest(csv(f), "--map", "observer=observer,site=plot,date=date,count=count"),
        ("'plot'",),
        2,
    ),
    Case(
        "a column of eBird's is missing",
        lambda b, f: ingest(write(f / "ebd.txt", head(b, 9).replace("OBSERVATION DATE", "WHEN"))),
        ("OBSERVATION DATE",),
    ),
    Case(
        "species not in the records",
        lambda b, f: ("panel", b / "records", "--species", "Amercan Wigeon", "--out", "new"),
        ("'Amercan Wigeon'", "American Wigeon?"),
    ),
    Case(
        "species not in the file",
        lambda b, f: ingest(ebd(b), "--species", "Golden Eagel"),
        ("Golden Eagel", "Golden Eagle"),
        2,
    ),
    Case(
        "one observer only",
        lambda b, f: ("panel", records_of(f, observers=1), "--groups", 2, "--out", "new"),
        ("one observer only", "--groups 1"),
        2,
    ),
    Case(
        "no counts at all",
        lambda b, f: ("panel", records_of(f, counts=("X",)), "--groups", 2, "--out", "new"),
        ("none of its 36 visits has a count", "all are X"),
    ),
    Case(
        "fewer observers than groups",
        lambda b, f: ("panel", records_of(f), "--groups", 10, "--out", "new"),
        ("3 observers", "--groups 10", "--groups 3"),
        2,
    ),
    Case(
        "the folder exists already",
        lambda b, f: ("panel", b / "records", *WIGEON, "--out", mine(b, f, "panel")),
        ("panel exists already", "--overwrite"),
        2,
    ),
    Case(
        "full disk",
        lambda b, f: ("panel", b / "records", *WIGEON, "--groups", 3, "--out", f / "new"),
        ("the disk is full", "new"),
        1,
        full,
    ),
    Case(
        "damaged table",
        lambda b, f: ("fit", damaged_panel(b, f), "--out", "new"),
        ("visits.parquet is damaged", "bytes", "fedmiss panel"),
    ),
    Case(
        "folder of another kind",
        lambda b, f: ("fit", b / "records", "--out", "new"),
        ("'records'", "'panel'"),
    ),
    Case(
        "fit of another panel",
        lambda b, f: ("impute", b / "eagles", b / "fit", "--out", "new"),
        ("fit was not fitted on", "eagles"),
    ),
    Case(
        "unknown setting in a recipe",
        lambda b, f: recipe(f, '[ingest]\nfiles = "ebd.txt"\n[fit]\nbootstarp = 9\n'),
        ("trend.toml: fit", "'bootstarp'", "'bootstrap'"),
        2,
    ),
    Case(
        "wrong type in a recipe",
        lambda b, f: recipe(f, '[ingest]\nfiles = "ebd.txt"\n[panel]\ngroups = "ten"\n'),
        ("panel.groups is 'ten'", "a whole number"),
        2,
    ),
    Case(
        "recipe without files",
        lambda b, f: recipe(f, "[ingest]\ncomplete = true\n"),
        ("ingest.files is missing",),
        2,
    ),
    Case(
        "unknown model",
        lambda b, f: ("fit", b / "panel", "--model", "nebgin", "--out", "new"),
        ("'nebgin'", "negbin"),
        2,
    ),
    Case(
        "impossible rank",
        lambda b, f: ("fit", b / "panel", "--rank", "-2", "--out", "new"),
        ("--rank is '-2'",),
        2,
    ),
    Case(
        "unknown effort",
        lambda b, f: ("fit", b / "panel", "--effort", "duration,wind", "--out", "new"),
        ("'wind'", "duration, distance, observers"),
        2,
    ),
    Case(
        "read-only folder",
        lambda b, f: ("panel", b / "records", *WIGEON, "--groups", 3, "--out", forbidden(f) / "new"),
        ("this user may not write there",),
        1,
        read_only,
    ),
    # --- and more of the same
    Case("not a TOML file", lambda b, f: recipe(f, "files: ebd.txt\n"), ("trend.toml is not a TOML recipe",)),
    Case("no such recipe", lambda b, f: ("run", "trend.toml"), ("there is no recipe trend.toml",)),
    Case(
        "recipe names a missing file",
        lambda b, f: recipe(f, '[ingest]\nfiles = "ebd.txt"\n'),
        ("there is no file", "ebd.txt", "trend"),
    ),
    Case(
        "ingest is not a table", lambda b, f: recipe(f, "ingest = 3\n"), ("ingest is 3", "must be a table"), 2
    ),
    Case(
        "species is a number",
        lambda b, f: recipe(f, 'species = 3\n[ingest]\nfiles = "ebd.txt"\n'),
        ("species is 3", "a list"),
        2,
    ),
    Case(
        "min_records in words",
        lambda b, f: recipe(f, 'min_records = "few"\n[ingest]\nfiles = "ebd.txt"\n'),
        ("min_records is 'few'",),
        2,
    ),
    Case(
        "unknown table in a recipe",
        lambda b, f: recipe(f, '[ingets]\nfiles = "ebd.txt"\n'),
        ("'ingets'", "'ingest'"),
        2,
    ),
    Case(
        "a range of words in a recipe",
        lambda b, f: recipe(f, '[ingest]\nfiles = "ebd.txt"\nduration = ["a", 3]\n'),
        ("duration[1] is 'a'",),
        2,
    ),
    Case(
        "no species named",
        lambda b, f: ("panel", b / "records", "--out", "new"),
        ("holds 3 species", "--species"),
        2,
    ),
    Case(
        "unknown column to group by",
        lambda b, f: ("panel", b / "records", *WIGEON, "--group-by", "club", "--out", "new"),
        ("'club'", "region"),
        2,
    ),
    Case(
        "no group",
        lambda b, f: ("panel", b / "records", *WIGEON, "--groups", 0, "--out", "new"),
        ("--groups is 0",),
        2,
    ),
    Case(
        "unknown choice of sites",
        lambda b, f: ("panel", b / "records", *WIGEON, "--sites", "some", "--out", "new"),
        ("'some'", "seen, all or frame"),
        2,
    ),
    Case(
        "no site is left",
        lambda b, f: ("panel", b / "records", *WIGEON, "--min-visits", 9999, "--out", "new"),
        ("--min-visits",),
    ),
    Case(
        "damaged records",
        lambda b, f: ("panel", damaged_records(b, f), *WIGEON, "--out", "new"),
        ("records.parquet is damaged", "20 bytes", "fedmiss ingest"),
    ),
    Case("cut download", lambda b, f: ingest(cut_gz(b, f)), ("ebd_cut.txt.gz",)),
    Case(
        "damaged manifest",
        lambda b, f: ("fit", broken_manifest(b, f), "--out", "new"),
        ("manifest.json is not valid JSON",),
    ),
    Case(
        "a folder of the user's own",
        lambda b, f: ("panel", b / "records", *WIGEON, "--overwrite", "--out", not_ours(f)),
        ("was not made by fedmiss", "will not delete it"),
        2,
    ),
    Case(
        "the folder's name is a file's",
        lambda b, f: ("impute", b / "panel", b / "fit", "--out", write(f / "notes.txt", "x")),
        ("notes.txt is a file",),
        2,
    ),
    Case(
        "a folder inside a file",
        lambda b, f: ("impute", b / "panel", b / "fit", "--out", write(f / "notes.txt", "x") / "new"),
        ("notes.txt is a file",),
    ),
    Case("no such panel", lambda b, f: ("fit", "panle", "--out", "new"), ("there is no folder panle",)),
    Case(
        "no groups in the panel",
        lambda b, f: ("fit", without_groups(b, f), "--out", "new"),
        ("cells.parquet is missing", "fedmiss panel"),
    ),
    Case(
        "unknown method",
        lambda b, f: ("fit", b / "panel", "--method", "slow", "--out", "new"),
        ("'slow'", "fedmissem"),
        2,
    ),
    Case(
        "unknown model of algorithm 7",
        lambda b, f: ("fit", b / "panel", "--method", "fedmissem", "--model", "negbin", "--out", "new"),
        ("'negbin'", "log1p"),
        2,
    ),
    Case("one fold", lambda b, f: ("fit", b / "panel", "--folds", 1, "--out", "new"), ("--folds is 1",), 2),
    Case(
        "negative number of replicates",
        lambda b, f: ("fit", b / "panel", "--bootstrap", -1, "--out", "new"),
        ("--bootstrap is -1",),
        2,
    ),
    Case("inspect a text file", lambda b, f: ("inspect", ebd(b)), ("is not a file of fedmiss",)),
    Case("inspect nothing", lambda b, f: ("inspect", "nothing"), ("there is no file or folder nothing",)),
    Case("too few records to simulate", lambda b, f: ("simulate", "--records", 3, "--out", "new"), ("3",), 2),
    Case(
        "report on a fit of another panel",
        lambda b, f: (
            *(
                "report",
                "--panel",
                b / "eagles",
                "--fit",
                b / "fit",
                "--imputed",
                b / "imputed",
                "--out",
                "new",
            ),
        ),
        ("belongs to another panel", "fedmiss impute"),
    ),
)


def without_groups(base: Path, folder: Path) -> Path:
    panel = copy(base, "panel", folder)
    shutil.rmtree(panel / "groups")
    return panel


@contextlib.contextmanager
def inside(folder: Path):  # type: ignore[no-untyped-def]
    """Work in a folder, as a user would."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
