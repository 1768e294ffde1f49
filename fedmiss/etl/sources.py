"""Files as they come: plain text, .gz, .zip, .tar, workbooks, parquet; and what each of them is."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyarrow.types import is_nested

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.codes import NO_DATE, NO_SIGHTING
from fedmiss.etl.columns import did_you_mean, find_header, normal, tells_when
from fedmiss.etl.spreadsheets import address, choose_sheets, is_workbook, refuse_hidden, sheet_rows
from fedmiss.files import hash_file
from fedmiss.tables import unreadable

if TYPE_CHECKING:
    import polars as pl

Stream = io.RawIOBase | io.BufferedIOBase
EXAMPLES = 5  # faults that are shown
HEAD_BYTES = 1 << 16
_LOOKED = 20  # lines in which the names of columns are looked for
_OLD_EXCEL = bytes.fromhex("d0cf11e0a1b11ae1")
_ASCII = bytes(range(128))
_WINDOWS = "cp1252"
_MARKS = "\u2018\u2019\u201c\u201d\u2013\u2014\u2026\u00b0\u00ab\u00bb\u00a7\u00a0\u20ac\u00b7"
_ODD = "\u0192\u02c6\u00aa\u00ba\u00b5"  # letters to Unicode, and no part of names
EBIRD_ROLES = ("ebd", "sampling", "unvetted")
ROLES = {
    "ebd": "eBird Basic Dataset",
    "sampling": "eBird sampling events",
    "unvetted": "eBird records that no reviewer has seen",
    "myebird": "MyEBirdData.csv",
    "gbif": "GBIF occurrences",
    "plain": "table with a column map",
}
# RuntimeError: a zip with a password, or packed in a way the unpacker does not know (its NotImplementedError)
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError, RuntimeError)
CITATION = "recommended_citation.txt"  # comes with every download from eBird
_YEAR = re.compile(r"(?<!\d)(?:18|19|20)\d\d(?!\d)")
_RELEASE = re.compile(r"rel[A-Z][a-z]{2}-\d{4}")
_RECORD_ID = re.compile(r"URN:.*EBIRD:OBS")  # of a record, where a column's name should be
_EBIRD_ID = re.compile(r"^(S|obsr)\d+$")  # of a checklist, of an observer
_COMPANIONS = ("verbatim.txt", "multimedia.txt", "citations.txt", "rights.txt")


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Source:
    """One table inside one file given by the user."""

    path: Path
    member: str | None  # name inside an archive
    role: str  # key of ROLES
    separator: str  # "\t", ";" or ","; "" for parquet and sheets
    header: tuple[str, ...]
    header_bytes: int  # length of the header line with its end and a byte order mark
    stamp: tuple[int, int]  # size and time of the file before anything of it was read; see refuse_changed
    citation: str = ""  # what the provider asks to be cited, where it came with the file
    sheet: str = ""  # of a workbook
    one_of: int = 1  # sheets of the workbook that are read
    year: str = ""  # see dated_by_sheet
    header_row: int = 1  # in which row or line the names of the columns stand
    encoding: str = "utf-8-sig"
    said: tuple[str, ...] = ()  # what was found where the file left a choice
    texts: pl.DataFrame | None = field(default=None, repr=False, compare=False)  # see rows.read_texts

    def refuse_changed(self) -> None:
        """Refuse a file that is not as it was opened: places of its columns, and its hash, may be of another."""
        if _stamp(self.path) != self.stamp:
            raise InputError(
                f"{self.name} was changed while it was read; wait until its download or copy is done, and run this again.",
                path=self.name,
            )

    def hash(self) -> str:
        """Return the SHA-256 of the file's bytes, which are those that were read."""
        digest = hash_file(self.path)
        self.refuse_changed()
        return digest

    @property
    def name(self) -> str:
        """The path, with the member's name behind a colon."""
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"

    @property
    def short_name(self) -> str:
        """The file's own name, for messages and manifests; of several sheets with the sheet's."""
        if self.one_of > 1:
            return f"{self.path.name}:{self.sheet}"
        return self.path.name if self.member is None else f"{self.path.name}:{self.member}"

    def place(self, line: int, column: str = "") -> str:
        """Say where a value stands: line and column of a text, the address of a cell of a sheet."""
        if self.sheet and column in self.header:
            return (
                f"{self.name}, cell {address(line, self.header.index(column), self.sheet)}, column {column!r}"
            )
        where = f"{self.name}, row {self.sheet}!{line}" if self.sheet else f"{self.name} line {line}"
        return where + (f", column {column!r}" if column else "")

    def fault(self, line: int, column: str, said: str) -> InputError:
        """Return the error about a value: where it stands, and what is wrong with it."""
        return InputError(f"{self.place(int(line), column)}: {said}", line=int(line))

    def refuse(self, bad: pl.Series, lines: pl.Series, column: str, said: Callable[[int], str]) -> None:
        """Raise the error about the first ``bad`` value of a column, if there is one; ``said`` tells what is wrong."""
        if bad.any():
            first = int(bad.arg_max() or 0)
            raise self.fault(lines[first], column, said(first))


