# mypy: disable-error-code="assignment"
"""An adaptive binary range coder (the LZMA/CABAC kind) in numba, and the coding of integer levels on it.

Range coder: G. N. N. Martin (1979), with the carry propagation of I. Pavlov's LZMA. Each binary decision has a
context: the probability of a zero, moved towards what is seen by 1/(count + 2) (the Krichevsky-Trofimov
estimate) until the count reaches 1023, so a stationary source is coded near its entropy.

Levels: zero flag (adaptive), sign (one raw bit), magnitude by Exp-Golomb class: the class in unary with adaptive
contexts, then the bits below the leading one, the first three adaptive, the rest raw.

Short messages may be shorter as digits in base 2s + 1 ("radix"): the shorter of the two is taken, and a tag byte
says which (bits 0 to 2, of which bit 1 is the compressor's; the length of a range code modulo 32 is in the others).

The functions take many parameters: numba takes arrays one by one, and a coder's state as numbers.
"""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import I64, U8
from fedmiss.loops import compiled, part

RADIX, RANGE = 0, 1  # the tag byte
_RADIX_LIMIT = 256  # longer messages always go through the range coder, without trying

# contexts: 0 zero flag; 1 + i: "class > i"; 64 + 8 * class + prefix: first bits below the leading one
_ONE = 1 << 24
_RATE = np.array([65536 // (context + 2) for context in range(1024)], dtype=np.int64)


@part
def _shift(low: int, cache: int, pend: int, pos: int, out: U8) -> tuple[int, int, int, int]:
    """Move the top byte of ``low`` out; the very first byte is always 0 and is never written."""
    # A byte of 255 may still become 0 by a carry: such bytes are
    # only counted (pend) until a byte settles whether there is one.
    if low < 0xFF000000 or low > 0xFFFFFFFF:
        carry = low >> 32
        byte = cache
        while pend > 0:
            if pos > 0:
                out[pos - 1] = (byte + carry) & 0xFF
            pos += 1
            byte = 0xFF
            pend -= 1
        cache = (low >> 24) & 0xFF
    return (low & 0x00FFFFFF) << 8, cache, pend + 1, pos


@part
def _put(
    low: int, rng: int, cache: int, pend: int, pos: int, out: U8, prob: I64, seen: I64, c: int, bit: int
) -> tuple[int, int, int, int, int]:
    """Code one bit in context ``c`` and let the context learn."""
    # The share of a zero, in 1/65536, never 0 or 1: a bit that was never seen can still be coded.
    bound = (rng >> 16) * min(max(prob[c] >> 8, 1), 65535)
    if bit == 0:
        rng = bound
        prob[c] += ((_ONE - prob[c]) * _RATE[seen[c]]) >> 16
    else:
        low += bound
        rng -= bound
        prob[c] -= (prob[c] * _RATE[seen[c]]) >> 16
    if seen[c] < 1023:
        seen[c] += 1
    # Keep at least 24 bits of range: 16 for the probability, and 8 that are left after it.
    while rng < 0x1000000:
        rng = (rng << 8) & 0xFFFFFFFF
        low, cache, pend, pos = _shift(low, cache, pend, pos, out)
    return low, rng, cache, pend, pos


@part
def _put_raw(
    low: int, rng: int, cache: int, pend: int, pos: int, out: U8, bit: int
) -> tuple[int, int, int, int, int]:
    """Code one bit at probability 1/2."""
    rng >>= 1
    if bit:
        low += rng
    while rng < 0x1000000:
        rng = (rng << 8) & 0xFFFFFFFF
        low, cache, pend, pos = _shift(low, cache, pend, pos, out)
    return low, rng, cache, pend, pos


@part
def _class(m: int) -> int:
    """floor(log2 m) of m >= 1."""
    c = 0
    while m > 1:
        m >>= 1
        c += 1
    return c


@compiled
def capacity(count: int, top: int) -> int:
    """Bytes that surely hold the code of ``count`` levels of magnitude at most ``top``."""
    bits = _class(top) + 1
    return 32 + count * (4 + 2 * bits + 6 * (bits > 1))


@part
def _contexts(c_top: int) -> int:
    """How many contexts levels of the largest class ``c_top`` use."""
    return 2 if c_top == 0 else 64 + 8 * (c_top + 1)


@part
def _range_encode(levels: I64, count: int, top: int, signed: bool, out: U8) -> int:
    c_top = _class(top)
    prob = np.full(_contexts(c_top), _ONE >> 1, dtype=np.int64)
    seen = np.zeros(prob.size, dtype=np.int64)
    # Contexts start at 1/2. pos counts from the byte that is never written.
    low, rng, cache, pend, pos = 0, 0xFFFFFFFF, 0, 1, 0
    for i in range(count):
        level = levels[i]
        if level == 0:
            low, rng, cache, pend, pos = _put(low, rng, cache, pend, pos, out, prob, seen, 0, 0)
            continue
        low, rng, cache, pend, pos = _put(low, rng, cache, pend, pos, out, prob, seen, 0, 1)
        if signed:
            low, rng, cache, pend, pos = _put_raw(low, rng, cache, pend, pos, out, level < 0)
        m = abs(level)
        c = _class(m)
        # Class in unary; the largest class needs no bit that says
        # it is over. The leading one of m is implied by the class.
        for j in range(c):
            low, rng, cache, pend, pos = _put(low, rng, cache, pend, pos, out, prob, seen, 1 + j, 1)
        if c < c_top:
            low, rng, cache, pend, pos = _put(low, rng, cache, pend, pos, out, prob, seen, 1 + c, 0)
        prefix = 1
        for j in range(c):
            bit = (m >> (c - 1 - j)) & 1
            if j < 3:
                low, rng, cache, pend, pos = _put(
                    low, rng, cache, pend, pos, out, prob, seen, 64 + 8 * c + prefix, bit
                )
                prefix = (prefix << 1) | bit
            else:
                low, rng, cache, pend, pos = _put_raw(low, rng, cache, pend, pos, out, bit)
    # end on the number in [low, low + rng) with the most trailing zeros; the decoder reads zeros past the end
    for keep in range(1, 5):
        mask = (1 << (40 - 8 * keep)) - 1 if keep > 1 else (1 << 32) - 1
        value = (low + mask) & ~mask
        if value < low + rng:
            low = value
            break
    for _ in range(5):
        low, cache, pend, pos = _shift(low, cache, pend, pos, out)
    size = max(pos - 1, 0)
    # Zeros at the end are what the decoder reads past it.
    while size > 0 and out[size - 1] == 0:
        size -= 1
    return size


@part
def _range_decode(code: U8, count: int, top: int, signed: bool, levels: I64) -> bool:
    """Fill ``levels``; return False when a level exceeds ``top``."""
    # One function: the state of the coder is five numbers, which helpers would have to hand back for every bit.
    c_top = _class(top)
    prob = np.full(_contexts(c_top), _ONE >> 1, dtype=np.int64)
    seen = np.zeros(prob.size, dtype=np.int64)
    size, pos, value, rng = code.size, 0, 0, 0xFFFFFFFF
    for _ in range(4):
        value = (value << 8) | (np.int64(code[pos]) if pos < size else 0)
        pos += 1
    for i in range(count):
        # one level is a chain of decisions: 0 zero flag, 1 sign, 2 class, 3 bits below the leading one
        stage, c, j, m, prefix, negative = 0, 0, 0, 1, 1, False
        levels[i] = 0
        while True:
            ctx = -1
            if stage == 0:
                ctx = 0
            elif stage == 2:
                ctx = 1 + c
            elif stage == 3 and j < 3:
                ctx = 64 + 8 * c + prefix
            if ctx >= 0:
                bound = (rng >> 16) * min(max(prob[ctx] >> 8, 1), 65535)
                if value < bound:
                    bit = 0
                    rng = bound
                    prob[ctx] += ((_ONE - prob[ctx]) * _RATE[seen[ctx]]) >> 16
                else:
                    bit = 1
                    value -= bound
                    rng -= bound
                    prob[ctx] -= (prob[ctx] * _RATE[seen[ctx]]) >> 16
                if seen[ctx] < 1023:
                    seen[ctx] += 1
            else:
                rng >>= 1
                bit = 0
                if value >= rng:
                    value -= rng
                    bit = 1
            while rng < 0x1000000:
                rng = (rng << 8) & 0xFFFFFFFF
                value = ((value << 8) | (np.int64(code[pos]) if pos < size else 0)) & 0xFFFFFFFF
                pos += 1
            if stage == 0:
                if bit == 0:
                    break
                stage = 1 if signed else 2
                if stage == 2 and c_top == 0:
                    levels[i] = 1
                    break
            elif stage == 1:
                negative = bit == 1
                stage = 2
                if c_top == 0:
                    levels[i] = -1 if negative else 1
                    break
            elif stage == 2:
                if bit == 1:
                    c += 1
                if bit == 0 or c == c_top:
                    if c == 0:
                        levels[i] = -1 if negative else 1
                        break
                    stage = 3
            else:
                m = (m << 1) | bit
                if j < 3:
                    prefix = (prefix << 1) | bit
                j += 1
                if j == c:
                    levels[i] = -m if negative else m
                    break
        if abs(levels[i]) > top:
            return False
    return True


@part
def _word(base: int) -> int:
    """How many digits in ``base`` fit a word below 2^63."""
    digits, value = 0, 1
    # Checked before the product: signed 64-bit integers, which wrap without a word.
    while value <= (1 << 62) // base:
        value *= base
        digits += 1
    return digits


@part
def _word_bytes(base: int, digits: int) -> int:
    """Bytes that hold base^digits - 1."""
    value = 1
    for _ in range(digits):
        value *= base
    value -= 1
    size = 0
    while value > 0:
        value >>= 8
        size += 1
    return size


@part
def _radix_size(count: int, base: int) -> int:
    digits = _word(base)
    return (count // digits) * _word_bytes(base, digits) + _word_bytes(base, count % digits)


@part
def _radix_encode(levels: I64, count: int, base: int, shift: int, out: U8) -> int:
    digits = _word(base)
    pos = i = 0
    while i < count:
        run = min(digits, count - i)
        value = 0
        # The first level is the last digit, so that the decoder gets it first by a remainder.
        for j in range(run - 1, -1, -1):
            value = value * base + (levels[i + j] + shift)
        for _ in range(_word_bytes(base, run)):
            out[pos] = value & 0xFF
            value >>= 8
            pos += 1
        i += run
    return pos


@part
def _radix_decode(code: U8, count: int, base: int, shift: int, levels: I64) -> bool:
    digits = _word(base)
    pos = i = 0
    while i < count:
        run = min(digits, count - i)
        size = _word_bytes(base, run)
        value = 0
        for j in range(size - 1, -1, -1):
            value = (value << 8) | np.int64(code[pos + j])
        pos += size
        for j in range(run):
            levels[i + j] = value % base - shift
            value //= base
        # A rest means a word of no run of digits: bytes that no encoder wrote.
        if value != 0:
            return False
        i += run
    return True


@compiled
def encode_levels(levels: I64, count: int, top: int, signed: bool, out: U8) -> tuple[int, int]:
    """Code ``levels[:count]``, |level| <= top, into ``out``; return (tag, bytes).

    The range decoder reads zeros past the end and would leave bytes unread, so its tag holds the length modulo 32.
    """
    size = _range_encode(levels, count, top, signed, out)
    if count <= _RADIX_LIMIT and top < 1 << 30:
        base = 2 * top + 1 if signed else top + 1
        short = _radix_size(count, base)
        if short <= size:
            return RADIX, _radix_encode(levels, count, base, top if signed else 0, out)
    return RANGE | (size & 31) << 3, size


@compiled
def decode_levels(code: U8, tag: int, count: int, top: int, signed: bool, levels: I64) -> bool:
    """Fill ``levels[:count]``; return False when the code cannot be one of ``encode_levels``."""
    if tag & 7 == RANGE:
        return tag >> 3 == code.size & 31 and _range_decode(code, count, top, signed, levels)
    base = 2 * top + 1 if signed else top + 1
    if tag != RADIX or count > _RADIX_LIMIT or code.size != _radix_size(count, base):
        return False
    return _radix_decode(code, count, base, top if signed else 0, levels)
