"""Byte-level loops of the text reader, compiled: split lines, check UTF-8, read fields, encode repeats.

No library reader counts ragged lines, names the line of an undecodable byte and projects a few columns in one
pass; these loops do, at about one second per gigabyte. ``buf`` is always a block of whole lines. A field is
given by its first byte and length; a field missing on a short line has length 0.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from fedmiss.arrays import F64, I32, I64, U8
from fedmiss.etl.codes import BAD, COUNT_BAD, COUNT_BLANK, COUNT_X

LF, CR = 10, 13
# for each set of bits of a byte: their places, in order, and their number
OFFSETS = np.zeros((256, 8), dtype=np.int32)
N_BITS = np.zeros(256, dtype=np.int64)
for _byte in range(256):
    _places = [k for k in range(8) if _byte >> k & 1]
    OFFSETS[_byte, : len(_places)] = _places
    N_BITS[_byte] = len(_places)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xBF58476D1CE4E5B9)


@nb.njit(cache=True, nogil=True)
def separators(buf: U8, stop: int, separator: int, seps: I32, ends: I32) -> int:
    """List where ``buf[:stop]`` has separators and line ends; return the number of lines.

    ``ends[r]`` is the index in ``seps`` of the end of line ``r``. Written without branches: a line of an eBird
    file has fifty short fields, and a mispredicted jump at each would double the time. ``seps`` and ``ends`` need
    room for ``stop + 8`` numbers.
    """
    # Eight bytes at a time: the bytes that hit become the bits of one number, and a table says where they are.
    # Three positions are always written and the count moves on by as many as hit, so next to nothing is branched on.
    lines = np.uint64(0x0A0A0A0A0A0A0A0A)
    fields = np.uint64(separator) * np.uint64(0x0101010101010101)
    low = np.uint64(0x7F7F7F7F7F7F7F7F)
    spread = np.uint64(0x0102040810204080)
    words = buf[: stop // 8 * 8].view(np.uint64)
    n = np.uint64(
        0
    )  # unsigned, here and below: numba asks of every signed index whether it counts from the end
    for w in range(words.size):
        x = words[w] ^ lines
        y = words[w] ^ fields
        hit = ~((((x & low) + low) | x) & (((y & low) + low) | y) | low)
        if hit:
            bits = ((hit >> np.uint64(7)) * spread) >> np.uint64(56)
            base = w * 8
            for k in range(3):
                seps[n + np.uint64(k)] = base + OFFSETS[bits, k]
            hits = N_BITS[bits]
            if hits > 3:  # rare: a run of blank columns
                for k in range(3, 8):
                    seps[n + np.uint64(k)] = base + OFFSETS[bits, k]
            n += np.uint64(hits)
    wanted = np.uint8(separator)
    for i in range(words.size * 8, stop):
        c = buf[i]
        seps[n] = i
        n += np.uint64((c == LF) | (c == wanted))
    m = np.uint64(0)
    for k in range(n):
        ends[m] = k
        m += np.uint64(buf[np.uint64(seps[k])] == LF)
    return int(m)


@nb.njit(cache=True, nogil=True)
def line_ends(buf: U8, stop: int) -> int:
    """Count the line ends in ``buf[:stop]``."""
    n = 0
    for i in range(stop):
        n += buf[i] == LF
    return n


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
def _sequence(buf: U8, i: int, stop: int) -> int:
    """Length of the UTF-8 sequence that starts at ``i``, 0 when it is not valid (RFC 3629, section 4)."""
    c = buf[i]
    if c < 0x80:
        return 1
    low, high = 0x80, 0xBF
    if c >= 0xC2 and c <= 0xDF:
        n = 2
    elif c >= 0xE0 and c <= 0xEF:
        n = 3
        if c == 0xE0:
            low = 0xA0
        elif c == 0xED:
            high = 0x9F
    elif c >= 0xF0 and c <= 0xF4:
        n = 4
        if c == 0xF0:
            low = 0x90
        elif c == 0xF4:
            high = 0x8F
    else:
        return 0
    if i + n > stop or buf[i + 1] < low or buf[i + 1] > high:
        return 0
    for k in range(i + 2, i + n):
        if buf[k] < 0x80 or buf[k] > 0xBF:
            return 0
    return n


@nb.njit(cache=True, nogil=True)
def bad_utf8(buf: U8, stop: int) -> int:
    """Position of the first byte that is not UTF-8, or -1."""
    high = np.uint64(0x8080808080808080)
    words = buf[: stop // 64 * 64].view(np.uint64)
    i = 0
    for first in range(0, words.size, 8):
        any_high = np.uint64(0)
        for w in range(first, first + 8):  # of fixed length, so that it becomes a few vector instructions
            any_high |= words[w]
        if any_high & high == 0:
            continue
        for w in range(first, first + 8):
            if words[w] & high == 0:
                continue
            i = max(i, w * 8)
            while i < w * 8 + 8:
                n = _sequence(buf, i, stop)
                if n == 0:
                    return i
                i += n
    i = max(i, words.size * 8)
    while i < stop:
        n = _sequence(buf, i, stop)
        if n == 0:
            return i
        i += n
    return -1


@nb.njit(cache=True, nogil=True)
def read_ids(buf: U8, start: I32, length: I32, letter: int, out: I64) -> None:
    """Read ids such as S123 or G45 as integers: -1 for a blank, BAD for anything else."""
    for r in range(start.size):
        n = length[r]
        s = start[r]
        if n == 0:
            out[r] = -1
            continue
        value = 0
        ok = n > 1 and n <= 18 and buf[s] == letter
        if ok:
            for k in range(np.uint64(s + 1), np.uint64(s + n)):
                d = int(buf[k]) - 48
                if d < 0 or d > 9:
                    ok = False
                    break
                value = value * 10 + d
        out[r] = value if ok else BAD


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
def read_decimals(buf: U8, start: I32, length: I32, out: F64) -> int:
    """Read plain decimals (12, -3.5, .25); blank gives nan; return how many could not be read (nan too).

    The digits are held as one integer and divided by a power of ten once, so the result is the nearest double
    for up to 15 digits.
    """
    bad = 0
    for r in range(start.size):
        n = length[r]
        s = start[r]
        out[r] = np.nan
        if n == 0:
            continue
        k = s
        negative = buf[k] == 45
        if negative or buf[k] == 43:
            k += 1
        mantissa = 0
        digits = 0
        scale = 1.0
        seen_point = False
        ok = True
        while k < s + n:
            c = buf[k]
            if c >= 48 and c <= 57:
                if digits < 17:  # further digits are below double precision
                    mantissa = mantissa * 10 + (c - 48)
                    if seen_point:
                        scale *= 10.0
                    if mantissa > 0:
                        digits += 1
                elif not seen_point:
                    ok = False
                    break
            elif c == 46 and not seen_point:
                seen_point = True
            else:
                ok = False
                break
            k += 1
        if not ok or (digits == 0 and not (buf[s + n - 1] == 48 or (n > 1 and buf[s + n - 2] == 48))):
            bad += 1
            continue
        out[r] = -(mantissa / scale) if negative else mantissa / scale
    return bad


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
    for r in range(start.size):
        s = start[r]
        out[r] = BAD
        if length[r] != 10 or buf[s + 4] != 45 or buf[s + 7] != 45:
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
        out[r] = era * 146097 + yoe * 365 + yoe // 4 - yoe // 100 + doy - 719468


@nb.njit(cache=True, nogil=True)
def read_times(buf: U8, start: I32, length: I32, out: I32) -> None:
    """Read HH:MM or HH:MM:SS as minutes after midnight; -1 for a blank, BAD when it is no time."""
    for r in range(start.size):
        n = length[r]
        s = start[r]
        if n == 0:
            out[r] = -1
            continue
        out[r] = BAD
        if (n == 5 or n == 8) and buf[s + 2] == 58:
            hour, minute = _two(buf, s), _two(buf, s + 3)
            if hour >= 0 and hour < 24 and minute >= 0 and minute < 60:
                out[r] = hour * 60 + minute


@nb.njit(cache=True, nogil=True)
def read_stamps(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Read 'YYYY-MM-DD HH:MM:SS.ffffff' (0 to 6 decimals) as an integer that sorts like the time; 0 if blank."""
    for r in range(start.size):
        n = length[r]
        s = start[r]
        value = 0
        if n >= 10:
            value = (_two(buf, s) - 19) * 100 + _two(
                buf, s + 2
            )  # from 1900, so that all digits fit in 63 bits
            value = (value * 100 + _two(buf, s + 5)) * 100 + _two(buf, s + 8)
        clock = 0
        if n >= 19:
            clock = (_two(buf, s + 11) * 100 + _two(buf, s + 14)) * 100 + _two(buf, s + 17)
        value = value * 1000000 + clock
        power = 1000000
        for k in range(s + 20, s + min(n, 26)):
            power //= 10
            value = value * 10 + (buf[k] - 48)
        out[r] = value * power


