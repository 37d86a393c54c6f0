"""Results and advice on memory: the limit decides, and every advice is a valid run that was estimated."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.preflight.checks import memory
from launcher.spec.hardware import GIB, Hardware
from launcher.spec.run import RunSpec

SMALL = ["model=tiny", "model.hidden_size=256", "model.num_hidden_layers=4", "data=reverse"]
BIG = ["model=qwen2.5-7b-instruct", "data=gsm8k", "hardware=h100x8"]


def run_of(*words: str) -> RunSpec:
    return resolve(list(words))


def peak(run: RunSpec) -> int:
    found = run.engine.memory(run)
    assert found
    return found.peak_bytes


VERL = ["engine=verl", "data=gsm8k", "reward=auto", "hardware=h100x8"]
B7 = 7_615_616_512  # weights of Qwen2.5-7B


@pytest.mark.parametrize(("words", "phase", "part", "expected"), [
    (("algorithm=grpo",), "rollout", "optimizer", B7),  # 8 bytes / 8
    (("algorithm=grpo", "sampler.gpu_memory_utilization=0.25"), "rollout", "sampler", int(80 * 0.99 * GIB) // 4),
    (("algorithm=ppo",), "update", "critic", 12 * B7 // 8), (("algorithm=grpo",), "update", "gradients", B7 // 2),
    (("algorithm=grpo", "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True"), "rollout", "optimizer", 0),
    (("algorithm=grpo", "model.lora_rank=8"), "update", "reference", 0),
])  # fmt: skip
def test_memory_with_verl(words: tuple[str, ...], phase: str, part: str, expected: int) -> None:
    run = run_of(*VERL, "model.path=Qwen/Qwen2.5-7B-Instruct", *words)
    found = run.engine.memory(run)
    assert found
    (parts,) = (of.parts for of in found.phases if of.name == phase)
    assert parts.get(part, 0) == expected


def test_what_earlier_turns_have_computed_is_counted_where_it_is_kept() -> None:
    """In the memory of the process on a CPU, and in that of the host beside a GPU."""
    for hardware, more in ("cpu", True), ("h100x8", False):
        caches = []
        for environment in ("single", "code"):
            words = ["algorithm=grpo", "sampler.n=4", *SMALL, f"hardware={hardware}", f"environment={environment}"]
            run = run_of(*words)
            memory_of: Any = run.engine.memory(run)
            caches += [phase.parts["kv_cache"] for phase in memory_of.phases if phase.name == "rollout"]
        assert caches[1] > caches[0] * 1.7 if more else caches[1] == caches[0]


@pytest.mark.parametrize(
    ("share", "level"),
    [
        (1.30, "OK"),  # above the band
        (1.01, "WARN"),  # the estimate fits, and it may be too low
        (0.90, "WARN"),  # it does not, and it may be too high
        (0.70, "FAIL"),  # below the band
    ],
)
def test_the_limit_decides_the_level(share: float, level: str) -> None:
    run = run_of("algorithm=sft", *SMALL)
    (result,) = memory.check_memory(run, int(share * peak(run)))
    assert result.level == level
    assert bool(result.fix) == (level != "OK")


@pytest.mark.parametrize(
    "words",
    [
        ("algorithm=ppo", *BIG),
        ("algorithm=grpo", *BIG, "sampler.n=5", "engine.strategy=fsdp2", "sampler=vllm", "sampler.kv_cache_gb=200"),
        ("algorithm=grpo", *BIG, "sampler.n=5", "trainer.max_tokens_per_gpu=16384", "engine.strategy=fsdp2"),
    ],
    ids=lambda words: words[0],
)
def test_advice_is_a_valid_run_that_takes_what_is_said(words: tuple[str, ...]) -> None:
    """The words, typed after the run's own, resolve; and the run that they make is estimated at the advised peak."""
    run = run_of(*words)
    limit = memory.limit(run.hardware)
    assert limit
    offer = memory.cheapest(run, limit)
    assert offer and offer.prices
    named = {told.partition("=")[0] for told in offer.words}
    typed = [word for word in words if word.partition("=")[0] not in named]
    changed = run_of(*typed, *offer.words)
    assert peak(changed) == peak(offer.run) < peak(run)
    (result,) = memory.check_memory(changed, limit)
    assert result.level == "OK"


