"""What to type here for a setting of another project and its value. Nothing here reads a config."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from launcher.config.names.table import Translation, table
from launcher.config.names.values import words_of_value
from launcher.core.files import conf_dir
from launcher.core.overrides import literal

_PLACEHOLDER = re.compile(r"=([A-Z]{3,}(\.py)?|VALUE)$")
_ALIASES = {"yes": "true", "on": "true", "1": "true", "off": "false", "0": "false", "none": "null"}
_UNSET = ("", "null", "none", "[]", "{}")
_OFF = (*_UNSET, "false", "no", "off")
_OTHER_CHOICES = ("full", "hf", "huggingface")
"""Values of switches that choose something else, without the setting: all weights, a sampler other than vLLM."""


@dataclass(frozen=True)
class RunContext:
    """What is known of the run in whose arguments a name is typed."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of all that is typed: full names of other projects, and settings of ours."""
    has_gpus: bool = False

    def is_on(self, *names: str) -> bool:
        """Whether one of these names is typed with a value that does not switch it off."""
        return any(name in self.given and not is_off(self.given[name]) for name in names)

    def says_better(self, meaning: Translation, value: str) -> bool:
        """Whether another typed name takes precedence over the meaning with this value, or switches it off."""
        return self.is_off(*meaning.switch) or (not is_off(value) and self.is_on(*meaning.unless))

    def is_off(self, *names: str) -> bool:
        typed = [self.given[name] for name in names if name in self.given]
        return any(is_off(value) or _normalize(value) in _OTHER_CHOICES for value in typed)


@cache
def names_of(setting: str) -> tuple[str, ...]:
    """A setting of ours, and every name of another project that means this setting alone."""
    meanings = (meaning for meaning in table().meanings if meaning.ours == (setting,))
    return (setting, *dict.fromkeys(name for each in meanings for names in each.names.values() for name in names))


def convert(meaning: Translation, value: str, known: RunContext) -> list[str] | None:
    """The arguments to type; empty where it is to be left out; None where this value has no counterpart."""
    plain = _normalize(value)
    value_words = None if meaning.values is None else _look_up(meaning.values, plain)
    if value_words is None and plain in _UNSET:
        return []
    if known.says_better(meaning, value):
        return []
    if meaning.convert:
        return RULES[meaning.convert](value, known)
    pattern = value_words if value_words is not None else _pattern(meaning)
    if value_words is None and is_off(plain) and "{}" not in (pattern or ""):
        return []  # a feature that does not exist here is off already
    return None if pattern is None else [word.replace("{}", value) for word in pattern.split()]


def _pattern(meaning: Translation) -> str | None:
    """The arguments for any value, with `{}` in its place; None where the meaning has none."""
    if meaning.values is not None:
        return meaning.values.get("*")
    if meaning.use or meaning.instead or not meaning.ours:
        return meaning.use or None
    return f"{meaning.ours[0]}={{}}"


def is_complete(words: list[str]) -> bool:
    """Whether the words can be typed as they are; `STEPS` and the like stand for values that only the user knows."""
    return not any(_PLACEHOLDER.search(word) for word in words)


def is_off(value: str) -> bool:
    """Whether a value switches something off, or is unset: `false`, `0`, `null`."""
    return _normalize(value) in _OFF or number(value) == 0


def is_unset(value: str) -> bool:
    """Whether a value sets nothing: `null`, an empty text or list."""
    return _normalize(value) in _UNSET


def number(text: str) -> float | None:
    try:
        found = float(text.strip("'\""))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _normalize(value: str) -> str:
    return value.strip("'\" ").lower()


def _look_up(values: Mapping[str, str], plain: str) -> str | None:
    last = plain if number(plain) is not None else plain.rpartition(".")[2]  # of torch.bfloat16, but not of 1.0
    spellings = (plain, _ALIASES.get(plain, plain), last)
    return next((values[each] for each in spellings if each in values), None)


def _whole_number(text: str) -> int | None:
    found = number(text)
    return int(found) if found is not None and found.is_integer() else None


# ---- processes and memory


def _gpus(value: str, run: RunContext) -> list[str]:
    per_node = _whole_number(value) or "GPUS"
    if run.is_on("use_cpu", "no_cuda"):
        return [f"hardware.nproc_per_node={per_node}"]
    return [*(() if run.has_gpus else ("hardware=gpu",)), f"hardware.n_gpus_per_node={per_node}"]


def _bf16(value: str, run: RunContext) -> list[str] | None:
    """Mixed precision: bfloat16 arithmetic with float32 weights; weights in bfloat16 need no such setting."""
    plain = _normalize(value).rpartition(".")[2]
    if plain == "full":
        return ["model.dtype=bfloat16"]
    if plain not in ("true", "yes", "on", "1", "auto", "bf16", "bfloat16"):
        return [] if is_off(plain) or plain in ("fp32", "float32") else None
    weights = [_normalize(run.given.get(name, "")).rpartition(".")[2] for name in names_of("model.dtype")]
    if any(each in ("bfloat16", "bf16") for each in weights) or run.is_on("pure_bf16", "bfloat16"):
        return []
    return ["engine.mixed_precision=true"]


# ---- adapters


def _lora(value: str, run: RunContext, *, rank: int, alpha: int, scale_by_rank: bool = False) -> list[str] | None:
    """The rank, and where no alpha is typed, the project's default: `alpha`, times the rank with `scale_by_rank`."""
    plain = _normalize(value)
    requested = rank if plain in ("true", "yes", "on", "lora") else _whole_number(plain)
    if requested is None:
        return [] if is_off(plain) or plain == "full" else None
    words = [f"model.lora_rank={requested}"]
    if requested > 0 and not any(name in run.given for name in names_of("model.lora_alpha")):
        words.append(f"model.lora_alpha={alpha * requested if scale_by_rank else alpha}")
    return words


