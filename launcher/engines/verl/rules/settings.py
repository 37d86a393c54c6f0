"""verl's config as a nested dict: values by their keys, and the numbers that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, gcd, lcm, prod
from typing import Any

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
ENGINES = {
    "FSDPEngineConfig": "fsdp",
    "McoreEngineConfig": "megatron",
    "VeOmniEngineConfig": "veomni",
    "TorchtitanEngineConfig": "torchtitan",
    "AutomodelEngineConfig": "automodel",
}
"""What trains, by the class of an engine's settings."""
AGENT_LOOPS = ("single_turn_agent", "tool_agent")
"""verl's own agent loops."""
MISSING = "???"
"""What Hydra has where a value must be given."""


def at(config: Any, key: str, default: Any = None) -> Any:
    """The value of `a.b.c`; `default` where there is none."""
    for part in key.split("."):
        if not isinstance(config, dict) or part not in config:
            return default
        config = config[part]
    return config


def is_set(value: Any) -> bool:
    return value not in (None, MISSING)


def multiples(value: int, step: int, least: int = 1) -> list[int]:
    """The multiples of `step` next to `value`, at least `least`: what to use instead of it."""
    below, above = value // step * step, ceil(value / step) * step
    return [number for number in dict.fromkeys((below, max(above, step))) if number >= least] or [
        ceil(least / step) * step
    ]


def step_for(total: int, factor: int) -> int:
    """The step of x in which x * factor is a multiple of `total`."""
    return total // gcd(total, factor)


def divisors(total: int, near: int) -> list[int]:
    """The divisors of `total` next to `near`: below it, and above it."""
    fitting = [number for number in range(1, total + 1) if total % number == 0]
    below = [number for number in fitting if number <= near][-1:]
    return below + [number for number in fitting if number > near][:1]


@dataclass(frozen=True)
class RlSizes:
    """Sizes of a PPO training: G GPUs, of which `dp` ranks have different data.

    A batch is counted in prompts, of which each has `n` answers; `ppo_mini_batch_size` is in prompts too.
    """

    config: dict[str, Any]

    def __call__(self, key: str, default: Any = None) -> Any:
        return at(self.config, key, default)

    @cached_property
    def gpus(self) -> int:
        return int(self("trainer.n_gpus_per_node") * self("trainer.nnodes"))

    @cached_property
    def n(self) -> int:
        return int(self(f"{ROLLOUT}.n"))

    @cached_property
    def batch(self) -> int:
        """Prompts of a step."""
        return int(self("data.train_batch_size"))

    @cached_property
    def updates(self) -> int:
        """Parts of a step's batch that are sampled and trained on one after another."""
        return int(self(f"trainer.v1.{self.mode}.parameter_sync_step") or 1) if self.v1 else 1

    @property
    def answers(self) -> int:
        """Answers that are trained on at once."""
        return self.batch * self.n // max(self.updates, 1)

    @cached_property
    def length(self) -> int:
        """Most tokens of a prompt and its answer."""
        return int(self("data.max_prompt_length") + self("data.max_response_length"))

    @cached_property
    def strategy(self) -> str:
        return str(self(f"{ACTOR}.strategy"))

    @cached_property
    def dynamic(self) -> bool:
        return bool(self(f"{ACTOR}.use_dynamic_bsz"))

    def sequence_parallel(self, section: str = ACTOR) -> int:
        return sequence_parallel(self(section))

    def model_parallel(self, section: str = ACTOR) -> int:
        return model_parallel(self(section))

    def dp(self, section: str = ACTOR) -> int:
        return data_parallel(self(section), self.gpus)

    def mini(self, section: str = ACTOR) -> int:
        """Answers of a mini-batch."""
        return int(self(f"{section}.ppo_mini_batch_size")) * self.n

    @cached_property
    def padded(self) -> int:
        """Answers of a step after V1 has filled it up with copies: a multiple of dp and of the mini-batches."""
        if not self.v1:
            return self.answers
        step = lcm(self.dp(), self.mini())
        if self.needs_critic:
            step = lcm(step, self.mini("critic"))
        return ceil(self.answers / step) * step

    @cached_property
    def rollout_gpus(self) -> int:
        """GPUs of one replica of the rollout engine."""
        return replica_gpus(self(ROLLOUT))

    @cached_property
    def needs_ref(self) -> bool:
        return bool(self("algorithm.use_kl_in_reward") or self(f"{ACTOR}.use_kl_loss"))

    @cached_property
    def needs_critic(self) -> bool:
        enable = self("critic.enable")
        return bool(enable) if enable is not None else self("algorithm.adv_estimator") == "gae"

    @cached_property
    def lora_rank(self) -> int:
        return (self(f"{MODEL}.lora.rank") or 0) or (self(f"{MODEL}.lora_rank") or 0)

    @cached_property
    def ref_in_actor(self) -> bool:
        """With LoRA the reference is the actor without its adapter."""
        return self.lora_rank > 0 or self(f"{MODEL}.lora_adapter_path") is not None

    @cached_property
    def v1(self) -> bool:
        return bool(self("trainer.use_v1", True))

    @cached_property
    def mode(self) -> str:
        return str(self("trainer.v1.trainer_mode"))

    @cached_property
    def reward_model(self) -> bool:
        return bool(self("reward.reward_model.enable"))


def replica_gpus(rollout: dict[str, Any]) -> int:
    return product(rollout, "tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")


def product(section: dict[str, Any], *names: str) -> int:
    """The product of sizes, of which those that are not set are 1; at least 1."""
    return max(prod(int(section.get(name) or 1) for name in names), 1)


def engine_of(section: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What trains an actor, a critic or the model of SFT: fsdp, megatron, torchtitan, veomni or automodel, with its
    settings."""
    for kind in ("megatron", "torchtitan", "veomni"):
        if isinstance(section.get(kind), dict):
            return kind, section[kind]
    inner = section.get("fsdp_config", section.get("fsdp"))
    if isinstance(inner, dict):
        own = section.get("ulysses_sequence_parallel_size") or 1
        if "fsdp_config" in section and own > 1:  # a critic's own key is not passed on to its engine
            return "fsdp", inner | {"ulysses_sequence_parallel_size": own}
        return "fsdp", inner
    return ENGINES.get(str(section.get("_target_")).rpartition(".")[2], "fsdp"), section


def sequence_parallel(section: dict[str, Any]) -> int:
    """Ranks that a sequence is cut over, as verl multiplies a micro-batch of tokens by them."""
    kind, engine = engine_of(section)
    names = {
        "fsdp": "ulysses_sequence_parallel_size", "megatron": "context_parallel_size",
        "veomni": "ulysses_parallel_size", "torchtitan": "tensor_parallel_size",
    }  # fmt: skip
    return product(engine, names[kind]) if kind in names else 1


def data_parallel(section: dict[str, Any], gpus: int) -> int:
    """Ranks with different data; at least 1."""
    kind, engine = engine_of(section)
    if kind == "torchtitan":
        return product(engine, "data_parallel_shard_size", "data_parallel_replicate_size")
    if kind == "megatron" and engine.get("dynamic_context_parallel"):
        return 1
    return max(gpus // model_parallel(section), 1)


def model_parallel(section: dict[str, Any]) -> int:
    """GPUs that hold one copy of a micro-batch."""
    kind, engine = engine_of(section)
    if kind == "megatron":
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        return product(engine, *sizes)
    if kind == "automodel":
        return product(engine, "tp_size", "pp_size", "cp_size")
    return sequence_parallel(section)
