"""One definition of a setting: the command line, the checks, the recipes and the reference are made of it.

A settings class is a frozen dataclass that inherits :class:`Settings`. Each field is ``name: type = setting(default, "help",
limits)``. ``fedmiss.cli.options`` makes the options of a command of the fields, :func:`from_table` reads a table of a
recipe, and :class:`Settings` checks every value when an object is made.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from fedmiss.errors import ConfigError

T = TypeVar("T")

_MOST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a field beside its type and its default.

    Attributes
    ----------
    help : the help of the option and the text of the reference
    among : the values that a text may have
    low, high : limits of a number, both included;  above : a limit that is not included
    flags : names of the option, where they are not made of the field's name
    shown : what the help shows as the default, where it is not the default itself;  panel : heading of the help
    read : makes the field's value of what is typed, which is a text or of the type ``typed``
    kinds : kinds of input for which it does something, in words; empty for all
    """

    help: str
    among: tuple[str, ...] = ()
    low: float | None = None
    above: float | None = None
    high: float | None = None
    flags: tuple[str, ...] = ()
    shown: str | bool = True
    panel: str | None = None
    typed: type | None = None
    read: Callable[..., object] | None = None
    kinds: tuple[str, ...] = ()

    def flag(self, name: str) -> str:
        """Return the name of the option of the field ``name``."""
        return self.flags[0] if self.flags else "--" + name.replace("_", "-")

    def allows(self, value: object) -> bool:
        """Whether a value of the right type is within the limits."""
        if isinstance(value, str):
            return not self.among or value in self.among
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
        )

    def limits(self) -> str:
        """Say the limits in words: ``quasi or negbin``, ``between 0 and 1``, ``at least 2``."""
        if self.among:
            return _either(filter(None, self.among))
        if self.low is not None and self.high is not None:
            return f"between {self.low:g} and {self.high:g}"
        least = "" if self.above is None else f"above {self.above:g}"
        if self.low is not None:
            least = f"at least {self.low:g}" if self.low else "0 or more"
        return " and ".join(filter(None, (least, "" if self.high is None else f"at most {self.high:g}")))


def setting(default: T, help: str | Setting, **known: Any) -> T:
    """Return a field of a settings class: its default, and its :class:`Setting` or what makes one."""
    known_as = help if isinstance(help, Setting) else Setting(help, **known)
    return dataclasses.field(default=default, metadata={Setting: known_as})


class Settings:
    """Base of the settings classes: checks every field when an object is made, and lists the fields in the docstring."""

    __slots__ = ()
    variants: ClassVar[tuple[type, ...]] = ()

    def __init_subclass__(cls) -> None:
        text = inspect.cleandoc(cls.__doc__ or "")
        if "Attributes\n---" in text:  # a dataclass with slots is made twice
            return
        if listed := _definitions(cls):
            cls.__doc__ = _with_fields(text, listed)

    @classmethod
    def take(cls, variants: Iterable[type]) -> None:
        """Let a class without fields of its own stand for several: their settings are its settings."""
        cls.variants = tuple(variants)
        cls.__doc__ = _with_fields(inspect.cleandoc(cls.__doc__ or ""), definitions(cls))

    def __post_init__(self) -> None:
        for name, (hint, setting) in definitions(type(self)).items():
            object.__setattr__(self, name, checked(getattr(self, name), hint, setting, setting.flag(name)))


def _with_fields(text: str, fields: Mapping[str, tuple[object, Setting]]) -> str:
    head, mark, example = text.partition("\n\nExamples\n")
    listed = "\n".join(f"{name} : {setting.help}" for name, (_, setting) in fields.items())
    return f"{head}\n\nAttributes\n----------\n{listed}{mark}{example}"


def _definitions(cls: type) -> dict[str, tuple[object, Setting]]:
    """Type and definition of every field of a settings class, by name."""
    if variants := vars(cls).get("variants", ()):
        return {name: value for kind in variants for name, value in _definitions(kind).items()}
    fields, hints = getattr(cls, "__dataclass_fields__", vars(cls)), get_type_hints(cls)
    return {
        name: (hints[name], field.metadata[Setting])
        for name, field in fields.items()
        if isinstance(field, dataclasses.Field) and Setting in field.metadata
    }


definitions: Callable[[type], dict[str, tuple[object, Setting]]] = functools.cache(_definitions)


def defaults(cls: type) -> dict[str, Any]:
    """Return the default of every field of a settings class, by name."""
    kinds = vars(cls).get("variants", ()) or (cls,)
    return {field.name: field.default for kind in reversed(kinds) for field in dataclasses.fields(kind)}


