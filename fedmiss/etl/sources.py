"""Files as they come: plain text, .gz, .zip, .tar; what each of them is; and their lines in large blocks."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from fedmiss.arrays import U8
from fedmiss.errors import InputError
from fedmiss.etl.columns import normal
from fedmiss.files import hash_file

__all__ = [
    "BLOCK_BYTES", "EXAMPLES", "Block", "Faults", "ReadReport", "Source", "broken_input", "expand", "open_source",
    "read_blocks",
]  # fmt: skip

Stream = io.RawIOBase | io.BufferedIOBase
BLOCK_BYTES = 2 << 20
EXAMPLES = 5  # faults that are shown
HEAD_BYTES = 1 << 16
MOST_LINE = 4 * BLOCK_BYTES  # eBird's comments stay below a hundredth of it
ROLES = {
    "ebd": "eBird Basic Dataset",
    "sampling": "eBird sampling events",
    "unvetted": "eBird records that no reviewer has seen",
    "myebird": "MyEBirdData.csv",
    "gbif": "GBIF occurrences",
    "plain": "table with a column map",
}
# RuntimeError and NotImplementedError: a zip with a password, or packed in a way the unpacker does not know
_DAMAGE = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,
    NotImplementedError,
)
CITATION = "recommended_citation.txt"  # comes with every download from eBird
_RELEASE = re.compile(r"rel[A-Z][a-z]{2}-\d{4}")
_RECORD_ID = re.compile(r"URN:.*EBIRD:OBS")  # of a record, where a column's name should be
_EBIRD_ID = re.compile(r"^(S|obsr)\d+$")  # of a checklist, of an observer
_COMPANIONS = ("verbatim.txt", "multimedia.txt", "citations.txt", "rights.txt")


@dataclass(frozen=True, slots=True)
class Source:
    """One table inside one file given by the user."""

    path: Path
    member: str | None  # name inside an archive
    role: str  # key of ROLES
    separator: str  # "\t", ";" or ","; "" for parquet
    header: tuple[str, ...]
    header_bytes: int  # length of the header line with its end and a byte order mark
    citation: str = ""  # what the provider asks to be cited, where it came with the file

    @property
    def name(self) -> str:
        """The path, with the member's name behind a colon."""
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"

    @property
    def short_name(self) -> str:
        """The file's own name, for messages and manifests."""
        return self.path.name if self.member is None else f"{self.path.name}:{self.member}"


@dataclass(slots=True)
class Block:
    """Whole lines: ``buf[:stop]``; ``first_line`` counts the header as line 1."""

    buf: U8
    stop: int
    first_line: int


class Faults:
    """Counts, and a few examples, of what could not be used: rows that were left out, values that read as blank."""

    def __init__(self) -> None:
        self.malformed: dict[str, int] = {}
        self.unreadable: dict[str, int] = {}
        self.examples: list[str] = []

    def add(self, kinds: dict[str, int], what: str, n: int, line: int, value: str) -> None:
        """Count ``n`` faults, of which the first has this line and value, among the ``malformed`` or ``unreadable``."""
        kinds[what] = kinds.get(what, 0) + n
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"line {line}: {what} {value!r}")


class _Head:
    """What the first bytes of a table say."""

    def __init__(self, data: bytes, name: str) -> None:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(f"{name} is UTF-16 text; save it as UTF-8 and try again.", path=name)
        self.bom = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        line, newline, _ = data[self.bom :].partition(b"\n")
        if b"\0" in line or len(line) > HEAD_BYTES - 4:
            raise InputError(f"{name} is not a text table: its first line holds binary data.", path=name)
        self.bytes = self.bom + len(line) + len(newline)
        try:
            text = line.rstrip(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name} line 1, byte {error.start + 1}: {line[error.start : error.start + 1]!r} is not UTF-8; "
                "convert the file (for example: iconv -f LATIN1 -t UTF-8).",
                path=name,
            ) from None
        if not text.strip():
            raise InputError(f"{name} has a blank first line where column names must stand.", path=name)
        self.separator = max("\t;,", key=text.count) if any(s in text for s in "\t;,") else ","
        self.columns = tuple(c.strip().strip('"') for c in text.split(self.separator))
        if _RECORD_ID.match(self.columns[0]) or {"S", "obsr"} <= {
            _EBIRD_ID.sub(r"\1", c) for c in self.columns
        }:
            raise InputError(
                f"{name} has no line of column names: its first line is a row ({self.columns[0][:48]}). eBird's files begin "
                "with the names; put that line back at the top (head -1 of the whole download), or download it again.",
                path=name,
            )
        refuse_doubles(self.columns, name)


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
    names = {normal(c) for c in columns}
    if "sampling event identifier" in names:
        if "scientific name" not in names:
            return "sampling"
        low = name.lower()
        return "unvetted" if "_unvetted" in low or "_provisional" in low else "ebd"
    if "submission id" in names and "count" in names:
        return "myebird"
    squeezed = {n.replace(" ", "") for n in names}
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


