"""The memory estimate against the engine: micro-batches, answers at a time, and every tensor that autograd keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from launcher.config.resolve import resolve
from launcher.engines.torch.model import head
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.packing import pack
from launcher.engines.torch.train.batching import Limits, micro_batches
from launcher.engines.torch.workload import Workload
from launcher.models import activations, size
from launcher.models.activations import Head, Numbers
from launcher.models.scratch import Scratch
from launcher.models.size import BYTES
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
        ("dpo", 2, ("trainer.micro_batch_size_per_gpu=1",)),  # even where only one row was asked for
        ("grpo", 4, ("trainer.micro_batch_size_per_gpu=8",)),  # two prompts, each laid down once
        ("grpo", 4, ("trainer.micro_batch_size_per_gpu=6",)),  # a group and parts of others
        ("grpo", 4, ("trainer.max_tokens_per_gpu=100",)),
        ("sft", 1, ("trainer.max_tokens_per_gpu=50",)),  # two rows, and a half that does not fit
    ],
)
def test_no_micro_batch_is_fuller_than_the_estimate_says(algorithm: str, n: int, more: tuple[str, ...]) -> None:
    sampled = [f"sampler.n={n}"] if algorithm == "grpo" else []
    run = resolve([f"algorithm={algorithm}", *WORDS, *sampled, *more])
    work, batch = Workload(run), full_batch(n)
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
        (("sampler.n=4", "sampler.max_num_seqs=10"), 8),  # whole prompts
        (("sampler.n=4", "sampler.max_num_seqs=2"), 4),  # never fewer than one prompt's
        (("sampler.n=2", "data.n_val=100", "data.val_batch_size=30"), 30),
    ],
)
def test_as_many_answers_are_written_at_a_time(words: tuple[str, ...], written: int) -> None:
    others = [word for word in WORDS if word.partition("=")[0] not in {told.partition("=")[0] for told in words}]
    assert Workload(resolve(["algorithm=grpo", *others, *words])).written == written


def test_without_held_out_rows_a_run_that_imitates_writes_nothing() -> None:
    run = resolve(["algorithm=sft", *WORDS])
    assert not Workload(run).written
    assert [phase.name for phase in run.engine.memory(run).phases] == ["load", "update", "save"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("hardware", "tuned"), [("cpu", True), ("gpu", False)])
def test_malloc_is_told_to_join_holes_where_tensors_lie_in_its_heap(hardware: str, tuned: bool, tmp_path: Path) -> None:
    run = resolve(["algorithm=sft", *WORDS, f"hardware={hardware}"])
    (process,) = run.engine.plan(run, tmp_path).processes
    assert ("GLIBC_TUNABLES" in process.env) == tuned


ROWS, LENGTH = 4, 200
MIXED_WEIGHTS = 2  # bytes: under autocast a matrix is kept in bfloat16, too


def kept(layers: int, mixed: bool, **settings: object) -> tuple[int, int, Scratch]:
    """Bytes of all tensors that the backward pass waits for, weights left out; and the tokens."""
    scratch = Scratch(num_hidden_layers=layers, intermediate_size=176, num_key_value_heads=2, **settings)  # type: ignore[arg-type]
    model = load_model(scratch, 0, torch.device("cpu"), mixed=mixed)
    model.train()
    tokens = torch.randint(3, 40, (ROWS, LENGTH))
    batch = Batch(tokens=tokens, length=torch.full((ROWS,), LENGTH), mask=torch.ones(ROWS, LENGTH))
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    found: dict[int, int] = {}
    alive = []

    def note(x: torch.Tensor) -> torch.Tensor:
        if (place := x.untyped_storage().data_ptr()) not in weights:
            found[place] = x.untyped_storage().nbytes()
            alive.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        model(model.pack(batch), entropy=True)
    return sum(found.values()), ROWS * LENGTH, scratch


@pytest.mark.parametrize(
    ("architecture", "rank", "dtype", "mixed"),
    [
        ("llama", 0, "float32", False),
        ("qwen3", 8, "bfloat16", False),  # norms keep float32, and adapters cast every matrix's input
        ("qwen3", 0, "float32", True),  # every matrix keeps its input once more
        ("llama", 8, "float32", True),
    ],
)
def test_what_a_layer_keeps_is_counted_to_the_byte(architecture: str, rank: int, dtype: str, mixed: bool) -> None:
    two, tokens, _ = kept(2, mixed, architecture=architecture, dtype=dtype, lora_rank=rank)
    four, _, scratch = kept(4, mixed, architecture=architecture, dtype=dtype, lora_rank=rank)
    shape = scratch.shape
    numbers = Numbers(BYTES[dtype], mixed, rank)
    weights = 0
    if mixed:
        norms = 2 * shape.hidden_size + (2 * shape.head_dim if shape.qk_norm else 0)
        outside = 2 * shape.vocab_size * shape.hidden_size + shape.hidden_size
        adapters = size.lora_parameters(shape, rank) // shape.num_hidden_layers if rank else 0
        weights = MIXED_WEIGHTS * ((size.parameters(shape) - outside) // shape.num_hidden_layers - norms + adapters)
    counted = (four - two) / 2 - weights
    expected = tokens * activations.saved(shape, numbers)
    if mixed and rank:  # what is multiplied first needs no gradient of its input: a matrix more or less is not kept
        assert counted == pytest.approx(expected, rel=0.03)
    else:
        assert counted == expected


@pytest.mark.parametrize(
    ("rows", "entropy", "what"),
    [
        (64, False, "imitates"),  # one block, kept
        (64, True, "learns"),  # and the entropy's own
        (512, True, "learns"),  # eight blocks, kept
        (2048, False, "imitates"),  # too many to keep: made again, block by block
    ],
)
def test_logits_take_what_is_said(rows: int, entropy: bool, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most bytes that tensors as large as a block of logits held at a time."""
    scratch = Scratch(hidden_size=8, num_attention_heads=4)
    shape = scratch.shape
    v = shape.vocab_size
    bounds = Head(block=64 * v, kept=1024 * v)
    monkeypatch.setattr(head, "LOGITS", bounds.block)
    monkeypatch.setattr(head, "KEPT", bounds.kept)
    hidden, weight = torch.randn(rows, 8, requires_grad=True), torch.randn(v, 8, requires_grad=True)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        scores = head.token_scores(hidden, weight, torch.zeros(rows, dtype=torch.long), entropy=entropy)
        scores.logp.sum().backward()
    now = most = 0
    for event in sorted(profile.kineto_results.events(), key=lambda event: event.start_ns()):  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    more = 4 * (2 * rows * 8 + v * 8 + 6 * rows)  # gradients, and what is one number a row
    output = activations.logits(shape, rows, Numbers(4), bounds, what)  # type: ignore[arg-type]
    assert output <= most <= output + more + 64 * 1024
