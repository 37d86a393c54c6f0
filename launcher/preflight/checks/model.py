"""Checks the model of a run: whether it is here, and whether weights, config and adapters belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from launcher.core.check_result import CheckResult, Level, from_problems
from launcher.core.problems import Problems
from launcher.hubs import huggingface
from launcher.models import adapter, config, fit, size, weights
from launcher.models.dry_load import dry_load
from launcher.models.pretrained import Pretrained, base_folder, folder_problems, weights_of
from launcher.preflight.checks.context import Context
from launcher.rewards.model import RewardModel
from launcher.spec.model import Model
from launcher.spec.run import RunSpec

_MATRICES = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
"""Weight matrices of a layer, which are the same in all families that an architecture can name."""


def check(context: Context) -> Iterator[CheckResult]:
    """Check the policy and reward models; nothing for one that has problems of its own."""
    if not context.model_problems:
        yield from _policy(context)
    if not context.reward_problems:
        for part in context.run.reward.leaves():
            if isinstance(part, RewardModel) and (folder := Path(part.path).expanduser()).is_dir():
                yield from _check_weights(folder, "reward.path", "AutoModelForSequenceClassification")


def _policy(context: Context) -> Iterator[CheckResult]:
    model, shape = context.run.model, context.run.model.shape
    layers: tuple[str, ...] | None = None  # full names of those whose weights are matrices, where they are known
    if shape:
        layers = tuple(f"model.layers.{layer}.{name}" for layer in range(shape.num_hidden_layers) for name in _MATRICES)
    name = f"{model.label}, {_count(size.parameters(shape))} weights" if shape else model.label
    if isinstance(model, Pretrained) and model.on_hub:
        yield from _not_downloaded(model, name, context.missing_level)
        yield from _check_tied(model, None) or _check_targets(context.run, layers)
        return
    folder = None
    if isinstance(model, Pretrained):
        try:
            folder = Path(weights_of(model.path))
        except Problems as problems:
            yield from from_problems(problems.problems)
            return
        yield from _check_folder(model, folder)
        layers = _matrices_of(folder)
    yield from _check_tied(model, folder) or _check_targets(context.run, layers)
    positions = f", {model.positions:,} positions" if model.positions else ""
    yield CheckResult("OK", "model", f"{name}{positions}")


def _matrices_of(folder: Path) -> tuple[str, ...] | None:
    """Full names of the layers whose weights are matrices; None where they are not known."""
    shapes = weights.shapes(folder)
    if shapes is None:
        return None
    matrices = (name for name, of in shapes.items() if name.endswith(".weight") and len(of) == 2)
    return tuple(name.removesuffix(".weight") for name in matrices)


def _not_downloaded(model: Pretrained, name: str, level: Level) -> Iterator[CheckResult]:
    if model.gated and model.source != "modelscope" and not huggingface.has_token():
        message = f"{model.path} is gated, and no token is set"
        yield CheckResult(level, "model.path", message, "accept its licence on the hub and set HF_TOKEN")
    if huggingface.offline():
        message = f"{name}: is not here, and HF_HUB_OFFLINE forbids downloading it"
        yield CheckResult(level, "model", message, f"run rlrun model download {model.path} with a network")
        return
    takes = f" ({size.parameters(model.shape) * size.BFLOAT16 / 1e9:.1f} GB)" if model.shape else ""
    message = f"{name}: is not here and is downloaded first{takes}"
    yield CheckResult("WARN", "model", message, f"rlrun model download {model.path} fetches it now")


def _check_folder(asked: Pretrained, folder: Path) -> Iterator[CheckResult]:
    """Check that the weights in a folder fit its config.json, and adapters their base model."""
    if (folder / adapter.CONFIG).is_file():
        problems, base = adapter.problems(folder), base_folder(folder)
        yield from from_problems(problem.within("model.path") for problem in problems)
        if problems or base is None:
            return
        folder = base
    own_code = asked.trust_remote_code and "auto_map" in (config.read(folder) or {})
    if own_code or asked.is_run:  # a run's checkpoint is verified by its manifest
        return
    yield from _check_weights(folder, "model.path", "AutoModelForCausalLM")


def _check_weights(folder: Path, where: str, loader: str) -> Iterator[CheckResult]:
    """Check that the weights in a folder fit its config.json."""
    node = config.read(folder) or {}
    if problems := folder_problems(folder):
        yield from from_problems(problem.within(where) for problem in problems)
    elif report := dry_load(folder, loader):
        yield from from_problems(fit.problems(report, node, where, weights.read_by_a_loader(folder)))
        yield from from_problems(fit.warnings(report, where), "WARN")
    else:
        message = f"{folder}: the weights could not be compared with config.json"
        yield CheckResult("WARN", where, message, "see that torch and transformers can be imported")


def _check_targets(run: RunSpec, layers: tuple[str, ...] | None) -> Iterator[CheckResult]:
    """Check that the model has the layers that `model.target_modules` names."""
    model, where = run.model, "model.target_modules"
    if not model.lora_rank or model.target_modules == ("all-linear",) or layers is None or run.engine.renames_layers:
        return
    names = sorted({name.rpartition(".")[2] for name in layers})
    fix = f"use all-linear, or some of {', '.join(names)}"
    if isinstance(pattern := model.peft_targets, str):
        try:
            matches = any(re.fullmatch(pattern, name) for name in layers)
        except re.error as error:
            yield CheckResult("FAIL", where, f"{pattern} is no regular expression: {error}", fix)
            return
        if not matches:
            yield CheckResult("FAIL", where, f"{pattern} is the whole name of no layer, such as {layers[0]}", fix)
        return
    missing = [name for name in model.target_modules if name.rpartition(".")[2] not in names]
    if missing:
        yield CheckResult("FAIL", where, f"the model has no layer {', '.join(missing)}", fix)


def _check_tied(model: Model, folder: Path | None) -> list[CheckResult]:
    """Check adapters on an embedding that is tied to the output layer."""
    tied, base = bool(model.shape and model.shape.tie_word_embeddings), folder and (base_folder(folder) or folder)
    problems = adapter.tied_problems(model.peft_targets, base, tied) if model.lora_rank else []
    return from_problems(problem.within("model.target_modules") for problem in problems)


def _count(parameters: int) -> str:
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.3g} {name}"
    return str(parameters)
