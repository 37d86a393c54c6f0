"""Bases of environments with several turns: the prompt with its tools, and the processes of their episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from launcher.core.problems import Problem, Problems
from launcher.core.settings import settings
from launcher.environments.processes import Processes
from launcher.spec.data import Message, Row
from launcher.spec.environment import Environment, Sessions


@settings
class SeveralTurns(Environment):
    def prompt(self, row: Row) -> Row:
        """The row with the system prompt and the tools, unless it has its own."""
        turns = (Message("user", row.prompt),) if isinstance(row.prompt, str) else row.prompt
        if self.system_prompt and turns[0].role != "system":
            turns = (Message("system", self.system_prompt), *turns)
        tools = {"tools": list(schemas)} if (schemas := self.tools()) else {}
        return replace(row, prompt=turns, template_args={**tools, **row.template_args})

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self.session().schemas()

    def sessions(self) -> Sessions:
        return Processes(self)


@settings
class ForeignTools(SeveralTurns):
    """Code of others has its tools: only the environment's own processes load it, also for a plan."""

    def missing_requirements(self) -> list[Problem]:
        described = self._schemas_or_fault
        return [Problem("environment", described, "fix it, or use another one")] if isinstance(described, str) else []

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools' schemas. Raises `Problems` where they cannot be loaded."""
        if isinstance(self._schemas_or_fault, str):
            raise Problems(self.missing_requirements())
        return self._schemas_or_fault

    @cached_property
    def _schemas_or_fault(self) -> Sequence[Mapping[str, Any]] | str:
        """The schemas of its tools, read by a subprocess, or why they cannot be loaded."""
        processes = Processes(replace(self, workers=1))
        try:
            return processes.tools()
        finally:
            processes.close()
