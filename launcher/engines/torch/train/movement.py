"""How far the weights moved since the run began, by part of the network.

A copy of all weights would take as much memory as the model, so each weight is compared at the same few elements. They
do not depend on the number of processes, and every checkpoint has them: a resumed run measures from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from launcher.engines.torch.model.network import Network
from launcher.engines.torch.parallel.strategy import full_tensor
from launcher.engines.torch.train.optimizer import TrainedNetwork

SAMPLED = 16_384  # elements of a weight; all of a smaller one
PRIME = 2_654_435_761
PARTS: Mapping[str, tuple[str, ...]] = {
    "lora_A": ("lora_a", "lora_embedding_a"),
    "lora_B": ("lora_b", "lora_embedding_b"),
    "norms": ("norm", "ln_"),
    "head": ("lm_head", "embed_out"),
    "embedding": ("embed", "wte", "wpe"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "ffn", "expert", "moe"),
}
"""Words in the names of a part's weights; the first part that fits is taken. Weights that are tied are named once."""


def part_of(name: str) -> str:
    lower = name.lower()
    return next((part for part, words in PARTS.items() if any(word in lower for word in words)), "other")


def sample(network: Network) -> dict[str, Tensor]:
    """At most SAMPLED elements of each trained weight, by its name, in CPU memory. Collective."""
    sampled = dict[str, Tensor]()
    for name, weight in network.named_parameters():
        if weight.requires_grad:
            flat = full_tensor(weight.detach()).flatten()
            if len(flat) > SAMPLED:
                flat = flat[torch.arange(SAMPLED, device=flat.device) * PRIME % len(flat)]
            sampled[name] = flat.to("cpu", copy=True)
    return sampled


def distances(trained: TrainedNetwork) -> dict[str, float]:
    """Distance of each part from its start, relative to the norm that it had; its norm where that was 0. Empty where
    the start is not known. Collective."""
    if trained.start is None:
        return {}
    now, sums = sample(trained.network), dict[str, Tensor]()
    for name, weight in trained.network.named_parameters():
        if name in trained.start and name in now:
            start, end = trained.start[name].double(), now[name].double()
            weighed = torch.stack([(end - start).square().sum(), start.square().sum()]) * weight.numel() / len(start)
            sums[part_of(name)] = sums.get(part_of(name), 0) + weighed
    square = {part: total.tolist() for part, total in sums.items()}
    return {part: (moved / (start or 1.0)) ** 0.5 for part, (moved, start) in square.items()}
