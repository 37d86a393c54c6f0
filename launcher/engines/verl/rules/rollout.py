"""What the rollout engine finds when it starts: the GPUs of its replicas, lengths, attention heads, memory."""

from __future__ import annotations

from math import gcd

from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import ACTOR, MODEL, ROLLOUT, BatchSizes, divisors, product

TP = "tensor_model_parallel_size"
CROWDED = 0.85
"""Share of a GPU's memory that leaves too little for training on the same GPU: verl's examples have 0.4 to 0.8."""
MAX_LORA_RANK = 512
"""The largest rank that vLLM has an adapter for."""


def judge_rollout(run: BatchSizes, facts: LaunchFacts) -> Results:
    yield from _replicas(run, ROLLOUT, run.gpus, "trainer.n_gpus_per_node")
    if run("reward.reward_model.enable"):
        yield from _reward_model(run)
    yield from _memory(run)
    yield from _lengths(run, facts)
    yield from _heads(run, facts)
    if run(f"{ROLLOUT}.name") == "vllm" and run.lora_rank > MAX_LORA_RANK and not run(f"{MODEL}.lora.merge"):
        yield fails(f"{MODEL}.lora_rank", f"vLLM has no adapter of rank {run.lora_rank}", [MAX_LORA_RANK])


def _replicas(run: BatchSizes, place: str, gpus: int, pool: str) -> Results:
    """A model that an engine serves on `gpus` GPUs, with `size` GPUs for each replica."""
    tp, dp = product(run(place), TP), product(run(place), "data_parallel_size")
    size, experts = tp * dp, product(run(place), "expert_parallel_size")
    per_node = int(run(f"{ROLLOUT}.n_gpus_per_node") or 1)
    if run(f"{place}.name") != "trtllm" and experts > 1 and experts != size:
        got = f"{experts} is not tp * dp = {size}"
        yield fails(f"{place}.expert_parallel_size", got, [size], "conflicting-settings")
    if gpus % size:
        got = f"{gpus} GPUs ({pool}) cannot be shared by replicas of {size}"
        values = divisors(gpus, tp) if dp == 1 else "use sizes whose product divides it"
        yield fails(f"{place}.{TP}", got, values, "conflicting-settings")
    elif size % min(per_node, size):
        got = f"a replica of {size} GPUs does not fill nodes of {per_node}"
        yield fails(f"{place}.{TP}", got, divisors(per_node, tp), "conflicting-settings")


def _reward_model(run: BatchSizes) -> Results:
    """It is served as the policy is, on the same GPUs or on GPUs of its own."""
    place = "reward.reward_model"
    own = run(f"{place}.enable_resource_pool")
    gpus = int(run(f"{place}.n_gpus_per_node") * run(f"{place}.nnodes")) if own else run.gpus
    if gpus > 0:
        pool = f"{place}.n_gpus_per_node" if own else "trainer.n_gpus_per_node"
        yield from _replicas(run, f"{place}.rollout", gpus, pool)


def _memory(run: BatchSizes) -> Results:
    where = f"{ROLLOUT}.gpu_memory_utilization"
    share, is_async = run(where), run("trainer.v1.trainer_mode") == "separate_async"
    if share > CROWDED and not is_async and not run(f"{ACTOR}.fsdp_config.param_offload"):
        yield warns(where, f"{share}, on GPUs that also train", "use 0.6, or offload the parameters of the actor")
    sequences, tokens = run(f"{ROLLOUT}.max_num_seqs"), run(f"{ROLLOUT}.max_num_batched_tokens")
    if run(f"{ROLLOUT}.name") == "vllm" and tokens < sequences:
        got = f"{tokens} tokens of a batch are fewer than max_num_seqs={sequences}"
        yield fails(f"{ROLLOUT}.max_num_batched_tokens", got, [max(sequences, 8192)], "conflicting-settings")


def _lengths(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Prompt and answer fit the model's context."""
    context, prompt = run(f"{ROLLOUT}.max_model_len"), run("data.max_prompt_length")
    if context is not None and facts.positions is not None and context > facts.positions:
        got = f"{context:,} tokens are more than the model's {facts.positions:,} positions"
        yield fails(f"{ROLLOUT}.max_model_len", got, [facts.positions], "conflicting-settings")
    known = [size for size in (context, facts.positions) if size is not None]
    if not known:
        return
    limit = min(known)
    if prompt >= limit:
        got = f"a prompt of {prompt:,} tokens leaves no room for an answer in {limit:,}"
        yield fails("data.max_prompt_length", got, f"use at most {limit - 1}", "conflicting-settings")
    elif run.length > limit:
        got = f"prompt and answer may have {run.length:,} tokens, and the context {limit:,}: answers are cut"
        by_context = context == limit
        where = f"{ROLLOUT}.max_model_len" if by_context else "data.max_response_length"
        yield warns(where, got, [run.length if by_context else limit - prompt], "conflicting-settings")


def _heads(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Each rank holds whole attention heads, and each stage of Megatron as many layers."""
    if facts.shape is None:
        return
    heads, kv_heads = facts.shape.num_attention_heads, facts.shape.num_key_value_heads
    shared = {f"{ROLLOUT}.{TP}": product(run(ROLLOUT), TP)}
    if run.uses_megatron():
        shared[f"{ACTOR}.megatron.{TP}"] = product(run(f"{ACTOR}.megatron"), TP)
    for where, size in shared.items():
        if heads % size:
            got = f"{heads} attention heads cannot be shared by {size} GPUs"
            yield fails(where, got, divisors(gcd(heads, run.gpus), size), "conflicting-settings")
    if not run.uses_megatron():
        parallel = run.sequence_parallel()
        uneven = heads % parallel or (kv_heads % parallel and parallel % kv_heads)
        if run.gpus % parallel == 0 and uneven:
            got = f"{heads} attention heads ({kv_heads} of keys) cannot be shared by {parallel} ranks"
            yield fails(f"{ACTOR}.ulysses_sequence_parallel_size", got, divisors(gcd(heads, run.gpus), parallel))
        return
    layers, stages = facts.shape.num_hidden_layers, product(run(f"{ACTOR}.megatron"), "pipeline_model_parallel_size")
    placed = any("pipeline" in name for name in run(f"{ACTOR}.megatron.override_transformer_config") or {})
    if layers % stages and not placed:
        got = f"{layers} layers cannot be shared by {stages} stages"
        where = f"{ACTOR}.megatron.pipeline_model_parallel_size"
        yield fails(where, got, divisors(layers, stages), "conflicting-settings")
