"""How anything is said: problems on standard error with exit code 2, answers on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.check_result import Level
from launcher.core.events import writable
from launcher.core.problems import Problems, error_message
from launcher.core.redaction import redact

out = Console()
err = Console(stderr=True)

WIDE = 1_000
LEVELS: dict[Level, str] = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
"""The colour of each result."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def wide() -> Console:
    """Where tables go: a program reads whole names."""
    return out if out.is_terminal else Console(width=WIDE)


def say_table(table: Table) -> None:
    """A table on a terminal; elsewhere its rows as whole lines, which end where their text ends."""
    if out.is_terminal:
        out.print(table)
        return
    console = Console(width=WIDE, file=StringIO())
    console.print(table)
    typer.echo("\n".join(line.rstrip() for line in console.file.getvalue().splitlines()))  # type: ignore[attr-defined]


@contextmanager
def problems_named() -> Iterator[None]:
    """Problems become lines of `✗ where: what came; what would do` and exit code 2."""
    try:
        yield
    except Problems as found:
        say_problems(found.lines)
    except OSError as error:  # a full disk, a folder that may not be written
        say_problems(
            [f"{error.filename or 'the system'}: {error_message(error)}; a place that can be written would do"]
        )
    else:
        return
    raise typer.Exit(2)


def say_problems(lines: list[str] | tuple[str, ...]) -> None:
    for line in lines:
        err.print(Text.assemble(("✗ ", "bold red"), printable(line)), soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    """Without control characters and lone surrogates, which could steer the terminal, and without secrets."""
    safe = redact(text).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in safe)


def say_json(node: Any) -> None:
    typer.echo(json.dumps(writable(node), indent=2, ensure_ascii=False, allow_nan=False))
