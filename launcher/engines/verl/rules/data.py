"""Rows and rewards: what verl finds when it has read the data, or after a whole rollout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import lcm
from pathlib import PurePath
from typing import Any

from launcher.core.problems import short_repr, shortened, suggest
from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import ACTOR, MODEL, BatchSizes, is_set, step_for

SOURCES = (
    "openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math_dapo",
    "math", "math_dapo_reasoning", "numina_aops_forum", "numina_synthetic_math", "numina_amc_aime",
    "numina_synthetic_amc", "numina_cn_k12", "numina_olympiads", "codecontests", "apps", "codeforces", "taco",
    "hiyouga/geometry3k", "searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa",
    "searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle",
)  # fmt: skip
"""Values of data_source with a reward of verl's own, beside those that begin with aime."""
SEEN = "use a whole path that all nodes see"
PATHS = (
    "path", "tokenizer_path", "hf_config_path", "lora_adapter_path", "tool_config_path", "function_tool_path",
    "agent_loop_config_path", "model_path", "dist_checkpointing_path", "resume_from_path",
)  # fmt: skip
"""Last parts of the keys of files and folders that verl reads."""
ELSEWHERE = ("data.tool_config_path", "data.function_tool_path", "reward_model.", "custom_reward_function.",
             f"{MODEL}.path", "model.path")  # fmt: skip
"""Copies of other keys, what verl does not read, and the model, which a plan opens."""
FILES = {".py", ".yaml", ".yml", ".json", ".jsonl", ".parquet"}
"""Endings of relative names that are no model of a hub."""
METRICS, METRICS_OF_MATH = ("reward", "acc"), ("reward", "acc", "score", "pred")
"""What every answer has that one of verl's own functions has scored; the same of math_dapo and aime*."""
DEFAULT_MODEL = "~/models/deepseek-llm-7b-chat"
FUNCTION, FILTER = "reward.custom_reward_function", "algorithm.filter_groups"


def judge_data(run: BatchSizes, facts: LaunchFacts) -> Results:
    yield from judge_files(run, ("data.train_files", "data.val_files"), (".parquet", ".json", ".jsonl"), facts)
    yield from _rows(run, facts)
    yield from _columns(run, facts)
    yield from _function(run, facts)
    if run(f"{FILTER}.enable"):
        yield from _filter(run, facts)
    if run("reward.reward_manager.name") == "dapo":
        yield from _overlong(run)


def judge_files(run: BatchSizes, keys: Sequence[str], endings: tuple[str, ...], facts: LaunchFacts) -> Results:
    """Files of rows that are there, in a format that verl reads."""
    for key in keys:
        given = run(key)
        paths = [given] if isinstance(given, str) else list(given or ())
        if not paths or not all(map(is_set, paths)):
            yield fails(key, "not set, and verl reads it at the start", f"use a file that ends in {endings[0]}")
            continue
        for path in map(str, paths):
            if not path.endswith(endings):
                fix = f"use a file that ends in {' or '.join(endings)}"
                yield fails(key, f"{short_repr(path)} is of no format that verl reads", fix, "bad-file")
            elif facts.existing is not None and "://" not in path and path not in facts.existing:
                yield fails(key, f"there is no {shortened(path)}", SEEN, "not-found")


