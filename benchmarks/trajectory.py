"""Whole trainings against TRL, step by step: loss, norm of the gradient, learning rate, and the weights in the end.

    python benchmarks/trajectory.py [--peer PYTHON]

Ends with 1 when a bound is missed. Ours is the real command, TRL's side a script (`trl_peer.py`): the same folder of a
small gpt2, which has dropout, the same rows in the same order, 15 steps of AdamW with weight decay 0.1, gradients
clipped at 1, all in float32. Dropout draws random numbers: where it is on, the peer seeds torch in each step as ours
does, and all rows have one length, because TRL draws for padding too. Rows that TRL packs are given to ours in the
order in which TRL took them. A difference is one of the size of what is compared, where that is above 1.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peer_task import characters, problem
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from train_vs_trl import PEER, RLRUN, machine
from transformers import GPT2Config, GPT2LMHeadModel

from launcher.core.events import Step, events_of
from launcher.engines.torch.rollout.random_streams import dropout_seed

STEPS, BATCH, LR, WARM_UP, LONGEST = 15, 8, 1e-3, 3, 128
BOUNDS = (2e-6, 2e-6, 1e-12, 1e-5)  # of loss, gradient norm, learning rate; of the weights' way
OURS = (
    f"data.train_batch_size={BATCH}", "data.shuffle=false", "data.val_share=0",
    "data.max_prompt_length=512", "data.max_response_length=512",
    f"optim.lr={LR}", "optim.weight_decay=0.1", f"optim.lr_warmup_steps={WARM_UP}", "hardware=cpu",
    "engine.num_threads=1", f"trainer.total_training_steps={STEPS}", "trainer.val_before_train=false",
    "trainer.project_name=trajectory",
)  # fmt: skip
TRLS = {
    "learning_rate": LR, "weight_decay": 0.1, "warmup_steps": WARM_UP, "logging_strategy": "steps", "logging_steps": 1,
    "per_device_train_batch_size": BATCH, "max_length": None,
    "seeds": [dropout_seed(0, step, 0) for step in range(1, STEPS + 1)],
}  # fmt: skip
PACKED = "trainer.max_tokens_per_gpu=4096"


@dataclass(frozen=True)
class Case:
    """A training, with the arguments of each side."""

    name: str
    rows: str = "ragged"
    ours: tuple[str, ...] = ()
    trl: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "cosine"
    work: str = "sft"


WITHOUT, NO_DROPOUT = ("model.dropout=false",), {"dropout": False}
HALVES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
CASES = [
    Case("SFT, gpt2's dropout", "equal"),
    Case("SFT, gpt2's dropout, 2 micro-batches", "equal", ("trainer.micro_batch_size_per_gpu=4",), HALVES),
    Case("SFT", "ragged", WITHOUT, NO_DROPOUT),
    Case("SFT, 2 micro-batches", "ragged", (*WITHOUT, "trainer.micro_batch_size_per_gpu=4"), NO_DROPOUT | HALVES),
    Case("SFT, ours by tokens", "ragged", (*WITHOUT, PACKED), NO_DROPOUT),
    Case("SFT, TRL's padding_free", "ragged", (*WITHOUT, PACKED), NO_DROPOUT | {"padding_free": True}),
    Case("SFT, TRL's packing", "pairs", (*WITHOUT, PACKED),
         NO_DROPOUT | {"packing": True, "max_length": LONGEST, "per_device_train_batch_size": BATCH // 2}),
    Case("SFT, linear", "ragged", WITHOUT, NO_DROPOUT, "linear"),
    Case("DPO", "preferences", work="dpo"),
    Case("DPO, ours by tokens", "preferences", (PACKED,), work="dpo"),
    Case("DPO, linear", "preferences", schedule="linear", work="dpo"),
]  # fmt: skip


# ---- the task


def write_model(folder: Path) -> None:
    tokenizer = characters()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=64, n_layer=2, n_head=4, n_positions=1024,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def rows_of(kind: str) -> Iterator[dict[str, str]]:
    """`equal`: of one length; `pairs`: two of them and two ends fill a packed row of TRL's; else as they come."""
    chance = random.Random(0)
    for number in range(STEPS * BATCH):
        question, working, result = problem(chance)
        answer = f"{working}\n#### {result}"
        if kind == "preferences":
            yield {"prompt": question, "chosen": answer, "rejected": f"{working[:30]}\n#### {(result + 1) % 10}"}
        elif kind == "ragged":
            yield {"prompt": question, "response": answer}
        else:
            short = 30 + number // 2 % 30
            total = 90 if kind == "equal" else short if number % 2 else LONGEST - short
            yield {"prompt": question[:20], "response": (answer * 9)[: total - 21]}


# ---- the sides


@dataclass(frozen=True)
class Course:
    """What a training came to."""

    steps: Sequence[tuple[float, float, float]]  # loss, gradient norm, learning rate
    tokens: Sequence[float]
    weights: Mapping[str, torch.Tensor]


