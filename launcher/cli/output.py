"""The one writer of answers: text for people, JSON and CSV for programs; problems go to standard error, exit code 2.

Names and texts of logs, models and rows are not trusted: secrets are redacted, and no control or direction character
reaches a terminal or a parser as it is.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from inspect import Parameter, signature
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.check_result import CheckResult, Level
from launcher.core.events import writable
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.redaction import printable
from launcher.core.user_code import Raised, caught

out = Console()
err = Console(stderr=True)

WIDE = 1_000  # columns where no terminal is: names are not cut
LEVELS: dict[Level, str] = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
"""The colour of each result."""
_RAW = re.compile(r"[^\n -~]")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Categories of characters that steer a terminal or hide text: controls, directions, line separators."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for a formula at the beginning of a cell."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cell = str | tuple[str, str] | Text
"""A text, also with its style, or styled already."""


@dataclass(frozen=True)
class CommandAnswer:
    """What a command has to say."""

    view: Any
    """For programs."""
    show: Callable[[], object]
    """Prints it for people."""
    exit_code: int = 0


def as_command(function: Callable[..., CommandAnswer | None]) -> Callable[..., None]:
    """The function as typer calls it: a parameter that is a dataclass stands for its fields, where it returns a
    `CommandAnswer` it has the option --json, and `Problems` are printed as lines of `✗ where: what was found; what to
    use`, with exit code 2."""
    parameters, groups = dict[str, Parameter](), dict[str, Any]()
    for name, each in signature(function, eval_str=True).parameters.items():
        if isinstance(each.annotation, type) and is_dataclass(each.annotation):
            groups[name] = each.annotation
            parameters |= signature(each.annotation, eval_str=True).parameters
        else:
            parameters[name] = each
    own_json = "as_json" in parameters
    if function.__annotations__["return"] == "CommandAnswer" and not own_json:
        parameters["as_json"] = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)

    def call(**given: Any) -> None:
        as_json = given.get("as_json", False) if own_json else given.pop("as_json", False)
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        with problems_named():
            answer = _own_code_named(partial(function, **given))
            if answer and as_json:
                write_json(answer.view)
            elif answer:
                answer.show()
        if answer and answer.exit_code:
            raise typer.Exit(answer.exit_code)

    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__signature__ = signature(function).replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    return call


def _own_code_named(call: Callable[[], CommandAnswer | None]) -> CommandAnswer | None:
    """What it returns. An error of a person's own code, as of a class in the folder of --config-dir, is a problem of
    that line."""
    found = caught(call)
    if not isinstance(found, Raised):
        return found
    if isinstance(found.error, Problems | SystemExit) or not (line := found.own_line):
        raise found.error
    raise Problems(Problem(line, f"{type(found.error).__name__}: {error_message(found.error)}")) from found.error


class CommandGroup(typer.Typer):
    """A command of commands: each of its functions is registered as `as_command` makes it."""

    def __init__(self) -> None:
        super().__init__(no_args_is_help=True)

    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        def register(function: Callable[..., CommandAnswer | None]) -> Callable[..., CommandAnswer | None]:
            super(CommandGroup, self).command(name, **more)(as_command(function))
            return function

        return register


# ---- for programs


def write_json(view: Any) -> None:
    """Print a view: dataclasses, lists, dicts, numbers, texts, paths."""
    unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")  # else the stream's escapes are no JSON
    text = json.dumps(writable(_plain(view)), indent=2, ensure_ascii=not unicode, allow_nan=False)
    typer.echo(json_safe(text))


def json_safe(text: str) -> str:
    """JSON with control and direction characters as escapes; equal once it is read."""
    return _RAW.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if unicodedata.category(character) in _HIDDEN else character


def _plain(view: Any) -> Any:
    if is_dataclass(view) and not isinstance(view, type):
        return _plain(asdict(view))
    if isinstance(view, dict):
        return {key: _plain(value) for key, value in view.items()}
    if isinstance(view, list | tuple):
        return [_plain(value) for value in view]
    return str(view) if isinstance(view, Path) else view


def write_csv(head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Rows for a spreadsheet; a name that begins as a formula does is quoted, so that nothing is computed from it."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(f"'{name}" if name.startswith(FORMULA) else name for name in map(printable, head))
    writer.writerows(rows)


# ---- for people


def say(text: str, style: str = "") -> None:
    """Print a line of text as it is, without markup."""
    _print(out, Text(printable(text), style))


def tell(text: str, style: str = "dim") -> None:
    """Print a remark beside the answer, on standard error."""
    _print(err, Text(printable(text), style))


def _print(console: Console, line: Text) -> None:
    """A terminal breaks it between words, but for a line with a command, which is to be copied."""
    console.print(line, soft_wrap=not console.is_terminal or "rlrun " in line.plain, highlight=False)


def make_table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] | None = None,
) -> Table:
    """A table without lines. Too long cells of `whole` columns, by default of all, are cut; others are folded. A head
    without any text is not shown."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(head))
    for column in head:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        no_wrap = whole is None or column in whole
        table.add_column(Text(column), no_wrap=no_wrap, overflow="ellipsis" if no_wrap else "fold", justify=justify)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    text, style = (cell, "") if isinstance(cell, str) else cell
    return Text(printable(text), style)


def say_table(table: Table) -> None:
    """Print a table; elsewhere than on a terminal nothing is cut or folded."""
    if out.is_terminal:
        out.print(table)
        return
    text = StringIO()
    Console(width=WIDE, file=text).print(table)
    typer.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def say_result(result: CheckResult, indent: str = "") -> None:
    """One line: level, subject, message and fix."""
    message = f"{result.message}; {result.fix}" if result.fix else result.message
    subject = (f"{printable(result.subject)}  ", "bold")
    line = Text.assemble(indent, (f"{result.level:<5}", LEVELS[result.level]), subject, printable(message))
    _print(out, line)


@contextmanager
def progress_line(*, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """What is under way: a line that changes on a terminal; without one, a line for each change with `lines`."""
    if not err.is_terminal:
        yield lambda what: tell(what) if lines else None
        return
    with err.status("") as status:
        yield lambda what: status.update(Text(printable(what), "dim"))


@contextmanager
def problems_named() -> Iterator[None]:
    """Print `Problems` as lines, and end with exit code 2."""
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
        _print(console, Text.assemble(("✗ ", "bold red"), printable(str(problem))))
