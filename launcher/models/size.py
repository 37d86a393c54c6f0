"""The number of weights of an architecture, and the memory they take. Pure arithmetic: nothing is loaded.

h hidden_size, i intermediate_size, L layers, H heads, K key-value heads, d head_dim, V vocab_size
"""

from __future__ import annotations

from launcher.spec.model import Architecture

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
"""Bytes of a number in each format."""
FLOAT32, BFLOAT16 = BYTES["float32"], BYTES["bfloat16"]


def parameters(a: Architecture) -> int:
    """Number of weights: embedding and output layer (one matrix if tied), L layers, and the final norm of h."""
    outside_layers = a.vocab_size * a.hidden_size * (1 if a.tie_word_embeddings else 2) + a.hidden_size
    return outside_layers + a.num_hidden_layers * _per_layer(a)


def _per_layer(a: Architecture) -> int:
    """Weights of a layer: attention, feed-forward, two norms of h, and the router."""
    matrices = sum(rows * columns for rows, columns in _attention_matrices(a)) + 2 * a.hidden_size
    biases = {"none": 0, "qkv": _qkv_width(a), "qkvo": _qkv_width(a) + a.hidden_size}[a.attention_bias]
    norms = 2 * a.head_dim if a.qk_norm else 0
    if a.num_experts:
        feed_forward = a.num_experts * (a.hidden_size + 3 * a.hidden_size * a.moe_intermediate_size)
    else:
        feed_forward = sum(rows * columns for rows, columns in _feed_forward_matrices(a))
        feed_forward += 2 * a.intermediate_size + a.hidden_size if a.mlp_bias else 0
    return matrices + biases + norms + feed_forward


def _qkv_width(a: Architecture) -> int:
    """Width of queries, keys and values together: H d + 2 K d."""
    return (a.num_attention_heads + 2 * a.num_key_value_heads) * a.head_dim


def _attention_matrices(a: Architecture) -> list[tuple[int, int]]:
    """(in, out) of the query, key, value and output matrices."""
    h, q_width, kv_width = a.hidden_size, a.num_attention_heads * a.head_dim, a.num_key_value_heads * a.head_dim
    return [(h, q_width), (h, kv_width), (h, kv_width), (q_width, h)]


def _feed_forward_matrices(a: Architecture) -> list[tuple[int, int]]:
    """(in, out) of the gate, up and down matrices."""
    return [(a.hidden_size, a.intermediate_size)] * 2 + [(a.intermediate_size, a.hidden_size)]


def lora_parameters(a: Architecture, rank: int) -> int:
    """Weights of LoRA adapters on every matrix but the output layer's, as in peft: rank (in + out) each.

    Experts have gate and up in one matrix, whose adapter has twice the rank; the router has an adapter, too.
    """
    dimensions = sum(rows + columns for rows, columns in _attention_matrices(a))
    if a.num_experts:
        h, i, experts = a.hidden_size, a.moe_intermediate_size, a.num_experts
        dimensions += experts * (2 * (h + 2 * i) + (i + h)) + (h + experts)
    else:
        dimensions += sum(rows + columns for rows, columns in _feed_forward_matrices(a))
    return a.num_hidden_layers * rank * dimensions


def kv_bytes_per_token(a: Architecture, bytes_each: int = BFLOAT16) -> int:
    """Bytes of the KV cache per token of a sequence: keys and values of all layers, 2 L K d numbers."""
    return 2 * a.num_hidden_layers * a.num_key_value_heads * a.head_dim * bytes_each
