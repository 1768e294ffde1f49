"""The list of commands: one line each, one file each."""

from __future__ import annotations

import importlib

import typer

__all__ = ["COMMANDS", "register"]

# command -> module of fedmiss.cli that defines a function of the same name (dashes become underscores)
COMMANDS = (
    "demo",
    "ingest",
    "panel",
    "fit",
    "impute",
    "report",
    "run",
    "inspect",
    "simulate",
    "experiment",
    "plot",
)


def register(app: typer.Typer) -> None:
    """Add every command to the application."""
    for name in COMMANDS:
        module = importlib.import_module(f"fedmiss.cli.{name}")
        app.command(name)(getattr(module, name))
