"""Turns of a conversation in the forms that chat templates take and write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from launcher.core.user_code import CallFailure, try_call
from launcher.text.stop_tokens import REASONING, Turn

_LEADING_TAG = re.compile(r"\s*<(\w+)>(?=[\s\S]*</\1>)")


# ---- answers


def reasoning_in(turn: Turn, tag: str = "think") -> str:
    """What was thought before the turn, in a field of its own or in its content."""
    within = (turn.get("content") or "").rpartition(f"</{tag}>")[0].rpartition(f"<{tag}>")[2]
    return next((text for key in REASONING if isinstance(text := turn.get(key), str)), within).strip("\n")


def without_reasoning(turn: Turn, opened: str) -> Turn:
    """The turn without what was thought before it; in its content that is what stands in tags that `opened` closes."""
    found = {key: value for key, value in turn.items() if key not in REASONING}
    content = found.get("content")
    if isinstance(content, str) and (tag := _LEADING_TAG.match(content)) and f"</{tag[1]}>" in opened:
        found["content"] = content.partition(f"</{tag[1]}>")[2].lstrip("\n")
    return found


def with_reasoning_apart(turn: Turn, written: str) -> Turn | None:
    """The turn with the reasoning of its content in a field of its own, where the template does not look for it in the
    content: it has `written` another closing tag before it. None where there is nothing to set apart."""
    content = turn.get("content") or ""
    tag = _LEADING_TAG.match(content)
    if not tag or f"</{tag[1]}>" not in (split := written.partition(content.strip()))[0] or not split[1]:
        return None
    rest = content.partition(f"</{tag[1]}>")[2].lstrip("\n")
    return {**turn, **dict.fromkeys(REASONING, reasoning_in(turn, tag[1])), "content": rest}


def continued(rest: str, tag: re.Match[str], answer: Turn) -> str:
    """What comes after an opened tag such as <think>, where the template writes `rest` in its place."""
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


def without_calls(turns: Sequence[Turn]) -> list[Turn]:
    """The turns without calls of tools and their results."""
    plain = [turn for turn in turns if turn["role"] != "tool"]
    return [{"role": turn["role"], "content": turn.get("content") or "-"} if turn.get("tool_calls") else turn
            for turn in plain]  # fmt: skip


def retyped(turn: Turn) -> Turn:
    """The turn with the arguments of its calls as objects where they are JSON, and as JSON where they are objects."""
    calls = []
    for call in turn["tool_calls"]:
        holder = call.get("function", call) if is_call(call) else {}
        given = holder.get("arguments")
        other = try_call(partial(json.loads, given)) if isinstance(given, str) else json.dumps(given)
        if isinstance(other, CallFailure):
            return turn
        changed = {**holder, "arguments": other}
        calls.append({**call, "function": changed} if "function" in call else changed)
    return {**turn, "tool_calls": calls}


def alternating(turns: Sequence[Turn]) -> list[Turn]:
    """The turns without those that a template may not expect: of users and assistants, each after the other."""
    found = list[Turn]()
    for turn in turns:
        expected = "user" if not found or found[-1]["role"] != "user" else "assistant"
        if turn["role"] == expected:
            found.append(turn)
    return found
