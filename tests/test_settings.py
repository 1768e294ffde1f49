"""A setting is defined once: what its definition says holds on the command line, in Python, in recipes and in the docs."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal, get_origin

import pytest
import typer

from fedmiss.cli.options import options_of
from fedmiss.errors import ConfigError
from fedmiss.etl.filters import Filters
from fedmiss.etl.settings import IngestSettings, PanelSettings
from fedmiss.pipeline.settings import METHODS, FitSettings
from fedmiss.report.settings import ReportSettings
from fedmiss.settings import Setting, convert, definitions, from_table
from tests.cli.terminal import fedmiss

CLASSES = [
    ("ingest", Filters), ("ingest", IngestSettings), ("panel", PanelSettings),
    *(("fit", cls) for cls in METHODS), ("report", ReportSettings),
]  # fmt: skip
LIMITED = [
    (cls, name, setting)
    for _, cls in CLASSES
    for name, (_, setting) in definitions(cls).items()
    if setting.limits()
]


def outside(setting: Setting) -> list[object]:
    """Values that the definition does not allow, the nearest ones first."""
    out: list[object] = [setting.low - 1] if setting.low is not None else []
    out += [setting.above] if setting.above is not None else []
    out += [setting.high + 1] if setting.high is not None else []
    return out + [word + "x" for word in setting.among[-1:]]


@pytest.mark.parametrize(("cls", "name", "setting"), LIMITED)
def test_what_is_outside_the_limits_is_refused_with_the_option_the_value_and_the_limit(cls, name, setting):
    hint = definitions(cls)[name][0]

    def put(value: object) -> object:
        return [value] if get_origin(hint) is tuple else value

    for value in outside(setting):
        words = [setting.limits(), f"{value:g}" if isinstance(value, float) else repr(value)]
        with pytest.raises(ConfigError) as told:
            cls(**{name: put(value)})
        assert all(w in str(told.value) for w in [*words, f"{setting.flag(name)} is"]), told.value
        with pytest.raises(ConfigError) as told:
            from_table(cls, {setting.flag(name)[2:]: put(value)}, "r.toml: here")
        assert all(w in str(told.value) for w in [*words, f"r.toml: here.{setting.flag(name)[2:]} is"])
    if cls in METHODS and name == "method":
        return
    for value in (*setting.among, *(v for v in (setting.low, setting.high) if v is not None)):
        needs = {"site_table": "sites.csv"} if (name, value) == ("sites", "frame") else {}
        assert getattr(cls(**{name: put(value)} | needs), name) == convert(put(value), hint, "")


@pytest.mark.parametrize(("command", "cls"), CLASSES)
def test_every_field_is_an_option_with_its_help_and_default_and_a_line_of_the_docstring(command, cls):
    from fedmiss.cli.commands import register

    app = typer.Typer()
    register(app)
    made = {p.name: p for p in typer.main.get_command(app).commands[command].params}  # type: ignore[attr-defined]
    for field in (f for f in fields(cls) if f.name in definitions(cls)):
        setting, option = definitions(cls)[field.name][1], made[field.name]
        assert option.help == setting.help
        # the method's own name is the default of its class, not of the command
        assert field.name == "method" or option.default in (field.default, None)
        assert setting.flag(field.name) in option.opts
        assert bool(option.secondary_opts) == isinstance(field.default, bool)
        assert f"\n{field.name} : {setting.help}\n" in (cls.__doc__ or "") + "\n"
        assert cls not in METHODS or f"\n{field.name} : {setting.help}\n" in f"{FitSettings.__doc__}\n"


def test_a_flag_has_no_value_and_a_word_is_read_as_the_number_it_is(tmp_path):
    made = []

    @options_of(FitSettings)
    def show(out: Annotated[Path, typer.Option("--out")] = Path("x"), *, settings: FitSettings) -> None:
        made.append((out, settings))

    app = typer.Typer()
    app.command()(show)
    command = typer.main.get_command(app)
    command(["--observers", "--no-average", "--folds", "4", "--out", "y"], standalone_mode=False)
    command(["--rank", "2"], standalone_mode=False)
    assert made == [
        (Path("y"), FitSettings(observers=True, average=False, folds=4)),
        (Path("x"), FitSettings(rank=2)),
    ]
    assert fedmiss("fit", tmp_path, "--observers", "yes").code == 2


@pytest.mark.parametrize(
    ("value", "hint", "found"),
    [
        (2, float, 2.0), (2010, str | None, "2010"), (None, str | None, None), ("3", int | Literal["auto"], 3),
        ("a", tuple[str, ...], ("a",)), ([1, 2], tuple[float, float], (1.0, 2.0)), (Path("a"), str, "a"),
    ],
)  # fmt: skip
def test_values_become_what_the_field_is(value, hint, found):
    made = convert(value, hint, "x")
    assert made == found
    assert type(made) is type(found)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("3", int), ("3", int | None), (True, int), (1, bool), ("yes", bool), (2.5, int),
        ([1], tuple[int, int]),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(value, hint):
    with pytest.raises(ConfigError, match=r"x is .* \(must be "):
        convert(value, hint, "x")


def test_each_value_of_a_list_has_the_limits():
    assert Filters(years=[2019, 2020]).years == (2019, 2020)
    with pytest.raises(ConfigError, match=r"--year is 202 \(must be between 1800 and 2199\)"):
        Filters(years=[2019, 202])


def test_a_near_name_is_proposed():
    with pytest.raises(ConfigError, match="Did you mean 'negbin'"):
        FitSettings(model="nebgin")
    with pytest.raises(ConfigError, match=r"'bootstarp' is unknown\. Did you mean 'bootstrap'"):
        from_table(FitSettings, {"bootstarp": 1}, "r.toml: fit")
