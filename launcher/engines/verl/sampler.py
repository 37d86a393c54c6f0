"""How verl samples: with servers of its own, on the GPUs that it trains on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from launcher.core.settings import AtLeastOne, settings
from launcher.spec.sampler import Sampler


@settings
class VerlSampler(Sampler):
    """Answers come from inference servers that verl starts and sends new weights to after each step."""

    logprobs_match_trainer = False

    name: str = "vllm"
    """Inference server: `vllm`, `sglang` or `trtllm`, or one that a plugin of verl registers."""
    tensor_parallel_size: AtLeastOne = 1
    """GPUs that share one copy of the weights; verl's own default is 2."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Fraction of each GPU's memory for the server's weights and KV cache; the trainer's weights and optimizer need
    the rest."""
    max_model_len: AtLeastOne | None = None
    """Tokens of the longest prompt with its answer; by default the data's."""
    enforce_eager: bool = False
    """Run without compiled graphs: slower decoding, but a start that is minutes faster."""
