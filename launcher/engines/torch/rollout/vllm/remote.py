"""The trainer's side of vLLM in separate processes: it sends them weights and requests, and receives answers.

This file and `link` do not load vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from launcher.core import activity
from launcher.core.problems import Problem, Problems
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout.generator import ExportedWeights, Generator, Request
from launcher.engines.torch.rollout.vllm import VllmSampler
from launcher.engines.torch.rollout.vllm.link import Link
from launcher.engines.torch.rollout.vllm.messages import (
    ModelDescription,
    generation_requests,
    pack_requests,
    split_evenly,
    unpack_turns,
)  # fmt: skip
from launcher.engines.torch.train.policy import Policy
from launcher.spec.episode import Turn
from launcher.spec.run import RunSpec


class RemoteVllmGenerator(Generator):
    """Generates in vLLM's own processes. Its methods are collective: every trainer must call them."""

    def __init__(self, run: RunSpec, sampler: VllmSampler, policy: Policy) -> None:
        super().__init__(policy.model, sampler, run.data.max_response_length)
        self.exported = ExportedWeights(policy.model)
        team = sampler.tensor_parallel_size
        self.link = Link(world.RANK, world.SIZE, sampler.n_gpus, policy.model.device, team)
        self.sent: int | None = None  # optimizer steps of the weights that the samplers have; None without weights
        self._command(**asdict(ModelDescription.from_model(run, sampler, policy.model)))
        with activity.reported("vLLM starts"):
            self._check_replies()

    def _command(self, **node: object) -> None:
        if world.RANK == 0:
            for sampler in self.link.samplers:
                self.link.send_message(sampler, **node)

    def _check_replies(self) -> None:
        """Receive a reply of each sampler. Raises the `Problems` they report."""
        if world.RANK == 0:
            replies = [self.link.receive_message(sampler)["problems"] for sampler in self.link.samplers]
            nodes = (node | {"about": tuple(node["about"])} for reply in replies for node in reply)  # a list in JSON
            if problems := dict.fromkeys(Problem(**node) for node in nodes):
                raise Problems(problems)

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        began = time.perf_counter()
        if self.sent != self.model.version:
            self._command(do="take")
            if world.RANK == 0:
                self.link.send_weights(self.exported)
            else:
                for _ in self.exported:  # gathering a sharded tensor is collective
                    pass
            self._check_replies()
            self.sent = self.model.version
        yield {"timing_s/update_weights": time.perf_counter() - began}

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        mine, link = generation_requests(requests), self.link
        counts = world.all_gather_object(len(mine))
        parts = split_evenly(len(mine), sum(counts[: world.RANK]), sum(counts), len(link.speakers))
        self._command(do="write")
        for speaker, part in zip(link.speakers, parts, strict=True):
            link.send_to_team(speaker, **pack_requests(mine[part], temperature, self.model.eos))
        return [answer for speaker in link.speakers for answer in unpack_turns(link.receive_message(speaker))]

    def close(self) -> None:
        self._command(do="end")
