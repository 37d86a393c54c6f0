"""`trainer_state.json` of Hugging Face's Trainer: one JSON object whose `log_history` holds a dict for each log.

The list is read entry by entry, so memory does not grow with it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from launcher.core.events import Event, LogProgress, Step
from launcher.logs.forms.dicts import as_step, numbers

NAME = "trainer_state.json"
_BLOCK = 2**18
_ENTRY = 2**20  # most characters of one entry
_HISTORY = re.compile(r'"log_history"\s{0,20}:\s{0,20}\[')
_MAX_STEPS = re.compile(r'"max_steps"\s{0,20}:\s{0,20}([0-9]{1,15})')
_DECODER = json.JSONDecoder()


def is_one(start: bytes) -> bool:
    """Whether a file that begins so is one."""
    return start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{" and b'"log_history"' in start


def events(file: BinaryIO, at: float, after: int = 0) -> Iterator[Event]:
    """Steps, in their order, without the first `after`, and how far the training is. Damaged entries are passed over,
    and a file that was cut gives those before the cut."""
    step, seen = 0, 0
    for entry in _entries(file):
        number = as_step(entry.pop("step", None))
        step = step if number is None else number
        if metrics := numbers(entry):
            seen += 1
            if seen > after:
                yield Step(at=at, step=step, metrics=metrics)
    file.seek(0)
    head = file.read(_BLOCK)
    file.seek(max(file.seek(0, 2) - _BLOCK, 0))
    if total := _MAX_STEPS.search((head + file.read()).decode("utf-8", "replace")):
        yield LogProgress(at=at, step=step, steps=int(total[1]))


def _entries(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """The dicts of the list, from the first to its end."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    text, place, inside = "", 0, False
    while block := file.read(_BLOCK):
        text, place = text[place:] + decode(block), 0
        if not inside:
            found = _HISTORY.search(text)
            place, inside = (found.end(), True) if found else (max(len(text) - 100, 0), False)  # it may be cut in two
        while inside and (place := _skipped(text, place)) < len(text):
            if text[place] == "]":
                return
            try:
                entry, place = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError):
                if len(text) - place < _ENTRY:  # cut by the end of the block, or damaged
                    break
                entry, place = None, max(text.find("{", place + 1), place + 1)
            if isinstance(entry, dict):
                yield entry


def _skipped(text: str, place: int) -> int:
    """The place of what follows after blanks and commas."""
    while place < len(text) and text[place] in " ,\n\r\t":
        place += 1
    return place
