"""One launch of verl in a script -> the arguments of `rlrun train` that make the same run, and what changed and why.

The whole config that verl composes of the script's arguments is put into our words, not only what is typed: where
verl's default is not ours, the recipe says verl's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.config.defaults import REASONS
from launcher.config.names.table import Translation, table
from launcher.config.nodes import flat, walk
from launcher.config.request import RunRequest, SourcedOverride
from launcher.config.resolve import Resolution, resolve_request
from launcher.core.overrides import key_of, literal
from launcher.core.problems import Problem, shortened
from launcher.core.redaction import is_secret_name
from launcher.engines.verl import TAKEN
from launcher.engines.verl.config.compose import FLAGS, compose
from launcher.engines.verl.config.defaults import CONFIGS, MEGATRON, Program
from launcher.engines.verl.passed_on import EXTRA, PROJECT, as_passed_on
from launcher.preflight.checks import unread
from launcher.preflight.checks.context import Context
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node
from launcher.tools.importing.launches import Launch
from launcher.tools.importing.verl_config import argument_of, config_of, differing

PROGRAMS: Mapping[str, Program] = {
    "main_ppo": "ppo", "main_dapo": "ppo", "sft_trainer": "sft", "sft_trainer_ray": "sft", "fsdp_sft_trainer": "sft",
}  # fmt: skip
"""Last names of verl's programs, also of older versions."""
OWN = (
    "reward", "trainer.project_name", "trainer.experiment_name",
    "trainer.run_root", "trainer.logger", "trainer.keep_last", "cluster", "engine.offload", "engine.mixed_precision",
)  # fmt: skip
"""Settings of ours for which verl's defaults do not stand."""
DEFAULT = "verl's default"
REWARD_MODEL = "reward.reward_model."
SERVER = "actor_rollout_ref.rollout.name"
UNREAD = "actor_rollout_ref.rollout.val_kwargs.do_sample"
"""What verl's servers do not read: validation samples at its temperature, which a default may not overrule."""
SHELL = frozenset(["PWD", "HOME", "OLDPWD", "SHLVL", "PYTHONPATH_SEP", "_"])
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_CONFIGS = frozenset(name for names in CONFIGS.values() for name in names)


@dataclass(frozen=True)
class Replacement:
    """Something of the script that stands otherwise in the recipe."""

    before: str
    """As the script has it; a key of verl's with its default."""
    message: str

    @property
    def line(self) -> str:
        return f"{shortened(self.before, 160)}: {self.message}"


@dataclass
class ImportedLaunch:
    """A launch as a run of ours."""

    launch: Launch
    arguments: list[str] = field(default_factory=list)
    """Of `rlrun train`."""
    run: RunSpec | None = None
    changes: list[Replacement] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is left to the reader: parts that only running could tell, secrets, wrappers."""

    @property
    def name(self) -> str:
        return self.launch.line

    def refuse(self, got: str, fix: str = "") -> None:
        self.problems.append(Problem(self.name, got, fix, "not-supported"))


def import_launch(launch: Launch, placeholders: Sequence[str] = ()) -> ImportedLaunch:
    """`placeholders` stand in the launch's words for what only running the script could tell."""
    made = ImportedLaunch(launch)
    last = launch.program.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    if last not in PROGRAMS:
        got = f"{launch.program} is none of the programs of verl that are started here (main_ppo, sft_trainer)"
        how = "engine=torch algorithm=dpo" if last == "dpo_trainer" else "..."
        made.refuse(got, f"write its run as rlrun train {how} yourself")
    else:
        _import_training(made, PROGRAMS[last], placeholders)
    return made


@dataclass(frozen=True)
class _Composed:
    """A launch's words, and the config that verl composes of them."""

    words: list[str]
    """For `rlrun train`, without verl's defaults."""
    given: set[str]
    """Keys that the words set, by today's names too."""
    implied: list[str]
    """Verl's values of what is not given, where they have to be said."""
    config: Mapping[str, Any]
    known: Set[str]
    """Keys of verl's own files."""


def _import_training(made: ImportedLaunch, program: Program, placeholders: Sequence[str]) -> None:
    composed = _compose_launch(made, program, placeholders)
    choices = ["engine=verl", *_choices(program, composed.given, composed.config), *_environment(made, placeholders)]
    typed = [SourcedOverride(word, f"{made.name}: {word}", "recipe") for word in [*choices, *composed.words]]
    found, implied = _with_defaults(typed, composed.implied)
    found = _exactly(made, found, composed.config, composed.known)
    made.run = found.run
    made.problems = [*dict.fromkeys([*made.problems, *(problem.within(made.name) for problem in found.problems)])]
    without_defaults = [word for word in found.request.overrides if not word.where.startswith(DEFAULT)]
    arguments = _recipe_arguments(found, resolve_request(RunRequest(without_defaults)).run)
    made.arguments = [word.text for word in arguments]
    made.changes += [Replacement(one.typed.text, one.message) for one in found.taken if one.typed.text not in implied]
    made.changes += [
        Replacement(word.where.removeprefix(f"{DEFAULT}: "), f"{DEFAULT}, said as {word.text}")
        for word in arguments if word.where.startswith(DEFAULT)
    ]  # fmt: skip


