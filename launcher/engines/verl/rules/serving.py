"""What vLLM and SGLang refuse of the arguments that verl starts them with: their names, and values that are checked
when the engine is made or at the first prompt.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import orjson

from launcher.core.problems import nearest, short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import MODEL, ROLLOUT, RlSizes, at

NAMES = Path(__file__).parents[1] / "config" / "served.json"
"""The arguments of vLLM 0.24.0 and SGLang 0.5.12, the versions of verl's extras."""
FORMER = frozenset([
    "cuda_graph_sizes", "device", "disable_async_output_proc", "disable_log_requests", "disable_mm_preprocessor_cache",
    "enable_multimodal_encoder_data_parallel", "enable_prompt_adapter", "guided_decoding_backend",
    "guided_decoding_disable_additional_properties", "guided_decoding_disable_any_whitespace",
    "guided_decoding_disable_fallback", "lora_extra_vocab_size", "long_lora_scaling_factors", "max_prompt_adapters",
    "max_prompt_adapter_token", "max_seq_len_to_capture", "multi_step_stream_outputs", "num_lookahead_slots",
    "num_scheduler_steps", "override_neuron_config", "override_pooler_config", "preemption_mode",
    "qlora_adapter_name_or_path", "rope_scaling", "rope_theta", "scheduler_delay_factor", "speculative_model",
    "swap_space", "task", "tokenizer_pool_extra_config", "tokenizer_pool_size", "tokenizer_pool_type",
    "use_v2_block_manager", "worker_use_ray",
])  # fmt: skip
"""Arguments of earlier versions of vLLM."""
FORMATS = {
    "vllm": ("auto", "bitsandbytes", "dummy", "fastsafetensors", "gguf", "hf", "instanttensor", "mistral",
             "modelexpress", "npcache", "pt", "runai_streamer", "runai_streamer_sharded", "safetensors",
             "sharded_state", "tensorizer"),
    "sglang": ("auto", "bitsandbytes", "dummy", "fastsafetensors", "flash_rl", "gguf", "layered", "mistral",
               "npcache", "private", "pt", "remote", "remote_instance", "runai_streamer", "safetensors",
               "sharded_state"),
}  # fmt: skip
"""How weights are loaded."""
_SENDING = ("rebuild_group", "rollout_dtype", "is_master")
SENDERS = {
    "nccl": (*_SENDING, "group_name", "multi_sender"),
    "hccl": (*_SENDING, "group_name"),
    "nixl": ("device", "rollout_dtype", "is_master"),
    "kimi_ckpt_engine": _SENDING,
    "mooncake": (*_SENDING, "device", "device_name"),
    "delta_sharded": (*_SENDING, "group_name", "multi_sender", "encoding", "batch_gather", "verify_every"),
}
"""Arguments of what sends weights to the rollout engine (checkpoint_engine/)."""
REPLACED = {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
}
"""verl's names of vLLM's arguments."""
POLICIES = ("fcfs", "priority")


@cache
def _names() -> dict[str, list[str]]:
    read: dict[str, list[str]] = orjson.loads(NAMES.read_bytes())
    return read


def serving(run: RlSizes, facts: LaunchFacts) -> Results:
    yield from _engine(run(ROLLOUT) or {}, ROLLOUT)
    if run.reward_model:
        place = "reward.reward_model.rollout"
        yield from _engine(run(place) or {}, place)
    if run("distillation.enabled"):
        for name, teacher in (run("distillation.teacher_models") or {}).items():
            yield from _engine(at(teacher, "inference") or {}, f"distillation.teacher_models.{name}.inference")
    temperature = run(f"{ROLLOUT}.val_kwargs.temperature")
    if temperature is not None and temperature < 0:  # SamplingParams, at the first held-out prompt
        yield fails(f"{ROLLOUT}.val_kwargs.temperature", f"{temperature}", "use 0 for greedy answers, or 1.0")
    yield from _sending(run)


