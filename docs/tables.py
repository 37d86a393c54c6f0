"""Write docs/reference.md: commands, events, metrics and functions of health rules, from the code that holds them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from launcher.cli.main import COMMANDS
from launcher.core.events import KINDS
from launcher.core.metrics import catalogue
from launcher.health.expressions import METRICS, PLAIN
from launcher.health.judge import CALLS

PAGE = Path(__file__).with_name("reference.md")
HEAD = """\
# Commands, events, metrics, functions

Written by `make settings` from the code. [Settings](settings.md) has the settings of a run, `rlrun COMMAND --help` the
options of a command. Every list has `--json`; `rlrun --install-completion` installs shell completion. Exit codes: 0
finished, 1 failed, 2 invalid input, 143 and 130 stopped by SIGTERM and SIGINT after a checkpoint; a second Ctrl-C exits
at once, without a checkpoint."""


def page() -> str:
    return "\n".join([HEAD, *commands(), *events(), *metrics(), *functions(), ""])


def commands() -> Iterator[str]:
    yield "\n## Commands"
    for panel, entries in groupby(COMMANDS, key=lambda entry: entry.panel):
        yield from table((panel, "what it does"), ((f"`rlrun {entry.name}`", entry.help) for entry in entries))


def events() -> Iterator[str]:
    yield "\n## Events of a run"
    rows = ((f"`{name}`", text_of(kind)) for name, kind in KINDS.items())
    yield from table(("event", "what it says"), rows)


def metrics() -> Iterator[str]:
    yield "\n## Metrics"
    rows = (
        (f"`{name}`", each.unit, each.better or "", each.meaning + (f" (`{each.formula}`)" if each.formula else ""))
        for name, each in catalogue().items()
        if each.label
    )
    yield from table(("metric", "unit", "better", "what it measures"), rows)


def functions() -> Iterator[str]:
    yield "\n## Functions of health rules\n\n`m` is a metric. [Health](health.md#rules-of-your-own) shows a rule."
    rows = ((f"`{call(name)}`", text_of(CALLS[name])) for name in sorted({*CALLS} - {*PLAIN}))
    yield from table(("function", "what it is"), [*rows, (f"`{'`, `'.join(PLAIN)}`", "As in Python, of numbers.")])


def call(name: str) -> str:
    """`mean(m, count=3)`"""
    parameters = list(inspect.signature(CALLS[name]).parameters.values())
    shown = (each.name if each.default is each.empty else f"{each.name}={each.default}" for each in parameters)
    return f"{name}({', '.join('m' if each in METRICS[:2] else each for each in shown)})"


def text_of(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split())


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield ""
    for number, row in enumerate([tuple(titles), *rows]):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in row)} |"
        if not number:
            yield "|---" * len(tuple(row)) + "|"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.name, file=sys.stderr)