def _compose_launch(made: ImportedLaunch, program: Program, placeholders: Sequence[str]) -> _Composed:
    typed = _with_processes(made, _known(made, _without_flags(made, program), placeholders), program)
    chosen, typed = _groups(made, _with_server(made, typed, program), program)
    flags = [word for word in typed if word.startswith("-")]
    base_config = dict(walk(compose([*flags, *chosen], program).config, lists=False))
    settings = _without_plus(made, [word for word in typed if word not in flags], base_config)
    now, problems = as_passed_on(settings, program, chosen)
    found = compose([*flags, *chosen, *filter(None, now)], program)
    made.problems += [problem.within(made.name) for problem in problems if not table().named.get(problem.where)]
    made.problems += [problem.within(made.name) for problem in found.problems if problem.code != "conflicting-settings"]
    todays = dict(zip(settings, now, strict=True))
    beside = _reward_model_beside(found.config, todays)
    words = [*_strategy(chosen, program), *(word for word in todays if word not in beside and _is_known(word, todays))]
    words += [f"{EXTRA}={literal([*beside.values()])}"] if beside else []
    given = {key_of(word) for word in [*words, *now]}
    return _Composed(words, given, _implied(found.config, given, bool(beside)), found.config, base_config.keys())


def _is_known(word: str, todays: Mapping[str, str]) -> bool:
    """Whether verl has it today, or we have a word for it."""
    return bool(todays[word]) or key_of(word) in table().named


def _implied(config: Mapping[str, Any], given: Set[str], beside: bool) -> list[str]:
    """Verl's values of what is not given, as arguments; those of a reward model that stands `beside` are said there."""
    return [
        argument_of(key, value)
        for key, value in walk(config, lists=False)
        if key not in given and _stands_for_ours(key, value) and not (beside and key.startswith(REWARD_MODEL))
    ]


def _reward_model_beside(config: Mapping[str, Any], todays: Mapping[str, str]) -> dict[str, str]:
    """The words for a reward model, by what the script says, where a function of the script's scores with it: the
    function is the run's reward, and the model stands beside it."""
    reward = config.get("reward") or {}
    both = reward.get("reward_model", {}).get("enable") and reward.get("custom_reward_function", {}).get("path")
    return {word: new for word, new in todays.items() if both and key_of(new).startswith(REWARD_MODEL)}


def _with_defaults(typed: Sequence[SourcedOverride], implied: Sequence[str]) -> tuple[Resolution, list[str]]:
    """The run of the typed words and of verl's defaults, of those that have a counterpart of ours that it reads."""
    left = [word for word in implied if key_of(word) != UNREAD]
    for _ in range(3):
        defaults = [SourcedOverride(word, f"{DEFAULT}: {word}", "recipe") for word in left]
        found = resolve_request(RunRequest([*defaults, *typed]))
        of_words = {one.typed.text: one.words for one in found.taken if one.typed in defaults}
        wrong = {problem.where for problem in found.problems} | _unread(found.run)
        out = [
            word for word in left
            if EXTRA in (ours := of_words.get(word, (word,))) or wrong & {key_of(word), *map(key_of, ours)}
        ]  # fmt: skip
        if not out:
            break
        left = [word for word in left if word not in out]
    return found, left


def _exactly(made: ImportedLaunch, found: Resolution, wanted: Mapping[str, Any], known: Set[str]) -> Resolution:
    """The run whose config for verl is the script's, key by key: what our words do not say is passed on, with a `+`
    where the key is not among those `known` to verl's files."""
    if not found.run or found.problems:
        return found
    differ = differing(wanted, config_of(found.run))
    more = [argument_of(key if key in known else f"+{key}", value) for key, value in differ]
    if not more:
        return found
    given = list(found.run.engine.extra)  # type: ignore[attr-defined]
    keys = {key_of(word) for word in more}
    extra = [*(word for word in given if key_of(word) not in keys), *more]
    others = [word for word in found.request.overrides if key_of(word.text) != EXTRA]
    passed = SourcedOverride(f"{EXTRA}={literal(extra)}", made.name, "recipe")
    typed = {key_of(word) for word in made.launch.words}
    for word in more:
        whose = "" if key_of(word) in typed else f"{DEFAULT}, "
        made.changes.append(Replacement(word, f"{whose}passed on to {PROJECT}, as no setting here says just that"))
    exact = resolve_request(RunRequest([*others, passed]))
    return replace(exact, taken=found.taken)


