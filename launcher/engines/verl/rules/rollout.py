"""What the rollout engines find when they start, and the reward and teacher models that are served by them.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from launcher.core.problems import short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import (
    ACTOR,
    MODEL,
    ROLLOUT,
    RlSizes,
    at,
    divisors,
    engine_of,
    is_set,
    product,
    replica_gpus,
)

ENGINES = ("vllm", "sglang", "trtllm")
TEACHINGS = ("forward_kl_topk", "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""Losses of distillation."""
TP = "tensor_model_parallel_size"
CROWDED = 0.85
"""Share of a GPU's memory that leaves too little for training on the same GPU."""


def rollout(run: RlSizes, facts: LaunchFacts) -> Results:
    yield from _served(run, ROLLOUT, run.gpus, "trainer.n_gpus_per_node", mode=True)
    yield from _memory(run)
    yield from _lengths(run, facts)
    yield from _heads(run, facts)
    yield from _sampling(run)
    if run(f"{ROLLOUT}.prometheus.enable") and run(f"{ROLLOUT}.disable_log_stats"):  # llm_server.py:493
        got = f"true, with {ROLLOUT}.prometheus.enable"
        yield fails(f"{ROLLOUT}.disable_log_stats", got, "use false", "conflicting-settings")
    if run(f"{ROLLOUT}.disaggregation.enabled"):
        yield from _disaggregated(run)
    yield from _reward_pool(run)
    yield from _routing(run, facts)
    kind, engine = engine_of(run(ACTOR))
    if at(engine, "qat.enable") and not at(engine, "qat.quantization_config_path"):  # qat/core.py:45
        place = f"{ACTOR}.fsdp_config" if kind == "fsdp" else f"{ACTOR}.{kind}"
        yield fails(
            f"{place}.qat.quantization_config_path", "not set, with qat.enable", "use the JSON file of the scheme"
        )
    if run.reward_model:
        yield from _reward_model(run)
    if run("distillation.enabled"):
        yield from _teachers(run, facts)


def _served(run: RlSizes, place: str, gpus: int, pool: str, *, mode: bool = False) -> Results:
    """A model that an engine serves on `gpus` GPUs: rollout.py:275-330, replica.py:114, engine_workers.py:659."""
    served: dict[str, Any] = run(place) or {}
    name = served.get("name")
    if not is_set(name):
        yield fails(f"{place}.name", "not set, which a worker finds", "use vllm or sglang")
    elif name not in ENGINES:
        yield RuleResult("FAIL", not_one_of(f"{place}.name", name, ENGINES))
    if mode and served.get("mode", "async") != "async":
        yield fails(f"{place}.mode", f"{served['mode']} was removed", "use async", "unknown-choice")
    tp, dp = product(served, TP), product(served, "data_parallel_size")
    experts = served.get("expert_parallel_size") or 1
    if (served.get("pipeline_model_parallel_size") or 1) > 1:
        got, where = "no rollout engine of verl has it", f"{place}.pipeline_model_parallel_size"
        yield fails(where, got, f"use 1, and {place}.{TP}", "not-supported")
        return
    if name != "trtllm" and experts > 1 and experts != tp * dp:
        got = f"{experts} is not tp * dp = {tp * dp}"
        yield fails(f"{place}.expert_parallel_size", got, [tp * dp], "conflicting-settings")
    if name != "trtllm" and (served.get("moe_tensor_parallel_size") or 1) > 1:
        yield fails(f"{place}.moe_tensor_parallel_size", "only trtllm has it", "use 1", "not-supported")
    size = replica_gpus(served)
    per_node = int(run(f"{ROLLOUT}.n_gpus_per_node") or 1)
    if gpus % size:
        got = f"{gpus} GPUs ({pool}) cannot be shared by replicas of {size}"
        values = divisors(gpus, tp) if dp == 1 else "use sizes whose product divides it"
        yield fails(f"{place}.{TP}", got, values, "conflicting-settings")
    elif size % min(per_node, size):
        got = f"a replica of {size} GPUs does not fill nodes of {per_node}"
        yield fails(f"{place}.{TP}", got, divisors(per_node, tp), "conflicting-settings")
    elif dp > 1 and name == "vllm" and per_node % tp:  # vllm_async_server.py:385
        yield fails(f"{place}.{TP}", f"nodes have {per_node} GPUs", divisors(per_node, tp), "conflicting-settings")


