"""The trainers' side of vLLM in separate processes: it sends them weights and requests, and receives answers.

This file and `link` do not load vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, pairwise

from launcher.core import activity
from launcher.core.problems import Problem, Problems
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout.generator import ExportedWeights, Generator, Request
from launcher.engines.torch.rollout.vllm import VllmSampler
from launcher.engines.torch.rollout.vllm.link import Link
from launcher.engines.torch.rollout.vllm.messages import (
    GenerationRequest,
    ModelDescription,
    generation_requests,
    pack_requests,
    unpack_turns,
)  # fmt: skip
from launcher.engines.torch.train.policy import Policy
from launcher.spec.episode import Turn
from launcher.spec.run import RunSpec


class RemoteVllmGenerator(Generator):
    """Generates in vLLM's own processes. Its methods are collective: every trainer must call them, and trainer 0 asks
    for all."""

    def __init__(self, run: RunSpec, sampler: VllmSampler, policy: Policy) -> None:
        super().__init__(policy.model, sampler, run.data.max_response_length)
        self.exported = ExportedWeights(policy.model)
        device, team = policy.model.device, sampler.tensor_parallel_size
        self.link = None if world.RANK else Link(0, sampler.n_gpus, device, team)
        self.sent: int | None = None  # optimizer steps of the weights that the samplers have; None without weights
        self._command(**asdict(ModelDescription.from_model(run, sampler, policy.model)))
        with activity.reported("vLLM starts"):
            self._check_replies()

    def _command(self, **node: object) -> None:
        if self.link:
            for sampler in self.link.samplers:
                self.link.send_message(sampler, **node)

    def _check_replies(self) -> None:
        """Receive a reply of each sampler. Raises the `Problems` they report."""
        if self.link:
            replies = [self.link.receive_message(sampler)["problems"] for sampler in self.link.samplers]
            nodes = (node | {"about": tuple(node["about"])} for reply in replies for node in reply)  # a list in JSON
            if problems := dict.fromkeys(Problem(**node) for node in nodes):
                raise Problems(problems)

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        began = time.perf_counter()
        if self.sent != self.model.version:
            self._command(do="take")
            if self.link:
                self.link.send_weights(self.exported)
            else:
                for _ in self.exported:  # gathering a sharded tensor is collective
                    pass
            self._check_replies()
            self.sent = self.model.version
        yield {"timing_s/update_weights": time.perf_counter() - began}

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        by_rank = world.all_gather_object(generation_requests(requests))
        turns = self._ask([*chain(*by_rank)], temperature) if self.link else []
        first = sum(map(len, by_rank[: world.RANK]))
        return world.all_gather_object(turns)[0][first : first + len(by_rank[world.RANK])]

    def _ask(self, requests: Sequence[GenerationRequest], temperature: float) -> list[Turn]:
        """Answers by all samplers. Each copy gets equally many requests, and consecutive ones, as answers to a prompt
        share its KV cache."""
        assert self.link
        speakers, team = self.link.speakers, self.link.team
        ends = [len(requests) * part // len(speakers) for part in range(len(speakers) + 1)]
        for speaker, (start, end) in zip(speakers, pairwise(ends), strict=True):
            message = pack_requests(requests[start:end], temperature, self.model.eos)
            for sampler in range(speaker, speaker + team):
                self.link.send_message(sampler, do="write", **message)
        return [turn for speaker in speakers for turn in unpack_turns(self.link.receive_message(speaker))]

    def close(self) -> None:
        self._command(do="end")
