"""The optimizer and its schedule: what its class refuses when a worker makes it, and values that train nothing.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.core.problems import nearest
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import at

_SHARED = ("lr", "weight_decay", "maximize", "differentiable")
_ADAM = (*_SHARED, "betas", "eps", "foreach", "capturable")
TORCH_OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "ASGD": (*_SHARED, "lambd", "alpha", "t0", "foreach", "capturable"),
    "Adadelta": (*_SHARED, "rho", "eps", "foreach", "capturable"),
    "Adafactor": ("lr", "weight_decay", "beta2_decay", "eps", "d", "foreach", "maximize"),
    "Adagrad": (*_SHARED, "lr_decay", "initial_accumulator_value", "eps", "foreach", "fused"),
    "Adam": (*_ADAM, "amsgrad", "fused", "decoupled_weight_decay"),
    "AdamW": (*_ADAM, "amsgrad", "fused"),
    "Adamax": _ADAM,
    "NAdam": (*_ADAM, "momentum_decay", "decoupled_weight_decay"),
    "RAdam": (*_ADAM, "decoupled_weight_decay"),
    "RMSprop": (*_SHARED, "alpha", "eps", "momentum", "centered", "foreach", "capturable"),
    "SGD": (*_SHARED, "momentum", "dampening", "nesterov", "foreach", "fused"),
}
"""Optimizers of torch.optim that can be made as verl makes one (optimizer.py:299), with their arguments."""
UNUSABLE = {
    "LBFGS": "takes no weight_decay, and a closure for each step",
    "Muon": "takes matrices alone, and a model has vectors too",
    "Rprop": "takes no weight_decay, which verl gives to it",
    "SparseAdam": "takes no weight_decay, which verl gives to it",
}
"""Optimizers of torch.optim that cannot."""
MEGATRON = ("adam", "sgd", "muon", "dist_muon", "adaptive_muon", "soap", "lion")
DECAYS = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
"""Of Megatron-core's OptimizerParamScheduler."""
INCREASES = ("constant", "linear", "cosine")
"""Of its weight decay."""


def optimizer(optim: dict[str, Any] | None, place: str, facts: LaunchFacts) -> Results:
    """build_optimizer: the class of FSDP's optimizer is looked up by its name; Megatron-core knows its own."""
    kind = str(at(optim, "_target_")).rpartition(".")[2]
    if kind == "McoreOptimizerConfig":
        yield from _of_megatron(optim, place)
    if kind == "FSDPOptimizerConfig" and at(optim, "lr_warmup_steps", 0) is None:  # fsdp/transformer_impl.py:514
        yield fails(f"{place}.lr_warmup_steps", "null, which FSDP compares with 0", "use -1 for lr_warmup_steps_ratio")
    share, steps = at(optim, "lr_warmup_steps_ratio", 0), at(optim, "lr_warmup_steps", -1)
    if isinstance(share, int | float) and share > 1 and isinstance(steps, int | float) and steps <= 0:
        got = f"{share} times the steps of the run: the learning rate never reaches its value"
        yield fails(f"{place}.lr_warmup_steps_ratio", got, f"use lr_warmup_steps={share:g} for a number of steps")
    package = at(optim, "optimizer_impl")
    library = str(package or "torch").partition(".")[0]
    if facts.packages is not None and library not in {"torch", *facts.packages}:
        got = f"{package}, and {library} is not installed beside verl"
        yield fails(f"{place}.optimizer_impl", got, f"install {library}, or use torch.optim", "not-installed")
    if package == "torch.optim":
        yield from _of_torch(optim, place)
    yield from _numbers(optim, place, kind)


