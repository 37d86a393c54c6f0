"""Block sizes of the engine's computations. The memory estimate reads them, so this file does not import torch."""

from __future__ import annotations

LOGITS = 2**24  # computed at a time
KEPT = 2**26  # logits that are kept for the backward pass at most, for all rows of a micro-batch
SPARE = 64  # tokens that a cache makes room for at least
WORTH = 1 / 16  # share of the tokens that shared prompts must save to be worth it


def worth_sharing(prompt: int, rows: int, tokens: int) -> bool:
    """Whether computing a shared prompt once saves enough for so many rows of so many tokens together."""
    return prompt * (rows - 1) >= WORTH * tokens


def cache_capacity(end: int) -> int:
    """Tokens that a KV cache of `end` tokens allocates when it grows."""
    return end + max(end // 2, SPARE)
