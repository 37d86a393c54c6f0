"""One launch of verl in a script -> the arguments of `rlrun train` that make the same run, and what changed and why.

The whole config that verl composes of the script's arguments is translated, not only the arguments themselves: where
verl's default is not ours, the recipe sets verl's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.config.defaults import REASONS
from launcher.config.names.table import table
from launcher.config.nodes import flat, walk
from launcher.config.request import RunRequest, SourcedOverride
from launcher.config.resolve import Resolution, resolve_request
from launcher.core.overrides import key_of, literal, quoted
from launcher.core.problems import Problem, shortened
from launcher.core.redaction import is_secret_name
from launcher.engines.verl import TAKEN, Verl
from launcher.engines.verl import words as verl_words
from launcher.engines.verl.config.compose import compose, split_flags
from launcher.engines.verl.config.defaults import CONFIGS, MEGATRON, Program
from launcher.engines.verl.passed_on import EXTRA, PROJECT, as_passed_on
from launcher.preflight.checks import unread
from launcher.preflight.checks.context import Context
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node
from launcher.tools.importing.launches import Launch

PROGRAMS: Mapping[str, Program] = {
    "main_ppo": "ppo", "main_dapo": "ppo", "sft_trainer": "sft", "sft_trainer_ray": "sft", "fsdp_sft_trainer": "sft",
}  # fmt: skip
"""Last names of verl's programs, also of older versions."""
OWN = (
    "reward", "trainer.project_name", "trainer.experiment_name",
    "trainer.run_root", "trainer.logger", "trainer.keep_last", "cluster", "engine.offload", "engine.mixed_precision",
)  # fmt: skip
"""Settings of ours that do not take verl's defaults."""
_OWN_BEGINNINGS = tuple(f"{name}." for name in OWN)
VERL_OWN = (
    "data.train_files", "data.val_files", "trainer.default_local_dir", "trainer.validation_data_dir",
    "trainer.rollout_data_dir", "trainer.default_hdfs_dir", "trainer.logger", "trainer.resume_mode",
    "trainer.resume_from_path", "trainer.project_name", "trainer.experiment_name", "trainer.log_val_generations",
    "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep", "trainer.max_ckpt_to_keep",
    "actor_rollout_ref.rollout.trace.project_name", "actor_rollout_ref.rollout.trace.experiment_name",
    "ray_kwargs.ray_init.address", "reward.custom_reward_function.reward_kwargs",
)  # fmt: skip
"""Keys that a run sets itself: its files and names, where it resumes, what is logged, and which Ray cluster it joins.
"""
AT_THE_END = ("trainer.save_freq", "trainer.test_freq")
"""Frequencies whose values -1 and 0 mean never for verl, and at the end for a run of ours."""
PAIRS = ("ppo_micro_batch_size", "forward_micro_batch_size", "log_prob_micro_batch_size", "micro_batch_size")
"""Sizes without a default, each of which verl wants for all processes or (with `_per_gpu`) for one."""
DEFAULT = "verl's default"
REWARD_MODEL = "reward.reward_model."
SERVER = "actor_rollout_ref.rollout.name"
UNREAD = "actor_rollout_ref.rollout.val_kwargs.do_sample"
"""A key that verl's servers do not read: they sample in validation at its temperature, whatever this default says."""
SHELL = frozenset(["PWD", "HOME", "OLDPWD", "SHLVL", "PYTHONPATH_SEP", "_"])
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_CONFIGS = frozenset(name for names in CONFIGS.values() for name in names)


@dataclass(frozen=True)
class Replacement:
    """A part of the script that the recipe states differently."""

    before: str
    """The script's text; or a key of verl's with its default."""
    message: str

    @property
    def line(self) -> str:
        return f"{shortened(self.before, 160)}: {self.message}"