def expand(path: str | Path) -> list[Source]:
    """Return the tables that a file holds, an archive's members among them.

    Raises
    ------
    InputError : no such file, a folder, an empty file, no text, a damaged archive, nothing usable inside
    """
    path = Path(path)
    if not path.exists():
        folder = path.parent if path.parent.is_dir() else None
        near = _near(path.name, [p.name for p in folder.iterdir()]) if folder else ""
        raise InputError(f"there is no file {path}.{near}", path=str(path))
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the files in it.", path=str(path))
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); download it again.", path=str(path))
    with open(path, "rb") as stream:
        magic = stream.read(8)
    if magic[:4] == b"PAR1":
        try:
            columns = tuple(pq.read_schema(path).names)
        except Exception as error:  # pyarrow raises several kinds; all mean the same here
            raise InputError(f"{path} is not a readable parquet file: {error}", path=str(path)) from None
        refuse_doubles(columns, str(path))
        return [Source(path, None, "plain", "", columns, 0)]
    with broken_input(str(path)):
        if magic[:2] == b"PK":
            with zipfile.ZipFile(path) as archive:
                members = [m.filename for m in archive.infolist() if not m.is_dir() and m.file_size]
            return _members(path, members)
        if (magic[:2] != b"\x1f\x8b" and tarfile.is_tarfile(path)) or path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(path) as tar:
                members = [m.name for m in tar.getmembers() if m.isfile() and m.size]
            return _members(path, members)
    source = _describe(path, None)
    beside = path.with_name(CITATION)
    if source.role in ("ebd", "sampling", "unvetted") and beside.is_file():
        cited = _citation(beside, None)
        if set(_RELEASE.findall(path.name)) <= set(_RELEASE.findall(cited)):  # not that of another download
            source = replace(source, citation=cited)
    return [source]


def _citation(path: Path, member: str | None) -> str:
    """Return the text of a citation file in one line."""
    with _open(path, member) as (stream, _):
        return " ".join((stream.read(1 << 12) or b"").decode("utf-8", "replace").split())


