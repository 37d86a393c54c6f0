"""FSDP2: weights, gradients and optimizer states are sharded over the training processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.network import Network
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import Parallel
from launcher.spec.algorithm import Batch


class Sharded(Parallel):
    """Every process holds a shard of each layer, and layers are gathered while they are computed."""

    needs_equal_microbatches = True

    def __init__(self, device: torch.device, *, mixed: bool, offload: bool) -> None:
        self.device = device
        self.mesh = init_device_mesh(device.type, (world.SIZE,))
        self.precision = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if mixed
            else MixedPrecisionPolicy()
        )
        self.offload: OffloadPolicy = CPUOffloadPolicy() if offload and device.type == "cuda" else OffloadPolicy()

    def shard(self, network: Network) -> None:
        """Raises `Problems` where processes would run different numbers of collectives."""
        if not network.supports_packing:  # each length is computed apart, and processes have different ones
            name = type(network.base).__name__
            got = f"fsdp2 needs a model that keeps packed sequences apart, and {name} mixes them"
            raise Problems(Problem("engine.strategy", got, "use ddp", "not-supported"))
        network.device = self.device
        for layer in [*network.layers(), network]:
            fully_shard(
                layer, mesh=self.mesh, reshard_after_forward=True, mp_policy=self.precision, offload_policy=self.offload
            )
        for part in _sharded(network):
            part.set_gradient_divide_factor(1.0)  # the loss is divided once, by what all processes hold together
            part.set_force_sum_reduction_for_comms(True)  # gloo has no averaging reduction
        with torch.no_grad():  # the first forward pass tells torch which module is the root
            network(network.pack(_one_token(network)))

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Nothing to do: the backward pass of each layer has reduced them."""

    @contextmanager
    def summon_full_params(self, network: Network) -> Iterator[None]:
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


def _sharded(network: Network) -> list[FSDPModule]:
    return [part for part in network.modules() if isinstance(part, FSDPModule)]


def _one_token(network: Network) -> Batch:
    ids = torch.zeros(1, 2, dtype=torch.long, device=network.device)
    return Batch(tokens=ids, length=ids.sum(1) + 2, mask=torch.tensor([[0.0, 1.0]], device=network.device))
