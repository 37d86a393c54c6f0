"""Any object's public methods as tools: their schemas, and a session that calls them.

    class Shop:
        def reset(self, row): ...                          # begins an episode of a row (launcher.spec.data.Row)
        def price(self, item: str) -> float: "What an item costs."     # a tool: each public method with types
        def reward(self, episode) -> float: ...            # the score; None leaves it to the run's reward

All but the tools may be missing. What it may have beside: `done` (true once the episode has ended, or its outcome as a
text), `turn_reward` (what the last turn contributed, read after each turn), `state` (a text, equal where the episode
stands equally), `facts` (numbers of the episode), and `close()`. Its tools may be `async`. What a tool raises of what
it was given (`MISTAKES`, such as ValueError) the policy reads; anything else, and a tool that takes too long, ends the
episode as a fault, which is no score.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from launcher.core.user_code import CallFailure, Raised, caught, shorten, try_call
from launcher.environments.calling import Mistake, Refused, TimedOut, failure_of, own_code
from launcher.spec.data import Message, Row
from launcher.spec.environment import (
    TRUSTED,
    Environment,
    History,
    Observation,
    Outcome,
    Session,
    Spoken,
    ToolCall,
    ToolUse,
)

MOST_CALLS = 16  # of one turn
NO_TOOLS = frozenset({"reset", "step", "reward", "close"})
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool:
    """A function that a policy may call."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        hints, fields = get_type_hints(function, include_extras=True), dict[str, Any]()
        known = inspect.signature(function).parameters
        if untyped := [each for each in known if each not in hints]:
            raise Refused(f"{', '.join(untyped)} has no type; use one such as {untyped[0]}: str")
        if unnamed := [str(each) for each in known.values() if each.kind not in NAMED]:
            raise Refused(f"{', '.join(unnamed)} cannot be given by name; use one such as words: list[str]")
        for number, parameter in enumerate(known.values()):  # by no name that pydantic has itself
            hint: Any = hints[parameter.name]
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"argument{number}"] = (Annotated[hint, Field(alias=parameter.name)], default)
        self.arguments = create_model(name, __config__=ConfigDict(extra="forbid", coerce_numbers_to_str=True), **fields)

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
        fields = self.arguments.model_fields
        try:
            made = self._made(arguments)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors()]
            names = ", ".join(str(of.alias) for of in fields.values())
            return f"{'; '.join(wrong)}; the arguments of {self.name} are {names}"
        return {str(of.alias): getattr(made, name) for name, of in fields.items()}

    def _made(self, arguments: Mapping[str, Any]) -> BaseModel:
        """With texts of JSON read where texts are wrong: some forms of calls have nothing else."""
        try:
            return self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            wrong = {each["loc"][0] for each in error.errors()}
            read = {name: read_json(value) if name in wrong else value for name, value in arguments.items()}
            found = caught(partial(self.arguments.model_validate, read))
            if isinstance(found, Raised):
                raise
            return found


def read_json(value: Any) -> Any:
    """What a text says as JSON; where it is none, the value as it is."""
    read = caught(partial(json.loads, value)) if isinstance(value, str) else value
    return value if isinstance(read, Raised) else read


def tools_of(holder: Any) -> dict[str, Tool]:
    """The public methods of an object or a class that are tools. Raises `Refused` where one has no types."""
    found = dict[str, Tool]()
    for name, _ in inspect.getmembers_static(type(holder), lambda each: inspect.isfunction(inspect.unwrap(each))):
        if not name.startswith("_") and name not in NO_TOOLS:
            made = caught(partial(Tool, name, getattr(holder, name)))
            if isinstance(made, Raised):
                raise Refused(f"tool {name}: {failure_of(made.error).reason}; one that is none begins with _")
            found[name] = made
    return found


def text_of(value: Any, most: int) -> str:
    """A tool's result as the policy reads it: text as it is, other values as JSON, cut to `most` characters. Raises
    `TypeError` for what lies about itself, `Refused` for bytes."""
    if isinstance(value, bytes | bytearray):
        raise Refused(f"its result is {type(value).__name__}; return a text, such as that of .decode()")
    text: Any = value if type(value) is str else try_call(partial(json.dumps, value, default=str, ensure_ascii=False))
    if isinstance(text, CallFailure):
        raise TypeError(f"its result cannot be written, {text.reason}")
    text = text.encode(errors="replace").decode()  # halves of characters cannot be tokenized
    if len(text) <= most:
        return text
    ending = f"\n[cut: it has {len(text):,} characters]"
    return f"{text[: max(most - len(ending), 0)]}{ending}"[:most]


