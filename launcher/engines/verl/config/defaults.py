"""What verl's config is before any argument: the snapshot of 0.9.1 that is shipped here.

The snapshot holds keys, defaults and types, no text of verl. It equals what Hydra composes of verl's files, which a
test shows in verl's environment; `make verl-snapshot` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.core.bounded_parse import LOADER
from launcher.core.problems import Problem, Problems, suggest

Program = Literal["ppo", "sft"]
VERSION = "0.9.1"
CONFIGS = {"ppo": ("ppo_trainer", "ppo_megatron_trainer"), "sft": ("sft_trainer_engine",)}
"""The configs that each program starts from; the first unless `--config-name` says another."""
MEGATRON: Mapping[Program, tuple[str, ...]] = {
    "ppo": ("model_engine=megatron",), "sft": ("engine=megatron", "optim=megatron"),
}  # fmt: skip
"""The choices of groups that give verl's config the keys of Megatron."""
SNAPSHOT, BESIDE = (Path(__file__).with_name(name) for name in ("snapshot.json", "beside.yaml"))


@cache
def snapshot() -> dict[str, Any]:
    """For each program its config and the parts that a choice of a group adds; and the fields of verl's dataclasses."""
    read: dict[str, Any] = orjson.loads(SNAPSHOT.read_bytes())
    return read


@cache
def beside() -> dict[str, Any]:
    """How verl uses its config, as far as the config does not state it: `beside.yaml`."""
    read: dict[str, Any] = yaml.load(BESIDE.read_bytes(), LOADER)  # a SafeLoader
    return read


def load(program: Program, name: str, choices: Mapping[str, str], folder: Path | None = None) -> dict[str, Any]:
    """The config called `name` with these choices of groups, with its interpolations; `folder` is the user's own, given
    by `--config-path` or `--config-dir`. Raises `Problems`."""
    if folder is not None:
        if choices or (own := _own_config(program, name, folder)) is None:
            got = "what it has beside one of verl's configs and values in it is composed by verl alone"
            raise Problems(Problem("--config-path", got, "use single settings", "not-supported"))
        return own
    if name not in CONFIGS[program]:
        raise Problems(Problem("--config-name", f"verl has no config {name}", suggest(name, CONFIGS[program])))
    program_snapshot = snapshot()[program]
    node: dict[str, Any] = orjson.loads(orjson.dumps(program_snapshot["config"]))
    for group, choice in (program_snapshot["chosen"][name] | choices).items():
        if choice not in program_snapshot["groups"].get(group, ()):
            fix = suggest(choice, list(program_snapshot["groups"].get(group, ())), before=f"{group}=")
            raise Problems(Problem(group, f"there is no {choice}", fix, "unknown-choice"))
        for place, part in program_snapshot["groups"][group][choice].items():
            *parents, last = place.split(".")
            section = node
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = part
    return node


def _own_config(program: Program, name: str, folder: Path) -> dict[str, Any] | None:
    """A config of the user's own that is one of verl's with other values, as in verl's examples; None where it is
    composed of more."""
    try:
        own: Any = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"))
    except (OSError, yaml.YAMLError, OmegaConfBaseException):
        return None
    config, *rest = (own.pop("defaults", None) if isinstance(own, dict) else None) or [""]
    if config not in CONFIGS[program] or rest not in ([], ["_self_"]):
        return None
    own.pop("hydra", None)
    merged = OmegaConf.merge(OmegaConf.create(load(program, config, {})), OmegaConf.create(own))
    node: dict[str, Any] = OmegaConf.to_container(merged, resolve=False)  # type: ignore[assignment]
    return node
