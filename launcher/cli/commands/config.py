"""`rlrun config show | names | metrics | diff`: what can be set and measured, and in what two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from launcher.cli.arguments import ConfigDir, Root, complete_side, complete_target
from launcher.cli.output import AsJson, err, make_table, out, printable, problems_named, say, say_json, wide
from launcher.config import diff as differ
from launcher.config.descriptions import Setting, written
from launcher.config.reference import coming_from, groups, markdown
from launcher.config.reference.groups import Group, Section
from launcher.core import metrics as catalogue
from launcher.core.metric_aliases import canonical, spellings
from launcher.core.problems import Problem, Problems

app = typer.Typer(no_args_is_help=True, help="Show settings, metrics, and how two runs differ.")

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP[=CHOICE]]",
        help="algorithm, algorithm=grpo, trainer or trainer.save_freq; default: all groups.",
        autocompletion=complete_target,
    ),
]
ABSENT = "-"
SIDE = "Quoted arguments, a run, or a recipe (grpo-gsm8k, my.sh#2)."


@app.command("show")
def show(
    target: Target = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as in docs/settings.md.")] = False,
) -> None:
    """Print settings with type, default, range and description."""
    with problems_named():
        if as_markdown:
            text = markdown.of_sections(groups.sections(target, config_dir)) if target else markdown.whole(config_dir)
            return typer.echo(text, nl=False)
        if target is None:
            return _say_groups(groups.overview(config_dir), as_json)
        sections = groups.sections(target, config_dir)
        if as_json:
            return say_json([_section_node(section) for section in sections])
        for number, section in enumerate(sections):
            _say_section(section, first=number == 0)
    return None


def _say_groups(found: list[Group], as_json: bool) -> None:
    if as_json:
        return say_json([_group_node(group) for group in found])
    table = make_table("group", "default", "choices", "what it is", whole=("group",))
    for group in found:
        choices = Text(printable(", ".join(group.choices)))
        table.add_row(Text(group.name, "bold"), group.default or "-", choices, Text(group.description))
    table.add_row(Text(", ".join(groups.PLAIN), "bold"), "", "", "settings of every run")
    out.print(table)
    say("rlrun config show GROUP, GROUP=CHOICE or GROUP.SETTING says more", "dim")
    return None


def _say_section(section: Section, first: bool) -> None:
    also = f"as {' and '.join(section.also)}, and" if section.also else ""
    if not first:
        out.print()
    out.print(Text.assemble((section.title, "bold cyan"), f"  {printable('  '.join(section.choices))}"), soft_wrap=True)
    if section.description:
        out.print(Text(printable(section.description), "dim"))
    if also and section.settings:
        out.print(Text(also, "dim"))
    if out.is_terminal:
        for one in section.settings:
            _say_setting(one, section.sets.get(one.name, ""))
    elif section.settings:
        wide().print(_settings(section))


def _say_setting(one: Setting, chosen: str) -> None:
    """On lines of its own, so that the consequence has the whole width."""
    facts = [one.shape.kind, one.shape.range, one.shown_default if one.required else f"default {one.shown_default}"]
    line = Text.assemble((one.name, "bold"), "  ", (printable(" · ".join(fact for fact in facts if fact)), "cyan"))
    out.print(line.append(f" · this choice: {printable(chosen)}" if chosen else "", "bold"))
    out.print(Padding(Text(printable(one.description)), (0, 0, 0, 4)))


def _settings(section: Section) -> Table:
    """One line for each, so that a program reads it."""
    columns = ["setting", "type", "default", *(["this choice"] if section.sets else []), "range", "what it does"]
    table = make_table(*columns, whole=("setting",))
    for one in section.settings:
        chosen = [Text(printable(section.sets.get(one.name, "")), "bold")] if section.sets else []
        table.add_row(
            Text(one.name, "bold"), one.shape.kind, Text(printable(one.shown_default)), *chosen,
            Text(one.shape.range), Text(printable(one.description)),
        )  # fmt: skip
    return table


def _group_node(group: Group) -> dict[str, Any]:
    return {"group": group.name, "says": group.description, "default": group.default or None, "choices": group.choices}


def _section_node(section: Section) -> dict[str, Any]:
    settings = [_setting_node(one, section) for one in section.settings]
    return {"class": section.title, "says": section.description, "choices": section.choices, "also": section.also,
            "settings": settings}  # fmt: skip


def _setting_node(one: Setting, section: Section) -> dict[str, Any]:
    node = {"setting": one.name, "type": one.shape.kind, "required": one.required, "default": one.default,
            "range": one.shape.range, "values": one.shape.values, "says": one.description,
            "declared": one.where}  # fmt: skip
    return node | ({"this_choice": section.sets[one.name]} if one.name in section.sets else {})


@app.command("names")
def names(
    project: Annotated[
        str, typer.Argument(metavar="PROJECT", help="trl, verl, axolotl, llama-factory or hugging-face.")
    ],
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as in docs/coming-from/.")] = False,
) -> None:
    """Print another project's names with what to type here."""
    with problems_named():
        of = coming_from.project(project)
    found = [(name, meaning) for _, each, meaning in coming_from.rows(of) for name in each]
    if as_markdown:
        return typer.echo(coming_from.page(of), nl=False)
    if as_json:
        return say_json(
            [{"name": name, "ours": each.ours, "here": coming_from.here(each, of.key)} for name, each in found]
        )
    table = make_table(of.name, "here", whole=())
    for name, meaning in found:
        table.add_row(Text(name, "bold"), Text(coming_from.here(meaning, of.key, code="")))
    wide().print(table)
    return None