@nb.njit(cache=True, nogil=True)
def _hash_field(buf: U8, s: int, n: int, h: np.uint64) -> np.uint64:
    h = (h ^ np.uint64(n + 1)) * GOLDEN
    k = np.uint64(s)
    end = k + np.uint64(n)
    while k + np.uint64(8) <= end:  # eight bytes a turn (one load): the multiplications wait for each other
        word = (
            np.uint64(buf[k])
            | np.uint64(buf[k + np.uint64(1)]) << np.uint64(8)
            | np.uint64(buf[k + np.uint64(2)]) << np.uint64(16)
            | np.uint64(buf[k + np.uint64(3)]) << np.uint64(24)
            | np.uint64(buf[k + np.uint64(4)]) << np.uint64(32)
            | np.uint64(buf[k + np.uint64(5)]) << np.uint64(40)
            | np.uint64(buf[k + np.uint64(6)]) << np.uint64(48)
            | np.uint64(buf[k + np.uint64(7)]) << np.uint64(56)
        )
        h = (h ^ word) * MIX
        h ^= h >> np.uint64(29)
        k += np.uint64(8)
    if k < end:
        word = np.uint64(0)
        while k < end:
            word = word << np.uint64(8) | np.uint64(buf[k])
            k += np.uint64(1)
        h = (h ^ word) * MIX
        h ^= h >> np.uint64(29)
    return h