def _near(name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _members(path: Path, members: list[str]) -> list[Source]:
    found = []
    citation = next((m for m in members if m.lower().rsplit("/", 1)[-1] == CITATION), None)
    cited = _citation(path, citation) if citation else ""
    for member in members:
        low = member.lower().rsplit("/", 1)[-1]
        if low in _COMPANIONS or not low.endswith((".txt", ".csv", ".tsv", ".gz")):
            continue
        try:
            source = _describe(path, member)
        except InputError:
            continue  # a README, a citation: no table
        if source.role != "plain":
            found.append(replace(source, citation=cited))
    if not found:
        listed = ", ".join(members[:5]) or "nothing"
        raise InputError(
            f"{path} holds no table that fedmiss knows (inside: {listed}); unpack it and name the file.",
            path=str(path),
        )
    return found


def _describe(path: Path, member: str | None) -> Source:
    name = str(path) if member is None else f"{path}:{member}"
    with broken_input(name), _open(path, member) as (stream, _):
        data = b""
        while len(data) < HEAD_BYTES and b"\n" not in data and (more := stream.read(HEAD_BYTES)):
            data += more
    if not data:
        raise InputError(f"{name} is empty; download it again.", path=name)
    head = _Head(data, name)
    return Source(
        path,
        member,
        _role(head.columns, (member or path.name).rsplit("/", 1)[-1]),
        head.separator,
        head.columns,
        head.bytes,
    )


@contextmanager
def open_source(source: Source) -> Iterator[tuple[Stream, Callable[[], int]]]:
    """Open a source's bytes, unpacked; the second value says how far the file on disk has been read."""
    with _open(source.path, source.member) as opened:
        yield opened


@contextmanager
def _open(path: Path, member: str | None) -> Iterator[tuple[Stream, Callable[[], int]]]:
    with ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb", buffering=0))
        if member is None:
            packed = _is_gzip(path)
            inner: Stream = io.BufferedReader(raw, 1 << 20) if packed else raw
        else:
            packed = member.lower().endswith(".gz")
            found = _inside(stack, raw, path, member)
            assert isinstance(found, io.BufferedIOBase)  # listed members are files
            inner = found
        yield (gzip.GzipFile(fileobj=inner) if packed else inner), raw.tell


def _inside(stack: ExitStack, raw: io.FileIO, path: Path, member: str) -> object:
    """Open a member of an archive; ``stack`` closes the archive."""
    if zipfile.is_zipfile(path):
        return stack.enter_context(zipfile.ZipFile(raw)).open(member)
    return stack.enter_context(tarfile.open(fileobj=raw)).extractfile(member)


@dataclass(slots=True)
class ReadReport:
    """What reading a source to its end has found."""

    lines: int = 0  # data lines, blank ones included
    sha256: str = ""
    unterminated: bool = False  # the last line has no line end


def read_blocks(
    source: Source, report: ReadReport, advance: Callable[[float], None] = lambda done: None
) -> Iterator[Block]:
    """Read a text source in blocks of whole lines, each checked to be UTF-8; ``report`` is filled on the way.

    The buffer of a block is reused for the next one. A last line without a line end is given one and reported.

    Raises
    ------
    InputError : bytes that are not UTF-8 (with their line), damaged archives, a file that changes while read
    """
    from fedmiss.etl import _lines  # compiled: not loaded for tables of other kinds

    size = source.path.stat().st_size
    plain = source.member is None and not _is_gzip(source.path)
    digest = hashlib.sha256()
    buf = np.empty(BLOCK_BYTES + 1, dtype=np.uint8)
    have = 0
    line = 2
    with broken_input(source.name), _open(source.path, source.member) as (stream, position):
        header = _read_exactly(stream, source.header_bytes)
        digest.update(header)
        total = len(header)
        finished = False
        while not finished:
            if have >= buf.size - 1:
                buf = _twice_as_long(buf, have, source, line)
            window = memoryview(buf)[have : buf.size - 1]  # type: ignore[arg-type]
            n = stream.readinto(window) or 0
            if plain:
                digest.update(window[:n])
            total += n
            finished = n == 0
            have += n
            if finished:
                if have == 0:
                    break
                buf[have] = 10
                have += 1
                report.unterminated = True
            stop = _last_line_end(buf, have, have - n - (1 if finished else 0))
            if stop == 0:
                continue
            bad = _lines.bad_utf8(buf, stop)
            if bad >= 0:
                raise _not_utf8(source, line + int(np.count_nonzero(buf[:bad] == 10)), int(buf[bad]))
            yield Block(buf, stop, line)
            n_lines = int(_lines.line_ends(buf, stop))
            line += n_lines
            report.lines += n_lines
            buf[: have - stop] = buf[stop:have]
            have -= stop
            advance(position())
    now = source.path.stat().st_size
    if (plain and total != now) or size != now:
        raise InputError(
            f"{source.name} changed while it was read ({total:,} bytes read of {size:,}); wait until it is "
            "complete and try again.",
            path=source.name,
        )
    report.sha256 = digest.hexdigest() if plain else hash_file(source.path)


def _twice_as_long(buf: U8, have: int, source: Source, line: int) -> U8:
    """Return a longer buffer for a line that is longer than the block, unless no text has such lines."""
    if have > MOST_LINE:
        raise InputError(
            f"{source.name} line {line} has more than {MOST_LINE:,} bytes and no end, so this is no text table "
            "(or its lines end with CR alone: save it with LF or CR LF).",
            path=source.name,
        )
    return np.concatenate([buf, np.empty(buf.size, dtype=np.uint8)])


def _not_utf8(source: Source, line: int, byte: int) -> InputError:
    return InputError(
        f"{source.name} line {line}: the byte 0x{byte:02x} is not UTF-8. Convert the file "
        "(for example: iconv -f LATIN1 -t UTF-8), or download it again if it was damaged.",
        line=line,
    )


def _last_line_end(buf: U8, have: int, seen: int) -> int:
    """Index after the last line end in ``buf[seen:have]``, 0 when there is none."""
    low = have
    while low > seen:
        low = max(seen, low - 4096)
        hit = buf[low:have].tobytes().rfind(b"\n")
        if hit >= 0:
            return low + hit + 1
    return 0


def _read_exactly(stream: Stream, n: int) -> bytes:
    data = b""
    while len(data) < n and (more := stream.read(n - len(data))):
        data += more
    return data


def _is_gzip(path: Path) -> bool:
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b"
