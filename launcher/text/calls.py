"""Calls of tools in what a model writes: the forms of the model families, and how each is read.

A form is one row of `FORMS`; which one a model has is seen in what its chat template writes of a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launcher.core.user_code import Raised, caught, shorten
from launcher.spec.environment import Spoken, ToolCall

_THOUGHT = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*\Z", re.DOTALL)
_HARMONY = re.compile(
    r"(?:to=(?:functions\.)?(?P<before>[\w.-]+)\s*)?<\|channel\|>(?P<channel>\w+)"
    r"(?:\s+to=(?:functions\.)?(?P<behind>[\w.-]+))?[^<]*(?:<\|constrain\|>\w+)?<\|message\|>"
    r"(?P<text>.*?)(?=<\|end\|>|<\|call\|>|<\|return\|>|<\|start\|>|\Z)",
    re.DOTALL,
)

Parts = tuple[str, list[str], str]
"""What a turn says, each of its calls as it was written, and what was thought before."""


@dataclass(frozen=True)
class CallForm:
    """How a family of models writes calls."""

    name: str
    seen: str
    """What a template that writes calls in this form has in a call."""
    split: Callable[[str], Parts]
    read: Callable[[str], list[ToolCall]]
    """The calls in what was written. Raises `ValueError`."""
    begins: str = ""
    """Where this stands and no call is found, one was meant."""

    def parse(self, text: str, cut: bool = False) -> Spoken:
        """What the policy said. Where a call cannot be read it is named, and none of the turn is called."""
        calls, unreadable = list[ToolCall](), ""
        content, found, thought = self.split(text)
        for written in found:
            read = caught(partial(self._writable, written))
            if isinstance(read, Raised):
                unreadable = unreadable or shorten(" ".join(str(read.error).split())) or "it is not a call"
            else:
                calls += read
        if self.begins and self.begins in content:
            unreadable = unreadable or f"a call that begins with {self.begins} has no end"
        named = [replace(call, id=call.id or f"call{number:05}") for number, call in enumerate(calls)]
        return Spoken(text, content.strip(), () if unreadable else tuple(named), unreadable, cut, thought)

    def _writable(self, written: str) -> list[ToolCall]:
        calls = self.read(written)
        for call in calls:  # an escape of JSON may be half of a character
            json.dumps([call.name, call.id, dict(call.arguments)], ensure_ascii=False).encode()
        return calls


def read_plain(text: str, cut: bool = False) -> Spoken:
    """A turn of a model that calls nothing."""
    thought, content = without_thought(text)
    return Spoken(text, content.strip(), cut=cut, thought=thought)


def without_thought(text: str) -> tuple[str, str]:
    """What was thought in <think>, which the opening of the turn may have begun, and what follows it."""
    found = _THOUGHT.match(text)
    return (found[1].strip("\n"), text[found.end() :]) if found else ("", text)


def _by(pattern: str) -> Callable[[str], Parts]:
    """Calls are what the group of `pattern` matches."""
    known = re.compile(pattern, re.DOTALL)

    def split(text: str) -> Parts:
        thought, content = without_thought(text)
        return known.sub("", content), known.findall(content), thought

    return split


def _by_channel(text: str) -> Parts:
    """Messages in channels: a call is one to a function, and an answer stands in the channel `final`."""
    parts = [*_HARMONY.finditer(text)]
    if not parts:
        return text, [], ""
    calls = [
        json.dumps({"name": to, "arguments": part["text"]})
        for part in parts
        if (to := part["before"] or part["behind"])
    ]
    of = {name: "".join(part["text"] for part in parts if part["channel"] == name) for name in ("final", "analysis")}
    return of["final"], calls, of["analysis"]


def _json_calls(text: str) -> list[ToolCall]:
    """Objects with name and arguments, one or a list; Llama calls the arguments `parameters`."""
    node = json.loads(text)
    return [_call(each) for each in (node if isinstance(node, list) else [node])]


def _call(node: Any) -> ToolCall:
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        raise ValueError('a call is an object with "name" and "arguments"')
    arguments = node.get("arguments", node.get("parameters", {}))
    return ToolCall(node["name"], _object(arguments), str(node.get("id") or ""))


def _object(arguments: Any) -> Mapping[str, Any]:
    node = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(node, dict):
        raise ValueError("the arguments are no object")
    return node


def _tagged_call(text: str) -> list[ToolCall]:
    """`<function=name><parameter=key>value</parameter></function>`; a value is a text, unless it is a list or an object
    of JSON: the type of the argument decides about numbers."""
    found = _FUNCTION.match(text)
    if not found:
        raise ValueError("a call is <function=NAME>, its parameters, and </function>")
    if _PARAMETER.sub("", found[2]).strip():
        raise ValueError("a parameter is <parameter=KEY>, its value, and </parameter>")
    values = {}
    for key, value in _PARAMETER.findall(found[2]):
        read = caught(partial(json.loads, value)) if value[:1] in ("[", "{") else value
        values[key] = value if isinstance(read, Raised) else read
    return [ToolCall(found[1], values)]


_IN_TAGS = _by(r"<tool_call>(.*?)</tool_call>")
FORMS = (
    CallForm("tagged", "<function=", _IN_TAGS, _tagged_call, "<tool_call>"),
    CallForm("hermes", "<tool_call>", _IN_TAGS, _json_calls, "<tool_call>"),
    CallForm("harmony", "<|channel|>", _by_channel, _json_calls, "to=functions."),
    CallForm("mistral", "[TOOL_CALLS]", _by(r"\[TOOL_CALLS\]\s*(\[.*\])"), _json_calls, "[TOOL_CALLS]"),
    CallForm("llama", '"parameters"',
             _by(r'\A\s*(?:<\|python_tag\|>)?\s*(\{\s*"(?:type|name)"(?=.*"(?:parameters|arguments)").*)\Z'),
             _json_calls, "<|python_tag|>"),
)  # fmt: skip
"""Qwen3.5 and Qwen3-Coder; Hermes, Qwen2.5 and Qwen3; gpt-oss; Mistral; Llama 3. The first whose `seen` stands in what
the template writes of a call is the model's."""


def form_of(written: str) -> CallForm | None:
    """The form of a model whose template writes `written` of a call; None where it is none of these."""
    return next((form for form in FORMS if form.seen in written), None)
