"""What trains: settings of an engine and its optimizer that fail when a worker makes them, for RL and SFT alike.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from typing import Any

from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import at, divisors, engine_of, sequence_parallel

TORCH_OPTIMIZERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD", "SparseAdam",
)  # fmt: skip
"""Names in torch.optim, where FSDP's optimizer is looked up (optimizer.py:339)."""
DTYPES = ("fp32", "float32", "32", "fp16", "float16", "16", "bf16", "bfloat16")
"""torch_dtypes.py:20."""
DECAYS = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
"""Of Megatron-core's OptimizerParamScheduler."""


def engine(section: dict[str, Any], place: str, gpus: int, *, packed: tuple[str, bool], early: bool = False) -> Results:
    """An actor, a critic or the engine of SFT. `packed`: the setting that removes padding, and its value; `early`: what
    `validate_config` has said of it already."""
    kind, settings = engine_of(section)
    inner = {"fsdp_config": f"{place}.fsdp_config", "fsdp": f"{place}.fsdp"}
    where = next((inner[name] for name in inner if isinstance(section.get(name), dict)), place)
    if kind == "fsdp":
        size = settings.get("fsdp_size", -1)
        if size == 0 or (0 < size < gpus and gpus % size):  # fsdp/utils.py:47
            got = f"{gpus} GPUs cannot be cut into groups of {size}"
            yield fails(f"{where}.fsdp_size", got, divisors(gpus, max(size, 1)), "conflicting-settings")
        parallel, key = sequence_parallel(section), f"{where}.ulysses_sequence_parallel_size"
        if parallel > 1 and not packed[1] and not early:  # fsdp/transformer_impl.py:149
            yield fails(packed[0], f"false, with {key}={parallel}", "use true", "conflicting-settings")
        dtype = settings.get("model_dtype")
        if dtype is not None and str(dtype) not in DTYPES:
            yield RuleResult("FAIL", not_one_of(f"{where}.model_dtype", dtype, DTYPES))
        for name, dtype in (settings.get("mixed_precision") or {}).items():  # fsdp/transformer_impl.py:391
            if str(dtype) not in DTYPES:
                yield RuleResult("FAIL", not_one_of(f"{where}.mixed_precision.{name}", dtype, DTYPES))
    elif kind == "megatron" and settings.get("use_mbridge") is False:  # megatron/transformer_impl.py:191
        where = f"{place}.megatron" if "megatron" in section else place
        yield fails(f"{where}.use_mbridge", "false: verl has no other way to the weights", "use true")


def wrapping(settings: dict[str, Any], place: str, facts: LaunchFacts) -> Results:
    """fsdp_utils.py:145: the classes that FSDP wraps are those of the model. They are named as the model is."""
    given = at(settings, "wrap_policy.transformer_layer_cls_to_wrap") or ()
    names = [given] if isinstance(given, str) else list(given)
    family = facts.architectures[0].removesuffix("ForCausalLM") if facts.architectures else ""
    if family in ("", *(facts.architectures or ())) or not names:
        return  # not known, or a model of several parts
    if not any(str(name).startswith(family) for name in names):
        got = f"{', '.join(map(str, names))}, and the model is a {family}"
        fix = f"leave it out, or use [{family}DecoderLayer]"
        yield warns(f"{place}.wrap_policy.transformer_layer_cls_to_wrap", got, fix, "unknown-choice")