def _unread(run: RunSpec | None) -> set[str]:
    """Settings that are given and that the run does not read."""
    return {result.subject for result in unread.check(Context(run, here=False))} if run else set()


# ---- the script's words


def _known(made: ImportedLaunch, words: Sequence[str], placeholders: Sequence[str]) -> list[str]:
    """The words without those of which only running could tell the value, each of them named; a name stays as far as
    it is known."""
    found = []
    for word in words:
        parts = [part for part in placeholders if part and part in word.partition("=")[2]]
        if key_of(word) in ("trainer.project_name", "trainer.experiment_name"):
            found += _known_name(made, word, parts)
        elif reason := _why_left_out(word, parts):
            made.notes.append(f"{made.name}: {reason}")
        else:
            found.append(word)
    return found


def _known_name(made: ImportedLaunch, word: str, parts: Sequence[str]) -> list[str]:
    """A name of a run or project as the name of a folder; empty where nothing of it is known."""
    key, _, value = word.partition("=")
    known = value
    for part in parts:
        known = known.replace(part, "")
    plain = _NAME.sub("-", known.strip("'\" ")).strip("-._")[:128]
    if not plain:
        made.notes.append(f"{made.name}: {word} is left out; a run gets a name of its own")
        return []
    if plain != value.strip("'\""):
        made.changes.append(Replacement(word, f"taken as {key}={plain}; it is the name of a folder"))
    return [f"{key}={plain}"]


def _why_left_out(word: str, parts: Sequence[str]) -> str:
    """Empty where the word is taken. `parts` of its value are known only when the script runs."""
    key, equals, value = word.partition("=")
    named = key in table().named
    if is_secret_name(key) and not named and not re.fullmatch(r"[\d.]*|true|false|null", value.lower()):
        return f"{key} is left out, as it is a secret"
    if parts:
        return f"{word} is left out; only running the script tells {', '.join(parts)}"
    if equals and not value.strip("'\"") and (named or key in TAKEN):
        return f"{word} is left out; it is empty: not set, or known only when it runs"
    if key.lstrip("+~").startswith(("hydra.", "hydra/")):
        return f"{word} is left out; no files of Hydra are written"
    return ""


def _without_flags(made: ImportedLaunch, program: Program) -> list[str]:
    """The words without Hydra's flags that name a config of verl itself."""
    found, flags, left = list[str](), dict[str, str](), list(made.launch.words)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if flag in FLAGS or flag in FLAGS.values():
            value = value if equals else left.pop(0) if left else ""
            flag = FLAGS.get(flag, flag)
            flags[flag] = value.removesuffix(".yaml") if flag == "--config-name" else value
        elif "=" in word or word.startswith(("-", "~")):
            found.append(word)
        else:
            made.notes.append(f"{made.name}: {word} is left out; it is no argument of verl")
    name = flags.get("--config-name", CONFIGS[program][0])
    if name in (*_CONFIGS, "sft_trainer") and Path(flags.get("--config-path", "config")).name == "config":
        flags.pop("--config-path", None)  # verl's own folder of configs
    if name == "sft_trainer":
        flags.pop("--config-name")
    return [*found, *(f"{flag}={value}" for flag, value in flags.items())]


def _groups(made: ImportedLaunch, typed: Sequence[str], program: Program) -> tuple[list[str], list[str]]:
    """verl's choices for its training backend, also where the script chooses it in another way; and the other words."""
    chosen = {key_of(word): word for word in typed if key_of(word) in _CHOICES[program]}
    if any("megatron" in word for word in typed if key_of(word) in _BACKEND):
        chosen = {key_of(word): word for word in MEGATRON[program]} | chosen
    backend = chosen.get("engine", "fsdp").rpartition("=")[2]
    if backend not in ("fsdp", "megatron"):
        got = f"verl's backend {backend}: SFT of a run with engine=verl is with fsdp or megatron"
        made.refuse(got, "use one of them")
    for word in filter(typed.__contains__, chosen.values() if program == "sft" else ()):
        taken = "taken as engine.strategy=megatron" if word.endswith("megatron") else "left out; it is so here, too"
        made.changes.append(Replacement(word, taken))
    return [*chosen.values()], [word for word in typed if word not in chosen.values()]


