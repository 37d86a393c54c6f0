"""The frozen model beside the policy, which may be offloaded to CPU memory while idle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from launcher.engines.torch.model.network import CausalLM, Network


class Reference:
    """The reference model of the KL term: a copy of the initial weights, which it freezes, or a policy with adapters,
    whose own frozen weights are read with the adapters disabled."""

    def __init__(self, model: CausalLM, offloaded: bool = False) -> None:
        self.model, self.device, self.offloaded = model, model.device, offloaded and not model.has_adapters
        if not model.has_adapters:
            model.requires_grad_(False)
            model.eval()
        if self.offloaded:
            model.to("cpu")

    @contextmanager
    def on_device(self) -> Iterator[CausalLM]:
        if self.model.has_adapters:
            with cast("Any", self.model.module).disable_adapter():
                yield self.model
        else:
            with moved_to(self.model, self.device, self.offloaded):
                yield self.model


@contextmanager
def moved_to(network: Network, device: torch.device, offloaded: bool) -> Iterator[None]:
    """Context in which the network is on `device`; moves it back to CPU memory afterwards if it is offloaded."""
    if offloaded:
        network.to(device)
    try:
        yield
    finally:
        if offloaded:
            network.to("cpu")
