"""vLLM in this process: a copy of the policy's weights that answers prompts.

In a training process it sleeps while the policy learns. Weights are copied from the policy's tensors into vLLM's, one
at a time. With tensor parallelism each rank loads its shard of every tensor, and the ranks generate together.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.core.problems import Problem, Problems, error_message
from launcher.engines.torch.rollout.generator import ExportedWeights, Generator, Request
from launcher.engines.torch.rollout.vllm import EXPERTS, INSTEAD, VllmSampler
from launcher.engines.torch.rollout.vllm.messages import GenerationRequest, ModelDescription, generation_requests
from launcher.engines.torch.train.policy import Policy
from launcher.spec.episode import Turn
from launcher.spec.run import RunSpec

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # many of its warnings do not apply here

from vllm import LLM, RequestOutput, SamplingParams  # after its environment variables are set
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.model_executor.layers import utils as layers


class VllmModel:
    """One copy of the policy in vLLM, or one shard of a tensor-parallel copy."""

    def __init__(self, run: RunSpec, sampler: VllmSampler, description: ModelDescription, *, sleeps: bool) -> None:
        """Raises `Problems` where vLLM cannot run such a model here."""
        self.sampler, self.name = sampler, description.architecture
        self.max_new, self.sleeps = run.data.max_response_length, sleeps
        self.llm = _start_vllm(run, sampler, description, sleeps)
        if run.hardware.is_cpu and self.llm.apply_model(_has_experts)[0]:
            raise Problems(_unsupported(EXPERTS))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Raises `Problems` where they do not match vLLM's model."""
        try:
            (missing,) = self.llm.apply_model(partial(_load_weights, weights=weights))
        except (KeyError, ValueError) as error:  # vLLM has no such weight, or one of another shape
            got = f"vLLM does not take {self.name}'s weights: {error_message(error)}"
            raise Problems(_unsupported(got)) from error
        if missing:
            raise Problems(_unsupported(f"{self.name} has not all weights of vLLM's, such as {missing[0]}"))
        self.llm.reset_prefix_cache()

    def generate(self, asked: Sequence[GenerationRequest], temperature: float, ends: Sequence[int]) -> list[Turn]:
        """One answer per request; `ends` are the end-of-sequence tokens."""
        outputs = self.llm.generate(
            cast("Any", [{"prompt_token_ids": prompt} for prompt, *_ in asked]),
            [self._params(seed, self.max_new - answered, temperature, ends) for _, seed, answered in asked],
            use_tqdm=False,
        )
        return [_to_turn(output, ends) for output in outputs]

    def _params(self, seed: int, most: int, temperature: float, ends: Sequence[int]) -> SamplingParams:
        return SamplingParams(
            temperature=temperature, top_k=max(self.sampler.top_k, 0), top_p=self.sampler.top_p, seed=seed,
            max_tokens=most, stop_token_ids=list(ends), logprobs=0, detokenize=False,
        )  # fmt: skip

    def sleep(self) -> None:
        """Free GPU memory, including the weights, which are outdated by the next rollout."""
        if self.sleeps:
            self.llm.sleep(level=2)

    def wake(self, part: str) -> None:
        """Allocate `weights` first, and after they are loaded `kv_cache`."""
        if self.sleeps:
            self.llm.wake_up(tags=[part])

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()  # at its exit it would look for process groups that are gone


class ColocatedVllmGenerator(Generator):
    """vLLM in the training process."""

    def __init__(self, run: RunSpec, sampler: VllmSampler, policy: Policy) -> None:
        super().__init__(policy.model, sampler, run.data.max_response_length)
        self.exported = ExportedWeights(policy.model)
        self.team = _team_group(sampler.tensor_parallel_size)
        self.loaded: int | None = None  # optimizer steps of the weights that it has; None without weights
        description = ModelDescription.from_model(run, sampler, policy.model)
        self.copy = VllmModel(run, sampler, description, sleeps=policy.model.device.type == "cuda")
        self._sleep()

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        began = time.perf_counter()
        if self.copy.sleeps:
            torch.cuda.empty_cache()  # so that vLLM can take what the trainer has freed
        self.copy.wake("weights")
        if self.loaded != self.model.version:
            self.copy.load_weights(self.exported)
            self.loaded = self.model.version
        self.copy.wake("kv_cache")
        try:
            yield {"timing_s/update_weights": time.perf_counter() - began}
        finally:
            self._sleep()

    def _sleep(self) -> None:
        self.copy.sleep()
        if self.copy.sleeps:
            self.loaded = None

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        mine = generation_requests(requests)
        team_requests, first = self._gather_team(mine)
        turns = self.copy.generate(team_requests, temperature, self.model.eos) if team_requests else []
        return turns[first : first + len(mine)]

    def close(self) -> None:
        self.copy.close()

    def _gather_team(self, mine: list[GenerationRequest]) -> tuple[list[GenerationRequest], int]:
        """The requests of all ranks of the tensor-parallel group, and the index of this rank's first."""
        if self.team is None:
            return mine, 0
        by_rank: list[list[GenerationRequest]] = [mine] * dist.get_world_size(self.team)
        dist.all_gather_object(by_rank, mine, self.team)
        return list(chain(*by_rank)), sum(map(len, by_rank[: dist.get_rank(self.team)]))


