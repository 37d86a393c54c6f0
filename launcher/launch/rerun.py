"""Make a run again from its folder, and say first what is different now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from launcher.config.amend import put
from launcher.config.explain import explain
from launcher.config.grammar import setting
from launcher.core.problems import Problem, Problems
from launcher.core.settings import from_node
from launcher.core.state import Sink
from launcher.launch import provenance, start
from launcher.launch.follow import Outcome
from launcher.preflight.plan import ready
from launcher.runs.folder import Folder, free_name
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

UNSET = "nothing"
_PLACE = ("trainer.run_root", "trainer.project_name", "trainer.experiment_name")  # where it lies, not what it is


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was."""

    what: str
    old: str
    new: str
    decides: bool = False
    """The result cannot be the same: other data, another model or another reward."""
    asked: bool = False
    """A word asks for it."""

    @property
    def line(self) -> str:
        return f"{self.what}: {self.old} -> {self.new}" + (", as asked" if self.asked else "")


@dataclass(frozen=True)
class Again:
    """A run to be made again."""

    run: RunSpec
    differences: list[Difference]

    @property
    def refused(self) -> list[str]:
        """Why it would be another run; nothing where only its surroundings differ."""
        return [
            f"{what.what}: is not what the run began with, {what.old} -> {what.new}; --anyway takes it as it is"
            for what in self.differences
            if what.decides
        ]


def again(folder: Folder, words: Sequence[str]) -> Again:
    """The run of `folder` under a free name beside it, with the settings that `words` change. Raises `Problems`
    where it cannot be read, or what it needs is not here any more."""
    recorded = provenance.read(folder)
    old = start.run_of(folder, [])
    run = _changed(folder, old, words)
    if found := _missing(run):
        raise Problems([*found, *_where_from(recorded, run)])
    # words may be the cure for what is not here any more; else what they change is no difference of the surroundings
    now = provenance.taken(run if _missing(old) else old, "", "")
    differences = list(_settings(old, run))
    if not provenance.spec_is_as_written(folder, recorded):
        differences.append(Difference("spec.yaml", "as it was locked", "changed since by hand"))
    return Again(run, [*differences, *_surroundings(recorded, now)])


def _missing(run: RunSpec) -> list[Problem]:
    return [*run.data.problems(), *run.model.problems(), *run.reward.problems()]


def _where_from(recorded: Mapping[str, Any], run: RunSpec) -> list[str]:
    """How a model that was downloaded once comes back."""
    model = recorded.get("model")
    if not run.model.problems() or not isinstance(model, dict) or "repo" not in model:
        return []
    return [f"model: was {model['repo']} at {model.get('commit')}; rlrun model download {model['repo']} would bring it"]


def begin(made: Again, typed: Sequence[str], sinks: Sequence[Sink]) -> Outcome:
    """Start it. `typed` are the words after `rlrun`."""
    return start.start(ready(made.run), typed, sinks)[1]


def _changed(folder: Folder, old: RunSpec, words: Sequence[str]) -> RunSpec:
    node, problems = to_node(old), list[Problem]()
    root, project = folder.path.absolute().parents[1], folder.path.absolute().parent.name
    name = free_name(root, project, f"{folder.path.name[:100]}-rerun")
    node["trainer"] |= {"run_root": str(root), "project_name": project, "experiment_name": name}
    for word in words:
        try:
            key, value = setting(word)
        except Problems as found:
            problems += found.problems
            continue
        held = node.get(key)
        if isinstance(held, dict):
            problems.append(Problem(key, "a rerun keeps what was chosen", f"use {key}.SETTING=VALUE, or rlrun train"))
        else:
            problems += put(node, key, value)
    try:
        run = from_node(RunSpec, node)
    except ValidationError as error:
        raise Problems([*problems, *explain(error, node)]) from error
    if problems:
        raise Problems(problems)
    return run


def _settings(old: RunSpec, new: RunSpec) -> Iterator[Difference]:
    before, after = dict(_leaves(to_node(old))), dict(_leaves(to_node(new)))
    for key in [*before, *(key for key in after if key not in before)]:
        if key not in _PLACE and before.get(key) != after.get(key):
            yield Difference(key, _text(before.get(key)), _text(after.get(key)), asked=True)


def _surroundings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """What two locks say differently, what matters most first. What the old one did not say is taken to be the same."""
    for what in ("data", "model", "reward"):
        if not provenance.same_files(old.get(what), new[what]):
            yield Difference(what, _origin(old[what]), _origin(new[what]), decides=True)
    for where, told in (("rlrun", "rlrun's source"), ("folder", "working folder's source")):
        if "code" in old and (old["code"] or {}).get(where) != new["code"][where]:
            yield Difference(told, _code((old["code"] or {}).get(where)), _code(new["code"][where]))
    for key in ("python", "system"):
        if key in old and old[key] != new[key]:
            yield Difference(key, _text(old[key]), _text(new[key]))
    yield from _entries("", old.get("packages"), new["packages"])
    yield from _entries("", *_others(old, new), every=True)
    yield from _entries("hardware.", old.get("hardware"), new["hardware"])
    yield from _entries("", old.get("environment"), new["environment"], every=True)


def _entries(
    prefix: str, old: Mapping[str, Any] | None, new: Mapping[str, Any], every: bool = False
) -> Iterator[Difference]:
    """Keys that differ; with `every` also those that only the new one has: the old one says all that there was."""
    if old is None:
        return
    for key in [*old, *(key for key in new if every and key not in old)]:
        if old.get(key) != new.get(key):
            yield Difference(f"{prefix}{key}", _text(old.get(key)), _text(new.get(key)))


def _others(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, str] | None, dict[str, str]]:
    """Versions of the distributions that are not named as packages that decide."""
    if "installed" not in old:
        return None, {}
    named = {name.lower().replace("_", "-") for name in (*old.get("packages", {}), *new["packages"])}

    def versions(lines: Sequence[str]) -> dict[str, str]:
        found = (line.partition("==") for line in lines)
        return {name: version for name, _, version in found if name not in named}

    return versions(old["installed"]), versions(new["installed"])


def _leaves(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    else:
        yield place, node


def _origin(value: Any) -> str:
    """Short, and enough to tell two apart."""
    if isinstance(value, list):
        return ", ".join(map(_origin, value))
    if isinstance(value, dict):
        where = value.get("repo") or value.get("checkpoint") or value.get("folder") or value.get("file")
        return f"{where} {str(value.get('files'))[:12]}"
    return UNSET if value is None else str(value)[:12]


def _code(value: Any) -> str:
    if not isinstance(value, dict):
        return "no repository"
    diff = value.get("diff")
    return str(value.get("commit"))[:12] + (f" and changes {diff[:12]}" if diff else "")


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return ", ".join(" ".join(map(str, each.values())) for each in value) or "none"
    return UNSET if value in (None, "") else str(value)
