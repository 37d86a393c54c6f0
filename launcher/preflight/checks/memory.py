"""Whether a run fits into memory."""

from __future__ import annotations

import shlex
from typing import Any

from launcher.config.defaults import FASTER, MEMORY, REASONS
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.models.pretrained import Pretrained
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.memory_fit import advise, fits
from launcher.spec.hardware import GIB, Hardware
from launcher.spec.run import RunSpec

SETTINGS = tuple(name for name, reason in REASONS.items() if reason in (MEMORY, FASTER))
"""Those that are fitted where nobody gave them."""
CUDA_CONTEXT = 600 * 2**20  # bytes of a process's own on each GPU: context, kernels, workspaces of the libraries


def limit(hardware: Hardware) -> int | None:
    """Bytes that one process may take; None where the GPU's memory is not known.

    Processes on one machine without GPUs share its memory.
    """
    if hardware.is_cpu:
        return machine.memory_bytes() // hardware.processes_per_node
    whole = hardware.memory_bytes
    if whole is None:
        whole = min((gpu.memory_bytes for gpu in machine.query_gpus().found), default=None)
    return whole and whole - CUDA_CONTEXT


def check(context: Context) -> list[CheckResult]:
    """Nothing where the model has problems of its own."""
    return [] if context.model_problems else check_memory(context.run, limit(context.run.taken))


def check_memory(run: RunSpec, limit_bytes: int | None) -> list[CheckResult]:
    """One result: OK when the run fits by any error of the estimate, FAIL when it fits by none, WARN between."""
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
    if (helps := advise(run, limit_bytes)) and (needs := run.engine.memory(helps.run)):
        fix = f"use {shlex.join(helps.words)}: {_gib(needs.peak_bytes)}, {', '.join(helps.prices)}"
    return [CheckResult("FAIL" if memory.at_least_bytes > limit_bytes else "WARN", "memory", message, fix)]


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"


def to_node(run: RunSpec, limit_bytes: int | None) -> dict[str, Any] | None:
    """Phases, parts and limit as plain data, in bytes; None where nothing is known."""
    memory = run.engine.memory(run)
    return None if memory is None else memory.to_node() | {"limit_bytes": limit_bytes}