@dataclass
class ImportedLaunch:
    """A launch as a run of ours."""

    launch: Launch
    arguments: list[str] = field(default_factory=list)
    """The arguments of `rlrun train`."""
    run: RunSpec | None = None
    changes: list[Replacement] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the user has to see to: values known only when the script runs, secrets, wrappers."""

    @property
    def name(self) -> str:
        return self.launch.line

    def refuse(self, got: str, fix: str = "") -> None:
        self.problems.append(Problem(self.name, got, fix, "not-supported"))


def import_launch(launch: Launch, placeholders: Sequence[str] = ()) -> ImportedLaunch:
    """A launch as a run of ours. `placeholders` are the texts in its words for values known only when it runs."""
    imported = ImportedLaunch(launch)
    program_name = launch.program.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    if program_name not in PROGRAMS:
        got = f"{launch.program} is none of the programs of verl that are started here (main_ppo, sft_trainer)"
        arguments = "engine=torch algorithm=dpo" if program_name == "dpo_trainer" else "..."
        imported.refuse(got, f"write its run as rlrun train {arguments} yourself")
    else:
        _import_training(imported, PROGRAMS[program_name], placeholders)
    return imported


def _import_training(imported: ImportedLaunch, program: Program, placeholders: Sequence[str]) -> None:
    words, renamed, config, known = _compose_launch(imported, program, placeholders)
    extra = _find_model_words(renamed, config)
    words += [word for word, new in renamed.items() if word not in extra and (new or key_of(word) in table().named)]
    words += [f"{EXTRA}={literal([*extra.values()])}"] if extra else []
    given = {key_of(word) for word in [*words, *renamed.values()]}
    words = ["engine=verl", *_choices(program, given, config), *_environment(imported, placeholders), *words]
    typed = [SourcedOverride(word, f"{imported.name}: {word}", "recipe") for word in words]
    found, added = _with_defaults(typed, _list_defaults(config, given, bool(extra)))
    found = _pass_on(imported, found, config, known)
    imported.run = found.run
    imported.problems = [*dict.fromkeys([*imported.problems, *(one.within(imported.name) for one in found.problems)])]
    imported.changes += [Replacement(one.typed.text, one.message) for one in found.taken if one.typed.text not in added]
    without_defaults = [word for word in found.request.overrides if not word.where.startswith(DEFAULT)]
    for word in _recipe_arguments(found, resolve_request(RunRequest(without_defaults)).run):
        imported.arguments.append(word.text)
        if word.where.startswith(DEFAULT):
            default = word.where.removeprefix(f"{DEFAULT}: ")
            imported.changes.append(Replacement(default, f"{DEFAULT}, said as {word.text}"))


def _compose_launch(
    imported: ImportedLaunch, program: Program, placeholders: Sequence[str]
) -> tuple[list[str], dict[str, str], Mapping[str, Any], Set[str]]:
    """Our words for verl's backend, today's words by the script's, verl's config, and the keys of verl's own files."""
    known_words = _drop_unknown(imported, _without_flags(imported, program), placeholders)
    chosen, others = _split_choices(imported, _with_missing(imported, known_words, program), program)
    choosing = [*(word for word in others if word.startswith("-")), *chosen]
    own_config = dict(walk(compose(choosing, program).config, lists=False))  # by verl's files alone
    settings = _without_plus(imported, [word for word in others if word not in choosing], own_config)
    new_words, problems = as_passed_on(settings, program, chosen)
    result = compose([*choosing, *filter(None, new_words)], program)
    imported.problems += [one.within(imported.name) for one in problems if not table().named.get(one.where)]
    imported.problems += [one.within(imported.name) for one in result.problems if one.code != "conflicting-settings"]
    words = list(chosen) if program == "ppo" else []  # another `model_engine` is passed on
    if any(word.endswith("megatron") for word in chosen):
        words = ["engine.strategy=megatron"]
    return words, dict(zip(settings, new_words, strict=True)), result.config, own_config.keys()


