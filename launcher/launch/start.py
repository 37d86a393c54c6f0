"""Start a run, or resume one: what happens in which order."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError
from yaml import YAMLError

from launcher.config import guard
from launcher.config.amend import amended
from launcher.config.explain import explain
from launcher.core.bounded_parse import parse_yaml
from launcher.core.classes import add_code_dir
from launcher.core.files import read_file, write_atomic
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.settings import from_node
from launcher.core.state import RunState, Sink, write_all
from launcher.data.refused import RefusedLog
from launcher.launch import provenance, supervise
from launcher.launch.follow import Outcome
from launcher.launch.prepare import prepared
from launcher.launch.queued import hand_over
from launcher.preflight.checks import hardware
from launcher.preflight.checks.context import Context
from launcher.preflight.plan import Ready, check_fetched
from launcher.runs import store
from launcher.runs.folder import Folder, Lock, free_name, take
from launcher.spec.run import RunSpec
from launcher.spec.stored import Prepared, read_prepared, to_node, to_yaml


def start(ready: Ready, words: Sequence[str], sinks: Sequence[Sink]) -> tuple[Folder, Outcome]:
    """Begin a new run and follow it to its end. `words` are what was typed after `rlrun`.

    Raises `Problems` before anything is started.
    """
    run, trainer = ready.run, ready.run.trainer
    root = Path(trainer.run_root).expanduser()
    name = trainer.experiment_name or free_name(root, trainer.project_name, run.label)
    run = replace(run, trainer=replace(trainer, experiment_name=name))
    folder, lock = take(root, trainer.project_name, name)
    with lock:
        typed = shlex.join(["rlrun", *words])
        write_atomic(folder.words, typed + "\n")
        asked, run = run, prepared(run, sinks)
        if run != asked:  # something has been fetched since
            lines = [f"plan: {warning.line}" for warning in check_fetched(run)]
            write_all(sinks, RunState(status="running"), [], lines)
        found = Prepared.from_local(run)
        run, spec = found.applied_to(asked), to_yaml(asked)
        provenance.write(folder, run, spec, typed)
        write_atomic(folder.prepared, found.to_json())
        write_atomic(folder.spec, spec)
        write_atomic(folder.prepared, replace(found, rows=_check_data(run, folder)).to_json())
        if not run.cluster.queues:
            return folder, supervise.Supervisor(run, folder, lock, sinks).work(0, [])
    return folder, hand_over(run, folder, sinks)  # who takes it up writes it


def resume(folder: Folder, words: Sequence[str], sinks: Sequence[Sink]) -> Outcome:
    """Continue from the newest checkpoint that verifies; from the beginning where there is none yet.

    `words` may change where and how fast it runs, as `amend` says.
    """
    if not folder.spec.is_file():
        raise Problems(Problem("--resume", f"{folder.path} holds no spec.yaml", "use a run's folder", "not-found"))
    folder.check()
    asked = _asked(folder, words)
    run = _as_prepared(asked, folder)
    of_model = run.model.problems() if supervise.needs_initial_weights(run, folder) else []
    there = hardware.check(Context(run, here=not run.cluster.queues))
    found = [*run.data.problems(), *run.reward.problems(), *of_model]
    found += [Problem(result.subject, result.message, result.fix) for result in there if result.level == "FAIL"]
    if found := [*found, *guard.kept(to_node(run), found)]:
        raise Problems(found)
    if run.cluster.queues and (waits := store.queued(folder)):
        raise Problems(Problem(folder.name, f"is {waits}", f"rlrun stop {folder.path} would end it", "in-use"))
    supervise.check_unchanged(run, folder)
    with Lock(folder) as lock:
        newest, faults = supervise.newest_checkpoint(run, folder)
        alerts = supervise.rollback_to(newest, faults, run, folder)
        if words:
            write_atomic(folder.spec, to_yaml(asked))
            provenance.amend(folder, to_yaml(asked))
            typed = shlex.join(["rlrun", "train", "--resume", folder.name, *words])
            before = read_file(folder.words).decode("utf-8", "replace") if folder.words.exists() else ""
            write_atomic(folder.words, before + typed + "\n")
        if not run.cluster.queues:
            return supervise.Supervisor(run, folder, lock, sinks).work(supervise.step_of(newest), alerts)
    return hand_over(run, folder, sinks)


def _check_data(run: RunSpec, folder: Folder) -> int | None:
    """How many rows there are to train on; None where bad rows are allowed. Raises `Problems` with the bad rows."""
    if run.data.on_bad_row != "error":
        return None
    kind, batch, rows = run.algorithm.data, run.data.train_batch_size, 0
    with RefusedLog(folder.refused) as log:
        rows = sum(1 for _ in log.sift(run.data.read("train", kind)))
        for _ in log.sift(run.data.read("val", kind)):
            pass
    found = log.problems("error")
    if rows < batch and not found:
        fits = run.largest_batch(rows)
        fix = f"use {fits or 'more data, or fewer processes'}"
        found.append(Problem("data.train_batch_size", f"got {batch}, and the data has {rows} rows", fix, "not-enough"))
    if found:
        raise Problems(found)
    return rows


def run_of(folder: Folder, words: Sequence[str]) -> RunSpec:
    """The run in a folder as its processes read it, with the settings that `words` change. Raises `Problems`."""
    return _as_prepared(_asked(folder, words), folder)


def _as_prepared(run: RunSpec, folder: Folder) -> RunSpec:
    try:
        found = read_prepared(folder.path)
        return found.applied_to(run) if found else run
    except ValidationError as error:
        raise Problems(problem.within(str(folder.prepared)) for problem in explain(error, {})) from error
    except (OSError, ValueError) as error:
        raise _unreadable(folder.prepared, error) from error


def _unreadable(path: Path, error: Exception) -> Problems:
    return Problems(Problem(str(path), f"cannot be read, {error_message(error)}", "start a new run", "bad-file"))


def _asked(folder: Folder, words: Sequence[str]) -> RunSpec:
    node: object = None
    try:
        node = parse_yaml(read_file(folder.spec))
        if isinstance(node, dict) and isinstance(node.get("code_dir"), str):
            add_code_dir(node["code_dir"])
        if not words or not isinstance(node, dict):
            return from_node(RunSpec, node)
        with suppress(ValidationError):  # which the arguments may fix
            node = to_node(from_node(RunSpec, node))  # with what has been added since it was written
        return from_node(RunSpec, amended(node, words))
    except ValidationError as error:
        if not isinstance(node, dict):
            fix = "use the file of another run"
            raise Problems(Problem(str(folder.spec), "holds no run", fix, "bad-file")) from error
        raise Problems(problem.within(str(folder.spec)) for problem in explain(error, node)) from error
    except (YAMLError, ValueError) as error:
        raise _unreadable(folder.spec, error) from error
