"""Trainers and samplers in processes of their own, with a fake in vLLM's place: who answers what, with which weights,
and what becomes of all when one of them cannot go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.rollout.vllm.messages import (
    generation_requests,
    pack_requests,
    pack_turns,
    unpack_requests,
    unpack_turns,
)
from launcher.spec.episode import Turn

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
