"""What sampling returns and batches are made of: an episode, turn by turn, with the writer of each token.

An answer to a prompt is an episode of one turn; an environment's answers are turns between those of the policy. A
demonstration is an episode that was not sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from launcher.spec.environment import Outcome, ToolUse

Writer = Literal["policy", "environment", "data"]
"""The policy under training wrote the tokens; an environment answered; they come from a dataset."""
StopReason = Literal["end", "length"]
"""The policy wrote a token that ends an answer; it was cut at the maximum length."""


@dataclass(frozen=True)
class Turn:
    """Consecutive tokens of one writer."""

    tokens: list[int]
    writer: Writer = "policy"
    stop: StopReason | None = None
    """Why it ended; None where the policy did not write it."""
    logp: Sequence[float] = ()
    """Log-probability of each token by the program that sampled it; empty where that is the trainer."""
    versions: Sequence[int] = ()
    """For each token, the optimizer steps behind the weights that wrote it; empty where the policy did not."""
    mask: Sequence[int] | None = None
    """1 for each token that the loss looks at; None: at all that the policy wrote, and at nothing else."""
    text: str = ""
    """The turn's text as it is shown, in an episode of several turns."""
    reward: float = 0.0
    """The environment's reward for this turn of the policy."""
    state: str = ""
    """Equal for turns of the policy that began in equal states of the environment; empty where it is unknown."""
    uses: tuple[ToolUse, ...] = ()
    """Tools that this turn of the policy called, with their results."""

    @property
    def loss_mask(self) -> Sequence[int]:
        return [int(self.writer == "policy")] * len(self.tokens) if self.mask is None else self.mask


@dataclass(frozen=True)
class Episode:
    """A prompt and what followed it."""

    prompt: list[int]
    """Tokens that the loss never looks at."""
    turns: tuple[Turn, ...]
    group: int | None = None
    """Equal for episodes that are compared: the answers to one prompt, or the two of a pair; None where none are."""
    preference: int = 0
    """1 the chosen answer of a pair, -1 the rejected one, 0 any other."""
    reward: float | None = None
    """Score; NaN where the reward gave none, None where there is nothing to score."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of the score, or values reported with it."""
    row: int | None = None
    """Index of the training row that it answers."""
    ended: Outcome | None = None
    """Why it ended; None without an environment."""
    fault: str = ""
    """Why its environment gave no score, in words."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Other counts by the environment, such as searches; not part of the score."""

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *chain.from_iterable(turn.tokens for turn in self.turns)]

    @property
    def mask(self) -> list[int]:
        """1 for each token that the loss looks at."""
        return [0] * len(self.prompt) + [*chain.from_iterable(turn.loss_mask for turn in self.turns)]

    @property
    def policy_turns(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.writer == "policy"]

    @property
    def score(self) -> float:
        """The reward as a number: NaN where it has none."""
        return math.nan if self.reward is None else self.reward
