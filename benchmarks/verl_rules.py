"""Random configs of verl: the verdict of its own `validate_config` and of our rules, which is to be the same on all.

python benchmarks/verl_rules.py COUNT SEED      in an environment that has verl
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import verl
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.rules import early

ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "model"))
COMMON: dict[str, list[Any]] = {
    "trainer.n_gpus_per_node": [1, 2, 3, 4, 6, 8],
    "trainer.nnodes": [1, 1, 2],
    "data.train_batch_size": [8, 16, 24, 30, 32, 64, 128, 1024],
    f"{ROLLOUT}.n": [1, 1, 2, 5, 8],
    f"{ACTOR}.ppo_mini_batch_size": [8, 16, 32, 64, 256],
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": [4, 1, 2, 4, 4, None],
    f"{ACTOR}.ppo_micro_batch_size": [None, None, None, None, 8, 3],
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": [4, 2, 4, 4, None],
    f"{ROLLOUT}.log_prob_micro_batch_size": [None, None, None, None, 8],
    f"{REF}.log_prob_micro_batch_size_per_gpu": [4, 2, 4, 4, None],
    f"{REF}.log_prob_micro_batch_size": [None, None, None, None, 8],
    f"{ACTOR}.use_kl_loss": [True, False],
    "algorithm.use_kl_in_reward": [True, False, False],
    "algorithm.adv_estimator": ["gae", "grpo", "grpo", "rloo"],
    "algorithm.rollout_correction.bypass_mode": [False, False, True],
    "critic.ppo_micro_batch_size_per_gpu": [4, 2, 4, None, "${.ppo_micro_batch_size}"],
    "critic.ppo_micro_batch_size": [None, None, None, 8, 3],
    "critic.ppo_mini_batch_size": [8, 32, "${actor_rollout_ref.actor.ppo_mini_batch_size}"],
    "critic.enable": [None, None, None, True, False],
    "critic.use_dynamic_bsz": [False, True, "${actor_rollout_ref.actor.use_dynamic_bsz}"],
    f"{ACTOR}.use_dynamic_bsz": [False, False, False, True],
    f"{ACTOR}.loss_agg_mode": [*["token-mean"] * 6, "seq-mean-token-mean", "token-sum", "bogus"],
    f"{MODEL}.use_remove_padding": [True, True, False],
    f"{ROLLOUT}.val_kwargs.do_sample": [False, True],
    f"{ROLLOUT}.temperature": [1.0, 1.0, 0.7, 0.0],
    f"{ROLLOUT}.name": ["vllm", "sglang", "nonsense"],
    f"{ROLLOUT}.mode": ["async", "async", "sync"],
    f"{MODEL}.lora.merge": [True],  # without it verl wants vLLM
    f"{MODEL}.lora_rank": [0, 0, 16, 1024],
}
"""Values of each setting in the configs of every engine."""
FSDP: dict[str, list[Any]] = {
    f"{ACTOR}.strategy": ["fsdp", "fsdp2", "fsdp2", "nonsense"],
    f"{ACTOR}.ulysses_sequence_parallel_size": [1, 1, 1, 2],
    "critic.ulysses_sequence_parallel_size": [1, 1, 2],
    f"{ACTOR}.optim.lr_scheduler_type": [*["constant"] * 5, "cosine", "linear"],
    f"{ACTOR}.optim.warmup_style": [*[None] * 6, "cosine", "linear"],
    "critic.optim.lr_scheduler_type": [*["constant"] * 5, "linear"],
    f"{ACTOR}.fsdp_config.strategy": [*["fsdp"] * 6, "fsdp2", "megatron"],
}
MEGATRON: dict[str, list[Any]] = {
    f"{ACTOR}.megatron.tensor_model_parallel_size": [1, 2],
    f"{ACTOR}.megatron.pipeline_model_parallel_size": [1, 1, 2],
    f"{ACTOR}.megatron.context_parallel_size": [1, 1, 1, 2],
    f"{ACTOR}.megatron.dtype": [*["bfloat16"] * 6, "float16", "float32"],
    f"{ACTOR}.megatron.router_replay.mode": [*["disabled"] * 4, "R2", "R3", "R4"],
    f"{ACTOR}.megatron.dynamic_context_parallel": [*[False] * 5, True],
    f"{ACTOR}.megatron.max_seqlen_per_dp_cp_rank": [None, 0, 4096],
    f"{ACTOR}.optim.main_grads_dtype": [*["fp32"] * 6, "bf16", "fp16"],
    "critic.megatron.dtype": [*["bfloat16"] * 6, "float32"],
}
SIZES = ("trainer.n_gpus_per_node", "data.train_batch_size", f"{ROLLOUT}.n", f"{ACTOR}.ppo_mini_batch_size")
"""Settings that stay random in every config."""
VEOMNI: dict[str, list[Any]] = {
    f"{ACTOR}.veomni.router_replay.mode": [*["disabled"] * 4, "R2", "R3", "R4"],
    f"{ACTOR}.use_remove_padding": [True, False],
    "critic.veomni.ulysses_parallel_size": [1, 1, 2],
}
TORCHTITAN: dict[str, list[Any]] = {
    f"{ACTOR}.torchtitan.attn_type": [*["flex"] * 4, "varlen", "sdpa"],
    f"{ACTOR}.torchtitan.activation_checkpoint": [*["selective"] * 4, "full", "block"],
    "critic.torchtitan.spmd_backend": [*["spmd_types"] * 5, "dtensor"],
}
ENGINES = {
    "dp": COMMON | FSDP,
    "megatron": COMMON | MEGATRON,
    "veomni": COMMON | VEOMNI,
    "torchtitan": COMMON | TORCHTITAN,
}


RAISED = (
    AssertionError, AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
    ZeroDivisionError, HydraException, OmegaConfBaseException,
)  # fmt: skip
"""What verl raises of a config that it refuses."""


@dataclass
class Comparison:
    """What verl and our rules named of random configs."""

    counts: Counter[tuple[str, bool, bool]] = field(default_factory=Counter)
    """Configs by engine, whether we refuse them, and whether verl does."""
    differences: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        lines = ["| engine | both accept | both refuse | only we refuse | only verl refuses |", "|---|---|---|---|---|"]
        for engine in sorted({engine for engine, *_ in self.counts}):
            cells = [
                self.counts[engine, ours, verls]
                for ours, verls in ((False, False), (True, True), (True, False), (False, True))
            ]
            lines.append(f"| {engine} | {' | '.join(map(str, cells))} |")
        return "\n".join(lines)


def tiny_model(folder: Path) -> Path:
    """A model's folder that verl can read the config and the tokenizer of: a critic's is loaded."""
    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "a": 1}, "<end>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    settings = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 8,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def compare(count: int, seed: int, model: Path) -> Comparison:
    """Both verdicts of `count` random configs; `model` is the folder of one that verl can load."""
    chance, found = random.Random(seed), Comparison()
    logging.disable(logging.CRITICAL)
    for number in range(count):
        engine = chance.choice(["dp"] * 4 + ["megatron"] * 2 + ["veomni", "torchtitan"])
        chosen = _choose(chance, ENGINES[engine]) | {"critic.model.path": str(model), f"{MODEL}.path": str(model)}
        words = [f"model_engine={engine}", *(f"{key}={_text(value)}" for key, value in chosen.items())]
        made = compose(words, "ppo")
        ours = [*made.problems, *early.problems(made.config)]
        theirs = _verdict(_composed(engine, chosen))
        found.counts[engine, bool(ours), theirs is not None] += 1
        if bool(ours) != (theirs is not None):
            named = "; ".join(map(str, ours)) or "nothing"
            found.differences.append(f"config {number}: verl says {theirs}, we say {named}\n    {' '.join(words)}")
    logging.disable(logging.NOTSET)
    return found


def _choose(chance: random.Random, table: dict[str, list[Any]]) -> dict[str, Any]:
    """Random values; of half the configs most settings are harmless, since a config of random values breaks many rules
    at once and shows little of each."""
    chosen = {key: chance.choice(values) for key, values in table.items()}
    if chance.random() < 0.6:
        calm = chance.choice([0.7, 0.85, 0.95])
        chosen |= {key: values[0] for key, values in table.items() if key not in SIZES and chance.random() < calm}
    return chosen


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


@cache
def _base(engine: str) -> Any:
    files = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(files), version_base=None):
        return hydra_compose("ppo_trainer", overrides=[f"model_engine={engine}"])


def _composed(engine: str, chosen: dict[str, Any]) -> Any:
    config = copy.deepcopy(_base(engine))
    for key, value in chosen.items():
        OmegaConf.update(config, key, value, merge=False)
    return config


def _verdict(config: Any) -> str | None:
    """What verl says against a config; None where it accepts it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            validate_config(config, need_reference_policy(config), need_critic(config))
    except RAISED as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
    return None


def main(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = compare(count, seed, tiny_model(Path(folder)))
    print(f"\n{count} random configs, seed {seed}, verl {version('verl')}\n\n{found.table}")
    print(*found.differences[:20], sep="\n")
    if found.differences:
        sys.exit(f"{len(found.differences)} verdicts differ")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
