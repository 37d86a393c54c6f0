"""Builds batches of episodes; nothing else builds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from launcher.engines.torch.model.network import CausalLM
from launcher.spec.algorithm import Batch
from launcher.spec.episode import Episode, Turn
from launcher.text.encoder import Pair, Tokens

EXACT = torch.float64  # of masks, rewards and advantages: they are small, and their sums nearly cancel


def read_episodes(rows: Sequence[Tokens | Pair], numbers: Sequence[int] | None = None) -> list[Episode]:
    """Demonstrations, or pairs of answers, as episodes that nobody sampled.

    A pair's two answers form a group, and the sequences of a demonstration where one of them has several. `numbers` are
    those of the pairs' groups.
    """
    pairs = [row for row in rows if isinstance(row, Pair)]
    if pairs:
        return [
            Episode([], (Turn(side.ids, "data", mask=side.mask),), number, preference, 0.0)
            for number, pair in zip(numbers or range(len(pairs)), pairs, strict=True)
            for side, preference in ((pair.chosen, 1), (pair.rejected, -1))
        ]
    placed = [(place, one) for place, row in enumerate(rows) if isinstance(row, Tokens) for one in row.sequences]
    several = len(placed) > len(rows)
    return [
        Episode([], (Turn(one.ids, "data", mask=one.mask),), group=place if several else None) for place, one in placed
    ]


def collate(episodes: Sequence[Episode], model: CausalLM, width: int = 0) -> Batch:
    """The episodes as rows, right-padded to at least `width`. A field that no episode has stays ABSENT."""
    first, device = episodes[0], model.device

    def padded(rows: Sequence[Sequence[float]], padding: float, dtype: torch.dtype, width: int = 0) -> Tensor:
        longest = max(width, *map(len, rows))
        return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=device, dtype=dtype)

    def of_episodes(values: Iterable[float | None], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(list(values), device=device, dtype=dtype)

    tokens = [one.tokens for one in episodes]
    fields = {
        "tokens": padded(tokens, model.tokenizer.pad_token_id, torch.int64, width),
        "length": of_episodes(map(len, tokens)),
        "mask": padded([one.mask for one in episodes], 0, EXACT, width),
    }
    if first.group is not None:
        fields["group"] = of_episodes(one.group for one in episodes)
    if first.reward is not None:
        fields["reward"] = of_episodes((one.reward for one in episodes), EXACT)
        fields["preference"] = of_episodes(one.preference for one in episodes)
    if first.ended is not None:
        turns = [one.policy_turns for one in episodes]
        fields["turn"] = padded(list(map(_turn_numbers, episodes)), -1, torch.int64, width)
        fields["turn_reward"] = padded([[turn.reward for turn in each] for each in turns], 0.0, EXACT)
        fields["state"] = padded(_state_numbers(turns), -1, torch.int64)
    if any(map(_is_logged, episodes)):
        fields["rollout"] = padded(list(map(_rollout_logp, episodes)), 0.0, EXACT, width)
    return Batch(**fields)


def _state_numbers(turns: Sequence[Sequence[Turn]]) -> list[list[int]]:
    """A number for the state that each turn began in, equal for equal states; -1 where it is unknown."""
    numbers = {"": -1}
    for turn in chain(*turns):
        numbers.setdefault(turn.state, len(numbers) - 1)
    return [[numbers[turn.state] for turn in each] for each in turns]


def _is_logged(episode: Episode) -> bool:
    """Whether the program that sampled it told its tokens' log-probabilities."""
    return any(turn.logp for turn in episode.turns)


def _rollout_logp(episode: Episode) -> list[float]:
    """Log-probability of each token by the program that sampled it; 0 where nobody sampled it."""
    return [0.0] * len(episode.prompt) + [*chain(*(turn.logp or [0.0] * len(turn.tokens) for turn in episode.turns))]


def _turn_numbers(episode: Episode) -> list[int]:
    """The number of each token's turn among the policy's turns; -1 where the policy did not write it."""
    numbers, number = [-1] * len(episode.prompt), 0
    for turn in episode.turns:
        numbers += [number if turn.writer == "policy" else -1] * len(turn.tokens)
        number += turn.writer == "policy"
    return numbers