class ToolSession(Session):
    """Calls the tools of one object, or passes turns to its own `step`."""

    def __init__(self, holder: Any, settings: Environment, tools: Mapping[str, Any] | None = None) -> None:
        """`tools` are each like `Tool`; None: the public methods of `holder`."""
        self.holder, self.settings = holder, settings
        self.tools = tools_of(holder) if tools is None else tools
        self.own_code = own_code(settings.concurrency)

    def schemas(self) -> list[Mapping[str, Any]]:
        return [tool.schema for tool in self.tools.values()]

    def reset(self, row: Row) -> Any:
        return self.holder.reset(row) if hasattr(self.holder, "reset") else None

    @property
    def state(self) -> str:
        return str(getattr(self.holder, "state", ""))

    async def step(self, episode: History, answer: Spoken) -> Observation:
        if hasattr(self.holder, "step"):
            given = await self.own_code.call("step", self.settings.timeout_s, self.holder.step, episode, answer)
            return fault_of(given) if isinstance(given, CallFailure) else given
        if hasattr(self.holder, "turn_reward"):
            self.holder.turn_reward = 0.0
        many = len(answer.calls) > MOST_CALLS
        unreadable = answer.unreadable or (f"it is one of {len(answer.calls)} in one turn" if many else "")
        if answer.cut:
            return self._seen((), "token-limit", ())
        if unreadable:
            text = f"The call cannot be read: {unreadable}."
            return self._seen((Message("user", text),), None, (ToolUse("", "", "", 0.0, unreadable),))
        if not answer.calls:
            return self._seen((), "finished", ())
        uses = list[ToolUse]()
        for call in answer.calls:
            use, found = await self._use(call)
            uses.append(use)
            if isinstance(found, CallFailure):
                return replace(fault_of(found), uses=tuple(uses))
        results = (f"Error: {use.error}" if use.error else use.result for use in uses)
        messages = tuple(
            Message("tool", text, {"name": call.name, "tool_call_id": call.id})
            for text, call in zip(results, answer.calls, strict=True)
        )
        return self._seen(messages, None, tuple(uses))

    def _seen(self, messages: tuple[Message, ...], ended: Outcome | None, uses: tuple[ToolUse, ...]) -> Observation:
        if done := getattr(self.holder, "done", False):
            ended = next((outcome for outcome in TRUSTED if outcome == done), "finished")
        reward = getattr(self.holder, "turn_reward", 0.0)
        return Observation(() if ended else messages, ended, "", reward, self.state, uses)

    async def _use(self, call: ToolCall) -> tuple[ToolUse, CallFailure | None]:
        """A call with what the policy reads of it, and why the tool failed where the policy has no part in that."""
        begun, arguments = time.monotonic(), json.dumps(dict(call.arguments), ensure_ascii=False, sort_keys=True)
        tool = self.tools.get(call.name)
        checked = tool.checked(call.arguments) if tool else f"there is no tool {call.name}; use {', '.join(self.tools)}"
        if isinstance(checked, str) or tool is None:
            return ToolUse(call.name, arguments, "", 0.0, shorten(str(checked))), None
        what, limit_s = f"tool {call.name}", self.settings.tool_timeout_s
        found = await self.own_code.call(what, limit_s, self._written(tool), checked)
        use = ToolUse(call.name, arguments, "", time.monotonic() - begun)
        if isinstance(found, Mistake):
            return replace(use, error=found.text), None
        if isinstance(found, CallFailure):
            return replace(use, error=found.reason), found
        return replace(use, result=found), None

    def _written(self, tool: Tool) -> Callable[[dict[str, Any]], Any]:
        """The tool with its result as text, which is made where it runs: a value may be large, or lie of itself."""
        most = self.settings.max_result_characters

        async def awaited(found: Any) -> str:
            return text_of(await found, most)

        def called(named: dict[str, Any]) -> Any:
            found = tool.function(**named)
            return awaited(found) if inspect.isawaitable(found) else text_of(found, most)

        return called

    @property
    def facts(self) -> Mapping[str, float]:
        return dict(getattr(self.holder, "facts", {}))

    def reward(self, episode: History) -> Any:
        return self.holder.reward(episode) if hasattr(self.holder, "reward") else None

    def close(self) -> Any:
        return self.holder.close() if hasattr(self.holder, "close") else None


def fault_of(failure: CallFailure) -> Observation:
    """The end of an episode whose environment failed."""
    return Observation(ended="timeout" if isinstance(failure, TimedOut) else "environment-fault", reason=failure.reason)
