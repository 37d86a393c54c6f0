"""verl's config from the arguments of its command line, and what is wrong with them, without importing verl or torch.

Hydra checks keys only: a value of the wrong type composes, and fails in a worker later. Here each value that is given
is also compared with the field of verl's dataclass, or with the default, that it replaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from launcher.core.problems import Problem, Problems, error_message, nearest, short_repr
from launcher.engines.verl.config import defaults, renamed
from launcher.engines.verl.config.classes import Fields, accepts, is_class
from launcher.engines.verl.config.defaults import CONFIGS, Defaults, Program
from launcher.engines.verl.config.nearest import misspelt, nearest_key

FLAGS = {"-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-dir"}
"""Hydra's short options that choose a config."""
FREE = (
    "actor_rollout_ref.model.override_config", "critic.model.override_config", "model.override_config",
    "reward.reward_kwargs", "reward.custom_reward_function.reward_kwargs", "algorithm.gdpo_reward_keys",
    "algorithm.gdpo_reward_weights", "ray_kwargs", "actor_rollout_ref.rollout.engine_kwargs",
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs", "reward.reward_model.rollout.engine_kwargs",
    "data.apply_chat_template_kwargs", "data.mm_processor_kwargs", "data.cache_dir", "data.filter_prompts",
    "data.need_tools_kwargs", "data.return_full_prompt", "data.return_raw_chat", "data.sampler", "data.datagen",
    "actor_rollout_ref.actor.fsdp_config.wrap_policy", "actor_rollout_ref.ref.fsdp_config.wrap_policy",
    "critic.fsdp.wrap_policy", "engine.wrap_policy", "trainer.wandb_proxy", "trainer.remove_previous_ckpt_in_save",
    "distillation.teacher_models.teacher_model.inference.engine_kwargs",
)  # fmt: skip
"""Places where verl reads keys that its config does not have."""
TEACHER = re.compile(r"^(distillation\.teacher_models\.)[^.]+")
"""Teachers that are added are as the one that verl's config has."""
MADE = (
    "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout", "actor_rollout_ref.model",
    "critic", "model", "engine", "optim", "checkpoint", "profiler",
)  # fmt: skip
"""Sections that verl makes dataclasses of: a key that is no field is a TypeError there."""
OPTIONAL = frozenset(["algorithm.filter_groups", "actor_rollout_ref.model.mtp", "critic.model.mtp", "model.mtp"])
"""Sections that may be null."""
WHOLE = frozenset([
    "data.train_batch_size", "data.gen_batch_size", "data.val_batch_size", "data.max_prompt_length",
    "data.max_response_length", "data.micro_batch_size_per_gpu", "data.max_token_len_per_gpu", "data.max_length",
    "data.train_max_samples", "data.val_max_samples", "data.dataloader_num_workers", "data.num_workers", "data.seed",
    "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps",
    "trainer.critic_warmup", "trainer.v1.separate_async.parameter_sync_step",
    "trainer.v1.sampler.max_off_policy_threshold", "ray_kwargs.ray_init.num_cpus", "ray_kwargs.ray_init.num_gpus",
])  # fmt: skip
"""Whole numbers among the settings that no dataclass types."""
_FAULTS = (OmegaConfBaseException, HydraException, ValueError, TypeError, AttributeError)  # of applying one argument


@dataclass
class VerlConfig:
    """The config that verl composes of its arguments."""

    config: dict[str, Any]
    """Resolved. What is given with a value of the wrong type has its default in it."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    """What verl accepts and nobody can check: keys that are added, keys that are not read."""


@dataclass
class _Arguments:
    """The arguments of verl's command line, sorted by what they do."""

    name: str
    folder: Path | None = None
    choices: dict[str, str] = field(default_factory=dict)
    values: list[Override] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def compose(words: Sequence[str], program: Program, files: Path | None = None) -> VerlConfig:
    """The config of verl's `main_ppo` (ppo) or `sft_trainer` (sft) with these arguments. `files` is
    `verl/trainer/config` of the installed package; without it the config is that of 0.9.1."""
    arguments = _read(words, program, files)
    try:
        base = defaults.load(program, arguments.name, arguments.choices, files, arguments.folder)
    except Problems as error:
        arguments.problems += error.problems
        base = defaults.load(program, CONFIGS[program][0], {}, None)
    made = VerlConfig({}, arguments.problems)
    made.problems += _given_twice(arguments.values)
    node = _node(base)
    good = _apply(node, base, arguments.values, program, made)
    made.config, unresolved = _resolved(node, base)
    made.problems += unresolved
    if wrong := _wrong_values(made.config, base, good):
        made.problems += wrong.values()
        node = _node(base)
        for override in good:
            if override.key_or_group not in wrong:
                _update(node, override)
        made.config, _ = _resolved(node, base)
    return made


