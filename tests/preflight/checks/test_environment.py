"""What the environment and the GPU leave a run: threads, mirrors, and vLLM's memory."""

from __future__ import annotations

import pytest

from launcher.config.resolve import resolve
from launcher.core import machine
from launcher.core.problems import Problems

SFT = ["algorithm=sft", "data=reverse"]
VLLM = ["algorithm=grpo", "model=qwen3-0.6b", "data=reverse", "sampler=vllm", "hardware=gpu", "hardware.device=l4",
        "hardware.n_gpus_per_node=1"]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "processes", "threads"),
    [("3", 2, 3), ("3,1", 2, 3), ("many", 2, 4), ("0", 2, 4), ("", 16, 1)],
)
def test_threads_are_those_of_the_environment(
    asked: str, processes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(machine, "cpu_count", lambda: 8)
    assert machine.threads_of_a_process(processes) == threads


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["sampler.max_model_len=999999"], "sampler.max_model_len: 999999 tokens, and the model knows"),
        (["sampler.kv_cache_gb=0.001"], "do not hold one answer"),
        (["sampler.gpu_memory_utilization=0.05"], "vLLM's weights and the keys and values of one answer take"),
    ],
)
def test_vllm_has_room_for_one_answer(words: list[str], named: str) -> None:
    with pytest.raises(Problems, match=named):
        resolve([*VLLM, *words])
    resolve(VLLM)
