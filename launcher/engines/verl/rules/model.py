"""The model that is trained, of RL and SFT alike: its adapters, experts, and classes that FSDP wraps."""

from __future__ import annotations

import re

from launcher.core.problems import short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import ACTOR, MODEL, BatchSizes, divisors

ALPHAS = {"lora_alpha": 16, "lora.alpha": 32}
"""What LoRA is scaled with, where nothing else is given."""


def judge_model(run: BatchSizes, facts: LaunchFacts) -> Results:
    place, engine = (MODEL, ACTOR) if run.sampled else ("model", "engine")
    yield from _adapters(run, place, megatron=run.uses_megatron(engine))
    written = run(f"{place}.custom_chat_template")
    if isinstance(written, str) and "{" not in written:
        got = f"{short_repr(written)} is taken for the template itself, not for its file: all prompts are the same"
        fix = "use the text of the template, or leave it out and put chat_template.jinja in the model's folder"
        yield fails(f"{place}.custom_chat_template", got, fix)
    if facts.shape is not None and run.uses_megatron(engine):
        where = "megatron.expert_model_parallel_size" if run.sampled else "expert_model_parallel_size"
        parallel, experts = run(f"{engine}.{where}") or 1, facts.shape.num_experts
        if parallel > 1 and (not experts or experts % parallel):
            got = f"{experts} experts cannot be shared by {parallel} GPUs" if experts else "the model has no experts"
            yield fails(f"{engine}.{where}", got, divisors(experts or 1, parallel), "conflicting-settings")


def _adapters(run: BatchSizes, place: str, *, megatron: bool) -> Results:
    """FSDP reads lora_rank of a model, Megatron lora.rank; with either the trainer has no reference of its own."""
    own, other = ("lora.rank", "lora_rank") if megatron else ("lora_rank", "lora.rank")
    rank, scale = run(f"{place}.{own}") or 0, own.replace("rank", "alpha")
    adapter, alpha = run(f"{place}.lora_adapter_path"), run(f"{place}.{scale}")
    if rank <= 0:
        yield from _no_adapters(run, place, own, other)
        if adapter is not None and not megatron:
            got = f"{rank}, with lora_adapter_path: the adapter is not loaded, and all weights are trained"
            yield fails(f"{place}.{own}", got, "use the adapter's rank", "conflicting-settings")
        elif alpha not in (None, 0, ALPHAS[scale]):
            got = f"{rank}, and {scale} is {alpha}: all weights are trained"
            yield warns(f"{place}.{own}", got, f"use 16 for LoRA, or leave {scale} out", "conflicting-settings")
        return
    if not alpha and adapter is None:
        got = f"{alpha}: the adapter changes nothing, and nothing is learnt"
        yield fails(f"{place}.{scale}", got, f"use {2 * rank}")
    targets = run(f"{place}.target_modules")
    named = isinstance(targets, str) and targets not in ("all-linear", "lm_head") and re.fullmatch(r"[\w-]+", targets)
    if named and not megatron:
        near = "all-linear" if targets in ("all", "all_linear", "linear") else f"[{targets}]"
        got = f"{targets}, which is the whole name of no layer: PEFT refuses it"
        yield fails(f"{place}.target_modules", got, f"use {near}", "unknown-choice")


def _no_adapters(run: BatchSizes, place: str, own: str, other: str) -> Results:
    rank, unread = run(f"{place}.{own}") or 0, run(f"{place}.{other}") or 0
    if rank < 0:
        yield fails(f"{place}.{own}", f"{rank}: all weights are trained", "use 0, or 16 for LoRA")
    if unread > 0:
        got = f"{unread}, which is not read with this strategy: all weights are trained"
        yield fails(f"{place}.{other}", got, f"use {place}.{own}={unread}", "conflicting-settings")
