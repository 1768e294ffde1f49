"""The list of commands, and what becomes of their errors.

Each command imports what it needs inside the function, so ``fedmiss --help`` stays fast. Exit codes: 0 done, 1 the data or
the model, 2 the usage, 130 interrupted.
"""

from __future__ import annotations

import ast
import errno
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from fedmiss.errors import in_words
from fedmiss.system import as_spelled, at_home, owner_of

# command, in the order of the help -> module of fedmiss.cli that defines a function of the same name
COMMANDS = {
    "demo": "steps", "ingest": "steps", "table": "steps", "panel": "steps", "fit": "steps", "impute": "steps",
    "report": "steps", "own": "steps", "run": "steps", "community": "steps", "inspect": "show", "simulate": "research",
    "trim": "trim", "doctor": "doctor", "experiment": "research", "plot": "research",
}  # fmt: skip
STUDIES = "federation"  # the command that has commands of its own


def register(app: typer.Typer, words: Sequence[str] = ()) -> None:
    """Give the command that the words of the command line begin with, or every command where they name none."""
    app.registered_commands.clear()  # of an earlier call
    app.registered_groups.clear()
    said = next((word for word in words if not word.startswith("-")), "")
    for name, home in COMMANDS.items():
        if name == said or said not in (*COMMANDS, STUDIES):
            module = importlib.import_module(f"fedmiss.cli.{home}")
            app.command(name, cls=OneValue)(_one_message(getattr(module, name)))
    if said not in COMMANDS:
        module = importlib.import_module("fedmiss.cli.federation")
        several = typer.Typer(help="Studies between organisations, over a network.", no_args_is_help=True)
        for command in module.COMMANDS:
            several.command(command.__name__, cls=OneValue)(_one_message(command))
        app.add_typer(several, name=STUDIES)


def _one_message(command: Callable[..., object]) -> Callable[..., None]:
    """Turn the errors of a command into one message on stderr and an exit code; --debug keeps the traceback."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **{name: _at_home(value) for name, value in kwargs.items()})
            _note_of_loops()
        except KeyboardInterrupt:
            _interrupted()
        except SystemError as error:  # an interrupt inside a compiled loop arrives wrapped, sometimes twice
            if not _was_interrupted(error):
                raise
            _interrupted()
        except BrokenPipeError:  # the reader of the output has closed it (`| head`)
            raise
        except Exception as error:
            words = in_words(error) or _refused(error)
            if os.environ.get("FEDMISS_DEBUG") or not words:
                raise
            _say(words)
            raise typer.Exit(getattr(error, "exit_code", 1)) from None

    return run


# what pydantic, by which typer reads a value, says of it -> what it must be, with the limit
_MUST = {
    "int_parsing": "a whole number", "int_parsing_size": "a whole number", "float_parsing": "a number",
    "greater_than_equal": "at least {ge}", "less_than_equal": "at most {le}",
}  # fmt: skip


class OneMessage(TyperGroup):
    """Commands that say of a value which typer cannot read what they say of any other: option, value, limit, in one line."""

    def invoke(self, ctx: Any) -> Any:  # a context of typer's own click
        """Run the command of the line; a value of a wrong kind ends it."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            closed = _not_readable(error)
            if not (words := closed or _wrong_kind(error)):
                raise
            _say(words)
            raise typer.Exit(1 if closed else 2) from None


class OneValue(TyperCommand):
    """A command that refuses a second value of an option that takes one: the first would be dropped without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words behind the command."""
        *_, given = self.make_parser(ctx).parse_args(args=[*args])
        for option in given:
            single = isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
            if single and given.count(option) > 1:
                _say(f"{max(option.opts, key=len)} is given {given.count(option)} times; it takes one value.")
                raise typer.Exit(2)
        return super().parse_args(ctx, args)


def _not_readable(error: typer.BadParameter) -> str:
    """Say of a file or folder that typer finds unreadable what is said of one that a step cannot read; else blank."""
    told = re.fullmatch(r"\w+ (.+) is not readable\.", error.message, re.DOTALL)
    refusal = OSError(errno.EACCES, os.strerror(errno.EACCES), ast.literal_eval(told[1])) if told else None
    return _refused(refusal) if refusal else ""


def _wrong_kind(error: typer.BadParameter) -> str:
    """Say which option, its value and what it must be; blank where typer names the value itself."""
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    must = _MUST.get(found[0]["type"], "") if found else ""
    if not must or error.param is None:
        return ""
    name = max(error.param.opts, key=len, default=str(error.param.name))
    limits = must.format(**found[0].get("ctx", {}))
    value = found[0]["input"] if "ctx" in found[0] else repr(found[0]["input"])
    where = f" `{error.ctx.command_path} --help` says more." if error.ctx else ""
    return f"{name} is {value} (must be {limits}).{where}"


def _note_of_loops() -> None:
    """Say that this command compiled its loops and so will the next one, where no folder keeps them."""
    loops = sys.modules.get("fedmiss.loops")
    if loops is not None and loops.NOT_KEPT and not os.environ.get("FEDMISS_QUIET"):
        _say(
            "note: compiled loops cannot be kept (no right to write to the program's folder or to the cache at home, or a "
            "full disk), so every start takes some seconds more. Set NUMBA_CACHE_DIR to a folder of yours."
        )


def _at_home(value: object) -> object:
    """Read ``~`` as a shell does, which leaves it as it is in ``--out=~/records``, and accents as the disk has them."""
    if isinstance(value, list):
        return [_at_home(one) for one in value]
    return as_spelled(at_home(value)) if isinstance(value, Path) else value


def _refused(error: Exception) -> str:
    """Say what the system refused, where no step has its own words for it."""
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return "the name of a file or folder here is not UTF-8, as from an old disk; rename it."
    if not isinstance(error, OSError):
        return ""
    where = f"{error.filename}: " if error.filename else ""
    whose = f" ({at} is {owner_of(at)}'s)" if (at := _closed(error)) else ""
    what = error.strerror or str(error).rstrip(".")
    return f"{where}{what}{whose}. Check the path, your rights and the disk; --debug shows more."


def _closed(error: OSError) -> Path | None:
    """The folder or file at which a way ends for this user; None where the refusal has another reason."""
    if not isinstance(error, PermissionError) or not error.filename:
        return None
    path = Path(os.fsdecode(error.filename)).absolute()
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return folder
    if not os.path.lexists(path):
        return path.parent
    return None if os.access(path, os.R_OK | os.W_OK) else path


def _was_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupted() -> NoReturn:
    _say("interrupted; no half-written result was left. The same command again goes on, or starts anew.")
    raise typer.Exit(130) from None


def _say(text: str) -> None:
    typer.echo(f"fedmiss: {text}", err=True)
