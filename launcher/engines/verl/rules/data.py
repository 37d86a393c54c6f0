"""Rows and rewards: what verl finds when it has read the data, or after a whole rollout. Numbers are lines of verl
0.9.1."""

from __future__ import annotations

from math import lcm
from typing import Any

from launcher.core.problems import short_repr, shortened, suggest
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.paths import SEEN
from launcher.engines.verl.rules.saving import rows_of, steps_of
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import ACTOR, AGENT_LOOPS, MODEL, ROLLOUT, RlSizes, is_set, step_for

SOURCES = (
    "openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math_dapo",
    "math", "math_dapo_reasoning", "numina_aops_forum", "numina_synthetic_math", "numina_amc_aime",
    "numina_synthetic_amc", "numina_cn_k12", "numina_olympiads", "codecontests", "apps", "codeforces", "taco",
    "hiyouga/geometry3k", "searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa",
    "searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle",
)  # fmt: skip
"""Values of data_source with a reward of verl's own, beside those that begin with aime."""
MANAGERS = ("naive", "dapo", "gdpo", "remote", "rate_limited")
ENDINGS = (".parquet", ".json", ".jsonl")


def data(run: RlSizes, facts: LaunchFacts) -> Results:
    yield from files(run, ("data.train_files", "data.val_files"), ENDINGS, facts)
    yield from _rows(run, facts)
    yield from _columns(run, facts)
    yield from own_class(run)
    truncation, allowed = run("data.truncation"), ("left", "right", "middle", "error")
    if truncation not in allowed:
        yield RuleResult("WARN", not_one_of("data.truncation", truncation, allowed))


def files(run: Any, keys: tuple[str, ...], endings: tuple[str, ...], facts: LaunchFacts) -> Results:
    """Files of a format that verl reads (rl_dataset.py:178); those of the validation are always read."""
    for key in keys:
        given = run(key)
        paths = [given] if isinstance(given, str) else list(given or ())
        if not paths or not all(is_set(path) for path in paths):
            yield fails(key, "not set, and verl reads it at the start", f"use a file that ends in {endings[0]}")
            continue
        for path in map(str, paths):
            if not path.endswith(endings):
                fix = f"use a file that ends in {' or '.join(endings)}"
                yield fails(key, f"{short_repr(path)} is of no format that verl reads", fix, "bad-file")
            elif facts.existing is not None and "://" not in path and path not in facts.existing:
                yield fails(key, f"there is no {shortened(path)}", SEEN, "not-found")


def own_class(run: Any) -> Results:
    """dataset_utils: the class is loaded by the file and its name."""
    if is_set(run("data.custom_cls.path")) and not is_set(run("data.custom_cls.name")):
        yield fails("data.custom_cls.name", "not set, with data.custom_cls.path", "use the name of the class")


