"""What verl's config is before any argument: of its own files, or of the snapshot of 0.9.1 that is shipped here.

The snapshot (keys, defaults, fields; no text of verl) equals what Hydra composes of the files of 0.9.1, which a test
shows in verl's environment. It is used where verl is not installed on this machine, and where the installed files have
the same hash: composing takes 0.4 s of CPU, reading it 0.1 s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import orjson
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.core.problems import Problem, Problems, error_message, suggest
from launcher.engines.verl.config.classes import Fields, read_classes, source_files

Program = Literal["ppo", "sft"]
CONFIGS = {"ppo": ("ppo_trainer", "ppo_megatron_trainer"), "sft": ("sft_trainer_engine",)}
"""The configs that each program starts from; the first unless `--config-name` says another."""
MEGATRON: Mapping[Program, tuple[str, ...]] = {
    "ppo": ("model_engine=megatron",), "sft": ("engine=megatron", "optim=megatron"),
}  # fmt: skip
"""The choices of verl's that give its config the keys of Megatron."""
SNAPSHOT = Path(__file__).with_name("snapshot.json")


@dataclass(frozen=True)
class Defaults:
    """A config of verl before any value is set."""

    node: dict[str, Any]
    """As Hydra composes it, with its interpolations."""
    classes: Mapping[str, Fields]
    """Fields of the dataclasses that verl makes of its sections, by class name."""


@cache
def snapshot() -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(SNAPSHOT.read_bytes())
    return read


def find_files(environment: Path) -> Path | None:
    """`verl/trainer/config` in a Python environment (its folder with `bin` and `lib`); None where verl is not there."""
    found = sorted(environment.glob("lib/python3*/site-packages/verl/trainer/config/ppo_trainer.yaml"))
    return found[-1].parent if found else None


def digest(files: Path) -> str:
    """Hash of everything that the snapshot is made of."""
    made = hashlib.sha256()
    for file in [*sorted(files.rglob("*.yaml")), *source_files(files.parents[1])]:
        made.update(file.relative_to(files.parents[1]).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return made.hexdigest()


def groups(program: Program, files: Path | None) -> dict[str, list[str]]:
    """The config groups whose choice can be given, with their choices."""
    if files and digest(files) != snapshot()["digest"]:
        return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in files.iterdir() if
                folder.is_dir() and any(folder.glob("*.yaml"))}  # fmt: skip
    return {group: sorted(choices) for group, choices in snapshot()[program]["groups"].items()}


def load(
    program: Program, name: str, choices: Mapping[str, str], files: Path | None, folder: Path | None = None
) -> Defaults:
    """The config called `name` with these choices of groups; `folder` is the user's own, given by `--config-path` or
    `--config-dir`. Raises `Problems`."""
    installed = bool(files) and digest(files) != snapshot()["digest"]  # type: ignore[arg-type]
    if folder is None and not installed and all(group in snapshot()[program]["groups"] for group in choices):
        return Defaults(_from_snapshot(program, name, choices), snapshot()["classes"])
    if files is None and folder is not None and not choices and (own := _own_config(program, name, folder)):
        return Defaults(own, snapshot()["classes"])
    if files is None:
        where = "--config-path" if folder else next(iter(choices))
        got = "verl's files are not on this machine to compose it from"
        raise Problems(Problem(where, got, "plan it where verl is installed, or use single settings", "not-supported"))
    node = _from_files(name, [f"{key}={choice}" for key, choice in choices.items()], files, folder)
    return Defaults(node, read_classes(files.parents[1]) if installed else snapshot()["classes"])


def _from_snapshot(program: Program, name: str, choices: Mapping[str, str]) -> dict[str, Any]:
    if name not in CONFIGS[program]:
        raise Problems(Problem("--config-name", f"verl has no config {name}", suggest(name, CONFIGS[program])))
    known = snapshot()[program]
    node: dict[str, Any] = orjson.loads(orjson.dumps(known["config"]))
    chosen = known["chosen"][name] | choices
    for group, choice in chosen.items():
        if choice not in known["groups"][group]:
            fix = suggest(choice, list(known["groups"][group]), before=f"{group}=")
            raise Problems(Problem(group, f"there is no {choice}", fix, "unknown-choice"))
        for place, part in known["groups"][group][choice].items():
            *parents, last = place.split(".")
            at = node
            for parent in parents:
                at = at.setdefault(parent, {})
            at[last] = part
    return node


def _own_config(program: Program, name: str, folder: Path) -> dict[str, Any] | None:
    """A config of the user's own that is one of verl's with other values, as in verl's examples; None where it is made
    of more."""
    try:
        own: Any = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"))
    except (OSError, YAMLError, OmegaConfBaseException):
        return None
    parts = own.pop("defaults", []) if isinstance(own, dict) else []
    if len(parts) > 2 or parts[:1] not in ([one] for one in CONFIGS[program]) or parts[1:] not in ([], ["_self_"]):
        return None
    own.pop("hydra", None)
    made = OmegaConf.merge(OmegaConf.create(_from_snapshot(program, parts[0], {})), OmegaConf.create(own))
    node: dict[str, Any] = OmegaConf.to_container(made, resolve=False)  # type: ignore[assignment]
    return node


def _from_files(name: str, choices: Sequence[str], files: Path, folder: Path | None) -> dict[str, Any]:
    search = [f"hydra.searchpath=[file://{files.resolve()}]"] if folder else []
    try:
        with initialize_config_dir(str((folder or files).resolve()), version_base=None):
            composed = compose(name, overrides=[*search, *choices])
    except (HydraException, OmegaConfBaseException, YAMLError, OSError) as error:
        where = next(iter(choices), "--config-name").partition("=")[0]
        raise Problems(Problem(where, error_message(error), code="unknown-choice")) from error
    node: dict[str, Any] = OmegaConf.to_container(composed, resolve=False)  # type: ignore[assignment]
    return node
