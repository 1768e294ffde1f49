"""Public functions and classes refuse an argument of a wrong kind in one sentence, and take numpy's numbers as Python's."""

import dataclasses
import inspect
import math
import typing

import numpy as np
import pytest

import fedmiss
from fedmiss import community, compressors, core, etl, federation, models, pipeline, simulate
from fedmiss.errors import ConfigError
from fedmiss.simulate.panels import Panel

# What the package itself makes, settings (above), protocols, and what takes tables or is a step of scikit-learn.
OWN = (
    "Aggregate Constants CountFit Downlink Dropped Group GroupPanel Model Compressor Engine Oracle Participation Replies "
    "Result LocalFederation Roster RoundInfo ServerState SpeciesFit TrimFit Trims WorkerContext"
).split()
PUBLIC = {
    name: getattr(package, name)
    for package in (core, compressors, models, simulate, federation, community, pipeline, fedmiss)
    for name in package.__all__
    if name not in OWN and not name.endswith("Error") and name != "SiteMonthImputer"
} | {
    "GroupPanel.of": fedmiss.GroupPanel.of,
    "Roster.of": core.Roster.of,
    "Dithering.of": compressors.Dithering.of,
}
PLAIN = {"int", "float", "int | None", "float | None", "bool", "tuple[int, ...]", "tuple[float, ...]"}
ARGUMENTS = [
    (name, key, parameter.annotation)
    for name, what in PUBLIC.items()
    if callable(what) and not (isinstance(what, type) and hasattr(what, "take"))
    for key, parameter in inspect.signature(what).parameters.items()
    if parameter.annotation in PLAIN
]


@pytest.mark.parametrize(("name", "key", "kind"), ARGUMENTS)
def test_a_wrong_kind_of_argument_is_refused_with_a_sentence(name, key, kind):
    """Also where nothing else is given: kinds come first, and never reach numpy or a compiled loop."""
    wrong = ["x", [None], object(), math.nan, {}, *([1.5, True] if kind.startswith("int") else [])]
    for value in wrong:
        with pytest.raises(
            ConfigError, match=rf"^{name}: {key}(\[1\])? is .* \(must be (?s:.)*\)\.$"
        ) as told:
            PUBLIC[name](**{key: value})
        assert "\n" not in str(told.value)


def test_kinds_that_fit_are_taken_as_those_of_python():
    made = compressors.Dithering(np.int32(2), np.float32(1), np.int64(3))
    assert [type(v) for v in dataclasses.astuple(made)] == [int, float, int]
    assert compressors.Dithering(norm=math.inf).norm == core.Stop(seconds=math.inf).seconds == math.inf
    assert compressors.Blocks([2, 3]).lengths == (2, 3)
    assert core.Roster.of(np.array([3, 4])).n == core.Roster.of(range(1, 3)).n == 2
    assert core.Minibatch(2, np.True_).replace is True
    with pytest.raises(TypeError, match=r"Dithering.*unexpected keyword argument 'level'"):
        compressors.Dithering(level=2)
    with pytest.raises(ConfigError, match=r"Blocks: inner is <class .* \(must be a Compressor\)"):
        compressors.Blocks([2], compressors.Dithering)  # a class for its object
    with pytest.raises(ConfigError, match=r"GroupPanel.of: groups.* is 1.5"):
        fedmiss.GroupPanel.of(2, 2, [1.5])


@pytest.mark.parametrize("call", [
    lambda: fedmiss.CountSettings(max_sweeps=0).check(), lambda: fedmiss.CountSettings(rank=10**20).check(),
    lambda: compressors.Dithering.of(-1), lambda: compressors.Dithering.of(4, 0.0), lambda: core.Bernoulli("x").prob(2),
    lambda: fedmiss.simulate_panel(sites=10**20), lambda: fedmiss.simulate_panel(visits=10**20),
])  # fmt: skip
def test_a_number_out_of_its_range_is_refused_with_a_sentence(call):
    with pytest.raises(ConfigError, match=r"must be"):
        call()


@pytest.mark.parametrize("column", ["site", "month", "count", "weight", "exposure"])
def test_one_number_is_no_column_of_a_group(column):
    given = {"site": [0], "month": [0], "count": [1.0]} | {column: -0.5}
    with pytest.raises(fedmiss.InputError, match=rf"'a': a {column} is no number; give a column"):
        fedmiss.Group.of("a", **given)


def test_a_seed_that_no_message_can_hold_is_named():
    panel = fedmiss.GroupPanel.of(
        2, 2, [fedmiss.Group.of("a", [0, 0, 1, 1], [0, 1, 0, 1], [2.0, 4.0, 6.0, 12.0])]
    )
    with pytest.raises(ConfigError, match=r"100000000000000000000 does not travel \(must be below 2\^63"):
        federation.bootstrap(
            panel, fedmiss.fit_counts(panel, fedmiss.CountSettings(rank=0)), draws=2, seed=10**20
        )


def test_a_type_checker_lets_columns_of_a_simulated_panel_make_a_group():
    """The README's own lines were errors of mypy: a panel has its indices in 32 bits."""
    hints, panel = typing.get_type_hints(fedmiss.Group.of), typing.get_type_hints(Panel)
    for name, column in (("site", "site_index"), ("month", "month_index"), ("observer", "observer")):
        assert panel[column] in typing.get_args(hints[name])


@pytest.mark.parametrize("call", [
    lambda: pipeline.run_recipe("birds.toml"), lambda: pipeline.read_recipe(None),
    lambda: pipeline.run_trims("t.csv", "out", {}),
    lambda: community.build_community("records", "out", {"rank": 1}), lambda: etl.read_counts("t.csv", {"species": "x"}),
])  # fmt: skip
def test_a_dictionary_is_no_settings_and_a_name_no_recipe(call):
    """They were tracebacks: 'str' object has no attribute 'ingest'."""
    with pytest.raises(ConfigError, match=r"^\w+: \w+ is .* \(must be .*\)\.$"):
        call()


def test_what_holds_tables_can_be_compared_and_counted(tmp_path):
    """A panel, a TRIM fit and a table raised "the truth value of a DataFrame is ambiguous"."""
    simulate.write_panel(fedmiss.simulate_panel(4, 12, 0.9, seed=1), tmp_path / "panel")
    (tmp_path / "t.csv").write_text("site;year;count\na;2001;1\na;2002;2\nb;2001;3\nb;2002;3\n")
    for make in (
        lambda: fedmiss.open_panel(tmp_path / "panel"),
        lambda: fedmiss.fit_trim([1, 1, 2, 2], [2001, 2002] * 2, [1, 2, 3, 3]),
        lambda: etl.read_counts(tmp_path / "t.csv"),
    ):
        one, other = make(), make()
        assert one != other
        assert one in {one, other}
