# ruff: noqa: PT012 -- a writer that fails half-way is what is tested
"""The lowest layers: keyed randomness, atomic files, tables with schemas, errors, shipped files, a light import."""

import errno
import json
import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.caching import CacheImpl

from fedmiss import atomic, errors, files, loops, owner, tables
from fedmiss.errors import ConfigError, FedmissError, InputError, SchemaError
from fedmiss.resources import resource
from fedmiss.rng import rng_for, uniforms

# --- randomness


@settings(deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 60), unique=True, max_size=20),
    st.integers(0, 7),
)
def test_a_workers_draws_do_not_depend_on_who_else_draws(seed, k, slots, size):
    together = uniforms(seed, "law", k, slots, size)
    assert together.shape == (len(slots), size)
    for row, slot in zip(together, slots, strict=True):
        assert np.array_equal(uniforms(seed, "law", k, [slot], size)[0], row)
    assert ((together >= 0) & (together < 1)).all()


@pytest.mark.parametrize("slots", [range(5), range(3, 9), range(7, 8), range(0), range(0, 9, 2)])
@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_range_of_workers_is_their_list(slots, size):
    together, one_by_one = uniforms(3, "x", 2, slots, size), uniforms(3, "x", 2, list(slots), size)
    assert together.shape == one_by_one.shape == (len(slots), size)
    assert (together == one_by_one).all()


def test_different_keys_give_different_draws():
    keys = [(0,), (1,), ("a",), ("a", 0), ("a", 1), ("b", 0), ("a", 0, 0), (0, "a")]
    draws = {float(rng_for(7, *key).random()) for key in keys} | {float(rng_for(8, "a").random())}
    assert len(draws) == len(keys) + 1


def test_draws_are_the_same_in_every_process():
    """Words are digested, not hashed: Python's own hash changes with PYTHONHASHSEED."""
    code = "from fedmiss.rng import rng_for; print(float(rng_for(3, 'worker-01', 5).random()).hex())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": h}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for h in ("1", "2")
    }  # fmt: skip
    assert seen == {float(rng_for(3, "worker-01", 5).random()).hex()}


# --- files


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with pytest.raises(ZeroDivisionError), atomic.atomic_file(path) as tmp:
        tmp.write_text("half")
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == []
    with atomic.atomic_file(path) as tmp:
        tmp.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    with pytest.raises(KeyboardInterrupt), atomic.atomic_file(path) as tmp:
        tmp.write_text("other")
        raise KeyboardInterrupt
    assert path.read_text() == "whole"
    assert {p.name for p in path.parent.iterdir()} == {"a.txt", owner.MARK}
    path.write_text("edited")
    with pytest.raises(ConfigError, match="was changed since"), atomic.atomic_file(path):
        raise AssertionError("never reached")
    assert path.read_text() == "edited"


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    out = tmp_path / "out"
    for error in (ZeroDivisionError, KeyboardInterrupt, InputError("no")):
        with (
            pytest.raises((ZeroDivisionError, KeyboardInterrupt, InputError)),
            files.atomic_folder(out) as tmp,
        ):
            (tmp / "half").write_text("x")
            raise error
        assert list(tmp_path.iterdir()) == []
    with files.atomic_folder(out) as tmp:
        files.write_manifest(tmp, "panel", settings={}, inputs={})
    with pytest.raises(ConfigError, match="exists already"), files.atomic_folder(out):
        raise AssertionError("never reached")
    with pytest.raises(ZeroDivisionError), files.atomic_folder(out, overwrite=True) as tmp:
        raise ZeroDivisionError
    assert files.read_manifest(out, "panel")["kind"] == "panel", "the old one stays when the new one fails"
    with files.atomic_folder(out, overwrite=True) as tmp:
        (tmp / "new").write_text("x")
    assert [p.name for p in out.iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EACCES, "may not write"),
        (errno.EPERM, "may not write"), (errno.EROFS, "read-only"),
        (errno.EFBIG, "larger than this disk"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("maker", [atomic.atomic_file, files.atomic_folder])
def test_a_refusal_of_the_disk_is_explained(tmp_path, maker, number, word):
    with pytest.raises(InputError, match=word) as caught, maker(tmp_path / "out"):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path / "out") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_inner_refusal_names_the_folder_that_was_asked_for(tmp_path):
    with (
        pytest.raises(InputError) as caught,
        files.atomic_folder(tmp_path / "out") as tmp,
        atomic.atomic_file(tmp / "t"),
    ):
        raise OSError(errno.ENOSPC, "full")
    assert f"cannot write {tmp_path / 'out'}: " in str(caught.value)
    assert ".tmp-" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("maker", [atomic.atomic_file, files.atomic_folder])
