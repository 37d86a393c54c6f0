"""What `sft_trainer` and `sft_trainer_ray` find after the processes have started; SFT has no checks before that.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher.core.problems import suggest
from launcher.engines.verl.rules.batches import degrees
from launcher.engines.verl.rules.cluster import TRAINER_PACKAGES, loggers, modules, not_installed, visible
from launcher.engines.verl.rules.data import files, own_class
from launcher.engines.verl.rules.engine import engine, megatron, wrapping
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.model import (
    FOLDERS,
    attention,
    ends_in_slash,
    is_default,
    kernels,
    lora,
    template,
)
from launcher.engines.verl.rules.optim import optimizer, warmup
from launcher.engines.verl.rules.paths import held, objects, paths
from launcher.engines.verl.rules.saving import contents, ends_early, folders, rows_of, steps_of
from launcher.engines.verl.rules.sections import not_one_of, refused
from launcher.engines.verl.rules.settings import (
    at,
    data_parallel,
    divisors,
    engine_of,
    model_parallel,
    multiples,
    product,
    sequence_parallel,
)
from launcher.engines.verl.rules.values import STRATEGIES

SCHEDULERS = {"fsdp": "FSDPOptimizerConfig", "megatron": "McoreOptimizerConfig", "veomni": "VeOmniOptimizerConfig",
              "torchtitan": "TorchtitanOptimizerConfig", "automodel": "AutomodelOptimizerConfig"}  # fmt: skip
"""The optimizer's class that each engine takes."""


@dataclass(frozen=True)
class SftSizes:
    """Sizes of an SFT: a batch is counted in rows, which the data-parallel ranks share."""

    config: dict[str, Any]

    def __call__(self, key: str, default: Any = None) -> Any:
        return at(self.config, key, default)

    @property
    def gpus(self) -> int:
        return int(self("trainer.n_gpus_per_node") * self("trainer.nnodes"))

    @property
    def batch(self) -> int:
        return int(self("data.train_batch_size"))

    @property
    def dp(self) -> int:
        return data_parallel(self("engine"), self.gpus)


def sft(config: dict[str, Any], facts: LaunchFacts) -> Results:
    run = SftSizes(config)
    for key, size in (("trainer.n_gpus_per_node", run.gpus), ("data.train_batch_size", run.batch)):
        if size < 1:
            yield fails(key, f"{size}", "use at least 1")
            return
    if wrong := list(degrees(run("engine") or {}, "engine")):
        yield from wrong
        return
    for section in ("engine", "optim", "checkpoint", "profiler"):
        yield from (RuleResult("FAIL", one) for one in refused(run(section), section))
    yield from _engine(run, facts)
    yield from _batch(run, facts)
    yield from _lengths(run, facts)
    yield from _data(run, facts)
    yield from _values(run, facts)
    yield from _packages(run, facts)
    yield from paths(run, facts)
    yield from objects(run, facts)
    yield from visible(run, facts)


def _engine(run: SftSizes, facts: LaunchFacts) -> Results:
    kind = engine_of(run("engine"))[0]
    strategy = run("engine.strategy", kind)
    known = STRATEGIES.get(kind, (kind,))
    if strategy not in known:
        yield RuleResult("FAIL", not_one_of("engine.strategy", strategy, known))
    target = str(run("optim._target_", "")).rpartition(".")[2]
    if target and target != SCHEDULERS.get(kind, target):
        got = f"{target} is not the optimizer of engine={kind}"
        yield fails("optim", got, f"use optim={kind}", "conflicting-settings")
    parallel = model_parallel(run("engine"))
    if kind != "torchtitan" and run.gpus % parallel:
        where = "engine.ulysses_sequence_parallel_size" if kind == "fsdp" else "trainer.n_gpus_per_node"
        fix = divisors(run.gpus, parallel) if kind == "fsdp" else multiples(run.gpus, parallel)
        got = f"{run.gpus} GPUs cannot be shared by {parallel} that hold one model"
        yield fails(where, got, fix, "conflicting-settings")
    packed = ("model.use_remove_padding", bool(run("model.use_remove_padding")))
    yield from engine(run("engine"), "engine", run.gpus, packed=packed)
    if kind == "fsdp":
        yield from wrapping(run("engine"), "engine", facts)
    if kind == "megatron":
        yield from megatron(run("engine"), "engine", facts)
    yield from optimizer(run("optim"), "optim", facts)
    yield from warmup(run("optim"), "optim", steps_of(run, facts))
    yield from lora(run("model"), "model", kind)
    yield from held(run, "model", facts)
    yield from kernels(run("model"), "model")
    yield from attention(run("model"), "model")
    yield from template(run("model"), "model")
    yield from contents(run("checkpoint"), "checkpoint", kind)
    yield from folders(run, facts, uploads=True)


