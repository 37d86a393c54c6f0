"""How long a run takes, from an earlier finished run of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml
from launcher.core.check_result import CheckResult
from launcher.core.events import events_of
from launcher.core.state import fold
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.run_folder import root_of
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

LOOKED_AT = 30  # newest runs
LARGEST = 4_000_000  # bytes of an event log that is read for it
_SAME = ("algorithm._target_", "model", "hardware", "engine", "sampler", "data.train_batch_size",
         "data.max_response_length", "data.max_prompt_length", "trainer.ppo_epochs")  # fmt: skip
"""Settings that decide how long a step takes."""


@dataclass(frozen=True)
class Earlier:
    """A finished run of the same kind."""

    name: str
    seconds_per_step: float


def check(context: Context) -> Iterator[CheckResult]:
    """Nothing without such a run, or where the number of steps is not known."""
    known = None if context.folder_problems else earlier(context.run)
    if known and context.steps.steps is not None:
        duration = _duration(known.seconds_per_step * context.steps.steps)
        yield CheckResult("OK", "time", f"about {duration}: {known.name} took {known.seconds_per_step:.3g} s a step")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def earlier(run: RunSpec) -> Earlier | None:
    """The newest finished run below the run's root that had the same model, algorithm, hardware and sizes."""
    wanted = _key(to_node(run))
    for spec in _newest(root_of(run)):
        folder = Folder(spec.parent)
        try:
            node = parse_yaml(spec.read_bytes())
            fits = isinstance(node, dict) and _key(node) == wanted and folder.events.stat().st_size < LARGEST
        except (OSError, YAMLError, ValueError):
            continue
        if not fits or not _finished(folder.events):
            continue
        state = fold(events_of(folder.events))
        if state.status == "finished" and state.seconds_per_step is not None:
            return Earlier(folder.name, state.seconds_per_step)
    return None


def _finished(events: Path) -> bool:
    """By its last line, so that unfinished logs are not read."""
    with events.open("rb") as file:
        file.seek(max(events.stat().st_size - 4096, 0))
        return b'"how":"finished"' in file.read().replace(b'": "', b'":"')


def _newest(root: Path) -> Iterator[Path]:
    dated = []
    for spec in root.glob("*/*/spec.yaml"):
        try:
            dated.append((spec.stat().st_mtime, spec))
        except OSError:  # gone since
            continue
    yield from (spec for _, spec in sorted(dated, reverse=True)[:LOOKED_AT])


def _key(node: dict[str, Any]) -> list[Any]:
    found = []
    for path in _SAME:
        held: Any = node
        for part in path.split("."):
            held = held.get(part) if isinstance(held, dict) else None
        found.append(held)
    return [_placeless(held) for held in found]


def _placeless(held: Any) -> Any:
    """Settings of a model without where it lies: a run's spec names the folder that a hub's model was fetched to."""
    if not isinstance(held, dict) or "path" not in held:
        return held
    return {**held, "path": str(held["path"]).rpartition("/")[2]}
