"""The policy's weights for another program: whole tensors, by the names of a checkpoint, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel.strategy import full_tensor


class ExportedWeights:
    """Adapters are merged on the way. Nothing is written to disk, and one whole tensor is held at a time."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        shapes = {name: torch.empty(x.shape, dtype=x.dtype, device="meta") for name, x in self._held().items()}
        self.stored_otherwise = revert_weight_conversion(model.base, shapes).keys() != shapes.keys()

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Collective: every process must iterate over all of them, as tensors may be sharded."""
        sent = set[int]()
        for name, held in self._held().items():
            if id(held) in sent:  # one tensor under two names is stored under the first
                continue
            sent.add(id(held))
            value = full_tensor(self._added(name, held).detach())
            if self.stored_otherwise:  # transformers holds a layer's experts as one tensor, say
                yield from revert_weight_conversion(self.model.base, {name: value}).items()
            else:
                yield name, value

    def _held(self) -> Mapping[str, Tensor]:
        if not self.model.has_adapters:
            return self.model.base.state_dict(keep_vars=True)
        from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late: peft takes half a second

        return adapters.base_weights(self.model.base)

    def _added(self, name: str, held: Tensor) -> Tensor:
        if not self.model.has_adapters:
            return held
        from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late, as above

        return adapters.merged_weight(self.model.base, name, held)
