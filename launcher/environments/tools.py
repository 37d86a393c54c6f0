"""Any object's public methods as tools: their schemas, and a session that calls them.

    class Shop:
        def reset(self, row): ...                          # begins an episode of a row (launcher.spec.data.Row)
        def price(self, item: str) -> float: "What an item costs."     # a tool: each public method with types
        def reward(self, episode) -> float: ...            # the score; None leaves it to the run's reward

What it may have beside: `done` (true once the episode has ended, or its outcome as a text), `turn_reward` (what the
last turn contributed, read after each turn), `state` (a text, equal where the episode stands equally), `facts` (numbers
of the episode), and `close()`. Its tools may be `async`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from launcher.core.user_code import CallFailure, shorten, try_call
from launcher.spec.data import Message, Row
from launcher.spec.environment import (
    TRUSTED,
    Environment,
    Final,
    History,
    Observation,
    Outcome,
    Session,
    Spoken,
    ToolCall,
    ToolUse,
)

ABANDONED: list[str] = []
"""Tools that took too long; the thread of each may never end."""
NO_TOOLS = frozenset({"reset", "step", "reward", "close"})


class Tool:
    """A function that a policy may call."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        hints, fields = get_type_hints(function), dict[str, Any]()
        for parameter in inspect.signature(function).parameters.values():
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
        self.arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)

    @property
    def schema(self) -> dict[str, Any]:
        """As chat templates take it."""
        parameters = self.arguments.model_json_schema()
        for each in (parameters, *parameters.get("properties", {}).values()):
            each.pop("title", None)
        parameters.pop("additionalProperties", None)
        about = inspect.getdoc(self.function) or ""
        function = {"name": self.name, "description": " ".join(about.split()), "parameters": parameters}
        return {"type": "function", "function": function}

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any] | str:
        """The arguments with the types that the function names, or what is wrong with them."""
        try:
            made = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors()]
            return f"{'; '.join(wrong)}; the arguments of {self.name} are {', '.join(self.arguments.model_fields)}"
        return {name: getattr(made, name) for name in type(made).model_fields}


def tools_of(holder: Any) -> dict[str, Tool]:
    """The public methods of an object or a class that are tools. Raises `ValueError` where one has no types."""
    found = dict[str, Tool]()
    for name, _ in inspect.getmembers(type(holder), inspect.isfunction):
        if not name.startswith("_") and name not in NO_TOOLS:
            method = getattr(holder, name)
            untyped = [each for each in inspect.signature(method).parameters if each not in get_type_hints(method)]
            if untyped:
                raise ValueError(f"tool {name}: {', '.join(untyped)} has no type; use one such as {untyped[0]}: str")
            found[name] = Tool(name, method)
    return found


def text_of(value: Any, most: int) -> str:
    """A tool's result as the policy reads it: text as it is, other values as JSON, cut after `most` characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most:,} more characters are left out]"


class ToolSession(Session):
    """Calls the tools of one object, or passes turns to its own `step`."""

    def __init__(self, holder: Any, settings: Environment) -> None:
        self.holder, self.settings, self.tools = holder, settings, tools_of(holder)

    def schemas(self) -> list[Mapping[str, Any]]:
        return [tool.schema for tool in self.tools.values()]

    def reset(self, row: Row) -> None:
        self.holder.reset(row)

    @property
    def state(self) -> str:
        return str(getattr(self.holder, "state", ""))

    async def step(self, episode: History, answer: Spoken) -> Observation:
        if hasattr(self.holder, "step"):
            given: Observation = await self.holder.step(episode, answer)
            return given
        if answer.unreadable:
            text = f"The call cannot be read: {answer.unreadable}."
            return self._seen((Message("user", text),), None, (ToolUse("", "", "", 0.0, answer.unreadable),))
        if not answer.calls:
            return self._seen((), "finished", ())
        if hasattr(self.holder, "turn_reward"):
            self.holder.turn_reward = 0.0
        uses = [await self._use(call) for call in answer.calls]
        messages = tuple(
            Message(
                "tool",
                (use.error and f"Error: {use.error}") or use.result,
                {"name": call.name, "tool_call_id": call.id},
            )
            for use, call in zip(uses, answer.calls, strict=True)
        )
        return self._seen(messages, None, tuple(uses))

    def _seen(self, messages: tuple[Message, ...], ended: Outcome | None, uses: tuple[ToolUse, ...]) -> Observation:
        if done := getattr(self.holder, "done", False):
            ended = next((outcome for outcome in TRUSTED if outcome == done), "finished")
        reward = float(getattr(self.holder, "turn_reward", 0.0))
        return Observation(() if ended else messages, ended, "", reward, self.state, uses)

    async def _use(self, call: ToolCall) -> ToolUse:
        begun, arguments = time.monotonic(), json.dumps(dict(call.arguments), ensure_ascii=False, sort_keys=True)
        tool = self.tools.get(call.name)
        checked = tool.checked(call.arguments) if tool else f"there is no tool {call.name}; use {', '.join(self.tools)}"
        if isinstance(checked, str) or tool is None:
            return ToolUse(call.name, arguments, "", 0.0, shorten(str(checked)))
        try:
            found = await asyncio.wait_for(run_off_loop(tool.function, **checked), self.settings.tool_timeout_s)
        except TimeoutError:
            ABANDONED.append(call.name)
            found = CallFailure(f"{call.name} took longer than {self.settings.tool_timeout_s:g} s")
        seconds = time.monotonic() - begun
        if isinstance(found, CallFailure):
            return ToolUse(call.name, arguments, "", seconds, found.reason)
        return ToolUse(call.name, arguments, text_of(found, self.settings.max_result_characters), seconds)

    def reward(self, episode: History) -> float | Final | None:
        found = self.holder.reward(episode) if hasattr(self.holder, "reward") else None
        if isinstance(found, Final):
            return found
        return Final(found, facts=dict(getattr(self.holder, "facts", {})))

    def close(self) -> None:
        if hasattr(self.holder, "close"):
            self.holder.close()


async def run_off_loop(function: Callable[..., Any], *args: Any, **named: Any) -> Any | CallFailure:
    """What a function gives, or why it failed: an async one here, any other in a thread."""
    if inspect.iscoroutinefunction(function):
        try:
            return await function(*args, **named)
        except Exception as error:  # noqa: BLE001  a person's own code may raise anything
            return try_call(partial(_again, error))
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, try_call, partial(function, *args, **named))


def _again(error: Exception) -> None:
    raise error
