"""A randomly initialised model whose tokens are characters and given words."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from launcher.core.settings import AtLeastOne, Names, settings
from launcher.spec.model import Architecture, Model

SPECIAL_TOKENS = 3
"""Number of special tokens before the alphabet: padding, end and unknown."""
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
"""Tokens that open the turns of a conversation, where there is a chat template."""
JSON_CHARACTERS = '{}[]":_<>/, \n'
"""Characters of tool calls and their results."""


def _nearest_values(number: int, allowed: list[int]) -> str:
    """The nearest allowed values below and above, such as `4 or 8`."""
    below, above = [each for each in allowed if each < number][-1:], [each for each in allowed if each > number][:1]
    return " or ".join(map(str, [*below, *above]))


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
    words: Names = ()
    """Texts of several characters that are one token each, beside the alphabet."""
    chat: bool = False
    """Give it a chat template: a token opens each turn, calls of tools are written as Hermes writes them, and schemas
    of tools are not written."""

    def __post_init__(self) -> None:
        width, heads, kv_heads = self.hidden_size, self.num_attention_heads, self.num_key_value_heads
        if width % (2 * heads):
            allowed = [count for count in range(1, width // 2 + 1) if width % (2 * count) == 0]
            if width % heads:
                got = f"hidden_size {width} does not split over {heads} attention heads"
            else:
                got = f"hidden_size {width} gives {heads} heads of an odd size; their positions need an even one"
            fix = f"use num_attention_heads={_nearest_values(heads, allowed)}" if allowed else "use an even hidden_size"
            raise ValueError(f"{got}; {fix}")
        if heads % kv_heads:
            allowed = [count for count in range(1, heads + 1) if heads % count == 0]
            raise ValueError(
                f"{heads} attention heads do not share {kv_heads} key-value heads;"
                f" use num_key_value_heads={_nearest_values(kv_heads, allowed)}"
            )
        if len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet:
            raise ValueError("alphabet is empty or names a character twice")
        if bad := [word for word in self.words if len(word) < 2 or self.words.count(word) > 1]:
            raise ValueError(f"words names {bad[0]!r}, which stands there twice or is no text of several characters")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All tokens but the special ones."""
        added = [character for character in JSON_CHARACTERS if character not in self.alphabet] if self.chat else []
        return (*self.alphabet, *added, *self.words)

    @property
    def shape(self) -> Architecture:
        equal = {each.name: vars(self)[each.name] for each in fields(Architecture) if each.name in vars(self)}
        n_roles = len(ROLE_TOKENS) if self.chat else 0
        return Architecture(
            model_type=self.architecture, head_dim=self.hidden_size // self.num_attention_heads,
            vocab_size=len(self.vocabulary) + SPECIAL_TOKENS + n_roles, qk_norm=self.architecture == "qwen3", **equal,
        )  # fmt: skip

    @property
    def label(self) -> str:
        return f"{self.architecture}-{self.hidden_size}x{self.num_hidden_layers}"
