"""A randomly initialised model with a character-level tokenizer."""

from __future__ import annotations

from typing import Literal

from launcher.core.settings import AtLeastOne, settings
from launcher.spec.model import Architecture, Model

SPECIAL_TOKENS = 3
"""Padding, end and unknown, before the alphabet."""


@settings
class Scratch(Model):
    """A randomly initialised decoder (from the run's seed). Nothing is downloaded."""

    architecture: Literal["llama", "qwen3"] = "llama"
    """Layer architecture: `qwen3` normalises queries and keys."""
    hidden_size: AtLeastOne = 64
    """Width of the hidden state; compute grows with its square."""
    intermediate_size: AtLeastOne = 192
    """Width of the feed-forward network in each layer."""
    num_hidden_layers: AtLeastOne = 2
    """Number of layers; time and memory grow with it."""
    num_attention_heads: AtLeastOne = 4
    """Query heads of each layer; `hidden_size` is split over them."""
    num_key_value_heads: AtLeastOne = 4
    """Key-value heads of each layer, shared by the query heads."""
    max_position_embeddings: AtLeastOne = 2048
    """Tokens of the longest prompt plus answer."""
    tie_word_embeddings: bool = False
    """The output layer shares the embedding's weights."""
    alphabet: str = "abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., "
    """The vocabulary: each character is one token, any other is unknown."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not split over {self.num_attention_heads} attention heads"
            )
        if self.hidden_size // self.num_attention_heads % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} gives {self.num_attention_heads} heads of an odd size;"
                " their positions need an even one"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} attention heads do not share {self.num_key_value_heads} key-value heads"
            )
        if len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet:
            raise ValueError("alphabet is empty or names a character twice")

    @property
    def shape(self) -> Architecture:
        return Architecture(
            model_type=self.architecture,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            vocab_size=len(self.alphabet) + SPECIAL_TOKENS,
            max_position_embeddings=self.max_position_embeddings,
            tie_word_embeddings=self.tie_word_embeddings,
            qk_norm=self.architecture == "qwen3",
        )

    @property
    def label(self) -> str:
        return f"{self.architecture}-{self.hidden_size}x{self.num_hidden_layers}"
