"""Converts turns of a conversation to and from the forms that chat templates take and render."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from launcher.core.user_code import CallFailure, try_call
from launcher.text.stop_tokens import REASONING, Turn

_LEADING_TAG = re.compile(r"\s*<(\w+)>(?=[\s\S]*</\1>)")


# ---- answers


def reasoning_in(turn: Turn, tag: str = "think") -> str:
    """The reasoning of the turn, from a field of its own or from tags in its content; empty where there is none."""
    within = (turn.get("content") or "").rpartition(f"</{tag}>")[0].rpartition(f"<{tag}>")[2]
    return next((text for key in REASONING if isinstance(text := turn.get(key), str)), within).strip("\n")


def without_reasoning(turn: Turn, opened: str) -> Turn:
    """The turn without its reasoning; from its content only a block of tags is cut that `opened` closes already."""
    plain = {key: value for key, value in turn.items() if key not in REASONING}
    content = plain.get("content")
    if isinstance(content, str) and (tag := _LEADING_TAG.match(content)) and f"</{tag[1]}>" in opened:
        plain["content"] = content.partition(f"</{tag[1]}>")[2].lstrip("\n")
    return plain


def with_reasoning_apart(turn: Turn, written: str) -> Turn | None:
    """The turn with reasoning moved from its content to a field, where the template does not parse contents: then it
    has `written` a closing tag of its own before the content. None where nothing is to be moved."""
    content = turn.get("content") or ""
    tag = _LEADING_TAG.match(content)
    if not tag or f"</{tag[1]}>" not in (split := written.partition(content.strip()))[0] or not split[1]:
        return None
    answer_text = content.partition(f"</{tag[1]}>")[2].lstrip("\n")
    return {**turn, **dict.fromkeys(REASONING, reasoning_in(turn, tag[1])), "content": answer_text}


def continued(rest: str, tag: re.Match[str], answer: Turn) -> str:
    """The text to learn after an opened `tag` such as <think>, where the template renders `rest` from there on."""
    name, blank = tag[1], tag[2]
    opened, closing = f"<{name}>", f"</{name}>"
    if rest.lstrip().startswith(opened):
        return rest.partition(opened)[2].lstrip()
    if closing in rest:
        return rest
    line = blank[:1]
    return f"{reasoning_in(answer, name)}{line}{closing}{line * 2}" + rest.lstrip("\n")


# ---- turns


def with_parts(turn: Turn) -> Turn:
    content = turn.get("content")
    return {**turn, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else turn


def called(turn: Turn) -> list[str]:
    """The names of the functions that the turn calls."""
    return [str(call.get("function", call).get("name", "")) for call in turn.get("tool_calls") or () if is_call(call)]


def is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function", call), dict)


def retyped(turn: Turn) -> Turn:
    """The turn with the arguments of its calls converted: JSON text to objects, objects to JSON text."""
    calls = []
    for call in turn["tool_calls"]:
        holder = call.get("function", call) if is_call(call) else {}
        arguments = holder.get("arguments")
        converted = try_call(partial(json.loads, arguments)) if isinstance(arguments, str) else json.dumps(arguments)
        if isinstance(converted, CallFailure):
            return turn
        changed = {**holder, "arguments": converted}
        calls.append({**call, "function": changed} if "function" in call else changed)
    return {**turn, "tool_calls": calls}
