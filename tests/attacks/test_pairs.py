"""Two processes that make the same thing at the same time: one does, the other says so, and the result is whole."""

import time

import numpy as np
import pytest

from tests.attacks.command import FIT, STEPS, begin, clear, finished, leftovers, number

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cleared")]
PAIRS = number(34, 1)  # of each of six kinds

REFUSED = ("is being made by another process", "exists already")
OTHER = ("fit", "panel", *FIT, "--seed", "9", "--out", "out")


def whole(step, files, keep):
    process = begin(step.words, files)
    _, said = process.communicate()
    assert process.returncode == 0, said
    found = finished(step, files)
    clear(files, keep)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["panel", "ingest", "fit", "other fit", "algorithm 7", "run"])
def test_pairs(kind, files):
    keep = {p.name for p in files.iterdir()}
    step = next(s for s in STEPS if s.name == kind.removeprefix("other "))
    words = [step.words, OTHER if kind == "other fit" else step.words]
    wanted = [whole(type(step)(kind, w, step.outputs), files, keep) for w in dict.fromkeys(words)]
    rng = np.random.default_rng([5, len(kind)])
    for _ in range(PAIRS):
        first = begin(words[0], files)
        time.sleep(rng.uniform(0.0, 2.5))
        second = begin(words[1], files)
        said = [p.communicate()[1] for p in (first, second)]
        codes = [first.returncode, second.returncode]
        assert "Traceback" not in "".join(said), said
        assert 0 in codes, said
        for code, text in zip(codes, said, strict=True):
            assert code == 0 or any(word in text for word in REFUSED), text
        if kind != "run":  # a second run of a recipe finds everything unchanged
            assert codes != [0, 0], "two commands said that they made one folder"
        found = finished(step, files)
        assert found in wanted
        if kind == "other fit":
            assert found == wanted[codes.index(0)], "the folder is of the one that said so"
        assert leftovers(files) == []
        clear(files, keep)


@pytest.mark.nightly
def test_two_imports_share_a_cache(files):
    """Different outputs, one cache: both end well, with the same records."""
    keep = {p.name for p in files.iterdir()}
    for _ in range(number(10, 1)):
        ingest = STEPS[1].words[:-1]
        both = [begin((*ingest, name), files) for name in ("out", "out2")]
        said = [p.communicate()[1] for p in both]
        assert [p.returncode for p in both] == [0, 0], said
        one, two = (finished(type(STEPS[1])("ingest", (), (name,)), files) for name in ("out", "out2"))
        assert [*one.values()] == [*two.values()]
        clear(files, keep)
