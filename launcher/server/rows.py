"""A job's row in responses, the same in a list and alone, and its status."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import dropwhile, takewhile
from typing import Any

from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml
from launcher.core.events import writable
from launcher.core.files import read_file
from launcher.core.metrics import HeldOut, label
from launcher.core.redaction import printable, redact
from launcher.core.state import LEVELS, RunState
from launcher.launch.queue import PROBLEM_MARK
from launcher.monitor.console import waiting
from launcher.runs.folder import Folder
from launcher.runs.store import Run
from launcher.server.records import JobRecord
from launcher.views.runs import status_word

TEXT_LAYOUT = "\n\t\u200c\u200d"  # kept in texts of people: an escape would be sent back with the next change
STOPS = {"stop": ("stopping", "stopped"), "pause": ("pausing", "paused")}  # status before and after the run ends


@dataclass(frozen=True)
class Standing:
    """A job's status, the reason for it, and since when (Unix seconds)."""

    status: str
    reason: str = ""
    since: float = 0.0


def standing_of(record: JobRecord, run: Run | None, folder: Folder, *, begins: bool) -> Standing:
    """From the run's events and the last request; `begins`: its process is alive and may have written nothing yet."""
    if not record.place:
        return Standing("created", "", record.created_at)
    requested_at, (pending, final) = record.requested_at, STOPS.get(record.request, ("waiting", ""))
    if run and not _is_earlier(run.state, requested_at):
        return _standing_from_events(record, run.state, folder)
    if begins:
        return Standing(pending, "its process begins", requested_at)
    if not final:  # its process is gone and left only its output
        return Standing(status_word(run.state) if run else "failed", _last_words(folder), requested_at)
    return _standing_from_events(record, run.state, folder) if run else Standing(final, "before it began", requested_at)


def _is_earlier(state: RunState, requested_at: float) -> bool:
    """Whether the run has ended, and wrote its last event before the request."""
    return state.status not in ("running", "waiting") and (state.last_at or 0.0) < requested_at


def _standing_from_events(record: JobRecord, state: RunState, folder: Folder) -> Standing:
    status, ended_at = status_word(state), state.last_at or record.created_at
    if status in ("running", "waiting"):
        began_at = _attempt_start(folder) or state.started_at or record.created_at
        if record.request in STOPS and record.requested_at >= began_at:
            return Standing(STOPS[record.request][0], "it saves first", record.requested_at)
        return Standing(status, waiting(state, time.time()) or state.why or state.phase, began_at)
    if status == "stopped" and record.request == "pause":
        return Standing("paused", "resume goes on with it", ended_at)
    return Standing(status, state.why or (state.verdict.line if state.verdict else ""), ended_at)


def last_words(output: bytes) -> list[str]:
    """The problems that a process printed last, whatever came after them; without any, its last line."""
    lines = output.decode("utf-8", "replace").splitlines()
    after = dropwhile(lambda line: not line.startswith(PROBLEM_MARK), reversed(lines))
    problems = [*takewhile(lambda line: line.startswith(PROBLEM_MARK), after)]
    return [line.removeprefix(PROBLEM_MARK) for line in reversed(problems)] or lines[-1:]


def _last_words(folder: Folder) -> str:
    with suppress(OSError):
        if lines := last_words(read_file(folder.detached, 2**20)):
            return "\n".join(lines)
    return "its process ended before it began"


def _attempt_start(folder: Folder) -> float | None:
    attempts = folder.attempts()
    with suppress(OSError):
        return os.stat(attempts[-1]).st_mtime if attempts else None
    return None


def job_node(
    record: JobRecord, run: Run | None, standing: Standing, words: Mapping[str, Any], *, attempt: int
) -> dict[str, Any]:
    """A job's row, as JSON has it. Control characters of texts are escaped."""
    state = run.state if run else RunState()
    words = {**words, **record.words}
    node = {
        "uuid": record.uuid, "name": record.name or record.place.rpartition("/")[2], "description": record.description,
        "tags": list(record.tags), "notes": record.notes, "who": record.who, "origin": record.origin,
        "run": run.folder.name if run else "", "algorithm": words.get("algorithm") or state.algorithm,
        "model": words.get("model", ""), "status": standing.status, "reason": standing.reason, "since": standing.since,
        "created_at": record.created_at, "started_at": state.started_at, "elapsed_s": state.elapsed_s,
        "step": state.step, "steps": state.steps,
        "progress": min(state.step / state.steps, 1.0) if state.steps else None,
        "eta_s": state.eta_s, "seconds_per_step": state.seconds_per_step, "phase": state.phase, "attempt": attempt,
        "score": None, "held_out": None, "verdict": None,
        "alerts": {level: state.alerts_by_level.get(level, 0) for level in LEVELS},
    }  # fmt: skip
    if state.score is not None:
        node["score"] = {"name": state.score_name, "label": label(state.score_name), "value": state.score}
    if state.last:
        node["held_out"] = {name: _held_out(getattr(state, name)) for name in ("first", "best", "last")}
    if state.verdict:
        node["verdict"] = {**asdict(state.verdict), "line": state.verdict.line}
    row: dict[str, Any] = writable(_make_printable({**words, **node}))
    return row


def _make_printable(node: Any) -> Any:
    if isinstance(node, str):
        return printable(node, TEXT_LAYOUT)
    if isinstance(node, Mapping):
        return {key: _make_printable(value) for key, value in node.items()}
    return [_make_printable(value) for value in node] if isinstance(node, list | tuple) else node


def _held_out(score: HeldOut | None) -> dict[str, Any] | None:
    return {**asdict(score), "label": label(score.name)} if score else None


# ---- algorithm and model of a run


def words_of_run(folder: Folder) -> dict[str, Any]:
    """Algorithm and model by its spec.yaml; empty where it cannot be read."""
    try:
        node = parse_yaml(read_file(folder.spec, 2**22))
    except (OSError, ValueError, YAMLError):
        return {}
    if not isinstance(node, dict):
        return {}
    typed = [word.removeprefix("model=") for word in typed_of_run(folder) if word.startswith("model=")]
    return words_of_node(node, typed[-1] if typed else "")


def words_of_node(node: dict[str, Any], model_choice: str) -> dict[str, Any]:
    """As `words_of_run`, of settings that were read; `model_choice` is the name in conf/model, where known."""
    algorithm, model = (_class_path(node, group) for group in ("algorithm", "model"))
    settings = node.get("model")
    path = settings.get("path") if isinstance(settings, dict) else None
    model_name = str(path or "") or model_choice or (model[-2] if len(model) > 1 else "")
    return {"algorithm": algorithm[-1].lower(), "model": model_name}


def typed_of_run(folder: Folder) -> list[str]:
    """The arguments of its first attempt, redacted; empty where they are not known."""
    try:
        command = shlex.split(read_file(folder.words, 2**16).decode().partition("\n")[0])
    except (OSError, ValueError):
        return []
    return list(map(redact, command[2:])) if command[:2] == ["rlrun", "train"] else []


def _class_path(node: dict[str, Any], group: str) -> list[str]:
    """The parts of a group's `_target_`, such as `launcher.algorithms.grpo.GRPO`."""
    choice = node.get(group)
    return str(choice.get("_target_") if isinstance(choice, dict) else "").split(".")
