"""The table of names, `names.yaml` and `verl.yaml`: what TRL, verl, axolotl, LLaMA-Factory and Hugging Face call a
setting of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from launcher.config.names import verl
from launcher.core.bounded_parse import LOADER

FILE = Path(__file__).with_name("names.yaml")
LISTS = ("ours", "unless", "switch", "ppo", "sft")
"""Fields of an entry that hold names with spaces between them."""
OTHER = "also"
"""Names of no project in particular."""


@dataclass(frozen=True)
class Project:
    """Where names come from."""

    key: str
    name: str
    text: str
    """Which of its names are in the table."""
    theirs: str
    """A command or file of that project."""
    ours: str
    """The same here."""
    defaults: Mapping[str, str]
    """What it does where nothing is typed, and what to type here for the same."""
    typed: str = ""
    """What becomes of a name of it that is typed; by default it is answered with what to type."""
    like: str = ""
    """Key of the project whose names it has, too."""


@dataclass(frozen=True)
class Translation:
    """One meaning of one or more names, and what has it here."""

    names: Mapping[str, tuple[str, ...]]
    """Of each project, by its key."""
    ours: tuple[str, ...] = ()
    """Settings or config groups; empty where there is nothing of that kind."""
    use: str = ""
    """What to type; `{}` stands for the value."""
    values: Mapping[str, str] | None = None
    """Their value -> what to type, `*` any other; empty: leave it out."""
    convert: str = ""
    """The rule of `conversions` that makes what to type."""
    unless: tuple[str, ...] = ()
    """Names that say it better: with one of them it is left out."""
    switch: tuple[str, ...] = ()
    """Names that switch it off: with one of them at `false` it is left out."""
    note: str = ""
    instead: str = ""
    """What to do where there is nothing of that kind, or of that value."""
    ppo: tuple[str, ...] = ()
    """Keys of verl's main_ppo that it is written to."""
    sft: tuple[str, ...] = ()
    """The same of sft_trainer."""
    to: Mapping[Any, Any] | str = field(default_factory=dict)
    """Our value -> verl's, where that is another one; or the name of a function of the engine's."""
    when: str = ""
    """What has to hold for it to be written."""
    verl_engine: Mapping[str, str | None] = field(default_factory=dict)
    """With engine=verl: their value -> what to type, `*` any other, `?` any that stands for nothing here;
    `engine.extra` in it passes the argument on, None refuses it."""

    def with_verl(self, value: str) -> str | None:
        """What stands for a value where engine=verl is chosen. Raises `KeyError` where nothing is said of it."""
        plain = value.strip("'\" ").lower()
        return self.verl_engine[plain if plain in self.verl_engine else "*"]

    def tells_verl(self, value: str) -> bool:
        """Whether `with_verl` has this value."""
        return "*" in self.verl_engine or value.strip("'\" ").lower() in self.verl_engine

    def projects_of(self, name: str) -> list[str]:
        """Keys of the projects that have this name."""
        return [key for key, names in self.names.items() if name in names]


@dataclass(frozen=True)
class Table:
    projects: Mapping[str, Project]
    meanings: tuple[Translation, ...]
    choices: Mapping[str, Mapping[str, str]]
    """Of a config group: their choice -> what to type here."""
    absent: Mapping[str, Mapping[str, str]]
    """Of a config group: their choice that nothing here is -> what to say."""
    named: Mapping[str, tuple[Translation, ...]]
    """The meanings of each name."""

    def with_end(self, key: str) -> tuple[str, tuple[Translation, ...]]:
        """The name that `key` is the end of, and its meanings: verl's for `rollout.n`.

        Nothing where there are several that mean different things.
        """
        ends = [name for name in self.named if name.endswith(f".{key}")]
        means = {meaning.ours or meaning.instead for name in ends for meaning in self.named[name]}
        return (ends[0], self.named[ends[0]]) if len(means) == 1 else (key, ())

    def above(self, key: str) -> tuple[str, tuple[Translation, ...]]:
        """The nearest name that `key` is an option of, and its meanings where nothing here is of that kind."""
        while key := key.rpartition(".")[0]:
            if meanings := self.named.get(key, ()):
                return (key, meanings) if not any(meaning.ours for meaning in meanings) else (key, ())
        return key, ()

    def sections(self, name: str) -> set[str]:
        """What the projects that have this name write before others of their names: axolotl's `trl`."""
        keys = {key for meaning in self.named.get(name, ()) for key in meaning.projects_of(name)}
        return {
            each.rpartition(".")[0]
            for meaning in self.meanings
            for key in keys
            for each in meaning.names.get(key, ())
            if "." in each
        }

    def owner(self, name: str) -> str:
        """Whose name it is: `TRL`; empty where it is of none in particular."""
        keys = {key for meaning in self.named.get(name, ()) for key in meaning.projects_of(name)}
        return next((self.projects[key].name for key in ("hf", *self.projects) if key in keys), "")


@cache
def table() -> Table:
    """Read once, when it is first needed."""
    node: dict[str, Any] = yaml.load(FILE.read_bytes(), LOADER)  # a SafeLoader
    projects = {key: Project(key, **about) for key, about in node["about"].items()}
    entries = [*node["entries"], *verl.read()["settings"]]
    meanings = tuple(_meaning(entry, [*projects, OTHER]) for entry in entries)
    named: dict[str, list[Translation]] = {}
    for name, meaning in _pairs(meanings):
        named.setdefault(name, []).append(meaning)
    return Table(
        projects, meanings, node["choices"], node["absent"], {name: tuple(found) for name, found in named.items()}
    )


def _meaning(entry: dict[str, Any], sources: list[str]) -> Translation:
    rest = {key: value for key, value in entry.items() if key not in sources}
    names = {source: tuple(entry[source].split()) for source in sources if source in entry}
    return Translation(names, **rest | {key: tuple(entry.get(key, "").split()) for key in LISTS})


def _pairs(meanings: tuple[Translation, ...]) -> Iterator[tuple[str, Translation]]:
    """Each name with each of its meanings, once."""
    for meaning in meanings:
        for name in dict.fromkeys(name for names in meaning.names.values() for name in names):
            yield name, meaning
