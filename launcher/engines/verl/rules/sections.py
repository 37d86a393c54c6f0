"""What verl's dataclasses refuse when they are made of a section: of the actor and the critic before anything starts,
of the others in the workers. Sources: `__post_init__` in verl 0.9.1's workers/config and utils/profiler/config.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core.problems import Problem, short_repr, suggest

_FSDP_SCHEDULES = ("constant", "cosine")
_MOMENTS = ("fp32", "float32", "32", "bf16", "bfloat16")
ALLOWED: dict[str, dict[str, tuple[object, ...]]] = {
    "FSDPOptimizerConfig": {"lr_scheduler_type": _FSDP_SCHEDULES, "warmup_style": (None, *_FSDP_SCHEDULES)},
    "AutomodelOptimizerConfig": {"lr_scheduler_type": ("constant", "cosine", "linear", "inverse-square-root")},
    "McoreOptimizerConfig": dict.fromkeys(("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), _MOMENTS),
    "FSDPEngineConfig": {"strategy": ("fsdp", "fsdp2", "fsdp_turbo")},
    "McoreEngineConfig": {"strategy": ("megatron",), "dtype": ("bfloat16", "float16")},
    "VeOmniEngineConfig": {"strategy": ("veomni",)},
    "TorchtitanEngineConfig": {
        "strategy": ("torchtitan",),
        "attn_type": ("flex", "flex_flash", "varlen"),
        "spmd_backend": ("default", "full_dtensor", "spmd_types"),
        "activation_checkpoint": ("selective", "full", "none"),
    },
    "EngineRouterReplayConfig": {"mode": ("disabled", "R2", "R3")},
    "NPUToolConfig": {"level": ("level_none", "level0", "level1", "level2")},
}
"""Values that each class takes."""
_TOKENS = {"profile_token_start": 0, "profile_token_end": 0}
LEAST: dict[str, dict[str, int]] = {
    "TraceConfig": {"max_samples_per_step_per_worker": 0},
    "TorchMemoryToolConfig": {"trace_alloc_max_entries": 1, "stack_depth": 1, "memory_snapshot_num_steps": 1},
    "TorchProfilerScheduleConfig": dict.fromkeys(("skip_first", "wait", "warmup", "active", "repeat"), 0),
    "TorchProfilerToolConfig": _TOKENS,
    "NPUToolConfig": _TOKENS,
}
"""The least that a number of each class may be."""
CONTENTS = {
    "TorchProfilerToolConfig": ("cuda", "cpu", "memory", "shapes", "stack"),
    "NPUToolConfig": ("npu", "cpu", "memory", "shapes", "module", "stack"),
}
"""What a profiler can record."""


def refused(section: Any, place: str) -> Iterator[Problem]:
    """What the dataclasses of a section, and of the sections in it, raise when they are made."""
    if not isinstance(section, dict):
        return
    name = str(section.get("_target_", "")).rpartition(".")[2]
    for field, allowed in ALLOWED.get(name, {}).items():
        value = section.get(field, allowed[0])
        if name == "FSDPOptimizerConfig" and field == "lr_scheduler_type" and section.get("warmup_style") is not None:
            continue  # the deprecated setting replaces it
        if value not in allowed:
            yield not_one_of(f"{place}.{field}", value, allowed)
    for content in section.get("contents") or () if name in CONTENTS else ():
        if content not in CONTENTS[name]:
            yield not_one_of(f"{place}.contents", content, CONTENTS[name])
    yield from _too_small(section, name, place)
    if section.get("dynamic_context_parallel") and name == "McoreEngineConfig":
        length = section.get("max_seqlen_per_dp_cp_rank")
        if not isinstance(length, int) or isinstance(length, bool) or length <= 0:
            got = f"{short_repr(length)} with dynamic_context_parallel"
            yield Problem(f"{place}.max_seqlen_per_dp_cp_rank", got, "use the most tokens of a rank, such as 8192")
    for inner, value in section.items():
        yield from refused(value, f"{place}.{inner}")


def _too_small(section: dict[str, Any], name: str, place: str) -> Iterator[Problem]:
    for field, least in LEAST.get(name, {}).items():
        value = section.get(field)
        if isinstance(value, int) and value < least:
            yield Problem(f"{place}.{field}", f"{value}", f"use at least {least}")
    start, end = section.get("profile_token_start"), section.get("profile_token_end")
    if isinstance(start, int) and isinstance(end, int) and 0 <= end <= start:
        yield Problem(f"{place}.profile_token_end", f"{end}, and profile_token_start is {start}", f"use {start + 1}")


def not_one_of(where: str, value: object, allowed: tuple[object, ...]) -> Problem:
    """A value that is none of those that verl knows."""
    known = [str(one) for one in allowed if one is not None]
    return Problem(where, f"got {short_repr(value)}", suggest(str(value), known), "unknown-choice")
