"""Options of a command, made of the fields of a settings class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import typer

from fedmiss.settings import Setting, Settings, definitions

__all__ = ["options_of"]


def options_of(cls: type[Settings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``settings`` of a command by one option for each field; the command gets the object."""
    makes = {f.name: _option(f.name, *definitions(cls)[f.name], f.default) for f in fields(cls)}  # type: ignore[arg-type]

    def replaced(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        several = [q for p in own.values() for q in (makes.values() if p.name == "settings" else [p])]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in makes}
            command(settings=cls(**chosen), **given)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in several]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return replaced


def _option(name: str, hint: Any, setting: Setting, default: Any) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    flags = setting.flags or ((f"{flag}/--no-{flag[2:]}",) if hint is bool else (flag,))
    kind = (
        str if isinstance(default, str) else hint
    )  # a number or a word comes as text, and is read when it is checked
    option = typer.Option(*flags, help=setting.help, show_default=default is not False and setting.shown)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
