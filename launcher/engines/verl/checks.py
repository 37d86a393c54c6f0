"""What can be known to fail of a run of verl before a GPU is held: its arguments against verl's config, the rules of
its `validate_config`, and what it finds only later, or never. Neither verl nor torch is loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from launcher.config.names.table import table
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import Problem, error_message
from launcher.engines.verl import named_files, rows, saved, words
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.config.defaults import Program, find_files
from launcher.engines.verl.rules import early, late
from launcher.engines.verl.rules.facts import PROGRAMS, LaunchFacts
from launcher.engines.verl.rules.settings import at
from launcher.models import config as model_config
from launcher.models.pretrained import Pretrained
from launcher.rewards.python import Python
from launcher.spec.data import make_answer
from launcher.spec.engine import RunFacts
from launcher.spec.run import RunSpec

if TYPE_CHECKING:
    from launcher.engines.verl import Verl

T = TypeVar("T")
VERSION = "0.9.1"
REGISTERED = (
    "trainer.device",
    f"{words.ROLLOUT}.name",
    f"{words.ACTOR}.policy_loss.loss_mode",
    "algorithm.adv_estimator",
    f"{words.ROLLOUT}.agent.agent_loop_config_path",
)
"""Names that such a module may add to verl's own."""
WRITTEN = ("data.train_files", "data.val_files")
"""Files that a run of ours writes for verl."""
PATIENCE_S = 20.0
PROBE = """
import importlib.metadata, importlib.util, json, pkgutil
names = sorted({module.name for module in pkgutil.iter_modules()})
try:
    version = importlib.metadata.version("verl")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps({"packages": names, "verl": version}))
"""


@dataclass(frozen=True)
class VerlEnvironment:
    """The Python that runs verl."""

    version: str | None
    """Of verl; None where it is not installed there."""
    packages: frozenset[str]
    """What can be imported."""
    files: Path | None
    """`verl/trainer/config` of the installed package."""


def check(engine: Verl, run: RunSpec, facts: RunFacts, python: str) -> Iterator[CheckResult]:
    probed = probe(python)
    if isinstance(probed, Problem) and facts.here:
        yield from from_problems([probed])
        return
    found = None if isinstance(probed, Problem) else probed
    files = _read(lambda: rows.look(run))
    yield from files.rewritten() if files else ()
    yield from _read(lambda: list(files.unlike())) or () if files else ()
    if found and found.version != VERSION:
        yield from _versions(found, python, facts.here)
    arguments = words.arguments(run, engine, facts.folder, 0)
    program: Program = "ppo" if run.algorithm.sampled else "sft"
    composed = compose(arguments, program, found.files if found else None)
    yield from from_problems(map(_named, composed.problems))
    yield from from_problems(map(_named, composed.notes), "WARN")
    if composed.problems:
        return
    yield from _other_micro_batches(run)
    known = _launch_facts(engine, run, facts, files, found, composed.config)
    results = list(_rules(composed.config, known, bool(engine.env.get(words.PLUGINS)), facts.here))
    yield from results
    if not any(result.level == "FAIL" for result in results):
        where = f"verl {found.version} in {python}" if found and found.version else f"verl {VERSION}"
        yield CheckResult("OK", "engine", f"{where} accepts its {len(arguments)} arguments")


def _other_micro_batches(run: RunSpec) -> Iterator[CheckResult]:
    """The setting is the most that fits in memory; verl wants a divisor."""
    asked, taken, rows = run.trainer.micro_batch_size_per_gpu, run.micro_batch_rows, run.sequences_per_update
    if not run.trainer.max_tokens_per_gpu and taken < min(asked, rows):
        got = f"{asked} does not divide the {rows} sequences of an update in one process, so verl gets {taken}"
        more = next((size for size in range(asked, rows + 1) if rows % size == 0), rows)
        yield CheckResult("WARN", "trainer.micro_batch_size_per_gpu", got, f"use {taken} or {more}")


def _versions(found: VerlEnvironment, python: str, here: bool) -> Iterator[CheckResult]:
    if found.version is None:
        fix = f"use {python} -m pip install 'verl[vllm]=={VERSION}', or engine.python=PYTHON of its environment"
        yield CheckResult("FAIL" if here else "WARN", "engine.python", f"{python} has no verl", fix)
    else:
        got = f"verl {found.version} is installed; its arguments are checked as those of {VERSION}"
        yield CheckResult("WARN", "engine.python", got, f"use verl {VERSION}")


def _rules(config: dict[str, object], facts: LaunchFacts, plugins: bool, here: bool) -> Iterator[CheckResult]:
    """Each thing once: a rule of `validate_config` may name what a later one names, too. What `plugins` may register
    or replace is a warning with them, and so is a path that is not here where the run is to be on another machine."""
    first = early.problems(config)
    yield from from_problems(map(_named, first))
    known = {problem.where for problem in first}
    if facts.rows is not None and facts.rows < int(str(at(config, "data.train_batch_size"))):
        known.add("data.train_batch_size")  # as the check of steps has said
    for result in late.results(config, facts):
        if result.problem.where not in known:
            by_plugin = result.problem.where in REGISTERED or result.problem.code == "not-installed"
            not_here = result.problem.code == "not-found" and not here
            level = "WARN" if (plugins and by_plugin) or not_here else result.level
            yield from from_problems([_named(result.problem)], level)


