"""How verl samples: with servers of its own, on the GPUs that it trains on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from launcher.core.settings import AtLeastOne, settings
from launcher.spec.sampler import SAMPLED, Sampler


@settings
class VerlSampler(Sampler):
    """Answers come from inference servers that verl starts and sends new weights to after each step."""

    logprobs_match_trainer = False

    name: Annotated[str, SAMPLED] = "vllm"
    """Inference server: `vllm`, `sglang` or `trtllm`, or one that a plugin of verl registers."""
    tensor_parallel_size: Annotated[AtLeastOne, SAMPLED] = 1
    """GPUs that share one copy of the weights; verl's own default is 2."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1), SAMPLED] = 0.5
    """Fraction of each GPU's memory for the server's weights and KV cache; the trainer's weights and optimizer need
    the rest."""
    max_model_len: Annotated[AtLeastOne | None, SAMPLED] = None
    """Tokens of the longest prompt with its answer; by default the data's."""
    enforce_eager: Annotated[bool, SAMPLED] = False
    """Run without compiled graphs: slower decoding, but a start that is minutes faster."""
