"""How a batch is shared by GPUs and cut into mini-batches and micro-batches: what verl finds in its workers.

The numbers beside the rules are lines of verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Any

from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.settings import (
    ACTOR,
    REF,
    ROLLOUT,
    RlSizes,
    divisors,
    engine_of,
    multiples,
    product,
    step_for,
)

CRITIC_TOKENS = 32768
"""Tokens of a critic's micro-batch in V1, whatever its settings say (trainer_base.py:267, critic.py:88)."""
DEGREES = ("parallel_size", "tp_size", "pp_size", "cp_size", "ep_size")
UNSHARED = ("data_parallel_shard_size", -1)
"""torchtitan's word for all GPUs that are left."""
GROUPED = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "reinforce_plus_plus_baseline")
"""Estimators that compare the answers to one prompt."""


def sizes(run: RlSizes) -> Results:
    """Numbers that everything else is divided by."""
    where = {"trainer.n_gpus_per_node": run.gpus, f"{ROLLOUT}.n": run.n, "data.train_batch_size": run.batch}
    where |= {f"{section}.ppo_mini_batch_size": run(f"{section}.ppo_mini_batch_size") for section in _sections(run)}
    for key, value in where.items():
        if value < 1:
            yield fails(key, f"{value}", "use at least 1")
    for section in (ACTOR, ROLLOUT, *([REF] if run.needs_ref else []), *(["critic"] if run.needs_critic else [])):
        yield from degrees(run(section) or {}, section)


def degrees(node: dict[str, Any], place: str) -> Results:
    """How many GPUs share something: 0 of them is a division by zero in the workers."""
    for name, value in node.items():
        if isinstance(value, dict):
            yield from degrees(value, f"{place}.{name}")
        elif name.endswith(DEGREES) and isinstance(value, int) and value < 1 and (name, value) != UNSHARED:
            yield fails(f"{place}.{name}", f"{value}", [1])


def batches(run: RlSizes, facts: LaunchFacts) -> Results:
    uneven = list(_parallel(run))
    yield from uneven
    if run(f"{ACTOR}.use_dynamic_bsz") != run(f"{ROLLOUT}.log_prob_use_dynamic_bsz"):  # engine_workers.py:616
        where = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
        got = f"{run(where)}, and {ACTOR}.use_dynamic_bsz is {run.dynamic}"
        yield fails(where, got, f"use {str(run.dynamic).lower()}", "conflicting-settings")
    yield from _groups(run)
    yield from _asynchronous(run)
    yield from _fetches(run)
    if not uneven:
        uneven_minis = list(_mini_batches(run))
        yield from uneven_minis
        yield from _micro_batches(run, whole=not uneven_minis)
        yield from _tokens(run)
        if not uneven_minis and not (run.v1 and run.mode == "separate_async"):
            yield from _filled(run)


def _sections(run: RlSizes) -> list[str]:
    return [ACTOR, *(["critic"] if run.needs_critic else [])]


def _parallel(run: RlSizes) -> Results:
    """Every rank is a part of one model copy: transformer_impl.py:248 and Megatron's groups."""
    for section in _sections(run):
        kind, engine = engine_of(run(section))
        parallel = run.model_parallel(section)
        if kind == "torchtitan":
            names = ("data_parallel_shard_size", "data_parallel_replicate_size", "tensor_parallel_size",
                     "pipeline_parallel_size", "context_parallel_size")  # fmt: skip
            if (size := product(engine, *names)) != run.gpus and engine.get("data_parallel_shard_size") != -1:
                got = f"the sizes multiply to {size}, and there are {run.gpus} GPUs"
                rest = size // product(engine, names[0])
                fix = f"use {run.gpus // rest}" if run.gpus % rest == 0 else "use sizes that multiply to the GPUs"
                yield fails(f"{section}.torchtitan.data_parallel_shard_size", got, fix, "conflicting-settings")
        elif run.gpus % parallel and not (kind == "megatron" and section == ACTOR and not run.dynamic):
            if kind == "fsdp":
                where, values = f"{section}.ulysses_sequence_parallel_size", divisors(run.gpus, parallel)
            else:
                where, values = "trainer.n_gpus_per_node", multiples(run.gpus, parallel)
            got = f"{run.gpus} GPUs cannot be shared by {parallel} that hold one model ({section})"
            yield fails(where, got, values, "conflicting-settings")
    old = run("critic.ulysses_sequence_parallel_size") or 1
    read = product(run("critic.fsdp") or {"ulysses_sequence_parallel_size": old}, "ulysses_sequence_parallel_size")
    if run.needs_critic and old > 1 and read != old:
        fix = f"use critic.fsdp.ulysses_sequence_parallel_size={old}"
        yield warns("critic.ulysses_sequence_parallel_size", "the critic's engine does not read it", fix)


