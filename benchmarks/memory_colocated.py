"""Training and serving that take turns on the same GPUs: what a GPU holds in each phase. Pure arithmetic.

Training is sharded (FSDP, or tensor parallel). Serving takes its share of each GPU (vLLM's gpu_memory_utilization)
while answers are written, and leaves it while weights are trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.engines.torch.rollout.vllm import ASLEEP
from launcher.models import activations, size
from launcher.models.activations import Numbers
from launcher.spec.memory import Memory, MemoryPhase, Part
from launcher.spec.model import Architecture

BAND = 0.1
COPIES = {False: 2, True: 3}
"""Of all logits of a micro-batch at the same time: with their gradient, and with what their entropy takes."""


@dataclass(frozen=True)
class ColocatedTraining:
    """Of one GPU. Weights, gradients and moments are float32, matrices are multiplied in bfloat16."""

    gpus: int
    """That the weights are spread over."""
    tokens: int
    """Of a micro-batch, prompts and answers, without padding."""
    predicted: int
    """Of these, tokens whose logits are made."""
    rank: int = 0
    """Of adapters; 0 trains all weights."""
    checkpointing: bool = True
    entropy: bool = False
    """Whether the loss has a term for entropy."""
    tensor_parallel: int = 1
    """GPUs that share each token's layers, too, so that activations and logits are spread over them."""
    offload: bool = False
    """Weights and optimizer rest in CPU memory while answers are written."""


@dataclass(frozen=True)
class Serving:
    """Of one GPU, in bfloat16."""

    tensor_parallel: int
    share: float
    """Of the GPU's memory that it takes, weights and cache together."""


def memory(a: Architecture, training: ColocatedTraining, serving: Serving, gpu_bytes: int) -> Memory:
    """Rollout, sync and update of one GPU."""
    shards = _shards(a, training)
    location: dict[Part, int] = {} if training.offload else {"weights": shards.weights, "optimizer": shards.optimizer}
    serves = round(serving.share * gpu_bytes)
    served = size.parameters(a) * size.BFLOAT16 // serving.tensor_parallel
    layers = _gathered_bytes(a, training)
    learns: dict[Part, int] = {
        "weights": shards.weights + layers,
        "optimizer": shards.optimizer,
        "gradients": shards.gradients,
    }
    return Memory(
        (
            MemoryPhase("rollout", {**location, "kv_cache": max(serves, served)}),
            MemoryPhase("sync", {**location, "weights": shards.weights + layers + served}),
            MemoryPhase("update", {**learns, **_computed(a, training), "runtime": ASLEEP}),
        ),
        BAND,
    )  # fmt: skip


@dataclass(frozen=True)
class _Shards:
    weights: int
    gradients: int
    optimizer: int


def _shards(a: Architecture, training: ColocatedTraining) -> _Shards:
    count = size.parameters(a)
    trained = size.lora_parameters(a, training.rank) if training.rank else count
    all_weights = count + (trained if training.rank else 0)
    return _Shards(*(size.FLOAT32 * each // training.gpus for each in (all_weights, trained, 2 * trained)))


def _gathered_bytes(a: Architecture, training: ColocatedTraining) -> int:
    """Embedding and last layer, and the layers that are computed and fetched, in bfloat16."""
    if training.tensor_parallel == training.gpus:
        return 0
    outside = a.vocab_size * a.hidden_size * (1 if a.tie_word_embeddings else 2)
    layer = (size.parameters(a) - outside) // a.num_hidden_layers
    return (outside + 2 * layer) * size.BFLOAT16


def _computed(a: Architecture, training: ColocatedTraining) -> dict[Part, int]:
    numbers = Numbers(size.BFLOAT16, mixed=True, rank=training.rank)
    kept, layer = a.hidden_size * size.BFLOAT16, activations.saved(a, numbers)
    layers = a.num_hidden_layers
    each = kept * layers + layer if training.checkpointing else layer * layers
    logits = training.predicted * a.vocab_size * size.BFLOAT16 * COPIES[training.entropy]
    return {
        "activations": training.tokens * (each + activations.backward_working(a, numbers)) // training.tensor_parallel,
        "logits": logits // training.tensor_parallel,
    }
