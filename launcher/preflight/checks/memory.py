"""Checks whether a run fits into memory."""

from __future__ import annotations

import shlex
from typing import Any

from launcher.config.defaults import FASTER, MEMORY, REASONS
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.models.pretrained import Pretrained
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.memory_fit import cheapest, fits
from launcher.spec.hardware import GIB, Hardware
from launcher.spec.run import RunSpec

SETTINGS = tuple(name for name, reason in REASONS.items() if reason in (MEMORY, FASTER))
"""Settings that are fitted to memory where they are not given."""
CUDA_CONTEXT = 600 * 2**20  # bytes of each process on its GPU: CUDA context, kernels, library workspaces


def limit(hardware: Hardware) -> int | None:
    """Bytes that one process may take; None where the GPU's memory is not known.

    Processes on one machine without GPUs share its memory.
    """
    if hardware.is_cpu:
        return machine.memory_bytes() // hardware.processes_per_node
    total = hardware.memory_bytes
    if total is None:
        total = min((gpu.memory_bytes for gpu in machine.query_gpus().found), default=None)
    return total and total - CUDA_CONTEXT


def check(context: Context) -> list[CheckResult]:
    """See `check_memory`; nothing where the model has problems of its own."""
    return [] if context.model_problems else check_memory(context.run, limit(context.run.taken))


def check_memory(run: RunSpec, limit_bytes: int | None) -> list[CheckResult]:
    """One result: OK if the run fits at any error of the estimate, FAIL if at none, otherwise WARN."""
    memory = run.engine.memory(run)
    if memory is None:
        on_hub = isinstance(run.model, Pretrained) and run.model.on_hub
        why = "known only after it is downloaded" if on_hub else "not estimated, as its layers are not counted here"
        if run.model.shape:
            why = f"not estimated for engine {type(run.engine).__name__}"
        return [CheckResult("WARN", "memory", f"what {run.model.label} needs is {why}")]
    taken = f"{memory.peak.name} takes {_gib(memory.peak_bytes)} (± {memory.band:.0%})"
    if limit_bytes is None:
        fix = "set hardware.memory_gb to the GiB of one GPU"
        return [CheckResult("WARN", "memory", f"{taken}, and the memory of {run.hardware.device} is not known", fix)]
    message = f"{taken} of {_gib(limit_bytes)} for each process"
    if fits(memory, limit_bytes):
        return [CheckResult("OK", "memory", message)]
    fix = "use more GPUs with engine.strategy=fsdp2, adapters (model.lora_rank=32) or a smaller model"
    if (fitting := cheapest(run, limit_bytes)) and (estimate := run.engine.memory(fitting.run)):
        fix = f"use {shlex.join(fitting.words)}: {_gib(estimate.peak_bytes)}, {', '.join(fitting.prices)}"
    return [CheckResult("FAIL" if memory.at_least_bytes > limit_bytes else "WARN", "memory", message, fix)]


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"


def to_node(run: RunSpec, limit_bytes: int | None) -> dict[str, Any] | None:
    """Phases, parts and limit in bytes, as a JSON object; None where there is no estimate."""
    memory = run.engine.memory(run)
    return None if memory is None else memory.to_node() | {"limit_bytes": limit_bytes}