def _memory(run: RlSizes) -> Results:
    where = f"{ROLLOUT}.gpu_memory_utilization"
    share = run(where)
    if not 0 < share <= 1:
        yield fails(where, f"{share} is no share of a GPU's memory", "use 0.5")
    elif share > CROWDED and run.mode != "separate_async" and not engine_of(run(ACTOR))[1].get("param_offload"):
        yield warns(where, f"{share}, on GPUs that also train", "use 0.6, or offload the parameters of the actor")
    sequences, tokens = run(f"{ROLLOUT}.max_num_seqs"), run(f"{ROLLOUT}.max_num_batched_tokens")
    if run(f"{ROLLOUT}.name") == "vllm" and tokens < sequences:
        got = f"{tokens} tokens of a batch are fewer than max_num_seqs={sequences}"
        yield fails(f"{ROLLOUT}.max_num_batched_tokens", got, [max(sequences, 8192)], "conflicting-settings")
    kinds = ("fp8", "torchao", "ascend") if run(f"{ROLLOUT}.name") == "vllm" else ("fp8",)
    quantization = run(f"{ROLLOUT}.quantization")
    if quantization is not None and run(f"{ROLLOUT}.name") in ("vllm", "sglang") and quantization not in kinds:
        yield RuleResult("FAIL", not_one_of(f"{ROLLOUT}.quantization", quantization, kinds))


def _lengths(run: RlSizes, facts: LaunchFacts) -> Results:
    """vllm_async_server.py:595, 1107: prompt and answer fit the model's context."""
    context, prompt = run(f"{ROLLOUT}.max_model_len"), run("data.max_prompt_length")
    if context is not None and facts.positions is not None and context > facts.positions:
        got = f"{context:,} tokens are more than the model's {facts.positions:,} positions"
        yield fails(f"{ROLLOUT}.max_model_len", got, [facts.positions], "conflicting-settings")
    limit = min((size for size in (context, facts.positions) if size is not None), default=None)
    if limit is None:
        return
    where = f"{ROLLOUT}.max_model_len" if context is not None and context <= limit else "data.max_response_length"
    if prompt >= limit:
        got = f"a prompt of {prompt:,} tokens leaves no room for an answer in {limit:,}"
        yield fails("data.max_prompt_length", got, f"use at most {limit - 1}", "conflicting-settings")
    elif run.length > limit:
        got = f"prompt and answer may have {run.length:,} tokens, and the context {limit:,}: answers are cut"
        fix = [run.length] if where.endswith("max_model_len") else [limit - prompt]
        yield warns(where, got, fix, "conflicting-settings")


def _heads(run: RlSizes, facts: LaunchFacts) -> Results:
    """Each rank holds whole attention heads: the rollout engine, monkey_patch.py:343, Megatron."""
    if facts.heads is None:
        return
    tp = product(run(ROLLOUT), TP)
    if facts.heads % tp:
        got = f"{facts.heads} attention heads cannot be shared by {tp} GPUs"
        yield fails(f"{ROLLOUT}.{TP}", got, divisors(gcd(facts.heads, run.gpus), tp), "conflicting-settings")
    kind, engine = engine_of(run(ACTOR))
    if kind == "fsdp":
        parallel = run.sequence_parallel()
        shared = facts.kv_heads is None or facts.kv_heads % parallel == 0 or parallel % facts.kv_heads == 0
        if run.gpus % parallel == 0 and (facts.heads % parallel or not shared):
            got = f"{facts.heads} attention heads ({facts.kv_heads} of keys) cannot be shared by {parallel} ranks"
            yield fails(f"{ACTOR}.ulysses_sequence_parallel_size", got, divisors(gcd(facts.heads, run.gpus), parallel))
    if kind == "megatron":
        parallel, stages = product(engine, TP), product(engine, "pipeline_model_parallel_size")
        if facts.heads % parallel:
            got = f"{facts.heads} attention heads cannot be shared by {parallel} GPUs"
            yield fails(f"{ACTOR}.megatron.{TP}", got, divisors(gcd(facts.heads, run.gpus), parallel))
        uneven = any("pipeline" in name for name in engine.get("override_transformer_config") or {})
        if facts.layers is not None and facts.layers % stages and not uneven:
            got = f"{facts.layers} layers cannot be shared by {stages} stages"
            where = f"{ACTOR}.megatron.pipeline_model_parallel_size"
            yield fails(where, got, divisors(facts.layers, stages))


