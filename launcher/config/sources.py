"""What Hydra may read: config files within bounds, and of the environment what is on a list.

OmegaConf's other resolvers stay: they make values of values and reach nothing outside the config (`oc.select`,
`oc.create`, `oc.decode`, `oc.deprecated`, `oc.dict.*`), and no class is named by a value. What all interpolations
together stand for is bounded, too: `${b}${b}`, thirty times over, is a gigabyte.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import Container, Node, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from omegaconf.resolvers import oc
from yaml import YAMLError

from launcher.config.descriptions import fields_of
from launcher.config.guard import size_problems
from launcher.config.nodes import absolute, owner, walk
from launcher.config.yaml_lines import read_checked
from launcher.core.bounded_parse import VALUES, LimitExceeded, check_limits
from launcher.core.composition import LOCK
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.redaction import is_secret_name

READABLE = ("HOME", "USER", "LOGNAME", "HOSTNAME", "TMPDIR", "PWD", "CUDA_VISIBLE_DEVICES")
BEGINNINGS = ("RLRUN_", "SLURM_")
_NAMES = re.compile(r"[.]*[A-Za-z_][\w.]*")
_SETTING = re.compile(r"\$\{([a-z_]+(?:\.[a-z_]+)+)\}")


def check_file(file: Path) -> None:
    """Raises `Problems` for a file of a person's own config groups that is beyond bounds."""
    if file.is_relative_to(conf_dir()):
        return
    if not file.is_file():
        raise Problems(Problem("--config-dir", f"{file} is not a file", "use one that holds settings", "bad-file"))
    with suppress(YAMLError):  # reading it for its values says so, too
        read_checked(file)


def environment(name: str, *default: Any) -> str | None:
    """`${oc.env:NAME}` and `${oc.env:NAME,default}`."""
    where = f"${{oc.env:{name}}}"
    if is_secret_name(name) or not (name in READABLE or name.startswith(BEGINNINGS)):
        known = ", ".join([*READABLE, *(f"{beginning}..." for beginning in BEGINNINGS)])
        raise Problems(Problem(where, "is not a variable that a config may read", f"use {known}", "not-permitted"))
    if name in os.environ:
        return os.environ[name]
    if not default:
        fix = f"use ${{oc.env:{name},DEFAULT}}"
        raise Problems(Problem(where, f"the environment has no {name}", fix, "not-found"))
    return None if default[0] is None else str(default[0])


def create(text: Any, _parent_: Container) -> Any:
    """`${oc.create:...}`; a text is YAML."""
    if isinstance(text, str):
        try:
            check_limits(text)
        except (LimitExceeded, YAMLError) as error:
            raise Problems(Problem("${oc.create:...}", error_message(error), "use less, and YAML")) from error
    return oc.create(text, _parent_)


def decode(text: str | None, _parent_: Container, _node_: Node) -> Any:
    """`${oc.decode:...}`; a text is of the grammar of words."""
    if isinstance(text, str) and (found := size_problems("${oc.decode:...}", text)):
        raise Problems(found)
    return oc.decode(text, _parent_, _node_)


OmegaConf.register_new_resolver("oc.create", create, replace=True)
OmegaConf.register_new_resolver("oc.decode", decode, replace=True)
OmegaConf.register_new_resolver("oc.env", environment, replace=True)


def resolved(config: Any) -> dict[str, Any]:
    """A composed config as plain values. Raises `Problems`, or an OmegaConf error."""
    with LOCK:
        return _resolved(config)


def _resolved(config: Any) -> dict[str, Any]:
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
            if isinstance(cause, Problems):  # of `environment`, wrapped once or twice
                raise Problems(each.within(str(error.full_key)) for each in cause.problems) from error
            cause = cause.__cause__ or cause.__context__
        raise
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


def _missing_defaults(node: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """The class's default of each `${group.setting}` that config files refer to and nobody sets."""
    found = {}
    for name in sorted({name for text in texts.values() for name in _SETTING.findall(text)}):
        cls, key = owner(node, name)
        declared = fields_of(cls).get(key)
        unset = _stands(name.rpartition(".")[0], texts) and not _stands(name, texts)
        if unset and declared and not declared.is_required():
            found[name] = declared.get_default(call_default_factory=True, validated_data={})
    return found


def _stands(name: str, places: Mapping[str, str]) -> bool:
    """Whether a setting or group is in a config."""
    return name in places or any(place.startswith(f"{name}.") for place in places)


def _check_expansion(texts: Mapping[str, str]) -> None:
    """Raises `Problems` where the interpolations of a config, not yet resolved, stand for too much."""
    if found := [problem for name, text in texts.items() if "${" in text for problem in size_problems(name, text)]:
        raise Problems(found)
    weights: dict[str, int] = {}

    def weight(place: str, above: tuple[str, ...]) -> int:
        """Values and characters that a setting, or a group of them, stands for."""
        if place in above:
            raise Problems(Problem(place, "stands within itself", "use a value"))
        if place not in weights:
            inner = [name for name in texts if name == place or name.startswith(f"{place}.")]
            within = [named for name in inner for named in _named(texts[name], name, texts)]
            weights[place] = len(inner) + sum(weight(named, (*above, place)) for named in within)
            if weights[place] > VALUES:
                raise Problems(Problem(place, f"stands for more than {VALUES:,} values", "use fewer"))
        return weights[place]

    for name, text in texts.items():
        if "${" in text:
            weight(name, ())


def _named(text: str, place: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Settings and groups that an interpolation may mean: all that it names."""
    if "${" not in text:
        return
    for name in _NAMES.findall(text.replace("[", ".").replace("]", "")):
        if (full := absolute(name, place)) and _stands(full, texts):
            yield full
