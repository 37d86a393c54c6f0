"""`rlrun plan`: what would run, printed; nothing is started."""

from __future__ import annotations

import shlex
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from launcher.cli.say import AsJson, out, problems_named, say_json
from launcher.launch import preflight
from launcher.launch.resolve import resolve
from launcher.problems import Problems
from launcher.settings import adapter
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node, to_yaml

Words = Annotated[
    list[str] | None, typer.Argument(help="Hydra's words: algorithm=grpo model=tiny data=reverse sampler.n=8")
]
ConfigDir = Annotated[
    Path | None, typer.Option("--config-dir", help="A folder of your own config groups: <group>/<choice>.yaml.")
]


def plan(
    words: Words = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML, as spec.yaml holds it.")] = False,
) -> None:
    """Print the checked run that these words make. Starts nothing."""
    with problems_named():
        run = resolve(words or [], config_dir)
        if found := preflight.problems(run):
            raise Problems(found)
    if as_json:
        say_json(to_node(run))
    elif as_yaml:
        typer.echo(to_yaml(run), nl=False)
    else:
        out.print(_table(run))
        out.print(_processes(run), soft_wrap=True)


def _table(run: RunSpec) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    node = to_node(run)
    for group, values in node.items():
        if not isinstance(values, dict):
            table.add_row(Text(group, "bold"), str(values), "")
        elif group != "critic" or "critic" in run.algorithm.needs:
            target = str(values.pop("_target_", "")).rpartition(".")[2]
            table.add_row(Text(group, "bold"), Text(target, "bold cyan"), "")
            _add_rows(table, getattr(run, group), values, "  ")
    return table


def _add_rows(table: Table, settings: Any, values: dict[str, Any], before: str) -> None:
    """A row for each setting; settings that hold settings give theirs."""
    defaults = _defaults(type(settings))
    for name, value in values.items():
        held = getattr(settings, name)
        if is_dataclass(held):
            _add_rows(table, held, value, f"{before}{name}.")
            continue
        if isinstance(held, dict) and all(map(is_dataclass, held.values())) and held:
            for key, inner in value.items():
                table.add_row(f"{before}{name}.{key}", Text(inner.pop("_target_").rpartition(".")[2], "cyan"), "")
                _add_rows(table, held[key], inner, f"{before}{name}.{key}.")
            continue
        changed = name not in defaults or defaults[name] != value
        table.add_row(
            f"{before}{name}",
            Text(_shown(value), "bold" if changed else "dim"),
            Text(f"default {_shown(defaults[name])}" if changed and name in defaults else "", "dim"),
        )


def _defaults(cls: type) -> dict[str, Any]:
    """What each setting is when nobody sets it."""
    schema = adapter(cls).json_schema()
    schema = schema if "properties" in schema else schema["$defs"][cls.__name__]
    return {name: field["default"] for name, field in schema["properties"].items() if "default" in field}


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _processes(run: RunSpec) -> Text:
    name = run.trainer.experiment_name or f"{run.label}-N"
    folder = Path(run.trainer.run_root) / run.trainer.project_name / name
    processes = run.engine.plan(run, folder).processes
    lines = [f"\nrun folder  {folder}", f"processes   {len(processes)}"]
    return Text("\n".join([*lines, *(f"  {p.rank}  {shlex.join(p.argv)}" for p in processes)]))