def _sampling(run: RlSizes) -> Results:
    temperature = run(f"{ROLLOUT}.temperature")
    if temperature < 0:
        yield fails(f"{ROLLOUT}.temperature", f"{temperature}", "use 1.0")
    elif temperature == 0 and run.strategy == "megatron":  # megatron/transformer_impl.py:1208
        yield fails(f"{ROLLOUT}.temperature", "0, which Megatron divides by", "use 1.0")
    elif temperature == 0:
        yield warns(f"{ROLLOUT}.temperature", "0: all answers to a prompt are equal", "use 1.0")
    for place in (ROLLOUT, f"{ROLLOUT}.val_kwargs"):
        top_p, top_k = run(f"{place}.top_p", 1), run(f"{place}.top_k", -1)
        if top_p is not None and not 0 < top_p <= 1:
            yield fails(f"{place}.top_p", f"{top_p} is no share", "use 1.0")
        if top_k is not None and (top_k < -1 or (top_k == 0 and run(f"{ROLLOUT}.name") == "sglang")):
            yield fails(f"{place}.top_k", f"{top_k}", "use -1 for all tokens")
    if run(f"{ROLLOUT}.val_kwargs.n", 1) < 1:
        yield fails(f"{ROLLOUT}.val_kwargs.n", f"{run(f'{ROLLOUT}.val_kwargs.n')} answers", "use 1")
    if run(f"{ROLLOUT}.val_kwargs.n", 1) > 1 and not run(f"{ROLLOUT}.val_kwargs.temperature"):
        got = "0, with val_kwargs.n above 1: all answers are equal, and do_sample is not read"
        yield warns(f"{ROLLOUT}.val_kwargs.temperature", got, "use 1.0")
    dtype, dtypes = run(f"{ROLLOUT}.dtype"), ("auto", "half", "float16", "bfloat16", "float", "float32")
    if dtype not in dtypes and run(f"{ROLLOUT}.name") in ("vllm", "sglang"):
        yield RuleResult("FAIL", not_one_of(f"{ROLLOUT}.dtype", dtype, dtypes))
    weights = run(f"{ROLLOUT}.load_format")
    if str(weights).startswith(("dummy_", "dtensor", "megatron")):  # before 0.6; vllm_async_server.py:327
        fix = "use safetensors" if run.lora_rank else "use dummy"
        yield fails(
            f"{ROLLOUT}.load_format", f"{weights}, which the rollout engine does not know", fix, "unknown-choice"
        )
    mode, modes = (
        run(f"{ROLLOUT}.logprobs_mode"),
        ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"),
    )
    if mode not in (None, *modes) and run(f"{ROLLOUT}.name") == "vllm":
        yield RuleResult("FAIL", not_one_of(f"{ROLLOUT}.logprobs_mode", mode, modes))
    if (backend := run(f"{ROLLOUT}.trace.backend")) not in (None, "mlflow", "weave"):
        got = f"{backend}, and no answer is traced"
        yield warns(f"{ROLLOUT}.trace.backend", got, "use mlflow or weave", "unknown-choice")
    mtp = run(f"{MODEL}.mtp") or {}
    if mtp.get("enable_rollout") and not mtp.get("enable"):
        yield warns(f"{MODEL}.mtp.enable_rollout", f"true, and {MODEL}.mtp.enable is false", "use enable=true")


def _disaggregated(run: RlSizes) -> Results:
    """disaggregation.py:32, vllm_pd_replica.py:60-91."""
    place = f"{ROLLOUT}.disaggregation"
    split, name = run(place), run(f"{ROLLOUT}.name")
    if name not in ("vllm", "sglang"):
        yield fails(f"{place}.enabled", f"{name} has no separate prefill", "use rollout.name=vllm, or false")
    allowed = ("nixl", "mooncake") if name == "vllm" else ("nixl", "mooncake", "ascend", "mori", "fake")
    if split["transfer_backend"] not in allowed:
        yield RuleResult("FAIL", not_one_of(f"{place}.transfer_backend", split["transfer_backend"], allowed))
    if split["prefill_replicas"] != 1:
        yield fails(f"{place}.prefill_replicas", f"{split['prefill_replicas']} are not supported", [1])
    if split["decode_replicas"] < 1:
        yield fails(f"{place}.decode_replicas", f"{split['decode_replicas']}", [1])
    if product(run(ROLLOUT), "data_parallel_size") != 1:
        yield fails(f"{ROLLOUT}.data_parallel_size", "more than 1, with disaggregation", [1], "conflicting-settings")
    tp, per_node = product(run(ROLLOUT), TP), int(run("trainer.n_gpus_per_node"))
    size = tp + split["decode_replicas"] * (split["decode_tensor_model_parallel_size"] or tp)
    if size > per_node:
        got = f"prefill and decode need {size} GPUs of one node, which has {per_node}"
        yield fails(f"{place}.decode_replicas", got, "use fewer, or a smaller tensor_model_parallel_size")