def _find_model_words(renamed: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    """The words for a reward model to pass on, by the script's: with a function, that function is the run's reward."""
    reward = config.get("reward") or {}
    passes_on = reward.get("reward_model", {}).get("enable") and reward.get("custom_reward_function", {}).get("path")
    return {word: new for word, new in renamed.items() if passes_on and key_of(new).startswith(REWARD_MODEL)}


def _list_defaults(config: Mapping[str, Any], given: Set[str], passes_on_model: bool) -> list[str]:
    """Verl's values of the keys that are not given, as arguments, where a setting of ours stands for the key."""
    return [
        argument_of(key, value)
        for key, value in walk(config, lists=False)
        if key not in given and _has_counterpart(key, value) and not (passes_on_model and key.startswith(REWARD_MODEL))
    ]


def _with_defaults(typed: Sequence[SourcedOverride], implied: Sequence[str]) -> tuple[Resolution, list[str]]:
    """The run of the typed words and verl's defaults, and the defaults that it neither refuses nor leaves unread."""
    remaining = [word for word in implied if key_of(word) != UNREAD]
    for _ in range(3):
        defaults = [SourcedOverride(word, f"{DEFAULT}: {word}", "recipe") for word in remaining]
        resolved = resolve_request(RunRequest([*defaults, *typed]))
        new_words = {one.typed.text: one.words for one in resolved.taken if one.typed in defaults}
        wrong_keys = {problem.where for problem in resolved.problems}
        if resolved.run:
            wrong_keys |= {result.subject for result in unread.check(Context(resolved.run, here=False))}
        kept = [
            word for word in remaining
            if EXTRA not in (ours := new_words.get(word, (word,))) and wrong_keys.isdisjoint(map(key_of, [word, *ours]))
        ]  # fmt: skip
        if kept == remaining:
            break
        remaining = kept
    return resolved, remaining


def _pass_on(imported: ImportedLaunch, resolved: Resolution, wanted: Mapping[str, Any], known: Set[str]) -> Resolution:
    """The run whose config for verl is `wanted`, key by key: what no setting says is passed on in `engine.extra`, with
    a `+` where the key is not among those `known` to verl's files."""
    if not resolved.run or resolved.problems:
        return resolved
    differ = differing(wanted, config_of(resolved.run))
    added = [argument_of(key if key in known else f"+{key}", value) for key, value in differ]
    if not added:
        return resolved
    current = list(resolved.run.engine.extra)  # type: ignore[attr-defined]
    keys = {key_of(word) for word in added}
    extra = [*(word for word in current if key_of(word) not in keys), *added]
    others = [word for word in resolved.request.overrides if key_of(word.text) != EXTRA]
    passed = SourcedOverride(f"{EXTRA}={literal(extra)}", imported.name, "recipe")
    typed = {key_of(word) for word in imported.launch.words}
    for word in added:
        origin = "" if key_of(word) in typed else f"{DEFAULT}, "
        imported.changes.append(Replacement(word, f"{origin}passed on to {PROJECT}, as no setting here says just that"))
    exact = resolve_request(RunRequest([*others, passed]))
    return replace(exact, taken=resolved.taken)


# ---- the script's words


def _drop_unknown(imported: ImportedLaunch, words: Sequence[str], placeholders: Sequence[str]) -> list[str]:
    """The words without those whose value is known only when the script runs, each of which is noted; of the run's name
    the known part stays."""
    known_words = []
    for word in words:
        parts = [part for part in placeholders if part and part in word.partition("=")[2]]
        if key_of(word) in ("trainer.project_name", "trainer.experiment_name"):
            known_words += _name_argument(imported, word, parts)
        elif reason := _reason_to_omit(word, parts):
            imported.notes.append(f"{imported.name}: {reason}")
        else:
            known_words.append(word)
    return known_words


def _name_argument(imported: ImportedLaunch, word: str, parts: Sequence[str]) -> list[str]:
    """The argument for the name of a run or project, as a folder's name; empty where nothing of it is known."""
    key, _, value = word.partition("=")
    remaining = value
    for part in parts:
        remaining = remaining.replace(part, "")
    name = _NAME.sub("-", remaining.strip("'\" ")).strip("-._")[:128]
    if not name:
        imported.notes.append(f"{imported.name}: {word} is left out; a run gets a name of its own")
        return []
    if name != value.strip("'\""):
        imported.changes.append(Replacement(word, f"taken as {key}={name}; it is the name of a folder"))
    return [f"{key}={name}"]


def _reason_to_omit(word: str, parts: Sequence[str]) -> str:
    """Why the word is left out; empty where it stays. `parts` of its value are known only when the script runs."""
    key, equals, value = word.partition("=")
    is_translated, is_setting = key in table().named, "." in key  # a variable of the environment has no dot
    is_number = is_setting and re.fullmatch(r"[\d.]*|true|false|null", value.lower())
    if is_secret_name(key) and not is_translated and not is_number:
        return f"{key} is left out, as it is a secret" + ("" if is_setting else "; set it in your shell")
    if parts:
        return f"{word} is left out; only running the script tells {', '.join(parts)}"
    if equals and not value.strip("'\"") and (is_translated or key in TAKEN):
        return f"{word} is left out; it is empty: not set, or known only when it runs"
    if key.lstrip("+~").startswith(("hydra.", "hydra/")):
        return f"{word} is left out; no files of Hydra are written"
    return ""


def _without_flags(imported: ImportedLaunch, program: Program) -> list[str]:
    """The words of the launch, without Hydra's flags that only name a config of verl's own."""
    flags, others = split_flags(imported.launch.words)
    words = [word for word in others if "=" in word or word.startswith(("-", "~"))]
    imported.notes += [
        f"{imported.name}: {word} is left out; it is no argument of verl" for word in others if word not in words
    ]
    name = flags.get("--config-name", CONFIGS[program][0])
    if name in (*_CONFIGS, "sft_trainer") and Path(flags.get("--config-path", "config")).name == "config":
        flags.pop("--config-path", None)  # verl's own folder of configs
    if name == "sft_trainer":
        flags.pop("--config-name")
    return [*words, *(f"{flag}={value}" for flag, value in flags.items())]


def _split_choices(imported: ImportedLaunch, typed: Sequence[str], program: Program) -> tuple[list[str], list[str]]:
    """The words that choose verl's training backend, also implied ones (`strategy=megatron`); and the other words."""
    chosen = {key_of(word): word for word in typed if key_of(word) in _CHOICES[program]}
    if any("megatron" in word for word in typed if key_of(word) in _BACKEND):
        chosen = {key_of(word): word for word in MEGATRON[program]} | chosen
    backend = chosen.get("engine", "fsdp").rpartition("=")[2]
    if backend not in ("fsdp", "megatron"):
        got = f"verl's backend {backend}: SFT of a run with engine=verl is with fsdp or megatron"
        imported.refuse(got, "use one of them")
    for word in filter(typed.__contains__, chosen.values() if program == "sft" else ()):
        message = "taken as engine.strategy=megatron" if word.endswith("megatron") else "left out; it is so here, too"
        imported.changes.append(Replacement(word, message))
    return [*chosen.values()], [word for word in typed if word not in chosen.values()]


_CHOICES: Mapping[Program, Sequence[str]] = {"sft": ("engine", "optim"), "ppo": ("model_engine",)}
_BACKEND = ("actor_rollout_ref.actor.strategy", "model_engine", "--config-name")


def _without_plus(imported: ImportedLaunch, words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The words, without the `+` of each `+key=value` whose key is new in verl 0.9.1, which refuses a `+` there.
    `known` are the values of verl's own files, by key."""
    cleaned = list[str]()
    for word in words:
        key = key_of(word)
        if word.startswith("+") and not word.startswith("++") and known.get(key) not in (None, {}):
            imported.changes.append(Replacement(word, f"taken as {word[1:]}; verl 0.9.1 has this key"))
            word = word[1:]
        cleaned.append(word)
    return cleaned


def _with_missing(imported: ImportedLaunch, words: list[str], program: Program) -> list[str]:
    """The words, with what they do not set: an inference server, as verl has no default, and the numbers of machines
    and GPUs that torchrun gets."""
    keys, added = {key_of(word) for word in words}, list[str]()
    if program == "ppo" and SERVER not in keys:
        message = "the script names no inference server, and verl has no default; vllm"
        imported.changes.append(Replacement(SERVER, message))
        added.append(f"{SERVER}=vllm")
    for option, key in (("nproc-per-node", "trainer.n_gpus_per_node"), ("nnodes", "trainer.nnodes")):
        count = imported.launch.processes.get(option, "")
        if program == "sft" and key not in keys and count.isdecimal():
            imported.changes.append(Replacement(f"torchrun --{option}={count}", f"taken as {key}={count}"))
            added.append(f"{key}={count}")
    return [*words, *added]


def _environment(imported: ImportedLaunch, placeholders: Sequence[str]) -> list[str]:
    variables = {
        name: value for name, value in imported.launch.environment.items()
        if name not in SHELL and not (name in table().named and is_secret_name(name))
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in variables.items()]
    kept = {key_of(word) for word in _drop_unknown(imported, words, placeholders)}
    kept_variables = {name: value for name, value in variables.items() if name in kept}
    return [f"engine.env={literal(kept_variables)}"] if kept_variables else []


# ---- what is not typed


def _has_counterpart(key: str, value: Any) -> bool:
    """Whether a setting of ours stands for this key of verl's and has to take its default `value`."""
    meanings = [meaning for meaning in table().named.get(key, ()) if key in meaning.names.get(PROJECT, ())]
    ours = [f"{meaning.ours[0]}." for meaning in meanings if meaning.ours]
    return value not in (None, "???", [], {}) and not all(name.startswith(_OWN_BEGINNINGS) for name in ours)


def _choices(program: Program, given: set[str], config: Mapping[str, Any]) -> list[str]:
    """Choices of config groups, and the seed, that no word of the script makes."""
    if program == "sft":
        return ["algorithm=sft"]
    of_reward = any(key.lstrip("+").startswith(("reward", "custom_reward_function", "sandbox_fusion")) for key in given)
    has_path = any(key.endswith(("custom_reward_function.path", "model_path", "reward_model.path")) for key in given)
    nodes = (config.get("trainer") or {}).get("nnodes")
    cluster = ["cluster=ray", "cluster.address=auto"] if isinstance(nodes, int) and nodes > 1 else []
    seed = config["actor_rollout_ref"]["actor"].get("data_loader_seed")
    return [*cluster, *([f"seed={seed}"] if seed else []), *([] if of_reward and has_path else ["reward=auto"])]


# ---- the run


def _recipe_arguments(resolved: Resolution, plain: RunSpec | None) -> list[SourcedOverride]:
    """Our words, without verl's defaults that the run has anyway (`plain` is the run without them)."""
    settings = flat(to_node(resolved.run)) if resolved.run else {}
    plain_settings = flat(to_node(plain)) if plain else {}
    words_by_key = dict[str, SourcedOverride]()
    for word in resolved.request.overrides:
        key = key_of(word.text)
        is_same = key in settings and settings.get(key) == plain_settings.get(key)
        fitted = key in REASONS and (resolved.run is None or resolved.run.has_critic or not key.startswith("critic."))
        if not word.where.startswith(DEFAULT) or not is_same or fitted:
            previous = words_by_key.pop(key, word)
            words_by_key[key] = previous if previous.text == word.text and word.where.startswith(DEFAULT) else word
    return [*words_by_key.values()]


# ---- the config that verl composes


def program_of(run: RunSpec) -> Program:
    return "ppo" if run.algorithm.sampled else "sft"


def config_of(run: RunSpec) -> dict[str, Any]:
    """The config that verl composes of the arguments that start the run."""
    assert isinstance(run.engine, Verl)
    return compose(verl_words.arguments(run, run.engine, Path("run")), program_of(run)).config


def differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of `wanted` that `found` does not have, without the keys that a run sets itself."""
    expected, actual = (dict(walk(node, lists=False)) for node in (wanted, found))
    for key, value in expected.items():
        if "_target_" in key or value == "???" or any(f"{key}.".startswith(f"{own}.") for own in VERL_OWN):
            continue
        if value == actual.get(key) or (key in AT_THE_END and value in (-1, 0)) or _is_unset_size(key, value, expected):
            continue
        yield key, value


def _is_unset_size(key: str, value: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether `key` is one of `PAIRS` that `wanted` does not set in either form, so that any value agrees."""
    prefix, _, name = key.rpartition(".")
    plain = name.removesuffix("_per_gpu")
    return plain in PAIRS and all(wanted.get(f"{prefix}.{each}") is None for each in (plain, f"{plain}_per_gpu"))


def argument_of(key: str, value: Any) -> str:
    """`key=value` as Hydra reads it."""
    return verl_words.to_word(key, value) if not isinstance(value, dict) else f"{key}={literal(value, quoted)}"
