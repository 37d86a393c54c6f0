"""Checks whether a run fits into memory, and finds settings with which it does: of those, the ones with the least time
of a step, each estimated as a run."""

from __future__ import annotations

import shlex
from bisect import bisect
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from typing import Any

from pydantic import ValidationError

from launcher.config.defaults import FASTER, MEMORY, REASONS
from launcher.config.descriptions import written
from launcher.config.nodes import nested
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.models.pretrained import Pretrained
from launcher.preflight.checks.context import Context
from launcher.spec.hardware import GIB, GPUS_GIB, Hardware, computes_bfloat16
from launcher.spec.run import RunSpec

SETTINGS = tuple(name for name, reason in REASONS.items() if reason in (MEMORY, FASTER))
"""Settings that are fitted to memory where they are not given."""
CUDA_CONTEXT = 600 * 2**20  # bytes of each process on its GPU: CUDA context, kernels, library workspaces
Change = tuple[str, Any]
"""The dotted name of a setting, and its value."""
FEW_TOKENS, FEW_ANSWERS = 8192, 32
"""Tokens of a micro-batch, and answers decoded together, at which each costs about twice the time as with very
many."""
MICRO, TOKENS = "trainer.micro_batch_size_per_gpu", "trainer.max_tokens_per_gpu"
DECODED, JUDGED = "sampler.max_num_seqs", "data.val_batch_size"


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
    if memory.at_most_bytes <= limit_bytes:
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


# ---- what makes it fit


@dataclass(frozen=True)
class Switch:
    """A change of settings that saves memory, and its cost."""

    changes: tuple[Change, ...]
    cost: float
    """Factor on the time of a step."""
    price: str
    same: bool = True
    """Whether it may be applied without being asked for: training stays the same, but for rounding."""


MIXED = Switch((("engine.mixed_precision", True),), 0.8, "matrices are multiplied in bfloat16")
RECOMPUTED = Switch((("model.enable_gradient_checkpointing", True),), 1.3, "a third more time")
SHARDED = Switch((("engine.strategy", "fsdp2"),), 1.1, "layers are sent between processes")
MOVED = Switch(
    (("engine.strategy", "fsdp2"), ("engine.offload", ("weights",))),
    8.0, "weights and optimizer are moved in every layer: much slower", same=False,
)  # fmt: skip
ADAPTERS = Switch(
    (("model.lora_rank", 32),), 40.0, "adapters learn, the weights do not: give optim.lr about ten times the rate",
    same=False,
)  # fmt: skip
FROZEN = Switch(
    (("model.lora_rank", 32), ("model.dtype", "bfloat16"), ("engine.mixed_precision", False)), 45.0,
    "adapters learn on frozen weights of bfloat16: give optim.lr about ten times the rate", same=False,
)  # fmt: skip
UNTESTED = Switch((("data.val_files", ()), ("data.val_share", 0.0)), 20.0, "nothing is validated", same=False)
UNSHARED = [Switch(((f"sampler.{name}", None),), 1.05, "vLLM takes its usual part of the memory", same=False)
            for name in ("gpu_memory_utilization", "kv_cache_gb")]  # fmt: skip
SMALLER = "the same result, in smaller parts"


@dataclass(frozen=True)
class Fit:
    """A run that fits, and the changes that made it fit."""

    run: RunSpec
    changes: dict[str, Any]
    prices: tuple[str, ...]
    cost: float

    @property
    def words(self) -> tuple[str, ...]:
        """The changes as arguments."""
        return tuple(f"{name}={written(value)}".replace(", ", ",") for name, value in self.changes.items())


def cheapest(run: RunSpec, limit_bytes: int, free: Collection[str] | None = None) -> Fit | None:
    """The run that fits with the least time of a step; None where none does. If `free` is given, only the settings that
    it names are changed, and only in ways that do not change what is trained."""
    best: Fit | None = None
    for switches in _combinations(run, free):
        base_cost = _time_factor(switches)
        if best and base_cost >= best.cost:
            break
        changes = {name: value for switch in switches for name, value in switch.changes}
        changed = with_settings(run, tuple(changes.items()))
        fitted = changed and _fit_parts(changed, limit_bytes, free)
        if not fitted:
            continue
        reduced, parts = fitted
        cost = base_cost * _small_parts_factor(reduced)
        if best is None or cost < best.cost:
            prices = [*(switch.price for switch in switches), *([SMALLER] if parts else [])]
            best = Fit(reduced, changes | parts, tuple(dict.fromkeys(filter(None, prices))), cost)
    return best


