"""Block sizes of the engine's computations. The memory estimate reads them, so this file does not import torch."""

from __future__ import annotations

LOGITS = 2**24  # computed at a time
KEPT = 2**26  # most logits of a micro-batch that are kept for the backward pass
SPARE = 64  # least tokens by which a cache grows
WORTH = 1 / 16  # share of the tokens that shared prompts must save to be worth it


def worth_sharing(prompt: int, rows: int, tokens: int) -> bool:
    """Whether computing a shared prompt once saves enough for so many rows of so many tokens together."""
    return prompt * (rows - 1) >= WORTH * tokens


def cache_capacity(end: int) -> int:
    """Tokens that a KV cache of `end` tokens allocates when it grows."""
    return end + max(end // 2, SPARE)
