"""Checks of a run of verl before a GPU is held. Neither verl nor torch is loaded in this process.

In this order: the rows' files, keys and values against verl's config (`config`), sizes and settings that verl refuses
late or does not read (`rules`), and where nothing has failed and verl is installed, its own checks (`ask`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.names.table import table
from launcher.core.bounded_parse import parse_json
from launcher.core.check_result import CheckResult, any_failed, from_problems
from launcher.core.files import read_file
from launcher.core.overrides import key_of
from launcher.core.problems import Problem, shortened
from launcher.engines.verl import ask, words
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.config.defaults import VERSION
from launcher.engines.verl.rules import judge
from launcher.engines.verl.rules.facts import LaunchFacts
from launcher.engines.verl.rules.settings import ACTOR, ROLLOUT, at
from launcher.models.config import read
from launcher.models.pretrained import Pretrained
from launcher.rewards.python import Python
from launcher.spec.data import make_answer
from launcher.spec.engine import RunFacts
from launcher.spec.run import RunSpec

if TYPE_CHECKING:
    from launcher.engines.verl import Verl

FILES = {".py", ".yaml", ".yml", ".json", ".jsonl", ".parquet"}
"""Suffixes of relative paths that cannot be a model on a hub."""
ANYWHERE = Path("/run")
"""Stands for the run's folder in the arguments that verl checks, so that equal settings are checked once."""
REGISTERED = (
    "trainer.device",
    f"{ROLLOUT}.name",
    f"{ACTOR}.policy_loss.loss_mode",
    "algorithm.adv_estimator",
    f"{ROLLOUT}.agent.agent_loop_config_path",
)
"""Settings to whose names a module in VERL_USE_EXTERNAL_MODULES may add: with one, their problems are warnings."""


def check(engine: Verl, run: RunSpec, facts: RunFacts, python: str) -> Iterator[CheckResult]:
    probed = ask.probe(python)
    if isinstance(probed, Problem):
        if facts.here:
            yield from from_problems([probed])
            return
        probed = ask.UNKNOWN
    yield from _micro_batch_of_verl(run)
    yield from _other_version(probed, python, facts.here)
    results = _static_results(engine, run, facts, probed)
    accepted = False
    if probed.version and (probed.version != VERSION or not any_failed(results)):
        arguments = words.arguments(run, engine, ANYWHERE)
        refusal = ask.ask(python, probed.version, words.program(run), arguments, engine.env)
        accepted = refusal is None
        results = [*results, refusal] if refusal else [replace(result, level="WARN") for result in results]
    yield from results
    if not any_failed(results):
        where = f"verl {probed.version} in {python}" if probed.version else f"verl {VERSION}"
        how = "" if accepted else ", as far as its keys and sizes tell"
        count = len(words.arguments(run, engine, facts.folder))
        yield CheckResult("OK", "engine", f"{where} accepts its {count} arguments{how}")


def _static_results(engine: Verl, run: RunSpec, facts: RunFacts, installed: ask.VerlEnvironment) -> list[CheckResult]:
    """Results of checking keys and types, and where these have no problem, of the rules."""
    composed = compose(words.arguments(run, engine, facts.folder), words.program(run))
    results = [*from_problems(map(_named, composed.problems)), *from_problems(map(_named, composed.notes), "WARN")]
    if not composed.problems:
        launch_facts = LaunchFacts(facts, run.model.shape, installed.packages if installed.version else None)
        results += _apply_rules(composed.config, launch_facts, bool(engine.env.get(words.PLUGINS)))
        results += from_problems(_hidden_gpus(engine, run))
        results += from_problems(map(_named, _reward_problems(run, facts, composed.config)))
        results += from_problems(_missing_paths(engine.with_absolute_paths().extra), "FAIL" if facts.here else "WARN")
        results += from_problems(_critic_problems(composed.config) if run.has_critic else ())
    return results


def _micro_batch_of_verl(run: RunSpec) -> Iterator[CheckResult]:
    """The setting is the largest size that fits in memory; verl needs a divisor of the update's rows."""
    requested, used, rows = run.trainer.micro_batch_size_per_gpu, run.micro_batch_rows, run.sequences_per_update
    if not run.trainer.max_tokens_per_gpu and used < min(requested, rows):
        got = f"{requested} does not divide the {rows} sequences of an update in one process, so verl gets {used}"
        larger = next((size for size in range(requested, rows + 1) if rows % size == 0), rows)
        yield CheckResult("WARN", "trainer.micro_batch_size_per_gpu", got, f"use {used} or {larger}")


def _other_version(installed: ask.VerlEnvironment, python: str, here: bool) -> Iterator[CheckResult]:
    if installed == ask.UNKNOWN or installed.version == VERSION:
        return
    if installed.version is None:
        fix = f"use {python} -m pip install 'verl[vllm]=={VERSION}', or engine.python=PYTHON of its environment"
        yield CheckResult("FAIL" if here else "WARN", "engine.python", f"{python} has no verl", fix)
        return
    got = f"verl {installed.version} is installed; what is judged without it are the arguments of {VERSION}"
    yield CheckResult("WARN", "engine.python", got, f"use verl {VERSION}")


