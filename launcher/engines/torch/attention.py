"""Attention over packed sequences, as an attention function of transformers.

Packed: sequences lie behind each other in one row, sorted by length, and each sees only itself. Sequences of
equal length are computed together. Whatever is not packed goes to transformers' own function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "rlrun"
NO_MASK = torch.empty(1, 1, 0, 0)  # of a finished mask's shape, so that transformers builds none

Segments = tuple[tuple[int, int], ...]
"""(how many sequences, their length) for each run of equal lengths, in order."""


def attention(
    module: nn.Module,
    query: Tensor,  # [1, H, N, D]
    key: Tensor,  # [1, K, N, D]
    value: Tensor,  # [1, K, N, D]
    attention_mask: Tensor | None,
    *,
    segments: Segments | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """[1, N, H, D]."""
    if segments is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
    if (shared := query.shape[1] // key.shape[1]) > 1:
        key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    parts, start = [], 0
    for count, length in segments:
        q, k, v = (
            x[0, :, start : start + count * length]
            .unflatten(1, (count, length))
            .transpose(0, 1)  # [count, H, length, D]
            for x in (query, key, value)
        )
        window = _window(length, sliding_window, query.device)
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=window, is_causal=window is None, dropout_p=dropout, scale=scaling
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))  # [count * length, H, D]
        start += count * length
    return torch.cat(parts)[None], None


def _window(length: int, size: int | None, device: torch.device) -> Tensor | None:
    """[length, length] bool, where a token may look; None where every earlier token is near enough."""
    if size is None or length <= size:
        return None
    near = torch.ones(length, length, dtype=torch.bool, device=device)
    return near.tril().triu(1 - size)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
