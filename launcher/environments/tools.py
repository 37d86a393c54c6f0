"""Any object's public methods as tools: their schemas, and a session that calls them.

    class Shop:
        def reset(self, row): ...                          # begins an episode of a row (launcher.spec.data.Row)
        def price(self, item: str) -> float: "What an item costs."     # a tool: each public method with types
        def reward(self, episode) -> float: ...            # the score; None leaves it to the run's reward

All but the tools are optional. It may also have `done` (true once the episode has ended, or its outcome as a text),
`turn_reward` (of the last turn, read after each turn), `state` (a text, equal for equal states of the episode), `facts`
(numbers of the episode), and `close()`. Tools may be `async`. The policy reads the errors that bad arguments raise
(`MISTAKES`, such as ValueError); any other error, and a tool that takes too long, ends the episode with a fault, which
is not scored.
"""

from __future__ import annotations

import inspect
import json
import re
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

MOST_CALLS = 16  # in one turn
NO_TOOLS = frozenset({"reset", "step", "reward", "close"})
VALUES = frozenset({"done", "turn_reward", "state", "facts"})
"""Names that are read as values, so that none may be a method."""
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool:
    """A function that a policy may call."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        hints, fields = get_type_hints(function, include_extras=True), dict[str, Any]()
        parameters = inspect.signature(function).parameters
        if untyped := [name for name in parameters if name not in hints]:
            raise Refused(f"{', '.join(untyped)} has no type; use one such as {untyped[0]}: str")
        if unnamed := [str(each) for each in parameters.values() if each.kind not in NAMED]:
            raise Refused(f"{', '.join(unnamed)} cannot be given by name; use one such as words: list[str]")
        for number, parameter in enumerate(parameters.values()):  # pydantic reserves some names of fields
            hint: Any = hints[parameter.name]
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"argument{number}"] = (Annotated[hint, Field(alias=parameter.name)], default)
        self.arguments = create_model(name, __config__=ConfigDict(extra="forbid", coerce_numbers_to_str=True), **fields)

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema, as chat templates take it."""
        parameters = self.arguments.model_json_schema()
        for schema in (parameters, *parameters.get("properties", {}).values()):
            schema.pop("title", None)
        parameters.pop("additionalProperties", None)
        about = inspect.getdoc(self.function) or ""
        function = {"name": self.name, "description": " ".join(about.split()), "parameters": parameters}
        return {"type": "function", "function": function}

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any] | str:
        """The arguments converted to the function's types, or a text that says what is wrong with them."""
        fields = self.arguments.model_fields
        try:
            model = self._validate(arguments)
        except ValidationError as error:
            errors = [f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors()]
            names = ", ".join(str(info.alias) for info in fields.values())
            return f"{'; '.join(errors)}; the arguments of {self.name} are {names}"
        return {str(info.alias): getattr(model, name) for name, info in fields.items()}

    def _validate(self, arguments: Mapping[str, Any]) -> BaseModel:
        """Validate; texts in place of other types are read as JSON, as some formats of calls have only texts."""
        try:
            return self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            wrong_names = {details["loc"][0] for details in error.errors()}
            parsed = {name: read_json(value) if name in wrong_names else value for name, value in arguments.items()}
            model = caught(partial(self.arguments.model_validate, parsed))
            if isinstance(model, Raised):
                raise
            return model


def read_json(value: Any) -> Any:
    """The value of a text of JSON; any other value unchanged."""
    parsed = caught(partial(json.loads, value)) if isinstance(value, str) else value
    return value if isinstance(parsed, Raised) else parsed


def tools_of(holder: Any) -> dict[str, Tool]:
    """The public methods of an object that are tools. Raises `Refused` where one cannot be, as it has no types."""
    tools = dict[str, Tool]()
    for name, _ in inspect.getmembers_static(type(holder), lambda each: inspect.isfunction(inspect.unwrap(each))):
        if name in VALUES:
            raise Refused(f"{name} is a method, and is read as a value; set self.{name}, or give a tool another name")
        if not name.startswith("_") and name not in NO_TOOLS:
            tool = caught(partial(Tool, name, getattr(holder, name)))
            if isinstance(tool, Raised):
                raise Refused(f"tool {name}: {failure_of(tool.error).reason}; one that is none begins with _")
            tools[name] = tool
    return tools


def _text_of_object(value: Any) -> str:
    """Raises `TypeError` for what shows its place in memory, which is another in each process."""
    text = str(value)
    if re.search(r" at 0x[0-9a-fA-F]+>", text):
        raise TypeError(f"a {type(value).__name__} has no text of its own; return one, or give it __str__")
    return text


