"""The built-in engine: torch and transformers. This file starts it, and imports neither."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from launcher.core.problems import Problem, conflict
from launcher.core.settings import Count, listed, settings
from launcher.engines.torch.rollout.sampler import Colocated
from launcher.rewards.model import RewardModel
from launcher.spec.engine import Engine, Plan, Process
from launcher.spec.hardware import PROCESSES, TOGETHER
from launcher.spec.memory import Memory
from launcher.spec.reward import Reward
from launcher.spec.run import RunSpec

MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"}
"""For processes that compute on a CPU: disables glibc's caches of small free blocks. They would keep leftovers of
aligned allocations (under 100 bytes) between large free blocks, which then could not merge for reuse. Without them the
heap fragments less: up to a quarter less memory, at the same speed."""

Offloadable = Literal["weights", "reference", "critic", "reward"]


@settings
class Torch(Engine):
    """Trains in one process per GPU with DDP or FSDP2, and samples from the model under training."""

    strategy: Annotated[Literal["ddp", "fsdp2"], TOGETHER] = "ddp"
    """`ddp`: each process holds the whole model. `fsdp2`: weights, gradients and optimizer states are sharded over the
    processes, and a layer is gathered while it is computed. Where it is not given, `fsdp2` if memory on GPUs is
    too small for `ddp`."""
    mixed_precision: bool = False
    """Compute in bfloat16 with autocast, faster on GPUs; weights and optimizer keep the model's number
    format. Where it is not given, true on GPUs that compute bfloat16 and whose memory is known."""
    offload: Annotated[tuple[Offloadable, ...], BeforeValidator(listed)] = ()
    """Kept in CPU memory while idle; `weights` (with the optimizer) needs fsdp2."""
    num_threads: Count = 0
    """CPU threads of each process; 0 shares the machine's cores. 1 is fastest for very small models."""

    computes = frozenset({"reference", "critic", "old"})
    reads = frozenset({"answers", "pairs", "prompts", "mixed"})

    def problems(self, run: RunSpec) -> list[Problem]:
        issues = [conflict("engine.offload", why, "leave it out", *about) for why, about in self._unused_offloads(run)]
        if self.mixed_precision and run.model.dtype != "float32":
            got = f"needs model.dtype=float32 to compute in bfloat16 over, got {run.model.dtype}"
            issues.append(conflict("engine.mixed_precision", got, "", "model", "model.dtype"))
        if not run.hardware.has_bfloat16:
            got = f"{run.hardware.device} computes no bfloat16"
            about = ("hardware", "hardware.device")
            if self.mixed_precision:
                issues.append(conflict("engine.mixed_precision", got, "use false", *about))
            if run.model.dtype == "bfloat16":
                issues.append(conflict("model.dtype", got, "use float32", "model", *about))
        if not isinstance(run.sampler, Colocated):
            got = "samples with servers that the torch engine does not start"
            issues.append(conflict("sampler", got, "use sampler=torch or sampler=vllm, or engine=verl", "engine"))
        return [*super().problems(run), *issues]

    def _unused_offloads(self, run: RunSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Why offloads would have no effect, and the settings and groups that this depends on."""
        name, needs, sharded = type(run.algorithm).__name__, run.algorithm.needs, self.strategy == "fsdp2"
        if "weights" in self.offload and not (sharded and run.hardware.processes > 1):
            why = "weights rest in CPU memory with engine.strategy=fsdp2 on several processes only"
            yield why, ("engine.strategy", *PROCESSES)
        for role in ("reference", "critic"):
            if role in self.offload and role not in needs:
                yield f"{name} has no {role} here", ("algorithm", "algorithm.kl_loss_coef", "algorithm.kl_coef")
            elif role in self.offload and sharded:
                yield f"with engine.strategy=fsdp2 `weights` rests the {role} too", ("engine.strategy",)
        if "reference" in self.offload and "reference" in needs and run.model.lora_rank:
            yield "the reference is the policy without its adapters", ("model.lora_rank", "model")
        if "reward" in self.offload and not _has_network(run.reward):
            yield "the reward is no model", ("reward",)

    def reward(self, run: RunSpec) -> Reward:
        if not _has_network(run.reward):
            return run.reward
        from launcher.engines.torch import assemble  # noqa: PLC0415  it loads torch, which rules do not need

        return assemble.load_reward(run, assemble.select_device(run, self.num_threads))

    def cores(self) -> int:
        return self.num_threads

    def memory(self, run: RunSpec) -> Memory | None:
        from launcher.engines.torch import memory  # noqa: PLC0415  # it reads this class

        return memory.memory(run, self)

    def plan(self, run: RunSpec, folder: Path, start: int = 0) -> Plan:
        """Trainers first; processes that only sample have the ranks after theirs, and are not part of their
        WORLD_SIZE."""
        hardware, sampler = run.hardware, run.sampler
        trainers, each, extra = hardware.processes, hardware.processes_per_node, sampler.n_gpus // hardware.nnodes
        env = {**(MALLOC if hardware.is_cpu else {}), **sampler.environment(hardware), "WORLD_SIZE": str(trainers)}
        training_argv = (sys.executable, "-P", "-m", "launcher.engines.torch.worker", str(folder), str(start))

        def process(rank: int, node: int, local: int, argv: tuple[str, ...]) -> Process:
            return Process(rank, argv, {**env, "RANK": str(rank), "LOCAL_RANK": str(local)}, node)

        processes = [process(rank, rank // each, rank % each, training_argv) for rank in range(trainers)]
        if extra:
            assert isinstance(sampler, Colocated)
            sampler_argv = (sys.executable, "-P", "-m", sampler.module, str(folder))
            places = ((node, each + local) for node in range(hardware.nnodes) for local in range(extra))
            processes += [process(trainers + number, *place, sampler_argv) for number, place in enumerate(places)]
        return Plan(tuple(processes), nnodes=hardware.nnodes, gpus=0 if hardware.is_cpu else 1)


def _has_network(reward: Reward) -> bool:
    return any(isinstance(leaf, RewardModel) for leaf in reward.leaves())
