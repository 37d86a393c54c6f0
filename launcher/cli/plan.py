"""`rlrun plan`: what would run, judged and printed; nothing is started."""

from __future__ import annotations

import shlex
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from launcher.cli import sweep
from launcher.cli.say import AsJson, out, printable, problems_named, say_json, say_problems
from launcher.cli.words import ConfigDir, Words
from launcher.launch.plan import Page
from launcher.launch.plan import plan as planned
from launcher.settings import adapter
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node, to_yaml
from launcher.verdicts import Verdict

Multirun = Annotated[
    bool, typer.Option("-m", "--multirun", help="Take the values of words such as seed=0,1 in turn: a sweep.")
]
COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def plan(
    words: Words = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML, as spec.yaml holds it.")] = False,
    multirun: Multirun = False,
) -> None:
    """Say what these words would run and what would fail, on this machine and before anything starts.

    Ends with 0, or with 1 where anything FAILs.
    """
    if multirun and as_yaml:
        say_problems(["--yaml: is of one run; --json would do"])
        raise typer.Exit(2)
    if multirun:
        sweep.plan(words or [], config_dir, as_json)
        return
    with problems_named():
        show(planned(words or [], config_dir), as_json=as_json, as_yaml=as_yaml)


def show(page: Page, *, as_json: bool = False, as_yaml: bool = False) -> None:
    """Print a page, and end with 1 where anything FAILs."""
    if as_json:
        say_json(_node(page))
    elif as_yaml and page.run:
        say_problems([verdict.line for verdict in page.verdicts if verdict.level == "FAIL"])
        typer.echo(to_yaml(page.run), nl=False)
    else:
        _print(page)
    if not page.ok:
        raise typer.Exit(1)


def _node(page: Page) -> dict[str, Any]:
    return {
        "ok": page.ok,
        "verdicts": [asdict(verdict) for verdict in page.verdicts],
        "run": to_node(page.run) if page.run else None,
        "folder": str(page.folder) if page.folder else None,
        "arithmetic": asdict(page.steps) if page.steps else None,
        "processes": [asdict(process) for process in page.processes],
    }


def _print(page: Page) -> None:
    if page.run:
        out.print(_chosen(page.run))
        out.print()
    out.print(verdict_table(page.verdicts))
    if page.run:
        out.print(_processes(page), soft_wrap=True)
    count = {level: sum(verdict.level == level for verdict in page.verdicts) for level in COLOURS}
    told = [Text(f"{number} {level}", COLOURS[level]) for level, number in count.items() if number]
    out.print(Text(), Text(", ").join(told))


def verdict_table(verdicts: list[Verdict]) -> Table:
    """A line for each: the level, what was looked at, the reason, and what would do."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1, max_width=32)
    table.add_column(overflow="fold", ratio=4)
    for verdict in verdicts:
        reason = Text(printable(verdict.says))
        if verdict.mend:
            reason.append(f"; {printable(verdict.mend)}", "bold" if verdict.level != "OK" else "")
        table.add_row(Text(verdict.level, COLOURS[verdict.level]), Text(printable(verdict.what)), reason)
    return table


def _chosen(run: RunSpec) -> Table:
    """Each group with its class, and the settings that differ from their defaults."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for group, values in to_node(run).items():
        if not isinstance(values, dict):
            table.add_row(Text(group, "bold"), str(values), "")
        elif group != "critic" or "critic" in run.algorithm.needs:
            target = str(values.pop("_target_", "")).rpartition(".")[2]
            differs = "  ".join(f"{name}={_shown(value)}" for name, value in _differing(getattr(run, group), values))
            table.add_row(Text(group, "bold"), Text(target, "bold cyan"), Text(printable(differs)))
    return table


def _differing(settings: Any, values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Settings that are not their defaults; settings that hold settings give theirs."""
    defaults, found = _defaults(type(settings)), list[tuple[str, Any]]()
    for name, value in values.items():
        held = getattr(settings, name)
        if name == "architecture" and is_dataclass(held):
            continue  # facts of the model, not choices
        if is_dataclass(held):
            found += _differing(held, value, f"{before}{name}.")
        elif isinstance(held, dict) and all(map(is_dataclass, held.values())) and held:
            for key, inner in value.items():
                found.append((f"{before}{name}.{key}", inner.pop("_target_").rpartition(".")[2]))
                found += _differing(held[key], inner, f"{before}{name}.{key}.")
        elif name not in defaults or defaults[name] != value:
            found.append((f"{before}{name}", value))
    return found


def _defaults(cls: type) -> dict[str, Any]:
    """What each setting is when nobody sets it."""
    schema = adapter(cls).json_schema()
    schema = schema if "properties" in schema else schema["$defs"][cls.__name__]
    return {name: field["default"] for name, field in schema["properties"].items() if "default" in field}


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _processes(page: Page) -> Text:
    lines = [f"\nprocesses {len(page.processes)}"]
    return Text(printable("\n".join([*lines, *(f"  {p.rank}  {shlex.join(p.argv)}" for p in page.processes)])))
