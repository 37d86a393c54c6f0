"""Every metric that the engine emits has an entry in the catalogue."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
import torch

from launcher.core.events import Step
from launcher.core.metrics import described, metric
from launcher.engines.torch.train.measure import mean_max_min, spreads

SMALL = ["model=tiny", "model.hidden_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32",
         "data=reverse", "data.n_prompts=16", "data.n_demos=16", "data.n_val=4", "data.train_batch_size=4",
         "trainer.total_training_steps=1"]  # fmt: skip
SAMPLED = [
    "sampler.n=2",
    "sampler.val_n=2",
    "sampler.val_temperature=1",
    "reward=weighted",
    "reward.parts={exact:1.0,format:0.2}",
]
RUNS = {
    "sft": ["algorithm=sft"],
    "dpo": ["algorithm=dpo"],
    "grpo": ["algorithm=grpo", "algorithm.kl_loss_coef=0.01", "algorithm.min_group_std=0.01",
             "algorithm.clip_ratio_c=3", "trainer.ppo_mini_batch_size=2", *SAMPLED],
    "ppo": ["algorithm=ppo", "algorithm.kl_coef=0.01", "algorithm.kl_ctrl=adaptive", *SAMPLED],
    "dapo": ["algorithm=dapo", "algorithm.overlong_buffer_len=2", *SAMPLED],
    "selfplay": ["algorithm=gspo_selfplay", *SAMPLED],
}  # fmt: skip


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_every_metric_has_an_entry(words: list[str], tmp_path: Path) -> None:
    names = {
        name for event in jobs.run(tmp_path, [*SMALL, *words]) if isinstance(event, Step) for name in event.metrics
    }
    assert len(names) > 10
    assert not [name for name in sorted(names) if metric(name) is None], "add them to conf/metrics.yaml"


def test_entries_are_whole() -> None:
    assert all(entry.label and entry.meaning for entry in described().values())
    assert metric("my/own") is None


def test_ends_that_are_not_finite_are_told() -> None:
    """The step's update is left out because of them, which its metrics have to live to say."""
    values = {"critic/rewards": torch.tensor([-torch.inf, -torch.inf])}
    found = mean_max_min(values)
    assert (found["critic/rewards/max"], found["critic/rewards/min"]) == (-torch.inf, -torch.inf)
    assert spreads(values, found)["critic/rewards/std"] == 0.0
