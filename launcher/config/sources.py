"""What Hydra may read: config files of limited size, and the environment variables of a list.

OmegaConf's other resolvers stay: they compute values from values and reach nothing outside the config (`oc.select`,
`oc.create`, `oc.decode`, `oc.deprecated`, `oc.dict.*`), and no class is named by a value. What
interpolations expand to is limited, too, for the whole config: `${b}${b}`, nested thirty times, is a gigabyte.
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
from launcher.core.bounded_parse import SIZE, LimitExceeded, check_limits
from launcher.core.composition import LOCK
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.redaction import is_secret_name

READABLE = ("HOME", "USER", "LOGNAME", "HOSTNAME", "TMPDIR", "PWD", "CUDA_VISIBLE_DEVICES")
BEGINNINGS = ("RLRUN_", "SLURM_")
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
    """`${oc.create:...}`, with limits on a text, which is YAML."""
    if isinstance(text, str):
        try:
            check_limits(text)
        except (LimitExceeded, YAMLError) as error:
            raise Problems(Problem("${oc.create:...}", error_message(error), "use less, and YAML")) from error
    return oc.create(text, _parent_)


def decode(text: str | None, _parent_: Container, _node_: Node) -> Any:
    """`${oc.decode:...}`, with limits on a text, which is of Hydra's grammar."""
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
            defaults[name] = declared.get_default(call_default_factory=True, validated_data={})
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
    sizes: dict[str, int] = {}

    def size(place: str, above: tuple[str, ...]) -> int:
        """How many characters a setting, or a group of settings, expands to; a value counts as one at least."""
        if place in above:
            raise Problems(Problem(place, "stands within itself", "use a value"))
        if place not in sizes:
            inner = [name for name in texts if name == place or name.startswith(f"{place}.")]
            references = [reference for name in inner for reference in _named_settings(texts[name], name, texts)]
            sizes[place] = sum(len(texts[name]) + 1 for name in inner)
            sizes[place] += sum(size(reference, (*above, place)) for reference in references)
        return sizes[place]

    total = 0
    for name in with_references:
        total += size(name, ())
        if total > SIZE:
            raise Problems(Problem(name, f"interpolations stand for more than {SIZE:,} characters", "use fewer"))


def _named_settings(text: str, place: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Full names of the settings and groups that the interpolations of a text name."""
    if "${" not in text:
        return
    for name in _NAMES.findall(text.replace("[", ".").replace("]", "")):
        if (full := absolute(name, place)) and _is_in_config(full, texts):
            yield full
