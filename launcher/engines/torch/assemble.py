"""Builds the objects that train a RunSpec."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from launcher.core import machine
from launcher.core.checkpoints import name_of
from launcher.core.events import Event, Loaded
from launcher.core.problems import Problem, Problems
from launcher.data.refused import RefusedLog
from launcher.engines.torch import Torch
from launcher.engines.torch.model.load import load_critic, load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.model.reference import Reference
from launcher.engines.torch.model.scorer import load_reward_models
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import Parallel
from launcher.engines.torch.rollout.episodes import EpisodeRunner
from launcher.engines.torch.rollout.sampler import Colocated
from launcher.engines.torch.train import movement
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.loop import Training
from launcher.engines.torch.train.mismatch import Mismatch
from launcher.engines.torch.train.optimizer import TrainedNetwork
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import Saver, TrainingPosition, load_optimizers, read_position
from launcher.engines.torch.train.sources import Demonstrations, Order, Rollouts, Rows, read_rows
from launcher.engines.torch.train.tokens import TokenLog
from launcher.engines.torch.train.validation import Validation
from launcher.spec.checkpoint_format import POLICY
from launcher.spec.data import SPLITS
from launcher.spec.reward import Reward
from launcher.spec.run import RunSpec
from launcher.text.bridge import Bridge
from launcher.text.encoder import Encoder


def select_device(run: RunSpec, num_threads: int) -> torch.device:
    """The device of this process: the CPU, or the accelerator of its LOCAL_RANK.

    Raises `Problems` where the run's hardware has GPUs and torch finds none.
    """
    transformers_logging.disable_progress_bar()
    if run.hardware.is_cpu:
        torch.set_num_threads(num_threads or machine.threads_of_a_process(run.hardware.processes_per_node))
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # MPS has no float64, which masks and rewards need
        got = f"{run.hardware.device} needs CUDA, and this machine has none"
        raise Problems(Problem("hardware.device", got, "use hardware=cpu", "not-found"))
    device = torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", "0")))
    torch.accelerator.set_device_index(device)
    return device


def build_training(
    run: RunSpec, device: torch.device, folder: Path, start: int, emit: Callable[[Event], None],
    asked_to_stop: Callable[[], bool], sync: Callable[[], None],
) -> Training:  # fmt: skip
    """Read the rows, load the models, and restore the checkpoint of the step `start` where that is not 0."""
    engine, trainer, root = run.engine, run.trainer, folder / "checkpoints"
    assert isinstance(engine, Torch) and isinstance(run.sampler, Colocated)
    checkpoint = root / name_of(start) if start else None
    parallel = _parallel(engine, device)
    sharded = parallel.needs_equal_microbatches
    mixed = engine.mixed_precision and not sharded  # FSDP2 has a number format of its own
    load_device = torch.device("cpu") if sharded else device  # FSDP2 takes layer by layer to the GPU
    model = load_model(run.model, run.seed, load_device, checkpoint and checkpoint / POLICY, mixed=mixed)
    parallel.shard(model)
    _check_length(run, model)
    encoder = Encoder(model.tokenizer, run.data)
    model.stop_at(encoder.stop_tokens.ids)
    rows, held_out = _read_splits(run, encoder, folder / "refused.jsonl")
    order = Order(len(rows.rows), run.data.train_batch_size, run.seed, run.data.shuffle)
    if order.rows < order.batch:
        got = f"{order.batch} rows, and the data has {order.rows}"
        raise Problems(Problem("data.train_batch_size", got, f"use at most {order.rows}", "not-enough"))
    steps = run.total_steps(order.rows)
    policy = _build_policy(run, model, parallel, steps, load_device, mixed, checkpoint)
    position = _position(policy, checkpoint, run.seed, order.rows)
    generator, environment = run.sampler.generator(run, policy), run.environment
    runner: EpisodeRunner | None = None
    if environment.several_turns:
        runner = EpisodeRunner(generator, environment, environment.sessions(), Bridge(encoder))
    answerer = PromptAnswerer(generator, load_reward(run, device), runner)
    source: Demonstrations | Rollouts = Demonstrations(rows, order, model)
    if policy.sampled:
        shrinks = runner is not None and environment.on_fault == "shrink"
        source = Rollouts(rows, order, answerer, run.algorithm, run.seed, shrinks=shrinks)
    validation = Validation(held_out, policy, answerer, run.seed, run.data.val_batch_size, trainer.log_val_generations)
    saver = Saver(root, policy, trainer.keep_last, trainer.keep_best, trainer.best_metric)
    keeps_tokens = trainer.log_groups and world.RANK == 0
    tokens = TokenLog(folder / "samples" / "tokens.jsonl", model.tokenizer) if keeps_tokens else None
    if not start:
        emit(
            Loaded(
                rows=len(rows.rows), refused=rows.refused, val_rows=len(held_out.rows), val_refused=held_out.refused,
                steps_per_epoch=order.steps_per_epoch, steps=steps,
            )
        )  # fmt: skip
    return Training(
        run, policy, answerer, source, validation if held_out.rows else None, saver, position, steps, emit,
        asked_to_stop, sync, tokens,
    )  # fmt: skip


def _parallel(engine: Torch, device: torch.device) -> Parallel:
    if engine.strategy != "fsdp2" or world.SIZE == 1:
        return Parallel()
    from launcher.engines.torch.parallel.sharded import Sharded  # noqa: PLC0415  # late: FSDP2 takes a while to import

    return Sharded(device, mixed=engine.mixed_precision, offload="weights" in engine.offload)


def _position(policy: Policy, checkpoint: Path | None, seed: int, rows: int) -> TrainingPosition:
    """Where the training begins; with a checkpoint, its optimizers are restored."""
    if checkpoint is None:
        policy.actor.start = movement.sample(policy.model)
        return TrainingPosition(0, seed, 0, rows)
    position = read_position(checkpoint)
    if position.rows != rows:
        got = f"the run began with {position.rows} training rows and finds {rows} now"
        raise Problems(Problem("data", got, "use the rows that it began with", "changed"))
    load_optimizers(policy, checkpoint)
    return position


def _build_policy(
    run: RunSpec, model: CausalLM, parallel: Parallel, steps: int, device: torch.device, mixed: bool,
    checkpoint: Path | None,
) -> Policy:  # fmt: skip
    needs, offload = run.algorithm.needs, run.engine.offload if isinstance(run.engine, Torch) else ()
    reference: Reference | None = None
    if "reference" in needs:
        frozen = model
        if not run.model.lora_rank:
            frozen = load_model(run.model, run.seed, device, mixed=mixed)
            parallel.shard(frozen)
        reference = Reference(frozen, offloaded="reference" in offload and not parallel.needs_equal_microbatches)
    critic: TrainedNetwork | None = None
    if "critic" in needs:
        network = load_critic(run.model, run.seed, device, checkpoint and checkpoint / "critic", mixed=mixed)
        parallel.shard(network)
        offloaded = "critic" in offload and not parallel.needs_equal_microbatches
        critic = TrainedNetwork(network, run.critic.optim, steps, parallel, offloaded=offloaded)
    return Policy(
        run.algorithm, TrainedNetwork(model, run.optim, steps, parallel),
        Limits(run.trainer.micro_batch_size_per_gpu, run.trainer.max_tokens_per_gpu), parallel,
        temperature=run.sampler.temperature, reference=reference, critic=critic,
        critic_warmup=run.trainer.critic_warmup, dropout=run.dropout,
        mismatch=None if run.sampler.logprobs_match_trainer else Mismatch(run.sampler.importance_sampling),
    )  # fmt: skip


def load_reward(run: RunSpec, device: torch.device) -> Reward:
    """The run's reward with its networks loaded, ready to score."""
    return load_reward_models(
        run.reward, device, offloaded=isinstance(run.engine, Torch) and "reward" in run.engine.offload
    )


def _read_splits(run: RunSpec, encoder: Encoder, refused: Path) -> tuple[Rows, Rows]:
    """Training and held-out rows. Rank 0 writes refused rows to a file."""
    with RefusedLog(None if world.RANK else refused) as log:
        read_args = run.algorithm.data, log, run.reward, run.environment
        train, val = (read_rows(encoder, split, *read_args) for split in SPLITS)
    if problems := log.problems(run.data.on_bad_row):
        raise Problems(problems)
    return train, val


def _check_length(run: RunSpec, model: CausalLM) -> None:
    """Raises `Problems` where a sequence may be longer than the model's positions."""
    longest = run.max_sequence_length
    positions = getattr(model.base.config.get_text_config(), "max_position_embeddings", None)
    if positions and longest > positions:
        got = f"prompt and answer may take {longest} tokens, and the model has {positions} positions"
        raise Problems(Problem("data.max_response_length", got, f"use a sum of at most {positions}"))