def _strategy(chosen: Sequence[str], program: Program) -> list[str]:
    """The arguments of `rlrun train` for verl's choices; another `model_engine` is passed on."""
    if any(word.endswith("megatron") for word in chosen):
        return ["engine.strategy=megatron"]
    return list(chosen) if program == "ppo" else []


_CHOICES: Mapping[Program, Sequence[str]] = {"sft": ("engine", "optim"), "ppo": ("model_engine",)}
_BACKEND = ("actor_rollout_ref.actor.strategy", "model_engine", "--config-name")


def _without_plus(made: ImportedLaunch, words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The words; of each `+key=value` that older versions did not know and 0.9.1 does, which refuses it so, the `+` is
    taken away. `known` are the values of verl's own files, by key."""
    found = list[str]()
    for word in words:
        key = key_of(word)
        if word.startswith("+") and not word.startswith("++") and known.get(key) not in (None, {}):
            made.changes.append(Replacement(word, f"taken as {word[1:]}; verl 0.9.1 has this key"))
            word = word[1:]
        found.append(word)
    return found


def _with_server(made: ImportedLaunch, words: list[str], program: Program) -> list[str]:
    """With an inference server, of which verl has no default."""
    if program != "ppo" or SERVER in map(key_of, words):
        return words
    made.changes.append(Replacement(SERVER, "the script names no inference server, and verl has no default; vllm"))
    return [*words, f"{SERVER}=vllm"]


def _with_processes(made: ImportedLaunch, words: list[str], program: Program) -> list[str]:
    """With the machines and GPUs that torchrun says, where verl's words do not."""
    given = {key_of(word) for word in words}
    for option, key in (("nproc-per-node", "trainer.n_gpus_per_node"), ("nnodes", "trainer.nnodes")):
        count = made.launch.processes.get(option, "")
        if program == "sft" and key not in given and count.isdecimal():
            words.append(f"{key}={count}")
            made.changes.append(Replacement(f"torchrun --{option}={count}", f"taken as {key}={count}"))
    return words


def _environment(made: ImportedLaunch, placeholders: Sequence[str]) -> list[str]:
    kept = {}
    for name, value in made.launch.environment.items():
        if name in SHELL:
            continue
        if is_secret_name(name):
            made.notes.append(f"{made.name}: {name} is left out, as it is a secret; set it in your shell")
        elif any(part and part in value for part in placeholders):
            made.notes.append(f"{made.name}: {name} is left out; only running the script tells its value")
        else:
            kept[name] = value
    return [f"engine.env={literal(kept)}"] if kept else []


# ---- what is not typed


def _stands_for_ours(key: str, value: Any) -> bool:
    """Whether verl's value of a key that is not typed has to be said in our words."""
    meanings = [each for each in table().named.get(key, ()) if key in each.names.get(PROJECT, ())]
    return value not in (None, "???", [], {}) and any(map(_is_setting, meanings))


def _is_setting(meaning: Translation) -> bool:
    return bool(meaning.ours) and not any(f"{meaning.ours[0]}.".startswith(f"{own}.") for own in OWN)


def _choices(program: Program, given: set[str], config: Mapping[str, Any]) -> list[str]:
    """Choices that no word of the script makes."""
    if program == "sft":
        return ["algorithm=sft"]
    of_reward = any(key.lstrip("+").startswith(("reward", "custom_reward_function", "sandbox_fusion")) for key in given)
    named = any(key.endswith(("custom_reward_function.path", "model_path", "reward_model.path")) for key in given)
    nodes = (config.get("trainer") or {}).get("nnodes")
    cluster = ["cluster=ray", "cluster.address=auto"] if isinstance(nodes, int) and nodes > 1 else []
    seed = config["actor_rollout_ref"]["actor"].get("data_loader_seed")
    return [*cluster, *([f"seed={seed}"] if seed else []), *([] if of_reward and named else ["reward=auto"])]


# ---- the run


def _recipe_arguments(found: Resolution, plain: RunSpec | None) -> list[SourcedOverride]:
    """Our words, without verl's defaults that the run has anyway (`plain` is the run without them)."""
    whole = flat(to_node(found.run)) if found.run else {}
    without = flat(to_node(plain)) if plain else {}
    kept = dict[str, SourcedOverride]()
    for word in found.request.overrides:
        key = key_of(word.text)
        same = key in whole and whole.get(key) == without.get(key)
        fitted = key in REASONS and (found.run is None or found.run.has_critic or not key.startswith("critic."))
        if not word.where.startswith(DEFAULT) or not same or fitted:
            before = kept.pop(key, word)
            kept[key] = before if before.text == word.text and word.where.startswith(DEFAULT) else word
    return [*kept.values()]
