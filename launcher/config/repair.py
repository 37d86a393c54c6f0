"""What else is wrong with a run once its wrong settings are reset: one mistake must not hide another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from launcher.config.explain import explain
from launcher.config.nodes import nested
from launcher.core.problems import Problem
from launcher.core.settings import from_node
from launcher.spec.run import RunSpec

ROUNDS = 16
TRIALS = 32  # settings that are reset one at a time to see which of them is at fault


@dataclass
class Repair:
    """A run that does not stand, and what it takes to make it stand."""

    node: dict[str, Any]
    plain: Mapping[str, Any]
    """The run without the settings that were typed."""
    placeholders: Mapping[str, Any]
    """For each config group a choice that needs no settings."""
    typed: list[str]
    """Names of the settings that were typed."""
    doubtful: set[str]
    """Settings and groups whose value is not what was typed: what is wrong with them follows from that."""
    exists: Callable[[str], bool]
    """Whether some choice has a setting of that name."""
    problems: list[Problem] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)

    def run(self) -> RunSpec | None:
        """The run that is left when all that is wrong is reset; None where nothing helps. Fills `problems`."""
        typed = list(self.typed)
        for _ in range(ROUNDS):
            found = _problems(self.node)
            if isinstance(found, RunSpec):
                return found
            self.problems += [each for each in found if not self.follows(each) and each not in self.problems]
            at_fault = self._at_fault(found, typed) or self._fixed(found) or self._replace_groups(found)
            at_fault = at_fault or self._by_trial(found, typed)
            if not at_fault:
                return None
            for key in at_fault.intersection(typed):
                reset(self.node, self.plain, key)
            typed = [name for name in typed if name not in at_fault]
            lost = {key for key in self.typed if any(key.startswith(f"{name}.") for name in at_fault)}
            self.doubtful |= at_fault | lost
        return None

    def follows(self, problem: Problem) -> bool:
        """Whether a problem may be there only because something is not what was typed."""
        where = problem.where
        for name in self.doubtful:
            if "." in name or where == name:
                if any(f"{each}.".startswith(f"{name}.") for each in (where, *problem.about)):
                    return True
            elif where.startswith(f"{name}."):  # of another choice than was meant
                unknown = problem.code == "unknown-setting"
                if self.exists(where) if unknown else not any(_related(where, key) for key in self.typed):
                    return True
            elif name in problem.about:
                return True
        return False

    def _at_fault(self, found: Sequence[Problem], typed: Sequence[str]) -> set[str]:
        """Typed settings that are wrong."""
        if keys := {key for problem in found for key in _settings_of(problem, typed)}:
            return keys
        groups = {problem.where.partition(".")[0] for problem in found}
        return self._by_trial(found, [key for key in typed if key.partition(".")[0] in groups])

    def _by_trial(self, found: Sequence[Problem], typed: Sequence[str]) -> set[str]:
        """The first of these settings without which less is wrong."""
        for key in typed[:TRIALS]:
            other = deepcopy(self.node)
            reset(other, self.plain, key)
            left = _problems(other)
            if isinstance(left, RunSpec) or len(left) < len(found):
                return {key}
        return set()

    def _fixed(self, found: Sequence[Problem]) -> set[str]:
        """Settings that nobody typed, with the values that their problems name."""
        fixed = set()
        for problem in found:
            if problem.value is not None and problem.where not in self.fixed:
                reset(self.node, nested({problem.where: problem.value}), problem.where)
                fixed.add(problem.where)
        self.fixed |= fixed
        return fixed

    def _replace_groups(self, found: Sequence[Problem]) -> set[str]:
        """Whole config groups, for others."""
        groups = {problem.where.partition(".")[0] for problem in found} & set(self.placeholders) - self.doubtful
        for group in groups:
            reset(self.node, self.placeholders, group)
        return groups


def reset(node: dict[str, Any], source: Mapping[str, Any], key: str) -> None:
    """Give the setting or group `key` the value that it has in `source`, or none."""
    target: dict[str, Any] = node
    value: Any = source
    *above, last = key.split(".")
    for part in above:
        if not isinstance(target.get(part), dict):
            return
        if not isinstance(value, Mapping) or not isinstance(value.get(part), Mapping):
            last = part  # the source has one value there, or none
            break
        target, value = target[part], value[part]
    if isinstance(value, Mapping) and last in value:
        target[last] = deepcopy(value[last])
    else:
        target.pop(last, None)


def _problems(node: Mapping[str, Any]) -> RunSpec | list[Problem]:
    try:
        return from_node(RunSpec, node)
    except ValidationError as error:
        return explain(error, node)


def _settings_of(problem: Problem, typed: Sequence[str]) -> list[str]:
    """The typed settings that a problem is about: its own, or of those that it depends on."""
    of_group = "." not in problem.where  # of its settings only one may be at fault
    own = [key for key in typed if _related(problem.where, key) and not (of_group and key != problem.where)]
    return own or [key for key in typed if key in problem.about]


def _related(one: str, other: str) -> bool:
    """Whether one is the other, or stands above it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
