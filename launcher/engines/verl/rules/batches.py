"""How a batch is shared by GPUs and cut into mini-batches and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.problems import conflict
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.settings import (
    ACTOR,
    REF,
    ROLLOUT,
    SHARDED,
    BatchSizes,
    divisors,
    multiples,
    step_for,
)

CRITIC_TOKENS = 32768
"""Tokens of a critic's micro-batch in V1, whatever its settings say."""
SIZE, LOG_PROB_SIZE = "ppo_micro_batch_size", "log_prob_micro_batch_size"
GROUPED = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "reinforce_plus_plus_baseline")
"""Estimators that compare the answers to one prompt."""


def judge_batches(run: BatchSizes, facts: LaunchFacts) -> Results:
    if not run.dynamic:
        yield from _shared_batch(run)
    yield from _sections(run)
    if run.n == 1 and run("algorithm.adv_estimator") in GROUPED:
        got = f"1 answer: {run('algorithm.adv_estimator')} has nothing to compare it with"
        yield warns(f"{ROLLOUT}.n", got, "use 5", "conflicting-settings")
    if run.dynamic != bool(run(f"{ROLLOUT}.log_prob_use_dynamic_bsz")):
        where = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
        got = f"{run(where)}, and {ACTOR}.use_dynamic_bsz is {run.dynamic}"
        yield fails(where, got, f"use {str(run.dynamic).lower()}", "conflicting-settings")
    uneven = list(_parallel(run))
    yield from uneven
    if uneven:
        return
    uneven_minis = list(_mini_batches(run))
    yield from uneven_minis
    yield from _micro_batches(run, whole=not uneven_minis)
    yield from _tokens(run)
    if not uneven_minis and run.filled != run.batch * run.n:
        got = f"{run.batch * run.n} answers are filled up with copies to a multiple of {run.filled_step}"
        fitting = multiples(run.batch, step_for(run.filled_step, run.n))
        yield warns("data.train_batch_size", got, fitting, "conflicting-settings")


def judge_sizes(run: BatchSizes) -> Results:
    """Numbers that everything else is divided by, of RL and SFT alike."""
    degrees = (*SHARDED, "ulysses_sequence_parallel_size")
    keys = [*(f"trainer.{name}" for name in ("n_gpus_per_node", "nnodes")), "data.train_batch_size", "data.max_length"]
    keys += [f"{ROLLOUT}.{name}" for name in ("n", "tensor_model_parallel_size", "data_parallel_size")]
    for section in run.trained if run.sampled else ["engine"]:
        keys += [f"{section}.{name}" for name in ("ppo_mini_batch_size", *degrees)]
        keys += [f"{section}.megatron.{name}" for name in SHARDED]
    for key in keys:
        if (value := run(key)) is not None and value < 1:
            yield fails(key, f"{value}", "use at least 1")


def _shared_batch(run: BatchSizes) -> Results:
    """Every GPU has as many answers of a step; `validate_config` looks at it."""
    per_gpu, where = 1, f"{ACTOR}.{SIZE}_per_gpu"
    parallel = run.model_parallel() if run.uses_megatron() else 1
    if run.gpus % parallel:
        return  # which `_parallel` says
    if run.uses_megatron():
        per_gpu = run(where) or 0
        if not per_gpu:
            yield fails(where, f"{per_gpu}", "use a number of answers, such as 4")
            return
    ranks = run.gpus // parallel
    if run.batch * run.n % (ranks * per_gpu):
        least = ranks * per_gpu
        got = f"{run.batch} * rollout.n={run.n} answers cannot be shared by {least}, {ranks} ranks of {per_gpu} each"
        fix = multiples(run.batch, step_for(least, run.n))
        yield RuleResult("FAIL", conflict("data.train_batch_size", got, fix, f"{ROLLOUT}.n", where))


def _sections(run: BatchSizes) -> Results:
    """The size of a micro-batch is given per GPU or of all, and a mini-batch is a part of the batch."""
    for section in run.trained:
        dynamic = run(f"{section}.use_dynamic_bsz")
        mini, of_all = run(f"{section}.ppo_mini_batch_size"), run(f"{section}.{SIZE}")
        if not dynamic:
            yield from _one_of_two(run, section, SIZE)
        if not dynamic and run.batch < mini:
            got = f"{mini} prompts are more than data.train_batch_size={run.batch}"
            found = conflict(f"{section}.ppo_mini_batch_size", got, [run.batch], "data.train_batch_size")
            yield RuleResult("FAIL", found)
        if not dynamic and of_all is not None and (of_all < 1 or mini % of_all or of_all < run.gpus):
            got = f"{of_all} answers of all GPUs do not cut {mini} prompts for {run.gpus} GPUs"
            yield fails(f"{section}.{SIZE}", got, f"use {section}.{SIZE}_per_gpu", "conflicting-settings")
    for section in (ROLLOUT, *([REF] if run.needs_reference else [])):
        if not run.dynamic or not run(f"{section}.log_prob_use_dynamic_bsz"):
            yield from _one_of_two(run, section, LOG_PROB_SIZE)


