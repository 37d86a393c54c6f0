"""What trains: settings of an engine and its optimizer that fail when a worker makes them, for RL and SFT alike.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from typing import Any

from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import at, divisors, engine_of, sequence_parallel

DTYPES = ("fp32", "float32", "32", "fp16", "float16", "16", "bf16", "bfloat16")
"""torch_dtypes.py:20."""
PRECISIONS = ("param_dtype", "reduce_dtype", "buffer_dtype")
_LAYER = "DecoderLayer"
FAMILIES = (
    "Gemma", "Gemma2", "Gemma3", "Glm", "Glm4", "Llama", "Mistral", "Mixtral", "Olmo2", "Olmo3", "Phi", "Phi3",
    "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "DeepseekV2", "DeepseekV3", "SmolLM3", "GptOss",
)  # fmt: skip
"""Models of transformers whose layers are called FAMILYDecoderLayer."""
PARTS = (_LAYER, "Attention", "MLP", "SparseMoeBlock", "MoE", "Experts", "Model")
"""Other parts of theirs that can be wrapped."""


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
            if name not in PRECISIONS:
                yield RuleResult("WARN", not_one_of(f"{where}.mixed_precision.{name}", name, PRECISIONS))
            elif str(dtype) not in DTYPES:
                yield RuleResult("FAIL", not_one_of(f"{where}.mixed_precision.{name}", dtype, DTYPES))
    elif kind == "megatron" and settings.get("use_mbridge") is False:  # megatron/transformer_impl.py:191
        where = f"{place}.megatron" if "megatron" in section else place
        yield fails(f"{where}.use_mbridge", "false: verl has no other way to the weights", "use true")


def wrapping(settings: dict[str, Any], place: str, facts: LaunchFacts) -> Results:
    """fsdp_utils.py:145: the classes that FSDP wraps are those of the model. They are named as the model is."""
    given = at(settings, "wrap_policy.transformer_layer_cls_to_wrap") or ()
    names = [given] if isinstance(given, str) else list(map(str, given))
    family = facts.architectures[0].removesuffix("ForCausalLM") if facts.architectures else ""
    if family in ("", *(facts.architectures or ())) or not names or at(settings, "wrap_policy.min_num_params"):
        return  # not known, a model of several parts, or wrapped by size
    where = f"{place}.wrap_policy.transformer_layer_cls_to_wrap"
    got, fix = f"{', '.join(names)}, and the model is a {family}", f"leave it out, or use [{family}DecoderLayer]"
    others = [name for name in names if any(name == f"{other}{_LAYER}" for other in FAMILIES if other != family)]
    if family in FAMILIES and len(others) == len(names):
        yield fails(where, got, fix, "unknown-choice")
    elif not any(name.startswith(family) for name in names):
        yield warns(where, got, fix, "unknown-choice")
    elif family in FAMILIES and not {f"{family}{part}" for part in PARTS} & {*names}:
        yield warns(where, f"{', '.join(names)}, which is probably no class of the model", fix, "unknown-choice")


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
