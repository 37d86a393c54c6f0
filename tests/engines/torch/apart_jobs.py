"""The processes of `test_vllm`: `python apart_jobs.py FOLDER SCENARIOS`, one [trainers, samplers, team, words]
after the other. One trains where its RANK is below the trainers, else it samples, by a fake of vLLM. A trainer
prints what came of its questions as JSON; output and exit codes of scenario N are in FOLDER/N.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forked import fork_ranks
from torch import Tensor

from launcher.config.resolve import resolve
from launcher.core.machine import free_ports
from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import Parallel
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.rollout.vllm.link import Link
from launcher.engines.torch.rollout.vllm.messages import GenerationRequest, ModelDescription
from launcher.engines.torch.rollout.vllm.server import serve
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.optimizer import TrainedNetwork
from launcher.engines.torch.train.policy import Policy
from launcher.spec.episode import Turn

CPU = torch.device("cpu")
RUN = ["algorithm=grpo", "data=reverse", "sampler=vllm", "sampler.n=2", "model=tiny"]
RUN += ["model.num_attention_heads=2", "model.num_key_value_heads=2"]
PROMPTS = [[5, 6, 7], [9], [5, 6, 7], [11, 12], [13]]  # equal ones may have other streams


def answer(prompt: Sequence[int], seed: int, temperature: float, weight: float, by: int) -> Turn:
    """A fake's answer tells all that it depends on, and who gave it."""
    return Turn([*prompt, seed % 40], stop="end" if seed % 2 else "length", logp=[temperature, weight, float(by)])


class Fake:
    """Knows the policy's weights by the sum of their first matrix."""

    def __init__(self, rank: int, description: ModelDescription, words: Sequence[str]) -> None:
        if "refuse" in words:
            raise Problems(Problem("sampler", f"a fake runs no {description.architecture} here"))
        self.rank, self.words, self.total, self.taken = rank, words, 0.0, 0

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.taken += 1
        for place, (_, value) in enumerate(weights):
            if "starve" in self.words and place == 2:
                raise Problems(Problem("sampler", "a fake wants no third"))
            self.total = float(value.double().sum()) if place == 0 else self.total

    def generate(self, asked: Sequence[GenerationRequest], temperature: float, ends: Sequence[int]) -> list[Turn]:
        if "die" in self.words:
            os._exit(9)
        assert list(ends) == [1]
        return [answer(prompt, seed, temperature, self.total, self.rank) for prompt, seed, _ in asked]

    def close(self) -> None:
        print(json.dumps({"taken": self.taken}), flush=True)


def trains(samplers: int, team: int) -> dict[str, Any]:
    world.init_distributed(CPU)
    count = [f"sampler.n_gpus={samplers}", f"sampler.tensor_parallel_size={team}"]
    run = resolve([*RUN, *count, f"hardware.nproc_per_node={world.SIZE}"])
    model = load_model(run.model, 0, CPU)
    trained, parallel = TrainedNetwork(model, run.optim, 10, Parallel()), Parallel()
    policy: Any = Policy(run.algorithm, trained, Limits(8), parallel)
    generator: Any = run.sampler.generator(run, policy)  # type: ignore[attr-defined]
    found: dict[str, Any] = {"rounds": []}
    for step in (0, 0, 1):  # its weights move once
        if step > model.version:
            model.version = step
            next(iter(model.module.parameters())).data.add_(1.0)
        prompts = PROMPTS[world.RANK :: world.SIZE] if not (step and world.RANK) else []
        with generator.current_weights() as told:
            keys = random_streams.stream_keys(0, step, range(len(prompts)), 2)
            episodes = generator.answer(make_requests(prompts, keys), 0.5)
        answers = [one.turns[0] for one in episodes]
        total = float(next(iter(generator.exported))[1].double().sum())
        expected = [
            answer(prompt, int(keys[row * 2 + n]) >> 1, 0.5, total, 0)
            for row, prompt in enumerate(prompts)
            for n in range(2)
        ]
        found["rounds"].append(
            {
                "right": [_of(one) for one in answers] == [_of(one) for one in expected],
                "by": [int(one.logp[2]) for one in answers],
                "told": list(told),
            }
        )
    generator.close()
    world.destroy_distributed()
    return found


def _of(one: Turn) -> tuple[list[int], str | None, list[float]]:
    return one.tokens, one.stop, list(one.logp[:2])


def main(samplers: int, team: int, words: Sequence[str]) -> int:
    rank, trainers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if rank < trainers:
            print(json.dumps(trains(samplers, team)), flush=True)
        else:
            serve(Link(rank - trainers + 1, samplers, CPU, team), lambda description: Fake(rank, description, words))
    except Problems as problems:
        print(json.dumps({"problems": problems.lines, "codes": [each.code for each in problems.problems]}), flush=True)
        return 2
    return 0


if __name__ == "__main__":
    for number, (trainers, samplers, team, words) in enumerate(json.loads(sys.argv[2])):
        folder = Path(sys.argv[1], str(number))
        folder.mkdir()
        os.environ |= {"WORLD_SIZE": str(trainers), "MASTER_PORT": str(free_ports(1, "127.0.0.1")[0])}
        codes = fork_ranks(trainers + samplers, folder, partial(main, samplers, team, words))
        (folder / "codes.json").write_text(json.dumps(codes))