def _batch(run: SftSizes, facts: LaunchFacts) -> Results:
    """sft_trainer.py:232, 340: an epoch of no step is a division by zero."""
    dp, where = run.dp, "data.train_batch_size"
    if run.batch < dp:
        yield fails(where, f"{run.batch} rows are fewer than {dp} ranks", [dp], "conflicting-settings")
        return
    share = run.batch // dp
    if run.batch % dp:
        got = f"{run.batch} rows cannot be shared by {dp} ranks: {share * dp} are trained on"
        yield warns(where, got, multiples(run.batch, dp), "conflicting-settings")
    if not run("data.use_dynamic_bsz"):
        micro = run("data.micro_batch_size_per_gpu")
        if not micro or micro < 1:
            yield fails("data.micro_batch_size_per_gpu", f"{micro}", f"use {divisors(share, 4)[0]}")
        elif share % micro:  # engine/utils.py:125
            got = f"a rank has {share} rows, which cannot be cut into micro-batches of {micro}"
            yield fails("data.micro_batch_size_per_gpu", got, divisors(share, micro), "conflicting-settings")
    rows = rows_of(run, facts)
    if rows is not None and rows // dp < share:
        got = f"{run.batch} rows are more than the {rows} there are: an epoch has no step"
        yield fails(where, got, [rows // dp * dp] if rows >= dp else "use more rows", "not-enough")
    if facts.val_rows is not None and run("data.val_files") and facts.val_rows // dp < share:
        got = f"{facts.val_rows} rows are no whole batch of {run.batch}: val/loss is nan"
        yield warns("data.val_files", got, f"use at least {share * dp} rows", "not-enough")


def _lengths(run: SftSizes, facts: LaunchFacts) -> Results:
    parallel, longest = sequence_parallel(run("engine")), facts.longest_row
    limit, room = run("data.max_length"), run("data.max_token_len_per_gpu")
    if limit < 1:
        yield fails("data.max_length", f"{limit} tokens of a row", "use 2048")
        return
    if longest is not None and longest > limit:
        if run("data.truncation") == "error":  # multiturn_sft_dataset.py:406, in the middle of the run
            yield fails("data.max_length", f"a row has {longest:,} tokens, and truncation=error", [longest], "bad-row")
        elif run("data.truncation") == "left" and run("data.pad_mode") == "no_padding":
            got = "left, which cuts the end of a row with pad_mode=no_padding"
            yield warns("data.truncation", got, "use right, or a larger data.max_length")
    most = min(longest, limit) if longest is not None else None
    if run("data.use_dynamic_bsz") and most is not None and room * parallel < most:  # seqlen_balancing.py:384
        got = f"{room * parallel:,} tokens are fewer than the {most:,} of a row"
        yield fails("data.max_token_len_per_gpu", got, [-(-most // parallel)], "conflicting-settings")
    elif run("data.use_dynamic_bsz") and longest is None and room * parallel < limit:
        got = f"{room * parallel:,} tokens are fewer than data.max_length={limit:,}"
        yield fails("data.max_token_len_per_gpu", got, [-(-limit // parallel)], "conflicting-settings")
    if facts.positions is not None and most is not None and most > facts.positions:
        got = f"a row has {most:,} tokens, and the model {facts.positions:,} positions"
        yield warns("data.max_length", got, [facts.positions], "conflicting-settings")


def _data(run: SftSizes, facts: LaunchFacts) -> Results:
    yield from own_class(run)
    if run("data.custom_cls.path") is None:
        keys = ("data.train_files", *(["data.val_files"] if run("data.val_files") else []))
        yield from files(run, keys, (".parquet",), facts)
        key = run("data.messages_key")
        if facts.columns is not None and key not in facts.columns:
            got = f"the rows have no column {key}"
            fix = "write rows with messages=[{role, content}, ...]"
            if {"prompt", "response"} <= facts.columns or {"question", "answer"} <= facts.columns:
                got += "; prompt and response are not read"
            elif facts.columns:
                fix = suggest(str(key), sorted(facts.columns))
            yield fails("data.messages_key", got, fix, "bad-row")
        if facts.differs_by_turn and not run("data.ignore_input_ids_mismatch"):  # multiturn_sft_dataset.py:456
            written = (
                f"{facts.differs_by_turn} written turn by turn is not what the chat template writes of it as a whole"
            )
            got = f"false, and {written}"
            fix = "use true, with which the turns are trained on as they are written one by one"
            yield fails("data.ignore_input_ids_mismatch", got, fix, "bad-row")
    mode, kind = run("data.pad_mode"), engine_of(run("engine"))[0]
    if mode not in ("right", "no_padding"):
        yield RuleResult("FAIL", not_one_of("data.pad_mode", mode, ("no_padding", "right")))
    elif mode != "no_padding" and kind in ("fsdp", "megatron", "veomni"):  # fsdp/transformer_impl.py:1166
        yield fails("data.pad_mode", f"{mode}, which engine={kind} does not take", "use no_padding", "not-supported")
    if run("data.truncation") not in ("error", "left", "right"):
        yield RuleResult("FAIL", not_one_of("data.truncation", run("data.truncation"), ("error", "left", "right")))
    if (run("data.num_workers", 0) or 0) < 0:
        yield fails("data.num_workers", f"{run('data.num_workers')} processes", "use 8")
    yield from is_default(run("model.path"), "model.path", facts)
    yield from ends_in_slash(run, (f"model.{name}" for name in FOLDERS))
    yield from ends_early(run, facts)


def _values(run: SftSizes, facts: LaunchFacts) -> Results:
    for key in ("trainer.save_freq", "trainer.test_freq"):  # sft_trainer.py:388: modulo
        value = run(key)
        if value == 0:
            yield fails(key, "0, which verl divides by", "use -1 for never")
        elif isinstance(value, str) and value != "after_each_epoch":
            yield RuleResult("FAIL", not_one_of(key, value, ("after_each_epoch",)))
    test = run("trainer.test_freq")
    if (
        not run("data.val_files")
        and test not in (None, 0)
        and (test == "after_each_epoch" or (isinstance(test, int) and test > 0))
    ):
        yield fails("trainer.test_freq", f"{test}, without data.val_files", "use -1, or set data.val_files")
    if run("trainer.total_epochs") < 1:
        yield fails("trainer.total_epochs", f"{run('trainer.total_epochs')}: the run ends without a step", "use 1")
    yield from loggers(run, facts)
    mode, path = run("trainer.resume_mode"), run("trainer.resume_from_path")
    if mode not in ("auto", "disable", "resume_path"):  # checkpoint_handler.py:219
        yield RuleResult("FAIL", not_one_of("trainer.resume_mode", mode, ("auto", "disable", "resume_path")))
    elif mode != "disable" and "global_step_" not in str(path) and (path is not None or mode == "resume_path"):
        yield fails("trainer.resume_from_path", f"{path}", "use the folder .../global_step_N")
    if mode in ("auto", "resume_path") and facts.checkpoint_world not in (None, run.gpus):
        got = f"the checkpoint is of {facts.checkpoint_world} processes, and the run has {run.gpus}"
        yield fails("trainer.n_gpus_per_node", got, "use as many GPUs, or trainer.resume_mode=disable")
    interval = list(run("trainer.profile_interval") or [])
    start, end = interval if len(interval) == 2 else (0, -1)
    if end < start or (start < 0 <= end):  # sft_trainer.py:154
        yield fails("trainer.profile_interval", f"{interval}", "use [FIRST,LAST], or [-1,-1]")
    if run("trainer.device") not in ("cuda", "npu"):
        yield RuleResult("FAIL", not_one_of("trainer.device", run("trainer.device"), ("cuda", "npu")))


def _packages(run: SftSizes, facts: LaunchFacts) -> Results:
    kind = engine_of(run("engine"))[0]
    needed = {"fastapi": "verl", "uvicorn": "verl"}
    if kind in TRAINER_PACKAGES:
        needed[TRAINER_PACKAGES[kind]] = f"engine={kind}"
    attention = (run("model.override_config") or {}).get("attn_implementation", "flash_attention_2")
    if kind == "fsdp" and str(attention).startswith("flash_attention"):
        needed["flash_attn"] = "attention; or use +model.override_config.attn_implementation=sdpa"
    if kind == "fsdp" and product(run("model"), "lora_rank") > 1:
        needed["peft"] = "model.lora_rank"
    yield from not_installed(needed, facts)
    yield from modules(run, ["model.external_lib"], facts)
