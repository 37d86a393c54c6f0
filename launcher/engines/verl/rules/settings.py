"""verl's config as a nested dict: values by their keys, and the sizes that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, gcd, lcm, prod
from typing import Any

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
MISSING = "???"
"""Hydra's mark for a value that must be given."""
SHARDED = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
"""Megatron's sizes, whose product is the number of GPUs that hold one copy of the model."""


def at(config: Any, key: str, default: Any = None) -> Any:
    """The value of `a.b.c`; `default` where there is none."""
    for part in key.split("."):
        if not isinstance(config, dict) or part not in config:
            return default
        config = config[part]
    return config


def is_set(value: Any) -> bool:
    return value not in (None, MISSING, "")


def multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` next to `value`, above 0: what to use instead of it."""
    below, above = value // step * step, ceil(value / step) * step
    return [number for number in dict.fromkeys((below, max(above, step))) if number]


def step_for(total: int, factor: int) -> int:
    """The step of x in which x * factor is a multiple of `total`."""
    return total // gcd(total, factor)


def divisors(total: int, near: int) -> list[int]:
    """The divisors of `total` next to `near`: below it, and above it."""
    fitting = [number for number in range(1, total + 1) if total % number == 0]
    below = [number for number in fitting if number <= near][-1:]
    return below + [number for number in fitting if number > near][:1]


def product(section: Any, *names: str) -> int:
    """The product of sizes, of which those that are not set are 1; at least 1."""
    return max(prod(int(at(section, name) or 1) for name in names), 1)


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of a training: GPUs, of which `ranks` have different data, and batches.

    A batch is counted in prompts, of which each has `n` answers (`ppo_mini_batch_size`, too), or in rows of SFT.
    """

    config: dict[str, Any]

    def __call__(self, key: str, default: Any = None) -> Any:
        return at(self.config, key, default)

    @cached_property
    def sampled(self) -> bool:
        """Whether it is a config of main_ppo, and not of SFT."""
        return "actor_rollout_ref" in self.config

    @cached_property
    def gpus(self) -> int:
        return int(self("trainer.n_gpus_per_node") * self("trainer.nnodes"))

    @cached_property
    def n(self) -> int:
        return int(self(f"{ROLLOUT}.n", 1))

    @cached_property
    def needs_reference(self) -> bool:
        return bool(self("algorithm.use_kl_in_reward") or self(f"{ACTOR}.use_kl_loss"))

    @cached_property
    def has_adapter(self) -> bool:
        rank = self(f"{MODEL}.lora.rank") or self(f"{MODEL}.lora_rank") or 0
        return rank > 0 or self(f"{MODEL}.lora_adapter_path") is not None

    @cached_property
    def needs_critic(self) -> bool:
        enable = self("critic.enable")
        return bool(enable) if enable is not None else self("algorithm.adv_estimator") == "gae"

    @cached_property
    def v1(self) -> bool:
        """Whether the trainer is that of `trainer.use_v1`, which fills batches up."""
        return bool(self("trainer.use_v1", True))

    @property
    def trained(self) -> list[str]:
        """Sections with an optimizer."""
        return [ACTOR, *(["critic"] if self.needs_critic else [])]

    def uses_megatron(self, section: str = ACTOR) -> bool:
        return isinstance(self(f"{section}.megatron"), dict) or str(self(f"{section}._target_")).endswith("Mcore"
            "EngineConfig")  # fmt: skip

    def sequence_parallel(self, section: str = ACTOR) -> int:
        """Ranks that a sequence is cut over."""
        if self.uses_megatron(section):
            return product(self(f"{section}.megatron") or self(section), "context_parallel_size")
        inner = "critic.fsdp" if section == "critic" else section
        return product(self(inner), "ulysses_sequence_parallel_size")

    def model_parallel(self, section: str = ACTOR) -> int:
        """GPUs that hold one copy of a micro-batch."""
        if self.uses_megatron(section):
            return product(self(f"{section}.megatron") or self(section), *SHARDED)
        return self.sequence_parallel(section)

    def ranks(self, section: str = ACTOR) -> int:
        """Ranks with different data; at least 1."""
        return max(self.gpus // self.model_parallel(section), 1)

    def mini(self, section: str = ACTOR) -> int:
        """Answers of a mini-batch."""
        return int(self(f"{section}.ppo_mini_batch_size")) * self.n

    @property
    def filled(self) -> int:
        """Answers of a step, filled up with copies."""
        step = lcm(self.ranks(), *(self.mini(section) for section in self.trained)) if self.v1 else 1
        return ceil(self("data.train_batch_size") * self.n / step) * step

    def unused(self) -> Iterator[str]:
        """Beginnings of keys that this training does not read."""
        if self.sampled and not self.needs_critic:
            yield "critic."
        if not self("reward.reward_model.enable"):
            yield "reward.reward_model."
        if not self.needs_reference:
            yield f"{REF}."
