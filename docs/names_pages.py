"""Write docs/coming-from/: what another project's names are called here, from the table of names."""

from __future__ import annotations

import sys
from pathlib import Path

from launcher.config.names.table import Project
from launcher.config.reference import groups as handbook
from launcher.config.reference.coming_from import NOTHING, here, marked, pages, rows

FOLDER = Path(__file__).with_name("coming-from")


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


if __name__ == "__main__":
    for name, project in pages().items():
        (FOLDER / f"{name}.md").write_text(page(project), encoding="utf-8")
    print(FOLDER.name, file=sys.stderr)
