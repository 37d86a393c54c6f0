"""The table of names, `names.yaml` and `verl.yaml`: what TRL, verl, axolotl, LLaMA-Factory and Hugging Face call a
setting of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from launcher.config.names import verl
from launcher.core.bounded_parse import LOADER

FILE = Path(__file__).with_name("names.yaml")
LISTS = ("ours", "unless", "switch", "ppo", "sft")
"""Fields of an entry that hold names separated by spaces."""
SECTIONS = ("trainer", "training", "train", "args", "training_args", "config", "cfg")
"""Prefixes of a setting's name that do not change its meaning."""
OTHER = "also"
"""Key of the names that belong to no particular project."""


@dataclass(frozen=True)
class Project:
    """A project whose names of settings are in the table."""

    key: str
    name: str
    text: str
    """Which of its names are in the table."""
    theirs: str
    """A command or file of that project, as an example."""
    ours: str
    """What the same is here."""
    defaults: Mapping[str, str]
    """The project's default behaviour -> what to type here for the same."""
    typed: str = ""
    """What happens to a typed name of this project; by default the answer says what to type instead."""
    like: str = ""
    """Key of another project whose names it also uses."""


@dataclass(frozen=True)
class Translation:
    """One meaning of one or more names, and its counterpart here."""

    names: Mapping[str, tuple[str, ...]]
    """Key of a project -> its names for this meaning."""
    ours: tuple[str, ...] = ()
    """Our settings or config groups; empty where there is no counterpart."""
    use: str = ""
    """What to type; `{}` stands for the value."""
    values: Mapping[str, str] | None = None
    """The project's value (`*`: any other) -> what to type; empty means to leave it out."""
    convert: str = ""
    """The rule of `conversions.RULES` that makes what to type."""
    unless: tuple[str, ...] = ()
    """Names that take precedence: where one of them is on, this one is left out."""
    switch: tuple[str, ...] = ()
    """Names that switch it off: where one of them is `false`, this one is left out."""
    note: str = ""
    instead: str = ""
    """What to do where the name, or its value, has no counterpart."""
    ppo: tuple[str, ...] = ()
    """Keys of verl's main_ppo that it is written to."""
    sft: tuple[str, ...] = ()
    """Keys of verl's sft_trainer that it is written to."""
    to: Mapping[Any, Any] | str = field(default_factory=dict)
    """Our value -> verl's, where they differ; or the name of a function of the engine."""
    when: str = ""
    """The condition under which it is written."""
    verl_engine: Mapping[str, str] = field(default_factory=dict)
    """With engine=verl: verl's value (`*` any other, `?` any without a counterpart) -> what to type; `engine.extra` in
    it passes the argument on."""

    def with_verl(self, value: str) -> str | None:
        """What to type for a value where engine=verl is chosen; None where that is as with any engine."""
        return self.verl_engine.get(value.strip("'\" ").lower(), self.verl_engine.get("*"))

    def may_stand_in(self, section: str) -> bool:
        """Whether a section before its name leaves its meaning: one of SECTIONS, or the group of a setting of it."""
        return section in SECTIONS or any(name.rpartition(".")[0] == section for name in self.ours)


@dataclass(frozen=True)
class Table:
    projects: Mapping[str, Project]
    meanings: tuple[Translation, ...]
    choices: Mapping[str, Mapping[str, str]]
    """Config group -> another project's choice -> what to type here."""
    absent: Mapping[str, Mapping[str, str]]
    """Config group -> another project's choice without a counterpart -> what to say."""
    named: Mapping[str, tuple[Translation, ...]]
    """The meanings of each name."""

    def find(self, key: str) -> tuple[str, tuple[Translation, ...]]:
        """The name that `key` is, ends with, or is the end of, and its meanings; or a section that it is below and that
        has no counterpart here. No meanings where no name fits, or several names of different meanings do."""
        if key in self.named:
            return key, self.named[key]
        if longer_name := self._complete(key):
            return longer_name, self.named[longer_name]
        section, _, name = key.rpartition(".")
        full_name = name if name in self.named else self._complete(name)
        if matches := tuple(each for each in self.named.get(full_name, ()) if each.may_stand_in(section)):
            return full_name, matches
        while section:
            if meanings := self.named.get(section, ()):
                return section, () if any(meaning.ours for meaning in meanings) else meanings
            section = section.rpartition(".")[0]
        return key, ()

    def _complete(self, end: str) -> str:
        """A name that ends with these parts; empty where none does, or several of different meanings do."""
        names = [name for name in self.named if name.endswith(f".{end}")]
        meanings = {meaning.ours or meaning.instead for name in names for meaning in self.named[name]}
        return names[0] if len(meanings) == 1 else ""

    def owner(self, name: str) -> str:
        """The project whose name it is, such as `TRL`; empty where it belongs to none in particular."""
        of_name = [meaning.names for meaning in self.named.get(name, ())]
        keys = {key for names_by_project in of_name for key, names in names_by_project.items() if name in names}
        return next((self.projects[key].name for key in ("hf", *self.projects) if key in keys), "")


@cache
def table() -> Table:
    """The table of names, read once, when it is first needed."""
    node: dict[str, Any] = yaml.load(FILE.read_bytes(), LOADER)  # a SafeLoader
    projects = {key: Project(key, **about) for key, about in node["about"].items()}
    entries = [*node["entries"], *verl.read()["settings"]]
    meanings = tuple(_read_entry(entry, [*projects, OTHER]) for entry in entries)
    named: dict[str, list[Translation]] = {}
    for meaning in meanings:
        for name in dict.fromkeys(name for names in meaning.names.values() for name in names):
            named.setdefault(name, []).append(meaning)
    return Table(
        projects, meanings, node["choices"], node["absent"], {name: tuple(found) for name, found in named.items()}
    )


def _read_entry(entry: dict[str, Any], sources: list[str]) -> Translation:
    fields = {key: value for key, value in entry.items() if key not in sources}
    names = {source: tuple(entry[source].split()) for source in sources if source in entry}
    return Translation(names, **fields | {key: tuple(entry.get(key, "").split()) for key in LISTS})