class Bench:
    def __init__(self, folder: Path, peer: str) -> None:
        self.folder, self.peer, self.runs = folder, peer, 0

    def ours(self, case: Case, data: Path) -> Course:
        run = self.folder / "runs" / "trajectory" / f"run-{self.runs}"
        loss, norm, rate = ("train/loss", "train/grad_norm", "train/lr")
        if case.work == "dpo":
            loss, norm, rate = ("actor/dpo_loss", "actor/grad_norm", "actor/lr")
        words = [
            f"algorithm={case.work}", "model=hf", f"model.path={self.folder / 'model'}",
            "data=files", f"data.train_files={data}", f"optim.lr_scheduler_type={case.schedule}",
            f"trainer.run_root={self.folder / 'runs'}", f"trainer.experiment_name={run.name}", *OURS, *case.ours,
        ]  # fmt: skip
        ran([*RLRUN, "train", *words])
        steps = [event.metrics for event in events_of(run / "events.jsonl") if isinstance(event, Step)]
        return Course(
            [(step[loss], step[norm], step[rate]) for step in steps],
            [step["perf/total_num_tokens"] for step in steps],
            load_file(next(run.glob(f"checkpoints/*{STEPS}/policy/model.safetensors"))),
        )

    def trl(self, case: Case, data: Path) -> tuple[Course, list[list[int]]]:
        """And the rows' tokens, in the order in which they were taken."""
        log, scratch = self.folder / f"{self.runs}.jsonl", self.folder / f"scratch-{self.runs}"
        arguments = {**TRLS, "lr_scheduler_type": case.schedule, **case.trl}
        ran([
            self.peer, str(PEER), case.work, str(self.folder / "model"), str(data), str(STEPS), str(log), str(scratch),
            "1", json.dumps(arguments),
        ])  # fmt: skip
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        taken = [line for line in lines if "loss" in line]
        course = Course(
            [(line["loss"], line["grad_norm"], line["learning_rate"]) for line in taken],
            [line["tokens"] for line in lines if "tokens" in line],
            load_file(scratch / "model.safetensors"),
        )
        return course, [row for line in taken for row in line["rows"]]

    def both(self, case: Case) -> tuple[Course, Course]:
        self.runs += 1
        data = self.folder / f"rows-{self.runs}.jsonl"
        rows = list(rows_of(case.rows))
        write(data, rows)
        theirs, taken = self.trl(case, data)
        if case.work == "sft":
            of_text = {row["prompt"] + row["response"]: row for row in rows}
            tokenizer = characters()
            write(data, [of_text[tokenizer.decode(ids, skip_special_tokens=True)] for ids in taken])
        return self.ours(case, data), theirs


def write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ran(command: Sequence[str]) -> None:
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"{' '.join(command)}\nended with {found.returncode}:\n{(found.stdout + found.stderr)[-3000:]}")


# ---- the table


def differences(ours: Course, theirs: Course, start: Mapping[str, torch.Tensor]) -> list[float]:
    """The largest of loss, gradient norm and learning rate in a step, and that of the weights in the end, as a share of
    how far they moved."""
    assert ours.tokens == theirs.tokens, f"the sides do not read the same tokens: {ours.tokens}, {theirs.tokens}"
    assert len(ours.steps) == len(theirs.steps) == STEPS
    apart = [
        [abs(x - y) / max(1, abs(y)) for x, y in zip(mine, other, strict=True)]
        for mine, other in zip(ours.steps, theirs.steps, strict=True)
    ]
    return [
        *map(max, zip(*apart, strict=True)),
        distance(ours.weights, theirs.weights) / distance(theirs.weights, start),
    ]


def distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    return torch.stack([(one[name].double() - other[name].double()).norm() for name in one]).norm().item()


def main(arguments: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(
        "training", "loss", "gradient norm", "learning rate", "weights, of their way",
        title=f"ours and TRL: largest difference in {STEPS} steps", box=box.SIMPLE,
    )  # fmt: skip
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.peer)
        write_model(bench.folder / "model")
        start = load_file(bench.folder / "model" / "model.safetensors")
        for case in CASES:
            found = differences(*bench.both(case), start)
            kept = [value <= bound for value, bound in zip(found, BOUNDS, strict=True)]
            cells = [f"{x:.1e}" if good else f"[red]{x:.1e}" for x, good in zip(found, kept, strict=True)]
            table.add_row(case.name, *cells)
            console.print(case.name, *cells, style="dim")
            bad += not all(kept)
    console.print(table, machine(arguments.peer, 1), highlight=False)
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="whole trainings against TRL, step by step")
    parser.add_argument("--peer", default=".venv-oracles/bin/python", help="a Python that has TRL")
    sys.exit(main(parser.parse_args()))
