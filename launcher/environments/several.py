"""What environments of several turns have in common: the prompt with its tools, and where their episodes run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.core.settings import settings
from launcher.environments.processes import Processes
from launcher.spec.data import Message, Row
from launcher.spec.environment import Environment, Sessions


@settings
class SeveralTurns(Environment):
    @property
    def scores(self) -> bool:
        return True

    def prompt(self, row: Row) -> Row:
        """With the system's turn and the tools, unless the row has its own."""
        turns = (Message("user", row.prompt),) if isinstance(row.prompt, str) else row.prompt
        if self.system_prompt and turns[0].role != "system":
            turns = (Message("system", self.system_prompt), *turns)
        tools = {"tools": list(schemas)} if (schemas := self.tools()) else {}
        return replace(row, prompt=turns, template_args={**tools, **row.template_args})

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self.session().schemas()

    def sessions(self) -> Sessions:
        return Processes(self)
