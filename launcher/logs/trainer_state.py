"""`trainer_state.json` of Hugging Face's Trainer: one JSON object whose `log_history` holds a dict for each log."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.events import Event, LogProgress, Step
from launcher.core.files import read_file
from launcher.logs.forms.dicts import as_step, numbers

NAME = "trainer_state.json"


def is_one(start: bytes) -> bool:
    """Whether a file that begins so is one."""
    return start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{" and b'"log_history"' in start


def read_events(path: Path, at: float, after: int = 0) -> Iterator[Event]:
    """Steps, in their order, without the first `after`, and how far the training is. Raises `OSError`, and `ValueError`
    for a file that is no whole JSON object with that list."""
    node = parse_json(read_file(path).removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"))
    if not isinstance(node, dict) or not isinstance(history := node.get("log_history"), list):
        raise ValueError("has no list log_history")
    step, seen = 0, 0
    for entry in history:
        named = as_step(entry.pop("step", None)) if isinstance(entry, dict) else None
        step = step if named is None else named
        if isinstance(entry, dict) and (metrics := numbers(entry)):
            seen += 1
            if seen > after:
                yield Step(at=at, step=step, metrics=metrics)
    if steps := as_step(node.get("max_steps")):
        yield LogProgress(at=at, step=step, steps=steps)
