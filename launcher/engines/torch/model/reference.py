"""Models that stand beside the policy, and may rest in CPU memory while nobody asks them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

import torch

from launcher.engines.torch.model.network import CausalLM, Network


class Reference(Protocol):
    """The model that the policy is measured against."""

    def awake(self) -> AbstractContextManager[CausalLM]: ...


class FrozenCopy:
    """The weights as they were at the start."""

    def __init__(self, model: CausalLM, rests: bool = False) -> None:
        self.model, self.rests, self.device = model, rests, model.device
        model.requires_grad_(False)
        model.eval()
        if rests:
            model.to("cpu")

    @contextmanager
    def awake(self) -> Iterator[CausalLM]:
        with brought(self.model, self.device, self.rests):
            yield self.model


class WithoutAdapters:
    """The policy's own weights, which stay as they were while only its adapters learn."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    @contextmanager
    def awake(self) -> Iterator[CausalLM]:
        with cast("Any", self.model.module).disable_adapter():
            yield self.model


@contextmanager
def brought(network: Network, device: torch.device, rests: bool) -> Iterator[None]:
    """The network on `device` meanwhile, and back in CPU memory afterwards where it rests there."""
    if rests:
        network.to(device)
    try:
        yield
    finally:
        if rests:
            network.to("cpu")