def test_a_refusal_that_polars_words_is_explained_too(tmp_path, maker):
    frame = pl.DataFrame({"a": [1]})
    for write in (frame.write_parquet, frame.lazy().sink_csv):
        with pytest.raises(InputError, match="disk is full"), maker(tmp_path / "out"):
            write("/dev/full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_names_what_was_asked_for_how_much_is_free_and_what_stays(tmp_path):
    """It named the unfinished folder, and said of a fit that can go on that nothing was left."""
    out, work = tmp_path / "records", tmp_path / "fit.partial"
    said = (
        rf"cannot write {out}: the disk is full \([\d,.]+ MB are free in .*Nothing half-written was left\.$"
    )
    with pytest.raises(InputError, match=said), files.atomic_folder(out) as tmp:
        with atomic.atomic_file(tmp / "cache"):
            pl.DataFrame({"a": [1]}).write_parquet("/dev/full")
    said = (
        f"cannot write {tmp_path / 'fit'}: the disk is full .* What is done stays in {work}; the same command"
    )
    with pytest.raises(InputError, match=said), files.making(tmp_path / "fit"):
        work.mkdir()
        with atomic.atomic_file(work / "part"):
            raise OSError(errno.ENOSPC, "full")


def test_errors_that_are_not_about_writing_pass(tmp_path):
    for maker in (atomic.atomic_file, files.atomic_folder):
        with pytest.raises(FileNotFoundError), maker(tmp_path / "out"):
            open(tmp_path / "input")
        with pytest.raises(InputError, match="of the input"), maker(tmp_path / "out"):
            raise InputError("a fault of the input", path=str(tmp_path / "input"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_the_hash_of_a_value_forgets_the_order_of_keys_only(value):
    assert atomic.hash_json(dict(reversed(list(value.items())))) == atomic.hash_json(value)
    assert atomic.hash_json({**value, "one more": 1}) != atomic.hash_json({**value, "one more": 2})


def test_json_files_have_null_for_a_number_that_is_not_finite(tmp_path):
    facts = {"x": float("nan"), "rows": [1.5, float("-inf")]}
    with files.atomic_folder(tmp_path / "a") as folder:
        files.write_manifest(folder, "method", settings={}, inputs={}, results=facts)
    text = (tmp_path / "a" / files.MANIFEST).read_text()
    known = json.loads(text, parse_constant=pytest.fail)["results"]
    assert files.read_manifest(tmp_path / "a")["results"] == known == {"x": None, "rows": [1.5, None]}


def test_manifests_keep_what_they_are_given(tmp_path):
    row = {"step": "read", "rows": 3, "note": "ö"}
    files.write_manifest(tmp_path, "fit", settings={"seed": 1}, inputs={"a": "b"}, flow=[row], warnings=["w"])
    read = files.read_manifest(tmp_path, "fit")
    kept = {"settings": {"seed": 1}, "inputs": {"a": "b"}, "flow": [row], "warnings": ["w"]}
    assert {name: read[name] for name in kept} == kept
    with pytest.raises(
        InputError, match="holds a 'fit', but a 'panel' is needed here; `fedmiss panel` makes one"
    ):
        files.read_manifest(tmp_path, "panel")
    with pytest.raises(InputError, match="but an 'imputed' is needed here"):
        files.read_manifest(tmp_path, "imputed")
    (tmp_path / "counts.csv").write_text("site,year,count\n")
    with pytest.raises(
        InputError, match=r"no manifest.json, but a 'records' is needed here; `fedmiss ingest` makes one"
    ):
        files.read_manifest(tmp_path / "counts.csv", "records")
    with pytest.raises(
        InputError, match=r"counts.csv is not a readable parquet file: it is a file of another kind"
    ):
        tables.read_table(tmp_path / "counts.csv", "months")
    with pytest.raises(InputError, match=r"there is no folder .*; `fedmiss impute` makes one"):
        files.read_manifest(tmp_path / "gone", "imputed")


# --- tables


def example(schema: tables.Schema) -> pa.Table:
    """Two rows of a schema, blanks where they are allowed."""
    arrow = schema.arrow()
    one = {"string": "a", "bool": True, "date32[day]": date(2020, 1, 2)}
    columns = [
        pa.array([None if f.nullable else one.get(str(f.type), 1)] * 2).cast(f.type)
        if not str(f.type).startswith("list")
        else pa.array([["a"], ["b"]], type=f.type)
        for f in arrow
    ]
    return pa.Table.from_arrays(columns, schema=arrow)


@pytest.mark.parametrize("name", tables.schema_names())
def test_every_schema_round_trips_and_is_explained(name, tmp_path):
    schema = tables.load_schema(name)
    assert schema.name == name
    assert schema.description.strip().endswith(".")
    names = [c["name"] for c in schema.columns]
    assert len(set(names)) == len(names) > 0
    for c in schema.columns:
        assert set(c) == {"name", "type", "unit", "nullable", "description"}, c
        assert c["description"]
    table = example(schema)
    tables.write_table(table, tmp_path / "t.parquet", name)
    back = tables.read_table(tmp_path / "t.parquet", name)
    assert back.equals(table)
    assert (
        pq.read_schema(tmp_path / "t.parquet").metadata[b"fedmiss_schema"].decode()
        == f"{name}.v{schema.version}"
    )
    rows = tables.table_writer(tmp_path / "chunks.parquet", name, [table, table])
    assert rows == tables.read_table(tmp_path / "chunks.parquet", name).num_rows == 4


def test_tables_that_do_not_fit_are_told_by_column(tmp_path):
    good = {"month_index": [0], "month": ["2020-01"], "year": [2020], "month_of_year": [1]}
    for change, word in (
        ({"year": ["two"]}, "'year'"),
        ({"year": [None]}, "'year' has 1 blanks"),
        ({"extra": [1]}, "unknown column 'extra'"),
    ):
        with pytest.raises(SchemaError, match=word):
            tables.write_table({**good, **change}, tmp_path / "m.parquet", "months")
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(SchemaError, match="lacks the column 'year'"):
        tables.write_table({k: v for k, v in good.items() if k != "year"}, tmp_path / "m.parquet", "months")
    with pytest.raises(SchemaError, match="no schema 'monhts'"):
        tables.load_schema("monhts")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "other.parquet")
    with pytest.raises(SchemaError, match=r"other\.parquet lacks the column"):
        tables.read_table(tmp_path / "other.parquet", "months")


# --- errors and shipped files


def test_the_tree_of_errors_is_the_one_that_is_drawn():
    drawn = errors.__doc__ or ""
    found = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)]
    assert len(found) == 8
    for cls in found:
        assert issubclass(cls, FedmissError)
        assert cls.exit_code == (2 if cls is ConfigError else 1)
        assert cls.__name__ in drawn
    assert InputError("m", path="p").fields == {"path": "p"}


