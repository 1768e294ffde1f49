"""The examples of CONTRIBUTING run as they stand; compressors are found by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedmiss.compressors import Dithering
from fedmiss.compressors.registry import COMPRESSORS, compressor
from fedmiss.compressors.registry import register as add_compressor
from fedmiss.core.testing import check_compressor
from fedmiss.errors import ConfigError

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
        "block": {"block": 3},
        "blocks": {"lengths": (2, 6, 1)},
        "randk": {"k": 3},
        "topk": {"k": 3},
    }.get(name, {})
    check_compressor(compressor(name, **settings), 9, draws=400)


def test_names_settings_and_clashes_are_explained():
    assert compressor("dithering", levels=4) == Dithering(4)
    with pytest.raises(ConfigError, match=r"no compressor 'dither'; known are .*dithering"):
        compressor("dither")
    with pytest.raises(ConfigError, match="levle"):
        compressor("dithering", levle=4)
    with pytest.raises(ConfigError, match="already a compressor"):
        add_compressor("identity", Dithering)