TOKENS = 4096  # of all prompts that are prefilled together on a CPU


def _unsupported(got: str) -> Problem:
    return Problem("sampler", got, INSTEAD, "not-supported")


def _load_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Load vLLM's model; returns the names of its weights that were not loaded."""
    loaded = cast("Any", model).load_weights(weights)
    return [name for name, _ in model.named_parameters() if name not in loaded]


def _to_turn(output: RequestOutput, ends: Sequence[int]) -> Turn:
    (answer,) = output.outputs
    tokens = list(answer.token_ids)
    assert answer.logprobs is not None
    logp = [logprobs[token].logprob for token, logprobs in zip(tokens, answer.logprobs, strict=True)]
    return Turn(tokens, stop="end" if tokens[-1] in ends else "length", logp=logp)


def _start_vllm(run: RunSpec, sampler: VllmSampler, description: ModelDescription, sleeps: bool) -> LLM:
    """vLLM with uninitialised weights. Raises `Problems` where it cannot run such a model here."""
    longest = sampler.max_model_len or run.max_sequence_length
    if run.hardware.is_cpu:
        layers.dispatch_cpu_unquantized_gemm = _use_layer_weight
        CpuCommunicator._all_group_ranks_share_shm_group_name = _no_shared_memory
    set_threads, team = torch.set_num_threads, sampler.tensor_parallel_size
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(description.config, encoding="utf-8")
        try:
            return LLM(
                model=folder, skip_tokenizer_init=True, load_format="dummy", generation_config="vllm",
                dtype=sampler.dtype(run), max_model_len=longest,
                max_num_seqs=sampler.max_num_seqs, logprobs_mode="processed_logprobs",
                enforce_eager=sampler.eager(run.hardware), enable_sleep_mode=sleeps,
                gpu_memory_utilization=sampler.share, kv_cache_memory_bytes=description.cache,
                tensor_parallel_size=team,
                disable_custom_all_reduce=torch.cuda.device_count() < team,  # it accesses other ranks' GPUs
                distributed_executor_backend="external_launcher" if dist.is_initialized() else "uni",
                **(_prefill_options(longest, sampler) if run.hardware.is_cpu else {}),
            )  # fmt: skip
        except ValueError as error:
            got = f"vLLM cannot run {description.architecture} here: {error_message(error)}"
            raise Problems(_unsupported(got)) from error
        finally:
            torch.set_num_threads = set_threads  # on a CPU vLLM replaces it by a function that does nothing


def _has_experts(model: nn.Module) -> bool:
    from vllm.model_executor.layers.fused_moe import RoutedExperts  # noqa: PLC0415  # its name in the CPU's version

    return any(isinstance(part, RoutedExperts) for part in model.modules())


def _prefill_options(longest: int, sampler: VllmSampler) -> dict[str, Any]:
    """Prefill each prompt in one piece: chunked prefill rewinds the random generator, which a CPU's cannot (0.32)."""
    max_tokens = max(TOKENS, longest, sampler.max_num_seqs)
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max_tokens}


def _use_layer_weight(layer: nn.Module, remove_weight: bool) -> None:
    """Compute with a layer's own weight. vLLM for CPUs would compute with a packed copy, and new weights not reach it
    (seen in 0.32)."""
    cast("Any", layer).cpu_linear = nn.functional.linear


def _no_shared_memory(_: CpuCommunicator) -> bool:
    """Ranks communicate through torch.distributed. vLLM's shared memory has the same name in every run of a machine,
    and remains after a run is killed (0.32)."""
    return False


def _team_group(size: int) -> dist.ProcessGroup | None:
    """The process group of this rank's tensor-parallel copy; None without tensor parallelism."""
    if size == 1:
        return None
    return cast("dist.ProcessGroup", dist.new_subgroups(size, backend="gloo")[0])
