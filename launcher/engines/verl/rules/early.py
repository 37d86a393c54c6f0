"""What verl's `validate_config` raises on the machine that starts the run, as rules over the config.

The verdict equals verl 0.9.1's (utils/config.py:88 and the dataclasses that it makes) on random configs, which
`make verl-rules` shows; verl stops at the first problem, here are all. Only two things are not judged: whether the
critic's model can be loaded, and whether vLLM can be imported, which verl wants for LoRA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core.problems import Problem, conflict, short_repr
from launcher.engines.verl.rules.sections import not_one_of, refused
from launcher.engines.verl.rules.settings import (
    ACTOR,
    MISSING,
    MODEL,
    REF,
    ROLLOUT,
    RlSizes,
    engine_of,
    multiples,
    product,
    step_for,
)

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
MAX_LORA_RANK = 512
"""The largest rank that vLLM has an adapter for."""


def problems(config: dict[str, Any]) -> list[Problem]:
    """Why verl refuses a config of `main_ppo`; empty where it accepts it. SFT has no such check."""
    if "actor_rollout_ref" not in config:
        return []
    run = RlSizes(config)
    if run.gpus < 1 and not run.dynamic:
        got = f"{run('trainer.n_gpus_per_node')} on {run('trainer.nnodes')} nodes"
        return [Problem("trainer.n_gpus_per_node", got, "use at least 1 GPU on 1 node")]
    return list(_all(run))


def _all(run: RlSizes) -> Iterator[Problem]:
    if not run.dynamic:
        yield from _batch(run)
    yield from _actor(run)
    if not run.dynamic:
        if run.needs_ref:
            yield from _one_of_two(run, REF, "log_prob_micro_batch_size")
        yield from _one_of_two(run, ROLLOUT, "log_prob_micro_batch_size")
    if run.needs_critic:
        yield from _critic(run)
    yield from _sampling(run)


def _batch(run: RlSizes) -> Iterator[Problem]:
    """config.py:100-127: every GPU has as many answers."""
    per_gpu, where = 1, f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    ranks = run.gpus
    if run.strategy == "megatron":
        kind, engine = engine_of(run(ACTOR))
        if kind != "megatron":
            yield Problem(f"{ACTOR}.strategy", f"megatron, in the config of {kind}", "use model_engine=megatron")
            return
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        parallel = product(engine, *names)
        if run.gpus % parallel:
            got = f"{run.gpus} GPUs cannot be shared by tp * pp * cp = {parallel}"
            places = [f"{ACTOR}.megatron.{name}" for name in names]
            yield conflict("trainer.n_gpus_per_node", got, multiples(run.gpus, parallel), *places)
            return
        ranks, per_gpu = run.gpus // parallel, run(where)
        if not per_gpu:
            yield Problem(where, short_repr(per_gpu), "use a number of answers, such as 4")
            return
    least = ranks * per_gpu
    if run.batch * run.n % least:
        step = step_for(least, run.n)
        got = f"{run.batch} * rollout.n={run.n} answers cannot be shared by {least}, {ranks} ranks of {per_gpu} each"
        yield conflict("data.train_batch_size", got, multiples(run.batch, step), f"{ROLLOUT}.n", where)


def _actor(run: RlSizes) -> Iterator[Problem]:
    yield from refused(run(ACTOR), ACTOR)
    if not run.dynamic:
        yield from _one_of_two(run, ACTOR, "ppo_micro_batch_size")
        yield from _mini_batch(run, ACTOR)
    if run(f"{ACTOR}.loss_agg_mode") not in AGGREGATIONS:
        yield not_one_of(f"{ACTOR}.loss_agg_mode", run(f"{ACTOR}.loss_agg_mode"), AGGREGATIONS)
    kind, engine = engine_of(run(ACTOR))
    parallel = run(f"{ACTOR}.ulysses_sequence_parallel_size") or 1
    if kind == "fsdp" and parallel > 1 and not run(f"{MODEL}.use_remove_padding"):
        got = f"false, with {ACTOR}.ulysses_sequence_parallel_size={parallel}"
        yield conflict(f"{MODEL}.use_remove_padding", got, "use true", f"{ACTOR}.ulysses_sequence_parallel_size")
    replay = engine.get("router_replay") or {}
    if kind == "veomni" and replay.get("mode", "disabled") != "disabled" and not run(f"{ACTOR}.use_remove_padding"):
        yield conflict(
            f"{ACTOR}.use_remove_padding", "false, with router_replay", "use true", f"{ACTOR}.veomni.router_replay"
        )
    if replay.get("mode") == "R2" and run("algorithm.rollout_correction.bypass_mode"):
        got = "R2 records what bypass_mode skips"
        yield conflict(f"{ACTOR}.{kind}.router_replay.mode", got, "use R3", "algorithm.rollout_correction.bypass_mode")


def _critic(run: RlSizes) -> Iterator[Problem]:
    yield from refused(run("critic"), "critic")
    if not run("critic.use_dynamic_bsz"):
        yield from _one_of_two(run, "critic", "ppo_micro_batch_size")
        yield from _mini_batch(run, "critic")


def _mini_batch(run: RlSizes, section: str) -> Iterator[Problem]:
    """actor.py:225 and critic.py:125: a mini-batch is a part of the batch, a micro-batch a part of the mini-batch."""
    mini, micro = run(f"{section}.ppo_mini_batch_size"), run(f"{section}.ppo_micro_batch_size")
    if run.batch < mini:
        got = f"{mini} prompts are more than data.train_batch_size={run.batch}"
        yield conflict(f"{section}.ppo_mini_batch_size", got, [run.batch], "data.train_batch_size")
    if micro is None:
        return
    if micro < 1 or mini % micro:
        got = f"{mini} prompts cannot be cut into micro-batches of {micro}"
        yield conflict(
            f"{section}.ppo_mini_batch_size", got, multiples(mini, max(micro, 1)), f"{section}.ppo_micro_batch_size"
        )
    kind, engine = engine_of(run(section))
    if kind not in ("fsdp", "veomni") or (kind == "veomni" and section == ACTOR):
        parallel = 1
    elif kind == "veomni":
        parallel = product(engine, "ulysses_parallel_size")
    else:
        parallel = product(run(section), "ulysses_sequence_parallel_size")
    if section == "critic" and kind not in ("fsdp", "veomni"):
        return
    if micro * parallel < run.gpus:
        got = f"{micro} answers are fewer than the {run.gpus} GPUs"
        fix = "use ppo_micro_batch_size_per_gpu instead"
        yield conflict(f"{section}.ppo_micro_batch_size", got, fix, "trainer.n_gpus_per_node")


def _one_of_two(run: RlSizes, section: str, name: str) -> Iterator[Problem]:
    """The size of a micro-batch is set per GPU, or in all (which is deprecated, and fails later)."""
    in_all, per_gpu = run(f"{section}.{name}"), run(f"{section}.{name}_per_gpu")
    where = f"{section}.{name}_per_gpu"
    if in_all is None and per_gpu is None:
        yield Problem(where, "not set, without use_dynamic_bsz", "use a number of answers, such as 4")
    elif in_all is not None and per_gpu is not None:
        value = per_gpu if section != "critic" or per_gpu != in_all else max(in_all // run.gpus, 1)
        got = f"{in_all}, and {name}_per_gpu is {per_gpu}: verl takes one of them"
        yield conflict(f"{section}.{name}", got, f"use {where}={value} alone", where)


def _sampling(run: RlSizes) -> Iterator[Problem]:
    temperature = run(f"{ROLLOUT}.temperature")
    if run(f"{ROLLOUT}.val_kwargs.do_sample") and not temperature > 0:
        got = f"{temperature}, with val_kwargs.do_sample"
        yield conflict(f"{ROLLOUT}.temperature", got, "use 1.0", f"{ROLLOUT}.val_kwargs.do_sample")
    merged = run(f"{MODEL}.lora.merge")
    if run.lora_rank > 0 and not merged:
        if run(f"{ROLLOUT}.name") == MISSING:
            yield Problem(f"{ROLLOUT}.name", "not set", "use vllm or sglang")
        elif run(f"{ROLLOUT}.name") == "vllm" and run.lora_rank > MAX_LORA_RANK:
            got = f"vLLM has no adapter of rank {run.lora_rank}"
            yield conflict(f"{MODEL}.lora_rank", got, [MAX_LORA_RANK], f"{ROLLOUT}.name")
