"""The memory estimate against the measured peak of real runs on this CPU: `python benchmarks/memory.py`.

What is measured is the most that the training process ever had resident (VmHWM). Models and rows are made here. Ends
with 1 when the median error is over 10 %, one is over 25 %, or a limit that the run went over was called enough.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from peer_task import ALPHABET, characters
from rich.console import Console
from rich.table import Table
from watching import QUIET, tree

from launcher.config.resolve import resolve
from launcher.preflight.checks.memory import check_memory

RLRUN = (sys.executable, "-m", "launcher")
WORKER = b"launcher.engines.torch.worker"
POLL_S = 0.01
MEDIAN, WORST = 0.10, 0.25
MIB = 2**20
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
    "llama-20m": Shape("llama", 384, 1024, 8, 6, 6, 8192),
    "qwen3-42m": Shape("qwen3", 512, 1536, 8, 8, 4, 16384),
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
FITTED = (
    S("sft", "llama-20m", 64, 192, 8),
    S("sft", "qwen3-42m", 64, 64, 4, dtype="bfloat16"),
    S("sft", "llama-20m", 64, 192, 8, rank=8),
    S("sft", "qwen3-42m", 64, 192, 8, checkpointing=True),
    S("dpo", "llama-20m", 128, 64, 8),
    S("dpo", "qwen3-42m", 128, 64, 4, batch=4, rank=16, dtype="bfloat16"),
    S("dpo", "llama-20m", 128, 128, 8, checkpointing=True, dtype="bfloat16"),
    S("dpo", "qwen3-42m", 96, 64, 4, batch=4, rank=16, checkpointing=True),
    S("grpo", "qwen3-42m", 64, 48, 8, n=4, batch=4),
    S("grpo", "llama-20m", 64, 48, 16, n=4, batch=4, rank=8),
    S("grpo", "llama-20m", 128, 64, 8, n=4, batch=4, dtype="bfloat16"),
    S("grpo", "qwen3-42m", 64, 48, 16, n=4, batch=4, checkpointing=True),
    S("ppo", "llama-20m", 128, 48, 4),
    S("ppo", "qwen3-42m", 96, 32, 4, batch=4, rank=8),
    S("ppo", "llama-20m", 128, 48, 8, dtype="bfloat16"),
    S("ppo", "llama-20m", 128, 64, 8, checkpointing=True, rank=8, dtype="bfloat16"),
)
"""Seen while the estimate was made."""
HELD_OUT = (
    S("sft", "llama-108m", 40, 80, 6, batch=6),
    S("sft", "qwen3-60m", 80, 120, 5, batch=5, rank=24, dtype="bfloat16", checkpointing=True),
    S("dpo", "qwen3-60m", 30, 70, 6, batch=6, dtype="bfloat16"),
    S("dpo", "llama-35m", 70, 50, 4, batch=4, rank=64),
    S("grpo", "qwen3-60m", 100, 24, 10, n=5, batch=4),
    S("grpo", "llama-108m", 90, 30, 6, n=3, batch=4, rank=16, checkpointing=True),
    S("ppo", "llama-35m", 60, 60, 5, n=3, batch=5, checkpointing=True),
    S("ppo", "qwen3-60m", 30, 40, 4, batch=6, rank=12, dtype="bfloat16"),
)
"""Measured only when it was made."""


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


@dataclass(frozen=True)
class Measured:
    """One setting, estimated and measured, in bytes."""

    name: str
    estimate: int
    peak: int
    held_out: bool
    trusted: bool
    """Whether a limit just under the peak was called enough."""

    @property
    def error(self) -> float:
        return self.estimate / self.peak - 1


def peak_of(words: list[str], folder: Path) -> int:
    """Bytes of the training process of a real run."""
    resident, log = 0, folder / "said"
    typed = [*RLRUN, "train", *words, "trainer.experiment_name=m", "trainer.keep_last=1"]
    with log.open("wb") as out, subprocess.Popen(
        typed, cwd=folder, env={**os.environ, **QUIET}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
    ) as process:  # fmt: skip
        while process.poll() is None:
            resident = max([resident, *map(high_water, tree(process.pid))])
            time.sleep(POLL_S)
    if process.returncode:
        sys.exit(f"{' '.join(words)}\nended with {process.returncode}:\n{log.read_text()[-3000:]}")
    return resident


def high_water(pid: int) -> int:
    """The most that a training process has had resident; 0 for any other."""
    try:
        if WORKER not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return 0
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure(setting: Setting, root: Path) -> Measured:
    model = root / setting.model
    if not model.is_dir():
        code = f"from memory import *; write_model(Path({str(model)!r}), SHAPES[{setting.model!r}])"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, env=os.environ | QUIET)
    write_rows(root, setting.prompt, setting.response)
    words = setting.words(root)
    run = resolve(words)
    memory = run.engine.memory(run)
    assert memory
    with tempfile.TemporaryDirectory(dir=root) as folder:
        peak = peak_of(words, Path(folder))
    called = check_memory(run, peak - 1)
    fits = all(result.level == "OK" for result in called)
    return Measured(setting.name, memory.peak_bytes, peak, setting in HELD_OUT, fits)


def table(found: list[Measured]) -> Table:
    shown = Table("setting", "estimate MiB", "resident MiB", "error", "", title="peak memory of the training process")
    for one in found:
        how = "held out" if one.held_out else ""
        shown.add_row(one.name, f"{one.estimate / MIB:,.0f}", f"{one.peak / MIB:,.0f}", f"{one.error:+.1%}", how)
    return shown


def judged(found: list[Measured], out: Console) -> bool:
    """Whether the estimate is as good as it must be."""
    errors = [abs(one.error) for one in found]
    for name, part in (("all", found), ("held out", [one for one in found if one.held_out])):
        if part:
            of_part = [abs(one.error) for one in part]
            out.print(f"{name}: median error {median(of_part):.1%}, worst {max(of_part):.1%}, {len(part)} settings")
    wrong = [one.name for one in found if one.trusted]
    out.print(f'said "fits" of a limit under the peak: {len(wrong)} {wrong or ""}')
    return median(errors) <= MEDIAN and max(errors) <= WORST and not wrong


def main() -> int:
    out = Console(width=130)
    with tempfile.TemporaryDirectory() as root:
        found = []
        for setting in FITTED + HELD_OUT:
            found.append(measure(setting, Path(root)))
            out.print(f"{found[-1].name}: {found[-1].error:+.1%}", highlight=False)
    out.print(table(found))
    return 0 if judged(found, out) else 1


if __name__ == "__main__":
    sys.exit(main())
