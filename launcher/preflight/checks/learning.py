"""Values that are valid and with which nothing, or only junk, would be learnt: arithmetic, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import Problem
from launcher.models import size
from launcher.preflight.checks.context import Context
from launcher.spec.run import CriticOptim, Optim, RunSpec

TOO_HIGH, TOO_LOW = 30, 1 / 150
"""Of the usual learning rate: beyond these, models of language are ruined, or do not move."""
MANY = 10
"""Passes over the same answers after which they are of another policy."""
LEAST_P, COLDEST, HOTTEST = 0.1, 0.05, 2.5
"""Of top_p, and of temperature: less is nearly greedy, more is noise."""
LARGEST_RATIO = 20
"""Of importance sampling: a bound beyond it bounds nothing, and single tokens rule the update."""
DECAYED = 1e-3
"""Part of each weight that one step may take away."""
EPSILON = 1e-8
"""AdamW's: gradients below it move nothing."""
WEIGHT, DIGITS = 0.02, 2**-9
"""Usual size of a weight, and the largest part of one that bfloat16 rounds away."""


def check(context: Context) -> Iterator[CheckResult]:
    """Failures where nothing at all can be learnt, warnings elsewhere."""
    run = context.run
    if run.algorithm.sampled:
        yield from from_problems(_alike(run))
        yield from from_problems(_unlike(run), "WARN")
    yield from from_problems(run.algorithm.doubts(), "WARN")
    rates = [("optim", run.optim, run.usual_lr, run.model.lora_rank)]
    if run.has_critic:
        rates.append(("critic.optim", run.critic.optim, run.usual_critic_lr, 0))
    for place, optim, usual, adapters in rates:
        yield from from_problems(_optim(run, place, optim, usual, adapters), "WARN")


def _alike(run: RunSpec) -> Iterator[Problem]:
    """Why all answers to a prompt are equally good."""
    if run.sampler.top_k == 1:
        got = "1 leaves a single token, so that all answers to a prompt are alike and nothing can be learnt"
        yield Problem("sampler.top_k", got, "use -1 for all")
    least, span, n = run.algorithm.min_group_std, run.reward.span, run.sampler.n
    if span and n > 1 and least > (widest := span * sqrt(n // 2 * (n - n // 2) / (n * (n - 1)))):
        got = f"{least}, and the rewards of {n} answers between 0 and {span:g} spread by at most {widest:.2g}"
        yield Problem("algorithm.min_group_std", got, f"use 0.1, at most {widest:.2g}")


def _unlike(run: RunSpec) -> Iterator[Problem]:
    """Sampling that is nearly greedy, or nearly random."""
    sampler = run.sampler
    if sampler.top_p < LEAST_P:
        got = f"{sampler.top_p:g} leaves hardly more than one token, so that answers to a prompt are alike"
        yield Problem("sampler.top_p", got, "use 1")
    if sampler.temperature < COLDEST:
        got = f"{sampler.temperature:g} is nearly greedy, so that answers to a prompt are alike"
        yield Problem("sampler.temperature", got, "use 1")
    if (ratio := sampler.importance_sampling) is not None and ratio > LARGEST_RATIO:
        got = f"{ratio:g} lets one token weigh as much as {ratio:g} others"
        yield Problem("sampler.importance_sampling", got, "use 2")
    if (passes := run.trainer.ppo_epochs) > MANY:
        got = f"{passes} updates on the same answers leave the policy that gave them far behind"
        yield Problem("trainer.ppo_epochs", got, "use 1")
    free, longest = run.algorithm.unpenalized_length, run.data.max_response_length
    if free is not None and free >= longest:
        got = f"the length penalty begins after {free} tokens, and answers end after {longest}, so it has no effect"
        yield Problem("algorithm.max_response_length", got, f"use {longest}, with a smaller overlong_buffer_len")
    if sampler.temperature > HOTTEST:
        got = f"{sampler.temperature:g} makes all tokens nearly equally likely, so that answers are noise"
        yield Problem("sampler.temperature", got, "use 1")


def _optim(run: RunSpec, place: str, optim: Optim | CriticOptim, usual: float, adapters: int) -> Iterator[Problem]:
    """Numbers of AdamW that ruin the weights, or leave them as they are."""
    lr, shape = optim.lr, run.model.shape
    what = f"{'adapters' if adapters else 'this'} with {type(run.algorithm).__name__}"
    if lr > TOO_HIGH * usual:
        got = f"{lr:g} is {lr / usual:,.0f} times what is usual for {what}, and may ruin the model"
        yield Problem(f"{place}.lr", got, f"use {usual:g}")
    if lr < TOO_LOW * usual:
        got = f"{lr:g} is {usual / lr:,.0f} times less than usual for {what}, and hardly moves the weights"
        yield Problem(f"{place}.lr", got, f"use {usual:g}")
    if run.model.dtype == "bfloat16" and not adapters and lr < WEIGHT * DIGITS:
        got = f"steps of {lr:g} are rounded away in weights of bfloat16, which hold 8 bits"
        yield Problem(f"{place}.lr", got, "use model.dtype=float32, with engine.mixed_precision=true for speed")
    if adapters:
        yield from _adapters(run)
    if optim.betas[0] > optim.betas[1]:
        first, second = optim.betas
        got = f"[{first}, {second}] averages the gradient over more steps than its square"
        yield Problem(f"{place}.betas", got, f"use [{second}, {first}]")
    if lr * optim.weight_decay > DECAYED:
        got = f"{optim.weight_decay:g} at the rate {lr:g} takes {lr * optim.weight_decay:.2g} of each weight in a step"
        yield Problem(f"{place}.weight_decay", got, "use 0.01")
    count = size.lora_parameters(shape, adapters) if shape and adapters else size.parameters(shape) if shape else 1
    if optim.clip_grad < EPSILON * sqrt(count):
        got = f"{optim.clip_grad:g} clips gradients to less than AdamW's epsilon, so that the weights hardly move"
        yield Problem(f"{place}.clip_grad", got, "use 1")


def _adapters(run: RunSpec) -> Iterator[Problem]:
    """Adapters that are scaled beyond use, or larger than what they change."""
    rank, alpha, shape = run.model.lora_rank, run.model.lora_alpha, run.model.shape
    if not TOO_LOW <= (scale := alpha / rank) <= TOO_HIGH:
        got = f"{alpha} scales adapters of rank {rank} by {scale:.3g}, and what they learn in a step with it"
        yield Problem("model.lora_alpha", got, f"use {rank}")
    if shape and rank > shape.hidden_size:
        got = f"{rank} is more than the model's width of {shape.hidden_size}, beyond which adapters learn nothing more"
        yield Problem("model.lora_rank", got, f"use {min(32, shape.hidden_size // 2)}")
