"""`rlrun plan`: check a run and print the results; nothing is started."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from launcher.cli.arguments import ConfigDir, Overrides
from launcher.cli.output import LEVELS, Cell, CommandAnswer, make_table, out, say, say_table
from launcher.config.descriptions import written
from launcher.config.diff import Changed
from launcher.config.recipe import run_request
from launcher.core.check_result import CheckResult
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import printable
from launcher.preflight.plan import Page, page_node
from launcher.preflight.plan import plan as planned
from launcher.spec.engine import Process

Multirun = Annotated[
    bool, typer.Option("-m", "--multirun", help="Sweep: one run for each combination of values, such as seed=0,1.")
]
Source = Annotated[bool, "Show where each value that is not a default came from."]
Recipe = Annotated[str | None, "Start from the arguments of a recipe: its name, a script, or a YAML file."]


def plan(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    recipe: Recipe = None,
    source: Source = False,
    multirun: Multirun = False,
) -> CommandAnswer:
    """Exit code 2 where anything FAILs, as of train."""
    if multirun:
        if recipe or source:
            got = "cannot be combined with --recipe or --source"
            raise Problems(Problem("--multirun", got, "use --json"))
        from launcher.cli.commands import sweep  # noqa: PLC0415  # late: it loads what starts and follows runs

        return sweep.plan(run_request(overrides or [], config_dir))
    return answer_plan(planned(overrides or [], config_dir, recipe=recipe), source=source)


def answer_plan(page: Page, *, source: bool = False) -> CommandAnswer:
    """The plan as an answer, with exit code 2 where anything FAILs, as `train` would end."""
    return CommandAnswer(page_node(page), lambda: _print_page(page, source), exit_code=0 if page.ok else 2)


def _print_page(page: Page, source: bool) -> None:
    for line, style in _summary(page):
        say(line, style)
    out.print()
    for note in page.notes:
        say(note, "dim")
    if page.run:
        say_table(_sources_table(page) if source else _choices_table(page))
        out.print()
    say_table(result_table(page.results))
    memory = page.memory
    if memory and (memory["limit_bytes"] is None or memory["peak_bytes"] > memory["limit_bytes"] / 10):
        out.print()
        say_table(_memory_table(memory))
    if page.processes:
        out.print(_processes_text(page.processes), soft_wrap=True)


def _summary(page: Page) -> Iterator[tuple[str, str]]:
    """Lines with their styles: whether the run can start, how long it takes, and how many warnings there are."""
    counts = {level: sum(result.level == level for result in page.results) for level in LEVELS}
    of = {result.subject: result.message for result in page.results if result.level == "OK"}
    memory = of.get("memory", "what memory it takes is not known")
    if page.ok:
        yield f"{'fits, and can start' if 'memory' in of else 'can start'}: {memory}", LEVELS["OK"]
    else:
        yield f"cannot start: {counts['FAIL']} FAIL", LEVELS["FAIL"]
    if not page.run:
        return
    steps = page.steps.steps if page.steps else None
    time = f", {of['time'].partition(':')[0]}" if "time" in of else "; how long they take is known after such a run"
    yield f"{_counted(steps, 'step')}{time}" if steps else "how many steps it has is known once the rows are here", ""
    yield _counted(counts["WARN"], "warning"), LEVELS["WARN" if counts["WARN"] else "OK"]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def result_table(results: Sequence[CheckResult]) -> Table:
    """A row for each result: level, subject, message and fix."""
    rows = list[list[Cell]]()
    for result in results:
        reason = Text(printable(result.message))
        if result.fix:
            reason.append(f"; {printable(result.fix)}", "bold" if result.level != "OK" else "")
        rows.append([(result.level, LEVELS[result.level]), result.subject, reason])
    return _headless_table(rows)


def _headless_table(rows: list[list[Cell]]) -> Table:
    """A table of three columns without a head: the first is never wrapped, the last takes the remaining width."""
    table = make_table([""] * 3, rows, whole=())
    table.columns[0].no_wrap = True
    table.columns[1].max_width = 32 if out.is_terminal else None
    return table


def _choices_table(page: Page) -> Table:
    """A row for each group: its choice, and the settings that differ from their classes' defaults."""
    changes = dict[str, list[str]]()
    for value in _changed_settings(page):
        group, _, name = value.name.partition(".")
        changes.setdefault(group, []).append(f"{name}={written(value.value)}" if name else written(value.value))
    groups = [group for group in dict.fromkeys([*page.choices, *changes]) if "." not in group]
    return _headless_table([
        [(group, "bold"), (page.choices.get(group, ""), "bold cyan"), "  ".join(changes.get(group, []))]
        for group in groups
    ])  # fmt: skip


def _sources_table(page: Page) -> Table:
    """A row for each choice and each value that is not its default, with its origin."""
    rows: list[list[Cell]] = [
        [(group, "bold"), (choice, "bold cyan"), "", str(page.origins.get(group, ""))]
        for group, choice in page.choices.items()
    ]
    for value in _changed_settings(page):
        default = "" if value.required else written(value.default)
        rows.append([value.name, written(value.value), (default, "dim"), str(page.origins.get(value.name, ""))])
    return make_table(["setting", "value", "default", "from"], rows, whole=())


def _changed_settings(page: Page) -> list[Changed]:
    """The settings that are not their defaults, without the model's architecture, which is not chosen."""
    return [value for value in page.differs if not value.name.startswith("model.architecture.")]


def _memory_table(node: dict[str, Any]) -> Table:
    """GiB of each part in each phase, of the process that needs most."""
    phases = node["phases"]
    parts = dict.fromkeys(part for phase in phases for part in phase["parts"])
    styles = ["bold" if phase["name"] == node["peak"] else "" for phase in phases]
    rows: list[list[Cell]] = []
    for part in parts:
        sizes = [_gib(phase["parts"].get(part, 0)) for phase in phases]
        rows.append([part.replace("_", " "), *zip(sizes, styles, strict=True)])
    rows.append([("all", "bold"), *((_gib(phase["total_bytes"]), "bold") for phase in phases)])
    names = [phase["name"] for phase in phases]
    return make_table(["GiB a process", *names], rows, right=names, whole=())


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f}" if count else ""


def _processes_text(processes: Sequence[Process]) -> Text:
    """The commands that would start, each once, with the ranks that run it."""
    ranks: dict[str, list[int]] = {}
    for process in processes:
        ranks.setdefault(shlex.join(process.argv), []).append(process.rank)
    lines = [f"\nprocesses {len(processes)}"]
    for command, of in ranks.items():
        lines.append(f"  {of[0]}{f'-{of[-1]}' if len(of) > 1 else ''}  {command}")
    return Text(printable("\n".join(lines)))