def test_shipped_files_are_found_and_readable():
    for path in resource("pipelines").glob("*.toml"):
        from fedmiss.pipeline.recipe import read_recipe

        assert tomllib.loads(path.read_text(encoding="utf-8"))
        assert read_recipe(path).files, "a shipped recipe must pass its own checks"
    for path in resource("data_schema").glob("*.json"):
        raw = json.loads(path.read_text(encoding="utf-8"))
        assert path.name == f"{raw['name']}.v{raw['version']}.json"
    with pytest.raises(FileNotFoundError, match="reinstall"):
        resource("nowhere")


HEAVY = ("matplotlib", "numba", "polars", "pandas", "scipy", "statsmodels", "pyarrow", "numpy", "sklearn")


LIGHT = (  # one after the other in one process: what is loaded by then is all that each of them may load
    ("import fedmiss", HEAVY),
    ("import fedmiss.etl, fedmiss.report, fedmiss.simulate, fedmiss.pipeline, fedmiss.models", HEAVY),
    ("import fedmiss.pipeline.imputing",
     ("numba", "scipy.stats", "scipy.optimize", "polars", "matplotlib", "statsmodels")),
    ("import fedmiss.network.member", ("scipy.stats", "matplotlib", "statsmodels")),
)  # fmt: skip
HELP = "import sys; sys.argv = ['fedmiss', '--help']; from fedmiss.cli.app import main\ntry: main()\nexcept SystemExit: pass"


@pytest.mark.parametrize("steps", [LIGHT, ((HELP, HEAVY),)], ids=["import", "help"])
def test_importing_is_light(steps):
    check = "\nimport sys; print('HEAVY', sorted(m for m in {!r} if m in sys.modules))"
    code = "\n".join(step + check.format(heavy) for step, heavy in steps)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("HEAVY")]
    assert said == ["HEAVY []"] * len(steps)


def test_loops_are_compiled_where_no_folder_may_be_written_to(monkeypatch):
    """A package and a home that are read-only (a container) ended in a traceback of numba when the first fit began."""
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(loops, "NOT_KEPT", [])  # else later commands of this process say so
    assert loops.compiled(lambda x: x + 1)(1) == 2