def _reward_pool(run: RlSizes) -> Results:
    """trainer_base.py:825: made whether or not there is a reward model."""
    place = "reward.reward_model"
    if run(f"{place}.enable_resource_pool"):
        for name in ("n_gpus_per_node", "nnodes"):
            if run(f"{place}.{name}") <= 0:
                yield fails(f"{place}.{name}", f"{run(f'{place}.{name}')}, with enable_resource_pool", [1])


def _reward_model(run: RlSizes) -> Results:
    """reward_model.py:47-85, trainer_base.py:825: a reward model is served like a rollout."""
    place = "reward.reward_model"
    if not is_set(run(f"{place}.model_path")):
        yield fails(f"{place}.model_path", "not set", "use the folder or the name of the reward model")
    gpus, pool = run.gpus, "trainer.n_gpus_per_node"
    if run(f"{place}.enable_resource_pool"):
        gpus, pool = int(run(f"{place}.n_gpus_per_node") * run(f"{place}.nnodes")), f"{place}.n_gpus_per_node"
    if run(f"{place}.rollout.skip_tokenizer_init"):
        yield fails(f"{place}.rollout.skip_tokenizer_init", "true: texts are scored", "use false")
    if run(f"{place}.rollout.name") == "trtllm" and not run("reward.custom_reward_function.path"):
        yield fails(f"{place}.rollout.name", "trtllm serves no reward model", "use vllm or sglang", "not-supported")
    if gpus > 0:
        yield from _served(run, f"{place}.rollout", gpus, pool)


def _teachers(run: RlSizes, facts: LaunchFacts) -> Results:
    """distillation.py:107-318: teachers are served on GPUs of their own."""
    place, loss = "distillation", "distillation.distillation_loss"
    for name in ("n_gpus_per_node", "nnodes"):
        if run(f"{place}.{name}") <= 0:
            yield fails(f"{place}.{name}", f"{run(f'{place}.{name}')}: teachers have GPUs of their own", [1])
    found: dict[str, Any] = run(f"{place}.teacher_models") or {}
    teachers = {name: teacher for name, teacher in found.items() if isinstance(teacher, dict)}
    for name in sorted(found.keys() - teachers):
        where = f"{place}.teacher_models.{name}"
        yield fails(where, short_repr(found[name]), f"use +{where}.model_path, .key and .num_replicas")
    named = {name: teacher for name, teacher in teachers.items() if len(teachers) == 1 or name != "teacher_model"}
    for name, teacher in named.items():
        if not teacher.get("model_path"):
            yield fails(f"{place}.teacher_models.{name}.model_path", "not set", "use the teacher's folder or name")
        if len(teachers) > 1 and not teacher.get("key"):
            yield fails(f"{place}.teacher_models.{name}.key", "not set, beside teacher_model", "use a data source")
    gpus = int(run(f"{place}.n_gpus_per_node") * run(f"{place}.nnodes"))
    if len(teachers) > 1:
        yield from _several(run, facts, named)
    if len(teachers) == 1 and gpus > 0:
        for name in teachers:
            yield from _served(run, f"{place}.teacher_models.{name}.inference", gpus, f"{place}.n_gpus_per_node")
    if run(f"{loss}.loss_mode") not in TEACHINGS:  # losses.py:102
        yield RuleResult("FAIL", not_one_of(f"{loss}.loss_mode", run(f"{loss}.loss_mode"), TEACHINGS))
    elif run(f"{loss}.loss_mode") == "forward_kl_topk":
        yield from _most_likely(run, named)
    for name, teacher in named.items():
        room = at(teacher, "inference.max_model_len")
        if room is not None and room < run.length + 1:  # distillation.py:179
            got = f"{room} tokens are fewer than prompt, answer and 1 more"
            where = f"{place}.teacher_models.{name}.inference.max_model_len"
            yield fails(where, got, [run.length + 1], "conflicting-settings")
    if run(f"{loss}.policy_loss_mode") != "vanilla":
        yield RuleResult("FAIL", not_one_of(f"{loss}.policy_loss_mode", run(f"{loss}.policy_loss_mode"), ("vanilla",)))
    if run(f"{loss}.loss_mode") == "k1" and not run(f"{loss}.use_policy_gradient"):
        yield fails(f"{loss}.loss_mode", "k1 has no gradient of its own", "use k3, or use_policy_gradient=true")
    if run(f"{loss}.loss_mode") == "forward_kl_topk" and run(f"{ACTOR}.fsdp_config.pad_to_length"):
        yield fails(f"{ACTOR}.pad_to_length", "true, with forward_kl_topk", "use false", "conflicting-settings")