def _engine(served: dict[str, Any], place: str) -> Results:
    """vllm_async_server.py:326-430, async_sglang_server.py:315-425."""
    engine = served.get("name")
    if engine not in FORMATS:
        return
    weights = served.get("load_format")
    former = str(weights).startswith(("dummy_", "dtensor", "megatron"))  # of verl before 0.6, named by another rule
    if weights not in (None, *FORMATS[engine]) and not former:
        yield RuleResult("FAIL", not_one_of(f"{place}.load_format", weights, FORMATS[engine]))
    if engine == "vllm" and served.get("scheduling_policy") not in (None, *POLICIES):
        yield RuleResult("FAIL", not_one_of(f"{place}.scheduling_policy", served["scheduling_policy"], POLICIES))
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        if (most := served.get(name)) is not None and most < 1:
            fix = (
                "use null for the model's own"
                if name == "max_model_len"
                else "use 256"
                if "seqs" in name
                else "use 8192"
            )
            yield fails(f"{place}.{name}", f"{most}", fix)
    if served.get("free_cache_engine") and served.get("enable_sleep_mode") is False and engine == "vllm":
        got = "false, with free_cache_engine: vLLM cannot free the memory that training needs"
        yield fails(f"{place}.enable_sleep_mode", got, "use true, or free_cache_engine=false", "conflicting-settings")
    given = served.get("engine_kwargs") or {}
    for name, value in (given.get(engine) or {}).items():
        where = f"{place}.engine_kwargs.{engine}.{name}"
        yield from _argument(str(name), engine, where)
        setting = REPLACED.get(str(name).replace("-", "_"), str(name).replace("-", "_"))
        if engine == "vllm" and setting in served and value not in (None, served[setting]):
            got = f"{value}, in place of {place}.{setting}={served[setting]}, which verl goes on with"
            kind = fails if setting.endswith("parallel_size") else warns
            yield kind(where, got, f"use {place}.{setting}={value}", "conflicting-settings")
    for name in given:
        if name not in ("vllm", "sglang", "trtllm"):
            yield RuleResult("WARN", not_one_of(f"{place}.engine_kwargs.{name}", name, ("vllm", "sglang", "trtllm")))
        elif name != engine and given[name]:
            got = f"not read, as {place}.name is {engine}"
            yield warns(f"{place}.engine_kwargs.{name}", got, f"use {place}.engine_kwargs.{engine}")
    if any(size < 1 for size in served.get("cudagraph_capture_sizes") or ()):
        yield fails(f"{place}.cudagraph_capture_sizes", "a batch of less than 1", "use sizes from 1")


def _argument(name: str, engine: str, where: str) -> Results:
    plain = name.replace("-", "_")
    known = _names()[engine]
    positive = plain.removeprefix("no_") if engine == "vllm" else plain  # --no-enable-lora
    if positive in known or (engine == "vllm" and any(one.startswith(positive) for one in known)):
        return  # argparse takes the beginning of a name
    if engine == "vllm" and plain in FORMER:
        yield warns(where, "is an argument of earlier versions: vLLM 0.24 ends where it reads it", "leave it out")
        return
    near = nearest(plain, known, 0.75)
    got = f"{'vLLM' if engine == 'vllm' else 'SGLang'} has no argument {short_repr(plain)}"
    yield fails(where, got, f"did you mean {near}?" if near else "leave it out", "unknown-setting")


def _sending(run: RlSizes) -> Results:
    """engine_workers.py:680, 776: how weights get to the rollout engine."""
    place = f"{ROLLOUT}.checkpoint_engine"
    backend, size = run(f"{place}.backend"), run(f"{place}.update_weights_bucket_megabytes")
    if size is not None and size < 1:  # bucketed_weight_transfer.py:140
        got = f"{size} MB: no weight fits in it"
        yield fails(f"{place}.update_weights_bucket_megabytes", got, "use 2048")
    for name in run(f"{place}.engine_kwargs.{backend}") or {}:
        if backend in SENDERS and name not in SENDERS[backend]:
            got = f"{backend} has no argument {name}"
            near = nearest(str(name), SENDERS[backend])
            fix = f"did you mean {near}?" if near else "leave it out"
            yield fails(f"{place}.engine_kwargs.{backend}.{name}", got, fix, "unknown-setting")
    separate = run.v1 and run.mode == "separate_async"
    if separate and run.lora_rank > 0 and not run(f"{MODEL}.lora.merge"):
        got = "false, with LoRA and separate_async: the rollout engine gets the weights without the adapter"
        yield fails(f"{MODEL}.lora.merge", got, "use true", "conflicting-settings")