def megatron(settings: dict[str, Any], place: str, facts: LaunchFacts) -> Results:
    """What Megatron-core refuses when it makes its config and its groups: TransformerConfig.__post_init__,
    parallel_state.initialize_model_parallel."""
    stages, virtual = (settings.get(f"{name}pipeline_model_parallel_size") for name in ("", "virtual_"))
    stages = stages or 1
    if virtual is not None and stages == 1:
        got = f"{virtual}, without pipeline_model_parallel_size"
        yield fails(f"{place}.virtual_pipeline_model_parallel_size", got, "use null", "conflicting-settings")
    elif virtual and facts.layers is not None and facts.layers % stages == 0 and facts.layers % (stages * virtual):
        got = f"{facts.layers} layers cannot be shared by {stages} stages of {virtual} parts"
        fix = divisors(facts.layers // stages, virtual)
        yield fails(f"{place}.virtual_pipeline_model_parallel_size", got, fix, "conflicting-settings")
    experts = settings.get("expert_model_parallel_size") or 1
    if experts > 1 and facts.experts == 0:
        got = f"{experts}, and the model has no experts"
        yield fails(f"{place}.expert_model_parallel_size", got, [1], "conflicting-settings")
    elif experts > 1 and facts.experts is not None and facts.experts % experts:
        got = f"{facts.experts} experts cannot be shared by {experts} GPUs"
        fix = divisors(facts.experts, experts)
        yield fails(f"{place}.expert_model_parallel_size", got, fix, "conflicting-settings")
    inner, where = settings.get("override_transformer_config") or {}, f"{place}.override_transformer_config"
    if inner.get("recompute_granularity") == "full":
        if inner.get("recompute_method") not in ("uniform", "block"):
            got = "not set, with recompute_granularity=full" if inner.get("recompute_method") is None else ""
            got = got or str(inner["recompute_method"])
            yield fails(f"{where}.recompute_method", got, "use uniform", "conflicting-settings")
        if inner.get("recompute_num_layers") is None:
            got = "not set, with recompute_granularity=full"
            yield fails(f"{where}.recompute_num_layers", got, "use 1", "conflicting-settings")
    if settings.get("use_dist_checkpointing") and not settings.get("dist_checkpointing_path"):
        got = "not set, with use_dist_checkpointing"
        yield fails(f"{place}.dist_checkpointing_path", got, "use the folder of the weights", "conflicting-settings")


def optimizer(optim: dict[str, Any] | None, place: str, facts: LaunchFacts) -> Results:
    """build_optimizer: the class of FSDP's optimizer is looked up by its name; Megatron-core knows its own."""
    name, package = at(optim, "optimizer"), at(optim, "optimizer_impl")
    kind = str(at(optim, "_target_")).rpartition(".")[2]
    if kind == "McoreOptimizerConfig":
        if str(name).lower() == "adamw":
            yield fails(f"{place}.optimizer", f"{name}, which Megatron calls adam", "use adam", "unknown-choice")
        if (decay := at(optim, "lr_decay_style")) not in DECAYS:
            yield RuleResult("FAIL", not_one_of(f"{place}.lr_decay_style", decay, DECAYS))
    if kind == "FSDPOptimizerConfig" and at(optim, "lr_warmup_steps", 0) is None:  # fsdp/transformer_impl.py:514
        yield fails(f"{place}.lr_warmup_steps", "null, which FSDP compares with 0", "use -1 for lr_warmup_steps_ratio")
    share, steps = at(optim, "lr_warmup_steps_ratio", 0), at(optim, "lr_warmup_steps", -1)
    if isinstance(share, int | float) and share > 1 and isinstance(steps, int | float) and steps <= 0:
        got = f"{share} times the steps of the run: the learning rate never reaches its value"
        yield fails(f"{place}.lr_warmup_steps_ratio", got, f"use lr_warmup_steps={share:g} for a number of steps")
    library = str(package or "torch").partition(".")[0]
    if facts.packages is not None and library not in {"torch", *facts.packages}:
        got = f"{package}, and {library} is not installed beside verl"
        yield fails(f"{place}.optimizer_impl", got, f"install {library}, or use torch.optim", "not-installed")
    if package == "torch.optim" and name not in TORCH_OPTIMIZERS:
        yield RuleResult("FAIL", not_one_of(f"{place}.optimizer", name, TORCH_OPTIMIZERS))
    rate = at(optim, "lr")
    if isinstance(rate, int | float) and rate < 0:
        yield fails(f"{place}.lr", f"{rate}", "use 1e-6")