def _apply_rules(config: dict[str, object], facts: LaunchFacts, plugins: bool) -> Iterator[CheckResult]:
    """Results of the rules; problems with what `plugins` may register or replace are warnings."""
    for result in judge(config, facts):
        problem = result.problem
        by_plugin = plugins and (problem.where in REGISTERED or problem.code == "not-installed")
        yield from from_problems([_named(problem)], "WARN" if by_plugin else result.level)


def _named(problem: Problem) -> Problem:
    """The problem with rlrun's setting before verl's key, where there is exactly one: that is what was typed."""
    meanings = table().named.get(problem.where, ())
    ours = {meaning.ours for meaning in meanings if len(meaning.ours) == 1}
    if len(ours) != 1:
        return problem
    ((setting,),) = ours
    return problem if setting == problem.where else replace(problem, where=f"{setting} ({problem.where})")


def _hidden_gpus(engine: Verl, run: RunSpec) -> Iterator[Problem]:
    """A problem where the run's own CUDA_VISIBLE_DEVICES leaves fewer GPUs to Ray than it trains on."""
    value, needed = engine.env.get("CUDA_VISIBLE_DEVICES"), run.hardware.n_gpus_per_node
    if value is None or run.cluster.remote_address:
        return
    count = len([device for device in value.split(",") if device.strip() not in ("", "-1")])
    if count < needed:
        got = f"{needed} GPUs, and CUDA_VISIBLE_DEVICES shows {count} of this machine's"
        yield Problem("hardware.n_gpus_per_node", got, f"use {count}" if count else "", "not-enough")


def _reward_problems(run: RunSpec, facts: RunFacts, config: dict[str, object]) -> Iterator[Problem]:
    """Arguments of verl that the user's own function does not accept, and a key that its dict lacks where groups are
    filtered by it; verl finds them only after a whole rollout."""
    reward, function = run.reward, "reward.custom_reward_function.name"
    if not isinstance(reward, Python) or reward.problems() or at(config, "reward.reward_manager.source") != "register":
        return
    if names := reward.unaccepted():
        got = f"the function takes no {', '.join(names)}, which verl gives to it with every answer"
        fix = f"add {', '.join(f'{name}=None' for name in names)}"
        yield Problem(function, got, fix, "conflicting-settings")
    elif facts.example is not None and at(config, "algorithm.filter_groups.enable"):
        where = "algorithm.filter_groups.metric"
        keys = deepcopy(reward).keys_of(make_answer(facts.example, "1"))  # processes that it starts end with the copy
        if keys is not None and (metric := at(config, where)) not in ("reward", *keys):
            got = f"{metric}, which the dict of your reward function lacks: it has {', '.join(sorted(keys))}"
            yield Problem(where, got, f"use reward, or return {metric} beside score", "unknown-choice")


def _critic_problems(config: dict[str, object]) -> Iterator[Problem]:
    """A critic whose tokens are not the policy's; checked where both folders are local."""
    where = "critic.model.path"
    models = [Pretrained(path=str(at(config, key))).here for key in ("actor_rollout_ref.model.path", where)]
    if models[0] == models[1] or any(model.on_hub for model in models):
        return
    try:
        nodes = [parse_json(read_file(model.folder / "tokenizer.json")) for model in models]
        tokens = [
            (node["model"]["vocab"], [(item["id"], item["content"]) for item in node["added_tokens"]]) for node in nodes
        ]
    except (OSError, ValueError, KeyError, TypeError):  # the check of the model reports it
        return
    highest_id = max(len(tokens[0][0]) - 1, *(number for number, _ in tokens[0][1]))
    size = (read(models[1].folder) or {}).get("vocab_size")
    got = f"its vocab_size is {size}, and the policy's tokens have ids up to {highest_id}"
    if tokens[0] != tokens[1]:
        got = "its tokenizer has other tokens than the policy's"
    if tokens[0] != tokens[1] or (isinstance(size, int) and size <= highest_id):
        yield Problem(where, got, "use a critic with the policy's tokenizer and vocabulary", "not-supported")


def _missing_paths(typed: Sequence[str]) -> Iterator[Problem]:
    """Missing files and folders that arguments name; verl opens most of them after it has taken the GPUs. It runs in a
    folder of the run, so a relative path that does not exist from here does not exist there."""
    for word in typed:
        key, value = key_of(word), word.partition("=")[2].strip("'\"").removeprefix("file://")
        path = Path(os.path.expanduser(value))
        is_local = value.startswith(("/", "~", "./", "../")) or path.suffix in FILES
        is_there = os.path.exists(path)  # Path.exists raises where a folder may not be searched
        if key.endswith("path") and "://" not in value and is_local and not is_there:
            yield Problem(
                key, f"there is no {shortened(value)}", "use one that is there, and that all nodes see", "not-found"
            )
