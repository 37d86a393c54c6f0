"""Estimate of a run's memory with verl on FSDP, before it starts: weights, gradients and moments are sharded over all
processes, a layer is gathered while it is computed, and the inference server takes its share of the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.core.overrides import key_of
from launcher.models import activations, size
from launcher.models.activations import Numbers
from launcher.spec.memory import Memory, MemoryPhase, Part
from launcher.spec.model import Architecture
from launcher.spec.run import RunSpec

if TYPE_CHECKING:
    from launcher.engines.verl import Verl

BAND = 0.2
"""Relative error: what verl and its server hold beside these parts was never measured here."""
OFFLOADED: dict[Part, str] = {"weights": "fsdp_config.param_offload", "optimizer": "fsdp_config.optimizer_offload"}


def memory(run: RunSpec, engine: Verl) -> Memory | None:
    """The estimate; None where the model's dimensions are unknown, and for Megatron, which splits layers otherwise."""
    a = run.model.shape
    if a is None or engine.strategy == "megatron":
        return None
    numbers = Numbers(size.BYTES[run.model.dtype], mixed=run.model.dtype == "float32", rank=run.model.lora_rank)
    trained = size.parameters(a) * numbers.weights
    trained = size.lora_parameters(a, numbers.rank) * numbers.adapters if numbers.rank else trained
    held = _held(run, a, numbers, trained)
    phases = [MemoryPhase("update", _update(run, a, numbers, held, trained))]
    if run.algorithm.sampled:
        on = [key_of(word) for word in engine.extra if word.lower().endswith("=true") and ".ref." not in word]
        idle = {part: n for part, n in held.items() if not any(key.endswith(OFFLOADED.get(part, "-")) for key in on)}
        share, split = run.sampler.gpu_memory_utilization, run.sampler.tensor_parallel_size  # type: ignore[attr-defined]
        server = max(int((run.hardware.memory_bytes or 0) * share), size.parameters(a) * size.BFLOAT16 // split)
        phases.insert(0, MemoryPhase("rollout", {**idle, "sampler": server}))
    return Memory(tuple(MemoryPhase(of.name, {part: n for part, n in of.parts.items() if n}) for of in phases), BAND)


def _held(run: RunSpec, a: Architecture, numbers: Numbers, trained: int) -> dict[Part, int]:
    """Bytes that each process holds in all phases, by part."""
    weights, shards = size.parameters(a) * numbers.weights, run.hardware.processes
    copied = "reference" in run.algorithm.needs and not numbers.rank
    return {
        "weights": weights // shards, "optimizer": 2 * trained // shards, "reference": copied * weights // shards,
        "critic": run.has_critic * 3 * weights // shards,
    }  # fmt: skip


def _update(run: RunSpec, a: Architecture, numbers: Numbers, held: dict[Part, int], trained: int) -> dict[Part, int]:
    """Bytes in the backward pass of the largest micro-batch, by part."""
    weights, shards, layers = size.parameters(a) * numbers.weights, run.hardware.processes, a.num_hidden_layers
    tokens = run.trainer.max_tokens_per_gpu or run.micro_batch_rows * run.max_sequence_length
    layer = activations.saved(a, numbers)
    saved = layers * layer
    if run.model.enable_gradient_checkpointing:
        saved = layers * activations.layer_input(a, numbers) + layer
    collected = (2 * weights // layers + a.vocab_size * a.hidden_size * numbers.weights) * (shards > 1)
    return {
        **held, "gradients": trained // shards,
        "activations": tokens * (saved + activations.backward_working(a, numbers)),
        "weights": held["weights"] + collected * numbers.computed // numbers.weights,
        "logits": 2 * tokens * a.vocab_size * numbers.computed,
    }  # fmt: skip
