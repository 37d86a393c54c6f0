"""Write docs/coming-from/: what another project's names are called here, from the table of names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from launcher.config.names.table import Project, Translation, table
from launcher.config.reference import groups as handbook

FOLDER = Path(__file__).with_name("coming-from")
NOTHING = "Not here"
EXTRA = "engine.extra"


def pages() -> dict[str, Project]:
    """The projects, by the name of their page: `llama-factory`."""
    return {project.name.lower().replace(" ", "-"): project for project in table().projects.values()}


def page(of: Project) -> str:
    """The page as Markdown."""
    parts = [
        f"# Coming from {of.name}\n",
        f"{of.text}\nWritten by `make settings` from the table of rlrun's own messages: "
        + (
            of.typed
            or f"a name of {of.name} on the command line is answered with\nwhat to type instead, and its value.\n"
        ),
        f"```text\n{of.theirs.rstrip()}\n```\n\nis here\n\n```bash\n{of.ours.rstrip()}\n```\n",
        f"## What differs where nothing is typed\n\n| {of.name} | the same here |\n|---|---|\n"
        + "".join(f"| {theirs} | {marked(ours)} |\n" for theirs, ours in of.defaults.items()),
        "## Names\n\n"
        "Arguments are `key=value`, without dashes; [settings.md](../settings.md) has all of them.\n"
        "`data.train_batch_size` is the prompts (or rows) of a whole step over all processes, whatever the micro-batch"
        " is.\nOf a name with several rows, the one is meant whose setting the chosen algorithm has.\n",
    ]
    found: dict[str, list[str]] = {}
    for top, names, meaning in rows(of):
        theirs = ", ".join(f"`{name}`" for name in names)
        same = names == [*meaning.ours] and not (meaning.use or meaning.values or meaning.convert)
        found.setdefault(top, []).append(f"| {theirs} | {'the same' if same else _cell(here(meaning, of.key))} |")
    order = [*(group.name for group in handbook.overview()), *handbook.PLAIN, NOTHING]
    for top in sorted(found, key=order.index):
        parts.append(f"## {top}\n\n| {of.name} | rlrun |\n|---|---|\n" + "\n".join(found[top]) + "\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rows(of: Project) -> Iterator[tuple[str, list[str], Translation]]:
    """Section, names and meaning of everything that the project `of` has a name for."""
    for meaning in table().meanings:
        sources = [key for key in (of.key, of.like) if key]
        if names := list(dict.fromkeys(chain.from_iterable(meaning.names.get(key, ()) for key in sources))):
            top = meaning.ours[0].partition(".")[0] if meaning.ours else NOTHING
            yield top, names, meaning


def marked(text: str) -> str:
    """Each word of a text marked as code."""
    return " ".join(f"`{word}`" for word in text.split())


def here(meaning: Translation, of: str) -> str:
    """What to type, or to do, in a few words; `of` is the key of the project whose page it is for."""
    with_verl = _with_verl(meaning) if of == "verl" else ""

    if not meaning.ours:
        return "; ".join(filter(None, (meaning.instead, with_verl)))
    if meaning.convert:
        text = " and ".join(f"`{name}`" for name in meaning.ours)
    elif meaning.values is not None:
        translations = [
            f"{marked(theirs)}: {marked(ours) or 'leave it out'}" for theirs, ours in meaning.values.items()
        ]
        text = "; ".join(translations).replace("{}", "VALUE").replace("`*`", "others")
    elif meaning.use:
        text = marked(meaning.use.replace("{}", "VALUE"))
    else:
        text = f"`{meaning.ours[0]}=VALUE`" if not meaning.instead else ""
    more = f"otherwise {meaning.instead}" if meaning.instead and text else meaning.instead
    return "; ".join(filter(None, (text, meaning.note, more, with_verl)))


def _with_verl(meaning: Translation) -> str:
    """What differs with engine=verl; empty where nothing does."""
    if not meaning.verl_engine:
        return ""
    values_by_text = dict[str, list[str]]()
    for theirs, ours in meaning.verl_engine.items():
        text = marked(ours) or "left out"
        text = text.replace(f" `{EXTRA}`", " and passed on").replace(f"`{EXTRA}`", "passed on")
        values_by_text.setdefault(text, []).append("others" if theirs in "*?" else f"`{theirs}`")
    if [*values_by_text.values()] == [["others"]]:
        return f"with `engine=verl` {next(iter(values_by_text))}".replace("{}", "VALUE")
    text_of_values = "; ".join(f"{', '.join(theirs)}: {text}" for text, theirs in values_by_text.items())
    return f"with `engine=verl` {text_of_values}".replace("{}", "VALUE")


if __name__ == "__main__":
    for name, project in pages().items():
        (FOLDER / f"{name}.md").write_text(page(project), encoding="utf-8")
    print(FOLDER.name, file=sys.stderr)