def checked(value: object, hint: object, setting: Setting, where: str) -> object:
    """Return the value as the field's type; raise ConfigError for a wrong type or a value outside the limits."""
    given = value
    if setting.read and isinstance(value, setting.typed or str) and not isinstance(value, bool):
        try:
            given = setting.read(value)
        except ConfigError as error:  # its message names the option; for a recipe the place is added
            raise (error if where.startswith("--") else ConfigError(f"{where}: {error}")) from None
    found = convert(given, hint, where)
    values = found if isinstance(found, tuple) else (found,)
    bad = next((value for value in values if not setting.allows(value)), None)
    if bad is None:
        return found
    words = [
        str(word) for option in _options(hint) if get_origin(option) is Literal for word in get_args(option)
    ]
    near = difflib.get_close_matches(str(bad), setting.among, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    told = bad if isinstance(found, tuple) else value
    shown = f"{told:g}" if isinstance(told, float) else repr(told)
    raise ConfigError(f"{where} is {shown} (must be {', or '.join([*words, setting.limits()])}).{meant}")


@overload
def convert(value: object, hint: type[T], where: str) -> T: ...
@overload
def convert(value: object, hint: object, where: str) -> object: ...
def convert(value: object, hint: object, where: str) -> object:
    """Fit a value to a type: lists become tuples, one text a list of one, whole numbers floats; else ConfigError.

    A text stands for a number only where the type also allows a word, as ``int | Literal["auto"]``.
    """
    options = _options(hint)
    worded = any(get_origin(option) is Literal for option in options)
    for option in options:
        kind, parts = get_origin(option) or option, get_args(option)
        if kind is Literal:
            if value in parts:
                return value
        elif kind is tuple and isinstance(value, list | tuple | str):
            items = [value] if isinstance(value, str) else value
            hints = [parts[0]] * len(items) if parts[-1] is Ellipsis else list(parts)
            if len(items) == len(hints):
                pairs = enumerate(zip(items, hints, strict=True), start=1)
                return tuple(convert(item, words, f"{where}[{i}]") for i, (item, words) in pairs)
        elif kind is dict and isinstance(value, dict):
            return {key: convert(item, parts[1], f"{where}.{key}") for key, item in value.items()}
        elif isinstance(value, bool):
            if kind is bool:
                return value
        elif kind is str and isinstance(value, numbers.Real):
            return str(value)
        elif kind is float and isinstance(value, numbers.Real) and -_MOST <= value <= _MOST:  # type: ignore[operator]  # never nan
            return float(value)
        elif kind is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        elif kind is int and isinstance(value, numbers.Integral):
            return int(value)
        elif kind is int and isinstance(value, str) and worded and value.removeprefix("-").isdecimal():
            return int(value)
        elif kind is not float and isinstance(kind, type) and not (parts or _protocol(kind)):
            if isinstance(value, kind):
                return value
    told = " ".join(repr(value).split())  # of a table or an array only the beginning
    told = told if len(told) <= 200 else f"{told[:200]} ..."
    raise ConfigError(f"{where} is {told} (must be {' or '.join(map(_in_words, options))}).")


def kinds_checked(what: T) -> T:
    """Make a public function or class refuse arguments of a wrong kind, in one sentence and before it does anything.

    Its annotations say the kinds: numbers (never nan), truth values, texts, lists of these, classes, functions. A number
    of numpy becomes one of Python, for which no loop is compiled anew. Where an array may stand the function itself checks;
    a default is right as it is.

    Raises
    ------
    ConfigError
        From the function: an argument is not of the kind of its annotation.
    """
    call: Callable[..., Any] = vars(what)["__init__"] if isinstance(what, type) else what  # type: ignore[assignment]
    takes, name = inspect.signature(call), what.__qualname__  # type: ignore[attr-defined]

    @functools.cache  # when first called: an annotation may name what stands below in its module
    def hints() -> dict[str, object]:
        found = {}
        for key, parameter in takes.parameters.items():
            try:
                hint = eval(str(parameter.annotation), call.__globals__)
            except (NameError, SyntaxError):  # a name for type checkers alone, or no annotation
                continue
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and _judged(hint):
                found[key] = hint
        return found

    @functools.wraps(call)
    def checked_call(*args: Any, **given: Any) -> Any:
        try:
            bound = takes.bind_partial(*args, **given)
        except TypeError:
            return call(*args, **given)  # whose message names the function
        for key, hint in hints().items():
            if key in bound.arguments and bound.arguments[key] is not takes.parameters[key].default:
                bound.arguments[key] = _of_kind(bound.arguments[key], hint, f"{name}: {key}")
        return call(*bound.args, **bound.kwargs)

    if isinstance(what, type):
        what.__init__ = checked_call  # type: ignore[misc]
        return what
    return checked_call  # type: ignore[return-value]


def _judged(hint: object) -> bool:
    """Whether :func:`_of_kind` can tell if a value is of a type: not of arrays, and not of classes of others."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (types.UnionType, Union, tuple, Sequence):
        return all(part is Ellipsis or _judged(part) for part in parts)
    own = isinstance(kind, type) and kind.__module__.startswith(("fedmiss.", "pathlib"))
    return own or kind in (bool, float, int, str, type(None), Literal, Callable, Mapping)


def _of_kind(value: Any, hint: object, where: str) -> object:
    if getattr(value, "shape", None) == ():  # a number of numpy
        value = value.item()
    for option in _options(hint):
        kind, parts = get_origin(option) or option, get_args(option)
        if kind is Sequence and isinstance(value, list | tuple):
            return [_of_kind(item, parts[0], f"{where}[{i}]") for i, item in enumerate(value, start=1)]
        fits = {
            float: isinstance(value, float) and math.isinf(value),  # a limit that is none, a norm
            Callable: callable(value),
            Mapping: hasattr(value, "items"),
            Sequence: hasattr(value, "__iter__") and not isinstance(value, str | bytes | dict),
        }.get(kind)
        if _protocol(kind):  # isinstance() asks for each member, and takes a class for its object
            fits = not isinstance(value, _NO_PLUG_IN)
        elif fits is None and isinstance(kind, type) and not issubclass(kind, _CONVERTED):
            fits = isinstance(value, kind)
        if fits:
            return value
    return convert(value, hint, where)


_CONVERTED = (int, str, tuple)
_NO_PLUG_IN = (type, str, bytes, numbers.Number, list, tuple, dict, type(None))


def _protocol(hint: object) -> bool:
    return getattr(hint, "_is_protocol", False)


def _options(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)


def _in_words(hint: object) -> str:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is tuple:
        return "a list" if parts[-1] is Ellipsis else f"a list of {len(parts)}"
    if kind is Literal:
        return _either(parts)
    words: dict[object, str] = {
        str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "left out",
        Callable: "a function", Sequence: "a list",
    }  # fmt: skip
    return words.get(kind or hint) or (f"a {hint.__name__}" if isinstance(hint, type) else "a table")


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def unknown(key: str, known: Iterable[str], where: str) -> ConfigError:
    """Make the error for a name that no setting has, with the closest name or all of them."""
    near = difflib.get_close_matches(key, sorted(known), n=1)
    more = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(sorted(known))}."
    return ConfigError(f"{where}: the setting {key!r} is unknown. {more}")


def names(*classes: type) -> dict[str, str]:
    """Return the fields of settings classes by the names that they have in recipes: those of the options."""
    return {
        setting.flag(name)[2:].replace("-", "_"): name
        for cls in classes
        for name, (_, setting) in definitions(cls).items()
    }


def read_table(table: Mapping[str, object], where: str, *classes: type) -> dict[str, Any]:
    """Read a table of a recipe as values of the fields; unknown keys, wrong types and impossible values are errors."""
    known = names(*classes)
    fields = {name: value for cls in classes for name, value in definitions(cls).items()}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = known.get(key.replace("-", "_"))
        if name is None:
            raise unknown(key, known, where)
        values[name] = checked(value, *fields[name], f"{where}.{key}")
    return values


def refuse_idle(settings: Settings, inputs: Mapping[str, str]) -> None:
    """Refuse a setting that was changed and that does nothing for any of the inputs (name -> kind)."""
    usual = defaults(type(settings))
    for name, (_, setting) in definitions(type(settings)).items():
        if (
            setting.kinds
            and not set(setting.kinds) & set(inputs.values())
            and getattr(settings, name) != usual[name]
        ):
            flag, (file, kind) = setting.flag(name), next(iter(inputs.items()))
            raise ConfigError(
                f"{flag} does nothing here: {file} is {kind}, and {flag} is for {_either(setting.kinds)}. Leave {flag} out."
            )


def from_table(cls: type[T], table: Mapping[str, object], where: str) -> T:
    """Build a settings object of a table of a recipe."""
    values = read_table(table, where, cls)
    try:
        return cls(**values)
    except ConfigError as error:  # settings that do not go together
        raise ConfigError(f"{where}: {error}") from None
