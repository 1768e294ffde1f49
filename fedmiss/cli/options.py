"""Options of a command, made of the fields of settings classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, get_args, get_origin

import typer
from typer import Option

from fedmiss.errors import ConfigError
from fedmiss.settings import Setting, defaults, definitions

# Options of several commands; those of one command are the defaults in its signature.
Out = Annotated[Path, Option("--out", "-o", help="Folder to make.")]
Unit = Annotated[
    str, Option("--unit", help="What was counted: birds, nests, pairs, territories, or any word.")
]
Language = Annotated[
    str | None,
    Option("--language", help="Language of the page: de, or a catalogue (.po).", show_default="English"),
]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace an existing folder.")]


CONTEXT = "typer_context"  # the command line itself: it knows what was typed and what is a default


def options_of(
    *classes: type, make: Callable[..., object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``settings`` of a command by one option for each field of the classes.

    The command gets what ``make`` (default: the first class) builds of the options that were given. One that was not given
    is not passed on, so that settings can refuse one that does nothing.
    """
    made = {
        name: _option(name, hint, setting, defaults(cls)[name])
        for cls in classes
        for name, (hint, setting) in definitions(cls).items()
    }

    def replaced(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        several = [
            inner
            for parameter in own.values()
            for inner in (made.values() if parameter.name == "settings" else [parameter])
        ]

        @functools.wraps(command)
        def run(**words: object) -> None:
            context: typer.Context = words.pop(CONTEXT)  # type: ignore[assignment]
            # What was typed is told from defaults by typer's own context:
            # a default that is passed on would overrule a preset.
            given = {name: words.pop(name) for name in made}
            asked = {name for name in given if _was_given(context, name)}
            settings = (make or classes[0])(
                **{key: value for key, value in given.items() if value not in (None, []) and key in asked}
            )
            command(settings=settings, **words)

        # typer reads signature and annotations of the wrapper: it gets the options in the place of ``settings``.
        several.append(inspect.Parameter(CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in several]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return replaced


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name != "DEFAULT"


def refuse_typed(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options that were typed, by the names of their parameters, where they do nothing."""
    known = {param.name: param for param in context.command.params}
    for name in names:
        if _was_given(context, name):
            one = known[name]
            flag = (one.opts if context.params[name] is not False else one.secondary_opts)[0]
            raise ConfigError(f"{flag} does nothing here: {why}. Leave {flag} out.")


def _option(name: str, hint: object, setting: Setting, default: object) -> inspect.Parameter:
    """Return the parameter of one field: a flag for a bool, a list for a tuple, a text where the text is read later."""
    flags, kind = setting.flags or (setting.flag(name),), hint
    if hint is bool:  # a flag that is not given must not overrule a preset
        flags, kind = (f"{flags[0]}/--no-{flags[0][2:]}",), hint if default else bool | None
    elif setting.read or setting.typed:
        kind = (setting.typed or str) | None
    elif get_origin(hint) is tuple:
        kind = list[get_args(hint)[0]] | None  # type: ignore[misc]
    elif isinstance(default, str):  # a number may be a word too
        kind = str
    shown = setting.shown if default or isinstance(setting.shown, str) or default == 0 else False
    option = Option(*flags, help=setting.help, show_default=shown, rich_help_panel=setting.panel)
    default = None if type(None) in get_args(kind) else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