@app.command("metrics")
def metrics(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="[PATTERN]",
            help="Part of a name, a glob, or another project's name: kl, 'val-*', mean_ratio; default: all.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print what each metric measures, its unit, which direction is better, and what others call it."""
    with problems_named():
        ours = canonical(pattern)
        meant = {} if catalogue.metric(pattern) else catalogue.matching(ours)
        found = {**meant, **catalogue.matching(pattern)}
        if not found:
            raise Problems(Problem(pattern, "no metric of that name", "rlrun config metrics lists all", "not-found"))
    if as_json:
        rows = [{"metric": name, **asdict(entry), "also": spellings(name)[1:]} for name, entry in found.items()]
        return say_json(rows)
    return _say_metrics(found, with_spellings=bool(pattern))


def _say_metrics(found: Mapping[str, catalogue.Metric], with_spellings: bool) -> None:
    others = {name: ", ".join(spellings(name)[1:]) for name in found}
    more = with_spellings and any(others.values())
    table = make_table("metric", "unit", "better", "what it measures", *(["others call it"] if more else []), whole=())
    for name, entry in found.items():
        message = f"{entry.meaning} ({entry.formula})" if entry.formula else entry.meaning
        cells = Text(entry.unit), entry.better or "", Text(message), *([Text(others[name])] if more else [])
        table.add_row(Text(printable(name), "bold"), *cells)
    wide().print(table)


@app.command("diff")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE, autocompletion=complete_side)],
    b: Annotated[str, typer.Argument(metavar="B", help=SIDE, autocompletion=complete_side)],
    source: Annotated[bool, typer.Option("--source", help="Show where each value comes from.")] = False,
    config_dir: ConfigDir = None,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Compare two runs. Exit code 0 when they are equal, 1 when they differ, 2 for invalid input."""
    with problems_named():
        one, other = differ.side(a, root, config_dir), differ.side(b, root, config_dir)
        rows = list(differ.rows(one, other))
    if as_json:
        differs = [_row_node(row, source) for row in rows]
        notes = [*one.notes, *other.notes]
        say_json({"equal": not rows, "a": one.name, "b": other.name, "differs": differs, "notes": notes})
    else:
        _say_rows(one.name, other.name, rows, source)
        for note in dict.fromkeys([*one.notes, *other.notes]):
            err.print(Text(printable(f"· {note}"), "dim"), soft_wrap=True)
    raise typer.Exit(1 if rows else 0)


def _row_node(row: differ.DiffRow, source: bool) -> dict[str, Any]:
    """A side that has no such setting has no key."""
    node: dict[str, Any] = {"setting": row.name, "group": row.whole}
    for side, cell in zip("ab", row.cells, strict=True):
        if cell:
            node |= {side: cell.value} | ({f"{side}_from": cell.origin} if source else {})
    return node


def _say_rows(a: str, b: str, rows: list[differ.DiffRow], source: bool) -> None:
    if not rows:
        return
    table = make_table(
        "setting", "A", *(["from"] if source else []), "B", *(["from"] if source else []), whole=("setting",)
    )
    for row in rows:
        texts = []
        for cell in row.cells:
            value, source_of = (written(cell.value), cell.origin) if cell else (ABSENT, "")
            texts += [Text(printable(value), "cyan" if row.whole else ""), Text(printable(source_of), "dim")]
        table.add_row(Text(printable(row.name), "bold"), *(texts if source else texts[::2]))
    say(f"A  {a}\nB  {b}", "dim")
    wide().print(table)