def _mini_batches(run: RlSizes) -> Results:
    """engine_workers.py:267: each rank has as many answers of a mini-batch."""
    for section in _sections(run):
        if run.mini(section) % run.dp(section):
            where, dp = f"{section}.ppo_mini_batch_size", run.dp(section)
            got = f"{run(where)} * rollout.n={run.n} answers cannot be shared by {dp} ranks"
            values = multiples(run(where), step_for(dp, run.n))
            fitting = [value for value in values if value <= run.batch] or values
            yield fails(where, got, fitting, "conflicting-settings")


def _micro_batches(run: RlSizes, *, whole: bool) -> Results:
    """engine/utils.py:125: a rank's answers are cut into whole micro-batches. `whole`: the mini-batches fit."""
    for part, name, dynamic, total in _cuts(run):
        if dynamic:
            continue
        where = f"{part}.{name}_per_gpu"
        size = run(where)
        if size is None:
            got = f"not set; {name} alone is taken at the start and fails in the workers"
            if run(f"{part}.{name}") is None:
                got = "not set, without dynamic batches"
            yield fails(where, got, f"use {divisors(total, 4)[0]}")
        elif size < 1:
            yield fails(where, f"{size} answers", f"use {divisors(total, 4)[0]}")
        elif whole and total % size:
            got = f"a rank has {total} answers, which cannot be cut into micro-batches of {size}"
            yield fails(where, got, divisors(total, size), "conflicting-settings")


