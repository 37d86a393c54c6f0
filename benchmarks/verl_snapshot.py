"""Writes launcher/engines/verl/config/snapshot.json: verl's keys, defaults and types, composed by Hydra of its own
files. It runs in an environment that has verl.

python benchmarks/verl_snapshot.py
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launcher.engines.verl.config.defaults import CONFIGS, SNAPSHOT

FILES = Path(verl.__file__).parent / "trainer" / "config"
PARTS = {
    "ppo": {"model_engine": ["model_engine", "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"]},
    "sft": {"engine": ["engine"], "optim": ["optim"]},
}
"""What each group whose choice can be given decides."""
CHOSEN = {
    "ppo_trainer": {"model_engine": "dp"},
    "ppo_megatron_trainer": {"model_engine": "megatron"},
    "sft_trainer_engine": {"engine": "fsdp", "optim": "fsdp"},
}


def composed(name: str, *choices: str) -> dict[str, Any]:
    with initialize_config_dir(str(FILES), version_base=None):
        node: dict[str, Any] = OmegaConf.to_container(compose(name, overrides=[*choices]), resolve=False)  # type: ignore[assignment]
        return node


def take_out(node: dict[str, Any], place: str) -> Any:
    *parents, last = place.split(".")
    for parent in parents:
        node = node[parent]
    return node.pop(last)


def program(name: str) -> dict[str, Any]:
    parts, first = PARTS[name], CONFIGS[name][0]
    groups: dict[str, dict[str, Any]] = {}
    for group, places in parts.items():
        for choice in sorted(file.stem for file in (FILES / group).glob("*.yaml")):
            node = composed(first, f"{group}={choice}")
            groups.setdefault(group, {})[choice] = {place: take_out(node, place) for place in places}
    base = composed(first)
    for places in parts.values():
        for place in places:
            take_out(base, place)
    return {"config": base, "groups": groups, "chosen": {config: CHOSEN[config] for config in CONFIGS[name]}}


def targets(node: Any) -> set[str]:
    """The dataclasses that a config names."""
    if not isinstance(node, dict):
        return set()
    own = {node["_target_"]} if isinstance(node.get("_target_"), str) else set()
    return own.union(*map(targets, node.values()))


def types_of(target: str) -> dict[str, str]:
    """The types of a dataclass's fields, as its source has them; None as default makes one optional."""
    module, _, name = target.rpartition(".")
    found = {}
    for field in dataclasses.fields(getattr(importlib.import_module(module), name)):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        kind = str(field.type).replace("typing.", "") if not isinstance(field.type, str | type) else kind
        optional = field.default is None and not kind.startswith(("Optional", "Any"))
        if not field.name.startswith("_"):
            found[field.name] = f"Optional[{kind}]" if optional else kind
    return found


def main() -> None:
    written: dict[str, Any] = {name: program(name) for name in PARTS}
    classes = {target.rpartition(".")[2]: types_of(target) for target in sorted(targets(written))}
    SNAPSHOT.write_text(json.dumps({"classes": classes, **written}, indent=1) + "\n")
    print(f"{SNAPSHOT}: {SNAPSHOT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
