"""Byte-level loops of the text reader, compiled: split lines into fields, and read ids, counts, dates and stamps in them.

No library reader counts ragged lines and projects a few columns in one pass at well under one second per gigabyte.
``buf`` is always a block of whole lines. A field is given by its first byte and length; a field missing on a short
line has length 0.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from fedmiss.arrays import I32, I64, U8
from fedmiss.etl._bits import equal64, load8, ones, trailing
from fedmiss.etl.codes import BAD, COUNT_BAD, COUNT_BLANK, COUNT_X

__all__ = ["fields", "read_counts", "read_dates", "read_ids", "read_stamps", "separators"]

LF, CR = 10, 13
ONE = np.uint64(1)
USUAL = 12  # separators in 64 bytes of an eBird file, seldom more
TENS = np.array([10**k for k in range(9)], dtype=np.int64)


@nb.njit(cache=True, nogil=True)
def separators(buf: U8, stop: int, separator: int, seps: I32, ends: I32) -> int:
    """List where ``buf[:stop]`` has separators and line ends; return the number of lines.

    ``ends[r]`` is the index in ``seps`` of the end of line ``r``. ``seps`` and ``ends`` need room for
    ``stop + 64`` numbers.
    """
    # A line of an eBird file has fifty short fields, and a mispredicted jump at each would double the time. So the
    # hits among 64 bytes become the bits of one number, as many as there usually are of them are written whether
    # they are there or not, and the count moves on by what was there.
    wanted = np.uint8(separator)
    n = np.uint64(0)  # unsigned, here and below: numba asks of a signed index whether it counts from the end
    m = np.uint64(0)
    whole = stop // 64 * 64
    for i in range(0, whole, 64):
        line = equal64(buf, i, np.uint8(LF))
        hit = equal64(buf, i, wanted) | line
        while line:
            lowest = line & (~line + ONE)
            ends[m] = n + ones(hit & (lowest - ONE))
            m += ONE
            line ^= lowest
        first = np.uint64(i)
        at = n
        n += ones(hit)
        for _ in range(USUAL):
            seps[at] = first + trailing(hit)
            at += ONE
            hit &= hit - ONE
        while hit:
            seps[at] = first + trailing(hit)
            at += ONE
            hit &= hit - ONE
    for i in range(whole, stop):
        c = buf[i]
        if c == LF or c == wanted:
            seps[n] = i
            if c == LF:
                ends[m] = n
                m += ONE
            n += ONE
    return int(m)


@nb.njit(cache=True, nogil=True)
def fields(
    buf: U8, n_lines: int, seps: I32, ends: I32, columns: I32, starts: I32, lengths: I32, n_fields: I32
) -> None:
    """Give first byte and length of the wanted ``columns`` of each line, and its number of fields.

    A field missing on a short line has length 0; fields beyond the header's belong to its last column (free
    text), which is never wanted, and are only counted. A carriage return before the line end is not data.
    """
    first = 0
    line_start = 0
    for r in range(n_lines):
        last = ends[r]
        n = last - first + 1
        n_fields[r] = n
        for j in range(columns.size):
            c = columns[j]
            if c < n:
                s = line_start if c == 0 else seps[first + c - 1] + 1
                e = seps[first + c]
                if c == n - 1 and e > s and buf[e - 1] == CR:
                    e -= 1
                starts[r, j] = s
                lengths[r, j] = e - s
            else:
                starts[r, j] = line_start
                lengths[r, j] = 0
        line_start = seps[last] + 1
        first = last + 1


@nb.njit(cache=True, nogil=True)
def _digits(buf: U8, s: int, n: int) -> int:
    """Read up to eight digits at once, -1 when there is something else among them (Lemire's method)."""
    # The result is made signed by hand: of a signed and an unsigned number numba would make a float.
    if s + 8 <= buf.size:
        word = load8(buf, s)
        if n < 8:  # zeros before the first digit
            shift = np.uint64(8 * n)
            word = (word << (np.uint64(64) - shift)) | (np.uint64(0x3030303030303030) >> shift)
        high = np.uint64(0xF0F0F0F0F0F0F0F0)
        six = np.uint64(0x0606060606060606)
        if ((word & high) | (((word + six) & high) >> np.uint64(4))) != np.uint64(0x3333333333333333):
            return -1
        word = (word & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64(2561) >> np.uint64(8)
        word = (word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601) >> np.uint64(16)
        return int(
            np.int64((word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001) >> np.uint64(32))
        )
    value = 0
    for k in range(s, s + n):
        d = int(buf[k]) - 48
        if d < 0 or d > 9:
            return -1
        value = value * 10 + d
    return value


@nb.njit(cache=True, nogil=True)
def read_ids(buf: U8, start: I32, length: I32, letter: int, out: I64) -> None:
    """Read ids such as S123 or G45 as integers: -1 for a blank, BAD for anything else."""
    for r in range(start.size):
        n = int(length[r])
        s = int(start[r])
        if n == 0:
            out[r] = -1
            continue
        out[r] = BAD
        if n < 2 or n > 18 or buf[s] != letter:
            continue
        s += 1
        n -= 1
        value = 0
        while n > 0:
            part = min(n, 8)
            d = _digits(buf, s, part)
            if d < 0:
                value = BAD
                break
            value = value * TENS[part] + d
            s += part
            n -= part
        out[r] = value


@nb.njit(cache=True, nogil=True)
def read_counts(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Read counts: a non-negative integer, COUNT_X, COUNT_BLANK, or COUNT_BAD."""
    for r in range(start.size):
        n = length[r]
        s = start[r]
        if n == 0:
            out[r] = COUNT_BLANK
        elif n == 1 and (buf[s] == 88 or buf[s] == 120):
            out[r] = COUNT_X
        elif n > 18:
            out[r] = COUNT_BAD
        else:
            value = 0
            for k in range(s, s + n):
                d = buf[k] - 48
                if d < 0 or d > 9:
                    value = COUNT_BAD
                    break
                value = value * 10 + d
            out[r] = value


@nb.njit(cache=True, nogil=True)
def _two(buf: U8, at: int) -> int:
    a = buf[at] - 48
    b = buf[at + 1] - 48
    if a < 0 or a > 9 or b < 0 or b > 9:
        return -1
    return int(a * 10 + b)


@nb.njit(cache=True, nogil=True)
def read_dates(buf: U8, start: I32, length: I32, out: I32) -> None:
    """Read YYYY-MM-DD as days since 1970-01-01 (Gregorian), BAD when it is no date."""
    value, last_read = 0, -1
    for r in range(start.size):
        s = int(start[r])
        out[r] = BAD
        if length[r] != 10:
            continue
        if (
            last_read >= 0
            and load8(buf, s) == load8(buf, last_read)
            and load8(buf, s + 2) == load8(buf, last_read + 2)
        ):  # that of the last good one, nearly always: lines of one checklist stand together
            out[r] = value
            continue
        if buf[s + 4] != 45 or buf[s + 7] != 45:
            continue
        century, rest, month, day = _two(buf, s), _two(buf, s + 2), _two(buf, s + 5), _two(buf, s + 8)
        if century < 0 or rest < 0 or month < 1 or month > 12 or day < 1:
            continue
        year = century * 100 + rest
        leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
        last = 31
        if month == 4 or month == 6 or month == 9 or month == 11:
            last = 30
        elif month == 2:
            last = 29 if leap else 28
        if day > last or year < 1:
            continue
        # Days from civil date, counting years from March (Hinnant, "chrono-compatible low-level date algorithms")
        y = year - (1 if month <= 2 else 0)
        era = y // 400
        yoe = y - era * 400
        doy = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
        value = era * 146097 + yoe * 365 + yoe // 4 - yoe // 100 + doy - 719468
        out[r] = value
        last_read = s


@nb.njit(cache=True, nogil=True)
def read_stamps(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Read 'YYYY-MM-DD HH:MM:SS.ffffff' (0 to 6 decimals) as an integer that sorts like the time; 0 if blank."""
    for r in range(start.size):
        n = int(length[r])
        s = int(start[r])
        value = 0
        if n >= 10:  # from 1900, so that all digits fit in 63 bits
            year = 100 * _two(buf, s) + _two(buf, s + 2) - 1900
            value = (year * 100 + _two(buf, s + 5)) * 100 + _two(buf, s + 8)
        value *= 1000000
        if n >= 19:
            value += (_two(buf, s + 11) * 100 + _two(buf, s + 14)) * 100 + _two(buf, s + 17)
        decimals = min(n - 20, 6)
        if decimals > 0:
            fraction = max(_digits(buf, s + 20, decimals), 0)
            value = value * TENS[decimals] + fraction
        else:
            decimals = 0
        out[r] = value * TENS[6 - decimals]
