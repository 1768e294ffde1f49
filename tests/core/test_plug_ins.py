"""The examples of CONTRIBUTING run as they stand; compressors are found by name."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.compressors.registry import COMPRESSORS, compressor
from fedmiss.compressors.registry import register as add_compressor
from fedmiss.core import FedEM, Roster, run
from fedmiss.core.testing import check_compressor, check_model
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError

from .toys import Linear, linear_data

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)


@pytest.mark.parametrize("code", EXAMPLES, ids=["model", "compressor"])
def test_the_examples_run_and_are_short(code, monkeypatch):
    monkeypatch.setattr("fedmiss.compressors.registry.COMPRESSORS", dict(COMPRESSORS))
    exec(code, {})
    body = re.search(r"class .*?(?=\n\n\n)", code, flags=re.S).group()
    assert len([line for line in body.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_every_named_compressor_obeys_its_laws(name):
    settings = {
        "block": {"block": 3}, "blocks": {"lengths": (2, 6, 1)}, "randk": {"k": 3}, "topk": {"k": 3},
    }.get(name, {})  # fmt: skip
    check_compressor(compressor(name, **settings), 9, draws=400)


def test_names_settings_and_clashes_are_explained():
    assert compressor("dithering", levels=4) == Dithering(4)
    with pytest.raises(ConfigError, match=r"no compressor 'dither'; known are .*dithering"):
        compressor("dither")
    with pytest.raises(ConfigError, match="levle"):
        compressor("dithering", levle=4)
    with pytest.raises(ConfigError, match="already a compressor"):
        add_compressor("identity", Dithering)


class InPlace(Linear):
    """An M-step that works in the array that it is given."""

    def T(self, S):
        S *= 0.5
        return S


class Wandering(Linear):
    """An M-step that draws."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def T(self, S):
        return 0.5 * S * (1 + 0.01 * self.rng.random())


class OnACopy(Linear):
    def T(self, S):
        return 0.5 * S


def test_an_m_step_in_place_is_found_and_moves_no_statistic_of_a_run():
    data, start = linear_data(), np.ones(3)
    for model, words in ((InPlace(), "T changes the statistic"), (Wandering(), "T twice gives different")):
        with pytest.raises(AssertionError, match=words):
            check_model(model, data[0], start)
    check_model(OnACopy(), data[0], start)
    runs = [
        run(FedEM(model, Identity(), Roster.of([8] * 5), gamma=0.5), LocalEngine(data), start, stop=20)
        for model in (InPlace(), OnACopy())
    ]
    np.testing.assert_array_equal(runs[0].server.S_hat, runs[1].server.S_hat)


class Fast(Linear):
    """A fast path, and coordinates of its own, with a mistake."""

    def __init__(self, mistake):
        super().__init__()
        self.mistake = mistake

    def s_bar_many(self, theta, data, slots, index):
        out = []
        for i, c in enumerate(slots):
            rows = np.asarray(
                data[i if self.mistake == "place for slot" else slots[0] if self.mistake == "first" else c]
            )
            if index is not None:
                rows = rows[index[i]]
            elif self.mistake == "a row left out":
                rows = rows[:-1]
            out.append(self.s_bar(theta, rows))
        return np.array(out)

    def to_wire(self, theta, D):
        return 2.0 * D

    def from_wire(self, theta, Q):
        return Q / (3.0 if self.mistake == "wire" else 2.0)


@pytest.mark.parametrize("mistake", ["", "place for slot", "first", "a row left out", "wire"])
def test_a_fast_path_that_is_another_model_is_found(mistake):
    rows = linear_data()[0]
    if not mistake:
        check_model(Fast(""), rows, np.ones(3))
        return
    with pytest.raises(AssertionError, match="from_wire" if mistake == "wire" else "bits of s_bar"):
        check_model(Fast(mistake), rows, np.ones(3))