def _cuts(run: RlSizes) -> Iterator[tuple[str, str, bool, int]]:
    """Section, setting, whether micro-batches are of tokens, and answers of a rank, of what is cut into micro-batches.
    V1's critic always counts tokens (engine.py:92)."""
    per_rank = max(run.padded // run.dp(), 1)
    log_prob = "log_prob_micro_batch_size"
    yield ACTOR, "ppo_micro_batch_size", run.dynamic, max(run.mini() // run.dp(), 1)
    yield ROLLOUT, log_prob, bool(run(f"{ROLLOUT}.log_prob_use_dynamic_bsz")), per_rank
    if run.needs_ref and not run.ref_in_actor:
        yield REF, log_prob, bool(run(f"{REF}.log_prob_use_dynamic_bsz")), per_rank
    if run.needs_critic and not run.v1:
        yield "critic", "ppo_micro_batch_size", bool(run("critic.use_dynamic_bsz")), per_rank


def _tokens(run: RlSizes) -> Results:
    """seqlen_balancing.py:384: the longest answer with its prompt fits a micro-batch of tokens."""
    places = [(ACTOR, "ppo_max_token_len_per_gpu", run.dynamic)]
    places.append((ROLLOUT, "log_prob_max_token_len_per_gpu", bool(run(f"{ROLLOUT}.log_prob_use_dynamic_bsz"))))
    if run.needs_ref and not run.ref_in_actor:
        places.append((REF, "log_prob_max_token_len_per_gpu", bool(run(f"{REF}.log_prob_use_dynamic_bsz"))))
    for section, name, dynamic in places:
        parallel, limit = run.sequence_parallel(), run(f"{section}.{name}")
        if dynamic and limit is not None and limit * parallel < run.length:
            yield _too_long(run, f"{section}.{name}", limit, parallel)
    if run.needs_critic:
        where = "critic.ppo_infer_max_token_len_per_gpu" if run.v1 else "critic.ppo_max_token_len_per_gpu"
        limit, parallel = run(where, CRITIC_TOKENS), run.sequence_parallel("critic")
        if (run.v1 or run("critic.use_dynamic_bsz")) and limit * parallel < run.length:
            new = run(where) is None
            yield _too_long(run, f"+{where}" if new else where, limit, parallel)


def _too_long(run: RlSizes, where: str, limit: int, parallel: int) -> RuleResult:
    room = f"{limit:,} tokens" + (f" on each of {parallel} ranks" if parallel > 1 else "")
    got = f"{room} are fewer than data.max_prompt_length + data.max_response_length = {run.length:,}"
    return fails(where, got, [-(-run.length // parallel)], "conflicting-settings")


def _filled(run: RlSizes) -> Results:
    """trainer_base.py:1589: V1 fills a step's answers up with copies."""
    if not run.v1 or run.padded == run.answers:
        return
    step = lcm(run.dp(), run.mini(), *([run.mini("critic")] if run.needs_critic else []))
    extra = run.padded - run.answers
    got = f"{run.answers} answers are filled up with {extra} copies to a multiple of {step}"
    yield warns("data.train_batch_size", got, multiples(run.batch, step_for(step, run.n)), "conflicting-settings")


def _groups(run: RlSizes) -> Results:
    estimator, where = run("algorithm.adv_estimator"), f"{ROLLOUT}.n"
    if run.n == 1 and estimator == "grpo_passk":  # core_algos.py:517
        yield fails(where, "1 answer, and grpo_passk compares two", "use 5", "conflicting-settings")
    elif run.n == 1 and estimator in GROUPED:
        yield warns(where, f"1 answer: {estimator} has nothing to compare it with", "use 5", "conflicting-settings")
    if run.n == 1 and run("algorithm.filter_groups.enable"):  # replay_buffer.py:312
        yield warns(where, "1 answer: algorithm.filter_groups filters nothing", "use 5", "conflicting-settings")


def _asynchronous(run: RlSizes) -> Results:
    """trainer_separate_async.py:59-75."""
    if not run.v1 or run.mode != "separate_async":
        if run("actor_rollout_ref.hybrid_engine") is False and run.v1:
            fix = "use true, or trainer.v1.trainer_mode=separate_async"
            yield warns("actor_rollout_ref.hybrid_engine", f"false, which {run.mode} does not read", fix)
        return
    mini, updates = run(f"{ACTOR}.ppo_mini_batch_size"), run.updates
    if run.batch != mini * updates:
        got = f"{run.batch} prompts are not {updates} parameter_sync_step * {mini} ppo_mini_batch_size"
        yield fails("data.train_batch_size", got, [mini * updates], "conflicting-settings")
    for name in ("nnodes", "n_gpus_per_node"):
        if not (run(f"{ROLLOUT}.{name}") or 0) > 0:
            yield fails(f"{ROLLOUT}.{name}", "separate_async has GPUs of its own for rollouts", "use at least 1")
    if run(f"{ROLLOUT}.checkpoint_engine.backend") == "naive":
        yield fails(f"{ROLLOUT}.checkpoint_engine.backend", "naive does not reach other GPUs", "use nccl")
    if run.reward_model and not run("reward.reward_model.enable_resource_pool"):
        got = "false: a reward model on the trainer's GPUs has no time of its own in separate_async"
        yield fails("reward.reward_model.enable_resource_pool", got, "use true")
    switch = "trainer.v1.separate_async.hybrid_rollout"
    if run(f"{switch}.enable_switch") and run(f"{ROLLOUT}.disaggregation.enabled"):
        yield fails(f"{switch}.enable_switch", "true, with rollout.disaggregation", "use false", "conflicting-settings")
    ratio = run(f"{switch}.switch_threshold_ratio", 0.4)
    if not 0 < ratio <= 1:
        yield fails(f"{switch}.switch_threshold_ratio", f"{ratio} is no share of a batch", "use 0.4")


def _fetches(run: RlSizes) -> Results:
    """trainer_base.py:1486: a batch is made of whole fetches of the data loader."""
    one_by_one = run.mode != "sync" or run("algorithm.filter_groups.enable") or run(
        "trainer.v1.sampler.sync_refill_failed_groups"
    )  # fmt: skip
    size = run("data.gen_batch_size")
    if run.v1 and size and not one_by_one and run.batch % size:
        got = f"{run.batch} prompts cannot be fetched {size} at a time"
        yield fails("data.gen_batch_size", got, divisors(run.batch, size), "conflicting-settings")
