"""What can be set: the config groups, their choices, and the settings of the classes behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pydantic.dataclasses import is_pydantic_dataclass

from launcher.config import arguments
from launcher.config.compose import config_file, groups
from launcher.config.descriptions import Setting, class_doc, declaration, fields_of, own_fields, settings_of, written
from launcher.config.known import class_of
from launcher.config.nodes import TARGET
from launcher.config.yaml_lines import defaults_choices, leaves
from launcher.core.classes import add_code_dir
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.spec.run import RunSpec

PLAIN = (*arguments.PLAIN, "code_dir")
"""Settings of a run that are no config group."""


REQUIRED = "required"
"""Stands where a choice's file asks for a value that only a person knows."""


@dataclass(frozen=True)
class Choice:
    """One file of a config group."""

    name: str
    cls: type
    description: str
    sets: Mapping[str, str]
    """What the file sets, by the setting's name, as it is written on the command line."""


@dataclass(frozen=True)
class Group:
    name: str
    description: str
    default: str
    """The choice that is taken where nobody chooses; empty where somebody must."""
    choices: list[str]


@dataclass(frozen=True)
class Section:
    """The settings that one class declares, or all that it takes."""

    title: str
    description: str
    choices: list[str]
    """The words that choose this class."""
    also: list[str]
    """Classes whose settings it takes, too."""
    settings: list[Setting]
    sets: Mapping[str, str]
    """What the one choice that was asked for sets, by the setting's full name."""


def overview(config_dir: Path | None = None) -> list[Group]:
    """Every config group with its choices, in a run's order. Their classes are not loaded."""
    known, defaults = groups(config_dir), defaults_choices(conf_dir() / "run.yaml")
    names = [name for name in fields_of(RunSpec) if name in known]
    return [Group(name, declaration(RunSpec, name).description, defaults.get(name, ""), known[name]) for name in names]


def choices(name: str, config_dir: Path | None = None) -> list[Choice]:
    """The choices of one group with what each file sets. Raises `Problems` where a file cannot be read."""
    add_code_dir(config_dir)
    return [_choice(name, choice, config_dir) for choice in groups(config_dir)[name]]


def sections(target: str, config_dir: Path | None = None) -> list[Section]:
    """The settings that `target` names: `algorithm`, `algorithm=grpo`, `trainer`, `trainer.save_freq`.

    Of a group each class has a section with what it declares itself; of a choice there is one, with all that it takes
    and what its file sets. Raises `Problems` where nothing has that name.
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
        return [_whole(top, _choice(top, choice, config_dir))]
    found = list(_sections_of(top, choices(top, config_dir))) if top in known else [_plain(top)]
    return _only(found, target, rest) if rest else found


def classes(name: str, chosen: Iterable[str], config_dir: Path | None = None) -> list[type]:
    """The classes that these choices of a group name, each once."""
    add_code_dir(config_dir)
    return list(dict.fromkeys(class_of(name, config_file(f"{name}/{choice}", config_dir)) for choice in chosen))


def _only(found: list[Section], target: str, rest: str) -> list[Section]:
    """The sections with nothing but the setting `target` and what stands below it."""
    kept = []
    for section in found:
        settings = [one for one in section.settings if f"{one.name}.".startswith(f"{target}.")]
        if settings:
            kept.append(Section(section.title, "", section.choices, [], settings, {}))
    if not kept:
        top = target.partition(".")[0]
        names = {one.name.removeprefix(f"{top}.") for section in found for one in section.settings}
        near = suggest(rest, [*names], listed="it has")
        raise Problems(Problem(target, f"{top} has no setting {rest!r}", near, "unknown-setting"))
    return kept


def _plain(name: str) -> Section:
    settings = list(settings_of(RunSpec, "", only=[name]))
    cls = fields_of(RunSpec)[name].annotation
    message = class_doc(cls) if isinstance(cls, type) and is_pydantic_dataclass(cls) else ""
    return Section(name, message or declaration(RunSpec, name).description, [], [], settings, {})


def _whole(name: str, choice: Choice) -> Section:
    settings = list(settings_of(choice.cls, name))
    sets = {f"{name}.{key}": value for key, value in choice.sets.items()}
    return Section(choice.cls.__name__, class_doc(choice.cls), [f"{name}={choice.name}"], [], settings, sets)


def _sections_of(name: str, of: list[Choice]) -> Iterator[Section]:
    """A section for each class of the group and for each that they have settings from, those first."""
    chosen = list(dict.fromkeys(choice.cls for choice in of))
    above = [cls for each in chosen for cls in each.__mro__ if own_fields(cls)]
    for cls in sorted(dict.fromkeys([*above, *chosen]), key=lambda cls: len(cls.__mro__)):
        words = [f"{name}={choice.name}" for choice in of if choice.cls is cls]
        also = [base.__name__ for base in cls.__bases__ if fields_of(base)]
        settings = list(settings_of(cls, name, only=own_fields(cls)))
        below = [each.__name__ for each in chosen if each is not cls and issubclass(each, cls)]
        message = class_doc(cls) if words else f"Settings of {', '.join(below)}."
        yield Section(cls.__name__, message, words, also, settings, {})


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
