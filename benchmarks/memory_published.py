"""verl's table of hardware that RL was run on (its documentation, "Hardware Resource Needed For RL", 2025-06-25).

Each row is what its script sets. All read GSM8K without padding, so what counts is how long its rows are, not how long
they may be: questions of about 105 tokens with their template, answers of about 220.

`refused` are micro-batches that the script's author noted to be too many.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory_colocated import ColocatedTraining, Serving, memory
from rich.table import Table

from launcher.core.files import conf_dir
from launcher.models import catalogue
from launcher.spec.hardware import GPUS_GIB
from launcher.spec.memory import Memory
from launcher.spec.model import Architecture

GIB = 2**30
QUESTION, ANSWER = 105, 220
TOKENS = QUESTION + ANSWER


@dataclass(frozen=True)
class Row:
    model: str
    task: str
    gpus: int
    gpu: str
    micro: int
    """Sequences of a micro-batch on each GPU; where the script cuts by tokens, those of a mini-batch."""
    serving: Serving
    refused: tuple[int, ...] = ()
    megatron: bool = False
    longest: int = 1536
    """Tokens of a sequence, at most."""

    def training(self, micro: int, length: int = TOKENS) -> ColocatedTraining:
        tokens = micro * length
        return ColocatedTraining(
            gpus=self.gpus, tokens=tokens, predicted=tokens, rank=32 if "LoRA" in self.task else 0,
            entropy="LoRA" in self.task, tensor_parallel=self.gpus if self.megatron else 1, offload=True,
        )  # fmt: skip


ROWS = (
    Row("qwen2.5-0.5b-instruct", "GRPO-LoRA", 1, "h100", 116, Serving(1, 0.1)),
    Row("qwen2.5-1.5b-instruct", "GRPO-LoRA", 1, "h100", 128, Serving(1, 0.1)),
    Row("qwen2.5-3b-instruct", "GRPO-LoRA", 1, "h100", 62, Serving(1, 0.1)),
    Row("qwen2.5-7b-instruct", "GRPO", 2, "h800", 16, Serving(2, 0.6), longest=2048),
    Row("qwen2.5-7b-instruct", "GRPO-LoRA", 1, "h100", 16, Serving(1, 0.2), refused=(128, 112, 104, 102, 101)),
    Row("qwen2.5-14b-instruct", "GRPO", 4, "h800", 16, Serving(4, 0.5), longest=2048),
    Row("qwen2.5-14b-instruct", "GRPO-LoRA", 2, "h100", 58, Serving(2, 0.25), refused=(64, 60, 59)),
    Row("qwen2.5-32b-instruct", "GRPO", 8, "h20", 1, Serving(8, 0.6), megatron=True, longest=8192),
    Row("qwen2.5-32b-instruct", "GRPO-LoRA", 4, "h100", 45, Serving(4, 0.3), refused=(64, 48, 46)),
    Row("qwen2.5-72b-instruct", "GRPO", 32, "h20", 40, Serving(16, 0.6), longest=1024),
    Row("qwen2.5-72b-instruct", "GRPO", 32, "h800", 40, Serving(16, 0.6), longest=1024),
    Row("qwen2.5-72b-instruct", "GRPO-LoRA", 8, "h100", 22, Serving(8, 0.4), refused=(32, 24, 23)),
)


@dataclass(frozen=True)
class Judged:
    """A row beside what we say of it."""

    row: Row
    memory: Memory
    card_bytes: int
    at_longest_bytes: int
    refused: tuple[float, ...]
    """What each refused micro-batch would take, as a share of the card."""

    @property
    def agrees(self) -> bool:
        """The row was run, so it must fit."""
        return self.memory.peak_bytes <= self.card_bytes


def judged(row: Row, a: Architecture) -> Judged:
    card = int(GPUS_GIB[row.gpu] * GIB)

    def of(micro: int, length: int = TOKENS) -> Memory:
        return memory(a, row.training(micro, length), row.serving, card)

    refused = tuple(of(micro).peak_bytes / card for micro in row.refused)
    return Judged(row, of(row.micro), card, of(row.micro, row.longest).peak_bytes, refused)


def every() -> list[Judged]:
    known = catalogue.choices(conf_dir() / "model")
    found = []
    for row in ROWS:
        a = known[row.model].architecture
        assert a
        found.append(judged(row, a))
    return found


def table(found: list[Judged]) -> Table:
    shown = Table(
        "model", "task", "GPUs", "micro-batch", "estimate GiB", "of", "agrees", "too many, as a share of the card",
        "at full length GiB", title=f"verl's published rows, at GSM8K's {TOKENS} tokens a sequence",
    )  # fmt: skip
    for one in found:
        row = one.row
        refused = ", ".join(f"{micro}: {share:.0%}" for micro, share in zip(row.refused, one.refused, strict=True))
        shown.add_row(
            row.model, row.task, f"{row.gpus} {row.gpu}", str(row.micro), f"{one.memory.peak_bytes / GIB:.0f}",
            f"{one.card_bytes / GIB:.0f}", "yes" if one.agrees else "no", refused, f"{one.at_longest_bytes / GIB:.0f}",
        )  # fmt: skip
    return shown