def _read(words: Sequence[str], program: Program, files: Path | None) -> _Arguments:
    arguments = _Arguments(CONFIGS[program][0])
    known = defaults.groups(program, files)
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("-"):
            _read_flag(word, waiting, arguments)
            continue
        try:
            override = OverridesParser.create().parse_override(word)
        except (HydraException, UnicodeEncodeError) as error:
            home = re.search(r"(^|[,\[:])~", word.partition("=")[2])
            fix = "use $HOME, as bash leaves ~ there, or the whole path" if home else "use key=value"
            arguments.problems.append(Problem(short_repr(word), f"hydra cannot read it: {error_message(error)}", fix))
            continue
        key = override.key_or_group
        if override.is_sweep_override():
            fix = f"use {key}=[...] for a list, or one value"
            arguments.problems.append(Problem(key, "several values: verl takes one config", fix))
        elif override.package is not None or (key in known and override.type == OverrideType.CHANGE):
            arguments.choices[override.get_key_element()] = str(override.value())
        elif not key.startswith(("hydra.", "hydra/")):
            arguments.values.append(override)
    return arguments


def _read_flag(word: str, waiting: list[str], arguments: _Arguments) -> None:
    flag, equals, value = word.partition("=")
    flag = FLAGS.get(flag, flag)
    if flag not in FLAGS.values():
        arguments.problems.append(
            Problem(flag, "changes what hydra does, not the config", "leave it out", "not-supported")
        )
        return
    if not equals:
        value = waiting.pop(0) if waiting else ""
    if flag == "--config-name":
        arguments.name = value.removesuffix(".yaml")
    elif not (folder := Path(value).expanduser()).is_dir():
        arguments.problems.append(
            Problem(flag, f"there is no folder {value}", "use the folder's whole path", "not-found")
        )
    else:
        arguments.folder = folder


def _given_twice(values: Iterable[Override]) -> Iterator[Problem]:
    """Settings with two values: the last is taken."""
    seen: dict[str, Override] = {}
    for override in values:
        before = seen.get(key := override.key_or_group)
        if before and not before.is_delete() and before.value() != override.value():
            got = f"{short_repr(before.value())}, then {short_repr(override.value())}; verl takes the last"
            yield Problem(key, got, "give it once", "conflicting-settings")
        seen[key] = override


def _apply(
    node: DictConfig, base: Defaults, values: Iterable[Override], program: Program, made: VerlConfig
) -> list[Override]:
    """Applies the values that Hydra can apply, one after another, and returns them; what is wrong with the others, and
    notes, go to `made`."""
    known: list[str] = []
    good: list[Override] = []
    for override in values:
        try:
            if override.is_delete() and _has(base.node, override.key_or_group):
                raise ValueError("verl reads it")
            _update(node, override)
        except _FAULTS as error:
            known = known or sorted(_keys(base.node))
            made.problems.append(_refusal(override, program, known, node, base, error))
            continue
        good.append(override)
        if not override.is_delete():
            problem, note = _unread(override, base)
            made.problems += [problem] if problem else []
            made.notes += [note] if note else []
    return good


def _node(base: Defaults) -> DictConfig:
    node: DictConfig = OmegaConf.create(base.node)
    OmegaConf.set_struct(node, True)
    return node


def _update(node: DictConfig, override: Override) -> None:
    """Applies one value as Hydra does. Raises one of `_FAULTS`."""
    key, value = override.key_or_group, None if override.is_delete() else override.value()
    if override.is_delete():
        if OmegaConf.select(node, key, throw_on_missing=False) is None:
            raise ValueError("is not there to be deleted")
        parent, _, last = key.rpartition(".")
        with open_dict(node):
            del (OmegaConf.select(node, parent) if parent else node)[last]
    elif override.is_add():
        there = OmegaConf.select(node, key, throw_on_missing=False)
        if there is not None and not isinstance(value, dict | list):
            raise ValueError("is there already")
        OmegaConf.update(node, key, value, merge=True, force_add=True)
    else:
        OmegaConf.update(node, key, value, merge=True, force_add=override.is_force_add())


