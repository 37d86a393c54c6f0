"""The model of a run: whether it is here, and whether weights, tokenizer and adapters belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from launcher.core.check_result import CheckResult, Level, from_problems
from launcher.core.problems import Problems
from launcher.hubs import huggingface
from launcher.models import adapter, config, fit, size, values, weights
from launcher.models.dry_load import dry_load
from launcher.models.pretrained import Pretrained, base_folder, folder_problems, weights_of
from launcher.preflight.checks.context import Context
from launcher.rewards.model import RewardModel
from launcher.spec.model import Model
from launcher.spec.run import RunSpec

_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Those of a layer in every family that an architecture can name."""


def check(context: Context) -> Iterator[CheckResult]:
    """The policy, and reward models. Nothing of one that has problems of its own."""
    if not context.model_problems:
        yield from _policy(context)
    if not context.reward_problems:
        for part in context.run.reward.leaves():
            if isinstance(part, RewardModel) and (folder := Path(part.path).expanduser()).is_dir():
                yield from _fitting(folder, "reward.path", "AutoModelForSequenceClassification")


def _policy(context: Context) -> Iterator[CheckResult]:
    model, shape = context.run.model, context.run.model.shape
    name = f"{model.label}, {_count(size.parameters(shape))} weights" if shape else model.label
    if isinstance(model, Pretrained) and model.on_hub:
        yield from _not_downloaded(model, name, context.missing_level)
        yield from _tied(model, None) or _targets(context.run, _MATRICES if shape else None)
        return
    known: tuple[str, ...] | None = _MATRICES if shape else None
    folder = None
    if isinstance(model, Pretrained):
        try:
            folder = Path(weights_of(model.path))
        except Problems as problems:
            yield from from_problems(problems.problems)
            return
        yield from _weights(model, folder)
        known = _named(folder)
    yield from _tied(model, folder) or _targets(context.run, known)
    positions = f", {model.positions:,} positions" if model.positions else ""
    yield CheckResult("OK", "model", f"{name}{positions}")


def _not_downloaded(model: Pretrained, name: str, level: Level) -> Iterator[CheckResult]:
    if model.gated and "huggingface" in model.hub_order and not huggingface.has_token():
        message = f"{model.path} is gated, and no token is set"
        yield CheckResult(level, "model.path", message, "accept its licence on the hub and set HF_TOKEN")
    if huggingface.offline():
        message = f"{name}: is not here, and HF_HUB_OFFLINE forbids downloading it"
        yield CheckResult(level, "model", message, f"run rlrun model download {model.path} with a network")
        return
    takes = f" ({size.parameters(model.shape) * size.BFLOAT16 / 1e9:.1f} GB)" if model.shape else ""
    message = f"{name}: is not here and is downloaded first{takes}"
    yield CheckResult("WARN", "model", message, f"rlrun model download {model.path} fetches it now")


def _weights(asked: Pretrained, folder: Path) -> Iterator[CheckResult]:
    """Whether the weights in a folder are those of its config.json, and adapters those of their base model."""
    if (folder / adapter.CONFIG).is_file():
        found, base = adapter.problems(folder), base_folder(folder)
        yield from from_problems(problem.within("model.path") for problem in found)
        if found or base is None:
            return
        folder = base
    own_code = asked.trust_remote_code and "auto_map" in (config.read(folder) or {})
    if own_code or asked.is_run:  # a run's checkpoint verifies, and was a model when it was saved
        return
    yield from _fitting(folder, "model.path", "AutoModelForCausalLM")


def _fitting(folder: Path, where: str, loader: str) -> Iterator[CheckResult]:
    """Whether the weights in a folder are those of its config.json."""
    node = config.read(folder) or {}
    if found := folder_problems(folder):
        yield from from_problems(problem.within(where) for problem in found)
    elif report := dry_load(folder, loader):
        broken, doubtful = values.faults(folder)
        found = [problem.within(where) for problem in broken]
        yield from from_problems([*fit.problems(report, node, where, weights.read_by_a_loader(folder)), *found])
        doubtful = [problem.within(where) for problem in doubtful]
        yield from from_problems([*fit.warnings(report, where), *doubtful], "WARN")
    else:
        message = f"{folder}: the weights could not be compared with config.json"
        yield CheckResult("WARN", where, message, "see that torch and transformers can be imported")


def _named(folder: Path) -> tuple[str, ...] | None:
    """The layers of a folder that are matrices, by their whole names; None where they cannot be read."""
    shapes = weights.shapes(folder)
    if shapes is None:
        return None
    matrices = (name for name, shape in shapes.items() if name.endswith(".weight") and len(shape) == 2)
    return tuple(name.removesuffix(".weight") for name in matrices)


def _targets(run: RunSpec, layers: tuple[str, ...] | None) -> Iterator[CheckResult]:
    """Layers that adapters are asked for, and the model does not have."""
    model, where = run.model, "model.target_modules"
    if not model.lora_rank or model.target_modules == ("all-linear",) or layers is None or run.engine.renames_layers:
        return
    known = sorted({name.rpartition(".")[2] for name in layers})
    fix = f"use all-linear, or some of {', '.join(known)}"
    if isinstance(pattern := model.peft_targets, str):
        try:
            fits = layers == _MATRICES or any(re.fullmatch(pattern, name) for name in layers)
        except re.error as error:
            yield CheckResult("FAIL", where, f"{pattern} is no regular expression: {error}", fix)
            return
        if not fits:
            yield CheckResult("FAIL", where, f"{pattern} is the whole name of no layer, such as {layers[0]}", fix)
        return
    absent = [name for name in model.target_modules if name.rpartition(".")[2] not in known]
    if absent:
        yield CheckResult("FAIL", where, f"the model has no layer {', '.join(absent)}", fix)


def _tied(model: Model, folder: Path | None) -> list[CheckResult]:
    """Adapters that are asked for of an embedding which is the output layer, too."""
    tied, base = bool(model.shape and model.shape.tie_word_embeddings), folder and (base_folder(folder) or folder)
    found = adapter.tied_problems(model.peft_targets, base, tied) if model.lora_rank else []
    return from_problems(problem.within("model.target_modules") for problem in found)


def _count(parameters: int) -> str:
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.3g} {name}"
    return str(parameters)
