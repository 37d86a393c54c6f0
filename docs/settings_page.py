"""Write docs/settings.md from the classes of settings, so that it says what they do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from launcher.config.reference import groups as handbook
from launcher.config.reference.groups import Choice, Group, Section

PAGE = Path(__file__).with_name("settings.md")
HEAD = """\
# Settings

Every setting of a run, as `rlrun config show` prints it; written by `make settings` from the classes that hold them.
`GROUP=CHOICE` picks a file of `conf/`, `GROUP.SETTING=VALUE` changes a value, and a default that a choice
changes stands with the choice.
"""


def whole() -> str:
    """The page of all groups."""
    groups = handbook.overview()
    parts = [HEAD]
    for group in groups:
        parts.append(f"## {group.name}\n\n{_escaped(group.description)}\n")
        parts.append(_choices(group, handbook.choices(group.name)))
        parts.append(of_sections(handbook.sections(group.name)))
    for name in handbook.PLAIN:
        (section,) = handbook.sections(name)
        parts += [f"## {name}\n", *_description(section), _table(section)]
    return "\n".join(parts)


def of_sections(sections: Iterable[Section]) -> str:
    parts = []
    for section in sections:
        if section.settings or section.choices:
            parts += [f"### {section.title}\n", *_description(section)]
        if section.settings:
            parts.append(_table(section))
    return "\n".join(parts)


def _description(section: Section) -> Iterator[str]:
    words = ", ".join(f"`{word}`" for word in section.choices)
    also = f"As {' and '.join(section.also)}{', and:' if section.settings else '.'}" if section.also else ""
    for text in (words, _escaped(section.description), also):
        if text:
            yield f"{text}\n"


def _choices(group: Group, choices: list[Choice]) -> str:
    rows = ["| choice | class | what it is | what its file sets |", "|---|---|---|---|"]
    for choice in choices:
        taken = " (taken where none is named)" if choice.name == group.default else ""
        what = _cell(choice.description)
        rows.append(f"| `{choice.name}`{taken} | {choice.cls.__name__} | {what} | {_sets(choice)} |")
    return "\n".join([*rows, ""])


def _sets(choice: Choice) -> str:
    """A group of settings inside (a model's architecture) by its name only."""
    plain = [
        f"`{key}` is required" if value == handbook.REQUIRED else f"`{key}={value}`"
        for key, value in choice.sets.items()
        if "." not in key
    ]
    inside = dict.fromkeys(key.partition(".")[0] for key in choice.sets if "." in key)
    return ", ".join([*plain, *(f"`{key}`" for key in inside)]).replace("|", "\\|")


def _table(section: Section) -> str:
    chosen = bool(section.sets)
    titles = ["setting", "type", "default", *(["this choice"] if chosen else []), "range", "what it does"]
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for one in section.settings:
        cells = [_code(one.name), _cell(one.shape.kind), "**required**" if one.required else _code(one.shown_default)]
        cells += [_code(section.sets.get(one.name, ""))] if chosen else []
        cells += [_code(one.shape.range), _cell(one.description)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def _code(text: str) -> str:
    """As code, whatever marks are in it."""
    if not text:
        return ""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}".replace("|", "\\|")


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Outside of `code`, `<` and `*` are no marks of Markdown."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    PAGE.write_text(whole(), encoding="utf-8")
    print(PAGE.name, file=sys.stderr)
