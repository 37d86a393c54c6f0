"""docs/coming-from/: what another project's names are called here, written from the table of names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from launcher.config.names.table import Project, Translation, table
from launcher.config.reference import groups as handbook
from launcher.core.problems import Problem, Problems, suggest

NOTHING = "Not here"
EXTRA = "engine.extra"


def pages() -> dict[str, Project]:
    """The projects, by the name of their page: `llama-factory`."""
    return {project.name.lower().replace(" ", "-"): project for project in table().projects.values()}


def project(name: str) -> Project:
    """The project whose page has this name. Raises `Problems`."""
    known = pages()
    if name not in known:
        raise Problems(Problem(name, "no such project", suggest(name, list(known)), "not-found"))
    return known[name]


def rows(of: Project) -> Iterator[tuple[str, list[str], Translation]]:
    """Section, names and meaning of all that the project has a name for."""
    for meaning in table().meanings:
        sources = [key for key in (of.key, of.like) if key]
        if names := list(dict.fromkeys(chain.from_iterable(meaning.names.get(key, ()) for key in sources))):
            top = meaning.ours[0].partition(".")[0] if meaning.ours else NOTHING
            yield top, names, meaning


def marked(text: str, code: str = "`") -> str:
    """Each word as code."""
    return " ".join(f"{code}{word}{code}" for word in text.split())


def here(meaning: Translation, of: str = "", *, code: str = "`") -> str:
    """What to type, or to do, in a few words; `of` is the key of the project that is asked about."""
    with_verl = _with_verl(meaning, code) if of == "verl" else ""

    if not meaning.ours:
        return "; ".join(filter(None, (meaning.instead, with_verl)))
    if meaning.convert:
        text = " and ".join(f"{code}{name}{code}" for name in meaning.ours)
    elif meaning.values is not None:
        each = [
            f"{marked(theirs, code)}: {marked(ours, code) or 'leave it out'}" for theirs, ours in meaning.values.items()
        ]
        text = "; ".join(each).replace("{}", "VALUE").replace(f"{code}*{code}", "others")
    elif meaning.use:
        text = marked(meaning.use.replace("{}", "VALUE"), code)
    else:
        text = f"{code}{meaning.ours[0]}=VALUE{code}" if not meaning.instead else ""
    more = f"otherwise {meaning.instead}" if meaning.instead and text else meaning.instead
    return "; ".join(filter(None, (text, meaning.note, more, with_verl)))


def _with_verl(meaning: Translation, code: str) -> str:
    """What differs with engine=verl."""
    if not meaning.verl_engine:
        return ""
    of_words = dict[str, list[str]]()
    for theirs, ours in meaning.verl_engine.items():
        text = "refused" if ours is None else marked(ours, code) or "left out"
        text = text.replace(f" {code}{EXTRA}{code}", " and passed on").replace(f"{code}{EXTRA}{code}", "passed on")
        of_words.setdefault(text, []).append("others" if theirs in "*?" else f"{code}{theirs}{code}")
    if [*of_words.values()] == [["others"]]:
        return f"with {code}engine=verl{code} {next(iter(of_words))}".replace("{}", "VALUE")
    each = "; ".join(f"{', '.join(theirs)}: {text}" for text, theirs in of_words.items())
    return f"with {code}engine=verl{code} {each}".replace("{}", "VALUE")


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
