"""What can be set: the config groups, their choices, and the settings of the classes behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from pydantic.dataclasses import is_pydantic_dataclass

from launcher.config import nodes
from launcher.config.compose import config_file, groups
from launcher.config.descriptions import Setting, class_doc, description_of, fields_of, own_fields, settings_of, written
from launcher.config.nodes import TARGET, class_of
from launcher.config.yaml_lines import defaults_choices, leaves
from launcher.core.classes import add_code_dir
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.spec.run import RunSpec

PLAIN = (*nodes.PLAIN, "code_dir")
"""Settings of a run that are not config groups."""


REQUIRED = "required"
"""Shown as the value where a choice's file leaves one for the user to give (`???`)."""


@dataclass(frozen=True)
class Choice:
    """One file of a config group."""

    name: str
    cls: type
    description: str
    sets: Mapping[str, str]
    """Setting -> the value that the file sets, as it is written on the command line."""


@dataclass(frozen=True)
class Group:
    name: str
    description: str
    default: str
    """The choice that is taken where none is typed; empty where one has to be."""
    choices: list[str]


@dataclass(frozen=True)
class Section:
    """The settings that one class declares, or all that it takes."""

    title: str
    description: str
    settings: list[Setting]
    choices: list[str] = field(default_factory=list)
    """The arguments that choose this class."""
    also: list[str] = field(default_factory=list)
    """Base classes whose settings it takes, too."""
    sets: Mapping[str, str] = field(default_factory=dict)
    """Full name of a setting -> the value that the choice sets; empty unless one choice was asked for."""


def overview(config_dir: Path | None = None) -> list[Group]:
    """Every config group with its choices, in a run's order. Their classes are not loaded."""
    known, defaults = groups(config_dir), defaults_choices(conf_dir() / "run.yaml")
    names = [name for name in fields_of(RunSpec) if name in known]
    return [Group(name, description_of(RunSpec, name), defaults.get(name, ""), known[name]) for name in names]


def choices(name: str, config_dir: Path | None = None) -> list[Choice]:
    """The choices of one group with what each file sets. Raises `Problems` where a file cannot be read."""
    add_code_dir(config_dir)
    return [_choice(name, choice, config_dir) for choice in groups(config_dir)[name]]


def sections(target: str, config_dir: Path | None = None) -> list[Section]:
    """The settings that `target` names: `algorithm`, `algorithm=grpo`, `trainer`, `trainer.save_freq`.

    For a group, each class has a section with the settings that it declares itself; for a choice there is one section,
    with all settings of its class and what its file sets. Raises `Problems` where nothing has that name.
    """
    top, equals, choice = target.partition("=")
    top, _, rest = top.partition(".")
    known = groups(config_dir)
    if top not in known and top not in PLAIN:
        near = suggest(top, [*known, *PLAIN])
        raise Problems(Problem(short_repr(target), f"no group or setting {top!r}", near, "unknown-setting"))
    if equals:
        if top not in known or rest:
            raise Problems(Problem(short_repr(target), "is not a choice", "use GROUP=CHOICE"))
        if choice not in known[top]:
            raise Problems(Problem(top, f"no choice {choice!r}", suggest(choice, known[top]), "unknown-choice"))
        add_code_dir(config_dir)
        chosen = _choice(top, choice, config_dir)
        sets = {f"{top}.{key}": value for key, value in chosen.sets.items()}
        title, settings = chosen.cls.__name__, list(settings_of(chosen.cls, top))
        return [Section(title, class_doc(chosen.cls), settings, [f"{top}={choice}"], sets=sets)]
    found = list(_class_sections(top, choices(top, config_dir))) if top in known else [_plain_section(top)]
    return _narrow(found, target) if rest else found


def _narrow(found: list[Section], target: str) -> list[Section]:
    """The sections reduced to the setting `target` and those below it. Raises `Problems` where there is none."""
    top, _, rest = target.partition(".")
    declaring = list[Section]()
    for section in found:
        if settings := [each for each in section.settings if f"{each.name}.".startswith(f"{target}.")]:
            declaring.append(replace(section, description="", also=[], settings=settings))
    if not declaring:
        names = {setting.name.removeprefix(f"{top}.") for section in found for setting in section.settings}
        near = suggest(rest, [*names], listed="it has")
        raise Problems(Problem(target, f"{top} has no setting {rest!r}", near, "unknown-setting"))
    return declaring


def _plain_section(name: str) -> Section:
    cls = fields_of(RunSpec)[name].annotation
    message = class_doc(cls) if isinstance(cls, type) and is_pydantic_dataclass(cls) else ""
    settings = list(settings_of(RunSpec, "", only=[name]))
    return Section(name, message or description_of(RunSpec, name), settings)


def _class_sections(name: str, group_choices: list[Choice]) -> Iterator[Section]:
    """A section for each class of the group and for each base class that declares settings, bases first."""
    chosen = list(dict.fromkeys(choice.cls for choice in group_choices))
    bases = [cls for each in chosen for cls in each.__mro__ if own_fields(cls)]
    for cls in sorted(dict.fromkeys([*bases, *chosen]), key=lambda cls: len(cls.__mro__)):
        words = [f"{name}={choice.name}" for choice in group_choices if choice.cls is cls]
        subclasses = [each.__name__ for each in chosen if each is not cls and issubclass(each, cls)]
        message = class_doc(cls) if words else f"Settings of {', '.join(subclasses)}."
        also = [base.__name__ for base in cls.__bases__ if fields_of(base)]
        yield Section(cls.__name__, message, list(settings_of(cls, name, only=own_fields(cls))), words, also)


def _choice(name: str, choice: str, config_dir: Path | None) -> Choice:
    path = config_file(f"{name}/{choice}", config_dir)
    cls = class_of(name, path)
    values = {
        key: leaf.value for key, leaf in leaves(path).items() if key.partition(".")[0] not in ("defaults", TARGET)
    }
    sets = {key: REQUIRED if value == "???" else written(value) for key, value in values.items()}
    parts = [entry.partition("@")[0] for entry in defaults_choices(path) if "@parts." in entry]
    if parts:
        sets["parts"] = written(parts)
    return Choice(choice, cls, _header(path) or class_doc(cls), sets)


def _header(path: Path) -> str:
    """The comment that a config file begins with."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.lstrip("# ") for line in lines)
