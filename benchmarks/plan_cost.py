"""What `rlrun plan` of a 7B model's folder costs, with nothing remembered and then again: `plan_cost.py RUNS`.

The folder has Qwen2.5-7B's shapes, safetensors headers without values (sparse files of 15 GB) and a BPE tokenizer of
152,000 tokens. CPU seconds and the largest process's memory, over all processes; `verl` is a recipe of engine=verl,
without that folder, of which all keys and rules are checked. Ends with 1 above LIMITS.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from launch_model import TEMPLATE
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

RLRUN = [sys.executable, "-m", "launcher"]
LIMITS = {"cold": (6.0, 1.5), "warm": (1.5, 1.5), "verl": (3.0, 1.5)}
"""CPU seconds and GB."""
HIDDEN, HEADS, KEY_HEADS, INNER, LAYERS, VOCABULARY, TOKENS = 3584, 28, 4, 18944, 28, 152064, 151643
SPECIAL = ("<eos>", "<|user|>", "<|assistant|>", "<|system|>")
CONFIG = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "hidden_act": "silu",
    "vocab_size": VOCABULARY, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": False, "bos_token_id": TOKENS, "eos_token_id": TOKENS, "dtype": "bfloat16",
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    keys = HIDDEN // HEADS * KEY_HEADS
    layer = {
        "self_attn.q_proj.weight": (HIDDEN, HIDDEN), "self_attn.q_proj.bias": (HIDDEN,),
        "self_attn.k_proj.weight": (keys, HIDDEN), "self_attn.k_proj.bias": (keys,),
        "self_attn.v_proj.weight": (keys, HIDDEN), "self_attn.v_proj.bias": (keys,),
        "self_attn.o_proj.weight": (HIDDEN, HIDDEN), "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN), "mlp.down_proj.weight": (HIDDEN, INNER),
        "input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,),
    }  # fmt: skip
    found: dict[str, tuple[int, ...]] = {
        f"model.layers.{number}.{name}": shape for number in range(LAYERS) for name, shape in layer.items()
    }
    ends = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return {**found, **ends, "model.norm.weight": (HIDDEN,)}


def save_headers(folder: Path, parts: int = 4) -> None:
    """Shards that have a header and no values."""
    tensors = shapes()
    index = dict[str, str]()
    for part in range(parts):
        header, end = dict[str, object](), 0
        for name in list(tensors)[part::parts]:
            begin, end = end, end + 2 * _product(tensors[name])
            header[name] = {"dtype": "BF16", "shape": list(tensors[name]), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        file = folder / f"model-{part + 1:05}-of-{parts:05}.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(file, 8 + len(text) + end)
        index |= dict.fromkeys(header, file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _product(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def save_tokenizer(folder: Path) -> None:
    """Byte-level BPE whose merges join random tokens."""
    draw = random.Random(0)
    known = sorted(pre_tokenizers.ByteLevel.alphabet())
    seen, merges = set(known), list[tuple[str, str]]()
    while len(known) < TOKENS:
        left, right = known[min(int(draw.expovariate(1e-3)), len(known) - 1)], draw.choice(known[:2000])
        if left + right not in seen and len(left + right) < 16:
            seen.add(left + right)
            known.append(left + right)
            merges.append((left, right))
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(known)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<eos>", "pad_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))


def save(folder: Path, rows: int) -> list[str]:
    """The model, the data and the words that plan them."""
    (model := folder / "model").mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    save_headers(model)
    save_tokenizer(model)
    numbers = random.Random(0)
    with (folder / "train.jsonl").open("w") as file:
        for _ in range(rows):
            a, b = numbers.randrange(1000), numbers.randrange(1000)
            question = f"Ada had {a} marbles and bought {b} more on her way home. How many marbles has she now?" * 3
            file.write(json.dumps({"prompt": question, "ground_truth": str(a + b)}) + "\n")
    return ["algorithm=grpo", f"model={model}", f"data={folder / 'train.jsonl'}", "hardware=h100x8"]


def cost(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """CPU seconds of all processes, and GB of the largest."""
    measured = "import os, resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=2)\n" \
               "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n" \
               "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6)"  # fmt: skip
    words = [sys.executable, "-c", measured, *command]
    ran = subprocess.run(words, env=env, text=True, capture_output=True, check=True)
    seconds, memory = ran.stdout.split()
    assert "FAIL" not in ran.stderr, ran.stderr
    return float(seconds), float(memory)


def main(runs: int) -> int:
    table = Table("rlrun plan, 7B", "CPU s", "range", "GB", "at most", title=f"medians of {runs} runs")
    within = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        command = [*RLRUN, "plan", *save(folder, 2000)]
        found = dict[str, list[tuple[float, float]]](cold=[], warm=[], verl=[])
        for number in range(runs + 1):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            verl = [*RLRUN, "plan", "--recipe", "verl-grpo-gsm8k"]
            pair = cost(command, env), cost(command, env), cost(verl, env)
            for kind, one in zip(found, pair, strict=True):
                found[kind] += [one] if number else []  # the first reads files that the others have in memory
    for kind, measured in found.items():
        seconds, memory = [one[0] for one in measured], max(one[1] for one in measured)
        median, (most_s, most_gb) = statistics.median(seconds), LIMITS[kind]
        within &= median <= most_s and memory <= most_gb
        of = f"{min(seconds):.2f}–{max(seconds):.2f}"
        table.add_row(kind, f"{median:.2f}", of, f"{memory:.2f}", f"{most_s:g} s, {most_gb:g} GB")
    Console().print(table)
    return not within


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
