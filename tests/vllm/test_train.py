"""Real runs with `sampler=vllm`: they learn, however the weights lie, and go on after a stop as if nothing had been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
from launcher.core.events import Step, events_of

WORDS = ["algorithm=grpo", "sampler=vllm", "sampler.n=8", "data=reverse", "data.n_prompts=64", "data.n_val=8"]
WORDS += ["data.train_batch_size=8", "reward=length", "reward.high=3", "reward.margin=12", "optim.lr=3e-3"]
WORDS += ["trainer.micro_batch_size_per_gpu=32", "engine.num_threads=1", "sampler.kv_cache_gb=0.06"]
TWO = ["hardware.nproc_per_node=2"]
TEAM = [*TWO, "sampler.tensor_parallel_size=2"]
NEAR = 1e-4


def steps_of(folder: Path) -> list[Any]:
    return [event.metrics for event in events_of(folder / "events.jsonl") if isinstance(event, Step)]


@pytest.mark.parametrize(
    ("words", "least"),
    [
        ([], 0.85),
        (TWO, 0.85),  # an engine in each
        (
            [*TWO, "engine.strategy=fsdp2", "model.lora_rank=8", "optim.lr=1e-2"],
            0.4,
        ),  # adapters on random weights
        ([*TEAM, "engine.strategy=fsdp2", "model.lora_rank=8", "optim.lr=1e-2"], 0.4),  # each with half of its heads
        (["trainer.ppo_mini_batch_size=4", "sampler.importance_sampling=2"], 0.85),  # `old` is computed before updates
    ],
    ids=["1 process", "2", "2 fsdp2 lora", "2 as one fsdp2 lora", "mini-batches"],
)
def test_it_learns_to_be_brief(words: list[str], least: float, tiny: list[str], commands: Any, tmp_path: Path) -> None:
    rlrun = commands(tmp_path)
    ran = rlrun("train", *tiny, *WORDS, *words, "trainer.total_training_steps=25", "trainer.experiment_name=a")
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    _, *steps = steps_of(rlrun.run("a"))
    scores = [step["critic/score/mean"] for step in steps]
    assert scores[0] < 0.3 and sum(scores[-5:]) / 5 > least, scores
    assert max(step["training/rollout_probs_diff_max"] for step in steps) <= NEAR
    assert max(abs(step["rollout_corr/kl"]) for step in steps) <= NEAR
    assert all(step["training/rollout_actor_probs_pearson_corr"] > 0.9999 for step in steps[:10])
    if "sampler.importance_sampling=2" in words:
        assert all(step["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=NEAR) for step in steps)
