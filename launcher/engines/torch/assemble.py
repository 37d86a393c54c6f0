"""From a RunSpec to the objects that train it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from launcher.data.refused import RefusedLog
from launcher.engines.torch import rows, world
from launcher.engines.torch.decode import Decoder
from launcher.engines.torch.evaluate import Validation
from launcher.engines.torch.loop import Schedule, Source, Training
from launcher.engines.torch.model import CausalLM, load
from launcher.engines.torch.policy import Policy
from launcher.engines.torch.rows import Rows
from launcher.engines.torch.save import Position, Saver, Written, load_optimizer, position_of
from launcher.engines.torch.sources import Demonstrations, Order, Rollouts
from launcher.engines.torch.tokens import Encoder
from launcher.events import Event, Loaded
from launcher.problems import Problems
from launcher.spec.run import RunSpec


@dataclass(frozen=True)
class Parts:
    """What a run trains with."""

    rows: Rows
    held_out: Rows
    policy: Policy
    source: Source
    validation: Validation | None
    steps: int


def device(run: RunSpec, num_threads: int) -> torch.device:
    transformers_logging.disable_progress_bar()
    if run.hardware.is_cpu:
        torch.set_num_threads(num_threads or max((os.cpu_count() or 1) // run.hardware.processes_per_node, 1))
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Problems([f"hardware.device: {run.hardware.device} needs CUDA, and this machine has none; cpu would do"])
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(chosen)
    return chosen


def parts(run: RunSpec, device: torch.device, checkpoint: Path | None, refused: Path) -> Parts:
    """Read the rows, load the model, and take up a checkpoint's state where one is given."""
    model = load(run.model, run.seed, device, checkpoint and checkpoint / "policy")
    _check_length(run, model)
    train_rows, held_out = _read(run, Encoder(model.tokenizer, run.data), refused)
    order = Order(len(train_rows.rows), run.data.train_batch_size, run.seed, run.data.shuffle)
    if order.rows < order.batch:
        raise Problems([f"data.train_batch_size: {order.batch} rows, and the data has {order.rows}; fewer would do"])
    steps = run.trainer.total_training_steps or order.steps_per_epoch * run.trainer.total_epochs
    reference = load(run.model, run.seed, device) if "reference" in run.algorithm.needs else None
    policy = Policy(
        run.algorithm, model, run.optim, micro=run.trainer.micro_batch_size_per_gpu, steps=steps,
        temperature=run.sampler.temperature if run.algorithm.data == "prompts" else 1.0, reference=reference,
    )  # fmt: skip
    if checkpoint:
        _take_up(policy, checkpoint, order)
    decoder = Decoder(model, run.sampler, run.data.max_response_length)
    source: Source = (
        Rollouts(train_rows, order, decoder, run.reward, run.seed)
        if policy.sampled
        else Demonstrations(train_rows, order, model)
    )
    validation = Validation(held_out, policy, decoder, run.reward, run.seed, run.data.val_batch_size)
    return Parts(train_rows, held_out, policy, source, validation if held_out.rows else None, steps)


def _read(run: RunSpec, encoder: Encoder, refused: Path) -> tuple[Rows, Rows]:
    """Training and held-out rows. Rank 0 keeps the refused ones in a file."""
    kind = run.algorithm.data
    with RefusedLog(None if world.RANK else refused) as log:
        read = rows.read(encoder, "train", kind, log), rows.read(encoder, "val", kind, log)
    if log.refused and run.data.on_bad_row == "error":
        raise Problems(log.lines())
    return read


def _check_length(run: RunSpec, model: CausalLM) -> None:
    """A sequence must fit the positions that the model knows."""
    longest = run.data.max_prompt_length + run.data.max_response_length
    known = getattr(model.module.config.get_text_config(), "max_position_embeddings", None)
    if known and longest > known:
        raise Problems(
            [f"data.max_response_length: prompt and answer may take {longest} tokens, and the model knows {known}"
             f" positions; a sum of at most {known} would do"]
        )  # fmt: skip


def _take_up(policy: Policy, checkpoint: Path, order: Order) -> None:
    position = position_of(checkpoint)
    if position.rows != order.rows:
        raise Problems([f"data: the run began with {position.rows} training rows and finds {order.rows} now"])
    load_optimizer(policy, checkpoint)


def loaded(parts: Parts) -> Loaded:
    return Loaded(
        rows=len(parts.rows.rows),
        refused=parts.rows.refused,
        val_rows=len(parts.held_out.rows),
        val_refused=parts.held_out.refused,
        steps_per_epoch=parts.source.order.steps_per_epoch,
        steps=parts.steps,
    )


def training(
    run: RunSpec,
    parts: Parts,
    folder: Path,
    start: int,
    emit: Callable[[Event], None],
    asked_to_stop: Callable[[], bool],
    sync: Callable[[], None],
) -> Training:
    saver = Saver(folder / "checkpoints", parts.policy, run.trainer.keep_last)
    order = parts.source.order

    def save(step: int) -> Written:
        sync()  # what was told of the steps must outlive them
        return saver.save(Position(step, run.seed, order.epoch(step), order.rows))

    schedule = Schedule(parts.steps, start, run.trainer.test_freq, run.trainer.save_freq)
    return Training(run, parts.policy, parts.source, parts.validation, schedule, emit, save, asked_to_stop)
