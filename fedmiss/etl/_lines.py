"""Compiled loops of the text reader: split lines into fields, read ids, counts, dates and stamps, and give values codes.

No library reader counts ragged lines and projects a few columns in one pass at well under one second per gigabyte.
``buf`` is always a block of whole lines. A field is given by its first byte and length; a field missing on a short
line has length 0. Numba takes arrays one by one, so the arguments of a loop are not grouped.
"""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import I32, I64, U8
from fedmiss.etl._bits import equal64, load8, ones, trailing
from fedmiss.etl.codes import BAD, COUNT_BAD, COUNT_BLANK, COUNT_X
from fedmiss.loops import compiled, part

LF, CR = 10, 13
ONE = np.uint64(1)
USUAL = 12  # separators in 64 bytes of an eBird file, seldom more
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xBF58476D1CE4E5B9)
ODD = np.uint64(0x94D049BB133111EB)
MASKS = np.array([(1 << 8 * k) - 1 for k in range(9)], dtype=np.uint64)
TENS = np.array([10**k for k in range(9)], dtype=np.int64)


@compiled
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
            # Two's complement keeps the lowest bit alone; the hits below it are the separators before that line end.
            lowest = line & (~line + ONE)
            ends[m] = n + ones(hit & (lowest - ONE))
            m += ONE
            line ^= lowest
        first = np.uint64(i)
        at = n
        n += ones(hit)
        # Written whether they are hits or not: what is too much is overwritten by the next turn.
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


@compiled
def fields(
    buf: U8, n_lines: int, seps: I32, ends: I32, columns: I32, starts: I32, lengths: I32, n_fields: I32
) -> None:
    """Give first byte and length of the wanted ``columns`` of each line, and its number of fields.

    A field missing on a short line has length 0; fields beyond the header's belong to its last column (free
    text), which is never wanted, and are only counted. A carriage return before the line end is not data.
    """
    first = 0
    line_start = 0
    for line in range(n_lines):
        last = ends[line]
        found = last - first + 1
        n_fields[line] = found
        for j in range(columns.size):
            column = columns[j]
            if column < found:
                begin = line_start if column == 0 else seps[first + column - 1] + 1
                end = seps[first + column]
                if column == found - 1 and end > begin and buf[end - 1] == CR:
                    end -= 1
                starts[line, j] = begin
                lengths[line, j] = end - begin
            else:
                starts[line, j] = line_start
                lengths[line, j] = 0
        line_start = seps[last] + 1
        first = last + 1


