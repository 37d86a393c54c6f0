"""Checks valid values with which nothing, or only noise, would be learnt, by arithmetic before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import Problem
from launcher.models import size
from launcher.preflight.checks.context import Context
from launcher.spec.run import CriticOptim, Optim, RunSpec, usual_critic_lr, usual_lr

TOO_HIGH, TOO_LOW = 30, 1 / 150
"""Multiples of the usual learning rate beyond which language models are ruined, or hardly change."""
LEAST_P, COLDEST, HOTTEST = 0.1, 0.05, 2.5
"""Bounds of top_p and of temperature: below, sampling is nearly greedy; above, it is noise."""
DECAYED = 1e-3
"""Largest part of each weight that weight decay may remove in one step."""
EPSILON = 1e-8
"""AdamW's epsilon: gradients below it hardly move weights."""
WEIGHT, DIGITS = 0.02, 2**-9
"""Usual size of a weight, and the relative change up to which bfloat16 rounds it away."""


def check(context: Context) -> Iterator[CheckResult]:
    """Failures where nothing can be learnt at all, otherwise warnings."""
    run = context.run
    if run.algorithm.sampled:
        yield from from_problems(_equal_rewards(run))
        yield from from_problems(_extreme_sampling(run), "WARN")
    yield from from_problems(run.algorithm.doubts(), "WARN")
    usual = usual_lr(run.algorithm, run.model)
    yield from from_problems(_optim(run, "optim", run.optim, usual, run.model.lora_rank), "WARN")
    if run.has_critic:
        yield from from_problems(_optim(run, "critic.optim", run.critic.optim, usual_critic_lr(run.model), 0), "WARN")


def _equal_rewards(run: RunSpec) -> Iterator[Problem]:
    """Settings with which all answers to a prompt are alike, or equally good."""
    if run.sampler.top_k == 1:
        got = "1 leaves a single token, so that all answers to a prompt are alike and nothing can be learnt"
        yield Problem("sampler.top_k", got, "use -1 for all")
    min_std, span, n = run.algorithm.min_group_std, run.reward.span, run.sampler.n
    if span and n > 1 and min_std > (max_std := span * sqrt(n // 2 * (n - n // 2) / (n * (n - 1)))):
        got = f"{min_std}, and the rewards of {n} answers between 0 and {span:g} spread by at most {max_std:.2g}"
        yield Problem("algorithm.min_group_std", got, f"use 0.1, at most {max_std:.2g}")


def _extreme_sampling(run: RunSpec) -> list[Problem]:
    """Sampling that is nearly greedy or nearly random."""
    top_p, temperature = run.sampler.top_p, run.sampler.temperature
    return _problems_that_hold(
        (top_p < LEAST_P, "sampler.top_p",
         f"{top_p:g} leaves hardly more than one token, so that answers to a prompt are alike", "use 1"),
        (temperature < COLDEST, "sampler.temperature",
         f"{temperature:g} is nearly greedy, so that answers to a prompt are alike", "use 1"),
        (temperature > HOTTEST, "sampler.temperature",
         f"{temperature:g} makes all tokens nearly equally likely, so that answers are noise", "use 1"),
    )  # fmt: skip


def _optim(run: RunSpec, group: str, optim: Optim | CriticOptim, usual: float, adapters: int) -> list[Problem]:
    """Settings of AdamW that ruin the weights, or hardly change them."""
    lr, shape, (first, second) = optim.lr, run.model.shape, optim.betas
    subject = f"{'adapters' if adapters else 'this'} with {type(run.algorithm).__name__}"
    n_weights = (size.lora_parameters(shape, adapters) if adapters else size.parameters(shape)) if shape else 1
    return _problems_that_hold(
        (lr > TOO_HIGH * usual, f"{group}.lr",
         f"{lr:g} is {lr / usual:,.0f} times what is usual for {subject}, and may ruin the model", f"use {usual:g}"),
        (lr < TOO_LOW * usual, f"{group}.lr",
         f"{lr:g} is {usual / lr:,.0f} times less than usual for {subject}, and hardly moves the weights",
         f"use {usual:g}"),
        (run.model.dtype == "bfloat16" and not adapters and lr < WEIGHT * DIGITS, f"{group}.lr",
         f"steps of {lr:g} are rounded away in weights of bfloat16, which hold 8 bits",
         "use model.dtype=float32, with engine.mixed_precision=true for speed"),
        (first > second, f"{group}.betas",
         f"[{first}, {second}] averages the gradient over more steps than its square", f"use [{second}, {first}]"),
        (lr <= TOO_HIGH * usual and lr * optim.weight_decay > DECAYED, f"{group}.weight_decay",
         f"{optim.weight_decay:g} at the rate {lr:g} takes {lr * optim.weight_decay:.2g} of each weight in a step",
         "use 0.01"),
        (optim.clip_grad < EPSILON * sqrt(n_weights), f"{group}.clip_grad",
         f"{optim.clip_grad:g} clips gradients to less than AdamW's epsilon, so that the weights hardly move", "use 1"),
    )  # fmt: skip


def _problems_that_hold(*doubts: tuple[object, str, str, str]) -> list[Problem]:
    """Problems from (condition, setting, fault, fix) for each condition that holds."""
    return [Problem(where, got, fix) for holds, where, got, fix in doubts if holds]
