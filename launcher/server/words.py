"""The documents' fields of a job and our arguments: one table, `conf/job_words.yaml`, read both ways."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import yaml

from launcher.core import machine
from launcher.core.bounded_parse import LOADER
from launcher.core.files import conf_dir
from launcher.core.overrides import argument, literal
from launcher.core.problems import Problem, Problems, short_repr

TYPES: Mapping[str, tuple[type, ...]] = {"text": (str,), "integer": (int,), "number": (int, float)}
SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*")


@dataclass(frozen=True)
class Word:
    """A field; the table explains each of these."""

    type: Literal["text", "integer", "number"]
    example: Any
    about: str
    setting: str = ""
    use: str = ""
    shown: str = ""
    least: float | None = None
    rule: Literal["", "lower", "files", "train_files", "gpus", "lengths", "kl"] = ""

    @property
    def settings(self) -> list[str]:
        """Those whose values it shows."""
        return (self.shown or self.setting).split()


@cache
def words() -> Mapping[str, Word]:
    """All fields, by name. The file is read at the first call."""
    rows = yaml.load((conf_dir() / "job_words.yaml").read_bytes(), LOADER)
    return {name: Word(**row) for name, row in rows.items()}


def arguments_of(fields: Mapping[str, Any]) -> list[str]:
    """The arguments that these fields become; empty and null ones become none. Raises `Problems` with all that is
    wrong with them."""
    found, problems = list[str](), list[Problem]()
    for name, value in fields.items():
        word = words()[name]
        if value in (None, ""):
            continue
        if problem := _problem(name, word, value):
            problems.append(problem)
        else:
            found += _arguments(word, value, fields)
    if problems:
        raise Problems(problems)
    return list(dict.fromkeys(found))


def _problem(name: str, word: Word, value: Any) -> Problem | None:
    if isinstance(value, bool) or not isinstance(value, TYPES[word.type]):
        return Problem(name, f"got {short_repr(value)}", f"use a {word.type}, such as {word.example}")
    if word.least is not None and isinstance(value, int | float) and not word.least <= value:
        return Problem(name, f"got {short_repr(value)}", f"use at least {word.least:g}")
    return None


def _arguments(word: Word, value: Any, fields: Mapping[str, Any]) -> list[str]:
    match word.rule:
        case "gpus":
            return _hardware(value)
        case "lengths":
            prompt = value // 3
            return [f"data.max_prompt_length={prompt}", f"data.max_response_length={value - prompt}"]
        case "kl":
            of_reward = str(fields.get("algorithm", "")).lower() == "ppo"
            return [f"algorithm.{'kl_coef' if of_reward else 'kl_loss_coef'}={literal(value)}"]
        case "files" | "train_files":
            files = [part.strip() for part in value.split(",") if part.strip()]
            scored = ["reward=auto"] if word.rule == "train_files" else []  # by each row's data_source
            return [*_typed(word.use, literal(files)), *scored]
        case "lower":
            return _typed(word.use, _value(value.lower()))
    return _typed(word.use or (f"{word.setting}={{}}" if word.setting else ""), _value(value))


def _hardware(count: int) -> list[str]:
    if count and (machine.visible_gpus() or os.environ.get("RAY_ADDRESS")):
        return ["hardware=gpu", f"hardware.n_gpus_per_node={count}"]
    return ["hardware=cpu"]


def _value(value: Any) -> str:
    return argument("", value).removeprefix("=") if isinstance(value, str) else literal(value)


def _typed(use: str, value: str) -> list[str]:
    return [part.replace("{}", value) for part in use.split()]


def settings_as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """`{"optim.lr": 1e-5}` as it would be typed. Raises `Problems` for what is no name."""
    alien = [name for name in settings if not SETTING.fullmatch(name)]
    if alien:
        raise Problems(Problem(short_repr(name), "is no name of a setting", "use such as optim.lr") for name in alien)
    return [f"{name}={_value(value)}" for name, value in settings.items()]


def shown_words(node: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a run's settings (spec.yaml) make."""
    found = dict[str, Any]()
    for name, word in words().items():
        values = [value for value in (_at(node, setting) for setting in word.settings) if value is not None]
        if word.type == "text":
            texts = values[0] if values and isinstance(values[0], list) else values
            found |= {name: ", ".join(map(str, texts)) or None} if word.settings else {}
        elif word.settings:
            numbers = [value for value in values if isinstance(value, int | float)]
            found[name] = sum(numbers) if numbers else None
    return found


def _at(node: Any, setting: str) -> Any:
    for part in setting.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
