"""A wrong value of any setting is one sentence: in Python, in a recipe and on the command line; never a traceback."""

# ruff: noqa: PT017, PT012, E501
import json
import math
from decimal import Decimal

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.network.study import Study, read_study, read_study_toml
from fedmiss.settings import definitions, from_table
from tests.test_settings import CLASSES

BAD = (
    math.nan, math.inf, -math.inf, -1, -0.5, 0, True, False, "1", "", "x", "1e400", "\0", None, [], [[]], [None], {}, {"a": {}},
    [1, "x"], (1, 2, 3, 4), b"1", 10**400, object(), 1j, Decimal("NaN"), np.nan, np.array([1.0]), set(), print,
)  # fmt: skip
EVERY = [(cls, name) for _, cls in CLASSES for name in definitions(cls)]


def one_sentence(call) -> object:
    """Return what a call gives; None where it refuses, which it does in one sentence."""
    try:
        return call()
    except ConfigError as error:
        assert "\n" not in str(error).strip()
        assert len(str(error)) < 1000
        return None


@pytest.mark.parametrize(("cls", "name"), EVERY)
def test_a_wrong_value_is_refused_with_a_sentence_or_taken_as_a_finite_number(cls, name):
    """A nan is within no limits, and nothing is endless: where a number is taken, it is a number."""
    flag = definitions(cls)[name][1].flag(name)[2:]
    lists = [[number] * n for number in (math.nan, math.inf, -math.inf) for n in (1, 2, 4)]
    for value in (*BAD, *lists):
        made = one_sentence(lambda value=value: getattr(cls(**{name: value}), name))
        flat = made if isinstance(made, tuple) else (made,)
        assert not any(isinstance(v, float) and not math.isfinite(v) for v in flat), (name, value)
        if isinstance(value, str | int | float | list | dict | bool):  # values of TOML
            one_sentence(lambda value=value: from_table(cls, {flag: value}, "r.toml: here"))


@pytest.mark.parametrize(("cls", "name"), EVERY)
def test_an_unknown_key_is_refused(cls, name):
    with pytest.raises(ConfigError, match="unknown"):
        from_table(cls, {definitions(cls)[name][1].flag(name)[2:] + "zz": 1}, "r.toml: here")
    with pytest.raises((ConfigError, TypeError)):
        cls(**{name + "zz": 1})


STUDY = {"name": "geese", "species": "Anser anser", "organisations": ("a", "b", "c")}


@pytest.mark.parametrize("name", Study.__dataclass_fields__)
def test_a_wrong_value_of_a_study_is_one_sentence(name, tmp_path):
    of_json = [value for value in BAD if isinstance(value, str | int | float | list | dict)]
    for value in (*of_json, ["x"], [1e999], {"rank": math.nan}):
        (tmp_path / "study.json").write_text(json.dumps(STUDY | {name: value}))
        one_sentence(lambda: read_study(tmp_path))
    with pytest.raises(ConfigError, match="Did you mean"):
        (tmp_path / "study.toml").write_text("organisation = ['a']\n")
        read_study_toml(tmp_path / "study.toml")
