"""Raw rows to `Row`: which keys hold the prompt, the answer and the truth.

What one row may look like, as demonstrations ("answers"):
    {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]}
    {"prompt": "1+1?", "response": "2"}
    {"question": "1+1?", "answer": "2"}
and as prompts, where the answer is only what a sampled one is compared with:
    {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}, "data_source": "sums"}
    and each of the above; of `messages`, what comes before the last assistant turn is the prompt
and as pairs:
    {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}, with equal turns before the last
"mixed" rows are pairs where they have `chosen` or `rejected`, prompts otherwise.
`prompt` may be text or messages wherever it stands; null counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from launcher.core.problems import short_repr, suggest
from launcher.data.rows import UnfitRow, type_name
from launcher.spec.algorithm import Kind
from launcher.spec.data import ROLES, Message, Row, Text

Values = Mapping[str, Any]

ANSWERS = {"prompt": ("response", "answer"), "question": ("answer", "response")}  # the likelier name first


def to_row(
    where: str, values: Values, kind: Kind, *, prompt_key: str | None = None, response_key: str | None = None
) -> Row | str:
    """The row that `values` hold, or the reason why they hold none."""
    try:
        if kind == "answers":
            return _demonstration(where, values, prompt_key, response_key)
        if kind == "pairs" or (kind == "mixed" and _first(values, ("chosen", "rejected"))):
            return _pair(where, values, prompt_key)
        return _prompt_row(where, values, prompt_key, response_key)
    except UnfitRow as unfit:
        return str(unfit)


def _demonstration(where: str, values: Values, prompt_key: str | None, response_key: str | None) -> Row:
    name = prompt_key or _first(values, ("messages", "prompt", "question")) or "prompt"
    answer = response_key or _first(values, ANSWERS.get(name, ("response", "answer")))
    conversation = name == "messages" or (prompt_key is not None and answer is None)
    if conversation and response_key is None and isinstance(_required(values, name), list):
        turns = _messages(name, values[name])
        spoken = [turn.content for turn in turns if turn.role == "assistant"]
        if not any(content.strip() for content in spoken):
            missing = f"the assistant turns of {name} are empty" if spoken else f"no assistant turn in {name}"
            raise UnfitRow(f"{missing}; add one with content")
        for place, turn in enumerate(turns):
            if turn.role in ("user", "assistant") and not turn.content.strip():
                raise UnfitRow(f"{name}[{place}].content is empty")
        return _row(where, values, turns, None, None)
    prompt = _prompt(name, _required(values, name))
    answer = answer or ANSWERS.get(name, ("response",))[0]
    response = _text(answer, _required(values, answer))
    return _row(where, values, prompt, response, None)


def _prompt_row(where: str, values: Values, prompt_key: str | None, response_key: str | None) -> Row:
    name = prompt_key or _first(values, ("prompt", "question", "messages")) or "prompt"
    if name == "messages":
        prompt, truth = _before_last_answer(name, _required(values, name))
        answer = response_key
    else:
        prompt, truth = _prompt(name, _required(values, name)), None
        answer = response_key or _first(values, ANSWERS.get(name, ("response", "answer")))
    if answer is not None:
        truth = _truth(answer, _required(values, answer))
    return _row(where, values, prompt, None, truth)


def _pair(where: str, values: Values, prompt_key: str | None) -> Row:
    name = prompt_key or _first(values, ("prompt", "question"))
    prompt = _prompt(name, _required(values, name)) if name else None
    (before, chosen), (other, rejected) = (_answered(side, _required(values, side)) for side in ("chosen", "rejected"))
    if before != other:
        raise UnfitRow("chosen and rejected answer different conversations; expected equal turns before the last")
    if before and prompt is not None:
        output = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        if before != output:
            raise UnfitRow(f"chosen has other turns before its answer than {name}; use the answer alone")
    opening = prompt if prompt is not None else before
    if not opening:
        raise UnfitRow("prompt is missing, and chosen is no conversation that holds it; add a prompt")
    if chosen == rejected:
        raise UnfitRow("chosen and rejected are equal, which teaches nothing; use two different answers")
    return replace(_row(where, values, opening, chosen, None), rejected=rejected)


def _answered(path: str, value: Any) -> tuple[tuple[Message, ...], str]:
    """The turns before an answer, if it comes with any, and the answer."""
    if isinstance(value, str):
        return (), _text(path, value)
    turns = _messages(path, value, "text or a list of messages")
    place, last = f"{path}[{len(turns) - 1}]", turns[-1]
    if last.role != "assistant":
        raise UnfitRow(f"{place}.role is {short_repr(last.role)}; the last turn must be the assistant's")
    return turns[:-1], _text(f"{place}.content", last.content)


def _before_last_answer(path: str, value: Any) -> tuple[Text, str | None]:
    """The turns before the last assistant turn, and what that turn says; all of them where there is none."""
    turns = _messages(path, value)
    last = max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=len(turns))
    if not any(turn.content.strip() for turn in turns[:last]):
        raise UnfitRow(f"nothing stands before {path}[{last}]; add a turn with content")
    return turns[:last], turns[last].content if last < len(turns) else None


def _row(where: str, values: Values, prompt: Text, response: str | None, answer: str | None) -> Row:
    """The row with what all kinds have in common; `answer` is the truth where no other is given."""
    truth = answer or None
    rule = _object("reward_model", values)
    if rule is not None:
        truth = _truth("reward_model.ground_truth", rule.get("ground_truth"))
    elif values.get("ground_truth") is not None:
        truth = _truth("ground_truth", values["ground_truth"])
    return Row(
        where=where,
        prompt=prompt,
        response=response,
        ground_truth=truth,
        data_source=_label("data_source", values) or "unknown",
        ability=_label("ability", values),
        extra_info=_object("extra_info", values) or {},
    )


# ---- keys


def _first(values: Values, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if values.get(name) is not None), None)


def _required(values: Values, name: str) -> Any:
    if values.get(name) is not None:
        return values[name]
    if name in values:
        raise UnfitRow(f"{name} is null; expected a value")
    keys = sorted(values)
    near = get_close_matches(name, keys, n=1)
    listed = ", ".join(key if key.isidentifier() else short_repr(key, 40) for key in keys[:8]) or "no keys"
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    raise UnfitRow(f"{name} is missing; it has {listed}{more}" + (f"; {suggest(near[0], [name])}" if near else ""))


# ---- values


def _expect(path: str, value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise UnfitRow(f"{path} is {type_name(value)}; it must be {expected}")
    return value


def _text(path: str, value: Any) -> str:
    text: str = _expect(path, value, str, "text")
    if not text.strip():
        raise UnfitRow(f"{path} is empty")
    return text


def _prompt(path: str, value: Any) -> Text:
    if isinstance(value, str):
        return _text(path, value)
    turns = _messages(path, value, "text or a list of messages")
    if not any(turn.content.strip() for turn in turns):
        raise UnfitRow(f"{path} is empty: no message has content")
    return turns


def _messages(path: str, value: Any, expected: str = "a list of messages") -> tuple[Message, ...]:
    if not _expect(path, value, list, expected):
        raise UnfitRow(f"{path} is empty; expected a list of messages")
    return tuple(_message(f"{path}[{index}]", turn) for index, turn in enumerate(value))


def _message(path: str, value: Any) -> Message:
    _expect(path, value, dict, "an object with role and content")
    if missing := [key for key in ("role", "content") if key not in value]:
        raise UnfitRow(f"{path}.{missing[0]} is missing")
    role = value["role"]
    if role not in ROLES:
        raise UnfitRow(f"{path}.role is {short_repr(role)}; it may be {', '.join(ROLES)}")
    content = _expect(f"{path}.content", value["content"], str, "text")
    if value.get("tool_calls"):  # without them the turn would say something else than it did
        raise UnfitRow(f"{path}.tool_calls are not read yet; put the whole turn in content")
    return Message(role, content)


def _truth(path: str, value: Any) -> str | None:
    """A number becomes the text that an answer would write."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnfitRow(f"{path} is {type_name(value)}; it must be text or a number")
    if not math.isfinite(value):
        raise UnfitRow(f"{path} is {value}; expected a finite number")
    return str(value)


def _object(name: str, values: Values) -> dict[str, Any] | None:
    value = values.get(name)
    return None if value is None else _expect(name, value, dict, "an object")


def _label(name: str, values: Values) -> str:
    value = values.get(name)
    return "" if value is None else _expect(name, value, str, "text")
