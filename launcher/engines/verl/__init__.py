"""The engine verl 0.9.1: a program in an environment of its own, started with the arguments that a RunSpec makes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from launcher.core.problems import Problem, conflict
from launcher.core.settings import Names, settings
from launcher.engines.verl.sampler import VerlSampler
from launcher.spec.engine import Engine, EventReader, Plan
from launcher.spec.run import RunSpec


@settings
class Verl(Engine):
    """Trains with verl 0.9.1 (FSDP or Megatron; vLLM or SGLang for sampling), as a program in its own environment."""

    python: str | None = None
    """Python of the environment that verl is installed in, as a path on the machine that trains; by default the one
    that runs rlrun."""
    strategy: Literal["fsdp", "fsdp2", "megatron"] = "fsdp"
    """How weights, gradients and optimizer states are sharded over the GPUs."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of verl's processes."""
    extra: Names = ()
    """Further arguments for verl, in its own words, such as `actor_rollout_ref.rollout.enable_chunked_prefill=false`;
    they are checked against verl's config. Typed on the command line without `engine.extra=` they come here, too."""

    computes = frozenset({"reference", "critic", "old"})
    reads = frozenset({"answers", "prompts"})

    def problems(self, run: RunSpec) -> list[Problem]:
        found = super().problems(run)
        if not isinstance(run.sampler, VerlSampler):
            got = "verl samples with servers of its own"
            found.append(conflict("sampler", got, "use sampler=verl, or engine=torch", "engine"))
        return found

    def plan(self, run: RunSpec, folder: Path, start: int = 0) -> Plan:
        raise NotImplementedError

    def reader(self) -> EventReader:
        raise NotImplementedError
