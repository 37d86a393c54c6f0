"""Files and folders that a config names for verl to read, of RL and SFT alike. A worker that does not find one ends the
run; most are opened after the GPUs are taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from launcher.core.problems import shortened, suggest
from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails
from launcher.engines.verl.rules.settings import MODEL, REF, at, is_set

SEEN = "use a whole path that all nodes see"
READ = (
    "path", "tokenizer_path", "hf_config_path", "lora_adapter_path", "adapter_path", "model_path", "tool_config_path",
    "function_tool_path", "agent_loop_config_path", "router_config_path", "quantization_config_file",
    "quantization_config_path", "dist_checkpointing_path", "replay_file", "resume_from_path",
)  # fmt: skip
"""Last parts of the keys of what is read."""
ENDINGS = {".py", ".yaml", ".yml", ".json", ".jsonl", ".parquet", ".toml"}
"""Of relative names that are no model of a hub."""
ELSEWHERE = ("data.tool_config_path", "data.function_tool_path", "reward_model.", "custom_reward_function.",
             f"{MODEL}.path", "model.path")  # fmt: skip
"""Copies of other keys, what verl does not read, and the model, which a plan opens."""
OBJECTS = {
    "data.custom_cls.path": "data.custom_cls.name",
    "reward.custom_reward_function.path": "reward.custom_reward_function.name",
    "reward.reward_manager.module.path": "reward.reward_manager.name",
    "trainer.v1.sampler.custom_sampler.path": "trainer.v1.sampler.custom_sampler.name",
}
"""Settings that name a Python file, and those with what is taken of it (import_utils.py:250)."""
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
HELD = {"tokenizer_path": TOKENIZERS, "hf_config_path": ("config.json",), "lora_adapter_path": ("adapter_config.json",)}
"""Settings of a model that name a folder, and files of which it holds one (workers/config/model.py:160,
fsdp/transformer_impl.py:283)."""


def held(run: Any, place: str, facts: LaunchFacts) -> Results:
    for name, wanted in HELD.items():
        names = facts.folders.get(path) if isinstance(path := run(f"{place}.{name}"), str) else None
        if names is not None and not names & {*wanted}:
            got = f"{shortened(path)} holds no {wanted[0]}"
            yield fails(f"{place}.{name}", got, f"use a folder with {wanted[0]}", "bad-file")


def objects(run: Any, facts: LaunchFacts) -> Results:
    for key, chosen in OBJECTS.items():
        path, name = run(key), run(chosen)
        bound = facts.bound.get(path) if isinstance(path, str) else None
        if bound is None or (".reward_manager." in key and run("reward.reward_manager.source") != "importlib"):
            continue
        if isinstance(bound, str):
            yield fails(key, bound, "use a Python file that compiles", "bad-file")
        elif is_set(name) and name not in bound:
            known = sorted(each for each in bound if not each.startswith("_"))
            yield fails(chosen, f"{shortened(path)} has no {name}", suggest(str(name), known), "unknown-choice")


def paths(run: Any, facts: LaunchFacts) -> Results:
    if facts.existing is None:
        return
    unused = (*ELSEWHERE, *_unused(run.config))
    for key, value in _named(run.config, ""):
        if not key.startswith(unused) and _leads_nowhere(value, facts.existing):
            yield fails(key, f"there is no {shortened(value)}", SEEN, "not-found")


def _unused(config: dict[str, Any]) -> Iterator[str]:
    """Beginnings of keys that this run does not read."""
    critic = at(config, "critic.enable")
    if not (critic if critic is not None else at(config, "algorithm.adv_estimator") == "gae"):
        yield "critic."
    if not at(config, "reward.reward_model.enable"):
        yield "reward.reward_model."
    if not at(config, "distillation.enabled"):
        yield "distillation."
    if not (at(config, "algorithm.use_kl_in_reward") or at(config, "actor_rollout_ref.actor.use_kl_loss")):
        yield f"{REF}."
    if at(config, "trainer.resume_mode") != "resume_path":
        yield "trainer.resume_from_path"


def _named(node: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        key = f"{place}.{name}" if place else str(name)
        if isinstance(value, dict):
            yield from _named(value, key)
        elif isinstance(value, str) and value and name in READ:
            yield key, value


def _leads_nowhere(value: str, existing: frozenset[str]) -> bool:
    path = value.removeprefix("file://")
    if "://" in path or value in existing or value == "???":
        return False
    return os.path.isabs(os.path.expanduser(path)) or path.startswith("./") or PurePath(path).suffix in ENDINGS
