"""Which settings make a run fit into memory: the cheapest by the time of a step, each estimated as a run of its own."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from math import prod
from typing import Any

from pydantic import ValidationError

from launcher.config.descriptions import written
from launcher.core import machine
from launcher.spec.hardware import GPUS_GIB, Hardware, computes_bfloat16
from launcher.spec.memory import Memory
from launcher.spec.run import RunSpec

Change = tuple[str, Any]
"""A setting, dotted, and its value."""
FEW_TOKENS, FEW_ANSWERS = 8192, 32
"""Of a micro-batch, and of the answers decoded together: with so few, computing them takes about twice the time of
each."""
FEW = 8
"""Answers to a prompt, where there are too many."""
MICRO, TOKENS = "trainer.micro_batch_size_per_gpu", "trainer.max_tokens_per_gpu"
DECODED, JUDGED = "sampler.max_num_seqs", "data.val_batch_size"


@dataclass(frozen=True)
class Switch:
    """A change that saves memory, and what it costs."""

    changes: tuple[Change, ...]
    cost: float
    """Time of a step, as a multiple."""
    price: str
    same: bool = True
    """Whether a run may be given it without being asked: what is trained stays the same, but for rounding."""


NOTHING = Switch((), 1.0, "")
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
    """A run that fits, and what was changed for it."""

    run: RunSpec
    changes: dict[str, Any]
    prices: tuple[str, ...]
    cost: float

    @property
    def words(self) -> tuple[str, ...]:
        """The changes as arguments."""
        return tuple(f"{name}={written(value)}".replace(", ", ",") for name, value in self.changes.items())


def fits(memory: Memory, limit_bytes: int) -> bool:
    """Whether it fits by any error of the estimate."""
    return memory.at_most_bytes <= limit_bytes


def cheapest(run: RunSpec, limit_bytes: int, free: Collection[str] | None = None) -> Fit | None:
    """The run that fits with the least time of a step; None where none does. `free` names the settings that may be
    changed, and then only those that leave what is trained as it is."""
    best: Fit | None = None
    for switches in _combinations(run, free):
        static = _cost(switches)
        if best and static >= best.cost:
            break
        changes = {name: value for switch in switches for name, value in switch.changes}
        changed = with_settings(run, tuple(changes.items()))
        found = changed and _in_parts(changed, limit_bytes, free)
        if not found:
            continue
        made, parts = found
        cost = static * _slowness(made)
        if best is None or cost < best.cost:
            prices = [*(switch.price for switch in switches), *([SMALLER] if parts else [])]
            best = Fit(made, changes | parts, tuple(dict.fromkeys(filter(None, prices))), cost)
    return best


def _combinations(run: RunSpec, free: Collection[str] | None) -> Iterator[tuple[Switch, ...]]:
    """Switches that make a difference, put together, the cheapest first."""
    on_gpu, several = not run.hardware.is_cpu, run.hardware.processes > 1
    rounds = on_gpu and run.model.dtype == "float32" and has_bfloat16(run.hardware)
    roles = [Switch((("engine.offload", (role,)),), 1.2, f"the {role} is moved in every step", same=False)
             for role in ("reference", "critic", "reward")]  # fmt: skip
    ways = [
        {MIXED: rounds}, {RECOMPUTED: True},
        {SHARDED: several, MOVED: several and on_gpu, **dict.fromkeys(roles, on_gpu)},
        {ADAPTERS: not run.model.lora_rank, FROZEN: rounds},
        {UNTESTED: not run.algorithm.sampled}, *({switch: True} for switch in UNSHARED),
    ]  # fmt: skip

    def is_useful(switch: Switch) -> bool:
        allowed = free is None or (switch.same and {name for name, _ in switch.changes} <= {*free})
        return allowed and any(value_of(run, name) != value for name, value in switch.changes)

    useful = [[NOTHING, *(switch for switch in way if way[switch] and is_useful(switch))] for way in ways]
    yield from sorted((chosen for chosen in product(*useful) if not {MIXED, FROZEN} <= {*chosen}), key=_cost)


def _cost(switches: Iterable[Switch]) -> float:
    """Time of a step with all of them, as a multiple."""
    return prod(switch.cost for switch in switches)


def has_bfloat16(hardware: Hardware) -> bool:
    """Whether the GPU computes bfloat16: that of its name, or for `cuda` those found on this machine."""
    if hardware.device.lower() in GPUS_GIB:
        return hardware.has_bfloat16
    return hardware.has_bfloat16 and all(computes_bfloat16(gpu.name) for gpu in machine.query_gpus().found)


def value_of(run: RunSpec, name: str) -> Any:
    """The value of a setting; None where the run has no such setting."""
    group, _, setting = name.partition(".")
    return vars(getattr(run, group)).get(setting)


def _in_parts(run: RunSpec, limit_bytes: int, free: Collection[str] | None) -> tuple[RunSpec, dict[str, Any]] | None:
    """The run with the largest parts that fit, and those that are smaller than before; None where none fit."""
    if _good(run, limit_bytes):
        return run, {}
    ranges = [_micro_batches(run), (DECODED, run.sampler.n, run.sampler.max_num_seqs),
              (JUDGED, 1, run.data.val_batch_size)]  # fmt: skip
    ranges = [(name, min(least, most), most) for name, least, most in ranges if free is None or name in free]
    smallest = with_settings(run, tuple((name, least) for name, least, _ in ranges))
    if smallest is None or not _good(smallest, limit_bytes):
        return None
    made, parts = smallest, dict[str, Any]()
    for name, least, most in ranges:
        value = _largest(made, name, least, most, limit_bytes)
        step = run.sampler.n if name == DECODED and run.algorithm.sampled else 1
        if value < most:
            value = max(value // step * step, least)
            value = 2 ** (value.bit_length() - 1) if name in (MICRO, JUDGED) else value
            parts[name] = value
        made = with_settings(made, ((name, value),)) or made
    return made, parts


def _slowness(run: RunSpec) -> float:
    """How much slower small parts are than large ones."""
    asked = run.data.train_batch_size // run.hardware.processes * run.sequences_per_prompt
    size = run.trainer.max_tokens_per_gpu or run.max_sequence_length * min(run.micro_batch_rows, asked)
    slow = 1 + FEW_TOKENS / size
    if run.algorithm.sampled:
        slow *= (1 + FEW_ANSWERS / min(asked, run.sampler.max_num_seqs)) / (1 + FEW_ANSWERS / asked)
    return slow


def _micro_batches(run: RunSpec) -> tuple[str, int, int]:
    """The setting of the micro-batches, its least value and its value now."""
    if run.trainer.max_tokens_per_gpu:
        pairs = 2 if run.algorithm.data == "pairs" else 1
        return TOKENS, run.max_sequence_length * pairs, run.trainer.max_tokens_per_gpu
    return MICRO, 1, min(run.trainer.micro_batch_size_per_gpu, max(run.sequences_per_update, 1))


def _largest(run: RunSpec, name: str, least: int, most: int, limit_bytes: int) -> int:
    """The largest value of a setting with which the run fits, as it does with the least: memory grows with it."""

    def is_too_large(value: int) -> bool:
        changed = with_settings(run, ((name, value),))
        return changed is None or not _good(changed, limit_bytes)

    if not is_too_large(most):
        return most
    return least + bisect(range(least, most), False, key=is_too_large) - 1


def _good(run: RunSpec, limit_bytes: int) -> bool:
    memory = run.engine.memory(run)
    return memory is not None and fits(memory, limit_bytes)


def advise(run: RunSpec, limit_bytes: int) -> Fit | None:
    """The cheapest run that fits, with fewer answers to a prompt where there is no other; None where none does."""
    found = cheapest(run, limit_bytes)
    if found or not run.algorithm.sampled or run.sampler.n <= FEW:
        return found
    fewer = {"sampler.n": FEW}
    smaller = with_settings(run, tuple(fewer.items()))
    found = cheapest(smaller, limit_bytes) if smaller else None
    prices = ("fewer answers are compared", *found.prices) if found else ()
    return found and replace(found, changes=fewer | found.changes, prices=prices)


def with_settings(run: RunSpec, changes: tuple[Change, ...]) -> RunSpec | None:
    """The run with other settings; None where it would not be a valid one."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in changes:
        group, _, setting = name.partition(".")
        held = getattr(run, group)
        if not is_dataclass(held) or setting not in {field.name for field in fields(held)}:
            return None
        parts.setdefault(group, {})[setting] = value
    try:
        return replace(run, **{group: replace(getattr(run, group), **of) for group, of in parts.items()})
    except ValidationError:
        return None