@nb.njit(cache=True, nogil=True)
def read_guids(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Digest unique identifiers to 64 bits; 0 for a blank."""
    for r in range(start.size):
        n = length[r]
        if n == 0:
            out[r] = 0
            continue
        h = _hash_field(buf, start[r], n, GOLDEN) * GOLDEN
        h ^= h >> np.uint64(29)
        out[r] = np.int64(h if h else GOLDEN)


@nb.njit(cache=True, nogil=True)
def met_before(values: I64, bits: Any, out: I32) -> int:
    """List the places of values whose bit is set already, and set the bits of all; return how many.

    ``bits`` is a table of 64-bit words, a power of two in number. Every value that was there before is listed,
    and a few that only share its bit. 0 stands for a blank and is passed over.
    """
    n = 0
    mask = np.uint64(bits.size - 1)
    for r in range(values.size):
        if values[r] == 0:
            continue
        h = np.uint64(values[r])
        at = (h >> np.uint64(6)) & mask
        bit = np.uint64(1) << (h & np.uint64(63))
        out[n] = r
        n += (bits[at] & bit) != np.uint64(0)
        bits[at] |= bit
    return n


@nb.njit(cache=True, nogil=True)
def among(values: I64, bits: Any, out: I32) -> int:
    """List the places of values whose bit is set in a table of ``met_before``; return how many."""
    n = 0
    mask = np.uint64(bits.size - 1)
    for r in range(values.size):
        h = np.uint64(values[r])
        out[n] = r
        n += values[r] != 0 and (bits[(h >> np.uint64(6)) & mask] >> (h & np.uint64(63))) & np.uint64(1)
    return n


@nb.njit(cache=True, nogil=True)
def encode(
    buf: U8,
    starts: I32,
    lengths: I32,
    slots: I32,
    keys: Any,
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
    for r in range(out.size):
        h = GOLDEN
        for j in range(slots.size):
            h = _hash_field(buf, starts[r, slots[j]], lengths[r, slots[j]], h)
        h ^= h >> np.uint64(32)
        if h == np.uint64(0):
            h = np.uint64(1)
        at = h & mask
        while keys[at] != np.uint64(0) and keys[at] != h:
            at = (at + np.uint64(1)) & mask
        if keys[at] == np.uint64(0):
            keys[at] = h
            codes[at] = n_codes + fresh
            new_rows[fresh] = r
            fresh += 1
        out[r] = codes[at]
    return fresh


@nb.njit(cache=True, nogil=True)
def gather(buf: U8, start: I32, offsets: I32, out: U8) -> None:
    """Copy fields one behind the other; ``offsets[i]`` is where field ``i`` goes."""
    for i in range(start.size):
        s = start[i]
        for k in range(offsets[i], offsets[i + 1]):
            out[k] = buf[s]
            s += 1