def test_the_largest_micro_batch_that_fits_is_chosen() -> None:
    """Of the powers of two: with a limit that is just enough for 100 rows, 64."""
    run = run_of("algorithm=sft", *SMALL, "data.train_batch_size=512", "trainer.micro_batch_size_per_gpu=256")
    exact = run.engine.memory(replace(run, trainer=replace(run.trainer, micro_batch_size_per_gpu=100)))
    assert exact
    found = memory.cheapest(run, exact.at_most_bytes, [memory.MICRO])
    assert found and found.changes == {memory.MICRO: 64}


GRPO = ("algorithm=grpo", *BIG, "sampler.n=8")
B24 = ("algorithm=sft", "model=qwen2.5-7b-instruct", "data=gsm8k", "hardware=gpu", "hardware.memory_gb=24")
B72 = ("algorithm=sft", "model=qwen2.5-72b-instruct", "data=gsm8k", "hardware=h100x8")
HALF = ("algorithm=sft", *SMALL, "model.dtype=bfloat16", "model.lora_rank=8", "data.train_batch_size=512",
        "trainer.micro_batch_size_per_gpu=256")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "needed", "not_advised"),
    [
        # recomputing, 16 bits and sharding before tiny parts, and those before what changes the task
        (GRPO, ["engine.strategy=fsdp2", "model.enable_gradient_checkpointing=true"], "lora|offload"),
        # what fits nowhere here is told what it takes
        (B24, ["model.dtype=bf"], "fsdp2"),
        (B72, ["data.val_files=[]"], "sampler"),
        # one process has nothing to shard, SFT has no critic, bfloat16 needs no mixed precision
        (HALF, ["model.enable_gradient_checkpointing=true"], "fsdp2|offload|mixed|lora"),
    ],
    ids=lambda words: str(words)[:40],
)
def test_what_is_cheaper_and_valid_is_advised(words: tuple[str, ...], needed: list[str], not_advised: str) -> None:
    run = run_of(*words)
    limit = peak(run) if words == HALF else memory.limit(run.hardware) or 0
    offer, (result,) = memory.cheapest(run, limit), memory.check_memory(run, limit)
    assert offer and all(any(word.startswith(each) for word in offer.words) for each in needed), offer
    assert all(word in result.fix for word in offer.words) and not re.search(not_advised, " ".join(offer.words))
    assert memory.cheapest(run, 2**20) is None
    (result,) = memory.check_memory(run, 2**20)
    assert result.fix.startswith("use more GPUs with engine.strategy=fsdp2")


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (Hardware(device="h100", n_gpus_per_node=1), 79.1),  # by its name
        (Hardware(device="NVIDIA H100 80GB HBM3", n_gpus_per_node=1), 79.2),
        (Hardware(device="h100", memory_gb=64.0, n_gpus_per_node=1), 64 * 0.99),  # what is given goes before
    ],
)
def test_the_limit_is_the_card_without_the_context(hardware: Hardware, expected: float) -> None:
    found = memory.limit(hardware)
    assert found == pytest.approx(expected * GIB - memory.CUDA_CONTEXT, rel=1e-6)
    one, four = (memory.limit(Hardware(nproc_per_node=count)) or 0 for count in (1, 4))  # which share the machine's
    assert four == one // 4


def test_a_model_that_is_not_known_yet_is_a_warning() -> None:
    (result,) = memory.check_memory(run_of("algorithm=sft", "model=hf", "model.path=some/where", "data=reverse"), GIB)
    assert result.level == "WARN"
