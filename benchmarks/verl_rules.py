"""Random configs of verl, of keys that a run of ours and public launch scripts set: verl's own verdict beside ours.

python benchmarks/verl_rules.py COUNT SEED      in an environment that has verl

Without verl we name more than its `validate_config` does, which stops before the workers start; what it refuses and we
do not name without it is counted, and is to be rare. With verl there, its own verdict is the run's: it is asked as a
plan asks, for one config of each kind.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from launcher.engines.verl import ask, validate
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.rules import judge

ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "model"))
VALUES: dict[str, list[Any]] = {
    "trainer.n_gpus_per_node": [8, 1, 2, 3, 4, 6],
    "trainer.nnodes": [1, 1, 2],
    "data.train_batch_size": [64, 8, 16, 24, 30, 128, 1024],
    f"{ROLLOUT}.n": [8, 1, 2, 5],
    f"{ACTOR}.ppo_mini_batch_size": [32, 8, 16, 64, 256],
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": [4, 1, 2, None],
    f"{ACTOR}.ppo_micro_batch_size": [None, None, None, 8, 3],
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": [4, 2, None],
    f"{REF}.log_prob_micro_batch_size_per_gpu": [4, 2, None],
    f"{ACTOR}.use_kl_loss": [True, False],
    "algorithm.use_kl_in_reward": [False, True],
    "algorithm.adv_estimator": ["grpo", "gae", "rloo"],
    "critic.ppo_micro_batch_size_per_gpu": [4, 2, None],
    "critic.ppo_mini_batch_size": [32, 8, "${actor_rollout_ref.actor.ppo_mini_batch_size}"],
    "critic.enable": [None, None, True, False],
    f"{ACTOR}.use_dynamic_bsz": [False, False, True],
    f"{ACTOR}.loss_agg_mode": ["token-mean", "seq-mean-token-mean", "token-sum", "bogus"],
    f"{MODEL}.use_remove_padding": [True, False],
    f"{ROLLOUT}.val_kwargs.do_sample": [False, True],
    f"{ROLLOUT}.temperature": [1.0, 0.7, 0.0],
    f"{ROLLOUT}.tensor_model_parallel_size": [1, 2, 4],
    f"{ROLLOUT}.name": ["vllm", "sglang", "nonsense"],
    f"{ROLLOUT}.mode": ["async", "async", "sync"],
    f"{MODEL}.lora.merge": [True],  # without it verl wants vLLM to be installed
    f"{MODEL}.lora_rank": [0, 16],
}
"""Values of each setting; the first is harmless."""
OF_BACKEND: dict[str, dict[str, list[Any]]] = {
    "dp": {
        f"{ACTOR}.strategy": ["fsdp", "fsdp2", "nonsense"],
        f"{ACTOR}.ulysses_sequence_parallel_size": [1, 1, 2],
        f"{ACTOR}.optim.lr_scheduler_type": ["constant", "cosine", "linear"],
        f"{ACTOR}.fsdp_config.strategy": ["fsdp", "fsdp2", "megatron"],
    },
    "megatron": {
        f"{ACTOR}.megatron.tensor_model_parallel_size": [1, 2],
        f"{ACTOR}.megatron.pipeline_model_parallel_size": [1, 2],
        f"{ACTOR}.megatron.context_parallel_size": [1, 2],
        f"{ACTOR}.megatron.dtype": ["bfloat16", "float16", "float32"],
    },
}


@dataclass
class Comparison:
    """What verl and our rules say of random configs."""

    both_accept: int = 0
    both_refuse: int = 0
    only_ours: int = 0
    missed: list[str] = field(default_factory=list)
    """What verl refuses and we do not name without verl."""
    examples: dict[bool, list[str]] = field(default_factory=dict)
    """The arguments of one config that verl accepts, and of one that it refuses."""

    @property
    def table(self) -> str:
        head = "| both accept | both refuse | only we refuse | only verl refuses |\n|---|---|---|---|\n"
        return f"{head}| {self.both_accept} | {self.both_refuse} | {self.only_ours} | {len(self.missed)} |"


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
    for _ in range(count):
        words = random_words(chance, model)
        composed = compose(words, "ppo")
        ours = bool(composed.problems) or any(result.level == "FAIL" for result in judge(composed.config))
        with contextlib.redirect_stdout(io.StringIO()):
            answer = validate.answer({"program": "ppo", "arguments": words})
        refused = answer.get("refused")
        found.examples.setdefault(not refused, words)
        found.both_accept += not ours and not refused
        found.both_refuse += bool(ours and refused)
        found.only_ours += bool(ours and not refused)
        if refused and not ours:
            found.missed.append(f"verl says {refused}\n    {' '.join(words)}")
    logging.disable(logging.NOTSET)
    return found


def random_words(chance: random.Random, model: Path) -> list[str]:
    """Of most configs most settings are harmless: a config of random values breaks many rules at once, and shows little
    of each."""
    backend = chance.choice(["dp", "dp", "megatron"])
    calm = chance.choice([0.0, 0.7, 0.85, 0.95])
    chosen = {
        key: values[0] if chance.random() < calm else chance.choice(values)
        for key, values in (VALUES | OF_BACKEND[backend]).items()
    } | {"critic.model.path": str(model), f"{MODEL}.path": str(model)}  # fmt: skip
    return [
        f"model_engine={backend}",
        *(f"{key}={'null' if value is None else value}" for key, value in chosen.items()),
    ]


def main(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = compare(count, seed, tiny_model(Path(folder)))
        print(f"\n{count} random configs, seed {seed}, verl {version('verl')}\n\n{found.table}")
        print(*found.missed[:20], sep="\n")
        asked = {verdict: ask.ask(sys.executable, version("verl"), "ppo", words, {}) for verdict, words in
                 found.examples.items()}  # fmt: skip
    if wrong := [verdict for verdict, answer in asked.items() if (answer is None) != verdict]:
        sys.exit(f"a plan does not have verl's verdict {wrong}")
    if len(found.missed) > count * 0.02:
        sys.exit(f"{len(found.missed)} configs that verl refuses are not named without it")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
