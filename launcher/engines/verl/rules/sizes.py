"""How batches, GPUs and models are divided; what a row of the table cannot say, as several sizes are in it."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import (
    ACTOR,
    REF,
    ROLLOUT,
    BatchSizes,
    divisors,
    multiples,
    product,
    step_for,
)

CRITIC_TOKENS = 32768
"""Tokens of a critic's micro-batch in V1, whatever its settings say."""
SIZE, LOG_PROB_SIZE = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
TP = "tensor_model_parallel_size"


def judge_gpus(run: BatchSizes, facts: LaunchFacts) -> Results:
    """GPUs that are there, and those of the checkpoint that is resumed from."""
    where = "trainer.n_gpus_per_node"
    if run("trainer.nnodes") == 1 and facts.visible_gpus is not None and facts.visible_gpus < run.gpus:
        got = f"{run.gpus} GPUs, and CUDA_VISIBLE_DEVICES shows {facts.visible_gpus} of this machine's"
        yield fails(where, got, [facts.visible_gpus] if facts.visible_gpus else "", "not-enough")
    if run("trainer.resume_mode") != "disable" and facts.checkpoint_world not in (None, run.gpus):
        got = f"the checkpoint is of {facts.checkpoint_world} processes, and the run has {run.gpus}"
        yield fails(where, got, "use as many GPUs, or leave the checkpoint out")


