"""Writes launcher/engines/verl/config/snapshot.json: verl's keys, defaults and fields, composed by Hydra of its own
files.

python benchmarks/verl_snapshot.py FOLDER_OF_THE_PACKAGE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launcher.engines.verl.config.classes import read_classes
from launcher.engines.verl.config.defaults import CONFIGS, SNAPSHOT, digest

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


def composed(files: Path, name: str, *choices: str) -> dict[str, Any]:
    with initialize_config_dir(str(files), version_base=None):
        node: dict[str, Any] = OmegaConf.to_container(compose(name, overrides=[*choices]), resolve=False)  # type: ignore[assignment]
        return node


def taken(node: dict[str, Any], place: str) -> Any:
    """What is at `place`, taken out of the node."""
    *parents, last = place.split(".")
    for parent in parents:
        node = node[parent]
    return node.pop(last)


def program(files: Path, names: tuple[str, ...], parts: dict[str, list[str]]) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {}
    for group, places in parts.items():
        for file in sorted((files / group).glob("*.yaml")):
            node = composed(files, names[0], f"{group}={file.stem}")
            groups.setdefault(group, {})[file.stem] = {place: taken(node, place) for place in places}
    base = composed(files, names[0])
    for places in parts.values():
        for place in places:
            taken(base, place)
    return {"config": base, "groups": groups, "chosen": {name: CHOSEN[name] for name in names}}


def main(package: Path) -> None:
    files = package / "trainer" / "config"
    used = orjson.dumps([program(files, CONFIGS[name], PARTS[name]) for name in PARTS]).decode()
    classes = {name: fields for name, fields in read_classes(package).items() if f".{name}" in used}
    written: dict[str, Any] = {"digest": digest(files), "classes": classes}
    written |= {name: program(files, CONFIGS[name], PARTS[name]) for name in PARTS}
    SNAPSHOT.write_bytes(orjson.dumps(written) + b"\n")
    print(f"{SNAPSHOT}: {SNAPSHOT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