def judge_paths(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Files and folders that a config names; most are opened after the GPUs are taken."""
    for place in ("model", MODEL, *(["critic.model"] if run.needs_critic else [])):
        path = run(f"{place}.path")
        if path == DEFAULT_MODEL and path not in (facts.existing or ()):
            yield fails(f"{place}.path", f"{path} is verl's default", "use the model that is trained")
        elif isinstance(path, str) and path.endswith("/"):
            got = f"{short_repr(path)}: verl takes no path that ends in a slash"
            yield fails(f"{place}.path", got, f"use {path.rstrip('/') or '/.'}")
    if facts.existing is None:
        return
    unused = (*ELSEWHERE, *run.unused())
    for key, value in _named(run.config, ""):
        if not key.startswith(unused) and _leads_nowhere(value, facts.existing):
            yield fails(key, f"there is no {shortened(value)}", SEEN, "not-found")


def _named(node: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        key = f"{place}.{name}" if place else str(name)
        if isinstance(value, dict):
            yield from _named(value, key)
        elif isinstance(value, str) and value and name in PATHS:
            yield key, value


def _leads_nowhere(value: str, existing: frozenset[str]) -> bool:
    path = value.removeprefix("file://")
    if "://" in path or value in existing or not is_set(value):
        return False
    return os.path.isabs(os.path.expanduser(path)) or path.startswith("./") or PurePath(path).suffix in FILES


def _rows(run: BatchSizes, facts: LaunchFacts) -> Results:
    """An epoch of no step is a division by zero."""
    rows = trained_rows(run, facts)
    if rows == 0:
        fix = "use a larger data.max_prompt_length, or other rows"
        yield fails("data.train_files", "no row is left after the filter", fix, "not-enough")
    elif rows is not None and rows < run.batch:
        got = f"{run.batch} prompts are more than the {rows} rows: an epoch has no step"
        shared = step_for(run.gpus, run.n)
        sizes = (lcm(shared, int(run(f"{ACTOR}.ppo_mini_batch_size"))), shared)
        fitting = [rows // size * size for size in sizes if size <= rows][:1]
        yield fails("data.train_batch_size", got, fitting or [rows], "not-enough")
    if facts.run.val_rows == 0 and run("data.val_files") != run("data.train_files"):  # else it validates with those
        yield fails(
            "data.val_files", "no row is left: verl stops where it validates", "use 1 row or more", "not-enough"
        )
    warmup, total = run("trainer.critic_warmup") or 0, total_steps(run, facts)
    if run.needs_critic and total is not None and warmup >= total > 0:
        got = f"{warmup} of {total} steps train the critic alone: the actor stays as it is"
        yield warns("trainer.critic_warmup", got, [total // 10])


def trained_rows(run: BatchSizes, facts: LaunchFacts) -> int | None:
    """Rows that are trained on: `data.train_max_samples` of them, where it is above 0."""
    rows, most = facts.run.rows, run("data.train_max_samples", -1) or -1
    return min(rows, most) if rows is not None and most > 0 else rows


def total_steps(run: BatchSizes, facts: LaunchFacts) -> int | None:
    """Steps that the schedules are made for."""
    rows, steps = trained_rows(run, facts), run("trainer.total_training_steps")
    return rows // run.batch * run("trainer.total_epochs") if steps is None and rows is not None else steps


def judge_steps(run: BatchSizes, facts: LaunchFacts) -> Results:
    """The last step saves and validates at the end, and the epochs may end before it; a warm-up has to end, too."""
    rows, steps = trained_rows(run, facts), run("trainer.total_training_steps")
    if steps is not None and rows is not None and rows >= run.batch:
        an_epoch, epochs = rows // run.batch, run("trainer.total_epochs")
        if steps > an_epoch * epochs > 0:
            got = f"{epochs} of {an_epoch} steps end before total_training_steps={steps}: nothing is saved at the end"
            yield warns("trainer.total_epochs", got, [-(-steps // an_epoch)], "conflicting-settings")
    total = total_steps(run, facts)
    for section in run.trained if run.sampled else [""]:
        where = f"{section}.optim".lstrip(".")
        warmup, most = run(f"{where}.lr_warmup_steps"), run(f"{where}.lr_decay_steps") or total
        if isinstance(warmup, int) and most is not None and warmup >= most > 0:
            refuses = run.uses_megatron(section or "engine")
            what = "Megatron refuses it" if refuses else "the learning rate never has its value"
            fix = [max(most // 10, 1) if most > 1 else -1]
            found = fails if refuses else warns
            yield found(f"{where}.lr_warmup_steps", f"{warmup} of {most} steps: {what}", fix, "conflicting-settings")


def _columns(run: BatchSizes, facts: LaunchFacts) -> Results:
    """verl's dataset checks nothing, so the reward fails after the rollout."""
    if facts.columns is None or is_set(run("data.custom_cls.path")):
        return
    key = run("data.prompt_key")
    if key not in facts.columns:
        fix = suggest(str(key), sorted(facts.columns))
        yield fails("data.prompt_key", f"the rows have no column {key}", fix, "bad-row")
    for column in ("data_source", "reward_model"):
        if column not in facts.columns and run("reward.reward_manager.source") != "importlib":
            got = f"the rows have no column {column}, which the reward reads after the rollout"
            yield fails("data.train_files", got, f"write rows with {column}", "bad-row")


def _function(run: BatchSizes, facts: LaunchFacts) -> Results:
    """A source without a reward fails after the rollout, with another message."""
    if is_set(run(f"{FUNCTION}.path")):
        if facts.unaccepted:
            got = f"the function takes no {', '.join(facts.unaccepted)}, which verl gives to it with every answer"
            fix = f"add {', '.join(f'{name}=None' for name in facts.unaccepted)}"
            yield fails(f"{FUNCTION}.name", got, fix)
        return
    if run("reward.reward_model.enable") or run("reward.reward_manager.source") == "importlib":
        return
    if facts.run.unlabelled:
        got = f"{facts.run.unlabelled:,} rows have no ground truth, and verl scores their answers all the same"
        yield warns("data.val_files", got, "leave them out, or write reward_model.ground_truth", "bad-row")
    after = {"train": "the first rollout", "val": "the first validation"}
    for split, sources in (("train", facts.run.data_sources), ("val", facts.run.val_data_sources)):
        for source in sorted(sources or ()):
            if source not in SOURCES and not source.startswith("aime"):
                got = f"{short_repr(source)} has no reward in verl: every answer fails after {after[split]}"
                yield fails(f"data.{split}_files", got, _nearest_source(source), "unknown-choice")


def _nearest_source(source: str) -> str:
    known = {"gsm8k": "openai/gsm8k", "math500": "HuggingFaceH4/MATH-500"}
    near = known.get(source.lower()) or next((name for name in SOURCES if name.endswith(f"/{source}")), None)
    own = f"use {FUNCTION}.path, or reward=exact"
    return f"write data_source={near} in the rows, or {own}" if near else own


def _filter(run: BatchSizes, facts: LaunchFacts) -> Results:
    """DAPO's groups are chosen by a reward that is known before training on them."""
    metric, where = run(f"{FILTER}.metric"), f"{FILTER}.metric"
    of_math = all(source.startswith(("math_dapo", "aime")) for source in facts.run.data_sources or ())
    own = is_set(run(f"{FUNCTION}.path")) or run("reward.reward_manager.source") == "importlib"
    if not metric:
        yield fails(where, "not set", "use reward, or acc")
    elif metric in ("seq_reward", "seq_final_reward") or (
        metric not in (METRICS_OF_MATH if of_math else METRICS) and not own
    ):
        got = f"{metric}, which no answer has after the first rollout"
        yield (warns if own else fails)(where, got, "use reward, or acc", "unknown-choice")
    elif metric != "reward" and facts.reward_keys is not None and metric not in facts.reward_keys:
        got = f"{metric}, which the dict of your reward function lacks: it has {', '.join(sorted(facts.reward_keys))}"
        yield fails(where, got, f"use reward, or return {metric} beside score", "unknown-choice")
    if run.n == 1:
        got = "1 answer: algorithm.filter_groups filters nothing"
        yield warns("actor_rollout_ref.rollout.n", got, "use 5", "conflicting-settings")


def _overlong(run: BatchSizes) -> Results:
    """The reward manager `dapo` reads a buffer before the longest answer."""
    place = "reward.reward_kwargs"
    buffer, limit = run(f"{place}.overlong_buffer_cfg") or {}, run(f"{place}.max_resp_len")
    answer = run("data.max_response_length")
    if not buffer or buffer.get("enable") is False:
        return
    for name, value in (("enable", "true"), ("penalty_factor", "1.0"), ("log", "true")):
        if buffer.get(name) is None:
            yield fails(f"+{place}.overlong_buffer_cfg.{name}", "not set, with overlong_buffer_cfg", f"use {value}")
    length = buffer.get("len")
    if limit is None:
        yield fails(f"+{place}.max_resp_len", "not set, with overlong_buffer_cfg.enable", [answer])
    elif limit != answer:
        got = f"{limit}, and data.max_response_length is {answer}"
        yield warns(f"{place}.max_resp_len", got, [answer], "conflicting-settings")
    if length is None or not 0 < length <= (limit or length):
        got = "not set" if length is None else f"{length} tokens are not between 0 and max_resp_len={limit}"
        yield fails(f"{place}.overlong_buffer_cfg.len", got, [max((limit or answer) // 4, 1)])
