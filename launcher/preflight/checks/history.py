"""Estimates the time of a run from an earlier finished run of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from yaml import YAMLError

from launcher.config.nodes import flat
from launcher.core.bounded_parse import parse_yaml
from launcher.core.check_result import CheckResult
from launcher.core.files import read_file
from launcher.core.numbers import compact
from launcher.preflight.checks.context import Context, root_of
from launcher.runs.folder import Folder
from launcher.runs.summary import state_of
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

LOOKED_AT = 30  # newest runs that are read
LARGEST = 4_000_000  # most bytes of an event log that is read
_SPEED_SETTINGS = ("algorithm._target_", "model.", "hardware.", "engine.", "sampler.", "data.train_batch_size",
                   "data.max_response_length", "data.max_prompt_length", "trainer.ppo_epochs")  # fmt: skip
"""Beginnings of the names of settings that decide how long a step takes."""


def check(context: Context) -> Iterator[CheckResult]:
    """The estimate; nothing without such a run, or where the number of steps is not known."""
    earlier_run = None if context.folder_problems or context.steps.steps is None else earlier(context.run)
    if earlier_run and context.steps.steps is not None:
        name, seconds = earlier_run
        duration = _duration(seconds * context.steps.steps)
        yield CheckResult("OK", "time", f"about {duration}: {name} took {compact(seconds)} s a step")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def earlier(run: RunSpec) -> tuple[str, float] | None:
    """Name and seconds per step of the newest finished run below the run's root that had the same model, algorithm,
    hardware and sizes."""
    wanted_key = _speed_key(to_node(run))
    for spec in _newest_specs(root_of(run)):
        folder = Folder(spec.parent)
        try:
            node = parse_yaml(read_file(spec))
            is_same = isinstance(node, dict) and _speed_key(node) == wanted_key
            if not is_same or folder.events.stat().st_size > LARGEST:
                continue
        except (OSError, YAMLError, ValueError):
            continue
        state = state_of(folder, written=False)
        if state.status == "finished" and state.seconds_per_step is not None:
            return folder.name, state.seconds_per_step
    return None


def _newest_specs(root: Path) -> list[Path]:
    dated = []
    for spec in root.glob("*/*/spec.yaml"):
        with suppress(OSError):  # deleted meanwhile
            dated.append((spec.stat().st_mtime, spec))
    return [spec for _, spec in sorted(dated, reverse=True)[:LOOKED_AT]]


def _speed_key(node: dict[str, Any]) -> dict[str, Any]:
    """Values of `_SPEED_SETTINGS`; of a model's path the last part, as a stored spec has a download's folder."""
    values = {name: value for name, value in flat(node).items() if name.startswith(_SPEED_SETTINGS)}
    return values | {"model.path": str(values.get("model.path")).rpartition("/")[2]}