def judge_sampled(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Of main_ppo. Micro-batches are judged where the batches are shared evenly."""
    uneven = [*_shares(run)]
    yield from uneven
    if not uneven:
        yield from _micro_batches(run)
    for where, limit, parallel in _token_limits(run):
        yield from _room(where, limit, parallel, run.length, "data.max_prompt_length + data.max_response_length")
    yield from _served_models(run, facts)


def judge_sft(run: BatchSizes, facts: LaunchFacts) -> Results:
    parallel, ranks, where = run.model_parallel("engine"), run.ranks("engine"), "data.train_batch_size"
    if run.gpus % parallel:
        yield fails(*_unshared_gpus(run, "engine", parallel))
    if run.batch < ranks:
        yield fails(where, f"{run.batch} rows are fewer than {ranks} ranks", [ranks])
        return
    share, micro = run.batch // ranks, run("data.micro_batch_size_per_gpu")
    if run.batch % ranks:
        got = f"{run.batch} rows cannot be shared by {ranks} ranks: {share * ranks} are trained on"
        yield warns(where, got, f"use {share * ranks}")
    if not run("data.use_dynamic_bsz") and (not micro or share % micro):
        got = f"a rank has {share} rows, which cannot be cut into micro-batches of {micro}"
        yield fails("data.micro_batch_size_per_gpu", got, divisors(share, micro or 4))
    if run("data.use_dynamic_bsz"):
        where, limit = "data.max_token_len_per_gpu", run("data.max_token_len_per_gpu")
        yield from _room(where, limit, run.sequence_parallel("engine"), run("data.max_length"), "data.max_length")
    if facts.run.val_rows is not None and run("data.val_files") and facts.run.val_rows // ranks < share:
        got = f"{facts.run.val_rows} rows are no whole batch of {run.batch}: val/loss is nan"
        yield warns("data.val_files", got, f"use at least {share * ranks} rows", "not-enough")
    if facts.run.differs_by_turn and not run("data.ignore_input_ids_mismatch"):
        got = f"{facts.run.differs_by_turn} written turn by turn is not what the chat template writes of it as a whole"
        fix = "use true, with which the turns are trained on as they are written one by one"
        yield fails("data.ignore_input_ids_mismatch", f"false, and {got}", fix, "bad-row")


def _shares(run: BatchSizes) -> Results:
    """Every GPU holds a part of one copy of the model, and every rank has as many answers of each mini-batch."""
    for section in run.trained:
        parallel, ranks, where = run.model_parallel(section), run.ranks(section), f"{section}.ppo_mini_batch_size"
        if run.gpus % parallel:
            yield fails(*_unshared_gpus(run, section, parallel))
        elif run.mini(section) % ranks:
            got = f"{run(where)} * rollout.n={run.n} answers cannot be shared by {ranks} ranks"
            yield fails(where, got, multiples(run(where), step_for(ranks, run.n)))
    least = run.ranks() * (run(f"{ACTOR}.{SIZE}") or 1) if run.uses_megatron() else run.gpus
    if not run.dynamic and run.batch * run.n % least:
        got = f"{run.batch} * rollout.n={run.n} answers cannot be shared by {run.gpus} GPUs, {least} at a time"
        yield fails("data.train_batch_size", got, multiples(run.batch, step_for(least, run.n)))


def _unshared_gpus(run: BatchSizes, section: str, parallel: int) -> tuple[str, str, list[int]]:
    """Where, what and which sizes instead, of GPUs that `parallel` of them cannot share."""
    got = f"{run.gpus} GPUs cannot be shared by {parallel} that hold one model ({section})"
    if run.uses_megatron(section):
        return "trainer.n_gpus_per_node", got, multiples(run.gpus, parallel)
    return f"{section}.ulysses_sequence_parallel_size", got, divisors(run.gpus, parallel)


def _micro_batches(run: BatchSizes) -> Results:
    """A rank's answers are cut into whole micro-batches."""
    for where, total in _cuts(run):
        if (size := run(where)) is not None and total % size:
            got = f"a rank has {total} answers, which cannot be cut into micro-batches of {size}"
            yield fails(where, got, divisors(total, size))


def _cuts(run: BatchSizes) -> Iterator[tuple[str, int]]:
    """Setting, and answers of a rank, of what is cut into micro-batches of rows. V1's critic counts tokens."""
    per_rank = run.filled // run.ranks()
    if not run.dynamic:
        yield f"{ACTOR}.{SIZE}", run.mini() // run.ranks()
    for section in (ROLLOUT, *([REF] if run.needs_reference and not run.reference_in_actor else [])):
        if not run(f"{section}.log_prob_use_dynamic_bsz"):
            yield f"{section}.{LOG_PROB_SIZE}", per_rank
    if run.needs_critic and not run.v1 and not run("critic.use_dynamic_bsz"):
        yield f"critic.{SIZE}", per_rank


def _token_limits(run: BatchSizes) -> Iterator[tuple[str, int | None, int]]:
    """Setting, tokens of a micro-batch, and the ranks that share it, of what is cut by tokens."""
    if run.dynamic:
        where = f"{ACTOR}.ppo_max_token_len_per_gpu"
        yield where, run(where), run.sequence_parallel()
    for section in (ROLLOUT, *([REF] if run.needs_reference and not run.reference_in_actor else [])):
        if run(f"{section}.log_prob_use_dynamic_bsz"):
            where = f"{section}.log_prob_max_token_len_per_gpu"
            yield where, run(where), run.sequence_parallel()
    if run.needs_critic and (run.v1 or run("critic.use_dynamic_bsz")):
        where = "critic.ppo_infer_max_token_len_per_gpu" if run.v1 else "critic.ppo_max_token_len_per_gpu"
        new = "+" if run(where) is None else ""
        yield f"{new}{where}", run(where, CRITIC_TOKENS), run.sequence_parallel("critic")


def _room(where: str, limit: int | None, parallel: int, longest: int, what: str) -> Results:
    """The longest row fits a micro-batch of tokens."""
    if limit is not None and limit * parallel < longest:
        room = f"{limit:,} tokens" + (f" on each of {parallel} ranks" if parallel > 1 else "")
        yield fails(where, f"{room} are fewer than {what} = {longest:,}", [-(-longest // parallel)])


def _pools(run: BatchSizes) -> Iterator[tuple[str, str]]:
    """Each model that is served, and the section that says how many GPUs it has: the trainer's, unless the reward model
    has its own."""
    yield ROLLOUT, "trainer"
    reward = "reward.reward_model"
    if run(f"{reward}.enable"):
        yield f"{reward}.rollout", reward if run(f"{reward}.enable_resource_pool") else "trainer"


def _served_models(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Replicas of a model that is served share the GPUs, and ranks of one share its attention heads."""
    for place, pool in _pools(run):
        gpus = product(run(pool), "n_gpus_per_node", "nnodes")
        tp, size = product(run(place), TP), product(run(place), TP, "data_parallel_size")
        if gpus % size:
            got = f"{gpus} GPUs ({pool}.n_gpus_per_node) cannot be shared by replicas of {size}"
            fix = divisors(gpus, tp) if tp == size else "use sizes whose product divides it"
            yield fails(f"{place}.{TP}", got, fix)
    if facts.shape is None:
        return
    heads, kv_heads = facts.shape.num_attention_heads, facts.shape.num_key_value_heads
    shared = [f"{ROLLOUT}.{TP}", *([f"{ACTOR}.megatron.{TP}"] if run.uses_megatron() else [])]
    for where in shared:
        if heads % (size := run(where)):
            got = f"{heads} attention heads cannot be shared by {size} GPUs"
            yield fails(where, got, divisors(gcd(heads, run.gpus), size))
    parallel = 1 if run.uses_megatron() else run.sequence_parallel()
    if run.gpus % parallel == 0 and (heads % parallel or (kv_heads % parallel and parallel % kv_heads)):
        got = f"{heads} attention heads ({kv_heads} of keys) cannot be shared by {parallel} ranks"
        yield fails(f"{ACTOR}.ulysses_sequence_parallel_size", got, divisors(gcd(heads, run.gpus), parallel))
