"""`rlrun config show | diff`: what can be set, and in what two runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from launcher.cli.arguments import ConfigDir, Root, RunName
from launcher.cli.output import Cell, CommandAnswer, CommandGroup, make_table, out, say, say_table
from launcher.config import diff as differ
from launcher.config.defaults import REASONS
from launcher.config.descriptions import Setting, written
from launcher.config.reference import groups
from launcher.config.reference.groups import Group, Section
from launcher.core.redaction import printable
from launcher.runs import store

app = CommandGroup()

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP[=CHOICE]]",
        help="algorithm, algorithm=grpo, trainer or trainer.save_freq; default: all groups.",
    ),
]
ABSENT = "-"


@app.command("show")
def show(target: Target = None, config_dir: ConfigDir = None) -> CommandAnswer:
    """Print settings with type, default, range and description."""
    if target is None:
        overview = groups.overview(config_dir)
        node = [
            {"group": each.name, "says": each.description, "default": each.default or None, "choices": each.choices}
            for each in overview
        ]
        return CommandAnswer(node, lambda: _say_groups(overview))
    sections = groups.sections(target, config_dir)
    nodes = [
        {"class": each.title, "says": each.description, "choices": each.choices, "also": each.also,
         "settings": [_setting_node(setting, each) for setting in each.settings]} for each in sections
    ]  # fmt: skip
    return CommandAnswer(nodes, lambda: _say_sections(sections))


def _say_groups(overview: list[Group]) -> None:
    rows: list[list[Cell]] = [
        [(group.name, "bold"), group.default or "-", ", ".join(group.choices), group.description] for group in overview
    ]
    rows.append([(", ".join(groups.PLAIN), "bold"), "", "", "settings of every run"])
    say_table(make_table(["group", "default", "choices", "what it is"], rows, whole=["group"]))
    say("rlrun config show GROUP, GROUP=CHOICE or GROUP.SETTING says more", "dim")


def _say_sections(sections: list[Section]) -> None:
    for number, section in enumerate(sections):
        if number:
            say("")
        choices = printable("  ".join(section.choices))
        out.print(Text.assemble((section.title, "bold cyan"), f"  {choices}"), soft_wrap=True)
        if section.description:
            out.print(Text(printable(section.description), "dim"))
        if section.also and section.settings:
            out.print(Text(f"as {' and '.join(section.also)}, and", "dim"))
        for setting in section.settings:
            _say_setting(setting, section.sets.get(setting.name, ""))


def _say_setting(row: Setting, chosen: str) -> None:
    """Print a setting on lines of its own, so that its description has the whole width."""
    facts = [row.shape.kind, row.shape.range, row.shown_default if row.required else f"default {row.shown_default}"]
    line = Text.assemble((row.name, "bold"), "  ", (printable(" · ".join(fact for fact in facts if fact)), "cyan"))
    out.print(line.append(f" · this choice: {printable(chosen)}" if chosen else "", "bold"), soft_wrap=True)
    say_table(make_table(["", ""], [("  ", row.description)], whole=()))


def _setting_node(row: Setting, section: Section) -> dict[str, Any]:
    node = {"setting": row.name, "type": row.shape.kind, "required": row.required, "default": row.default,
            "range": row.shape.range, "values": row.shape.values, "says": row.description}  # fmt: skip
    return node | ({"this_choice": section.sets[row.name]} if row.name in section.sets else {})


@app.command("diff")
def diff(
    a: RunName,
    b: RunName,
    source: Annotated[bool, "Show where each value comes from."] = False,
    root: Root = Path("runs"),
) -> CommandAnswer:
    """Compare the settings of two runs. Exit code 0 when they are equal, 1 when they differ, 2 for invalid input."""
    runs = [store.find(name, root=root) for name in (a, b)]
    one_side, other_side = (
        differ.side_of_run(name, run.spec, run.words) for name, run in zip((a, b), runs, strict=True)
    )
    rows = differ.rows(one_side, other_side)
    return CommandAnswer(
        differ.node_of(one_side, other_side, rows, source=source),
        lambda: _say_difference(a, b, rows, source),
        exit_code=int(bool(rows)),
    )


def _say_difference(a: str, b: str, rows: list[differ.DiffRow], source: bool) -> None:
    if rows:
        origin_head, derived = ["from"] if source else [], any(row.derived for row in rows)
        cells = list[list[Cell]]()
        for row in rows:
            texts = list[Cell]()
            for cell in row.cells:
                value, origin = (written(cell.value), cell.origin.where) if cell else (ABSENT, "")
                texts += [(value, "cyan" if row.whole else ""), (origin, "dim")]
            mark = [(f"derived, {REASONS[row.name]}" if row.derived else "", "dim")] if derived else []
            cells.append([(row.name, "bold"), *(texts if source else texts[::2]), *mark])
        say(f"A  {a}\nB  {b}", "dim")
        head = ["setting", "A", *origin_head, "B", *origin_head, *([""] if derived else [])]
        say_table(make_table(head, cells, whole=["setting"]))