def _refusal(
    override: Override, program: Program, known: Sequence[str], node: DictConfig, base: Defaults, error: Exception
) -> Problem:
    key = override.key_or_group
    if override.is_delete() or key in known:
        if override.is_add():
            return Problem(key, "+ adds a key, and verl has this one", f"use {key}=", "conflicting-settings")
        return Problem(key, error_message(error), "leave ~ out, and give a value", "unknown-setting")
    if isinstance(OmegaConf.select(node, key.rpartition(".")[0], throw_on_missing=False), str | int | float):
        return Problem(key, f"{key.rpartition('.')[0]} has a value, not settings", code="unknown-setting")
    return Problem(key, "verl has no such key", _advice(key, program, known, base), "unknown-setting")


def _advice(key: str, program: Program, known: Sequence[str], base: Defaults) -> str:
    """What to do about a key that verl does not have."""
    if advice := renamed.gone(program, key):
        return advice
    read = [name for name in known if renamed.ignored(name) is None] if program == "ppo" else known
    new = renamed.ignored(key) if program == "ppo" else None
    if new is not None:
        there = new.startswith("+") or new in read
        near = None if there or not new else misspelt(new, read)
        return f"use {new}" if there else f"did you mean {near}?" if near else "leave it out"
    if new := renamed.today(program, key):
        there = new.startswith("+") or new in read or _is_free(new)
        return f"use {new}" if there else _advice(new, program, known, base)
    if near := nearest_key(key, read):
        return f"did you mean {near}?"
    if _is_field(key, base):
        return f"use +{key}="
    return f"use +{key}= where code of yours reads it"


def _is_free(key: str) -> bool:
    return any(key == place or key.startswith(f"{place}.") for place in FREE)


def _is_field(key: str, base: Defaults) -> bool:
    """Whether verl has it, and only its files of defaults have not."""
    section, _, name = key.rpartition(".")
    fields = _fields(_at(base.node, section), base)
    return bool(fields and name in fields) and f"{section}.".startswith(tuple(f"{made}." for made in MADE))


def _unread(override: Override, base: Defaults) -> tuple[Problem | None, Problem | None]:
    """What is composed and not read: a problem where that changes the run or fails, otherwise a note."""
    key, value = override.key_or_group, override.value()
    if (new := renamed.ignored(key)) is not None:
        fix = f"use {new}" if new else "leave it out"
        problem = Problem(key, "composes, but main_ppo does not read it", fix, "unknown-setting")
        off = value in (None, False) and not (new and _is_free(new))  # a place of which verl has no default
        same = off or (not isinstance(value, dict) and value == _at(base.node, new))
        return (None, problem) if same else (problem, None)
    if (advice := renamed.deprecated(key)) and value not in (None, False):
        return None, Problem(key, "is passed on to vLLM, of which later versions do not have it", advice)
    there = TEACHER.sub(r"\1teacher_model", key)
    if _has(base.node, there) or _is_free(there):
        return None, None
    place, name = _first_new(base.node, key)
    section = _at(base.node, place) if place else None
    fields = _fields(section, base)
    if section is not None and fields is not None and any(f"{key}.".startswith(f"{made}.") for made in MADE):
        if name in fields:
            return None, None
        got = f"{str(section['_target_']).rpartition('.')[2]} of verl has no field {name}"
        near = nearest(name, list(fields))
        return Problem(key, got, f"did you mean {place}.{near}?" if near else "leave it out", "unknown-setting"), None
    return None, Problem(key, "is added to verl's config, which does not know it", "check its spelling")


def _first_new(node: dict[str, Any], key: str) -> tuple[str, str]:
    """The deepest section of `key` that is there, and the name of what is new in it."""
    parts = key.split(".")
    there = next((end for end in range(len(parts) - 1, 0, -1) if isinstance(_at(node, ".".join(parts[:end])), dict)), 0)
    return ".".join(parts[:there]), parts[there]


