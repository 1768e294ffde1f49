"""What a question looks like from outside, so that organisations can compare what their copies of a job ask.

Every organisation runs the same job on the same sums, so all copies ask the same. Words, whole numbers and shapes are
equal, and go into a digest. Numbers with a point differ in their last digits between processors: of each array of them the
size of its largest number and a weighted sum are compared, to ``CLOSE`` of that size.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import shown
from fedmiss.federation.messages import Message, Outcome

CLOSE = 1e-6
# facts as JSON: their last digits differ too, and nothing is computed from them
_TEXTS_OF_FLOATS = {(Outcome, "results")}


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """Outline of the questions of one exchange.

    Attributes
    ----------
    kinds : what is asked;  exact : digest of words, whole numbers and shapes (16 bytes)
    names : of the fields with numbers;  sketch (fields, 2) : largest size, and a weighted sum over the root of the length
    """

    kinds: tuple[str, ...]
    exact: bytes
    names: tuple[str, ...]
    sketch: F64

    def differs(self, other: Outline) -> str:
        """What differs in words, empty where nothing does."""
        if self.kinds != other.kinds:
            return f"{shown(', '.join(other.kinds)) or 'nothing'} instead of {', '.join(self.kinds) or 'nothing'}"
        if self.exact != other.exact or self.sketch.shape != other.sketch.shape:
            return f"other words, whole numbers or shapes in {', '.join(self.kinds)}"
        gap = np.abs(self.sketch - other.sketch)
        far = ~(gap <= CLOSE * np.maximum(self.sketch[:, :1], other.sketch[:, :1]) + 1e-300)
        if not far.any():
            return ""
        i, k = (int(x[0]) for x in np.nonzero(far))
        return f"{self.names[i]}: {other.sketch[i, k]:.9g} instead of {self.sketch[i, k]:.9g}"

    def as_bytes(self) -> bytes:
        """For the wire; the names of the fields follow from the kinds and do not travel."""
        words = ",".join(self.kinds).encode()
        return (
            struct.pack("<HI", len(words), len(self.sketch))
            + words
            + self.exact
            + self.sketch.astype("<f8").tobytes()
        )

    @classmethod
    def read(cls, raw: bytes) -> tuple[Outline, bytes]:
        """An outline, and what follows it.

        Raises
        ------
        ValueError    the bytes are cut
        """
        if len(raw) < 6:
            raise ValueError("cut")
        n, k = struct.unpack_from("<HI", raw)
        end = 6 + n + 16 + 16 * k
        if end > len(raw):
            raise ValueError("cut")
        words = raw[6 : 6 + n].decode()
        sketch = np.frombuffer(raw, "<f8", 2 * k, 22 + n).reshape(k, 2)
        return cls(tuple(words.split(",")) if words else (), raw[6 + n : 22 + n], (), sketch), raw[end:]


def outline_of(questions: Sequence[Message]) -> Outline:
    """The outline of questions."""
    exact = hashlib.blake2b(digest_size=16)
    names, rows = [], []
    for question in questions:
        kind = type(question)
        exact.update(kind.__name__.encode())
        for field in fields(kind):
            value = getattr(question, field.name)
            exact.update(f"\0{field.name}\0".encode())
            if (kind, field.name) in _TEXTS_OF_FLOATS:
                continue
            if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
                numbers = np.asarray(value, dtype=np.float64)
                exact.update(repr(numbers.shape).encode())
                names.append(f"{kind.__name__}.{field.name}")
                rows.append(_sketch(numbers.ravel()))
            elif isinstance(value, np.ndarray):
                exact.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
            else:
                exact.update(repr(value).encode())
    sketch = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return Outline(
        tuple(type(question).__name__ for question in questions), exact.digest(), tuple(names), sketch
    )


def _sketch(x: F64) -> tuple[float, float]:
    """Largest size, and a sum with weights that no plain pattern of numbers cancels."""
    if not x.size:
        return 0.0, 0.0
    # Cosines at multiples of the golden angle (2.39996): no two entries near each other have the same weight.
    at, root = np.arange(1.0, x.size + 1.0), np.sqrt(x.size)
    return float(np.abs(x).max()), float(x @ np.cos(2.39996 * at)) / root
