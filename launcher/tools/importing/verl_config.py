"""The config that verl composes for a run with engine=verl, and where it differs from another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.config.nodes import walk
from launcher.core.overrides import literal, quoted
from launcher.engines.verl import Verl, words
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.config.defaults import Program
from launcher.spec.run import RunSpec

OWN = (
    "data.train_files", "data.val_files", "trainer.default_local_dir", "trainer.validation_data_dir",
    "trainer.rollout_data_dir", "trainer.default_hdfs_dir", "trainer.logger", "trainer.resume_mode",
    "trainer.resume_from_path", "trainer.project_name", "trainer.experiment_name", "trainer.log_val_generations",
    "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep", "trainer.max_ckpt_to_keep",
    "actor_rollout_ref.rollout.trace.project_name", "actor_rollout_ref.rollout.trace.experiment_name",
    "ray_kwargs.ray_init.address", "reward.custom_reward_function.reward_kwargs",
)  # fmt: skip
"""Keys that a run sets itself: its files and names, where it resumes, what is logged, and which Ray cluster it joins.
"""
AT_THE_END = ("trainer.save_freq", "trainer.test_freq")
"""Frequencies whose values -1 and 0 mean never for verl, and at the end for a run of ours."""
PAIRS = ("ppo_micro_batch_size", "forward_micro_batch_size", "log_prob_micro_batch_size", "micro_batch_size")
"""Sizes without a default, each of which verl wants for all processes or (with `_per_gpu`) for one."""


def program_of(run: RunSpec) -> Program:
    return "ppo" if run.algorithm.sampled else "sft"


def config_of(run: RunSpec) -> dict[str, Any]:
    """The config that verl composes of the arguments that start the run."""
    assert isinstance(run.engine, Verl)
    return compose(words.arguments(run, run.engine, Path("run")), program_of(run)).config


def differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of `wanted` that `found` does not have, without the keys that a run sets itself."""
    expected, actual = (dict(walk(node, lists=False)) for node in (wanted, found))
    for key, value in expected.items():
        if "_target_" in key or value == "???" or any(f"{key}.".startswith(f"{own}.") for own in OWN):
            continue
        if value == actual.get(key) or (key in AT_THE_END and value in (-1, 0)) or _is_unset_size(key, value, expected):
            continue
        yield key, value


def _is_unset_size(key: str, value: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether `key` is one of `PAIRS` that `wanted` does not set in either form, so that any value agrees."""
    prefix, _, name = key.rpartition(".")
    plain = name.removesuffix("_per_gpu")
    return plain in PAIRS and all(wanted.get(f"{prefix}.{each}") is None for each in (plain, f"{plain}_per_gpu"))


def argument_of(key: str, value: Any) -> str:
    """`key=value` as Hydra reads it."""
    return words.to_word(key, value) if not isinstance(value, dict) else f"{key}={literal(value, quoted)}"
