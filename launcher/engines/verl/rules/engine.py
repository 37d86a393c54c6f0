"""What trains: settings of an engine and its optimizer that fail when a worker makes them, for RL and SFT alike.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from typing import Any

from launcher.engines.verl.rules.facts import Results, RuleResult, fails
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import at, divisors, engine_of, sequence_parallel

TORCH_OPTIMIZERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD", "SparseAdam",
)  # fmt: skip
"""Names in torch.optim, where FSDP's optimizer is looked up (optimizer.py:339)."""
DTYPES = ("fp32", "float32", "32", "fp16", "float16", "16", "bf16", "bfloat16")
"""torch_dtypes.py:20."""


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
    elif kind == "megatron" and settings.get("use_mbridge") is False:  # megatron/transformer_impl.py:191
        where = f"{place}.megatron" if "megatron" in section else place
        yield fails(f"{where}.use_mbridge", "false: verl has no other way to the weights", "use true")


def optimizer(optim: dict[str, Any] | None, place: str) -> Results:
    """build_optimizer: the class of FSDP's optimizer is looked up by its name."""
    name, package = at(optim, "optimizer"), at(optim, "optimizer_impl")
    if package == "torch.optim" and name not in TORCH_OPTIMIZERS:
        yield RuleResult("FAIL", not_one_of(f"{place}.optimizer", name, TORCH_OPTIMIZERS))
    rate = at(optim, "lr")
    if isinstance(rate, int | float) and rate < 0:
        yield fails(f"{place}.lr", f"{rate}", "use 1e-6")
