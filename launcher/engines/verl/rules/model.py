"""The model that is trained: its folder, LoRA, and the kernels that replace parts of it, of RL and SFT alike.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from launcher.core.problems import short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.paths import held
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import ACTOR, MODEL, ROLLOUT, RlSizes, at, engine_of, is_set

DEFAULT = "~/models/deepseek-llm-7b-chat"
FOLDERS = ("path", "tokenizer_path", "hf_config_path", "lora_adapter_path")
"""What verl copies to each node."""
KERNELS = ("torch", "triton", "liger")
ALPHAS = {"lora_alpha": 16, "lora.alpha": 32}
"""What LoRA is scaled with, where nothing else is given."""
SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM has adapters of; others are rounded up (vllm_rollout/utils.py:90)."""
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")


def model(run: RlSizes, facts: LaunchFacts) -> Results:
    places = [MODEL, *(["critic.model"] if run.needs_critic else [])]
    for place in places:
        path = run(f"{place}.path")
        if not is_set(path):
            yield fails(f"{place}.path", "not set", "use the folder or the name of a model")
        else:
            yield from is_default(path, f"{place}.path", facts)
        yield from ends_in_slash(run, (f"{place}.{name}" for name in FOLDERS))
        yield from held(run, place, facts)
    yield from ends_in_slash(run, ["reward.reward_model.model_path"] if run.reward_model else [])
    yield from lora(run(MODEL), MODEL, engine_of(run(ACTOR))[0])
    yield from _served_adapter(run, facts)
    yield from kernels(run(MODEL), MODEL)
    yield from attention(run(MODEL), MODEL)
    yield from template(run(MODEL), MODEL)
    weights, kind = run(f"{ROLLOUT}.load_format"), engine_of(run(ACTOR))[0]
    adapters = kind == "fsdp" and run.lora_rank > 0 and not run(f"{MODEL}.lora.merge")
    if adapters and run(f"{ROLLOUT}.layered_summon") and weights == "dummy":  # fsdp_utils.py:726
        got = f"{weights}, with layered_summon: the rollout engine has no weights that adapters belong to"
        yield fails(f"{ROLLOUT}.load_format", got, "use safetensors", "conflicting-settings")


def is_default(path: Any, place: str, facts: LaunchFacts) -> Results:
    if path == DEFAULT and (facts.existing is None or path not in facts.existing):
        yield fails(place, f"{path} is verl's default", "use the model that is trained")


def ends_in_slash(run: Any, keys: Iterable[str]) -> Results:
    """utils/fs.py:238: an assertion in the trainer, after Ray has started."""
    for key in keys:
        path = run(key)
        if isinstance(path, str) and path.endswith("/"):
            fix = f"use {path.rstrip('/') or '/.'}"
            yield fails(key, f"{short_repr(path)}: verl takes no path that ends in a slash", fix)


def lora(model: dict[str, Any], place: str, kind: str) -> Results:
    """FSDP reads lora_rank of a model, Megatron lora.rank (megatron_peft.py:23); the RL trainer takes either for LoRA
    and then has no reference of its own (trainer_base.py:246)."""
    mine, other = ("lora.rank", "lora_rank") if kind == "megatron" else ("lora_rank", "lora.rank")
    rank, has_lora = at(model, other) or 0, (at(model, mine) or 0) > 0
    if rank > 0 and not has_lora:
        got = f"{rank}, which {kind} does not read: all weights are trained"
        yield fails(f"{place}.{other}", got, f"use {place}.{mine}={rank}", "conflicting-settings")
    elif at(model, "lora_adapter_path") is not None and not has_lora and kind != "megatron":
        got = "0, with lora_adapter_path: the adapter is not loaded, and all weights are trained"  # :162, 598
        yield fails(f"{place}.{mine}", got, "use the adapter's rank", "conflicting-settings")
    elif (at(model, mine) or 0) < 0:
        yield fails(f"{place}.{mine}", f"{at(model, mine)}: all weights are trained", "use 0, or 16 for LoRA")
    scale = mine.replace("rank", "alpha")
    if has_lora and (at(model, scale, 1) or 0) == 0 and at(model, "lora_adapter_path") is None:
        got = f"{at(model, scale)}: the adapter changes nothing, and nothing is learnt"
        yield fails(f"{place}.{scale}", got, f"use {2 * at(model, mine)}")
    unused = not has_lora and rank <= 0 and at(model, "lora_adapter_path") is None
    if unused and at(model, scale) not in (None, 0, ALPHAS[scale]):
        got = f"{at(model, mine)}, and {scale} is {at(model, scale)}: all weights are trained"
        yield warns(f"{place}.{mine}", got, f"use 16 for LoRA, or leave {scale} out", "conflicting-settings")
    targets = at(model, "target_modules")
    named = isinstance(targets, str) and targets not in ("all-linear", "lm_head") and re.fullmatch(r"[\w-]+", targets)
    if has_lora and kind != "megatron" and named:  # PEFT takes a text for a regular expression of whole names
        near = "all-linear" if targets in ("all", "all_linear", "linear") else f"[{targets}]"
        got = f"{targets}, which is the whole name of no layer: PEFT refuses it"
        yield fails(f"{place}.target_modules", got, f"use {near}", "unknown-choice")


def _served_adapter(run: RlSizes, facts: LaunchFacts) -> Results:
    """vllm_async_server.py:430: vLLM makes room for adapters of lora_rank, and gets the one that was loaded."""
    key = f"{MODEL}.lora_rank"
    asked, loaded, engine = run(key) or 0, facts.adapter_rank or 0, run(f"{ROLLOUT}.name")
    room = next((rank for rank in SERVED_RANKS if rank >= asked), asked)
    if engine == "vllm" and asked > 0 and room < loaded and not run(f"{MODEL}.lora.merge"):
        got = f"{asked}, and the adapter of lora_adapter_path has {loaded}: vLLM has no room for it"
        yield fails(key, got, [loaded], "conflicting-settings")


def attention(model: dict[str, Any], place: str) -> Results:
    """transformers looks it up when the model is made; a kernel of the hub is OWNER/NAME."""
    chosen = at(model, "override_config.attn_implementation")
    external = is_set(at(model, "external_lib"))
    plain = str(chosen).rpartition("|")[2].removesuffix("_paged")
    if isinstance(chosen, str) and plain not in ATTENTIONS and "/" not in chosen and not external:
        yield RuleResult("FAIL", not_one_of(f"{place}.override_config.attn_implementation", chosen, ATTENTIONS))


def template(model: dict[str, Any], place: str) -> Results:
    """workers/config/model.py:175 takes the value itself for a template."""
    written = at(model, "custom_chat_template")
    if isinstance(written, str) and "{" not in written:
        got = f"{short_repr(written)} is taken for the template itself, not for its file: all prompts are the same"
        fix = "use the text of the template, or leave it out and put chat_template.jinja in the model's folder"
        yield fails(f"{place}.custom_chat_template", got, fix)


def kernels(model: dict[str, Any], place: str) -> Results:
    """monkey_patch.py: without such kernels the forward pass lacks what the loss reads (transformer_impl.py:1366)."""
    chosen = at(model, "fused_kernel_options.impl_backend")
    if at(model, "use_fused_kernels") and chosen not in KERNELS:
        yield RuleResult("FAIL", not_one_of(f"{place}.fused_kernel_options.impl_backend", chosen, KERNELS))
