"""All output of commands: text for people, JSON and CSV for programs; problems go to standard error, exit code 2.

Names and texts of logs, models and rows are not trusted: secrets are redacted, and control and direction characters
are escaped before they reach a terminal or a parser.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import Parameter, signature
from io import StringIO
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from launcher.core.check_result import CheckResult, Level
from launcher.core.events import writable
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.redaction import printable
from launcher.core.user_code import Raised, caught

out = Console()
err = Console(stderr=True)

WIDE = 1_000  # columns of a table where there is no terminal, so that nothing is cut
LEVELS: dict[Level, str] = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
"""Level of a check -> its style."""
_NOT_PRINTABLE_ASCII = re.compile(r"[^\n -~]")
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Categories of characters that steer a terminal or hide text: controls, directions, line separators."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet reads as a formula."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cell = str | tuple[str, str] | Text
"""A text, a text with its style, or a styled text."""


@dataclass(frozen=True)
class CommandAnswer:
    """The answer of a command, for programs and for people."""

    view: Any
    """What --json prints."""
    show: Callable[[], object]
    """Prints it for people."""
    exit_code: int = 0


def as_command(function: Callable[..., CommandAnswer | None]) -> Callable[..., None]:
    """The function as typer calls it: a parameter with its help becomes an option, and a dataclass parameter one
    parameter for each field; a function that returns a `CommandAnswer` gets the option --json; and `Problems` are
    printed as lines of `✗ where: what was found; what to use`, with exit code 2."""
    parameters, option_classes = dict[str, Parameter](), dict[str, Any]()
    for name, parameter in signature(function, eval_str=True).parameters.items():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            option_classes[name] = parameter.annotation
            parameters |= signature(parameter.annotation, eval_str=True).parameters
        else:
            parameters[name] = parameter
    own_json = "as_json" in parameters
    if function.__annotations__["return"] == "CommandAnswer" and not own_json:
        parameters["as_json"] = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)

    def call(**given: Any) -> None:
        as_json = given.get("as_json", False) if own_json else given.pop("as_json", False)
        for name, group in option_classes.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        with problems_named():
            answer = _call_user_code(partial(function, **given))
            if answer and as_json:
                write_json(answer.view)
            elif answer:
                answer.show()
        if answer and answer.exit_code:
            raise typer.Exit(answer.exit_code)

    call.__doc__, call.__name__ = function.__doc__, function.__name__
    options = [_as_option(parameter) for parameter in parameters.values()]
    call.__signature__ = signature(function).replace(parameters=options)  # type: ignore[attr-defined]
    return call


def _as_option(parameter: Parameter) -> Parameter:
    """`some_name: Annotated[TYPE, "HELP"]` as typer's option --some-name; any other parameter as it is."""
    kind, help_text, *_ = (*get_args(parameter.annotation), None, None)
    if get_origin(parameter.annotation) is not Annotated or not isinstance(help_text, str):
        return parameter
    option = typer.Option(f"--{parameter.name.replace('_', '-')}", help=help_text)  # with its name a bool is a flag
    return parameter.replace(annotation=Annotated.__class_getitem__((kind, option)))


def _call_user_code(call: Callable[[], CommandAnswer | None]) -> CommandAnswer | None:
    """The result of `call`. Raises an error of the user's own code, such as a class in --config-dir, as a problem at
    its line."""
    result = caught(call)
    if not isinstance(result, Raised):
        return result
    if isinstance(result.error, Problems | SystemExit) or not (line := result.own_line):
        raise result.error
    raise Problems(Problem(line, f"{type(result.error).__name__}: {error_message(result.error)}")) from result.error


class CommandGroup(typer.Typer):
    """A group of commands: each of its functions is wrapped by `as_command` when it is registered."""

    def __init__(self, kind: type[TyperGroup] = TyperGroup) -> None:
        super().__init__(cls=kind, no_args_is_help=kind is TyperGroup, rich_markup_mode=None)

    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        def register(function: Callable[..., CommandAnswer | None]) -> Callable[..., CommandAnswer | None]:
            super(CommandGroup, self).command(name, **more)(as_command(function))
            return function

        return register


# ---- for programs


def write_json(view: Any) -> None:
    """Print a view: dataclasses, lists, dicts, numbers, texts, paths."""
    unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")  # the stream's own escapes are not JSON
    text = json.dumps(writable(view), indent=2, ensure_ascii=not unicode, allow_nan=False, default=os.fspath)
    typer.echo(json_safe(text))


def json_safe(text: str) -> str:
    """JSON with control and direction characters escaped; it parses to the same value."""
    return _NOT_PRINTABLE_ASCII.sub(lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1] if unicodedata.category(character) in _HIDDEN_CATEGORIES else character


def write_csv(head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows as CSV; a name that begins like a formula is quoted, so that a spreadsheet shows it as text."""
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
    """Print a line, broken between words on a terminal, except where it holds a command that may be copied."""
    console.print(line, soft_wrap=not console.is_terminal or "rlrun " in line.plain, highlight=False)


def make_table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] | None = None,
) -> Table:
    """A table without borders. Cells that are too long are cut in `whole` columns (default: all) and folded in others;
    columns of `right` are right-aligned. A head without any text is not shown."""
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
    """Print a table; without a terminal nothing is cut or folded."""
    if out.is_terminal:
        out.print(table)
        return
    text = StringIO()
    Console(width=WIDE, file=text).print(table)
    typer.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def say_checks(results: Iterable[CheckResult]) -> None:
    """A line for each: level, subject, message and fix."""
    for result in results:
        message = f"{result.message}; {result.fix}" if result.fix else result.message
        subject = (f"{printable(result.subject)}  ", "bold")
        _print(out, Text.assemble((f"{result.level:<5}", LEVELS[result.level]), subject, printable(message)))


@contextmanager
def progress_line(*, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """The function that shows the current activity: one changing line on a terminal, else lines, if `lines` is set."""
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
    except BrokenPipeError:  # the reader has closed its end, as in `| head`
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
