"""Builds batches of episodes; nothing else builds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
    rows, device = [episode.tokens for episode in episodes], model.device
    longest = max(width, *map(len, rows))

    def padded(values: Sequence[Sequence[float]], padding: float, dtype: torch.dtype) -> Tensor:
        full = [[*row, *[padding] * (longest - len(row))] for row in values]
        return torch.tensor(full, device=device, dtype=dtype)

    batch = Batch(
        tokens=padded(rows, model.tokenizer.pad_token_id, torch.int64),
        length=torch.tensor([len(row) for row in rows], device=device),
        mask=padded([episode.mask for episode in episodes], 0, EXACT),
    )
    if episodes[0].group is not None:
        batch = replace(batch, group=torch.tensor([episode.group for episode in episodes], device=device))
    if episodes[0].reward is not None:
        reward = torch.tensor([episode.reward for episode in episodes], device=device, dtype=EXACT)
        preference = torch.tensor([episode.preference for episode in episodes], device=device)
        batch = replace(batch, reward=reward, preference=preference)
    if episodes[0].ended is not None:
        batch = replace(batch, **_turn_fields(episodes, padded, device))
    if any(turn.logp for episode in episodes for turn in episode.turns):
        batch = replace(batch, rollout=padded([_rollout_logp(episode) for episode in episodes], 0.0, EXACT))
    return batch


def _turn_fields(episodes: Sequence[Episode], padded: Callable[..., Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch's fields about turns."""
    turns = [episode.policy_turns for episode in episodes]
    width, numbers = max(map(len, turns)), dict[str, int]()
    states = [[numbers.setdefault(turn.state, len(numbers)) if turn.state else -1 for turn in each] for each in turns]
    rewards = [[turn.reward for turn in each] for each in turns]

    def filled(rows: Sequence[Sequence[float]], padding: float, dtype: torch.dtype) -> Tensor:
        full = [[*row, *[padding] * (width - len(row))] for row in rows]
        return torch.tensor(full, device=device, dtype=dtype)

    return {
        "turn": padded([_turn_numbers(episode) for episode in episodes], -1, torch.int64),
        "turn_reward": filled(rewards, 0.0, EXACT),
        "state": filled(states, -1, torch.int64),
    }


def _turn_numbers(episode: Episode) -> list[int]:
    """The number of each token's turn among the policy's turns; -1 where the policy did not write it."""
    numbers, number = [-1] * len(episode.prompt), 0
    for turn in episode.turns:
        numbers += [number if turn.writer == "policy" else -1] * len(turn.tokens)
        number += turn.writer == "policy"
    return numbers


def _rollout_logp(episode: Episode) -> list[float]:
    """Log-probability of each token by the program that sampled it; 0 where nobody sampled it."""
    logp = [0.0] * len(episode.prompt)
    for turn in episode.turns:
        logp += turn.logp or [0.0] * len(turn.tokens)
    return logp
