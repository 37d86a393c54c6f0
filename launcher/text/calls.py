"""Tool calls in a model's text: the forms of the model families, and how each is parsed.

A form is one row of `FORMS`; which one a model has shows in how its chat template renders a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launcher.core.bounded_parse import DEPTH
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
"""The content of a turn, the text of each of its calls, and its reasoning."""


@dataclass(frozen=True)
class CallForm:
    """How a family of models writes tool calls."""

    name: str
    seen: str
    """Text by which a rendered call of this form is recognized."""
    split: Callable[[str], Parts]
    read: Callable[[str], list[ToolCall]]
    """The calls in one of the texts that `split` returns. Raises `ValueError`."""
    begins: str = ""
    """Text that begins a call: where it remains in the content, a call was begun and not completed."""

    def parse(self, text: str, cut: bool = False) -> Spoken:
        """Parse a turn. If any of its calls is unreadable, `Spoken.unreadable` says why and the turn has no calls."""
        calls, unreadable = list[ToolCall](), ""
        content, blocks, thought = self.split(text)
        for block in blocks:
            parsed = caught(partial(self._read_encodable, block))
            if isinstance(parsed, Raised):
                unreadable = unreadable or shorten(" ".join(str(parsed.error).split())) or "it is not a call"
            else:
                calls += parsed
        if self.begins and self.begins in content:
            unreadable = unreadable or f"a call that begins with {self.begins} has no end"
        identified = [replace(call, id=call.id or f"call{number:05}") for number, call in enumerate(calls)]
        return Spoken(text, content.strip(), () if unreadable else tuple(identified), unreadable, cut, thought)

    def _read_encodable(self, written: str) -> list[ToolCall]:
        calls = self.read(written)
        if not calls:
            raise ValueError("it calls nothing")
        for call in calls:  # a JSON escape may be a lone surrogate
            json.dumps([call.name, call.id, dict(call.arguments)], ensure_ascii=False).encode()
            _check_depth(call.arguments)
        return calls


def read_plain(text: str, cut: bool = False) -> Spoken:
    """Parse a turn of a model without tool calls."""
    thought, content = without_thought(text)
    return Spoken(text, content.strip(), cut=cut, thought=thought)


def without_thought(text: str) -> tuple[str, str]:
    """Split into reasoning, up to </think> (the prompt may hold the opening tag), and the content after it."""
    match = _THOUGHT.match(text)
    return (match[1].strip("\n"), text[match.end() :]) if match else ("", text)


def _split_by_pattern(pattern: str) -> Callable[[str], Parts]:
    """A splitter that takes what the group of `pattern` matches for calls."""
    compiled = re.compile(pattern, re.DOTALL)

    def split(text: str) -> Parts:
        thought, content = without_thought(text)
        return compiled.sub("", content), compiled.findall(content), thought

    return split


def _split_harmony(text: str) -> Parts:
    """Split gpt-oss messages: those to a function are calls, channel `final` is content, `analysis` reasoning."""
    parts = [*_HARMONY.finditer(text)]
    if not parts:
        return text, [], ""
    calls = [
        json.dumps({"name": recipient, "arguments": part["text"]})
        for part in parts
        if (recipient := part["before"] or part["behind"])
    ]
    texts = {name: "".join(part["text"] for part in parts if part["channel"] == name) for name in ("final", "analysis")}
    return texts["final"], calls, texts["analysis"]


def _json_calls(text: str) -> list[ToolCall]:
    """Parse an object with name and arguments, or a list of them; Llama names the arguments `parameters`."""
    node = json.loads(text)
    return [_call(item) for item in (node if isinstance(node, list) else [node])]


def _call(node: Any) -> ToolCall:
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        raise ValueError('a call is an object with "name" and "arguments"')
    arguments = node.get("arguments", node.get("parameters", {}))
    return ToolCall(node["name"], _object(arguments), str(node.get("id") or ""))


def _check_depth(value: Any, left: int = DEPTH) -> None:
    """Raises `ValueError` for more than `left` levels of lists and objects: a copy takes several calls for each."""
    if isinstance(value, dict | list):
        if not left:
            raise ValueError(f"its arguments are nested more than {DEPTH} deep")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, left - 1)


def _object(arguments: Any) -> Mapping[str, Any]:
    node = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(node, dict):
        raise ValueError("the arguments are no object")
    return node


def _tagged_call(text: str) -> list[ToolCall]:
    """Parse `<function=name><parameter=key>value</parameter></function>`; a value is text unless it is a JSON list or
    object: whether it is a number is decided by the type of the argument."""
    match = _FUNCTION.match(text)
    if not match:
        raise ValueError("a call is <function=NAME>, its parameters, and </function>")
    if _PARAMETER.sub("", match[2]).strip():
        raise ValueError("a parameter is <parameter=KEY>, its value, and </parameter>")
    values = {}
    for key, value in _PARAMETER.findall(match[2]):
        parsed = caught(partial(json.loads, value)) if value[:1] in ("[", "{") else value
        values[key] = value if isinstance(parsed, Raised) else parsed
    return [ToolCall(match[1], values)]


_IN_TAGS = _split_by_pattern(r"<tool_call>(.*?)</tool_call>")
FORMS = (
    CallForm("tagged", "<function=", _IN_TAGS, _tagged_call, "<tool_call>"),
    CallForm("hermes", "<tool_call>", _IN_TAGS, _json_calls, "<tool_call>"),
    CallForm("harmony", "<|channel|>", _split_harmony, _json_calls, "to=functions."),
    CallForm("mistral", "[TOOL_CALLS]", _split_by_pattern(r"\[TOOL_CALLS\]\s*(\[.*\])"), _json_calls, "[TOOL_CALLS]"),
    CallForm("llama", '"parameters"',
             _split_by_pattern(r'\A\s*(?:<\|python_tag\|>)?\s*(\{\s*"(?:type|name)"(?=.*"(?:parameters|arguments)").*)\Z'),
             _json_calls, "<|python_tag|>"),
)  # fmt: skip
"""Qwen3.5 and Qwen3-Coder; Hermes, Qwen2.5 and Qwen3; gpt-oss; Mistral; Llama 3. A model has the first form whose
`seen` occurs in what its template renders of a call."""


def form_of(written: str) -> CallForm | None:
    """The form of a model whose template renders a call as `written`; None where it is none of these."""
    return next((form for form in FORMS if form.seen in written), None)
