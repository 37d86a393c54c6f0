"""Checks free disk space against the size of checkpoints and downloads."""

from __future__ import annotations

import os
from collections.abc import Iterator

from launcher.core import machine
from launcher.core.check_result import CheckResult, Level
from launcher.core.problems import error_message
from launcher.models import size, store
from launcher.models.pretrained import Pretrained
from launcher.preflight.checks.context import Context, root_of
from launcher.spec.run import RunSpec

FILES = 100  # files of a run: logs, samples, checkpoints
SPARE = 1.02  # factor for tokenizers, logs and names beside the tensors


def check(context: Context) -> Iterator[CheckResult]:
    """Free space for checkpoints and downloads; nothing where the run's folder cannot be made."""
    if context.folder_problems:
        return
    run, n_saved = context.run, context.steps.checkpoints or None
    n_bytes = checkpoint_bytes(run)
    try:
        free = machine.free_disk_bytes(root_of(run))
    except OSError as error:
        message = f"the free disk space is unknown: {error_message(error)}"
        yield CheckResult("FAIL", "trainer.run_root", message, "use another folder")
        return
    if (inodes := machine.free_inodes(root_of(run))) is not None and inodes < FILES:
        message = f"the disk of {root_of(run)} has room for {inodes} more files (inodes), and a run writes {FILES}"
        yield CheckResult(context.missing_level, "disk", message, "use a trainer.run_root on another disk")
        return
    yield from _check_download(run, context.missing_level)
    if n_bytes is None:
        yield CheckResult("OK", "disk", f"{_gb(free)} free; the model's size is not known yet")
        return
    n_kept = run.trainer.keep_last + run.trainer.keep_best
    n_kept = min(n_kept, n_saved) if n_saved else n_kept
    at_once = n_kept + (1 if n_saved is None or n_saved > n_kept else 0)  # a new one is written before an old one goes
    message = f"{at_once} checkpoint{'s' if at_once > 1 else ''} of {_gb(n_bytes)} at a time, {_gb(free)} free"
    size_on_disk = n_bytes * SPARE
    if int(size_on_disk * at_once) <= free:
        yield CheckResult("OK", "disk", message)
        return
    fits = max(int(free / size_on_disk) - 1 - run.trainer.keep_best, 0)
    fewer = f"trainer.keep_last={fits} or " if 0 < fits < run.trainer.keep_last else ""
    once = "trainer.save_freq=-1 or " if size_on_disk <= free and run.trainer.save_freq > 0 else ""
    fix = f"use {fewer}{once}a trainer.run_root on a larger disk"
    yield CheckResult(context.missing_level, "disk", message, fix)


def _check_download(run: RunSpec, level: Level) -> Iterator[CheckResult]:
    model = run.model
    if not isinstance(model, Pretrained) or not model.on_hub:
        return
    root = store.root()
    existing = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        message = f"{model.path} is downloaded to {root}, which cannot be written"
        yield CheckResult(level, "disk", message, "set RLRUN_MODELS to a folder that can be")
    if model.shape is None:
        return
    need = size.parameters(model.shape) * size.BFLOAT16
    if need > (free := machine.free_disk_bytes(root)):
        message = f"{model.path} has {_gb(need)}, and {_gb(free)} are free in {root}"
        yield CheckResult(level, "disk", message, "set RLRUN_MODELS to a folder on a larger disk")


def checkpoint_bytes(run: RunSpec) -> int | None:
    """Bytes of a checkpoint: weights and the optimizer's two moments, and those of a critic; None if unknown."""
    shape = run.model.shape
    if shape is None:
        return None
    n_parameters = size.parameters(shape)
    n_trained = size.lora_parameters(shape, run.model.lora_rank) if run.model.lora_rank else n_parameters
    return 3 * size.BYTES[run.model.dtype] * (n_trained + n_parameters * ("critic" in run.algorithm.needs))


def _gb(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 5e7 else f"{count / 1e6:,.1f} MB"