def _one_of_two(run: BatchSizes, section: str, name: str) -> Results:
    of_all, per_gpu, where = run(f"{section}.{name}"), run(f"{section}.{name}_per_gpu"), f"{section}.{name}_per_gpu"
    if of_all is None and per_gpu is None:
        yield fails(where, "not set, without use_dynamic_bsz", "use a number of answers, such as 4")
    elif of_all is not None and per_gpu is not None:
        value = max(of_all // run.gpus, 1) if section == "critic" and per_gpu == of_all else per_gpu
        got = f"{of_all}, and {name}_per_gpu is {per_gpu}: verl takes one of them"
        yield RuleResult("FAIL", conflict(f"{section}.{name}", got, f"use {where}={value} alone", where))
    elif per_gpu is None:
        got = f"not set; {name} alone is taken at the start and fails in the workers"
        yield fails(where, got, f"use {max(of_all // run.gpus, 1)}")


def _parallel(run: BatchSizes) -> Results:
    """Every GPU is a part of one model copy, and of a group that shares the weights."""
    size = run(f"{ACTOR}.fsdp_config.fsdp_size", -1)
    if size == 0 or (0 < size < run.gpus and run.gpus % size):
        got = f"{run.gpus} GPUs cannot be cut into groups of {size}"
        fix = divisors(run.gpus, max(size, 1))
        yield fails(f"{ACTOR}.fsdp_config.fsdp_size", got, fix, "conflicting-settings")
    for section in run.trained:
        parallel = run.model_parallel(section)
        if run.gpus % parallel == 0:
            continue
        got = f"{run.gpus} GPUs cannot be shared by {parallel} that hold one model ({section})"
        where, values = "trainer.n_gpus_per_node", multiples(run.gpus, parallel)
        if not run.uses_megatron(section):
            where, values = f"{section}.ulysses_sequence_parallel_size", divisors(run.gpus, parallel)
        yield fails(where, got, values, "conflicting-settings")


def _mini_batches(run: BatchSizes) -> Results:
    """Each rank has as many answers of a mini-batch."""
    for section in run.trained:
        ranks, where = run.ranks(section), f"{section}.ppo_mini_batch_size"
        if run.mini(section) % ranks:
            got = f"{run(where)} * rollout.n={run.n} answers cannot be shared by {ranks} ranks"
            values = multiples(run(where), step_for(ranks, run.n))
            fitting = [value for value in values if value <= run.batch] or values
            yield fails(where, got, fitting, "conflicting-settings")


def _micro_batches(run: BatchSizes, *, whole: bool) -> Results:
    """A rank's answers are cut into whole micro-batches. `whole`: the mini-batches fit."""
    for section, name, total in _cuts(run):
        where = f"{section}.{name}_per_gpu"
        size = run(where)
        if size is None:
            continue
        if size < 1:
            yield fails(where, f"{size} answers", f"use {divisors(total, 4)[0]}")
        elif whole and total % size:
            got = f"a rank has {total} answers, which cannot be cut into micro-batches of {size}"
            yield fails(where, got, divisors(total, size), "conflicting-settings")


def _cuts(run: BatchSizes) -> Iterator[tuple[str, str, int]]:
    """Section, setting, and answers of a rank, of what is cut into micro-batches of rows. V1's critic counts tokens."""
    per_rank = max(run.filled // run.ranks(), 1)
    if not run.dynamic:
        yield ACTOR, SIZE, max(run.mini() // run.ranks(), 1)
    if not run(f"{ROLLOUT}.log_prob_use_dynamic_bsz"):
        yield ROLLOUT, LOG_PROB_SIZE, per_rank
    if run.needs_reference and not run.reference_in_actor and not run(f"{REF}.log_prob_use_dynamic_bsz"):
        yield REF, LOG_PROB_SIZE, per_rank
    if run.needs_critic and not run.v1 and not run("critic.use_dynamic_bsz"):
        yield "critic", SIZE, per_rank


def _tokens(run: BatchSizes) -> Results:
    """The longest answer with its prompt fits a micro-batch of tokens."""
    places = [(ACTOR, "ppo_max_token_len_per_gpu", run.dynamic)]
    log_prob = "log_prob_max_token_len_per_gpu"
    places.append((ROLLOUT, log_prob, bool(run(f"{ROLLOUT}.log_prob_use_dynamic_bsz"))))
    if run.needs_reference and not run.reference_in_actor:
        places.append((REF, log_prob, bool(run(f"{REF}.log_prob_use_dynamic_bsz"))))
    for section, name, dynamic in places:
        if dynamic:
            yield from _too_short(run, f"{section}.{name}", run(f"{section}.{name}"), run.sequence_parallel())
    if run.needs_critic and (run.v1 or run("critic.use_dynamic_bsz")):
        where = "critic.ppo_infer_max_token_len_per_gpu" if run.v1 else "critic.ppo_max_token_len_per_gpu"
        new = "+" if run(where) is None else ""
        yield from _too_short(run, f"{new}{where}", run(where, CRITIC_TOKENS), run.sequence_parallel("critic"))


def _too_short(run: BatchSizes, where: str, limit: int | None, parallel: int) -> Results:
    if limit is not None and limit * parallel < run.length:
        room = f"{limit:,} tokens" + (f" on each of {parallel} ranks" if parallel > 1 else "")
        got = f"{room} are fewer than data.max_prompt_length + data.max_response_length = {run.length:,}"
        yield fails(where, got, [-(-run.length // parallel)], "conflicting-settings")