def _combinations(run: RunSpec, free: Collection[str] | None) -> Iterator[tuple[Switch, ...]]:
    """All combinations of switches that change the run, the cheapest first."""
    on_gpu, multiple = not run.hardware.is_cpu, run.hardware.processes > 1
    can_use_bf16 = on_gpu and run.model.dtype == "float32" and has_bfloat16(run.hardware)
    roles = [Switch((("engine.offload", (role,)),), 1.2, f"the {role} is moved in every step", same=False)
             for role in ("reference", "critic", "reward")]  # fmt: skip
    options = [
        {MIXED: can_use_bf16}, {RECOMPUTED: True},
        {SHARDED: multiple, MOVED: multiple and on_gpu, **dict.fromkeys(roles, on_gpu)},
        {ADAPTERS: not run.model.lora_rank, FROZEN: can_use_bf16},
        {UNTESTED: not run.algorithm.sampled}, *({switch: True} for switch in UNSHARED),
    ]  # fmt: skip

    def is_useful(switch: Switch) -> bool:
        allowed = free is None or (switch.same and {name for name, _ in switch.changes} <= {*free})
        return allowed and any(value_of(run, name) != value for name, value in switch.changes)

    useful = [[(), *((switch,) for switch, possible in option.items() if possible and is_useful(switch))]
              for option in options]  # fmt: skip
    combined = (tuple(chain.from_iterable(chosen)) for chosen in product(*useful))
    yield from sorted((chosen for chosen in combined if not {MIXED, FROZEN} <= {*chosen}), key=_time_factor)


def _time_factor(switches: tuple[Switch, ...]) -> float:
    return prod(switch.cost for switch in switches)


def has_bfloat16(hardware: Hardware) -> bool:
    """Whether the GPU computes bfloat16: the named one, or for `cuda` all those of this machine."""
    if hardware.device.lower() in GPUS_GIB:
        return hardware.has_bfloat16
    return hardware.has_bfloat16 and all(computes_bfloat16(gpu.name) for gpu in machine.query_gpus().found)


def value_of(run: RunSpec, name: str) -> Any:
    """The value of a setting; None where the run has no such setting."""
    group, _, setting = name.partition(".")
    return vars(getattr(run, group)).get(setting)


def _fit_parts(run: RunSpec, limit_bytes: int, free: Collection[str] | None) -> tuple[RunSpec, dict[str, Any]] | None:
    """The run with the largest parts that fit, and the settings that became smaller; None where none fits."""
    if _run_fits(run, limit_bytes):
        return run, {}
    ranges = [(name, min(low, high), high) for name, low, high in _part_ranges(run) if free is None or name in free]
    smallest = with_settings(run, tuple((name, low) for name, low, _ in ranges))
    if smallest is None or not _run_fits(smallest, limit_bytes):
        return None
    fitting, parts = smallest, dict[str, Any]()
    for name, low, high in ranges:
        value = _largest_fitting(fitting, name, low, high, limit_bytes)
        step = run.sampler.n if name == DECODED and run.algorithm.sampled else 1
        if value < high:
            value = max(value // step * step, low)
            value = 2 ** (value.bit_length() - 1) if name in (MICRO, JUDGED) else value
            parts[name] = value
        fitting = with_settings(fitting, ((name, value),)) or fitting
    return fitting, parts


def _part_ranges(run: RunSpec) -> list[tuple[str, int, int]]:
    """The settings of parts that are computed at a time, with the least and the most of each."""
    micro = MICRO, 1, min(run.trainer.micro_batch_size_per_gpu, max(run.sequences_per_update, 1))
    if run.trainer.max_tokens_per_gpu:
        pairs = 2 if run.algorithm.data == "pairs" else 1
        micro = TOKENS, run.max_sequence_length * pairs, run.trainer.max_tokens_per_gpu
    return [micro, (DECODED, run.sampler.n, run.sampler.max_num_seqs), (JUDGED, 1, run.data.val_batch_size)]


def _small_parts_factor(run: RunSpec) -> float:
    """Factor on the time of a step by the overhead of small micro-batches and decoding batches."""
    sequences = run.data.train_batch_size // run.hardware.processes * run.sequences_per_prompt
    size = run.trainer.max_tokens_per_gpu or run.max_sequence_length * min(run.micro_batch_rows, sequences)
    factor = 1 + FEW_TOKENS / size
    if run.algorithm.sampled:
        factor *= (1 + FEW_ANSWERS / min(sequences, run.sampler.max_num_seqs)) / (1 + FEW_ANSWERS / sequences)
    return factor


def _largest_fitting(run: RunSpec, name: str, low: int, high: int, limit_bytes: int) -> int:
    """The largest value of a setting with which the run fits; it fits with `low`, and memory grows with it."""

    def is_too_large(value: int) -> bool:
        changed = with_settings(run, ((name, value),))
        return changed is None or not _run_fits(changed, limit_bytes)

    if not is_too_large(high):
        return high
    return low + bisect(range(low, high), False, key=is_too_large) - 1


def _run_fits(run: RunSpec, limit_bytes: int) -> bool:
    memory = run.engine.memory(run)
    return memory is not None and memory.at_most_bytes <= limit_bytes


def with_settings(run: RunSpec, changes: tuple[Change, ...]) -> RunSpec | None:
    """The run with `changes` applied; None where that is not a valid run."""
    try:
        changed = {group: replace(getattr(run, group), **values) for group, values in nested(dict(changes)).items()}
        return replace(run, **changed)
    except (ValidationError, TypeError):  # a setting that the chosen class of the group does not have
        return None
