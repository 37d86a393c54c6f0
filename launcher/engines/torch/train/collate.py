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
        turns, states = [one.policy_turns for one in episodes], {"": -1}
        for turn in chain(*turns):
            states.setdefault(turn.state, len(states) - 1)
        fields |= {
            "turn": padded([_turn_numbers(one) for one in episodes], -1, torch.int64, width),
            "turn_reward": padded([[turn.reward for turn in each] for each in turns], 0.0, EXACT),
            "state": padded([[states[turn.state] for turn in each] for each in turns], -1, torch.int64),
        }
    if any(turn.logp for one in episodes for turn in one.turns):  # 0 where nobody sampled the token
        logp = [
            [0.0] * len(one.prompt) + [*chain(*(turn.logp or [0.0] * len(turn.tokens) for turn in one.turns))]
            for one in episodes
        ]
        fields["rollout"] = padded(logp, 0.0, EXACT, width)
    return Batch(**fields)


def _turn_numbers(episode: Episode) -> list[int]:
    """The number of each token's turn among the policy's turns; -1 where the policy did not write it."""
    numbers, number = [-1] * len(episode.prompt), 0
    for turn in episode.turns:
        numbers += [number if turn.writer == "policy" else -1] * len(turn.tokens)
        number += turn.writer == "policy"
    return numbers
