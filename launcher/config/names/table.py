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
SECTIONS = ("trainer", "training", "train", "args", "training_args", "config", "cfg")
"""What may stand before a setting's name without changing its meaning."""
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

    @property
    def groups(self) -> list[str]:
        """What stands before the names of its settings."""
        return [name.rpartition(".")[0] for name in self.ours]

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

    def find(self, key: str) -> tuple[str, tuple[Translation, ...]]:
        """The name that `key` is, ends with, or is the end of, and its meanings; or the one that it is an option of,
        where nothing here is of that kind. No meanings where there is none, or several that differ."""
        if key in self.named:
            return key, self.named[key]
        ends = [name for name in self.named if name.endswith(f".{key}")]
        if len({meaning.ours or meaning.instead for name in ends for meaning in self.named[name]}) == 1:
            return ends[0], self.named[ends[0]]
        section, _, name = key.rpartition(".")
        meanings = self.named.get(name, ())
        if found := tuple(each for each in meanings if section in (*SECTIONS, *each.groups)):
            return name, found
        while section:
            if meanings := self.named.get(section, ()):
                return section, () if any(meaning.ours for meaning in meanings) else meanings
            section = section.rpartition(".")[0]
        return key, ()

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
