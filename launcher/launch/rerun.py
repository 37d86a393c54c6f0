"""Repeat a run from its folder, after listing what has changed since."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from launcher.config.amend import put
from launcher.config.explain import build, explain
from launcher.config.grammar import setting
from launcher.config.nodes import flat
from launcher.core.problems import Problem, Problems
from launcher.core.state import Sink
from launcher.launch import code_copy, provenance, start
from launcher.launch.follow import Outcome
from launcher.preflight.plan import ready
from launcher.runs.folder import Folder, free_name
from launcher.runs.stop_requests import Handle, no_signals
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

UNSET = "nothing"
DECISIVE = ("data", "model", "reward")
"""Sections of a lock without which the result cannot be the same."""
COMPARED = (*DECISIVE, "code", "python", "system", "installed", "hardware", "environment")
_LOCATION_SETTINGS = ("trainer.run_root", "trainer.project_name", "trainer.experiment_name")  # do not change the result
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


@dataclass(frozen=True)
class Difference:
    """One thing that has changed."""

    what: str
    old: str
    new: str
    decides: bool = False
    """The result cannot be the same: other data, another model or another reward."""
    asked: bool = False
    """An argument changes it."""

    @property
    def line(self) -> str:
        return f"{self.what}: {self.old} -> {self.new}" + (", as asked" if self.asked else "")


@dataclass(frozen=True)
class Rerun:
    """A run to be repeated."""

    run: RunSpec
    differences: list[Difference]

    @property
    def refused(self) -> list[Problem]:
        """A problem for each changed input that decides the result; empty where only the environment differs."""
        why, fix = "is not what the run began with", "--anyway takes it as it is"
        decisive = [one for one in self.differences if one.decides]
        return [Problem(one.what, f"{why}, {one.old} -> {one.new}", fix, "changed") for one in decisive]


def prepare_rerun(folder: Folder, overrides: Sequence[str]) -> Rerun:
    """The run of `folder` under a free name beside it, with the settings that `overrides` change. Raises `Problems`
    where it cannot be read, or what it needs is missing."""
    recorded = provenance.read(folder)
    old = start.run_of(folder, [])
    run = _changed_run(folder, old, overrides)
    if problems := _missing_inputs(run):
        raise Problems([*problems, *_download_hints(recorded, run)])
    # what `overrides` change is no change of the environment, unless the old run cannot be compared
    now = provenance.collect(run if _missing_inputs(old) else old, "", "")
    differences = list(_compare(flat(to_node(old)), flat(to_node(run)), asked=True))
    if not provenance.spec_is_as_written(folder, recorded):
        differences.append(Difference("spec.yaml", "as it was locked", "changed since by hand"))
    differences += [Difference("code", "as the run began", note) for note in code_copy.changes(old, folder)]
    return Rerun(run, [*differences, *_environment_changes(recorded, now)])


def start_rerun(made: Rerun, typed: Sequence[str], sinks: Sequence[Sink], handle: Handle = no_signals) -> Outcome:
    """Start the repeated run and follow it to its end. `typed` are the words after `rlrun`."""
    return start.start(ready(made.run), typed, sinks, handle)[1]


def _missing_inputs(run: RunSpec) -> list[Problem]:
    return [*run.data.problems(), *run.model.problems(), *run.reward.problems(), *run.environment.problems()]


def _download_hints(recorded: Mapping[str, Any], run: RunSpec) -> list[Problem]:
    """How to get a downloaded model back."""
    model = recorded.get("model")
    if not run.model.problems() or not isinstance(model, dict) or "repo" not in model:
        return []
    was, fix = f"was {model['repo']} at {model.get('commit')}", f"rlrun model download {model['repo']} would bring it"
    return [Problem("model", was, fix, "not-found")]


def _changed_run(folder: Folder, old: RunSpec, overrides: Sequence[str]) -> RunSpec:
    node, problems = to_node(old), list[Problem]()
    root, project = folder.path.absolute().parents[1], folder.path.absolute().parent.name
    name = free_name(root, project, f"{folder.path.name[:100]}-rerun")
    node["trainer"] |= {"run_root": str(root), "project_name": project, "experiment_name": name}
    for word in overrides:
        try:
            key, value = setting(word)
        except Problems as invalid:
            problems += invalid.problems
            continue
        if isinstance(node.get(key), dict):
            problems.append(Problem(key, "a rerun keeps what was chosen", f"use {key}.SETTING=VALUE, or rlrun train"))
        else:
            problems += put(node, key, value)
    try:
        run = build(node)
    except ValidationError as error:
        raise Problems([*problems, *explain(error, node)]) from error
    if problems:
        raise Problems(problems)
    return run


def _environment_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Differences between two locks, those that decide the result first. A section that the old one lacks is taken to
    be equal."""
    for section in COMPARED:
        decides = section in DECISIVE
        if section in old and not (decides and provenance.same_files(old[section], new[section])):
            before, now = _entries(section, old[section]), _entries(section, new[section])
            yield from _compare(before, now, decides=decides)


def _entries(section: str, value: Any) -> dict[str, Any]:
    """A section of a lock, by the names that are shown."""
    if section == "installed":
        value = dict(line.partition("==")[::2] for line in value)
    if section in DECISIVE or not isinstance(value, dict):
        return {section: value}
    return {f"{section}.{key}": each for key, each in value.items()}


def _compare(
    old: Mapping[str, Any], new: Mapping[str, Any], *, decides: bool = False, asked: bool = False
) -> Iterator[Difference]:
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in _LOCATION_SETTINGS and old.get(key) != new.get(key):
            yield Difference(key, _text(old.get(key)), _text(new.get(key)), decides, asked)


def _text(value: Any) -> str:
    """The value on one line, with digests cut to 12 digits."""
    if isinstance(value, dict):
        return " ".join(map(_text, value.values()))
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or UNSET
    return UNSET if value in (None, "") else _DIGEST.sub(r"\1", str(value))
