"""What users get wrong: how the folder looks, what they type, and what the answer must name.

``tests/cli/test_bad_input.py`` holds every case to one clear line.
"""

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
Prepare = Callable[[Path, Path], Words]  # of the base and the empty folder


@dataclass(frozen=True)
class Case:
    """One mistake: ``words`` prepares the folder and returns what is typed; ``says`` must be in the answer."""

    name: str
    words: Prepare
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


def forbidden(folder: Path) -> Path:
    (folder / "locked").mkdir()
    return folder / "locked"


def read_only(folder: Path) -> AbstractContextManager[None]:
    return refusing("mkdir", errno.EACCES, folder / "locked")


def interrupted(folder: Path) -> AbstractContextManager[None]:
    """Ctrl-C at the first bootstrap replicate."""
    return mock.patch("fedmiss.federation.hub.job.replicates", side_effect=KeyboardInterrupt)


def without_groups(base: Path, folder: Path) -> Path:
    panel = copy(base, "panel", folder)
    shutil.rmtree(panel / "groups")
    return panel


# --- what is typed


def ingest(*words: object) -> Words:
    return ("ingest", *words, "--no-cache", "--out", "new")


def file(name: str, text: str) -> Prepare:
    """Import a file with this text."""
    return lambda base, folder: ingest(write(folder / name, text))


def start_of_ebd(lines: int, old: str = "", new: str = "") -> Prepare:
    """Import the first lines of an eBird file, with one text replaced."""

    def words(base: Path, folder: Path) -> Words:
        with open(ebd(base), encoding="utf-8") as stream:
            head = "".join(line for line, _ in zip(stream, range(lines), strict=False))
        return ingest(write(folder / "ebd.txt", head.replace(old, new) if old else head))

    return words


def panel(*words: object) -> Prepare:
    """Make a panel of the good records."""
    return lambda base, folder: ("panel", base / "records", *words, "--out", folder / "new")


def few(*words: object, **table: object) -> Prepare:
    """Make a panel of a small table (see :func:`csv`)."""
    return lambda base, folder: ("panel", records_of(folder, **table), *words, "--out", "new")


def fit(*words: object) -> Prepare:
    """Fit the good panel."""
    return lambda base, folder: ("fit", base / "panel", *words, "--out", "new")


def fit_of(damaged: Callable[[Path, Path], Path]) -> Prepare:
    """Fit a panel in which something is broken."""
    return lambda base, folder: ("fit", damaged(base, folder), "--out", "new")


def impute_into(name: str) -> Prepare:
    """Impute into a place at or below a file."""

    def words(base: Path, folder: Path) -> Words:
        write(folder / "notes.txt", "x")
        return ("impute", base / "panel", base / "fit", "--out", folder / name)

    return words


def recipe(text: str) -> Prepare:
    return lambda base, folder: ("run", write(folder / "trend.toml", text))


def of(base: Path, **folders: str) -> Words:
    """Options that name folders."""
    return tuple(word for name, folder in folders.items() for word in (f"--{name}", base / folder))


FILES = '[ingest]\nfiles = "ebd.txt"\n'

