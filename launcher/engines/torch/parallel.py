"""How weights lie on the processes that train together: whole on each, or a part on each (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from launcher.engines.torch import world
from launcher.engines.torch.model import Network, base_of
from launcher.spec.algorithm import Batch


class Parallel:
    """Every process holds all weights and adds up the others' gradients."""

    even = False
    """Whether all processes must compute equally many micro-batches, because each is a meeting of all."""

    def place(self, network: Network) -> None:
        """Lay the network's weights on the processes."""

    def add_up_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Every process holds the sum of all gradients, or its part of it."""
        world.total_in_place([weight.grad for weight in weights if weight.grad is not None])

    @contextmanager
    def whole(self, network: Network) -> Iterator[None]:
        """All weights on every process meanwhile, so that each may compute what it likes, as often as it likes."""
        yield


class Sharded(Parallel):
    """FSDP2: every process holds a part of each layer's weights, gradients and optimizer state."""

    even = True

    def __init__(self, device: torch.device, *, mixed: bool, offload: bool) -> None:
        self.mesh = init_device_mesh(device.type, (world.SIZE,))
        self.precision = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if mixed
            else MixedPrecisionPolicy()
        )
        self.offload: OffloadPolicy = CPUOffloadPolicy() if offload and device.type == "cuda" else OffloadPolicy()

    def place(self, network: Network) -> None:
        for layer in [*layers_of(network), network]:
            fully_shard(
                layer, mesh=self.mesh, reshard_after_forward=True, mp_policy=self.precision, offload_policy=self.offload
            )
        for part in _sharded(network):
            part.set_gradient_divide_factor(1.0)  # the loss is divided once, by what all processes hold together
            part.set_force_sum_reduction_for_comms(True)  # gloo knows no sum that divides
        with torch.no_grad():  # the first forward pass tells torch which of them is the outermost
            network(network.pack(_one_token(network)))

    def add_up_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Each layer's backward pass has done it."""

    @contextmanager
    def whole(self, network: Network) -> Iterator[None]:
        parts = _sharded(network)
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                part.set_reshard_after_forward(True, recurse=False)


def layers_of(network: Network) -> list[nn.Module]:
    """The repeated blocks of a transformers model, the units that are gathered at a time."""
    names = set(base_of(network.module)._no_split_modules or ())
    return [part for part in network.modules() if type(part).__name__ in names]


def whole_value(x: Tensor) -> Tensor:
    """All of a tensor of which each process may hold a part; every process must ask."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def laid_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, laid on the processes as `like` is; a counter stays where it is."""
    if value.ndim == 0:
        return value
    value = value.to(like.device, like.dtype)
    return distribute_tensor(value, like.device_mesh, like.placements) if isinstance(like, DTensor) else value


def _sharded(network: Network) -> list[FSDPModule]:
    return [part for part in network.modules() if isinstance(part, FSDPModule)]


def _one_token(network: Network) -> Batch:
    ids = torch.zeros(1, 2, dtype=torch.long, device=network.device)
    return Batch(tokens=ids, length=ids.sum(1) + 2, mask=torch.tensor([[0.0, 1.0]], device=network.device))
