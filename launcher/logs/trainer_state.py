"""`trainer_state.json` of Hugging Face's Trainer: one JSON object whose `log_history` holds a dict for each log."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.events import Event, LogProgress, Step
from launcher.core.files import read_file
from launcher.logs.forms.dicts import as_step, numbers

NAME, KIND = "trainer_state.json", "trainer_state"


def is_one(start: bytes) -> bool:
    """Whether a file that begins with `start` is a `trainer_state.json`; of ms-swift's lines of JSON the last one holds
    a `log_history`, too."""
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    first, _, rest = text.partition(b"\n")
    is_lines = first.rstrip().endswith(b"}") and rest.strip()
    return text[:1] == b"{" and b'"log_history"' in text and not is_lines


def read_events(path: Path, at: float) -> Iterator[Event]:
    """The steps in order, and the progress of the training. Raises `OSError`, and `ValueError` for a file that is not a
    whole JSON object with the list `log_history`."""
    node = parse_json(read_file(path).removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"))
    if not isinstance(node, dict) or not isinstance(history := node.get("log_history"), list):
        raise ValueError("has no list log_history")
    step = 0
    for entry in history:
        entry_step = as_step(entry.pop("step", None)) if isinstance(entry, dict) else None
        step = step if entry_step is None else entry_step
        if isinstance(entry, dict) and (metrics := numbers(entry)):
            yield Step(at=at, step=step, metrics=metrics)
    if steps := as_step(node.get("max_steps")):
        yield LogProgress(at=at, step=step, steps=steps)
