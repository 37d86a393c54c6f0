"""What a model is: where its weights come from, and the number format they are trained in."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field

from launcher.core.settings import AtLeastOne, Count, Names, ReadOnlyWith, settings
from launcher.spec.part import Part

Family = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe"]


@settings
class Architecture:
    """The dimensions of a decoder, which determine its number of weights, memory and cost. The names are those of its
    config.json, so a plan needs no download."""

    model_type: Family
    """The family, which says how the layers are built."""
    hidden_size: AtLeastOne
    """Width of the hidden state of one token; weights grow with its square."""
    intermediate_size: AtLeastOne
    """Width of the feed-forward network in each layer."""
    num_hidden_layers: AtLeastOne
    """Layers; weights, activations and the cache of keys and values grow with it."""
    num_attention_heads: AtLeastOne
    """Query heads of each layer."""
    num_key_value_heads: AtLeastOne
    """Key-value heads of each layer, shared by the query heads: the cache of keys and values grows with it."""
    head_dim: AtLeastOne
    """Width of one head."""
    vocab_size: AtLeastOne
    """Tokens in the vocabulary; the logits of each token have that many entries."""
    max_position_embeddings: AtLeastOne
    """Tokens of the longest sequence that it was trained for."""
    tie_word_embeddings: bool = False
    """The output layer shares the embedding's weights."""
    attention_bias: Literal["none", "qkv", "qkvo"] = "none"
    """Which of attention's matrices have a bias."""
    mlp_bias: bool = False
    """The feed-forward matrices have a bias."""
    qk_norm: bool = False
    """Queries and keys are normalised, each with head_dim weights."""
    num_experts: Count = 0
    """Feed-forward networks (experts) in each layer, of which each token uses num_experts_per_tok; 0 is a dense
    model."""
    num_experts_per_tok: Count = 0
    """Experts that compute each token: they determine the cost, `num_experts` the memory."""
    moe_intermediate_size: Count = 0
    """Width of one expert."""


ADAPTED = ReadOnlyWith("lora_rank", fix="model.lora_rank=32")


@settings
class Model(Part, ABC):
    """Subclass it, decorate with @settings, and name the class in conf/model/<name>.yaml."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Number format of weights, gradients and optimizer. `bfloat16` halves the memory, but has 8 bits of precision:
    updates smaller than 1/256 of a weight are lost, so small learning rates have no effect. `float64` is for exactness
    tests."""

    lora_rank: Count = 0
    """Train low-rank adapters (LoRA) of this rank and freeze the weights; 0 trains the weights."""
    lora_alpha: Annotated[AtLeastOne, ADAPTED] = 16
    """The adapters' output is scaled by lora_alpha / lora_rank."""
    target_modules: Annotated[Names, ADAPTED, Field(min_length=1)] = ("all-linear",)
    """Modules that get adapters, by the end of their names; `all-linear` selects every linear layer but the output
    layer. One regular expression selects the modules whose whole names it matches, as in PEFT."""
    dropout: bool | None = None
    """Whether weights are trained with the dropout of the model's config.json. Where it is not given: in SFT only.
    Preference and RL losses compare with probabilities that are computed without, which dropout would change."""
    enable_gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping its activations: less memory, about a third more
    time. Where it is not given, true if memory on a GPU is too small without."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name for run names and screens."""

    @property
    def peft_targets(self) -> str | list[str]:
        """`target_modules` as PEFT takes it: a text is a regular expression of whole names, or all-linear."""
        first = self.target_modules[0] if len(self.target_modules) == 1 else ""
        is_text = first == "all-linear" or (first and not re.fullmatch(r"[\w.-]+", first))
        return first if is_text else list(self.target_modules)

    @property
    def shape(self) -> Architecture | None:
        """Its dimensions, where they are known before it is loaded; else None."""
        return None

    @property
    def positions(self) -> int | None:
        """Tokens of the longest sequence it supports, where that is known before it is loaded; else None."""
        return self.shape.max_position_embeddings if self.shape else None

    @property
    def here(self) -> Self:
        """The same model in its folder of this machine, where a hub's has been downloaded."""
        return self
