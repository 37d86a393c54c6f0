"""Repeat a run from its folder, after listing what has changed since."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from launcher.config.amend import with_values
from launcher.config.explain import build, explain
from launcher.config.nodes import flat
from launcher.core.problems import Problem, Problems
from launcher.launch import provenance, start
from launcher.runs.folder import Folder, free_name
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

DECISIVE = ("data", "model", "reward")
"""Sections of a lock without which the result cannot be the same."""
COMPARED = ("code", "python", "system", "installed")
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


@dataclass(frozen=True)
class Rerun:
    """A run to be repeated."""

    run: RunSpec
    differences: list[str]
    """A line for each thing that has changed since the run began, besides what was asked for."""
    refused: list[Problem]
    """A problem for each changed input that decides the result; empty where only the environment differs."""


def prepare_rerun(folder: Folder, overrides: Sequence[str]) -> Rerun:
    """The run of `folder` under a free name beside it, with the settings that `overrides` change. Raises `Problems`
    where it cannot be read, or what it needs is missing."""
    recorded = provenance.read(folder)
    old = start.run_of(folder, [])
    run = _changed_run(folder, old, overrides)
    if problems := _missing_inputs(run):
        raise Problems(problems)
    # what `overrides` change is no change of the environment, unless the old run cannot be compared
    now = provenance.collect(run if _missing_inputs(old) else old, "")
    changed = {name: _change(recorded[name], now[name]) for name in DECISIVE
               if not provenance.same_files(recorded.get(name), now[name])}  # fmt: skip
    differences = [f"{name}: {change}" for name, change in changed.items()]
    if not provenance.spec_is_as_written(folder, recorded):
        differences.append("spec.yaml: changed by hand since the run began")
    differences += _environment_changes(recorded, now)
    got, fix = "is not what the run began with", "--anyway takes it as it is"
    refused = [Problem(name, f"{got}, {change}", fix, "changed") for name, change in changed.items()]
    return Rerun(run, differences, refused)


def _missing_inputs(run: RunSpec) -> list[Problem]:
    return [*run.data.problems(), *run.model.problems(), *run.reward.problems(), *run.environment.problems()]


def _changed_run(folder: Folder, old: RunSpec, overrides: Sequence[str]) -> RunSpec:
    node = to_node(old)
    root, project = folder.path.absolute().parents[1], folder.path.absolute().parent.name
    name = free_name(root, project, f"{folder.path.name[:100]}-rerun")
    node["trainer"] |= {"run_root": str(root), "project_name": project, "experiment_name": name}
    node, problems = with_values(node, overrides, _refuse_other_choice)
    try:
        run = build(node)
    except ValidationError as error:
        raise Problems([*problems, *explain(error, node)]) from error
    if problems:
        raise Problems(problems)
    return run


def _refuse_other_choice(path: str, stored: Any) -> Problem | None:
    is_group = isinstance(stored, dict) and "." not in path
    fix = f"use {path}.SETTING=VALUE, or rlrun train"
    return Problem(path, "a rerun keeps what was chosen", fix) if is_group else None


def _environment_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, now = (flat({section: _named(lock.get(section)) for section in COMPARED}) for lock in (old, new))
    for name in dict.fromkeys([*before, *now]):
        if (before.get(name) or None) != (now.get(name) or None):
            yield f"{name}: {_change(before.get(name), now.get(name))}"


def _named(section: Any) -> Any:
    """Versions by the names of their packages; any other section as it is."""
    return dict(line.partition("==")[::2] for line in section) if isinstance(section, list) else section


def _change(old: Any, new: Any) -> str:
    """`old -> new`, with digests cut to 12 digits."""
    return " -> ".join(_DIGEST.sub(r"\1", str(value or "nothing")) for value in (old, new))