def _several(run: RlSizes, facts: LaunchFacts, teachers: dict[str, Any]) -> Results:
    """distillation.py:282-318, teacher_manager.py:111: of teachers beside `teacher_model`, which is none of them, each
    has its GPUs, and of several each its rows."""
    place = "distillation.teacher_models"
    if path := run(f"{place}.teacher_model.model_path"):
        got = f"{short_repr(path)} is left out, as there are other teachers"
        free = f"use +{place}.{_free_name(teachers)}.model_path"
        yield fails(f"{place}.teacher_model.model_path", got, free, "conflicting-settings")
    keys = [str(teacher.get("key")) for teacher in teachers.values() if teacher.get("key")]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        yield fails(place, f"{', '.join(twice)} is the key of more than one", "use a key of its own for each")
    by_source = len(keys) == len(teachers) > 1 and run("distillation.teacher_key") == "data_source"
    sources = facts.data_sources if by_source else None
    if missing := sorted({*(sources or ())} - {*keys}):
        yield fails(place, f"no teacher has the key {', '.join(missing)}, which rows have", f"use key={missing[0]}")
    for name, teacher in teachers.items():
        if not is_set(at(teacher, "inference.name")):
            where = f"+{place}.{name}.inference.name"
            yield fails(where, "not set, beside teacher_model", f"use {run(f'{ROLLOUT}.name')}")
        replicas = teacher.get("num_replicas") or 0
        if not isinstance(replicas, int) or replicas < 1:
            yield fails(f"+{place}.{name}.num_replicas", f"{short_repr(replicas)}, beside teacher_model", [1])
    sizes = [replica_gpus({TP: 2} | (at(teacher, "inference") or {})) for teacher in teachers.values()]
    counts = [
        each for teacher in teachers.values() if isinstance(each := teacher.get("num_replicas"), int) and each > 0
    ]
    needed = sum(size * count for size, count in zip(sizes, counts, strict=False))
    gpus, nodes = (int(run(f"distillation.{name}")) for name in ("n_gpus_per_node", "nnodes"))
    if nodes > 0 and len(counts) == len(teachers) and needed != gpus * nodes:
        got = f"{gpus * nodes} GPUs are the teachers', and num_replicas times their parallel sizes are {needed}"
        fix: list[int] | str = [needed // nodes] if needed % nodes == 0 else "use as many, or other num_replicas"
        yield fails("distillation.n_gpus_per_node", got, fix, "conflicting-settings")


def _free_name(teachers: dict[str, Any]) -> str:
    return next(name for number in range(1, len(teachers) + 2) if (name := f"teacher_model{number}") not in teachers)


def _most_likely(run: RlSizes, teachers: dict[str, Any]) -> Results:
    """distillation.py:191-218: the teacher gives the log-probs of its most likely tokens."""
    count, where = run("distillation.distillation_loss.topk"), "distillation.distillation_loss.topk"
    if count is None or count < 1:
        yield fails(where, f"{count}, with loss_mode=forward_kl_topk", "use 32")
        return
    for name, teacher in teachers.items():
        key = f"distillation.teacher_models.{name}.inference"
        most = at(teacher, "inference.engine_kwargs.vllm.max_logprobs")
        if most is not None and most < count:
            got = f"{most}, and distillation_loss.topk is {count}"
            yield fails(f"{key}.engine_kwargs.vllm.max_logprobs", got, [count], "conflicting-settings")
        if at(teacher, "inference.name") == "trtllm":
            yield fails(f"{key}.name", "trtllm, with loss_mode=forward_kl_topk", "use vllm or sglang", "not-supported")


def _routing(run: RlSizes, facts: LaunchFacts) -> Results:
    """R3 trains with the experts that the rollout engine chose (megatron/transformer_impl.py:1309)."""
    kind, engine = engine_of(run(ACTOR))
    mode, where = at(engine, "router_replay.mode", "disabled"), f"{ROLLOUT}.enable_rollout_routing_replay"
    if mode == "R3" and not run(where):
        got = f"false, with {ACTOR}.{kind}.router_replay.mode=R3: answers come without the experts"
        yield fails(where, got, "use true", "conflicting-settings")
    if facts.experts != 0:
        return
    if run(where):
        yield fails(where, "true, and the model has no experts", "use false", "not-supported")
    if mode in ("R2", "R3"):
        key = f"{ACTOR}.{kind}.router_replay.mode"
        yield fails(key, f"{mode}, and the model has no experts", "use disabled", "not-supported")