@part
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
        # Every byte is 0x30 to 0x39: its high half is 3, also after adding 6 to it.
        if ((word & high) | (((word + six) & high) >> np.uint64(4))) != np.uint64(0x3333333333333333):
            return -1
        # Three products join pairs of digits, then of pairs, then of fours.
        word = (word & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64(2561) >> np.uint64(8)
        word = (word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601) >> np.uint64(16)
        return int(
            np.int64((word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001) >> np.uint64(32))
        )
    value = 0
    for k in range(s, s + n):
        digit = int(buf[k]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@part
def _number(buf: U8, s: int, n: int) -> int:
    """Read up to eighteen digits, -1 when there is something else among them."""
    value = 0
    while n > 0:
        some = min(n, 8)
        digits = _digits(buf, s, some)
        if digits < 0:
            return -1
        value = value * TENS[some] + digits
        s += some
        n -= some
    return value


@compiled
def read_ids(buf: U8, start: I32, length: I32, letter: int, out: I64) -> None:
    """Read ids such as S123 or G45 as integers: -1 for a blank, BAD for anything else."""
    for row in range(start.size):
        size, begin = int(length[row]), int(start[row])
        out[row] = BAD if size else -1
        if 2 <= size <= 18 and buf[begin] == letter:
            value = _number(buf, begin + 1, size - 1)
            out[row] = value if value >= 0 else BAD


@compiled
def read_counts(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Read counts: a non-negative integer, COUNT_X, COUNT_BLANK, or COUNT_BAD."""
    for row in range(start.size):
        size, begin = int(length[row]), int(start[row])
        if size == 0:
            out[row] = COUNT_BLANK
        elif size == 1 and (buf[begin] == 88 or buf[begin] == 120):
            out[row] = COUNT_X
        else:
            value = _number(buf, begin, size) if size <= 18 else -1
            out[row] = value if value >= 0 else COUNT_BAD


@part
def _two(buf: U8, at: int) -> int:
    a = buf[at] - 48
    b = buf[at + 1] - 48
    if a < 0 or a > 9 or b < 0 or b > 9:
        return -1
    return int(a * 10 + b)


@compiled
def read_dates(buf: U8, start: I32, length: I32, out: I32) -> None:
    """Read YYYY-MM-DD as days since 1970-01-01 (Gregorian), BAD when it is no date."""
    value, last_read = 0, -1
    for row in range(start.size):
        begin = int(start[row])
        out[row] = BAD
        if length[row] != 10:
            continue
        if (
            last_read >= 0
            and load8(buf, begin) == load8(buf, last_read)
            and load8(buf, begin + 2) == load8(buf, last_read + 2)
        ):  # that of the last good one, nearly always: lines of one checklist stand together
            out[row] = value
            continue
        if buf[begin + 4] != 45 or buf[begin + 7] != 45:
            continue
        century, rest = _two(buf, begin), _two(buf, begin + 2)
        month, day = _two(buf, begin + 5), _two(buf, begin + 8)
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
        out[row] = value
        last_read = begin


@compiled
def read_stamps(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Read 'YYYY-MM-DD HH:MM:SS.ffffff' (0 to 6 decimals) as an integer that sorts like the time; 0 if blank."""
    for row in range(start.size):
        size = int(length[row])
        begin = int(start[row])
        value = 0
        if size >= 10:  # from 1900, so that all digits fit in 63 bits
            year = 100 * _two(buf, begin) + _two(buf, begin + 2) - 1900
            value = (year * 100 + _two(buf, begin + 5)) * 100 + _two(buf, begin + 8)
        value *= 1000000
        if size >= 19:
            value += (_two(buf, begin + 11) * 100 + _two(buf, begin + 14)) * 100 + _two(buf, begin + 17)
        decimals = min(size - 20, 6)
        if decimals > 0:
            fraction = max(_digits(buf, begin + 20, decimals), 0)
            value = value * TENS[decimals] + fraction
        else:
            decimals = 0
        out[row] = value * TENS[6 - decimals]


@part
def _head(buf: U8, s: int, n: int) -> np.uint64:
    """Return the first ``n`` <= 8 bytes as one number."""
    if s + 8 <= buf.size:
        return np.uint64(load8(buf, s) & MASKS[n])
    word = np.uint64(0)
    for k in range(n):
        word |= np.uint64(buf[s + k]) << np.uint64(8 * k)
    return word


@part
def _hash_field(buf: U8, s: int, n: int, h: np.uint64) -> np.uint64:
    """Digest a field into ``h``: sixteen bytes a turn, the last turn overlapping the one before."""
    # The length first: fields that are equal but for zero bytes at the end must differ, and a blank field must count.
    h ^= np.uint64(n + 1) * GOLDEN
    if n <= 8:
        h = (h ^ _head(buf, s, n)) * MIX
        return h ^ (h >> np.uint64(29))
    last = s + n - 8
    while True:
        first = min(s, last)
        x = (load8(buf, first) ^ GOLDEN) * ODD
        y = (load8(buf, min(first + 8, last)) ^ ODD) * GOLDEN
        h = (h ^ x ^ (y >> np.uint64(32)) ^ (y << np.uint64(32))) * MIX
        h ^= h >> np.uint64(29)
        s += 16
        if s > last + 7:
            return h


@compiled
def read_guids(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Digest unique identifiers to 64 bits; 0 for a blank."""
    for row in range(start.size):
        size = length[row]
        if size == 0:
            out[row] = 0
            continue
        h = _hash_field(buf, int(start[row]), int(size), GOLDEN) * GOLDEN
        h ^= h >> np.uint64(29)
        # 0 is the code of a blank, so no digest may be 0.
        out[row] = np.int64(h if h else GOLDEN)


@compiled
def encode(
    buf: U8,
    starts: I32,
    lengths: I32,
    slots: I32,
    keys: np.ndarray,
    codes: I32,
    n_codes: int,
    out: I32,
    new_rows: I32,
) -> int:
    """Give each row the code of its joint value in ``slots``; list the first row of each new value.

    ``keys``/``codes`` is an open-addressing table of 64-bit digests (power-of-two size, 0 = empty); the caller
    keeps it at most half full. Returns how many values were new.
    """
    mask = np.uint64(keys.size - 1)
    fresh = 0
    for row in range(out.size):
        h = GOLDEN
        for j in range(slots.size):
            h = _hash_field(buf, int(starts[row, slots[j]]), int(lengths[row, slots[j]]), h)
        h ^= h >> np.uint64(32)
        if h == np.uint64(0):
            h = np.uint64(1)
        at = h & mask
        # Linear probing. Two values with one digest of 64 bits would
        # be one: among 10^8 values the chance is about 3 in 10^4.
        while keys[at] != np.uint64(0) and keys[at] != h:
            at = (at + np.uint64(1)) & mask
        if keys[at] == np.uint64(0):
            keys[at] = h
            codes[at] = n_codes + fresh
            new_rows[fresh] = row
            fresh += 1
        out[row] = codes[at]
    return fresh


@compiled
def move(old_keys: np.ndarray, old_codes: I32, keys: np.ndarray, codes: I32) -> None:
    """Fill a larger table of ``encode`` from a smaller one."""
    mask = np.uint64(keys.size - 1)
    for i in range(old_keys.size):
        if old_keys[i] == np.uint64(0):
            continue
        at = old_keys[i] & mask
        while keys[at] != np.uint64(0):
            at = (at + np.uint64(1)) & mask
        keys[at] = old_keys[i]
        codes[at] = old_codes[i]


@compiled
def gather(buf: U8, start: I32, offsets: I32, out: U8) -> None:
    """Copy fields one behind the other; ``offsets[i]`` is where field ``i`` goes."""
    for i in range(start.size):
        begin = start[i]
        for k in range(offsets[i], offsets[i + 1]):
            out[k] = buf[begin]
            begin += 1
