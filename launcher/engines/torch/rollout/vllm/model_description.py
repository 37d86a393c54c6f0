"""Description of a model from which vLLM builds it before its weights arrive."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.vllm import VllmSampler
from launcher.models import config
from launcher.spec.run import RunSpec


@dataclass(frozen=True)
class ModelDescription:
    architecture: str
    """Its class, as transformers calls it."""
    config: str
    """Text of its config.json."""
    cache: int | None
    """Bytes of the KV cache; None where a fraction of the GPU's memory determines it."""

    @classmethod
    def from_model(cls, run: RunSpec, sampler: VllmSampler, model: CausalLM) -> ModelDescription:
        known, name = deepcopy(model.base.config), type(model.base).__name__
        known.architectures = [name]
        with tempfile.TemporaryDirectory() as folder:
            known.save_pretrained(folder)
            text = (Path(folder) / "config.json").read_text(encoding="utf-8")
        return cls(name, text, sampler.cache_bytes(run, config.architecture(known.to_dict())))
