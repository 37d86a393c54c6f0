"""Where each value of a run comes from: a word, a recipe's line, a config file's line, the environment, or a class.

Files are merged in Hydra's order, overrides after them in theirs; the last one sets the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from launcher.config.arguments import PARTS, removes
from launcher.config.defaults import REASONS
from launcher.config.descriptions import declaration, fields_of, spelled
from launcher.config.nodes import TARGET, absolute, apart, flat, owner, walk
from launcher.config.resolve import Resolution
from launcher.config.yaml_lines import defaults_lines, leaves
from launcher.core.files import conf_dir
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

Kind = Literal["command line", "recipe", "run", "file", "environment", "default"]
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_ENVIRONMENT = "oc.env:"


@dataclass(frozen=True)
class Origin:
    """Where one value comes from."""

    kind: Kind
    where: str
    """`command line: sampler.n=8`, `recipes/grpo-gsm8k.sh:8`, `conf/data/gsm8k.yaml:3`, `launcher/spec/run.py:65`."""
    refers: tuple[str, ...] = ()
    """The settings (or `oc.env:NAME`) that the value is taken from by interpolation; `where` tells of them."""

    def __str__(self) -> str:
        return self.where


def origins_of(run: RunSpec, resolved: Resolution) -> Mapping[str, Origin]:
    """Dotted setting -> origin, for every value of the run; a group's name (`model`) stands for its choice. Values of
    the run may have been fitted since it was resolved."""
    choices = _default_choices()
    found = dict(choices)
    for path, place in resolved.files:
        for key, leaf in leaves(path).items():
            if key.partition(".")[0] != "defaults":
                origin = Origin("file", f"{_spelled(path)}:{leaf.line}")
                _set(found, f"{place}.{key}".lstrip("."), leaf.value, origin)
    for word, override in resolved.sources:
        key = "reward.weights" if override.key_or_group == PARTS else override.key_or_group
        if removes(override):
            found = {name: origin for name, origin in found.items() if not f"{name}.".startswith(f"{key}.")}
        else:
            _set(found, key, override.value(), Origin(word.source, word.where))
    if run.code_dir:
        found["code_dir"] = Origin("command line", f"command line: --config-dir {resolved.request.config_dir}")
    node = to_node(run)
    classes, values = apart(flat(node))
    return {name: _of(name, found, node) for name in dict.fromkeys([*choices, *classes, *values])}


def _default_choices() -> dict[str, Origin]:
    """The lines of conf/run.yaml that choose where no word does."""
    path = conf_dir() / "run.yaml"
    lines = defaults_lines(path)
    return {group: Origin("file", f"{_spelled(path)}:{line}") for group, line in lines.items() if group != "_self_"}


def _spelled(path: Path) -> str:
    """`conf/data/gsm8k.yaml`, in a clone and where it is installed."""
    return path.relative_to(conf_dir().parent).as_posix() if path.is_relative_to(conf_dir()) else spelled(path)


def _set(found: dict[str, Origin], key: str, value: Any, origin: Origin) -> None:
    """What is set at a name; a mapping is merged into what is there."""
    for name, inner in walk(value, key, lists=False):
        texts = [text for _, text in walk(inner) if isinstance(text, str)]
        found[name] = replace(origin, refers=tuple(_referred(" ".join(texts), name)))


def _referred(text: str, place: str) -> Iterator[str]:
    for name in _REFERENCE.findall(text):
        yield name.partition(",")[0] if name.startswith(_ENVIRONMENT) else absolute(name, place)


def _of(key: str, found: Mapping[str, Origin], node: Mapping[str, Any]) -> Origin:
    """Where a value comes from: what set it, or the group above it that was taken from elsewhere; else its class."""
    origin = found.get(key) or found.get(f"{key}.{TARGET}")
    above = key
    while not origin and (above := above.rpartition(".")[0]):
        whole = found.get(above)
        origin = whole if whole and whole.refers else None
    if origin:
        return _followed(origin, found)
    cls, name = owner(node, key)
    if key in REASONS and dict(walk(node, lists=False)).get(key) != fields_of(cls)[name].default:
        return Origin("default", REASONS[key])
    return Origin("default", declaration(cls, name.partition(".")[0]).where)


def _followed(origin: Origin, found: Mapping[str, Origin]) -> Origin:
    """With what its interpolations lead to."""
    kind, where = origin.kind, origin.where
    for reference in origin.refers:
        name = reference.removeprefix(_ENVIRONMENT)
        if name != reference and name in os.environ:
            kind, where = "environment", f"environment {name} ({where})"
        elif name != reference:
            where = f"{where} (the environment has no {name})"
        elif reference in found:
            where = f"{where} -> {reference} ({_followed(found[reference], found).where})"
    return replace(origin, kind=kind, where=where)