def _named(problem: Problem) -> Problem:
    """With our setting before verl's key, where there is one: that is what was typed."""
    meanings = table().named.get(problem.where, ())
    ours = {meaning.ours for meaning in meanings if len(meaning.ours) == 1}
    if len(ours) != 1:
        return problem
    ((setting,),) = ours
    return problem if setting == problem.where else replace(problem, where=f"{setting} ({problem.where})")


def _launch_facts(
    engine: Verl,
    run: RunSpec,
    facts: RunFacts,
    files: rows.RowFiles | None,
    found: VerlEnvironment | None,
    config: dict[str, object],
) -> LaunchFacts:
    shape, path = run.model.shape, engine.resume_from_path
    world = next((size for role in (Path(path, "actor"), Path(path)) if (size := saved.world_size(role))), None) if (
        path) else None  # fmt: skip
    keys, unaccepted = _reward(run, facts, config)
    return LaunchFacts(
        rows=facts.rows, val_rows=facts.val_rows or None, data_sources=facts.data_sources,
        val_data_sources=facts.val_data_sources, unlabelled=facts.unlabelled, differs_by_turn=facts.differs_by_turn,
        columns=files.columns if files else None, agents=_read(files.agents) if files else None,
        reward_keys=keys, unaccepted=unaccepted, positions=run.model.positions, architectures=_architectures(run),
        heads=shape.num_attention_heads if shape else None, kv_heads=shape.num_key_value_heads if shape else None,
        layers=shape.num_hidden_layers if shape else None, experts=shape.num_experts if shape else None,
        vocabulary=shape.vocab_size if shape else None, checkpoint_world=world,
        adapter_rank=named_files.adapter_rank(config), function_tools=named_files.function_tools(config),
        bound=named_files.objects(config, run.reward.path if isinstance(run.reward, Python) else None),
        tools=named_files.tools(config), agent_loops=named_files.agent_loops(config),
        folders=named_files.folders(config), visible_gpus=None if run.cluster.remote_address else _visible(engine),
        existing=frozenset(_existing(config, found.files.parents[1:3] if found and found.files else ())),
        packages=found.packages if found and found.version else None,
        variables=frozenset([*os.environ, *engine.env]) if facts.here else None,
        programs=frozenset(filter(shutil.which, PROGRAMS)) if facts.here else None,
    )  # fmt: skip


def _visible(engine: Verl) -> int | None:
    """GPUs that the run's own CUDA_VISIBLE_DEVICES leaves to Ray."""
    value = engine.env.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else len([device for device in value.split(",") if device.strip() not in ("", "-1")])


def _read(of_files: Callable[[], T]) -> T | None:
    """What is found in files; None of those that cannot be read, as the check of the rows says."""
    try:
        return of_files()
    except (OSError, ValueError):
        return None


def _reward(run: RunSpec, facts: RunFacts, config: dict[str, object]) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """What is in the dict of the user's reward function, where that chooses the groups, and which of verl's arguments
    it does not take."""
    reward = run.reward
    if not isinstance(reward, Python) or reward.problems() or at(config, "reward.reward_manager.source") != "register":
        return None, ()
    unaccepted = reward.unaccepted()
    if unaccepted or facts.example is None or not at(config, "algorithm.filter_groups.enable"):
        return None, unaccepted
    answer = make_answer(facts.example, "1")
    return deepcopy(reward).keys_of(answer), ()  # processes that it starts end with the copy


def _architectures(run: RunSpec) -> tuple[str, ...] | None:
    model = run.model
    node = model_config.read(model.folder) if isinstance(model, Pretrained) and not model.on_hub else None
    named = (node or {}).get("architectures")
    return tuple(map(str, named)) if isinstance(named, list) else None


def _existing(node: object, folders: Sequence[Path] = (), key: str = "") -> Iterator[str]:
    """The paths that a config names and that are on this machine, or are written when the run starts. verl runs in a
    folder of the run, so that other paths are looked up in `folders` only, those of verl's package."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _existing(value, folders, f"{key}.{name}" if key else name)
    elif isinstance(node, list):
        for value in node:
            yield from _existing(value, folders, key)
    elif isinstance(node, str):
        path = os.path.expanduser(node.removeprefix("file://"))
        places = [path] if os.path.isabs(path) else [os.path.join(folder, path) for folder in folders]
        if key in WRITTEN or any(map(_exists, places)):
            yield node


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a NUL
        return False


def probe(python: str) -> VerlEnvironment | Problem:
    """What is installed for a Python of this machine: modules are looked up, none is loaded."""
    path = shutil.which(python)
    if path is None:
        return Problem("engine.python", f"{python} is not there", "use the Python of verl's environment", "not-found")
    try:
        ran = subprocess.run(
            [path, "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        node = json.loads(ran.stdout)
        packages, version = frozenset(map(str, node["packages"])), node["verl"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        got = f"{python} does not say what is installed: {error_message(error)}"
        return Problem("engine.python", got, "use the Python of verl's environment", "bad-file")
    return VerlEnvironment(version, packages, find_files(Path(path).parents[1]) if version else None)