def _rows(run: RlSizes, facts: LaunchFacts) -> Results:
    """trainer_base.py:450, 765: an epoch of no step is a division by zero."""
    rows = rows_of(run, facts)
    if rows == 0:
        fix = "use a larger data.max_prompt_length, or other rows"
        yield fails("data.train_files", "no row is left after the filter", fix, "not-enough")
    elif rows is not None and rows < run.batch:
        got = f"{run.batch} prompts are more than the {rows} rows: an epoch has no step"
        shared = step_for(run.gpus, run.n)
        sizes = (lcm(shared, int(run(f"{ACTOR}.ppo_mini_batch_size"))), shared)
        fitting = [rows // size * size for size in sizes if size <= rows][:1]
        yield fails("data.train_batch_size", got, fitting or [rows], "not-enough")
    if (run("data.val_batch_size") or 0) < 0:
        yield fails("data.val_batch_size", f"{run('data.val_batch_size')} rows", "use null for all rows")
    if run("data.dataloader_num_workers", 0) < 0:
        yield fails("data.dataloader_num_workers", f"{run('data.dataloader_num_workers')} processes", "use 8")
    if (run("data.filter_overlong_prompts_workers") or 0) < 0 and run("data.filter_overlong_prompts"):
        yield fails("data.filter_overlong_prompts_workers", "less than 0 processes", "use 1")
    for name, value in (("max_prompt_length", 1024), ("max_response_length", 512)):
        if run(f"data.{name}") < 1:
            yield fails(f"data.{name}", f"{run(f'data.{name}')} tokens", f"use {value}")
    if facts.val_rows is not None and facts.val_rows < 1:
        got = "no row is left: verl stops where it validates"
        yield fails("data.val_files", got, "use at least 1 row", "not-enough")
    warmup, total = run("trainer.critic_warmup") or 0, steps_of(run, facts)
    if run.needs_critic and total is not None and warmup >= total > 0:  # trainer_base.py:608
        got = f"{warmup} of {total} steps train the critic alone: the actor stays as it is"
        yield warns("trainer.critic_warmup", got, [total // 10])
    elif not run.needs_critic and warmup > 1:
        got = f"{warmup}, and there is no critic: the first {warmup - 1} steps train nothing"
        yield warns("trainer.critic_warmup", got, [0])
    limit = run("data.max_prompt_length")
    if facts.longest_prompt is not None and facts.longest_prompt > limit and not run("data.filter_overlong_prompts"):
        got = f"a prompt has {facts.longest_prompt} tokens: longer ones are cut, or end the run"
        yield warns("data.max_prompt_length", got, [facts.longest_prompt])


def _columns(run: RlSizes, facts: LaunchFacts) -> Results:
    """The dataset checks nothing; the reward fails after the rollout."""
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


def rewards(run: RlSizes, facts: LaunchFacts) -> Results:
    manager = "reward.reward_manager"
    source, name = run(f"{manager}.source"), run(f"{manager}.name")
    if source not in ("register", "importlib"):  # trainer/ppo/reward.py:108
        yield RuleResult("FAIL", not_one_of(f"{manager}.source", source, ("register", "importlib")))
    elif source == "importlib" and not is_set(run(f"{manager}.module.path")):  # :100
        yield fails(f"{manager}.module.path", "not set, with source=importlib", "use the file of the manager")
    elif source == "register" and name in ("batch", "prime"):
        fix = "use naive, and reward.custom_reward_function.path"
        yield fails(f"{manager}.name", f"{name} was removed", fix, "unknown-choice")
    elif source == "register" and name not in MANAGERS:
        yield RuleResult("FAIL", not_one_of(f"{manager}.name", name, MANAGERS))
    yield from _function(run, facts)
    buffer = run("reward.reward_kwargs.overlong_buffer_cfg") or {}
    if source == "register" and name == "dapo":
        yield from _overlong(run)
    elif source == "register" and buffer and buffer.get("enable", True):
        where = "reward.reward_kwargs.overlong_buffer_cfg"
        yield fails(where, f"which the manager {name} does not read", f"use {manager}.name=dapo")


def _function(run: RlSizes, facts: LaunchFacts) -> Results:
    """reward_score/__init__.py:107: a source without a reward fails after the rollout, with another message."""
    function, where = run("reward.custom_reward_function.path"), "reward.custom_reward_function"
    if function is not None:
        if not is_set(run(f"{where}.name")):
            yield fails(f"{where}.name", "not set", "use the function's name, such as compute_score")
        if facts.unaccepted:  # naive.py:75
            got = f"the function takes no {', '.join(facts.unaccepted)}, which verl gives to it with every answer"
            fix = f"add {', '.join(f'{name}=None' for name in facts.unaccepted)}"
            yield fails(f"{where}.name", got, fix)
        return
    if run.reward_model or run("reward.reward_manager.source") == "importlib":
        return
    if facts.unlabelled:
        got = f"{facts.unlabelled:,} rows have no ground truth, and verl scores their answers all the same"
        yield warns("data.val_files", got, "leave them out, or write reward_model.ground_truth", "bad-row")
    splits = {"data.train_files": facts.data_sources or (), "data.val_files": facts.val_data_sources or ()}
    for key, sources in splits.items():
        for source in sorted(source for source in sources if source not in SOURCES and not source.startswith("aime")):
            after = "the first rollout" if key == "data.train_files" else "the first validation"
            got = f"{short_repr(source)} has no reward in verl: every answer fails after {after}"
            known = {"gsm8k": "openai/gsm8k", "math500": "HuggingFaceH4/MATH-500"}
            near = known.get(source.lower()) or next((one for one in SOURCES if one.endswith(f"/{source}")), None)
            own = f"use {where}.path, or reward=exact"
            fix = f"write data_source={near} in the rows, or {own}" if near else own
            yield fails(key, got, fix, "unknown-choice")


def _overlong(run: RlSizes) -> Results:
    """experimental/reward_loop/reward_manager/dapo.py:41."""
    place = "reward.reward_kwargs"
    buffer = run(f"{place}.overlong_buffer_cfg") or {}
    if buffer and buffer.get("enable") is None:  # :39, where each reward worker is made
        yield fails(f"+{place}.overlong_buffer_cfg.enable", "not set, with overlong_buffer_cfg", "use true")
    if not buffer.get("enable", buffer):
        return
    limit, length = run(f"{place}.max_resp_len"), buffer.get("len")
    answer = run("data.max_response_length")
    if limit is None:
        yield fails(f"+{place}.max_resp_len", "not set, with overlong_buffer_cfg.enable", [answer])
    elif length is not None and length > limit:
        got = f"{length} tokens are more than max_resp_len={limit}"
        yield fails(f"{place}.overlong_buffer_cfg.len", got, [max(limit // 4, 1)], "conflicting-settings")
    elif limit != answer:
        got = f"{limit}, and data.max_response_length is {answer}"
        yield warns(f"{place}.max_resp_len", got, [answer], "conflicting-settings")
    if length is None or length <= 0:
        got = "not set" if length is None else f"{length} tokens"
        yield fails(f"{place}.overlong_buffer_cfg.len", got, [max((limit or answer) // 4, 1)])
    if buffer.get("penalty_factor") is None:
        yield fails(f"+{place}.overlong_buffer_cfg.penalty_factor", "not set", "use 1.0")
    if "log" not in buffer:
        yield fails(f"+{place}.overlong_buffer_cfg.log", "not set", "use true")


def multi_turn(run: RlSizes, facts: LaunchFacts) -> Results:
    """Tools are used by the agent loop that is chosen, not by `multi_turn.enable` alone."""
    place, agent = f"{ROLLOUT}.multi_turn", f"{ROLLOUT}.agent.default_agent_loop"
    tools = [run(f"{place}.tool_config_path"), run(f"{place}.function_tool_path")]
    has_column = facts.columns is not None and "agent_name" in facts.columns
    if (run(f"{place}.enable") or any(tools)) and run(agent) == "single_turn_agent" and not has_column:
        got = "single_turn_agent, with multi_turn: tools are not called"
        yield warns(agent, got, "use tool_agent, or rows with a column agent_name", "conflicting-settings")
    yield from _tools(run, facts)
    yield from _agents(run, facts, has_column)


def _agents(run: RlSizes, facts: LaunchFacts, has_column: bool) -> Results:
    """agent_loop.py:678: each row's agent loop is looked up when it is sampled."""
    settings = (f"{ROLLOUT}.agent.agent_loop_config_path", f"{MODEL}.external_lib")
    default, listed = f"{ROLLOUT}.agent.default_agent_loop", facts.agent_loops
    known = {*AGENT_LOOPS, *(listed or {})}
    if listed is not None and not has_column and run(default) not in known and not is_set(run(settings[1])):
        yield RuleResult("FAIL", not_one_of(default, run(default), tuple(sorted(known))))
    others = sorted((facts.agents or frozenset()) - known)
    registered = is_set(run(settings[1])) or (is_set(run(settings[0])) and listed is None)
    if others and not registered:
        got = f"{'not set' if listed is None else shortened(run(settings[0]))}, and rows have agent_name={others[0]}"
        fix = f"use a file that registers it, or {' or '.join(sorted(known))} in the rows"
        yield fails(settings[0], f"{got}, which verl does not know", fix, "unknown-choice")
    for name, target in (listed or {}).items():
        package = target.partition(".")[0]
        if facts.packages and package not in facts.packages and package != "verl":
            got = f"{name} is {short_repr(target)}, which cannot be imported beside verl"
            fix = "write _target_: package.module.Class, and add its folder to PYTHONPATH"
            yield warns(settings[0], got, fix, "not-installed")


def _tools(run: RlSizes, facts: LaunchFacts) -> Results:
    """tool_registry.py:50 and function_tool.py:113: tools are made in each agent-loop worker."""
    place = f"{ROLLOUT}.multi_turn"
    where = f"{place}.function_tool_path"
    if facts.function_tools is not None and not facts.function_tools:
        got = f"no function of {shortened(run(where))} is a tool"
        yield warns(where, got, "write @function_tool above each function that is one")
    for name, fault in (facts.function_tools or {}).items():
        if fault:
            got = f"{name} {fault}: verl makes no tool of it, and ends"
            fix = "give each parameter a type, and describe it under Args: of the docstring"
            yield fails(where, got, fix, "bad-file")
    where = f"{place}.tool_config_path"
    for name, kind in facts.tools:
        package = name.partition(".")[0]
        if kind != "native":  # ToolType
            got = f"{name or 'a tool'} has config.type {kind or 'not set'}, and verl has native alone"
            yield fails(where, got, "write type: native under config of each tool", "unknown-choice")
        if "." not in name:
            yield fails(
                where, f"{short_repr(name)} is not a class path", "write class_name: package.module.Class", "bad-file"
            )
        elif facts.packages and package not in facts.packages and package != "verl":
            got = f"{name} cannot be imported beside verl"
            yield warns(where, got, f"install {package} there, or add its folder to PYTHONPATH", "not-installed")
