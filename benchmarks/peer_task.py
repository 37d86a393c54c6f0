"""The task that both sides of `train_vs_trl.py` are given: a model folder and rows, the same bytes for both.

Rows are arithmetic word problems like GSM8K's: one sentence and one line of working for each step, one to five
steps, so that lengths spread as they do there (standard deviation about 0.4 of the mean). The result has one digit,
so that even an untrained model is right at times.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from launcher.text.tokenizer import character_tokenizer

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
EOS_SHARE = 0.025  # of each next token: answers of at most 64 tokens then have 32 in the mean
MAX_ANSWER = 64
ROWS = 1000


@dataclass(frozen=True)
class Size:
    """A Qwen3 of this shape, and the steps that one repetition measures after the warm-up."""

    hidden: int
    layers: int
    heads: int
    steps: int


SIZES = {"tiny": Size(128, 4, 4, 10), "small": Size(512, 8, 8, 4)}

NAMES = ("Tom", "Natalia", "Weng", "Alexandra", "Sam", "Priya", "Jo", "Benjamin")
THINGS = ("apples", "marbles", "red pencils", "stickers", "books", "old coins")
PLUS = ("{} buys {} more.", "A friend gives {} another {}.", "On the way home {} finds {} of them.")
MINUS = ("{} gives {} away.", "Then {} loses {}.", "In the afternoon {} sells {} of them to a neighbour.")


def problem(chance: random.Random) -> tuple[str, str, int]:
    """A question, its working, and its result."""
    name, thing, have = chance.choice(NAMES), chance.choice(THINGS), chance.randint(1, 9)
    output, working = [f"{name} has {have} {thing}."], []
    for _ in range(chance.randint(1, 5)):
        result = chance.choice([number for number in range(10) if number != have])
        by = abs(result - have)
        output.append(chance.choice(PLUS if result > have else MINUS).format(name, by))
        working.append(f"{name} has {have} {'+' if result > have else '-'} {by} = {result} {thing}.")
        have = result
    return " ".join([*output, f"How many {thing} does {name} have?"]), "\n".join(working), have


def write_rows(folder: Path) -> None:
    """sft.jsonl, dpo.jsonl and grpo.jsonl. The rejected answer of a pair stops early and names another number."""
    chance = random.Random(0)
    with (
        (folder / "sft.jsonl").open("w") as sft,
        (folder / "dpo.jsonl").open("w") as dpo,
        (folder / "grpo.jsonl").open("w") as grpo,
    ):
        for _ in range(ROWS):
            question, working, result = problem(chance)
            right = f"{working}\n#### {result}"
            lines = working.split("\n")
            wrong = "\n".join([*lines[: chance.randint(1, len(lines))], f"#### {(result + chance.randint(1, 9)) % 10}"])
            print(json.dumps({"prompt": question, "response": right}), file=sft)
            print(json.dumps({"prompt": question, "chosen": right, "rejected": wrong}), file=dpo)
            print(json.dumps({"prompt": question, "ground_truth": str(result)}), file=grpo)


def characters() -> PreTrainedTokenizerFast:
    """One token for each character, and no chat template: both sides see the prompt's text and nothing else."""
    return character_tokenizer(ALPHABET)


def write_model(folder: Path, size: Size) -> None:
    """Random weights in float32. Their answers end by chance, see EOS_SHARE."""
    tokenizer = characters()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=size.hidden, intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.heads // 2,
        head_dim=size.hidden // size.heads, max_position_embeddings=1024, tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).eval()
    bias_end(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def bias_end(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Give the end token about EOS_SHARE everywhere. The head has no bias, so one feature is made constant for it."""
    model.model.embed_tokens.weight[:, 0] = 0.2  # ten times what the others are
    chance = random.Random(1)
    texts = [problem(chance)[0] for _ in range(16)]
    ids = [tokenizer(text, return_tensors="pt").input_ids for text in texts]
    hidden = torch.cat([model.model(input_ids=one).last_hidden_state[0] for one in ids])
    end = model.lm_head.weight[tokenizer.eos_token_id]
    others = torch.logsumexp(hidden @ model.lm_head.weight.T, -1).mean()
    end.zero_()
    end[0] = (others + math.log(EOS_SHARE / (1 - EOS_SHARE))) / hidden[:, 0].mean()
