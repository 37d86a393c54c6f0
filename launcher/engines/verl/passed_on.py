"""verl's own keys among the arguments of a run: which of them verl has, and by which name today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.config.names.verl import read_key, todays_key
from launcher.core.overrides import key_of
from launcher.core.problems import Problem
from launcher.engines.verl.config.compose import key_problems
from launcher.engines.verl.config.defaults import MEGATRON, Program
from launcher.spec.algorithm import Kind

PROJECT = "verl"
EXTRA = "engine.extra"
"""The setting of what is passed on; among the words of the table it stands for the argument as it was typed."""
PROGRAMS: tuple[Program, ...] = ("ppo", "sft")
_BACKENDS = ("engine.strategy", "model_engine", "actor_rollout_ref.actor.strategy")


class VerlNames:
    """The names of settings that a run with this engine takes beside ours."""

    project = PROJECT

    def todays_name(self, key: str) -> str:
        """The name that verl has today for a key of an older verl; the key itself where none is known."""
        return next((new for program in PROGRAMS if (new := _todays_name(key, program))), key)

    def known(self, arguments: Sequence[str], typed: Mapping[str, str]) -> list[bool]:
        """Whether one of verl's programs has, or had, the key of each argument."""
        passed = [as_passed_on(arguments, program, _backend(program, typed))[0] for program in PROGRAMS]
        return [any(texts) for texts in zip(*passed, strict=True)]

    def pass_on(
        self, arguments: Sequence[str], data: Kind, typed: Mapping[str, str]
    ) -> tuple[list[str], list[Problem]]:
        """The arguments as verl takes them today, empty for each that it does not have, and the problems with those.
        `data` is what the algorithm learns from; `typed` are names and values of all arguments."""
        program: Program = "sft" if data == "answers" else "ppo"
        return as_passed_on(arguments, program, _backend(program, typed))


def _backend(program: Program, typed: Mapping[str, str]) -> list[str]:
    """The choices that verl's config is composed with, as it has the keys of one training backend only."""
    return list(MEGATRON[program]) if "megatron" in [typed.get(name, "").lower() for name in _BACKENDS] else []


def as_passed_on(
    arguments: Sequence[str], program: Program, more: Sequence[str] = ()
) -> tuple[list[str], list[Problem]]:
    """The arguments by today's keys, empty for each that verl does not know, and the problems with those. `more` are
    composed with them."""
    unknown = {each.where for each in key_problems((*more, *arguments), program)}
    translated = []
    for text in arguments:
        name = _todays_name(key_of(text), program) if key_of(text) in unknown else None
        translated.append(f"{name}={text.partition('=')[2]}" if name else text)
    problems = key_problems((*more, *translated), program)
    wrong = {each.where for each in problems}
    return ["" if key_of(text) in wrong else text for text in translated], problems


def _todays_name(key: str, program: Program) -> str | None:
    return read_key(key) or todays_key(key, program)
