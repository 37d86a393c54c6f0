"""A command group that imports a command's module only when that command is called."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


@dataclass(frozen=True)
class CommandEntry:
    """One command of the group."""

    name: str
    at: str
    """`module:function` in `launcher.cli.commands`, or `module:app` for a group."""
    help: str
    """The first sentence of the command's help, shown without importing it."""


def group(*entries: CommandEntry) -> type[TyperGroup]:
    """A class for `typer.Typer(cls=...)` which has these commands, in this order."""
    at = {entry.name: entry.at for entry in entries}

    class Lazy(TyperGroup):
        def __init__(self, **more: Any) -> None:
            super().__init__(**more)
            self.commands = {entry.name: TyperCommand(entry.name, help=entry.help) for entry in entries}

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, rest = super().resolve_command(ctx, args)
            return name, load(name, at[name]) if name else command, rest

    return Lazy


def load(name: str, at: str) -> Any:
    """The command `name` itself, from `module:attribute` below `launcher.cli.commands`."""
    module, _, attribute = at.partition(":")
    gc.disable()  # collecting garbage takes a tenth of the import time, and there is none
    try:
        found: typer.Typer | Callable[..., Any] = getattr(import_module(f"launcher.cli.commands.{module}"), attribute)
    finally:
        gc.enable()
    if isinstance(found, typer.Typer):
        return get_group(found)
    single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    single.command(name)(found)
    return get_command(single)
