"""Byte-level loops of the text reader, compiled: split lines into fields.

No library reader counts ragged lines and projects a few columns in one pass at well under one second per gigabyte.
``buf`` is always a block of whole lines. A field is given by its first byte and length; a field missing on a short
line has length 0.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from fedmiss.arrays import I32, U8
from fedmiss.etl._bits import equal64, ones, trailing

__all__ = ["fields", "separators"]

LF, CR = 10, 13
ONE = np.uint64(1)
USUAL = 12  # separators in 64 bytes of an eBird file, seldom more


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