CASES = (
    # --- files
    Case("wrong path", lambda b, f: ingest("ebd_WA.txt"),
         ("there is no file ebd_WA.txt. Check its name and folder.",)),
    Case("empty file", file("ebd.txt", ""), ("ebd.txt is empty", "0 bytes")),
    Case("header without rows", start_of_ebd(1), ("ebd.txt", "header and no rows")),
    Case("not an eBird file", file("letter.txt", "Dear Sir,\nno birds.\n"),
         ("letter.txt is no eBird", "--map"), 2),
    Case("unknown column",
         lambda b, f: ingest(csv(f), "--map", "observer=observer,site=plot,date=date,count=count"),
         ("'plot'",), 2),
    Case(
        "a column of eBird's is missing", start_of_ebd(9, "OBSERVATION DATE", "WHEN"), ("OBSERVATION DATE",)
    ),
    Case("cut download", lambda b, f: ingest(cut_gz(b, f)), ("ebd_cut.txt.gz",)),
    Case("species not in the file", lambda b, f: ingest(ebd(b), "--species", "Golden Eagel"),
         ("Golden Eagel", "Golden Eagle"), 2),
    # --- panels
    Case("species not in the records", panel("--species", "Amercan Wigeon"),
         ("'Amercan Wigeon'", "American Wigeon?")),
    Case("no species named", panel(), ("holds 3 species", "--species"), 2),
    Case("one observer only", few("--groups", 2, observers=1), ("one observer only", "--groups 1"), 2),
    Case("no counts at all", few(counts=("X",)), ("none of its 36 visits has a count", "all are X")),
    Case("fewer observers than groups", few("--groups", 9), ("3 observers", "--groups 9", "--groups 3"), 2),
    Case("unknown column to group by", panel(*WIGEON, "--group-by", "club"), ("'club'", "region"), 2),
    Case("no site is left", panel(*WIGEON, "--min-visits", 9999), ("--min-visits",)),
    Case("damaged records", lambda b, f: ("panel", damaged_records(b, f), *WIGEON, "--out", "new"),
         ("records.parquet is damaged", "20 bytes", "fedmiss ingest")),
    # --- places
    Case("the folder exists already",
         lambda b, f: ("panel", b / "records", *WIGEON, "--out", copy(b, "panel", f)),
         ("panel exists already", "--overwrite"), 2),
    Case("a folder of the user's own",
         lambda b, f: ("panel", b / "records", *WIGEON, "--overwrite", "--out", not_ours(f)),
         ("was not made by fedmiss", "will not delete it"), 2),
    Case("the folder's name is a file's", impute_into("notes.txt"), ("notes.txt is a file",), 2),
    Case("a folder inside a file", impute_into("notes.txt/new"), ("notes.txt is a file",)),
    Case("read-only folder",
         lambda b, f: ("panel", b / "records", *WIGEON, "--groups", 3, "--out", forbidden(f) / "new"),
         ("this user may not write there",), 1, read_only),
    # --- fits and what follows
    Case("no such panel", lambda b, f: ("fit", "panle", "--out", "new"), ("there is no folder panle",)),
    Case("folder of another kind", lambda b, f: ("fit", b / "records", "--out", "new"),
         ("'records'", "'panel'")),
    Case("damaged table", fit_of(damaged_panel), ("visits.parquet is damaged", "bytes", "fedmiss panel")),
    Case("damaged manifest", fit_of(broken_manifest), ("manifest.json is not valid JSON",)),
    Case("no groups in the panel", fit_of(without_groups), ("cells.parquet is missing", "fedmiss panel")),
    Case("unknown model", fit("--model", "nebgin"), ("'nebgin'", "negbin"), 2),
    Case("unknown effort", fit("--effort", "duration,wind"), ("'wind'", "duration, distance, observers"), 2),
    Case("unknown method", fit("--method", "slow"), ("'slow'", "fedmissem"), 2),
    Case("a model that algorithm 7 lacks", fit("--method", "fedmissem", "--model", "negbin"),
         ("'negbin'", "log1p"), 2),
    Case("fit of another panel", lambda b, f: ("impute", b / "eagles", b / "fit", "--out", "new"),
         ("fit was not fitted on", "eagles", "It belongs to", "panel: name that")),
    Case("report on a fit of another panel",
         lambda b, f: ("report", *of(b, panel="eagles", fit="fit", imputed="imputed"), "--out", "new"),
         ("fit was not fitted on", "It belongs to", "panel: name that")),
    Case("inspect a text file", lambda b, f: ("inspect", ebd(b)), ("neither a folder nor a .parquet table",)),
    Case("inspect nothing", lambda b, f: ("inspect", "nothing"), ("there is no file or folder nothing",)),
    Case("too few records to simulate", lambda b, f: ("simulate", "--records", 3, "--out", "new"), ("3",), 2),
    # --- recipes
    Case("no such recipe", lambda b, f: ("run", "trend.toml"), ("there is no recipe trend.toml. Check",)),
    Case("not a TOML file", recipe("files: ebd.txt\n"), ("trend.toml is not a TOML recipe",)),
    Case("recipe without files", recipe("[ingest]\ncomplete = true\n"), ("ingest.files is missing",), 2),
    Case("recipe names a missing file", recipe(FILES), ("there is no file", "ebd.txt", "trend")),
    Case("ingest is not a table", recipe("ingest = 3\n"), ("ingest is 3", "must be a table"), 2),
    Case("unknown table in a recipe", recipe('[ingets]\nfiles = "ebd.txt"\n'), ("'ingets'", "'ingest'"), 2),
    Case("unknown setting in a recipe", recipe(f"{FILES}[fit]\nbootstarp = 9\n"),
         ("trend.toml: fit", "'bootstarp'", "'bootstrap'"), 2),
    Case("wrong type in a recipe", recipe(f'{FILES}[panel]\ngroups = "ten"\n'),
         ("panel.groups is 'ten'", "a whole number"), 2),
    Case("species is a number", recipe(f"species = 3\n{FILES}"), ("species is 3", "a list"), 2),
    Case("min_records in words", recipe(f'min_records = "few"\n{FILES}'), ("min_records is 'few'",), 2),
)  # fmt: skip


@contextlib.contextmanager
def inside(folder: Path):  # type: ignore[no-untyped-def]
    """Work in a folder, as a user would."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
