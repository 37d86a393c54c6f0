"""Real runs with vLLM: they learn; in processes of its own they compute what a run with vLLM inside it computes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
from launcher.core.events import Restarted, Step, events_of
from launcher.core.metrics import TIMES

STEPS = 8
BASE = ["algorithm=grpo", "sampler=vllm", "data=reverse", "data.n_prompts=64", "data.train_batch_size=8"]
BASE += ["reward=length", "reward.high=3", "reward.margin=12", "optim.lr=3e-3", "trainer.micro_batch_size_per_gpu=32"]
BASE += ["engine.num_threads=1", "sampler.kv_cache_gb=0.06", "trainer.experiment_name=a"]
WORDS = [*BASE, "sampler.n=4", "data.n_val=9", f"trainer.total_training_steps={STEPS}", "trainer.test_freq=3"]
WORDS += ["sampler.val_n=2", "sampler.val_temperature=1"]
PROGRAMS = ("rollout_corr/", "training/rollout_")  # how far the trainer's numbers and vLLM's are apart
TWO = ["hardware.nproc_per_node=2", "engine.strategy=fsdp2", "model.lora_rank=4"]
NEAR = 1e-4


def samplers(launcher: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"vllm.server" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def told(run: Path, kind: type[Any]) -> list[Any]:
    return [event for event in events_of(run / "events.jsonl") if isinstance(event, kind)]


def metrics(run: Path) -> list[dict[str, float]]:
    """Of each step, without durations."""
    steps = [step.metrics for step in told(run, Step)]
    return [{name: value for name, value in one.items() if not name.startswith(TIMES)} for one in steps]


def steps(run: Path) -> int:
    return len(told(run, Step)) if (run / "events.jsonl").exists() else 0


@pytest.fixture(scope="module")
def within(tiny: list[str], commands: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with vLLM in its one training process."""
    rlrun = commands(tmp_path_factory.mktemp("within"))
    assert rlrun("train", *tiny, *WORDS).returncode == 0
    return Path(rlrun.run("a"))


def test_a_run_beside_a_sampler_is_equal_to_one_that_samples_itself(
    within: Path, tiny: list[str], commands: Any, result: Callable[..., Any], tmp_path: Path
) -> None:
    """Every metric that is no duration, every validation and every weight, to the last digit."""
    rlrun = commands(tmp_path)
    ran = rlrun("train", *tiny, *WORDS, "sampler.n_gpus=1")
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert result(rlrun.run("a"), STEPS) == result(within, STEPS)
    scores = [one["critic/score/mean"] for one in metrics(within)[1:]]
    assert scores[-1] > scores[0] + 0.1, scores  # the weights moved: old ones would have shown


@pytest.mark.parametrize("together", [1, 2], ids=["of half the answers each", "of half the heads each"])
def test_beside_two_samplers_only_the_rounding_of_what_they_tell_differs(
    together: int, within: Path, tiny: list[str], commands: Any, result: Callable[..., Any], tmp_path: Path
) -> None:
    """A product of fewer rows, or of fewer heads, may be summed in another order. Nothing is learnt from that: answers,
    scores, losses and weights are equal to the last digit."""
    rlrun, team = commands(tmp_path), f"sampler.tensor_parallel_size={together}"
    ran = rlrun("train", *tiny, *WORDS, "sampler.n_gpus=2", team)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert result(rlrun.run("a"), STEPS)[1] == result(within, STEPS)[1]
    for mine, other in zip(metrics(rlrun.run("a")), metrics(within), strict=True):
        near = {name: value for name, value in other.items() if name.startswith(PROGRAMS)}
        assert {name: mine.pop(name) for name in near} == pytest.approx(near, abs=1e-7)
        assert mine == {name: value for name, value in other.items() if name not in near}


def test_two_trainers_share_two_samplers_and_their_parts_of_weights_are_put_together(
    tiny: list[str], commands: Any, result: Callable[..., Any], tmp_path: Path
) -> None:
    rlrun = commands(tmp_path)
    for name, words in (("within", []), ("beside", ["sampler.n_gpus=2"])):
        ran = rlrun("train", *tiny, *WORDS, *TWO, *words, "optim.lr=1e-2", f"trainer.experiment_name={name}")
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    within, colocated = (metrics(rlrun.run(name)) for name in ("within", "beside"))
    assert len(within) == STEPS + 1
    assert colocated == within


def test_killed_and_stopped_it_ends_as_if_undisturbed(
    within: Path, tiny: list[str], commands: Any, until: Callable[..., None], result: Callable[..., Any], tmp_path: Path
) -> None:
    """A sampler that is killed is named, and all begin again; asked to stop, it ends with the others."""
    rlrun = commands(tmp_path)
    run, words = rlrun.run("a"), [*tiny, *WORDS, "sampler.n_gpus=1", "trainer.save_freq=1"]
    began = rlrun.begin("train", *words)
    until(lambda: steps(run) > 2)
    (sampler,) = samplers(began.pid)
    os.kill(sampler, signal.SIGKILL)
    until(lambda: told(run, Restarted))
    (again,) = told(run, Restarted)
    assert again.cause == "killed" and again.why.startswith("rank 1: killed by SIGKILL")
    until(lambda: steps(run) > again.step + 1 and samplers(began.pid))
    (sampler,) = samplers(began.pid)
    began.send_signal(signal.SIGTERM)
    assert began.wait(600) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{sampler}").exists()
    assert steps(run) < STEPS + 1
    assert rlrun("train", "--resume", "rlrun/a").returncode == 0
    assert metrics(run) == metrics(within) and result(run, STEPS)[1] == result(within, STEPS)[1]


@pytest.mark.parametrize(
    ("words", "least"),
    [
        ([], 0.85),
        (TWO[:1], 0.85),  # an engine in each
        ([*TWO, "model.lora_rank=8", "optim.lr=1e-2"], 0.4),  # adapters on random weights
        ([*TWO, "model.lora_rank=8", "optim.lr=1e-2", "sampler.tensor_parallel_size=2"], 0.4),  # with half of its heads
        (["trainer.ppo_mini_batch_size=4", "sampler.importance_sampling=2"], 0.85),  # `old` is computed before updates
    ],
    ids=["1 process", "2", "2 fsdp2 lora", "2 as one fsdp2 lora", "mini-batches"],
)
def test_it_learns_to_be_brief(words: list[str], least: float, tiny: list[str], commands: Any, tmp_path: Path) -> None:
    rlrun = commands(tmp_path)
    ran = rlrun("train", *tiny, *BASE, "sampler.n=8", "data.n_val=8", "trainer.total_training_steps=25", *words)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    _, *learnt = metrics(rlrun.run("a"))
    scores = [step["critic/score/mean"] for step in learnt]
    assert scores[0] < 0.3 and sum(scores[-5:]) / 5 > least, scores
    assert max(step["training/rollout_probs_diff_max"] for step in learnt) <= NEAR
    assert max(abs(step["rollout_corr/kl"]) for step in learnt) <= NEAR
    assert all(step["training/rollout_actor_probs_pearson_corr"] > 0.9999 for step in learnt[:10])
    if "sampler.importance_sampling=2" in words:
        assert all(step["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=NEAR) for step in learnt)
