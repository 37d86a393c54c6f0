"""Whether a run fits into memory, and which settings make it fit: each suggestion is estimated as a run of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from pydantic import ValidationError

from launcher.config.descriptions import written
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.preflight.checks.context import Context
from launcher.spec.hardware import GIB, Hardware
from launcher.spec.memory import Memory, PhaseName
from launcher.spec.run import RunSpec

CUDA_CONTEXT = 600 * 2**20  # bytes of a process's own on each GPU: context, kernels, workspaces of the libraries
MOST_TOGETHER = 4  # settings of one advice
WAYS = (("", True), ("", False), ("model.lora_rank", False))
"""Ways to combine settings, the best first: the first setting, and whether the result must stay the same. Adapters help
most where layers are sharded, too, so that starting with the largest single saving can be wrong."""

Change = tuple[str, Any]
"""A setting, dotted, and its value."""


@dataclass(frozen=True)
class MemoryAdvice:
    """Arguments to use instead, and the memory they lead to."""

    words: tuple[str, ...]
    peak_bytes: int
    fits: bool
    price: str


@dataclass(frozen=True)
class _Offer:
    changes: tuple[Change, ...]
    price: str
    phases: tuple[PhaseName, ...] = ()
    """Phases that it can shrink; empty for all."""
    same: bool = True
    """Whether the trained result stays the same."""


@dataclass(frozen=True)
class _Attempt:
    """A run that is changed by an offer."""

    offer: _Offer
    run: RunSpec
    peak_bytes: int
    fits: bool


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
        return [CheckResult("WARN", "memory", f"what {run.model.label} needs is known only after it is downloaded")]
    taken = f"{memory.peak.name} takes {_gib(memory.peak_bytes)} (± {memory.band:.0%})"
    if limit_bytes is None:
        fix = "set hardware.memory_gb to the GiB of one GPU"
        return [CheckResult("WARN", "memory", f"{taken}, and the memory of {run.hardware.device} is not known", fix)]
    message = f"{taken} of {_gib(limit_bytes)} for each process"
    if fits(memory, limit_bytes):
        return [CheckResult("OK", "memory", message)]
    offers = advice(run, limit_bytes)
    helps = next((offer for offer in offers if offer.fits), offers[0] if offers else None)
    fix = _fix(helps) if helps else "use a smaller model or more memory"
    return [CheckResult("FAIL" if memory.at_least_bytes > limit_bytes else "WARN", "memory", message, fix)]


def _fix(advice: MemoryAdvice) -> str:
    words = " ".join(advice.words)
    if advice.fits:
        return f"use {words}: {_gib(advice.peak_bytes)}, {advice.price}"
    return f"{words} helps most: {_gib(advice.peak_bytes)}, {advice.price}; use more GPUs or a smaller model"


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"


def fits(memory: Memory, limit_bytes: int) -> bool:
    """Whether it fits by any error of the estimate."""
    return memory.at_most_bytes <= limit_bytes


def largest_micro_batch(run: RunSpec, limit_bytes: int) -> Change | None:
    """The setting of the largest micro-batch that fits; None where even the smallest does not.

    A larger one than an update has rows would change nothing.
    """
    name, least, most = _micro_batch_range(run)
    value = _largest(run, name, least, most, limit_bytes)
    return None if value is None else (name, value)


def _micro_batch_range(run: RunSpec) -> tuple[str, int, int]:
    """The setting of the micro-batches, its least value and its largest that makes a difference."""
    rows, longest = run.sequences_per_update, run.max_sequence_length
    if run.trainer.max_tokens_per_gpu:
        return "trainer.max_tokens_per_gpu", longest, max(rows, 1) * longest
    return "trainer.micro_batch_size_per_gpu", 1, rows


def _largest(run: RunSpec, name: str, least: int, most: int, limit_bytes: int) -> int | None:
    """The largest value of a setting with which the run fits: memory grows with it."""

    def good(value: int) -> bool:
        changed = _changed(run, ((name, value),))
        memory = changed and changed.engine.memory(changed)
        return bool(memory and fits(memory, limit_bytes))

    if not good(least):
        return None
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if good(middle) else (least, middle - 1)
    return least


def advice(run: RunSpec, limit_bytes: int) -> list[MemoryAdvice]:
    """Changes that save memory: first those that fit, the cheaper first; then by how much they save.

    Where no single setting makes it fit, some are put together: of those that leave the result as it is, if they do.
    """
    before = run.engine.memory(run)
    if before is None:
        return []
    offers = [offer for offer in _offers(run, limit_bytes) if not offer.phases or before.peak.name in offer.phases]
    found = [
        MemoryAdvice(_words(dict(made.offer.changes)), made.peak_bytes, made.fits, made.offer.price)
        for made in _attempts(run, offers, limit_bytes)
        if made.peak_bytes < before.peak_bytes
    ]
    if not any(made.fits for made in found):
        combined = [made for first, same in WAYS if (made := _combine(run, limit_bytes, first, same))]
        found += sorted(combined, key=lambda made: 0 if made.fits else made.peak_bytes)[:1]
    return sorted(found, key=lambda made: (not made.fits, 0 if made.fits else made.peak_bytes))


def _combine(run: RunSpec, limit_bytes: int, first: str, same: bool) -> MemoryAdvice | None:
    """Add settings greedily, the largest saving first, until the run fits or nothing helps.

    It begins with the setting `first`, if there is one. With `same`, only those that leave the result as it is.
    """
    changes, prices, fit = dict[str, Any](), dict[str, None](), False
    for place in range(MOST_TOGETHER):
        now = run.engine.memory(run)
        offers = [offer for offer in _offers(run, limit_bytes) if offer.same or not same]
        if first and not place:
            offers = [offer for offer in offers if offer.changes[0][0] == first]
        attempts = _attempts(run, offers, limit_bytes)
        if not attempts or now is None:
            break
        best = min(attempts, key=lambda made: (not made.fits, made.peak_bytes))
        if best.peak_bytes >= now.peak_bytes:
            break
        changes |= dict(best.offer.changes)
        prices[best.offer.price] = None
        run, fit = best.run, best.fits
        if fit:
            break
    if len(changes) < 2:
        return None
    if fit and (micro := largest_micro_batch(run, limit_bytes)) and micro[0] in changes:  # it had to be small alone
        run, changes = _changed(run, (micro,)) or run, {**changes, micro[0]: micro[1]}
    memory = run.engine.memory(run)
    assert memory
    return MemoryAdvice(_words(changes), memory.peak_bytes, fit, ", ".join(prices))


def _attempts(run: RunSpec, offers: Iterable[_Offer], limit_bytes: int) -> list[_Attempt]:
    """The offers that make a valid run."""
    changed = [(offer, made) for offer in offers if (made := _changed(run, offer.changes))]
    known = [(offer, made, memory) for offer, made in changed if (memory := made.engine.memory(made))]
    return [_Attempt(offer, made, memory.peak_bytes, fits(memory, limit_bytes)) for offer, made, memory in known]


def _words(changes: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}={written(value)}" for name, value in changes.items())


def _offers(run: RunSpec, limit_bytes: int) -> Iterator[_Offer]:
    """Every change that keeps the task, the cheapest first. Some are not valid for this run."""
    slower = "the same result, in smaller parts"
    later: tuple[PhaseName, ...] = ("rollout",)
    name, least, _ = _micro_batch_range(run)
    yield _Offer((largest_micro_batch(run, limit_bytes) or (name, least),), slower, ("log_prob", "update"))
    for name, least, most in (
        ("sampler.max_num_seqs", 1, run.sampler.max_num_seqs),
        ("data.val_batch_size", 1, run.data.val_batch_size),
    ):
        yield _Offer(((name, _largest(run, name, least, most, limit_bytes) or least),), slower, later)
    if not run.model.enable_gradient_checkpointing:
        yield _Offer((("model.enable_gradient_checkpointing", True),), "a third more time", ("update",))
    sharded = (("engine.strategy", "fsdp2"),)
    if run.hardware.processes > 1:
        yield _Offer(sharded, "the same result, layers are sent between processes")
    for role in ("reference", "critic", "reward"):
        yield _Offer((("engine.offload", (role,)),), f"the {role} is moved in every step")
    if run.hardware.processes > 1 and not run.hardware.is_cpu:
        moved = (*sharded, ("engine.offload", ("weights",)))
        yield _Offer(moved, "weights and optimizer are moved in every layer: much slower")
    rounded = "matrices are multiplied in bfloat16, weights stay as they are"
    yield _Offer((("engine.mixed_precision", True),), rounded, same=False)
    if not run.model.lora_rank:
        adapters = "adapters learn, the weights do not; they want a larger optim.lr"
        yield _Offer((("model.lora_rank", 32),), adapters, same=False)
    if not run.algorithm.sampled:
        for name, nothing in (("data.n_val", 0), ("data.val_files", ())):
            yield _Offer(((name, nothing),), "nothing is validated", later, same=False)
    if run.model.dtype != "bfloat16":
        yield _Offer((("model.dtype", "bfloat16"),), "steps smaller than 1/256 of a weight are lost", same=False)


def _changed(run: RunSpec, changes: tuple[Change, ...]) -> RunSpec | None:
    """The run with other settings; None where it would not be a valid one."""
    made: Any = run
    try:
        for name, value in changes:
            made = _with(made, name.split("."), value)
    except (ValidationError, LookupError):
        return None
    changed: RunSpec = made
    return changed


def _with(settings: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if not is_dataclass(settings) or name not in {field.name for field in fields(settings)}:
        raise LookupError(name)
    held = getattr(settings, name)
    return replace(settings, **{name: _with(held, rest, value) if rest else value})  # type: ignore[type-var]


def to_node(run: RunSpec, limit_bytes: int | None) -> dict[str, Any] | None:
    """Phases, parts, limit and advice as plain data, in bytes; None where nothing is known."""
    memory = run.engine.memory(run)
    if memory is None:
        return None
    node = memory.to_node() | {"limit_bytes": limit_bytes}
    if limit_bytes is not None:
        micro = largest_micro_batch(run, limit_bytes)
        node |= {"fits": fits(memory, limit_bytes), "largest_micro_batch": micro and f"{micro[0]}={micro[1]}"}
        if not node["fits"]:
            node["advice"] = [{**vars(each), "words": list(each.words)} for each in advice(run, limit_bytes)]
    return node
