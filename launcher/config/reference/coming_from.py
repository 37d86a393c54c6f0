"""Pages that translate another project's names, made from the table of names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from launcher.config.names.table import Project, Translation, table
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
    """Section, names and meaning of everything that the project `of` has a name for."""
    for meaning in table().meanings:
        sources = [key for key in (of.key, of.like) if key]
        if names := list(dict.fromkeys(chain.from_iterable(meaning.names.get(key, ()) for key in sources))):
            top = meaning.ours[0].partition(".")[0] if meaning.ours else NOTHING
            yield top, names, meaning


def marked(text: str, code: str = "`") -> str:
    """Each word of a text marked as code."""
    return " ".join(f"{code}{word}{code}" for word in text.split())


def here(meaning: Translation, of: str = "", *, code: str = "`") -> str:
    """What to type, or to do, in a few words; `of` is the key of the project whose page it is for."""
    with_verl = _with_verl(meaning, code) if of == "verl" else ""

    if not meaning.ours:
        return "; ".join(filter(None, (meaning.instead, with_verl)))
    if meaning.convert:
        text = " and ".join(f"{code}{name}{code}" for name in meaning.ours)
    elif meaning.values is not None:
        translations = [
            f"{marked(theirs, code)}: {marked(ours, code) or 'leave it out'}" for theirs, ours in meaning.values.items()
        ]
        text = "; ".join(translations).replace("{}", "VALUE").replace(f"{code}*{code}", "others")
    elif meaning.use:
        text = marked(meaning.use.replace("{}", "VALUE"), code)
    else:
        text = f"{code}{meaning.ours[0]}=VALUE{code}" if not meaning.instead else ""
    more = f"otherwise {meaning.instead}" if meaning.instead and text else meaning.instead
    return "; ".join(filter(None, (text, meaning.note, more, with_verl)))


def _with_verl(meaning: Translation, code: str) -> str:
    """What differs with engine=verl; empty where nothing does."""
    if not meaning.verl_engine:
        return ""
    values_by_text = dict[str, list[str]]()
    for theirs, ours in meaning.verl_engine.items():
        text = "refused" if ours is None else marked(ours, code) or "left out"
        text = text.replace(f" {code}{EXTRA}{code}", " and passed on").replace(f"{code}{EXTRA}{code}", "passed on")
        values_by_text.setdefault(text, []).append("others" if theirs in "*?" else f"{code}{theirs}{code}")
    if [*values_by_text.values()] == [["others"]]:
        return f"with {code}engine=verl{code} {next(iter(values_by_text))}".replace("{}", "VALUE")
    text_of_values = "; ".join(f"{', '.join(theirs)}: {text}" for text, theirs in values_by_text.items())
    return f"with {code}engine=verl{code} {text_of_values}".replace("{}", "VALUE")