def text_of(value: Any, most: int) -> str:
    """A tool's result as the policy reads it: text unchanged, other values as JSON, cut to `most` characters. Raises
    `TypeError` for what cannot be written as JSON, `ValueError` for a number that is too long, `Refused` for bytes."""
    if isinstance(value, bytes | bytearray):
        raise Refused(f"its result is {type(value).__name__}; return a text, such as that of .decode()")
    write = partial(json.dumps, value, default=_text_of_object, ensure_ascii=False, check_circular=False)
    text: Any = value if type(value) is str else try_call(write)
    if isinstance(text, CallFailure):  # a circle is a RecursionError
        kind = ValueError if text.kind == "ValueError" else TypeError
        raise kind(f"its result cannot be written, {text.reason}")
    if len(text) > most:
        ending = f"\n[cut: it has {len(text):,} characters]"
        text = f"{text[: max(most - len(ending), 0)]}{ending}"[:most]
    return text.encode(errors="replace").decode()  # lone surrogates cannot be tokenized


class ToolSession(Session):
    """Calls the tools of one object, or passes turns to its own `step`."""

    def __init__(self, holder: Any, settings: Environment, tools: Mapping[str, Any] | None = None) -> None:
        """`tools` by name, each with the interface of `Tool`; None takes the public methods of `holder`."""
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
            result = await self.own_code.call("step", self.settings.timeout_s, self.holder.step, episode, answer)
            return fault_of(result) if isinstance(result, CallFailure) else result
        if hasattr(self.holder, "turn_reward"):
            self.holder.turn_reward = 0.0
        too_many = len(answer.calls) > MOST_CALLS
        unreadable = answer.unreadable or (f"it is one of {len(answer.calls)} in one turn" if too_many else "")
        if answer.cut:
            return self._observe((), "token-limit", ())
        if unreadable:
            text = f"The call cannot be read: {unreadable}."
            return self._observe((Message("user", text),), None, (ToolUse("", "", "", 0.0, unreadable),))
        if not answer.calls:
            return self._observe((), "finished", ())
        uses = list[ToolUse]()
        for call in answer.calls:
            use, failure = await self._call_tool(call)
            uses.append(use)
            if isinstance(failure, CallFailure):
                return replace(fault_of(failure), uses=tuple(uses))
        results = (f"Error: {use.error}" if use.error else use.result for use in uses)
        messages = tuple(
            Message("tool", text, {"name": call.name, "tool_call_id": call.id})
            for text, call in zip(results, answer.calls, strict=True)
        )
        return self._observe(messages, None, tuple(uses))

    def _observe(self, messages: tuple[Message, ...], ended: Outcome | None, uses: tuple[ToolUse, ...]) -> Observation:
        if done := getattr(self.holder, "done", False):
            if isinstance(done, str) and done not in TRUSTED:
                raise Refused(f"done is {done!r}; use True, or one of {', '.join(TRUSTED)}")
            ended = next((outcome for outcome in TRUSTED if outcome == done), "finished")
        reward = getattr(self.holder, "turn_reward", 0.0)
        return Observation(() if ended else messages, ended, "", reward, self.state, uses)

    async def _call_tool(self, call: ToolCall) -> tuple[ToolUse, CallFailure | None]:
        """Call a tool: the call with its result or error, and the failure if it is not the policy's mistake."""
        start, arguments = time.monotonic(), json.dumps(dict(call.arguments), ensure_ascii=False, sort_keys=True)
        tool = self.tools.get(call.name)
        checked = tool.checked(call.arguments) if tool else f"there is no tool {call.name}; use {', '.join(self.tools)}"
        if isinstance(checked, str) or tool is None:
            return ToolUse(call.name, arguments, "", 0.0, shorten(str(checked))), None
        what, limit_s = f"tool {call.name}", self.settings.tool_timeout_s
        result = await self.own_code.call(what, limit_s, self._with_text_result(tool), checked)
        use = ToolUse(call.name, arguments, "", time.monotonic() - start)
        if isinstance(result, Mistake):
            return replace(use, error=result.text), None
        if isinstance(result, CallFailure):
            return replace(use, error=result.reason), result
        return replace(use, result=result), None

    def _with_text_result(self, tool: Tool) -> Callable[[dict[str, Any]], Any]:
        """The tool with its result as text, converted where the tool runs: values may be large, or of hostile types."""
        most = self.settings.max_result_characters

        async def awaited(found: Any) -> str:
            return text_of(await found, most)

        def called(named: dict[str, Any]) -> Any:
            result = tool.function(**named)
            return awaited(result) if inspect.isawaitable(result) else text_of(result, most)

        return called

    @property
    def facts(self) -> Mapping[str, float]:
        return dict(getattr(self.holder, "facts", {}))

    def reward(self, episode: History) -> Any:
        return self.holder.reward(episode) if hasattr(self.holder, "reward") else None

    def close(self) -> Any:
        return self.holder.close() if hasattr(self.holder, "close") else None


def fault_of(failure: CallFailure) -> Observation:
    """The observation that ends an episode whose environment failed."""
    return Observation(ended="timeout" if isinstance(failure, TimedOut) else "environment-fault", reason=failure.reason)
