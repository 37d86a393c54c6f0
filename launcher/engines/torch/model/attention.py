"""Attention over packed sequences, as an attention function of transformers.

Packed: sequences are concatenated in one row, and each attends only to itself and the prompt that it shares with
others. Sequences of like length are computed together. Whatever is not packed goes to transformers' own function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "rlrun"
NO_MASK = torch.empty(1, 1, 0, 0)  # of a finished mask's shape, so that transformers builds none


@dataclass(frozen=True)
class Call:
    """Sequences that are computed together, each padded at its end to `length` places."""

    count: int
    length: int
    prompts: int | None = None  # the earlier call whose sequences precede these
    owner: Tensor | None = None  # [count] which of them precedes each


@dataclass(frozen=True)
class Layout:
    """Assignment of N packed tokens to the S slots of the attention calls, which are concatenated."""

    calls: tuple[Call, ...]
    places: Tensor | None  # [N] each token's place; None where all places are taken
    size: int  # S

    def pad(self, x: Tensor) -> Tensor:
        """[N, ...] -> [S, ...], 0 in unused slots, which no real token attends to."""
        if self.places is None:
            return x
        return x.new_zeros((self.size, *x.shape[1:])).index_copy(0, self.places, x)

    def unpad(self, x: Tensor) -> Tensor:
        """[S, ...] -> [N, ...]."""
        return x if self.places is None else _Unpad.apply(x, self.places)


class _Unpad(torch.autograd.Function):
    """index_select of distinct indices: its gradient is a copy, where torch's would be a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.size = len(x)
        ctx.save_for_backward(places)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (places,), (grad,) = ctx.saved_tensors, grads
        return grad.new_zeros((ctx.size, *grad.shape[1:])).index_copy_(0, places, grad), None


class _RepeatRows(torch.autograd.Function):
    """index_select of few large rows, each repeated many times: its gradient is one matrix product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: Tensor) -> Tensor:
        ctx.count = len(x)
        ctx.save_for_backward(owner)
        return x.index_select(0, owner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (owner,), (grad,) = ctx.saved_tensors, grads
        onehot = (torch.arange(ctx.count, device=owner.device)[:, None] == owner).to(grad.dtype)  # [g, n]
        return (onehot @ grad.flatten(1)).view(ctx.count, *grad.shape[1:]), None


def attention(
    module: nn.Module,
    query: Tensor,  # [1, H, N, D]
    key: Tensor,  # [1, K, N, D]
    value: Tensor,  # [1, K, N, D]
    attention_mask: Tensor | None,
    *,
    layout: Layout | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """[1, N, H, D]."""
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
    if (shared := query.shape[1] // key.shape[1]) > 1:
        key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    q, k, v = (layout.pad(x[0].transpose(0, 1)) for x in (query, key, value))  # [S, H, D]
    call_kv, parts = list[tuple[Tensor, Tensor]](), list[Tensor]()
    sizes = [call.count * call.length for call in layout.calls]  # split's gradient is one copy; a slice's has S rows
    for call, *places in zip(layout.calls, q.split(sizes), k.split(sizes), v.split(sizes), strict=True):
        shape = call.count, call.length
        part_q, part_k, part_v = (x.unflatten(0, shape).transpose(1, 2) for x in places)  # [count, H, length, D]
        if call.prompts is not None and call.owner is not None:
            part_k, part_v = (
                torch.cat([_RepeatRows.apply(before, call.owner), x], 2)
                for before, x in zip(call_kv[call.prompts], (part_k, part_v), strict=True)
            )
        call_kv.append((part_k, part_v))
        mask = _mask(call.length, part_k.shape[2], sliding_window, q.device)
        out = scaled_dot_product_attention(
            part_q, part_k, part_v, attn_mask=mask, is_causal=mask is None, dropout_p=dropout, scale=scaling
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))  # [count * length, H, D]
    return layout.unpad(torch.cat(parts))[None], None


def _mask(length: int, seen: int, window: int | None, device: torch.device) -> Tensor | None:
    """[length, seen] bool: which of the `seen` tokens the last `length` may attend to; None where is_causal
    suffices."""
    if length == seen and (window is None or length <= window):
        return None
    mask = torch.ones(length, seen, dtype=torch.bool, device=device).tril(seen - length)
    return mask if window is None else mask.triu(seen - length + 1 - window)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