def _lora_alpha(value: str, run: RunContext) -> list[str]:
    """The alpha; 0 is left out where there are no adapters, as it is not read then."""
    return [] if number(value) == 0 and not run.is_on(*names_of("model.lora_rank")) else [f"model.lora_alpha={value}"]


def _modules(value: str, run: RunContext) -> list[str]:
    """The modules with adapters: names separated by commas, or already a list."""
    plain = value.strip("'\" ")
    if plain.lower() in ("all", "all-linear"):
        plain = "all-linear"
    elif "," in plain and not plain.startswith("["):
        plain = f"[{','.join(name.strip() for name in plain.split(',') if name.strip())}]"
    return [f"model.target_modules={plain}"]


# ---- the rest


def _algorithm(value: str, run: RunContext) -> list[str] | None:
    """The choice that stands for verl's estimator, loss and filter of groups together."""
    plain, filtered = _normalize(value), run.is_on("algorithm.filter_groups.enable")
    estimator = _normalize(run.given.get("algorithm.adv_estimator", ""))
    loss = _normalize(run.given.get("actor_rollout_ref.actor.policy_loss.loss_mode", ""))
    if plain == "gae":
        return ["algorithm=ppo"]
    if is_off(plain) or plain == "vanilla":
        return []
    if plain not in ("grpo", "grpo_vectorized", "gspo", "true") or estimator not in ("", "grpo", "grpo_vectorized"):
        return None  # for example a critic or another estimator with this loss or filter
    if "gspo" in (plain, loss):
        return ["algorithm=gspo"] if plain != "true" else None
    if plain == "true" and run.given.get("algorithm", "grpo") not in ("grpo", "dapo"):
        return None
    return ["algorithm=dapo"] if filtered or plain == "true" else ["algorithm=grpo"]


def _clip(value: str, run: RunContext) -> list[str]:
    """Both sides of the clip range, except one that is typed by its own name."""
    low = run.given.get("actor_rollout_ref.actor.clip_ratio_low", value)
    high = next((run.given[name] for name in names_of("algorithm.clip_ratio_high") if run.is_on(name)), value)
    return [f"algorithm.clip_ratio_low={low}", f"algorithm.clip_ratio_high={high}"]


def _dataset(value: str, run: RunContext) -> list[str]:
    """The data: files, a hub's dataset, or a choice."""
    name = value.strip("'\"")
    is_choice = re.fullmatch(r"[\w.-]+", name)
    if is_choice and (conf_dir() / "data" / f"{name}.yaml").is_file():  # also where a folder has its name
        return [f"data={name}"]
    return words_of_value("data", name) or ([f"data={value}"] if is_choice else ["data=files", "data.train_files=FILE"])


def _betas(value: str, run: RunContext) -> list[str]:
    return [f"optim.betas=[{run.given.get('adam_beta1', '0.9')},{run.given.get('adam_beta2', '0.999')}]"]


def _steps(value: str, run: RunContext, setting: str) -> list[str]:
    """A number of steps; for a fraction of all steps the user has to say how many these are."""
    steps = _whole_number(value)
    return [f"{setting}={'STEPS' if steps is None else steps}"]


def _warmup(value: str, run: RunContext) -> list[str]:
    """Warm-up steps; empty for 0 and verl's -1, which mean that a ratio is used instead."""
    return [] if (number(value) or 1) < 0 or is_off(value) else _steps(value, run, "optim.lr_warmup_steps")


def _reward_functions(value: str, run: RunContext) -> list[str] | None:
    """The user's own reward function, also by its module, a reward model or a service; None for a list of several."""
    name = value.strip("'\"")
    if name.startswith("["):
        return None
    if name == "accuracy_reward":  # TRL's own
        return ["reward=math"]
    if words := words_of_value("reward", name):
        return words
    module, _, function = name.rpartition(".")
    return ["reward=python", f"reward.path={module.replace('.', '/') or 'FILE'}.py", f"reward.name={function}"]


def _template_args(value: str, run: RunContext) -> list[str]:
    """Template arguments; JSON is rewritten, as Hydra does not accept quotes around names."""
    try:
        return [f"data.template_args={literal(json.loads(value))}"]
    except ValueError:
        return [f"data.template_args={value}"]


def _one_key(value: str, run: RunContext, setting: str) -> list[str] | None:
    """The setting with the one name of a list; None where the list has several."""
    name = value.strip("[]'\" ")
    return [f"{setting}={name}"] if re.fullmatch(r"[\w.-]+", name) else None


RULES: Mapping[str, Callable[[str, RunContext], list[str] | None]] = {
    "gpus": _gpus, "bf16": _bf16,
    "lora": partial(_lora, rank=16, alpha=32), "lora_twice": partial(_lora, rank=8, alpha=2, scale_by_rank=True),
    "lora_peft": partial(_lora, rank=8, alpha=8), "lora_verl": partial(_lora, rank=16, alpha=16),
    "lora_alpha": _lora_alpha, "modules": _modules, "algorithm": _algorithm, "clip": _clip, "dataset": _dataset,
    "betas": _betas, "warmup": _warmup,
    "functions": _reward_functions, "template_args": _template_args,
    "one_key": partial(_one_key, setting="data.prompt_key"),
    "one_response_key": partial(_one_key, setting="data.response_key"),
    "save_every": partial(_steps, setting="trainer.save_freq"),
    "test_every": partial(_steps, setting="trainer.test_freq"),
}  # fmt: skip