def _resolved(node: DictConfig, base: Defaults) -> tuple[dict[str, Any], list[Problem]]:
    """A config without interpolations; where they lead nowhere, the config without any argument and a problem."""
    try:
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=False), []  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        where = str(error.full_key or "config")
        found: dict[str, Any] = OmegaConf.to_container(_node(base), resolve=True)  # type: ignore[assignment]
        return found, [Problem(where, error_message(error), "use a key that verl has in ${...}")]


def _wrong_values(config: dict[str, Any], base: Defaults, values: Iterable[Override]) -> dict[str, Problem]:
    """Of each given setting whose value verl cannot use, what is wrong with it."""
    found: dict[str, Problem] = {}
    for override in values:
        if override.is_delete():
            continue
        given = override.key_or_group
        for key, value in _leaves(given, _at(config, given)):
            if problem := _wrong_value(key, value, base):
                found[given] = problem
    return found


def _wrong_value(key: str, value: Any, base: Defaults) -> Problem | None:
    parent, _, last = key.rpartition(".")
    default = _at(base.node, key)
    if isinstance(default, dict):
        return _wrong_section(key, value, default)
    fields = _fields(_at(base.node, parent) if parent else None, base)
    kind = fields.get(last, "Any") if fields else "Any"
    if kind == "Any" or is_class(kind):
        kind = _kind_of_default(key, default)
    if accepts(kind, value) or (value is None and last.startswith("clip_ratio")):
        return None
    if isinstance(value, str) and last == "rollout_is_threshold":
        return None  # lower_upper, which a rule reads
    if isinstance(default, list) and isinstance(value, str) and "str" in kind:
        return None
    return _type_problem(key, value, kind.removeprefix("Optional[").removesuffix("]"))


def _wrong_section(key: str, value: Any, default: dict[str, Any]) -> Problem | None:
    if value is None and (key in OPTIONAL or ("_target_" not in default and "." in key)):
        return None
    return None if isinstance(value, dict) else Problem(
        key, f"{short_repr(value)} is one value, and this a section", f"use {key}.NAME="
    )  # fmt: skip


def _kind_of_default(key: str, default: Any) -> str:
    """The type of a setting that no dataclass of verl has, by its default."""
    last = key.rpartition(".")[2]
    if key in WHOLE or last.endswith(("_size", "_per_gpu")):
        return (
            "int"
            if default is not None and last not in ("max_off_policy_threshold", "image_patch_size")
            else "Optional[int]"
        )
    if isinstance(default, bool):
        return "Optional[bool]"
    if isinstance(default, int | float):
        return "float | str" if last in ("save_freq", "test_freq") else "float"
    if isinstance(default, list) or last in ("train_files", "val_files", "logger"):
        return "Optional[list | str]"
    if isinstance(default, str) and not default.startswith("${"):
        return "Optional[str | int | float | bool]"
    if default is None and last.endswith(("path", "name", "_key", "_dir")):
        return "Optional[str]"
    return "Any"


def _type_problem(key: str, value: Any, kind: str) -> Problem:
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    names |= {"float | str": "a whole number", "list | str": "[A,B]", "list[str]": "[A,B]"}
    better = int(value) if kind == "int" and isinstance(value, float) and value == int(value) else None
    fix = f"use {names.get(kind, kind)}" if better is None else f"use {better}"
    got = f"got {short_repr(value)}, which verl takes and cannot use"
    return Problem(key, got, fix, value=better)


def _fields(section: Any, base: Defaults) -> Fields | None:
    """The fields of the dataclass that verl makes of a section; None where it makes none."""
    target = section.get("_target_") if isinstance(section, dict) else None
    return base.classes.get(str(target).rpartition(".")[2]) if target else None


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def _keys(node: dict[str, Any], place: str = "") -> Iterator[str]:
    for name, value in node.items():
        if not str(name).startswith("_"):
            yield f"{place}{name}"
            if isinstance(value, dict):
                yield from _keys(value, f"{place}{name}.")


def _at(node: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return None
        node = node[part]
    return node


def _has(node: Any, key: str) -> bool:
    parent, _, last = key.rpartition(".")
    section = _at(node, parent) if parent else node
    return isinstance(section, dict) and last in section
