"""Learning rates, as transformers' schedulers give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import get_scheduler

from launcher.spec.run import Optim

POLYNOMIAL_END = 1e-7  # transformers' default, a rate


def learning_rates(optim: Optim, steps: int) -> Callable[[int], float]:
    """The learning rate of each step of a run, from 1 to `steps`: the first is that of transformers' step 0, so a
    warm-up begins with 0, and no decay ends with it."""
    name, settings = _scheduler(optim, steps)
    unused = torch.optim.SGD([torch.zeros(1)], lr=optim.lr)  # a scheduler belongs to an optimizer
    found: Any = get_scheduler(name, unused, optim.lr_warmup_steps, steps, dict(settings))
    (factor,) = found.lr_lambdas
    return lambda step: optim.lr * factor(step - 1)


def _scheduler(optim: Optim, steps: int) -> tuple[str, Mapping[str, Any]]:
    """transformers' name of it, with settings of its own."""
    kind, least = optim.lr_scheduler_type, optim.min_lr_ratio
    if kind == "constant" or (least == 1 and kind != "inverse_sqrt"):
        return "constant_with_warmup", {}
    if kind == "cosine" and least:
        return "cosine_with_min_lr", {"min_lr_rate": least}
    if kind == "linear" and least:
        return "polynomial", {"lr_end": least * optim.lr, "power": 1.0}
    if kind == "polynomial":
        end = least * optim.lr if least or optim.lr <= POLYNOMIAL_END else POLYNOMIAL_END
        return kind, {"lr_end": end, "power": optim.lr_power}
    if kind == "warmup_stable_decay":
        decay = min(optim.lr_decay_steps or -(-steps // 10), max(steps - optim.lr_warmup_steps, 0))
        return kind, {"num_decay_steps": decay, "min_lr_ratio": least}
    return kind, {}
