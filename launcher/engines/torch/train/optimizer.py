"""A trained network: its optimizer, its learning rate, and the check for non-finite updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from launcher.engines.torch.model.network import Network
from launcher.engines.torch.model.reference import moved_to
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import Parallel, full_tensor
from launcher.spec.run import Optim

SPARED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Names of norms and biases, as transformers' `Trainer.get_decay_parameter_names` has them."""


@dataclass(frozen=True)
class Update:
    """One optimizer update of the policy, and of the critic where there is one."""

    metrics: Mapping[str, float]
    nonfinite_source: str = ""  # what was not finite, so that nothing was changed
    largest: Mapping[str, float] = field(default_factory=dict)  # metrics of which a step has the largest, not the mean
    weight_norms: Tensor | None = None  # [W] of the gradient of each weight, before clipping; on the CPU
    log_probs: Tensor | None = None  # [B, T] of an on-policy update, before it; otherwise the batch has them


class TrainedNetwork:
    """A network with its optimizer; all processes take the same optimizer steps."""

    def __init__(
        self, network: Network, optim: Optim, steps: int, parallel: Parallel, *, offloaded: bool = False
    ) -> None:
        self.network, self.optim, self.parallel = network, optim, parallel
        self.learning_rate = learning_rates(optim, steps)
        self.offloaded, self.device = offloaded, network.device
        self.start: Mapping[str, Tensor] | None = None
        """Elements of the weights as the run began (`movement.sample`); None where that is not known."""
        self.weights = [weight for weight in network.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(network, optim), lr=optim.lr, betas=optim.betas, eps=optim.adam_eps,
            weight_decay=optim.weight_decay, fused=True,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the trained weights."""
        return sum(weight.nbytes for weight in self.weights)

    @contextmanager
    def on_device(self, *, learning: bool = False) -> Iterator[Network]:
        """Context in which the network is on its device, and with `learning` its optimizer; both are offloaded
        afterwards if configured."""
        with moved_to(self.network, self.device, self.offloaded):
            if learning:
                self._move_optimizer(self.device)
            yield self.network
        if learning:
            self._move_optimizer(torch.device("cpu"))

    def _move_optimizer(self, device: torch.device) -> None:
        if self.offloaded:
            for state in self.optimizer.state.values():
                state.update({key: value.to(device) for key, value in state.items() if value.ndim})

    def optimizer_step(
        self, name: str, step: int, finite: Mapping[str, Tensor], *, idle: bool = False, with_norms: bool = False
    ) -> Update:
        """Step along the accumulated gradient, unless something is not finite: then nothing changes.

        `name` is that of the metrics. `finite` has for each input of the gradient, in order of computation, whether it
        is finite: [] bool each. An `idle` step had nothing to learn from, and moves nothing either. `with_norms`
        measures the gradient of each weight, too.
        """
        self.parallel.reduce_gradients(self.weights)
        norms = gradient_norms(self.weights) if with_norms else None
        norm = full_tensor(nn.utils.clip_grad_norm_(self.weights, self.optim.clip_grad)).to(self.device)
        checks = {**finite, "gradient": torch.isfinite(norm)}
        bad_counts = world.all_reduce_sum(torch.stack([(~good).double() for good in checks.values()]))
        source = next((what for what, count in zip(checks, bad_counts.tolist(), strict=True) if count), "")
        rate = self.learning_rate(step)
        if not source and not idle:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.network.version += 1
        self.optimizer.zero_grad(set_to_none=True)
        metrics = {f"{name}/lr": rate, f"{name}/skipped_nonfinite": float(bool(source))}
        if not idle or source:  # else there was no gradient
            metrics[f"{name}/grad_norm"] = norm.item()
        return Update(metrics, source, weight_norms=norms)


def gradient_norms(weights: Sequence[Tensor]) -> Tensor:
    """[W] norm of each weight's gradient, on the CPU, without weights that have none. Collective where the weights are
    sharded."""
    norms = [full_tensor(torch.linalg.vector_norm(weight.grad)) for weight in weights if weight.grad is not None]
    return torch.stack([norm.double().cpu() for norm in norms]) if norms else torch.zeros(0, dtype=torch.float64)


def _parameter_groups(network: Network, optim: Optim) -> list[dict[str, Any]]:
    """The trained weights with weight decay, and those without."""
    named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
    decayed = {name for name, _ in named}
    if optim.weight_decay_on == "matrices":
        decayed &= set(get_parameter_names(network, [nn.LayerNorm], SPARED))
    others = [weight for name, weight in named if name not in decayed]
    return [{"params": [weight for name, weight in named if name in decayed]}, {"params": others, "weight_decay": 0.0}]


# ---- learning rates, as transformers' schedulers give them

POLYNOMIAL_END = 1e-7  # transformers' default for the last learning rate


def learning_rates(optim: Optim, steps: int) -> Callable[[int], float]:
    """The learning rate of each step of a run, from 1 to `steps`: the first is that of transformers' step 0, so a
    warm-up begins with 0, and no decay ends with it."""
    name, settings = _scheduler(optim, steps)
    unused = torch.optim.SGD([torch.zeros(1)], lr=optim.lr)  # a scheduler needs an optimizer
    scheduler: Any = get_scheduler(name, unused, optim.lr_warmup_steps, steps, dict(settings))
    (factor,) = scheduler.lr_lambdas
    return lambda step: optim.lr * factor(step - 1)


def _scheduler(optim: Optim, steps: int) -> tuple[str, Mapping[str, Any]]:
    """transformers' name of the scheduler, with its own settings."""
    kind, min_ratio = optim.lr_scheduler_type, optim.min_lr_ratio
    if kind == "constant" or (min_ratio == 1 and kind != "inverse_sqrt"):
        return "constant_with_warmup", {}
    if kind == "cosine" and min_ratio:
        return "cosine_with_min_lr", {"min_lr_rate": min_ratio}
    if kind == "linear" and min_ratio:
        return "polynomial", {"lr_end": min_ratio * optim.lr, "power": 1.0}
    if kind == "polynomial":
        end = min_ratio * optim.lr if min_ratio or optim.lr <= POLYNOMIAL_END else POLYNOMIAL_END
        return kind, {"lr_end": end, "power": optim.lr_power}
    if kind == "warmup_stable_decay":
        decay = min(optim.lr_decay_steps or -(-steps // 10), max(steps - optim.lr_warmup_steps, 0))
        return kind, {"num_decay_steps": decay, "min_lr_ratio": min_ratio}
    return kind, {}
