"""A job as people see it: one row, the same in a list and alone, and where it stands."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml
from launcher.core.events import writable
from launcher.core.files import read_file
from launcher.core.metrics import HeldOut, label
from launcher.core.numbers import compact
from launcher.core.redaction import printable, redact
from launcher.core.state import LEVELS, RunState
from launcher.monitor.console import waiting
from launcher.runs.folder import FIRST_SEQ, Folder
from launcher.runs.store import Run
from launcher.server.records import JobRecord
from launcher.server.words import shown_words
from launcher.views.runs import status_word

MARK = "✗ "  # begins a line with a problem
TEXT_LAYOUT = "\n\t\u200c\u200d"  # of what people write: an escape would stand in it once it is changed again
STOPS = {"stop": ("stopping", "stopped"), "pause": ("pausing", "paused")}  # where a job stands until it ends, and then


@dataclass(frozen=True)
class Standing:
    """Where a job stands, why, and since when (Unix seconds)."""

    status: str
    reason: str = ""
    since: float = 0.0


def standing_of(record: JobRecord, run: Run | None, folder: Folder, *, begins: bool) -> Standing:
    """From its events, what was asked for last, and whether a process of it `begins`."""
    if not record.place:
        return Standing("created", "", record.created_at)
    at, (stops, stopped) = record.requested_at, STOPS.get(record.request, ("waiting", ""))
    if run and not _is_earlier(run.state, at):
        return _of_events(record, run.state, folder)
    if begins:
        return Standing(stops, "its process begins", at)
    if not stopped:  # its process is gone, and has left no more than its output
        return Standing(status_word(run.state) if run else "failed", _last_problem(folder), at)
    return _of_events(record, run.state, folder) if run else Standing(stopped, "before it began", at)


def _is_earlier(state: RunState, requested_at: float) -> bool:
    """Whether all that is written is from before the request, and from a process that has ended."""
    return state.status not in ("running", "waiting") and (state.last_at or 0.0) < requested_at


def _of_events(record: JobRecord, state: RunState, folder: Folder) -> Standing:
    status, ended_at = status_word(state), state.last_at or record.created_at
    if status in ("running", "waiting"):
        begun = _attempt_began(folder) or state.started_at or record.created_at
        if record.request in STOPS and record.requested_at >= begun:
            return Standing(STOPS[record.request][0], "it saves first", record.requested_at)
        return Standing(status, waiting(state, time.time()) or state.why or state.phase, begun)
    if status == "stopped" and record.request == "pause":
        return Standing("paused", "resume goes on with it", ended_at)
    return Standing(status, state.why or (state.verdict.line if state.verdict else ""), ended_at)


def _last_problem(folder: Folder) -> str:
    """What the process printed before it ended."""
    with suppress(OSError):
        lines = read_file(folder.detached, 2**20).decode("utf-8", "replace").splitlines()
        blocks = [list(block) for is_problem, block in groupby(lines, lambda line: line.startswith(MARK)) if is_problem]
        found = [line.removeprefix(MARK) for line in blocks[-1]] if blocks else lines[-1:]
        return "; ".join(found) or "its process ended before it began"
    return "its process ended before it began"


def _attempt_began(folder: Folder) -> float | None:
    attempts = folder.attempts()
    with suppress(OSError):
        return os.stat(attempts[-1] / FIRST_SEQ).st_mtime if attempts else None
    return None


def job_node(
    record: JobRecord, run: Run | None, standing: Standing, words: Mapping[str, Any], *, attempt: int
) -> dict[str, Any]:
    """The whole row. Texts of people stay as they are, but for secrets and control characters."""
    state = run.state if run else RunState()
    words = {**(words or record.planned), **record.words}
    node = {
        "uuid": record.uuid, "name": record.name or record.place.rpartition("/")[2], "description": record.description,
        "tags": list(record.tags), "notes": record.notes, "who": record.who, "origin": record.origin,
        "run": run.folder.name if run else "", "algorithm": words.get("algorithm") or state.algorithm,
        "model": words.get("model", ""), "status": standing.status, "reason": standing.reason, "since": standing.since,
        "created_at": record.created_at, "started_at": state.started_at, "elapsed_s": state.elapsed_s,
        "step": state.step, "steps": state.steps,
        "progress": min(state.step / state.steps, 1.0) if state.steps else None,
        "eta_s": state.eta_s, "seconds_per_step": state.seconds_per_step, "phase": state.phase, "attempt": attempt,
        "score": _score(state), "held_out": _held_out(state),
        "verdict": {**asdict(state.verdict), "line": state.verdict.line} if state.verdict else None,
        "alerts": _alerts(state),
    }  # fmt: skip
    node |= {name: value for name, value in words.items() if name not in node}
    found: dict[str, Any] = writable(_printable(node))
    return found


def _printable(node: Any) -> Any:
    if isinstance(node, str):
        return printable(node, TEXT_LAYOUT)
    if isinstance(node, Mapping):
        return {key: _printable(value) for key, value in node.items()}
    return [_printable(value) for value in node] if isinstance(node, list | tuple) else node


def _score(state: RunState) -> dict[str, Any] | None:
    if state.score is None:
        return None
    name = state.score_name
    return {"name": name, "label": label(name), "value": state.score, "text": compact(state.score)}


def _held_out(state: RunState) -> dict[str, Any] | None:
    return (
        {"first": _result(state.first), "best": _result(state.best), "last": _result(state.last)}
        if state.last
        else None
    )


def _result(of: HeldOut | None) -> dict[str, Any] | None:
    return {**asdict(of), "label": label(of.name), "text": of.shown} if of else None


def _alerts(state: RunState) -> dict[str, int]:
    """A summary of an older version knows only how many, and the most serious level."""
    found = dict(state.alerts_by_level) or {state.alert_level: state.alerts}
    return {level: found.get(level, 0) for level in LEVELS}


# ---- the documents' words of a run


def words_of_run(folder: Folder) -> dict[str, Any]:
    """What its spec.yaml says in the words of the job API; empty where it cannot be read."""
    try:
        node = parse_yaml(read_file(folder.spec, 2**22))
    except (OSError, ValueError, YAMLError):
        return {}
    if not isinstance(node, dict):
        return {}
    typed = [word.removeprefix("model=") for word in typed_of_run(folder) if word.startswith("model=")]
    return words_of_node(node, typed[-1] if typed else "")


def typed_of_run(folder: Folder) -> list[str]:
    """What its first attempt was started with, without secrets; nothing where that is not known."""
    try:
        first = shlex.split(read_file(folder.words, 2**16).decode().partition("\n")[0])
    except (OSError, ValueError):
        return []
    return list(map(redact, first[2:])) if first[:2] == ["rlrun", "train"] else []


def words_of_node(node: dict[str, Any], model_choice: str = "") -> dict[str, Any]:
    """The same of settings that were read; `model_choice` is the name in conf/model where that is known."""
    algorithm, model = (_class_path(node, group) for group in ("algorithm", "model"))
    words = shown_words(node)
    named = words["model_path"] or model_choice or (model[-2] if len(model) > 1 else "")
    return {**words, "algorithm": algorithm[-1].lower(), "model": named}


def _class_path(node: dict[str, Any], group: str) -> list[str]:
    """`launcher.algorithms.grpo.GRPO`, in parts."""
    chosen = node.get(group)
    return str(chosen.get("_target_") if isinstance(chosen, dict) else "").split(".")