class Faults:
    """Counts, and a few examples, of what could not be used: rows that were left out, values that read as blank."""

    def __init__(self) -> None:
        self.malformed: dict[str, int] = {}
        self.unreadable: dict[str, int] = {}
        self.examples: list[str] = []  # of rows that were left out
        self.odd: list[str] = []  # of values that read as blank

    def add(self, kinds: dict[str, int], what: str, n: int, line: int, value: str) -> None:
        """Count ``n`` faults, of which the first has this line and value, among the ``malformed`` or ``unreadable``."""
        kinds[what] = kinds.get(what, 0) + n
        examples = self.examples if kinds is self.malformed else self.odd
        if len(examples) < EXAMPLES:
            examples.append(f"line {line}: {what} {value!r}")

    def refuse_mostly_bad(self, source: Source, rows: int, cannot: str, remedy: str) -> None:
        """Raise InputError where most of a file's rows were left out, unknown dates and specimens aside."""
        bad = sum(value for what, value in self.malformed.items() if what not in (NO_DATE, NO_SIGHTING))
        if bad > 10 and 2 * bad > rows:
            raise InputError(
                f"{source.name}: {bad:,} of {rows:,} rows cannot {cannot} ({self.examples[0]}); {remedy}",
                rows=bad,
            )


def _split(text: str, below: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the separator of a line of column names, and the names; one in quotes may go on in the lines ``below``."""
    # The one that the header has most often outside of quotes; a comma where it has none.
    bare = re.sub(r'"[^"]*"', "", text)
    separator = max("\t;,", key=bare.count) if any(separator in bare for separator in "\t;,") else ","
    quoted = csv.reader(io.StringIO(text + below, newline=""), delimiter=separator)
    cells = text.split("\t") if separator == "\t" else next(quoted, []) or [text]
    return separator, tuple(cell.strip().strip('"') for cell in cells)


def refuse_doubles(columns: tuple[str, ...], name: str) -> None:
    """Raise InputError where two columns have one name: nobody can say which of them is meant."""
    first: dict[str, int] = {}
    for at, title in enumerate(columns, 1):
        if title and first.setdefault(title.casefold(), at) != at:
            raise InputError(
                f"{name}: columns {first[title.casefold()]} and {at} are both named {title!r}; rename one of them.",
                path=name,
                column=title,
            )


def _role(columns: tuple[str, ...], name: str) -> str:
    names = {normal(column) for column in columns}
    if "sampling event identifier" in names and "checklist id" not in names:  # auk's tables have both
        if "scientific name" not in names:
            return "sampling"
        low = name.lower()
        return "unvetted" if "_unvetted" in low or "_provisional" in low else "ebd"
    if "submission id" in names and "count" in names:
        return "myebird"
    squeezed = {name.replace(" ", "") for name in names}
    if {"gbifid", "occurrenceid"} & squeezed and {"decimallatitude", "scientificname", "species"} & squeezed:
        return "gbif"
    return "plain"


@contextmanager
def broken_input(name: str) -> Iterator[None]:
    """Turn what the unpackers raise on damaged archives into one clear error."""
    try:
        yield
    except _DAMAGE as error:
        raise InputError(
            f"{name} is damaged or was cut short ({error}); download or copy it again.", path=name
        ) from None


def expand(path: str | Path, sheet: str = "", header_row: int | None = None) -> list[Source]:
    """Return the tables that a file holds, an archive's members among them.

    Parameters
    ----------
    sheet : of a workbook, or all; needed where several hold something
    header_row : where the column names stand, counted from 1; by default the first row that looks like names

    Raises
    ------
    InputError : no such file, a folder, an empty file, no text, a damaged archive, nothing usable inside, merged cells
    ConfigError : a sheet or a row that is not there, several sheets and none chosen
    """
    path = Path(path)
    if not path.exists():
        others = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = did_you_mean(get_close_matches(path.name, others), "Check its name and folder.")
        raise InputError(f"there is no file {path}. {near}", path=str(path))
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the files in it.", path=str(path))
    if not path.is_file():  # it can be read once, and not from its beginning again
        raise InputError(f"{path} is a pipe or a device; write the table into a file first.", path=str(path))
    stamp = _stamp(path)
    if stamp[0] == 0:
        raise InputError(f"{path} is empty (0 bytes); download it again.", path=str(path))
    with open(path, "rb") as stream:
        magic = stream.read(8)
    if magic[:2] == b"PK" and is_workbook(path):
        names = choose_sheets(path, sheet)
        return [_sheet(path, stamp, name, header_row, len(names)) for name in names]
    if magic == _OLD_EXCEL:
        raise InputError(f"{path} is a workbook of an old Excel (.xls); save it as .xlsx.", path=str(path))
    if sheet:
        raise ConfigError(f"--sheet does nothing here: {path} is no workbook. Leave --sheet out.")
    if magic[:4] == b"PAR1":
        try:
            # lists and records in a column are no values of a table: such columns have no name here
            columns = tuple(
                "" if is_nested(field.type) else field.name for field in pq.read_schema(path.absolute())
            )
        except Exception as error:  # pyarrow raises several kinds; all mean the same here
            raise unreadable(path, error) from None
        refuse_doubles(columns, str(path))
        return [Source(path, None, "plain", "", columns, 0, stamp)]
    with broken_input(str(path)):
        if magic[:2] == b"PK":
            with zipfile.ZipFile(path) as archive:
                members = [
                    member.filename
                    for member in archive.infolist()
                    if not member.is_dir() and member.file_size
                ]
            return _members(path, stamp, members)
        if (magic[:2] != b"\x1f\x8b" and tarfile.is_tarfile(path)) or path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(path) as tar:
                members = [member.name for member in tar.getmembers() if member.isfile() and member.size]
            return _members(path, stamp, members)
    source = _describe(path, stamp, None, header_row)
    beside = path.with_name(CITATION)
    if source.role in EBIRD_ROLES and beside.is_file():
        cited = _citation(beside, None)
        if set(_RELEASE.findall(path.name)) <= set(_RELEASE.findall(cited)):  # not that of another download
            source = replace(source, citation=cited)
    return [source]


def _citation(path: Path, member: str | None) -> str:
    """Return the text of a citation file in one line."""
    with open_member(path, member) as (stream, _):
        return " ".join((stream.read(1 << 12) or b"").decode("utf-8", "replace").split())


def _members(path: Path, stamp: tuple[int, int], members: list[str]) -> list[Source]:
    found: list[Source] = []
    plain: list[Source] = []
    citation = next((member for member in members if member.lower().rsplit("/", 1)[-1] == CITATION), None)
    cited = _citation(path, citation) if citation else ""
    for member in members:
        low = member.lower().rsplit("/", 1)[-1]
        if low in _COMPANIONS or not low.endswith((".txt", ".csv", ".tsv", ".gz")):
            continue
        try:
            source = _describe(path, stamp, member)
        except InputError:
            if low.startswith("ebd"):  # what is wanted, and cannot be read
                raise
            continue  # a README, a citation: no table
        (found if source.role != "plain" else plain).append(replace(source, citation=cited))
    if not found and len(plain) == 1:  # a table packed by itself, as a cube of GBIF
        return plain
    if not found:
        listed = ", ".join(members[:5]) or "nothing"
        raise InputError(
            f"{path} holds no table that fedmiss knows (inside: {listed}); unpack it and name the file.",
            path=str(path),
        )
    return found


def _no_text(line: bytes) -> str:
    """What is wrong with a first line that is no text, or as long as the whole beginning of the file."""
    few, many = sorted((line[::2].count(b"\0"), line[1::2].count(b"\0")))
    # half of the bytes of Latin letters, all at even places or all at odd ones
    if few == 0 and 4 * many > len(line):
        return "looks like UTF-16 text without its mark; save it as UTF-8 and try again."
    if line.count(b"\r") > 1 and b"\0" not in line:
        return "has lines that end in a carriage return alone; save it with others (for example: tr '\\r' '\\n')."
    return "is not a text table: its first line holds binary data."


def _describe(
    path: Path, stamp: tuple[int, int], member: str | None, header_row: int | None = None
) -> Source:
    """Say what the first bytes of a table say; ``header_row`` is where the column names stand, or None to look for them."""
    name = str(path) if member is None else f"{path}:{member}"
    with broken_input(name), open_member(path, member) as (stream, _):
        data = stream.read(HEAD_BYTES) or b""
        while 0 < len(data) < HEAD_BYTES and b"\n" not in data and (more := stream.read(HEAD_BYTES)):
            data += more
    if not data:
        raise InputError(f"{name} is empty; download it again.", path=name)
    encoding, wrong = "utf-8-sig", None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
        data = data[: len(data) // 2 * 2].decode("utf-16", "replace").encode()
    bom = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    lines = data[bom:].split(b"\n")
    texts = [line.rstrip(b"\r").decode("utf-8", "replace") for line in lines[:_LOOKED]]
    row = header_row or find_header([_split(text)[1] for text in texts]) + 1
    if row > len(lines):
        raise ConfigError(f"--header-row {row}: the beginning of {name} has {len(lines)} lines.")
    line = lines[row - 1]
    if b"\0" in line or len(line) > HEAD_BYTES - 4:
        raise InputError(f"{name} {_no_text(line)}", path=name)
    try:
        text = line.rstrip(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = InputError(
            f"{name} line {row}, byte {error.start + 1}: {line[error.start : error.start + 1]!r} is not UTF-8; "
            "convert the file (for example: iconv -f LATIN1 -t UTF-8).",
            path=name,
        )
        encoding, text = _WINDOWS, line.rstrip(b"\r").decode(_WINDOWS, "replace")
    if not text.strip():
        raise InputError(
            f"{name} has a blank {'first line' if row == 1 else f'line {row}'} where column names must stand.", path=name
        )  # fmt: skip
    separator, columns = _split(text, b"\n".join([b"", *lines[row:]]).decode("utf-8", "replace"))
    if _RECORD_ID.match(columns[0]) or {"S", "obsr"} <= {_EBIRD_ID.sub(r"\1", column) for column in columns}:
        raise InputError(
            f"{name} has no line of column names: its first line is a row ({columns[0][:48]}). eBird's files begin "
            "with the names; put that line back at the top (head -1 of the whole download), or download it again.",
            path=name,
        )
    refuse_doubles(columns, name)
    role = _role(columns, (member or path.name).rsplit("/", 1)[-1])
    size = bom + len(b"\n".join(lines[:row])) + (row < len(lines))
    source = Source(path, member, role, separator, columns, size, stamp, header_row=row, encoding=encoding)
    if role in EBIRD_ROLES and encoding == "utf-16":  # their reader takes UTF-8 only
        raise InputError(f"{name} is UTF-16 text; save it as UTF-8 and try again.", path=name)
    if role in EBIRD_ROLES and separator != "\t":  # their reader knows no quotes
        raise InputError(
            f"{name} is {ROLES[role]} with {separator!r} between its columns, as R and spreadsheets write it; give the text "
            "with tabs, as eBird or auk_filter() wrote it.",
            path=name,
        )
    if role != "plain" and wrong:
        raise wrong
    if role == "plain" and encoding != "utf-16":
        source = _decoded(source)
    if row > 1 and header_row is None:
        source = replace(source, said=(*source.said, _found_names(source)))
    return source


def _found_names(source: Source) -> str:
    return (
        f"{source.short_name}: the column names stand in row {source.header_row}; what is above them is left out "
        "(--header-row says otherwise)."
    )


def _sheet(path: Path, stamp: tuple[int, int], name: str, header_row: int | None, n_sheets: int) -> Source:
    """Return the table on a sheet of a workbook, one of ``n_sheets`` that are read."""
    rows = sheet_rows(path, name)
    if header_row and header_row > len(rows):
        raise ConfigError(f"--header-row {header_row}: the sheet {name} of {path} has {len(rows)} rows.")
    row = header_row or find_header(rows) + 1
    columns = rows[row - 1] if rows else ()
    if not any(columns):
        raise InputError(
            f"{path}: row {row} of the sheet {name} is blank, where column names must stand.", path=str(path)
        )
    refuse_hidden(path, name, row)
    refuse_doubles(columns, f"{path}, sheet {name}")
    role = _role(columns, path.name)
    if role in (*EBIRD_ROLES, "myebird"):
        raise InputError(
            f"{path} is {ROLES[role]} as a workbook; give the text file as it was downloaded.", path=str(path)
        )
    source = Source(path, None, role, "", columns, 0, stamp, sheet=name, one_of=n_sheets, header_row=row)
    return replace(source, said=(_found_names(source),)) if row > 1 and header_row is None else source


def dated_by_sheet(source: Source) -> Source:
    """Return a table of counts with the year in the name of its sheet as a last column, where no column says when."""
    years = _YEAR.findall(source.sheet)
    if source.role != "plain" or len(years) != 1 or tells_when(source.header):
        return source
    said = f"{source.short_name}: no column says when; the year is that of the sheet, {source.sheet!r}."
    return replace(source, header=(*source.header, "year"), year=years[0], said=(*source.said, said))


def _decoded(source: Source) -> Source:
    """Return a plain table with the encoding in which its whole text can be read: UTF-8, or else that of old Windows.

    The second one gives a meaning to every byte, so it is taken only where each is a letter or a mark of text, and said.
    """
    seen, line, first = set[int](), 0, 0
    utf8 = True
    decoder = codecs.getincrementaldecoder("utf-8")()
    with broken_input(source.name), open_member(source.path, source.member) as (stream, _):
        while block := stream.read(1 << 20):
            if utf8:
                try:
                    decoder.decode(block)
                except UnicodeDecodeError:
                    utf8 = False
            if high := block.translate(None, _ASCII):
                if not first:
                    first = (
                        line + 1 + block[: next(i for i, byte in enumerate(block) if byte > 127)].count(b"\n")
                    )
                seen |= set(high)
            line += block.count(b"\n")
    if utf8:
        return source
    text = bytes(seen).decode(_WINDOWS, "replace")
    if any(not (letter.isalpha() or letter in _MARKS) or letter in _ODD for letter in text):
        return replace(source, encoding="utf-8")  # its reader names the line and the byte
    said = (
        f"{source.short_name}: not UTF-8, read as Windows text (CP1252); look at the names in line {first}."
    )
    return replace(source, encoding=_WINDOWS, said=(said,))


@contextmanager
def open_member(path: Path, member: str | None) -> Iterator[tuple[Stream, Callable[[], int]]]:
    """Open the bytes of a file, or of a member of an archive, unpacked; the second value says how far it has been read."""
    with ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb", buffering=0))
        if member is None:
            packed = is_gzip(path)
            inner: Stream = io.BufferedReader(raw, 1 << 20) if packed else raw
        else:
            packed = member.lower().endswith(".gz")
            found: Any
            if zipfile.is_zipfile(path):
                found = stack.enter_context(zipfile.ZipFile(raw)).open(member)
            else:
                found = stack.enter_context(tarfile.open(fileobj=raw)).extractfile(member)
            assert isinstance(found, io.BufferedIOBase)  # listed members are files
            inner = found
        yield (gzip.GzipFile(fileobj=inner) if packed else inner), raw.tell


def is_gzip(path: Path) -> bool:
    """Whether a file is packed by gzip, by its first bytes."""
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b"
