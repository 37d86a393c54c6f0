"""Frozen models beside the policy, which may be offloaded to CPU memory while idle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from launcher.engines.torch.model.network import CausalLM, Network


class FrozenCopy:
    """A frozen copy of the initial weights."""

    def __init__(self, model: CausalLM, offloaded: bool = False) -> None:
        self.model, self.offloaded, self.device = model, offloaded, model.device
        model.requires_grad_(False)
        model.eval()
        if offloaded:
            model.to("cpu")

    @contextmanager
    def on_device(self) -> Iterator[CausalLM]:
        with moved_to(self.model, self.device, self.offloaded):
            yield self.model


class WithoutAdapters:
    """The policy's own frozen weights, with its adapters disabled."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    @contextmanager
    def on_device(self) -> Iterator[CausalLM]:
        with cast("Any", self.model.module).disable_adapter():
            yield self.model


Reference = FrozenCopy | WithoutAdapters
"""The reference model of the KL term."""


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
