"""What Hydra may read: config files of limited size, and in them references to other settings.

`${GROUP.SETTING}` and `${oc.select:GROUP.SETTING,OTHERWISE}` reach nothing outside the config; OmegaConf's other
resolvers are refused. What references expand to is limited for the whole config: `${b}${b}`, nested thirty times, is a
gigabyte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError
from yaml import YAMLError

from launcher.config.descriptions import default_of, fields_of
from launcher.config.guard import size_problems
from launcher.config.nodes import absolute, owner, walk
from launcher.config.yaml_lines import read_checked
from launcher.core.bounded_parse import SIZE
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems

REFERENCES = 1_000
"""Most interpolations of a config: resolving each looks at all of its values."""
_NAMES = re.compile(r"[.]*[A-Za-z_][\w.]*")
_SETTING = re.compile(r"\$\{([a-z_]+(?:\.[a-z_]+)+)\}")


def check_file(file: Path) -> None:
    """Raises `Problems` for a file of the user's own config groups that is missing or too large."""
    if file.is_relative_to(conf_dir()):
        return
    if not file.is_file():
        raise Problems(Problem("--config-dir", f"{file} is not a file", "use one that holds settings", "bad-file"))
    with suppress(YAMLError):  # reported when its values are read
        read_checked(file)


def _refuse_resolver(name: str, *_: Any) -> None:
    place = f"${{{name}:...}}"
    raise Problems(
        Problem(place, "is not for settings", "write the value itself, or ${GROUP.SETTING}", "not-permitted")
    )


for resolver in ("oc.env", "oc.create", "oc.decode", "oc.deprecated", "oc.dict.keys", "oc.dict.values"):
    OmegaConf.register_new_resolver(resolver, partial(_refuse_resolver, resolver), replace=True)


def resolved(config: Any) -> dict[str, Any]:
    """A composed config as plain values; the caller holds `LOCK`. Raises `Problems`, or an error of OmegaConf."""
    unresolved = OmegaConf.to_container(config, resolve=False)
    texts = {place: value if isinstance(value, str) else "" for place, value in walk(unresolved)}
    _check_expansion(texts)
    for name, value in _missing_defaults(unresolved, texts).items():
        OmegaConf.update(config, name, value, force_add=True)
    try:
        node = OmegaConf.to_container(config, resolve=True)
    except InterpolationResolutionError as error:
        cause: BaseException | None = error
        while cause:
            if isinstance(cause, Problems):  # raised by a resolver of ours, wrapped once or twice
                raise Problems(each.within(str(error.full_key)) for each in cause.problems) from error
            cause = cause.__cause__ or cause.__context__
        raise
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


def _missing_defaults(node: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """The class's default of each `${group.setting}` that config files refer to and that is not set."""
    defaults = {}
    for name in sorted({name for text in texts.values() for name in _SETTING.findall(text)}):
        cls, key = owner(node, name)
        declared = fields_of(cls).get(key)
        unset = _is_in_config(name.rpartition(".")[0], texts) and not _is_in_config(name, texts)
        if unset and declared and not declared.is_required():
            defaults[name] = default_of(declared)
    return defaults


def _is_in_config(name: str, places: Mapping[str, str]) -> bool:
    """Whether a config holds a setting or group. `places` are the dotted names of its values."""
    return name in places or any(place.startswith(f"{name}.") for place in places)


def _check_expansion(texts: Mapping[str, str]) -> None:
    """Raises `Problems` where a config has too many interpolations, or they would expand to more than SIZE characters
    together."""
    with_references = {name: text for name, text in texts.items() if "${" in text}
    problems = [problem for name, text in with_references.items() for problem in size_problems(name, text)]
    if (count := sum(text.count("${") for text in with_references.values())) > REFERENCES:
        problems.append(Problem("--config-dir", f"has {count:,} interpolations", f"use at most {REFERENCES:,}"))
    if problems:
        raise Problems(problems)
    graph = _references_of(texts, with_references)
    try:
        order = [*TopologicalSorter(graph).static_order()]  # what is referred to comes first
    except CycleError as error:
        raise Problems(Problem(error.args[1][0], "stands within itself", "use a value")) from error
    sizes, total = dict[str, int](), 0
    for name in order:
        sizes[name] = len(texts.get(name, "")) + 1 + sum(sizes[each] for each in graph.get(name, ()))
        total += sizes[name] if name in with_references else 0
        if total > SIZE:
            raise Problems(Problem(name, f"interpolations stand for more than {SIZE:,} characters", "use fewer"))


def _references_of(texts: Mapping[str, str], with_references: Mapping[str, str]) -> dict[str, list[str]]:
    """What each value refers to, and the settings of each group that is referred to."""
    graph = {name: list(_named_settings(text, name, texts)) for name, text in with_references.items()}
    groups = {each for references in graph.values() for each in references} - texts.keys()
    return graph | {group: [name for name in texts if name.startswith(f"{group}.")] for group in groups}


def _named_settings(text: str, place: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Full names of the settings and groups that the interpolations of a text name."""
    for name in _NAMES.findall(text.replace("[", ".").replace("]", "")):
        if (full := absolute(name, place)) and _is_in_config(full, texts):
            yield full
