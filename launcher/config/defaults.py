"""Values that are derived where they are not given: the size of a group, learning rates, batch size, lengths.

A class's own default is for the usual case; derived values are put into the run before it is checked, so that
spec.yaml and a plan show them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from math import lcm
from typing import Any

from pydantic import TypeAdapter, ValidationError

from launcher.config.descriptions import fields_of
from launcher.config.nodes import flat, owner
from launcher.core.problems import Problems
from launcher.core.settings import Chosen
from launcher.spec.algorithm import Algorithm
from launcher.spec.data import Dataset
from launcher.spec.hardware import Hardware
from launcher.spec.model import Model
from launcher.spec.run import usual_critic_lr, usual_lr

HELD_OUT = 0.1
"""Share of the training rows that are held out where the data has no held-out rows of its own."""
GROUP = 8
"""Answers to each prompt (`sampler.n`) where the algorithm compares them."""
MEMORY = "fitted to the memory of each process"
FASTER = "faster on GPUs, in less memory"
REASONS = {
    "sampler.n": "fitted to the algorithm", "optim.lr": "fitted to algorithm and model",
    "critic.optim.lr": "fitted to the model", "data.max_prompt_length": "fitted to model or data.max_length",
    "data.max_response_length": "fitted to model or data.max_length",
    "data.train_batch_size": "fitted to rows and processes", "data.val_share": "fitted to the rows",
    "trainer.total_epochs": "fitted to rows and model", "trainer.test_freq": "fitted to the steps",
    "trainer.save_freq": "fitted to the steps", "model.alphabet": "fitted to the rows",
    "data.val_batch_size": MEMORY, "trainer.micro_batch_size_per_gpu": MEMORY, "sampler.max_num_seqs": MEMORY,
    "model.enable_gradient_checkpointing": MEMORY, "engine.mixed_precision": FASTER, "engine.strategy": MEMORY,
}  # fmt: skip
"""Setting -> what its derived value depends on; all that are derived here or in `preflight/fit`."""


def derive(node: dict[str, Any]) -> frozenset[str]:
    """Add derived values to `node`, a composed run, except those that depend on a missing or invalid group. Returns
    the names of the settings that were added."""
    before = {*flat(node)}
    algorithm: Algorithm | None = _build_group(node, "algorithm", Chosen[Algorithm])
    model: Model | None = _build_group(node, "model", Chosen[Model])
    if algorithm and algorithm.sampled and _default(node, "sampler.n") < algorithm.min_answers:
        _set_default(node, "sampler", "n", GROUP)
    if algorithm and model:
        _set_default(node, "optim", "lr", usual_lr(algorithm, model))
        if "critic" in algorithm.needs and isinstance(node.get("critic"), dict):
            _set_default(node["critic"], "optim", "lr", usual_critic_lr(model))
    if hardware := _build_group(node, "hardware", Hardware):
        _fit_batch(node, hardware.processes)
    if algorithm and isinstance(data := node.get("data"), dict) and type(data.get("max_length")) is int:
        _share_length(node, data["max_length"], algorithm.sampled)
    _hold_out(node)
    with suppress(Problems, OSError):  # reported elsewhere
        model = model and model.here
    if model and model.positions:
        _fit_lengths(node, model.positions)
    return frozenset({*flat(node)} - before)


def _hold_out(node: dict[str, Any]) -> None:
    """Hold out a share of the rows where the data has no held-out rows of its own."""
    rows: Dataset | None = _build_group(node, "data", Chosen[Dataset])
    if rows and not node["data"].get("val_files") and replace(rows, val_share=HELD_OUT).held_out is None:
        _set_default(node, "data", "val_share", HELD_OUT)


def _fit_batch(node: dict[str, Any], processes: int) -> None:
    """Set the largest batch, at most the usual one, that splits over processes and mini-batches."""
    usual, trainer = _default(node, "data.train_batch_size"), node.get("trainer")
    mini = trainer.get("ppo_mini_batch_size") if isinstance(trainer, dict) else None
    unit = lcm(processes, mini if type(mini) is int and mini > 0 else 1)
    if usual % unit:
        _set_default(node, "data", "train_batch_size", max(usual // unit, 1) * unit)


def _share_length(node: dict[str, Any], limit: int, sampled: bool) -> None:
    """Set the lengths of prompt and answer within `limit` tokens; sampled answers take what the prompt leaves."""
    names, data = ("max_prompt_length", "max_response_length"), node["data"]
    usual = min(_default(node, f"data.{names[0]}"), limit // 2)
    for name, other, share in zip(names, reversed(names), (usual, limit - usual), strict=True):
        length = limit - data[other] if type(data.get(other)) is int else share
        _set_default(node, "data", name, max(length, 1) if sampled else limit)


def _fit_lengths(node: dict[str, Any], positions: int) -> None:
    """Where the lengths exceed the model's positions together, give the prompt a third of them, or what a given answer
    length leaves, and the answer the rest."""
    names, data = ("max_prompt_length", "max_response_length"), node.get("data")
    if not isinstance(data, dict):
        return
    prompt, response = (data.get(name, _default(node, f"data.{name}")) for name in names)
    if type(prompt) is not int or type(response) is not int or prompt + response <= positions:
        return
    if names[0] not in data:
        prompt = positions - response if names[1] in data else positions // 3
    if 0 < prompt < positions:
        _set_default(node, "data", names[0], prompt)
        _set_default(node, "data", names[1], positions - prompt)


def _build_group(node: dict[str, Any], group: str, chosen: Any) -> Any:
    """The group's object; None where it is invalid, which is reported elsewhere."""
    with suppress(ValidationError, TypeError, ValueError):
        return TypeAdapter(chosen).validate_json(json.dumps(node.get(group)))
    return None


def _default(node: dict[str, Any], name: str) -> Any:
    """The default of a setting in the class that was chosen."""
    cls, key = owner(node, name)
    return fields_of(cls)[key].default


def _set_default(node: dict[str, Any], group: str, name: str, value: Any) -> None:
    if isinstance(node.get(group), dict):
        node[group].setdefault(name, value)
