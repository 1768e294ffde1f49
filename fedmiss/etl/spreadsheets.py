"""Workbooks, ``.xlsx`` and ``.ods``: one sheet as rows of texts, and what a spreadsheet can hide in one.

Cells become the texts that a CSV file would have: 2001 and not 2001.0, dates as 2024-05-31. Merged cells, and formulas that
failed or have no value stored, are refused with their address: a reader of values sees blanks there, and a blank is a
missing count.
"""

from __future__ import annotations

import datetime as dt
import re
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING
from xml.etree import ElementTree

from fedmiss.errors import ConfigError, InputError, listed
from fedmiss.etl.columns import quoted

if TYPE_CHECKING:
    from python_calamine import CalamineWorkbook

_ODS = b"application/vnd.oasis.opendocument.spreadsheet"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_CALC = "{urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0}"
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_SERIAL = re.compile(r"[2-6]\d{4}(\.\d+)?")  # 1954-10-03 to 2091-07-04 as Excel counts days


def is_workbook(path: Path) -> bool:
    """Whether a file is an ``.xlsx`` or ``.ods`` workbook, by its content."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        return "xl/workbook.xml" in names or (
            "mimetype" in names and archive.read("mimetype").strip() == _ODS
        )


def address(row: int, column: int, sheet: str = "") -> str:
    """Return the address of a cell as a spreadsheet shows it; ``row`` counts from 1, ``column`` from 0: ``Counts!D17``."""
    letters, number = "", column + 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return (f"{sheet}!" if sheet else "") + f"{letters}{row}"


def serial_date(text: str) -> str:
    """Return the date that a number is where Excel counts days, as 2023-03-15; blank for any other text."""
    if not _SERIAL.fullmatch(text.strip()):
        return ""
    return (dt.date(1899, 12, 30) + dt.timedelta(days=int(float(text)))).isoformat()


EVERY = "all"  # sheets: each a part of one table


def choose_sheets(path: Path, wanted: str) -> list[str]:
    """Return the names of the sheets to read: the one asked for, all visible ones that hold something, or the only one.

    Raises
    ------
    ConfigError : several sheets and none chosen; no sheet of that name
    InputError : a workbook that cannot be read, or holds nothing
    """
    book = _open(path)
    names = [str(sheet.name) for sheet in book.sheets_metadata if str(sheet.typ).endswith("WorkSheet")]
    if wanted in names:
        return [wanted]
    if wanted not in ("", EVERY):
        raise ConfigError(f"--sheet {wanted!r}: {path} has no such sheet; it has {listed(names, 8)}.")
    shown = [
        str(sheet.name)
        for sheet in book.sheets_metadata
        if str(sheet.visible).endswith(".Visible") and sheet.name in names
    ]
    full = [name for name in shown if any(any(row) for row in sheet_rows(path, name))]
    if not full:
        raise InputError(
            f"{path}: no visible sheet holds anything (its sheets: {listed(names, 8)}).", path=str(path)
        )
    if len(full) > 1 and not wanted:
        raise ConfigError(
            f"{path} has {len(full)} sheets ({listed(full, 8)}); pick the one with the counts: --sheet "
            f"{quoted(full[0])}, or pass --sheet {EVERY} if each is a part of one table, as a year.",
            sheets=full,
        )
    return full


def sheet_rows(path: Path, sheet: str) -> list[tuple[str, ...]]:
    """Return the rows of a sheet as texts, the first cell of the first row being A1."""
    stat = path.stat()
    return _rows(path, sheet, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=2)  # the sheet is chosen, its names are found, and it is read
def _rows(path: Path, sheet: str, _size: int, _changed: int) -> list[tuple[str, ...]]:
    values = _open(path).get_sheet_by_name(sheet).to_python(skip_empty_area=False)
    return [tuple(_text(value) for value in row) for row in values]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, dt.datetime):
        return value.isoformat(" ") if value.time() != dt.time() else value.date().isoformat()
    return str(value)


def refuse_hidden(path: Path, sheet: str, header: int) -> None:
    """Refuse merged cells, and formulas that failed or have no value, in row ``header`` (counted from 1) and below it."""
    with zipfile.ZipFile(path) as archive:
        ods = "xl/workbook.xml" not in archive.namelist()
        part = "content.xml" if ods else _part_of(archive, sheet)
        signs = rb'-spanned="[^1]|"error"|:formula=' if ods else rb'<mergeCell |\bt="e"|<f[ />]'
        if not re.search(signs, archive.read(part)):  # far faster than to parse it
            return
        with archive.open(part) as stream:
            merged, failed = _found_ods(stream, sheet) if ods else _found_xlsx(stream)
    for first, last in merged:
        if _row_of(last) >= header:
            raise InputError(
                f"{path}, cells {sheet}!{first}:{last} are merged, so all but the first of them are blank; unmerge them "
                "and write the value into each.",
                path=str(path),
                cell=f"{sheet}!{first}",
            )
    for cell, value in failed:
        if _row_of(cell) >= header:
            said = (
                f"{value}, a formula that failed; correct it"
                if value
                else "a formula whose value is not stored; open the workbook in a spreadsheet and save it"
            )
            raise InputError(
                f"{path}, cell {sheet}!{cell} holds {said}, or write the value.",
                path=str(path),
                cell=f"{sheet}!{cell}",
            )


# merged areas (first and last cell), and cells whose formula failed, with what they show, or has no value
Hidden = tuple[list[tuple[str, str]], list[tuple[str, str]]]


def _row_of(cell: str) -> int:
    return int(re.sub(r"\D", "", cell))


def _part_of(archive: zipfile.ZipFile, sheet: str) -> str:
    """Return the name of the file in an ``.xlsx`` that holds a sheet."""
    book = ElementTree.fromstring(archive.read("xl/workbook.xml"))
    link = next(page.get(_LINK) for page in book.iter(f"{_MAIN}sheet") if page.get("name") == sheet)
    links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
    target = next(str(r.get("Target")) for r in links if r.get("Id") == link)
    return target.lstrip("/") if target.startswith("/") else f"xl/{target}"


def _found_xlsx(stream: IO[bytes]) -> Hidden:
    merged: list[tuple[str, str]] = []
    failed: list[tuple[str, str]] = []
    for _, part in ElementTree.iterparse(stream):
        if part.tag == f"{_MAIN}mergeCell":
            first, _, last = str(part.get("ref")).partition(":")
            merged.append((first, last or first))
        elif part.tag == f"{_MAIN}c":
            if part.get("t") == "e":
                failed.append((str(part.get("r")), part.findtext(f"{_MAIN}v") or "an error"))
            # a text may be blank, a number not
            elif (
                part.find(f"{_MAIN}f") is not None
                and part.get("t") != "str"
                and not part.findtext(f"{_MAIN}v")
            ):
                failed.append((str(part.get("r")), ""))
        elif part.tag == f"{_MAIN}row":
            part.clear()
    return merged, failed


def _found_ods(stream: IO[bytes], sheet: str) -> Hidden:
    merged: list[tuple[str, str]] = []
    failed: list[tuple[str, str]] = []
    for row, part in _ods_rows(stream, sheet):
        at = 0
        for cell in part:
            down, right = (
                int(cell.get(f"{_TABLE}number-{name}-spanned", "1")) for name in ("rows", "columns")
            )
            if down > 1 or right > 1:
                merged.append((address(row, at), address(row + down - 1, at + right - 1)))
            if cell.get(f"{_CALC}value-type") == "error":
                failed.append((address(row, at), "".join(cell.itertext()) or "an error"))
            elif cell.get(f"{_TABLE}formula") and not cell.get(f"{_OFFICE}value-type"):
                failed.append((address(row, at), ""))
            at += int(cell.get(f"{_TABLE}number-columns-repeated", "1"))
    return merged, failed


def _ods_rows(stream: IO[bytes], sheet: str) -> Iterator[tuple[int, ElementTree.Element]]:
    row, mine = 1, False
    for event, part in ElementTree.iterparse(stream, ("start", "end")):
        if part.tag == f"{_TABLE}table" and event == "start":
            row, mine = 1, part.get(f"{_TABLE}name") == sheet
        elif part.tag == f"{_TABLE}table-row" and event == "end":
            if mine:
                yield row, part
            row += int(part.get(f"{_TABLE}number-rows-repeated", "1"))
            part.clear()


def _open(path: Path) -> CalamineWorkbook:
    from python_calamine import CalamineWorkbook  # loaded for workbooks only

    try:
        return CalamineWorkbook.from_path(str(path))
    except Exception as error:  # calamine has one exception for each of its parsers
        raise InputError(
            f"{path} cannot be read as a workbook ({error}); save it again.", path=str(path)
        ) from None
