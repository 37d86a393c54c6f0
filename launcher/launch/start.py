"""Starts a run, or resumes one: the order of preparing, recording, checking and training."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError
from yaml import YAMLError

from launcher.config import guard
from launcher.config.amend import amended
from launcher.config.explain import build, explain
from launcher.core.bounded_parse import parse_yaml
from launcher.core.classes import add_code_dir
from launcher.core.events import Alert
from launcher.core.files import read_file, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.core.state import RunState, Sink, write_all
from launcher.data.refused import RefusedLog
from launcher.health.run_judge import RunJudge
from launcher.launch import code_copy, provenance, supervise
from launcher.launch.follow import Outcome
from launcher.launch.prepare import fetched, localized
from launcher.launch.queue import submit_and_follow
from launcher.launch.track import tracked
from launcher.preflight.checks import hardware
from launcher.preflight.checks.context import Context
from launcher.preflight.fit import refit_settings
from launcher.preflight.plan import Page, check_fetched
from launcher.runs import kept_checkpoints, store
from launcher.runs.folder import Folder, Lock, free_name, take
from launcher.runs.stop_requests import Handle, no_signals
from launcher.spec.run import RunSpec
from launcher.spec.stored import Prepared, read_prepared, to_node, to_yaml

LENGTH = ("total_training_steps", "total_epochs")
"""Settings of the trainer that say how long it trains."""


def start(
    ready: Page, arguments: Sequence[str], sinks: Sequence[Sink], handle: Handle = no_signals
) -> tuple[Folder, Outcome]:
    """Begin a new run and follow it to its end. `arguments` are what was typed after `rlrun`; see `Handle` for signals.

    Raises `Problems` before anything is started.
    """
    assert ready.run
    run, trainer = replace(ready.run, engine=ready.run.engine.with_absolute_paths()), ready.run.trainer
    root = Path(trainer.run_root).expanduser()
    name = trainer.experiment_name or free_name(root, trainer.project_name, run.label)
    run = replace(run, trainer=replace(trainer, experiment_name=name))
    folder, lock = take(root, trainer.project_name, name)
    with lock:
        write_atomic(folder.words, shlex.join(["rlrun", *arguments]) + "\n")
        requested, prepared = run, fetched(run, sinks)
        if (prepared.model, prepared.data, prepared.reward) != (run.model, run.data, run.reward):
            requested, refits = refit_settings(run, ready.given)
            run = localized(requested, prepared)
            lines = [f"plan: {line}" for line in [*refits, *(warning.line for warning in check_fetched(run))]]
            write_all(sinks, RunState(status="running"), [], lines)
        prepared = Prepared.from_local(run)
        reward, notes = code_copy.keep(prepared.reward, folder)
        environment, more_notes = code_copy.keep(prepared.environment, folder)
        prepared = replace(prepared, reward=reward, environment=environment)
        write_all(sinks, RunState(status="running"), [], [*notes, *more_notes])
        run, spec = prepared.within(folder.path).applied_to(requested), to_yaml(requested)
        provenance.write(folder, run, spec)
        write_atomic(folder.prepared, prepared.to_json())
        write_atomic(folder.spec, spec)
        write_atomic(folder.prepared, replace(prepared, rows=_check_data(run, folder)).to_json())
        if not run.cluster.queues:
            with tracked(run, folder, sinks) as all_sinks:
                return folder, supervise.Supervisor(run, folder, lock, all_sinks, handle).work(0, [])
    return folder, submit_and_follow(run, folder, sinks)  # the process that Slurm starts takes the lock


@dataclass(frozen=True)
class GoingOn:
    """How a run would be resumed."""

    asked: RunSpec
    run: RunSpec
    """`asked`, with models and data in folders of this machine."""
    state: RunState
    checkpoint: Path | None
    """The checkpoint to resume from; None for the beginning."""
    faults: list[Problem]
    """Faults of newer checkpoints."""
    steps: int | None
    """Steps of the whole run; None where that is not known yet."""
    notes: list[str]

    @property
    def is_done(self) -> bool:
        return (
            self.state.status == "finished"
            and self.steps is not None
            and supervise.step_of(self.checkpoint) >= self.steps
        )


def to_resume(folder: Folder, overrides: Sequence[str], from_step: int | None = None) -> GoingOn:
    """The run of `folder` with `overrides`, which may change where, how fast and how long it runs, as `amend` says;
    from the newest checkpoint that verifies or that of `from_step`. Nothing is changed. Raises `Problems`."""
    if not folder.spec.is_file():
        raise Problems(Problem("--resume", f"{folder.path} holds no spec.yaml", "use a run's folder", "not-found"))
    folder.check()
    requested = _read_spec(folder, overrides)
    if not provenance.spec_is_as_written(folder, provenance.read(folder)):
        fix = (
            f"put it back; rlrun train --resume {folder.path} KEY=VALUE changes what may change, "
            f"and a new run would take it: rlrun train {folder.spec}"
        )
        raise Problems(Problem(str(folder.spec), "was changed since the run began", fix, "changed"))
    run = _as_prepared(requested, folder)
    notes = code_copy.changes(run, folder)
    state = store.RunReader(folder.events).look()
    if from_step is None:
        checkpoint, faults = supervise.newest_checkpoint(folder)
    else:
        checkpoint, faults = kept_checkpoints.of_step(folder, from_step, "--from").path, []
    stored = (_read_spec(folder, []) if overrides else requested).trainer
    same_length = all(getattr(requested.trainer, name) == getattr(stored, name) for name in LENGTH)
    steps = (state.steps or None) if same_length else requested.trainer.total_training_steps
    if not same_length:
        notes += _length_notes(requested, state, supervise.step_of(checkpoint))
    return GoingOn(requested, run, state, checkpoint, faults, steps, notes)


def _length_notes(run: RunSpec, state: RunState, done: int) -> list[str]:
    """Notes on what another length changes. Raises `Problems` where the run is past the new end."""
    steps, optim = run.trainer.total_training_steps, run.optim
    if steps is not None and steps < done:
        fix = f"use more than {done}, or --from an earlier checkpoint"
        raise Problems(Problem("trainer.total_training_steps", f"got {steps}, and the run is at step {done}", fix))
    if optim.lr_scheduler_type == "constant":
        return []
    return [
        f"the {optim.lr_scheduler_type} learning rate now falls until step {steps or 'the last'}, before until "
        f"{state.steps or 'the last'}: after step {done} it jumps to its place on the longer curve"
    ]


def resume(
    folder: Folder,
    overrides: Sequence[str],
    sinks: Sequence[Sink],
    from_step: int | None = None,
    handle: Handle = no_signals,
) -> Outcome:
    """Continue as `to_resume` says; a run that is done is left as it is. Raises `Problems`."""
    going_on = to_resume(folder, overrides, from_step)
    requested, run = going_on.asked, going_on.run
    if going_on.is_done:
        done = supervise.step_of(going_on.checkpoint)
        line = f"already finished after step {done}; trainer.total_training_steps={2 * done} would go on"
        write_all(sinks, going_on.state, [], [f"{folder.name} {line}"])
        return Outcome(0, going_on.state)
    _check_resumable(run, folder)
    with Lock(folder) as lock:
        checkpoint, faults = going_on.checkpoint, going_on.faults
        if from_step is None:
            checkpoint, faults = supervise.newest_checkpoint(folder, run.engine)
        alerts = supervise.rollback_to(checkpoint, faults, folder)
        alerts += [Alert(step=supervise.step_of(checkpoint), text=note) for note in going_on.notes]
        if overrides:
            spec = to_yaml(requested)
            provenance.amend(folder, spec)
            write_atomic(folder.spec, spec)
            typed = shlex.join(["rlrun", "train", "--resume", folder.name, *overrides])
            typed_before = read_file(folder.words).decode("utf-8", "replace") if folder.words.exists() else ""
            write_atomic(folder.words, typed_before + typed + "\n")
        if not run.cluster.queues:
            with tracked(run, folder, sinks) as all_sinks:
                supervisor = supervise.Supervisor(run, folder, lock, all_sinks, handle)
                return supervisor.work(supervise.step_of(checkpoint), alerts, going_on.steps)
    return submit_and_follow(run, folder, sinks)


def _check_resumable(run: RunSpec, folder: Folder) -> None:
    """Raises `Problems` where what the run needs is missing or changed, or where it waits in a queue."""
    model_problems = run.model.problems() if supervise.needs_initial_weights(run, folder) else []
    results = hardware.check(Context(run, here=not run.cluster.queues))
    problems = [*run.data.problems(), *run.reward.problems(), *run.environment.problems(), *model_problems]
    problems += [Problem(result.subject, result.message, result.fix) for result in results if result.level == "FAIL"]
    if problems := [*problems, *guard.secrets_in_run(to_node(run), problems)]:
        raise Problems(problems)
    if run.cluster.queues and (queue_status := store.queued(folder)):
        raise Problems(Problem(folder.name, f"is {queue_status}", f"rlrun stop {folder.path} would end it", "in-use"))
    supervise.check_unchanged(run, folder)


def _check_data(run: RunSpec, folder: Folder) -> int | None:
    """How many rows there are to train on; None where bad rows are allowed. Raises `Problems` with the bad rows."""
    if run.data.on_bad_row != "error":
        return None
    kind, batch, rows = run.algorithm.data, run.data.train_batch_size, 0
    with RefusedLog(folder.refused) as log:
        rows = sum(1 for _ in log.sift(run.data.rows("train", kind)))
        for _ in log.sift(run.data.rows("val", kind)):
            pass
    errors = log.problems("error")
    if rows < batch and not errors:
        fits = run.largest_batch(rows)
        fix = f"use {fits or 'more data, or fewer processes'}"
        errors.append(Problem("data.train_batch_size", f"got {batch}, and the data has {rows} rows", fix, "not-enough"))
    if errors:
        raise Problems(errors)
    return rows


def run_of(folder: Folder, overrides: Sequence[str]) -> RunSpec:
    """The run in a folder as its processes read it, with the settings that `overrides` change. Raises `Problems`."""
    return _as_prepared(_read_spec(folder, overrides), folder)


def _as_prepared(run: RunSpec, folder: Folder) -> RunSpec:
    try:
        prepared = read_prepared(folder.path)
        return prepared.applied_to(run) if prepared else run
    except ValidationError as error:
        raise Problems(problem.within(str(folder.prepared)) for problem in explain(error, {})) from error
    except (OSError, ValueError) as error:
        raise provenance.unreadable(folder.prepared, error) from error


def judge_of(folder: Folder) -> RunJudge | None:
    """A judge with the settings in the run's folder; None where another program reports the run, so that they are
    unknown. Raises `Problems` where they cannot be read."""
    return None if folder.is_logged else RunJudge(_read_spec(folder, []))


def _read_spec(folder: Folder, overrides: Sequence[str]) -> RunSpec:
    node: object = None
    try:
        node = parse_yaml(read_file(folder.spec))
        if folder.is_logged:
            got = "is what a script of another program reports, so its settings are unknown"
            raise Problems(Problem(folder.name, got, "start that script again", "not-supported"))
        if isinstance(node, dict) and isinstance(node.get("code_dir"), str):
            add_code_dir(node["code_dir"])
        if not overrides or not isinstance(node, dict):
            return build(node)
        with suppress(ValidationError):  # which the arguments may fix
            node = to_node(build(node))  # with what has been added since it was written
        return build(amended(node, overrides))
    except ValidationError as error:
        if not isinstance(node, dict):
            fix = "use the file of another run"
            raise Problems(Problem(str(folder.spec), "holds no run", fix, "bad-file")) from error
        raise Problems(problem.within(str(folder.spec)) for problem in explain(error, node)) from error
    except (YAMLError, ValueError) as error:
        raise provenance.unreadable(folder.spec, error) from error
