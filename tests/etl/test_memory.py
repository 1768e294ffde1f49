"""What keeps an import small: narrow ids, cells counted in place, polars told to give memory back."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.etl import select
from fedmiss.etl.codes import BAD
from fedmiss.etl.select import find_sorted

WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "polars":
            print(os.environ.get("_RJEM_MALLOC_CONF"))

sys.meta_path.insert(0, Watch())
import {module}
import polars
"""


@pytest.mark.parametrize(
    ("module", "own"),
    [
        *((f"fedmiss.{m}", None) for m in ("etl.ingest", "etl.plain", "pipeline.chain")),
        ("fedmiss.etl.plain", "dirty_decay_ms:7"),
    ],
)
@pytest.mark.slow
def test_polars_is_told_before_it_is_loaded_and_a_users_choice_stays(module, own):
    env = {k: v for k, v in os.environ.items() if k != "_RJEM_MALLOC_CONF"}
    env |= {"_RJEM_MALLOC_CONF": own} if own else {}
    code = WATCH.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [own or "dirty_decay_ms:0,muzzy_decay_ms:0"]


def test_narrow_ids_are_found_and_wide_ones_are_not_taken_for_them():
    held = np.array([-5, 3, 2**31 - 2], dtype=np.int32)
    wanted = np.array([3, 3 + 2**32, 2**31 - 2, -(2**62), 2**62, -5, 4], dtype=np.int64)
    assert find_sorted(held, wanted).tolist() == [1, -1, 2, -1, -1, 0, -1]


@pytest.mark.parametrize(
    ("values", "size"),
    [([1, 2, 3, -1], 4), ([1, 2**40, 3, 4], 8), ([1, 2, 3, BAD], 8), ([-(2**40), 2, 3, 4], 8)],
)
def test_columns_are_narrow_where_they_and_their_opposites_fit(monkeypatch, values, size):
    """A bad stamp, the lowest number of 32 bits, must come last when the latest edit is looked for."""
    parts = [{"edited": np.array(values[i : i + 2], dtype=np.int64)} for i in (0, 2)]
    monkeypatch.setattr(select, "row_groups", lambda path, columns: iter(parts))
    source = SimpleNamespace(folder=Path(), height=lambda table: 4)
    got = select._whole([source], "edited")
    assert (got.tolist(), got.itemsize) == (values, size)
    assert (-got).tolist() == [-v for v in values]


def test_rows_written_are_counted_from_the_block_in_which_they_begin():
    rng = np.random.default_rng()
    fate = rng.choice(
        np.array([select.KEPT, select.KEPT_ZERO_OK, select.COPY], np.uint8), 3 * select.BLOCK + 7
    )
    none = np.zeros(0, np.int32)
    events = select.Events([], [0], fate, *[none] * 5)
    events.set_fate(fate, [])
    written = np.flatnonzero(fate != select.COPY).astype(np.int32)
    for begin, end in ((0, None), (5, 900), (select.BLOCK, -3), (-2, None), (4, 4)):
        got = events.written_rows(written[begin:end])
        assert got.tolist() == list(range(written.size))[begin:end]
