"""Batches that two implementations are asked about, and whether they agree."""

from __future__ import annotations

from typing import Any

import torch

from launcher.spec.algorithm import Algorithm, Batch, Output

torch.set_num_threads(1)

CLOSE = 1e-9
CASES = [(0, (4, 4, 9), False), (1, (16, 2, 40), True)]
"""Seed; P prompts, G answers, T tokens; whether answers have holes."""


def drawn(
    seed: int, shape: tuple[int, int, int], holes: bool = False, empty: bool = False, shortest: int = 1
) -> tuple[Any, Batch]:
    """Log-probabilities [B, T] now, and a ragged batch in float64 with answers of `shortest` tokens and more.

    `holes` masks tokens inside answers, as a tool's are; `empty` masks a whole row.
    """
    torch.manual_seed(seed)
    prompts, answers, columns = shape
    rows = prompts * answers
    prompt = torch.randint(1, 3, (rows,))
    length = prompt + shortest + (torch.rand(rows) * (columns - prompt - shortest + 1)).long()  # up to the whole row
    place = torch.arange(columns).expand(rows, columns)
    mask = ((place >= prompt[:, None]) & (place < length[:, None])).double()
    if holes:
        mask = mask * ((torch.rand(rows, columns) < 0.7) | (place == prompt[:, None]))  # its first token stays
    if empty:
        mask[rows // 2] = 0

    def noise(size: float) -> Any:
        return size * torch.randn(rows, columns, dtype=torch.float64)

    new = -torch.rand(rows, columns, dtype=torch.float64) * 3 * mask
    return new, Batch(
        tokens=torch.zeros(rows, columns, dtype=torch.long),
        length=length,
        mask=mask,
        group=torch.arange(prompts).repeat(answers),  # answers to one prompt do not stand together
        old=(new + noise(0.5)) * mask,  # ratios far enough from 1 to be clipped
        reference=(new + noise(0.3)) * mask,
        value=noise(1.0),
        reward=torch.randint(-4, 5, (rows,)) / 4 + torch.rand(rows, dtype=torch.float64),
        advantage=noise(1.0) * mask,
    )


def mean_loss(algorithm: Algorithm, logp: Any, batch: Batch) -> Any:
    """What the engine makes of a loss."""
    return algorithm.loss(Output(logp), batch)[0] / algorithm.units(batch)


def agree(ours: Any, theirs: Any, at: Any = None) -> None:
    """Asserts that two functions of `at`, and their gradients, are equal; without `at`, that two values are."""
    gradient = 0.0
    if at is not None:
        mine, other = at.clone().requires_grad_(), at.clone().requires_grad_()
        ours, theirs = ours(mine), theirs(other)
        pulls = _gradient(ours, mine), _gradient(theirs, other)
        assert pulls[0].abs().max() > 0, "nothing pulls, so nothing is compared"
        gradient = _difference(*pulls)
        ours, theirs = ours.detach(), theirs.detach()
    assert max(_difference(ours, theirs), gradient) <= CLOSE


def _gradient(value: Any, at: Any) -> Any:
    """Of a scalar, or of a tensor's sum in which every place counts differently."""
    weights = torch.linspace(1, 2, value.numel(), dtype=torch.float64).view(value.shape)
    return torch.autograd.grad((value * weights).sum(), at)[0]


def _difference(ours: Any, theirs: Any) -> float:
    ours, theirs = (torch.as_tensor(x, dtype=torch.float64) for x in (ours, theirs))
    assert ours.shape == theirs.shape
    assert torch.isfinite(ours).all() and torch.isfinite(theirs).all()
    return (ours - theirs).abs().max().item()