def warmup(optim: dict[str, Any] | None, place: str, total: int | None) -> Results:
    """Steps until the learning rate has its value (torch_functional.py:712, 768), which Megatron-core refuses where the
    decay does not end after them (utils/megatron/optimizer.py:256)."""
    steps, most = at(optim, "lr_warmup_steps"), at(optim, "lr_decay_steps") or total
    if not _is_number(steps) or most is None or not steps >= most > 0:
        return
    refuses = str(at(optim, "_target_")).endswith("McoreOptimizerConfig")
    got = f"{steps} of {most} steps: {'Megatron refuses it' if refuses else 'the learning rate never has its value'}"
    fix = [max(most // 10, 1) if most > 1 else -1]
    yield (fails if refuses else warns)(f"{place}.lr_warmup_steps", got, fix, "conflicting-settings")


def _of_torch(optim: dict[str, Any] | None, place: str) -> Results:
    name, given = at(optim, "optimizer"), at(optim, "override_optimizer_config") or {}
    if name in UNUSABLE:
        yield fails(f"{place}.optimizer", f"{name}, which {UNUSABLE[name]}", "use AdamW or SGD", "not-supported")
    elif name not in TORCH_OPTIMIZERS:
        yield RuleResult("FAIL", not_one_of(f"{place}.optimizer", name, (*TORCH_OPTIMIZERS,)))
    else:
        for argument in given:
            if argument not in TORCH_OPTIMIZERS[name]:
                got = f"torch.optim.{name} takes no {argument}"
                near = nearest(argument, TORCH_OPTIMIZERS[name])
                fix = f"use {near}" if near else f"use one of {', '.join(sorted(TORCH_OPTIMIZERS[name]))}"
                yield fails(f"{place}.override_optimizer_config.{argument}", got, fix, "unknown-setting")


def _of_megatron(optim: dict[str, Any] | None, place: str) -> Results:
    """OptimizerParamScheduler.__init__ and get_wd, of Megatron-core."""
    name = str(at(optim, "optimizer")).lower()
    if name == "adamw":
        got = f"{at(optim, 'optimizer')}, which Megatron calls adam"
        yield fails(f"{place}.optimizer", got, "use adam", "unknown-choice")
    elif name not in MEGATRON:
        yield RuleResult("WARN", not_one_of(f"{place}.optimizer", name, MEGATRON))
    for key, allowed in (("lr_decay_style", DECAYS), ("weight_decay_incr_style", INCREASES)):
        if (found := at(optim, key, allowed[0])) not in allowed:
            yield RuleResult("FAIL", not_one_of(f"{place}.{key}", found, allowed))
    rate = at(optim, "lr")
    for key in ("lr_warmup_init", "min_lr"):
        least = at(optim, key) or 0
        if _is_number(rate) and _is_number(least) and not 0 <= least <= max(rate, 0):
            got = f"{least}, and the learning rate is {rate}: it is between 0 and that"
            yield fails(f"{place}.{key}", got, "use 0", "conflicting-settings")


def _numbers(optim: dict[str, Any] | None, place: str, kind: str) -> Results:
    """Numbers that a class of torch.optim or a schedule refuses, or that make every update nothing."""
    rate, decay = at(optim, "lr"), at(optim, "weight_decay")
    if _is_number(rate) and rate < 0:
        yield fails(f"{place}.lr", f"{rate}", "use 1e-6")
    elif rate == 0:
        yield warns(f"{place}.lr", "0: the model stays as it is", "use 1e-6")
    if _is_number(decay) and decay < 0:
        yield fails(f"{place}.weight_decay", f"{decay}", "use 0.01")
    betas = at(optim, "betas")
    if isinstance(betas, Sequence) and not (
        len(betas) == 2 and all(_is_number(beta) and 0 <= beta < 1 for beta in betas)
    ):
        yield fails(f"{place}.betas", f"{list(betas)}: there are two, from 0 to below 1", "use [0.9,0.999]")
    name = "grad_clip" if at(optim, "grad_clip") is not None else "clip_grad"  # optimizer.py:59: the old name
    clip = at(optim, name)
    if _is_number(clip) and (clip < 0 or (clip == 0 and kind != "McoreOptimizerConfig")):
        got = f"{clip}: all gradients become 0" if clip == 0 else f"{clip}: the model is trained away from the rewards"
        fix = "use 0 for no limit, or 1.0" if kind == "McoreOptimizerConfig" else "use 1.0, or 1e9 for no limit"
        yield fails(f"{place}.{name}", got, fix)
    least = at(optim, "min_lr_ratio")
    scheduled = kind == "AutomodelOptimizerConfig" or at(optim, "lr_scheduler_type") == "cosine"
    if scheduled and _is_number(least) and not 0 <= least <= 1:  # torch_functional.py:749
        yield fails(f"{place}.min_lr_ratio", f"{least} is no share of the learning rate", "use 0.1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
