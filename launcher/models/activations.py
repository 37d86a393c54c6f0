"""Memory of computing a decoder beside its weights. Pure arithmetic, counted from what autograd keeps.

All results are bytes; those per token are of one layer.

h hidden_size, i intermediate_size, H heads, K key-value heads, d head_dim, V vocab_size, r rank of adapters
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from launcher.models.size import BFLOAT16, FLOAT32
from launcher.spec.model import Architecture

MATRICES = 7  # of a layer: q, k, v, o, gate, up, down


@dataclass(frozen=True)
class Numbers:
    """The number formats of a training."""

    weights: int
    """Bytes of a weight, of its gradient and moments if it is trained, and of an activation between layers."""
    mixed: bool = False
    """Autocast: matrices are multiplied in bfloat16, norms are computed in the weights' format."""
    rank: int = 0
    """Rank of adapters, which then are all that is trained; 0 trains the weights."""

    @property
    def computed(self) -> int:
        """Bytes of an activation between two matrices."""
        return BFLOAT16 if self.mixed else self.weights

    @property
    def adapters(self) -> int:
        """Bytes of an adapter's weight: peft keeps them in at least float32."""
        return max(self.weights, FLOAT32)


def saved(a: Architecture, numbers: Numbers) -> int:
    """Bytes per token that one layer saves for its backward pass."""
    # queries, keys, values (repeated for heads that share them), result and log-sum-exp of all heads
    head = 4 * a.head_dim * numbers.computed + max(FLOAT32, numbers.computed)
    return _saved_by_norms(a, numbers) + a.num_attention_heads * head + _saved_by_matrices(a, numbers)


def _saved_by_norms(a: Architecture, numbers: Numbers) -> int:
    """Two norms of h, and those of queries and keys where the model has them.

    Each saves its input in float32 and the inverse root; its normed input only where its weight is trained.
    """
    output_bytes = 0 if numbers.rank else numbers.weights
    total = 2 * (a.hidden_size * (FLOAT32 + output_bytes) + FLOAT32)
    if a.qk_norm:
        head_output_bytes = 0 if numbers.rank else numbers.computed
        heads = a.num_attention_heads + a.num_key_value_heads
        total += heads * (a.head_dim * (FLOAT32 + head_output_bytes) + FLOAT32)
    return total


def _saved_by_matrices(a: Architecture, numbers: Numbers) -> int:
    """Inputs of the matrices (q, k, v; o; gate, up; down) and of the second halves of their adapters, and the tensors
    between gate, up and down: gate, its activation, up."""
    h, attended, i = a.hidden_size, a.num_attention_heads * a.head_dim, feed_forward_width(a)
    casts = numbers.mixed or (numbers.rank and numbers.adapters != numbers.weights)  # each matrix its own input
    input_bytes = numbers.adapters if numbers.rank and not numbers.mixed else numbers.computed
    inputs = (5 if casts else 2) * h + attended + i
    return 3 * i * numbers.computed + (inputs + MATRICES * numbers.rank) * input_bytes


def feed_forward_width(a: Architecture) -> int:
    """i, over all experts that a token is routed to."""
    return a.num_experts_per_tok * a.moe_intermediate_size if a.num_experts else a.intermediate_size


def layer_input(a: Architecture, numbers: Numbers) -> int:
    """Bytes per token that gradient checkpointing keeps of a layer."""
    return a.hidden_size * numbers.weights


def forward_working(a: Architecture, numbers: Numbers) -> int:
    """Peak bytes per token of computing one layer without a backward pass."""
    h, attended, i = a.hidden_size, a.num_attention_heads * a.head_dim, feed_forward_width(a)
    number_bytes, residual = numbers.computed, 2 * h * numbers.weights
    return residual + max(3 * i * number_bytes, 6 * attended * number_bytes, h * FLOAT32)


def backward_working(a: Architecture, numbers: Numbers) -> int:
    """Peak bytes per token of the gradients of one layer's activations."""
    h, attended, i = a.hidden_size, a.num_attention_heads * a.head_dim, feed_forward_width(a)
    number_bytes = numbers.computed
    if numbers.rank and not numbers.mixed:
        number_bytes = max(number_bytes, numbers.adapters)
    return 2 * h * numbers.weights + max(3 * i * number_bytes, 5 * attended * number_bytes, 2 * h * FLOAT32)


@dataclass(frozen=True)
class Head:
    """How the last layer's logits are computed: in blocks, and kept for the backward pass if they are few."""

    block: int
    """Logits computed at a time."""
    kept: int
    """Most logits that are kept for the backward pass; more are recomputed."""


def logits(
    a: Architecture, rows: int, numbers: Numbers, head: Head, what: Literal["scores", "imitates", "learns", "explores"]
) -> int:
    """Peak bytes of the logits of `rows` predicted tokens.

    `scores`: their log-probabilities only. `imitates`: with a backward pass. `learns`: their entropy, too.
    `explores`: with a backward pass of the entropy, too.
    """
    logit_bytes = max(numbers.computed, FLOAT32)
    block = min(rows, max(head.block // a.vocab_size, 1)) * a.vocab_size
    forward = block * logit_bytes * (3 if what in ("learns", "explores") else 2)
    if what == "scores":
        return forward
    all_logits = rows * a.vocab_size
    kept = all_logits * logit_bytes if all_logits <= head.kept else 0
    recomputed = 0 if kept else block * 2 * logit_bytes
    cast = block * numbers.computed if numbers.computed < logit_bytes else 0
    backward = kept + recomputed + cast + (3 * block * logit_bytes if what == "explores" else 0)
    return max(max(kept - block * logit_bytes, 0) + forward, backward)
