"""The settings that `memory.py` measures: models made here, rows of a known length, and words for `rlrun train`."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from peer_task import ALPHABET, characters

ROWS = 64


@dataclass(frozen=True)
class Shape:
    """A decoder with random weights, written to a folder in `stored`."""

    family: str
    hidden: int
    middle: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False
    stored: str = "float32"


SHAPES = {
    "qwen3-60m": Shape("qwen3", 640, 1920, 8, 10, 5, 32000, tied=True, stored="bfloat16"),
    "llama-35m": Shape("llama", 448, 1792, 9, 7, 1, 12000, stored="bfloat16"),
    "llama-108m": Shape("llama", 768, 2048, 10, 12, 12, 24000),
}


@dataclass(frozen=True)
class Setting:
    """What is trained, and how."""

    algorithm: str
    model: str
    prompt: int
    response: int
    micro: int
    batch: int = 8
    n: int = 2
    rank: int = 0
    checkpointing: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        how = f"LoRA {self.rank}" if self.rank else "full"
        again = ", checkpointing" if self.checkpointing else ""
        return (
            f"{self.algorithm} {self.model}, {how}, {self.dtype}{again}, {self.micro} x ({self.prompt}+{self.response})"
        )

    def words(self, folder: Path) -> list[str]:
        kind = self.algorithm if self.algorithm in ("sft", "dpo") else "prompts"
        sampled = [f"sampler.n={self.n}"] if kind == "prompts" else []
        file = folder / f"{kind}-{self.prompt}-{self.response}.jsonl"
        return [
            f"algorithm={self.algorithm}", "model=hf", f"model.path={folder / self.model}", f"model.dtype={self.dtype}",
            f"model.lora_rank={self.rank}", f"model.enable_gradient_checkpointing={str(self.checkpointing).lower()}",
            "data=files", f"data.train_files={file}", f"data.max_prompt_length={self.prompt}",
            f"data.max_response_length={self.response}", f"data.train_batch_size={self.batch}",
            f"trainer.micro_batch_size_per_gpu={self.micro}", "trainer.total_training_steps=2",
            "hardware=cpu", "engine.num_threads=1", *sampled,
        ]  # fmt: skip


S = Setting
SETTINGS = (
    S("sft", "llama-108m", 40, 80, 6, batch=6),
    S("sft", "qwen3-60m", 80, 120, 5, batch=5, rank=24, dtype="bfloat16", checkpointing=True),
    S("dpo", "qwen3-60m", 30, 70, 6, batch=6, dtype="bfloat16"),
    S("dpo", "llama-35m", 70, 50, 4, batch=4, rank=64),
    S("grpo", "qwen3-60m", 100, 24, 10, n=5, batch=4),
    S("grpo", "llama-108m", 90, 30, 6, n=3, batch=4, rank=16, checkpointing=True),
    S("ppo", "llama-35m", 60, 60, 5, n=3, batch=5, checkpointing=True),
    S("ppo", "qwen3-60m", 30, 40, 4, batch=6, rank=12, dtype="bfloat16"),
)
"""None was looked at while the estimate was made."""


def write_model(folder: Path, shape: Shape) -> None:
    """Random weights; its vocabulary is larger than the tokenizer's, so that answers seldom end."""
    import torch  # noqa: PLC0415  # late: the estimate is made without it
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    tokenizer = characters()
    config = AutoConfig.for_model(
        shape.family, vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.middle,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads, max_position_embeddings=4096, tie_word_embeddings=shape.tied,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.stored)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(folder: Path, prompt: int, response: int) -> None:
    """Demonstrations, pairs and prompts whose every prompt and answer is as long as it may be."""
    chance = random.Random(0)

    def text(length: int) -> str:
        return "".join(chance.choices(ALPHABET[1:], k=length))

    rows = [(text(prompt), text(response - 1), text(response - 1)) for _ in range(ROWS)]  # and the token that ends it
    nodes = {
        "sft": [{"prompt": asked, "response": right} for asked, right, _ in rows],
        "dpo": [{"prompt": asked, "chosen": right, "rejected": wrong} for asked, right, wrong in rows],
        "prompts": [{"prompt": asked, "ground_truth": "1"} for asked, _, _ in rows],
    }
    for kind, of_kind in nodes.items():
        lines = "".join(json.dumps(node) + "\n" for node in of_kind)
        (folder / f"{kind}-{prompt}-{response}.jsonl").write_text(lines)
