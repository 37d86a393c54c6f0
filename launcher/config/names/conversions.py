"""What to type here for a setting of another project and its value. Nothing here reads a config."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.config.names.table import Meaning
from launcher.spec.data import ENDINGS

_OPEN = re.compile(r"=([A-Z]{3,}(\.py)?|VALUE)$")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ALIASES = {"yes": "true", "on": "true", "1": "true", "off": "false", "0": "false", "none": "null"}


@dataclass(frozen=True)
class Situation:
    """What is known of the run that a name is typed for."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Names of other projects that are typed with it, without what stands before their last dot -> values."""
    processes: int = 1
    answers: int = 1
    """Answers to one prompt, where the algorithm samples."""
    pairs: bool = False
    batch: int | None = None
    steps: int | None = None
    prompt_length: int = 512

    def number(self, *names: str) -> float | None:
        """The value of the first of these names that is typed."""
        return next((number(self.given[name]) for name in names if name in self.given), None)


def to_type(meaning: Meaning, value: str, known: Situation) -> list[str] | None:
    """The words to type; none of them where it is to be left out; None where this value has no counterpart."""
    if meaning.convert:
        return RULES[meaning.convert](value, known)
    if meaning.values is not None:
        pattern = _looked_up(meaning.values, value)
    elif meaning.use or meaning.instead or not meaning.ours:
        pattern = meaning.use or None
    else:
        pattern = f"{meaning.ours[0]}={{}}"
    return None if pattern is None else [word.replace("{}", value) for word in pattern.split()]


def is_complete(words: list[str]) -> bool:
    """Whether they can be typed as they are; `STEPS` and the like stand for what only a person knows."""
    return not any(_OPEN.search(word) for word in words)


def is_off(value: str) -> bool:
    """Whether a value switches something off: `false`, `0`, `null`."""
    plain = value.strip("'\"").lower()
    return _ALIASES.get(plain, plain) in ("false", "null") or number(plain) == 0


def number(text: str) -> float | None:
    try:
        found = float(text.strip("'\""))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _looked_up(values: Mapping[str, str], value: str) -> str | None:
    plain = value.strip("'\"").lower()
    spellings = (plain, _ALIASES.get(plain, plain), plain.rpartition(".")[2])  # torch.bfloat16
    return next((values[each] for each in spellings if each in values), values.get("*"))


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == int(value) else None


def _step_batch(value: str, known: Situation) -> list[str]:
    """A whole step's rows: of one process x gradient accumulation x processes; of GRPO's answers the prompts."""
    given = known.number("per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size")
    each, times = _whole(given), _whole(known.number("gradient_accumulation_steps") or 1)
    if not each or not times:
        return ["data.train_batch_size=ROWS", "trainer.micro_batch_size_per_gpu=ROWS"]
    answers = _whole(known.number("num_generations")) or known.answers
    rows = each * times * known.processes
    whole = f"{rows // answers}" if rows % answers == 0 else "PROMPTS"
    micro = each * 2 if known.pairs else each
    return [f"data.train_batch_size={whole}", f"trainer.micro_batch_size_per_gpu={micro}"]


def _per_group(value: str, known: Situation) -> list[str]:
    answers, each = _whole(number(value)), _whole(known.number("num_generations")) or known.answers
    return [f"data.train_batch_size={answers // each if answers and answers % each == 0 else 'PROMPTS'}"]


def _per_process(value: str, known: Situation) -> list[str]:
    rows = _whole(number(value))
    each = rows // known.processes if rows and rows % known.processes == 0 else "ROWS"
    return [f"trainer.micro_batch_size_per_gpu={each}"]


def _mini_batches(value: str, known: Situation) -> list[str]:
    parts, batch = _whole(number(value)), known.batch
    size = batch // parts if parts and batch and batch % parts == 0 else "PROMPTS"
    return [f"trainer.ppo_mini_batch_size={size}"]


def _lengths(value: str, known: Situation) -> list[str]:
    """Prompt and answer with this sum."""
    both = _whole(number(value))
    if not both or both < 2:
        return ["data.max_prompt_length=TOKENS", "data.max_response_length=TOKENS"]
    prompt = min(known.prompt_length, both // 2)
    return [f"data.max_prompt_length={prompt}", f"data.max_response_length={both - prompt}"]


def dataset_words(value: str) -> list[str]:
    """The words that choose files or a hub's dataset; none where `value` is neither."""
    name = value.strip("'\"")
    if name.lower().endswith(ENDINGS):
        return ["data=files", f"data.train_files={value}"]
    return ["data=hub", f"data.repo={value}"] if _HUB_ID.fullmatch(name) else []


def _dataset(value: str, known: Situation) -> list[str]:
    """Files, a hub's dataset, or a choice."""
    choice = re.fullmatch(r"[\w.-]+", value.strip("'\""))
    return dataset_words(value) or ([f"data={value}"] if choice else ["data=files", "data.train_files=FILE"])


def _betas(value: str, known: Situation) -> list[str]:
    def one(name: str, default: str) -> str:
        return known.given.get(name, default)

    return [f"optim.betas=[{one('adam_beta1', '0.9')},{one('adam_beta2', '0.999')}]"]


def _warmup(value: str, known: Situation) -> list[str]:
    """Steps; a value below 1 is a fraction of them."""
    given = number(value)
    steps = _whole(known.number("max_steps")) or known.steps
    if given is not None and given == int(given) and given >= 0:
        return [f"optim.lr_warmup_steps={int(given)}"]
    if given is None or not 0 < given < 1 or not steps or steps < 0:
        return ["optim.lr_warmup_steps=STEPS"]
    return [f"optim.lr_warmup_steps={math.ceil(given * steps)}"]


def _epochs(value: str, known: Situation) -> list[str]:
    given = _whole(number(value))
    return [f"trainer.total_epochs={'EPOCHS' if given is None else given}"]


RULES: Mapping[str, Callable[[str, Situation], list[str]]] = {
    "step_batch": _step_batch, "per_group": _per_group, "per_process": _per_process, "mini_batches": _mini_batches,
    "lengths": _lengths, "dataset": _dataset, "betas": _betas, "warmup": _warmup, "epochs": _epochs,
}  # fmt: skip
