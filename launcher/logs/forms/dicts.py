"""Lines with one Python dict or JSON object: TRL, Hugging Face's Trainer, ms-swift, LLaMA-Factory, verl's file logger.

{'loss': 0.0774, 'grad_norm': nan, 'learning_rate': '5.26e-07', 'epoch': 0.05}
{"step":4,"data":{"actor/entropy":5.96}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from launcher.core.bounded_parse import parse_json
from launcher.core.metric_aliases import canonical
from launcher.logs.forms.values import MOST_STEPS, NUMBER, of_evaluation, to_number, unscaled

_JSON_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "None": "false", "True": "true", "False": "false"}
"""Python's words in JSON, where null may be NaN."""
_PYTHON_WORD = re.compile(r"(?<![\w'\"./-])(?:-?inf|nan|None|True|False)(?![\w'\"./(])")
_WRAPPER = re.compile(r"(?<![\w.'\"])[A-Za-z_][\w.]{0,40}\(\s{0,4}\[?([-+\w.]{1,60})\]?(?:,[^(){}]{0,100})?\)")
_PAIR = re.compile(
    r"""(?:(?<=[{,])|(?<=[{,]\s))['"]([^'"{}]{1,200})['"]\s{0,4}:\s{0,4}"""
    r"""(?:'([^'{}\[\]]{1,80})'|"([^"{}\[\]]{1,80})"|([^'",{}\[\]]{1,80}))"""
)
_BRACE_OR_TEXT = re.compile(r"""[{}]|'(?:[^'\\]|\\.){0,4000}'|"(?:[^"\\]|\\.){0,4000}\"""")
"""A brace, or a quoted text, whose braces do not count."""
BESIDE = dict.fromkeys(
    (
        "current_steps", "step", "global_step", "train/global_step", "training/global_step", "trainer/global_step",
        "iteration", "iter", "_step", "num_updates", "system/step",
    )
).keys()  # fmt: skip
"""Names of the step in a dict of metrics, the most certain first."""
STEP_NAME = re.compile(r"(?:.{0,80}[^A-Za-z])?(?:steps?|iter(?:ation)?s?|updates?|iter_num)|it", re.IGNORECASE)
"""A name that may be that of the step, where its numbers rise."""
TRAINING_ONLY = {"train/loss", "actor/loss", "actor/pg_loss", "critic/vf_loss", "actor/grad_norm"}
"""Metrics that only a training step has."""
_STEP_OF_TOTAL = ("global_step/max_steps", "step/max_steps")
LONGEST = 2**20
"""Characters of a line that may be a dict."""


def pieces(line: str) -> Iterator[tuple[str, str]]:
    """(text before it, dict) of each dict on a line; brackets and commas of a list do not count as text."""
    end, last = 0, line.rfind("}") + 1
    while 0 <= (opened := line.find("{", end)) < last:
        before, depth, end = line[end:opened], 0, last
        for mark in _BRACE_OR_TEXT.finditer(line, opened, last):
            depth += (mark[0] == "{") - (mark[0] == "}")
            if not depth:
                end = mark.end()
                break
        yield before if before.strip(" \t,[]") else "", line[opened:end]


def records(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The dict, or the records in its lists: `{"log_history": [{"loss": 0.5}, {"loss": 0.4}]}`, `{"step": [1, 2],
    "loss": [0.5, 0.4]}`."""
    columns = [name for name, value in node.items() if isinstance(value, list)]
    if not BESIDE.isdisjoint(columns) and len({len(node[name]) for name in columns}) == 1:
        yield from (dict(zip(columns, row, strict=True)) for row in zip(*(node[name] for name in columns), strict=True))
        return
    inner = [item for value in node.values() if isinstance(value, list) for item in value if isinstance(item, dict)]
    yield from inner or [node]


def parse(text: str) -> dict[str, Any] | None:
    """The dict on a line of text; None where there is none. Values that cannot be read are left out."""
    if len(text) > LONGEST:
        return None
    try:
        node = orjson.loads(text.replace("'", '"') if '"' not in text else text)
    except orjson.JSONDecodeError:
        node = _parse_python(text)
    return node if isinstance(node, dict) else None


def _parse_python(text: str) -> Any:
    text = _WRAPPER.sub(r"\1", text)
    as_json = _PYTHON_WORD.sub(lambda match: _JSON_WORDS[match[0]], text)
    try:
        return parse_json(as_json.replace("'", '"') if '"' not in as_json else as_json)
    except ValueError:
        return {match[1]: (match[2] or match[3] or match[4]).strip() for match in _PAIR.finditer(text)}


def numbers(node: Mapping[str, Any]) -> dict[str, float]:
    """The entries that are numbers or texts of numbers. JSON's null is a loss that is NaN, with its gradient, unless
    the dict is of an evaluation; a gradient norm alone is merely missing."""
    nulls = [name for name, value in node.items() if value is None and canonical(str(name)) in TRAINING_ONLY]
    is_nan = any(canonical(name) != "actor/grad_norm" for name in nulls) and not any(map(of_evaluation, node))
    metrics = dict.fromkeys(nulls if is_nan else (), math.nan)
    for name, value in node.items():
        number = to_number(value) if isinstance(value, str) else _as_float(value)
        if number is not None:
            plain, number = unscaled(str(name), number)
            metrics[plain] = number
    return metrics


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def flattened(node: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    """The entries, with those of inner dicts: `{"train": {"loss": 0.5}}` becomes `train/loss`; a list of one item, as
    `{"lr": [1e-05]}`, becomes the item."""
    flat = dict[str, Any]()
    for name, value in node.items():
        if isinstance(value, dict) and depth:
            flat |= {f"{name}/{key}": inner for key, inner in flattened(value, depth - 1).items()}
        else:
            flat[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    return flat


def step_of(node: dict[str, Any]) -> tuple[int, int] | None:
    """(step, total or 0) that a dict names, None where it names none; these entries are removed from it."""
    for name in _STEP_OF_TOTAL:
        done, _, total = str(node.get(name, "")).partition("/")
        if (step := as_step(done)) is not None:
            node.pop(name)
            return step, as_step(total) or 0
    for name in BESIDE:
        if name in node and (step := as_step(node[name])) is not None:
            node.pop(name)
            return step, as_step(node.pop("total_steps", 0)) or 0
    return None


def as_step(value: Any) -> int | None:
    """A step number: a whole number that is not negative."""
    if isinstance(value, str):
        value = float(value) if len(value) < 20 and NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_STEPS:
        return None
    return int(value) if value == int(value) else None
