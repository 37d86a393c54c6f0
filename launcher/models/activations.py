"""What computing a decoder costs in memory beside its weights. Pure arithmetic, counted from what autograd keeps.

All figures are bytes, and those of a token are of one layer.

h hidden_size, i intermediate_size, H heads, K key-value heads, d head_dim, V vocab_size, r rank of adapters
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from launcher.models.size import BFLOAT16, FLOAT32
from launcher.spec.model import Architecture


@dataclass(frozen=True)
class Numbers:
    """The number formats of a training."""

    weights: int
    """Bytes of one weight, of its gradient and moments where it is trained, and of a number between two layers."""
    mixed: bool = False
    """Matrices are multiplied in bfloat16 over such weights; norms are not."""
    rank: int = 0
    """Of adapters, which then are all that is trained; 0 trains the weights."""

    @property
    def computed(self) -> int:
        """Bytes of one number between two matrices."""
        return BFLOAT16 if self.mixed else self.weights

    @property
    def adapters(self) -> int:
        """Bytes of one weight of an adapter: peft keeps them in float32 at least."""
        return max(self.weights, FLOAT32)


def saved(a: Architecture, numbers: Numbers) -> int:
    """What the backward pass of one layer needs of one token."""
    return _saved_by_norms(a, numbers) + _saved_by_attention(a, numbers) + _saved_by_matrices(a, numbers)


def _saved_by_norms(a: Architecture, numbers: Numbers) -> int:
    """Two norms of h, and where the model has them, one of all queries and one of all keys.

    Each keeps its input in float32 and the root; what it multiplied with its weight only where that is trained.
    """
    normed = 0 if numbers.rank else numbers.weights
    total = 2 * (a.hidden_size * (FLOAT32 + normed) + FLOAT32)
    if a.qk_norm:
        of_heads = 0 if numbers.rank else numbers.computed
        heads = a.num_attention_heads + a.num_key_value_heads
        total += heads * (a.head_dim * (FLOAT32 + of_heads) + FLOAT32)
    return total


def _saved_by_attention(a: Architecture, numbers: Numbers) -> int:
    """Queries, keys and values of all heads (keys are repeated for the heads that share them), and the result."""
    return a.num_attention_heads * (4 * a.head_dim * numbers.computed + max(FLOAT32, numbers.computed))


def _saved_by_matrices(a: Architecture, numbers: Numbers) -> int:
    """What the matrices were multiplied with, and the tensors between gate, up and down."""
    h, attended, i = a.hidden_size, a.num_attention_heads * a.head_dim, feed_forward_width(a)
    between = 3 * i * numbers.computed  # gate, its activation, up
    inputs = {"q": h, "k": h, "v": h, "o": attended, "gate": h, "up": h, "down": i}
    if not numbers.rank:
        shared = 2 * h if not numbers.mixed else 5 * h  # under autocast each matrix has its input once more
        return between + (shared + attended + i) * numbers.computed
    low = len(inputs) * numbers.rank * (numbers.computed if numbers.mixed else numbers.adapters)
    if numbers.mixed:
        return between + (5 * h + attended + i) * numbers.computed + low
    if numbers.adapters != numbers.weights:  # each adapter casts its input for itself
        return between + sum(inputs.values()) * numbers.adapters + low
    return between + (2 * h + attended + i) * numbers.weights + low


def feed_forward_width(a: Architecture) -> int:
    """i, of all experts that a token takes."""
    return a.num_experts_per_tok * a.moe_intermediate_size if a.num_experts else a.intermediate_size


def layer_input(a: Architecture, numbers: Numbers) -> int:
    """What checkpointing keeps of a layer for one token."""
    return a.hidden_size * numbers.weights


def forward_working(a: Architecture, numbers: Numbers) -> int:
    """What computing one layer holds for one token at its fullest, without a backward pass to come."""
    h, attended, i = a.hidden_size, a.num_attention_heads * a.head_dim, feed_forward_width(a)
    own, residual = numbers.computed, 2 * h * numbers.weights
    return residual + max(3 * i * own, 6 * attended * own, h * FLOAT32)


def backward_working(a: Architecture, numbers: Numbers) -> int:
    """Gradients of one layer's numbers of one token at their fullest."""
    h, attended, i = a.hidden_size, a.num_attention_heads * a.head_dim, feed_forward_width(a)
    own = numbers.computed
    if numbers.rank and not numbers.mixed:
        own = max(own, numbers.adapters)
    return 2 * h * numbers.weights + max(3 * i * own, 5 * attended * own, 2 * h * FLOAT32)


@dataclass(frozen=True)
class Head:
    """How the last layer's logits are computed: in blocks, of which some are kept."""

    block: int
    """Logits made at a time."""
    kept: int
    """Most logits that are kept for the backward pass."""


def logits(
    a: Architecture, rows: int, numbers: Numbers, head: Head, what: Literal["scores", "imitates", "learns", "explores"]
) -> int:
    """Logits of so many predicted tokens at their fullest.

    `scores`: their log-probabilities only. `imitates`: with a backward pass. `learns`: their entropy, too.
    `explores`: with a backward pass of the entropy, too.
    """
    each = max(numbers.computed, FLOAT32)
    block = min(rows, max(head.block // a.vocab_size, 1)) * a.vocab_size
    forward = block * each * (3 if what in ("learns", "explores") else 2)
    if what == "scores":
        return forward
    whole = rows * a.vocab_size
    kept = whole * each if whole <= head.kept else 0
    remade = 0 if kept else block * 2 * each
    cast = block * numbers.computed if numbers.computed < each else 0
    backward = kept + remade + cast + (3 * block * each if what == "explores" else 0)
    return max(max(kept - block * each, 0) + forward, backward)
