"""Translates fields of the job API to arguments of rlrun, by one table, `conf/job_words.yaml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Literal

import yaml

from launcher.core import machine
from launcher.core.bounded_parse import LOADER
from launcher.core.files import conf_dir
from launcher.core.overrides import argument, literal


@dataclass(frozen=True)
class Word:
    """A field of the job API; the head of the table explains these columns."""

    type: Literal["text", "integer", "number"]
    example: Any
    about: str
    setting: str = ""
    use: str = ""
    least: float | None = None
    rule: Literal["", "lower", "files", "train_files", "gpus", "lengths", "kl"] = ""


@cache
def words() -> Mapping[str, Word]:
    """All fields by name; the table is read at the first call."""
    rows = yaml.load((conf_dir() / "job_words.yaml").read_bytes(), LOADER)
    return {name: Word(**row) for name, row in rows.items()}


def arguments_of(fields: Mapping[str, Any]) -> list[str]:
    """The arguments for these fields, whose values are valid; empty ones give none."""
    given = ((words()[name], value) for name, value in fields.items() if value != "")
    return list(dict.fromkeys(chain.from_iterable(_arguments(word, value, fields) for word, value in given)))


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
            scored = ["reward=auto"] if word.rule == "train_files" else []  # scored by each row's data_source
            return [*_fill_template(word.use, literal(files)), *scored]
        case "lower":
            return _fill_template(word.use, _quote_value(value.lower()))
    return _fill_template(word.use or (f"{word.setting}={{}}" if word.setting else ""), _quote_value(value))


def _hardware(count: int) -> list[str]:
    gpus = ["hardware=gpu", f"hardware.n_gpus_per_node={count}"]
    if count and machine.visible_gpus():
        return gpus
    return [*gpus, "cluster=ray"] if count and os.environ.get("RAY_ADDRESS") else ["hardware=cpu"]


def _quote_value(value: Any) -> str:
    return argument("", value).removeprefix("=") if isinstance(value, str) else literal(value)


def _fill_template(use: str, value: str) -> list[str]:
    return [part.replace("{}", value) for part in use.split()]
