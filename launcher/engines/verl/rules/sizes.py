"""Rules on how batches, GPUs and models are divided: they compare several sizes, which a row of the table cannot."""

from __future__ import annotations

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
TP = "tensor_model_parallel_size"


def judge_sampled(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Sizes of main_ppo. Micro-batches are judged where the batches are shared evenly."""
    uneven = [*_check_shares(run)]
    yield from uneven
    yield from _micro_batches(run, are_even=not uneven)
    yield from _served_models(run, facts)


def judge_sft(run: BatchSizes, facts: LaunchFacts) -> Results:
    parallel, ranks, where = run.model_parallel("engine"), run.ranks("engine"), "data.train_batch_size"
    batch = run(where)
    if run.gpus % parallel:
        yield fails(*_unshared_gpus(run, "engine", parallel))
    if batch < ranks:
        yield fails(where, f"{batch} rows are fewer than {ranks} ranks", [ranks])
        return
    share, micro = batch // ranks, run("data.micro_batch_size_per_gpu")
    if batch % ranks:
        got = f"{batch} rows cannot be shared by {ranks} ranks: {share * ranks} are trained on"
        yield warns(where, got, f"use {share * ranks}")
    if not run("data.use_dynamic_bsz") and (not micro or share % micro):
        got = f"a rank has {share} rows, which cannot be cut into micro-batches of {micro}"
        yield fails("data.micro_batch_size_per_gpu", got, divisors(share, micro or 4))
    if run("data.use_dynamic_bsz"):
        where, limit = "data.max_token_len_per_gpu", run("data.max_token_len_per_gpu")
        yield from _check_room(where, limit, run.sequence_parallel("engine"), run("data.max_length"), "data.max_length")
    if facts.run.val_rows is not None and run("data.val_files") and facts.run.val_rows // ranks < share:
        got = f"{facts.run.val_rows} rows are no whole batch of {batch}: val/loss is nan"
        yield warns("data.val_files", got, f"use at least {share * ranks} rows", "not-enough")


def _check_shares(run: BatchSizes) -> Results:
    """Problems unless each GPU holds a part of one copy of the model, and ranks share mini-batches evenly."""
    for section in run.trained:
        parallel, ranks, where = run.model_parallel(section), run.ranks(section), f"{section}.ppo_mini_batch_size"
        if run.gpus % parallel:
            yield fails(*_unshared_gpus(run, section, parallel))
        elif run.mini(section) % ranks:
            got = f"{run(where)} * rollout.n={run.n} answers cannot be shared by {ranks} ranks"
            yield fails(where, got, multiples(run(where), step_for(ranks, run.n)))
    batch = run("data.train_batch_size")
    least = run.ranks() * (run(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or 1) if run.uses_megatron() else run.gpus
    if not run(f"{ACTOR}.use_dynamic_bsz") and batch * run.n % least:
        got = f"{batch} * rollout.n={run.n} answers cannot be shared by {run.gpus} GPUs, {least} at a time"
        yield fails("data.train_batch_size", got, multiples(batch, step_for(least, run.n)))


def _unshared_gpus(run: BatchSizes, section: str, parallel: int) -> tuple[str, str, list[int]]:
    """The setting, the problem and sizes to use, where `parallel` GPUs of one model do not divide all GPUs."""
    got = f"{run.gpus} GPUs cannot be shared by {parallel} that hold one model ({section})"
    if run.uses_megatron(section):
        return "trainer.n_gpus_per_node", got, multiples(run.gpus, parallel)
    return f"{section}.ulysses_sequence_parallel_size", got, divisors(run.gpus, parallel)


def _micro_batches(run: BatchSizes, are_even: bool) -> Results:
    """Micro-batches in rows must divide a rank's answers, which is judged where all ranks have as many (`are_even`);
    those in tokens must hold the longest answer. V1's critic always counts tokens."""
    per_rank, longest = run.filled // run.ranks(), run("data.max_prompt_length") + run("data.max_response_length")
    parts = [(ACTOR, "", "ppo", run.mini() // run.ranks()), (ROLLOUT, "log_prob_", "log_prob", per_rank)]
    if run.needs_reference and not run.has_adapter:  # else the reference is the actor without its adapter
        parts.append((REF, "log_prob_", "log_prob", per_rank))
    parts += [("critic", "", "ppo_infer" if run.v1 else "ppo", per_rank)] if run.needs_critic else []
    for section, switch, name, answers in parts:
        if name == "ppo_infer" or run(f"{section}.{switch}use_dynamic_bsz"):
            where = f"{section}.{name}_max_token_len_per_gpu"
            new = "+" if run(where) is None else ""
            parallel = run.sequence_parallel(section if section == "critic" else ACTOR)
            what = "data.max_prompt_length + data.max_response_length"
            yield from _check_room(f"{new}{where}", run(where, CRITIC_TOKENS), parallel, longest, what)
            continue
        where = f"{section}.{name}_micro_batch_size_per_gpu"
        if are_even and (size := run(where)) is not None and answers % size:
            got = f"a rank has {answers} answers, which cannot be cut into micro-batches of {size}"
            yield fails(where, got, divisors(answers, size))


def _check_room(where: str, limit: int | None, parallel: int, longest: int, what: str) -> Results:
    """A problem where a micro-batch of `limit` tokens on each of `parallel` ranks does not hold the longest row."""
    if limit is not None and limit * parallel < longest:
        room = f"{limit:,} tokens" + (f" on each of {parallel} ranks" if parallel > 1 else "")
        yield fails(where, f"{room} are fewer than {what} = {longest:,}", [-(-longest // parallel)])


def _served_models(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Problems unless replicas of a served model divide the GPUs, and the ranks of one divide its attention heads. A
    reward model has the trainer's GPUs, or its own."""
    reward = "reward.reward_model"
    pools = [(ROLLOUT, "trainer")]
    if run(f"{reward}.enable"):
        pools.append((f"{reward}.rollout", reward if run(f"{reward}.enable_resource_pool") else "trainer"))
    for place, pool in pools:
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
