"""What the estimate takes for the fullest micro-batch, against the engine's own cutting and packing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from launcher.config.resolve import resolve
from launcher.engines.torch.model.packing import pack
from launcher.engines.torch.train.batching import Limits, micro_batches
from launcher.engines.torch.workload import Workload
from launcher.spec.algorithm import Batch

PROMPT, RESPONSE, PROMPTS = 12, 8, 12
WORDS = ["model=tiny", "data=reverse", f"data.train_batch_size={PROMPTS}", f"data.max_prompt_length={PROMPT}",
         f"data.max_response_length={RESPONSE}", "data.n_val=0"]  # fmt: skip


def full_batch(each: int) -> Batch:
    """Every row as long as it may be; `each` rows to a prompt."""
    length = PROMPT + RESPONSE
    tokens = torch.arange(PROMPTS).repeat_interleave(each)[:, None].expand(-1, length).clone() + 3
    mask = torch.zeros(len(tokens), length, dtype=torch.float64)
    mask[:, PROMPT:] = 1
    return Batch(tokens=tokens, length=torch.full((len(tokens),), length), mask=mask, group=tokens[:, 0])


@pytest.mark.parametrize(
    ("algorithm", "n", "more"),
    [
        ("sft", 1, ("trainer.micro_batch_size_per_gpu=5",)),
        ("dpo", 2, ("trainer.micro_batch_size_per_gpu=4",)),  # pairs stay together
        ("dpo", 2, ("trainer.micro_batch_size_per_gpu=1",)),  # even where only one row was asked for
        ("grpo", 4, ("trainer.micro_batch_size_per_gpu=8",)),  # two prompts, each laid down once
        ("grpo", 4, ("trainer.micro_batch_size_per_gpu=2",)),  # half a group
        ("grpo", 4, ("trainer.micro_batch_size_per_gpu=6",)),  # a group and parts of others
        ("grpo", 5, ("trainer.micro_batch_size_per_gpu=8",)),
        ("grpo", 3, ("trainer.micro_batch_size_per_gpu=999",)),  # no more rows than there are
        ("grpo", 4, ("trainer.max_tokens_per_gpu=100",)),
        ("grpo", 4, ("trainer.max_tokens_per_gpu=44",)),  # just one group
        ("sft", 1, ("trainer.max_tokens_per_gpu=50",)),  # two rows, and a half that does not fit
    ],
)
def test_no_micro_batch_is_fuller_than_the_estimate_says(algorithm: str, n: int, more: tuple[str, ...]) -> None:
    sampled = [f"sampler.n={n}"] if algorithm == "grpo" else []
    run = resolve([f"algorithm={algorithm}", *WORDS, *sampled, *more])
    work, batch = Workload.from_run(run), full_batch(n)
    limits = Limits(run.trainer.micro_batch_size_per_gpu, run.trainer.max_tokens_per_gpu)
    parts = micro_batches(batch, limits, whole=run.algorithm.whole_groups, share=True)
    packed = [pack(batch.rows(part)) for part in parts]
    fullest = max(packed, key=lambda part: part.ids.shape[1])
    assert max(len(part) for part in parts) == work.rows
    assert len(parts) == work.parts
    assert fullest.ids.shape[1] <= work.tokens <= 1.25 * fullest.ids.shape[1]
    assert max(len(part.target) for part in packed) == work.predicted


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("sampler.n=4",), PROMPTS * 4),  # all answers of a step
        (("sampler.n=4", "sampler.max_num_seqs=10"), 8),  # whole prompts
        (("sampler.n=4", "sampler.max_num_seqs=2"), 4),  # never fewer than one prompt's
        (("sampler.n=2", "data.n_val=100"), 100),  # held-out prompts are more
        (("sampler.n=2", "data.n_val=100", "data.val_batch_size=30"), 30),
    ],
)
def test_as_many_answers_are_written_at_a_time(words: tuple[str, ...], written: int) -> None:
    others = [word for word in WORDS if word.partition("=")[0] not in {told.partition("=")[0] for told in words}]
    assert Workload.from_run(resolve(["algorithm=grpo", *others, *words])).written == written


def test_without_held_out_rows_a_run_that_imitates_writes_nothing() -> None:
    run = resolve(["algorithm=sft", *WORDS])
    assert not Workload.from_run(run).answered
    assert [phase.name for phase in run.engine.memory(run).phases] == ["load", "update", "save"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("hardware", "tuned"), [("cpu", True), ("gpu", False)])
def test_malloc_is_told_to_join_holes_where_tensors_lie_in_its_heap(hardware: str, tuned: bool, tmp_path: Path) -> None:
    run = resolve(["algorithm=sft", *WORDS, f"hardware={hardware}"])
    (process,) = run.engine.plan(run, tmp_path).processes
    assert ("GLIBC_TUNABLES" in process.env) == tuned
