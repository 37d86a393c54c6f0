"""Where each value of a run comes from: an argument, a line of a recipe or config file, or a default.

Files are merged in Hydra's order, then overrides in the order of the arguments; the last one sets the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.config.arguments import PARTS, removes
from launcher.config.defaults import REASONS
from launcher.config.descriptions import fields_of, spelled
from launcher.config.nodes import TARGET, apart, flat, owner, walk
from launcher.config.resolve import Resolution
from launcher.config.yaml_lines import defaults_lines, leaves
from launcher.core.files import conf_dir
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

Kind = Literal["command line", "recipe", "run", "file", "default"]


@dataclass(frozen=True)
class Origin:
    """Where one value comes from."""

    kind: Kind
    where: str
    """`command line: sampler.n=8`, `recipes/grpo-gsm8k.sh:8`, `conf/data/gsm8k.yaml:3`, `default`."""

    def __str__(self) -> str:
        return self.where


def origins_of(run: RunSpec, resolved: Resolution) -> Mapping[str, Origin]:
    """Dotted setting -> origin, for every value of the run; a group's name (`model`) maps to the origin of its choice.
    Values of the run may have been fitted since it was resolved."""
    lines = defaults_lines(conf_dir() / "run.yaml")
    choices = {group: Origin("file", f"conf/run.yaml:{line}") for group, line in lines.items() if group != "_self_"}
    by_name = dict(choices)
    for path, place in resolved.files:
        for key, leaf in leaves(path).items():
            if key.partition(".")[0] != "defaults":
                origin = Origin("file", f"{_path_text(path)}:{leaf.line}")
                _set_origin(by_name, f"{place}.{key}".lstrip("."), leaf.value, origin)
    for word, override in resolved.sources:
        key = "reward.weights" if override.key_or_group == PARTS else override.key_or_group
        if removes(override):
            by_name = {name: origin for name, origin in by_name.items() if not f"{name}.".startswith(f"{key}.")}
        else:
            _set_origin(by_name, key, override.value(), Origin(word.source, word.where))
    if run.code_dir:
        by_name["code_dir"] = Origin("command line", f"command line: --config-dir {resolved.request.config_dir}")
    node = to_node(run)
    classes, values = apart(flat(node))
    return {name: _origin_of(name, by_name, node) for name in dict.fromkeys([*choices, *classes, *values])}


def _path_text(path: Path) -> str:
    """A path as it is shown: `conf/data/gsm8k.yaml`, in a clone and in an installation."""
    return path.relative_to(conf_dir().parent).as_posix() if path.is_relative_to(conf_dir()) else spelled(path)


def _set_origin(origins: dict[str, Origin], key: str, value: Any, origin: Origin) -> None:
    """Record `origin` for the setting `key`, or for each value of a mapping, which is merged into what is there."""
    origins |= {name: origin for name, _ in walk(value, key, lists=False)}


def _origin_of(key: str, origins: Mapping[str, Origin], node: Mapping[str, Any]) -> Origin:
    """Where a value comes from: what set it, else a default."""
    if origin := origins.get(key) or origins.get(f"{key}.{TARGET}"):
        return origin
    cls, name = owner(node, key)
    if key in REASONS and dict(walk(node, lists=False)).get(key) != fields_of(cls)[name].default:
        return Origin("default", REASONS[key])
    return Origin("default", "default")
