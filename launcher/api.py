"""rlrun from Python: plan, train or resume a run. `launcher.runs` reads what runs have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.core.overrides import literal
from launcher.launch import start
from launcher.launch.follow import Outcome
from launcher.monitor.console import LinePrinter
from launcher.preflight import plan as planning
from launcher.preflight.plan import Page
from launcher.runs import store
from launcher.runs.folder import Folder
from launcher.runs.recorded import RecordedRun
from launcher.runs.stop_requests import handle_signals


class RunFailed(RuntimeError):
    """A run that began and did not finish; `run` is its record."""

    def __init__(self, run: RecordedRun) -> None:
        super().__init__(f"{run.name} {run.state.status}: {run.state.why}")
        self.run = run


def plan(*arguments: str, settings: Mapping[str, Any] | None = None, config_dir: str | Path | None = None) -> Page:
    """Check a run without starting it.

    `arguments` are those of the command line (`"algorithm=grpo"`, `"model=tiny"`); `settings` are values by their full
    names (`{"optim.lr": 1e-3}`). The plan's `ok` says whether the run can start, `results` what was found (level,
    subject, message, fix), `run` holds every setting, `memory` bytes by phase, `steps` rows and steps. A wrong argument
    is a result, not an exception. Nothing is loaded or downloaded.
    """
    return planning.plan(_words(arguments, settings), _path(config_dir))


def train(
    *arguments: str, settings: Mapping[str, Any] | None = None, config_dir: str | Path | None = None, show: bool = True
) -> RecordedRun:
    """Start a run and follow it to its end; with `show`, print the lines that `rlrun train` prints without a
    terminal.

    Arguments and settings are those of `plan`. Raises `Problems` before anything is started, and `RunFailed` where the
    run did not finish.
    """
    words = _words(arguments, settings)
    ready = planning.ready_from(words, _path(config_dir))
    folder, outcome = start.start(ready, ["train", *words], [LinePrinter()] if show else [], handle_signals)
    return _finished(folder, outcome)


def resume(name: str, *arguments: str, root: str | Path = "runs", show: bool = True) -> RecordedRun:
    """Resume a run from its newest checkpoint that verifies. Raises as `train` does."""
    folder = store.find(name, Path(root))
    sinks = [LinePrinter()] if show else []
    return _finished(folder, start.resume(folder, arguments, sinks, handle=handle_signals))


def _finished(folder: Folder, outcome: Outcome) -> RecordedRun:
    run = RecordedRun.read(folder)
    if outcome.exit_code:
        raise RunFailed(run)
    return run


def _path(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)


def _words(arguments: Sequence[str], settings: Mapping[str, Any] | None) -> list[str]:
    return [*arguments, *(f"{name}={literal(value)}" for name, value in (settings or {}).items())]
