"""Output: problems on standard error with exit code 2, answers on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.check_result import CheckResult, Level
from launcher.core.events import writable
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.redaction import redact

out = Console()
err = Console(stderr=True)

WIDE = 1_000
LEVELS: dict[Level, str] = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
"""The colour of each result."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def say(text: str, style: str = "") -> None:
    """Print a line of text as it is, without markup or line breaks."""
    out.print(Text(printable(text), style), soft_wrap=True, highlight=False)


def make_table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] | None = None) -> Table:
    """Without lines. Too long cells of `whole` columns, by default of all, are cut; others are folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(columns))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        no_wrap = whole is None or column in whole
        table.add_column(column, no_wrap=no_wrap, overflow="ellipsis" if no_wrap else "fold", justify=justify)
    return table


def say_result(result: CheckResult, indent: str = "") -> None:
    """One line: level, subject, message and fix."""
    message = f"{result.message}; {result.fix}" if result.fix else result.message
    subject = (f"{printable(result.subject)}  ", "bold")
    line = Text.assemble(indent, (f"{result.level:<5}", LEVELS[result.level]), subject, printable(message))
    out.print(line, soft_wrap=True, highlight=False)


@contextmanager
def progress_line(*, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """What is under way: a line that changes on a terminal; without one, a line for each change with `lines`."""
    if not err.is_terminal:
        yield lambda what: err.print(Text(printable(what), "dim"), soft_wrap=True) if lines else None
        return
    with err.status("") as status:
        yield lambda what: status.update(Text(printable(what), "dim"))


def wide() -> Console:
    """The console for tables: elsewhere than on a terminal, names are not cut."""
    return out if out.is_terminal else Console(width=WIDE)


def say_table(table: Table) -> None:
    """Print a table; elsewhere than on a terminal without line breaks and trailing spaces."""
    if out.is_terminal:
        out.print(table)
        return
    console = Console(width=WIDE, file=StringIO())
    console.print(table)
    typer.echo("\n".join(line.rstrip() for line in console.file.getvalue().splitlines()))  # type: ignore[attr-defined]


@contextmanager
def problems_named() -> Iterator[None]:
    """Print `Problems` as lines of `✗ where: what was found; what to use`, and end with exit code 2."""
    try:
        yield
    except Problems as found:
        say_problems(found.problems)
    except BrokenPipeError:  # nobody reads any more, as behind `| head`
        raise
    except OSError as error:  # a full disk, a folder that may not be written
        where = str(error.filename or "the system")
        say_problems([Problem(where, error_message(error), "use a place that can be written", "bad-file")])
    else:
        return
    raise typer.Exit(2)


def say_problems(problems: Iterable[Problem | str], console: Console = err) -> None:
    for problem in problems:
        console.print(Text.assemble(("✗ ", "bold red"), printable(str(problem))), soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    """`text` with control characters and lone surrogates escaped and secrets redacted."""
    safe = redact(text).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in safe)


def say_json(node: Any) -> None:
    unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")  # else the stream's escapes are no JSON
    typer.echo(json.dumps(writable(node), indent=2, ensure_ascii=not unicode, allow_nan=False))
