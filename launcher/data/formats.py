"""Converts raw rows to `Row`: finds the keys of the prompt, the answer and the ground truth.

What one row may look like, as demonstrations ("answers"):
    {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]}
    {"prompt": "1+1?", "response": "2"}
    {"question": "1+1?", "answer": "2"}
    {"prompt": "1+1?", "completion": "2"}, or both as messages
  of ShareGPT and of Alpaca:
    {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}], "system": "..."}
    {"instruction": "Add.", "input": "1+1", "output": "2", "system": "..."}
and as prompts, where the answer is only what a sampled one is compared with:
    {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}, "data_source": "sums"}
    where reward_model may have a style: `model` asks for a reward model, which needs no ground truth
    and each of the above; of `messages`, what comes before the last assistant turn is the prompt
and as pairs:
    {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}, with equal turns before the last
    and a prompt, conversations or an instruction with both answers
"mixed" rows are pairs where they have `chosen` or `rejected`, prompts otherwise.
`prompt` may be text or messages wherever it stands; a turn may have `from` and `value`; null counts as missing.
Each may have `system` (or `system_prompt`), the text of a system turn, and what the chat template reads beside the
turns: `tools` (a list, or its JSON) and `chat_template_kwargs`. What else a turn has (tool_calls, reasoning_content,
name) goes to the template as it is. Beside a prompt of text stand `input` and `context`, which follow it, and
`history`, earlier turns as pairs of texts or as messages; beside an answer of text a column of its reasoning.
Keys that nothing reads are noted in the row; it is refused for those that would change its meaning (`keys`): images and
the like, a `label` or `kto_tag` that is false or 0, what is not to be learned.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

from launcher.core.overrides import quoted
from launcher.core.problems import short_repr, suggest
from launcher.data.keys import ReadKeys, is_of_template, is_off, meaning_of, objects_of, propose_keys, refuse_unlearned
from launcher.data.rows import UnfitRow, expect, json_value, truth_of, type_name
from launcher.spec.algorithm import Kind
from launcher.spec.data import NO_SOURCE, ROLES, Message, Row, Text, template_args_of

T = TypeVar("T")
Values = Mapping[str, Any]

ANSWERS = {  # the likelier name first
    "prompt": ("response", "answer", "completion"),
    "question": ("answer", "response"),
    "instruction": ("output", "response"),
}
SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
}
"""The role of each value that `from` may have in a ShareGPT turn."""
_ROLES = {role: role for role in ROLES}
_FORM_KEYS = ("conversations", "instruction")
"""Prompt keys that other keys complete; `instruction` given as `prompt_key` is read alone."""
PROMPTS = ("messages", "prompt", "question", *_FORM_KEYS)
_CONVERSATIONS = ("messages", "conversations")
_SYSTEM = ("system", "system_prompt")
_THOUGHT_END, _THINK_TAGS = "</think>", re.compile(r"\A\s*<think>\s*|\s*</think>\s*\Z")
_TEMPLATE_ARGS, _SIGNS = ("tools", "chat_template_kwargs"), re.compile(r"\W+")
TEMPLATE_FIELDS = "template_fields"
"""Column of prepared rows: JSON of what the chat template reads of a row, apart from roles and contents."""
READ_KEYS = frozenset(
    (*_SYSTEM, *_TEMPLATE_ARGS, TEMPLATE_FIELDS, *PROMPTS, *(name for names in ANSWERS.values() for name in names),
     "chosen", "rejected", "input", "context", "history", "reward_model", "ground_truth", "data_source", "ability",
     "extra_info")
)  # fmt: skip
"""All keys of a row that this module reads when no setting names others."""
_WRITTEN_TURNS = re.compile(
    rf"""(?=.*["'](?:content|value|parts)["']\s*:)\s*(?:\[\s*)?\{{.*"""
    rf"""["'](?:role|from)["']\s*:\s*["'](?:{"|".join(SPEAKERS)})["'].*[\]}}]\s*""", re.DOTALL)  # fmt: skip
"""Matches a conversation serialized as text: as JSON, or as pandas writes a list."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_READ_TURN_KEYS = frozenset(("role", "content", "from", "value"))
"""Keys of a turn that this module reads; the chat template may read the others."""


def needs_each_row(key: str) -> bool:
    """Whether a column of this name must be interpreted row by row, not as a whole column."""
    slow = key in (*_SYSTEM, *_TEMPLATE_ARGS, TEMPLATE_FIELDS, "context", "history")
    return slow or meaning_of(key).kind not in ("", "plain", "prompt", "response", "instead")


def to_row(
    where: str, values: Values, kind: Kind, *, prompt_key: str | None = None, response_key: str | None = None
) -> Row | str:
    """The row that `values` describe, or the reason why they describe none."""
    try:
        if values.get(TEMPLATE_FIELDS) is not None:
            values = _with_template_fields(values)
        values = values if isinstance(values, ReadKeys) else ReadKeys(values)
        if kind == "answers":
            row = _demonstration(where, values, prompt_key, response_key)
        elif kind == "pairs" or (kind == "mixed" and _first(values, ("chosen", "rejected"))):
            row = _pair(where, values, prompt_key)
        else:
            row = _prompt_row(where, values, prompt_key, response_key)
        row = _with_template_args(row, values)
        answered = kind == "answers" or (row.ground_truth and values.read.isdisjoint(("reward_model", "ground_truth")))
        unread = values.unread_of(row, given=bool(answered) and row.rejected is None, learned=kind != "prompts")
        return replace(row, unread=unread) if unread else row
    except UnfitRow as problem:
        return str(problem)


def _demonstration(where: str, values: ReadKeys, prompt_key: str | None, response_key: str | None) -> Row:
    name = prompt_key or _first(values, PROMPTS) or "prompt"
    usual = () if name in _CONVERSATIONS else ANSWERS.get(name, ("response", "answer"))
    answer_key = response_key or _first(values, usual)
    conversation = answer_key is None and (prompt_key is not None or name in _CONVERSATIONS)
    if conversation and isinstance(required(values, name, prompt_key=prompt_key), list):
        return _row(where, values, _learned_turns(name, values[name]), None, None)
    prompt = _prompt_of(values, name, prompt_key)
    answer_key = answer_key or ANSWERS.get(name, ("response",))[0]
    response, extra = _read_answer(answer_key, required(values, answer_key, response_key=response_key))
    response, extra = _text(answer_key, response, extra), extra or _reasoning(values, response)
    if "history" in values.read and not isinstance(prompt, str):  # all answers of a history are learned, too
        return _row(where, values, (*prompt, Message("assistant", response, extra)), None, None)
    row = _row(where, values, prompt, response, None)
    return replace(row, response_extra=extra) if extra else row


def _learned_turns(name: str, nodes: list[Any]) -> tuple[Message, ...]:
    """The turns of a conversation in which every answer is trained on. Raises `UnfitRow` if one cannot be."""
    turns = _messages(name, nodes)
    answers = [turn for turn in turns if turn.role == "assistant"]
    if all(turn.says_nothing for turn in answers):
        missing = f"the assistant turns of {name} are empty" if answers else f"no assistant turn in {name}"
        raise UnfitRow(f"{missing}; add one with content")
    for index, (turn, node) in enumerate(zip(turns, nodes, strict=True)):
        if turn.role in ("user", "assistant") and turn.says_nothing:
            raise UnfitRow(f"{name}[{index}].content is empty; write it, or leave the turn out")
        if turn.role == "assistant" and len(node) > 2:
            refuse_unlearned(f"{name}[{index}]", node)
    return turns


def _prompt_row(where: str, values: ReadKeys, prompt_key: str | None, response_key: str | None) -> Row:
    name = prompt_key or _first(values, ("prompt", "question", "messages", *_FORM_KEYS)) or "prompt"
    prompt: Text
    if name in _CONVERSATIONS:
        prompt, truth = _before_last_answer(name, required(values, name, prompt_key=prompt_key))
        reply_key = response_key
    else:
        prompt, truth = _prompt_of(values, name, prompt_key), None
        reply_key = response_key or _first(values, ANSWERS.get(name, ("response", "answer")))
    if reply_key is not None:
        truth = truth_of(reply_key, _read_answer(reply_key, required(values, reply_key, response_key=response_key))[0])
    row = _row(where, values, prompt, None, truth)
    if reply_key and row.ground_truth and not _tells(truth or "", row.ground_truth):
        values.read.discard(reply_key)
    return row


def _tells(answer: str, truth: str) -> bool:
    """Whether the ground truth stands in an answer, however its numbers and formulas are written."""
    return truth in answer or _SIGNS.sub("", truth) in _SIGNS.sub("", answer)


def _pair(where: str, values: ReadKeys, prompt_key: str | None) -> Row:
    name = prompt_key or _first(values, ("prompt", "question", *_FORM_KEYS))
    sides = [_split_last_answer(side, required(values, side)) for side in ("chosen", "rejected")]
    (before, chosen, chosen_extra), (before_rejected, rejected, rejected_extra) = sides
    if not name and not before and values.get("messages") is not None:  # axolotl: the turns before both answers
        name = "messages"
    prompt = _prompt_of(values, name, prompt_key) if name else None
    if before != before_rejected:
        raise UnfitRow("chosen and rejected answer different conversations; expected equal turns before the last")
    if (chosen, chosen_extra) == (rejected, rejected_extra):
        raise UnfitRow("chosen and rejected are equal, which teaches nothing; use two different answers")
    row = _row(where, values, _opening(values, name, prompt, before), chosen, None)
    return replace(row, rejected=rejected, response_extra=chosen_extra, rejected_extra=rejected_extra)


def _opening(values: ReadKeys, name: str | None, prompt: Text | None, before: tuple[Message, ...]) -> Text:
    """The shared prompt of a pair: its prompt column, or the turns before both answers if those include it."""
    if prompt is None and not before:
        fix = _suggest_keys(values, {"prompt_key": None}) or "add a prompt"
        raise UnfitRow(f"prompt is missing, and chosen is no conversation that holds it; {fix}")
    if prompt is None or not before:
        return prompt or before
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    if before in (turns, _with_system(dict(values), turns)):
        return prompt
    if str(prompt).strip() not in [turn.content.strip() for turn in before]:
        raise UnfitRow(f"chosen has other turns before its answer than {name}; use the answer alone")
    return before


def _split_last_answer(path: str, value: Any) -> tuple[tuple[Message, ...], str, Mapping[str, Any]]:
    """Split a conversation: turns before the last answer (none for plain text), the answer, its `Message.extra`."""
    if isinstance(value, str):
        return (), _text(path, value), {}
    turns = _messages(path, [value] if isinstance(value, dict) else value, "text or a list of messages")
    last_path, last = f"{path}[{len(turns) - 1}]", turns[-1]
    if last.role != "assistant":
        raise UnfitRow(f"{last_path}.role is {short_repr(last.role)}; the last turn must be the assistant's")
    refuse_unlearned(last_path, value if isinstance(value, dict) else value[-1])
    return turns[:-1], _text(f"{last_path}.content", last.content, last.extra), last.extra


def _before_last_answer(path: str, value: Any) -> tuple[tuple[Message, ...], str | None]:
    """The turns before the last assistant turn, and its text; all turns and None where there is no such turn."""
    turns = _messages(path, value)
    last = max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=len(turns))
    if not any(turn.content.strip() for turn in turns[:last]):
        raise UnfitRow(f"nothing stands before {path}[{last}]; add a turn with content")
    return turns[:last], turns[last].content if last < len(turns) else None


def _read_answer(name: str, value: Any) -> tuple[Any, Mapping[str, Any]]:
    """An answer and its `Message.extra`; a `completion` may be a list of one assistant turn."""
    if name != "completion" or not isinstance(value, list):
        return value, {}
    before, answer, extra = _split_last_answer(name, value)
    if before:
        raise UnfitRow(f"{name} has {len(value)} turns; expected the assistant's alone")
    return answer, extra


# ---- Alpaca and ShareGPT


def _prompt_of(values: ReadKeys, name: str, prompt_key: str | None) -> Text:
    """The prompt in column `name`, completed by the columns that belong to it."""
    if name in _CONVERSATIONS and not prompt_key:
        turns = _messages(name, values[name])
        if turns[-1].role == "assistant":
            raise UnfitRow(f"{name}[{len(turns) - 1}] is the assistant's turn; the last must be the user's")
        return turns
    is_task = name == "instruction" and not prompt_key  # an input always completes it
    value = required(values, name, prompt_key=prompt_key)
    prompt: Text = expect(name, value, str, "text") if is_task else _prompt(name, value)
    if not isinstance(prompt, str) or (values.keys().isdisjoint(("input", "context", "history")) and prompt.strip()):
        return prompt
    return _after_history(values, _with_passages(values, name, prompt, is_task))


def _with_passages(values: ReadKeys, name: str, prompt: str, is_task: bool) -> str:
    """The prompt and below it the passages that complete it; a question may hold them already."""
    passages = [expect(key, values.get(key) or "", str, "text") for key in ("input", "context") if key != name]
    missing = [part for part in passages if part.strip() and (is_task or part not in prompt)]
    text = "\n".join([prompt] * bool(prompt.strip()) + missing)
    if not text:
        raise UnfitRow(f"{name} is empty")
    return text


def _after_history(values: ReadKeys, text: str) -> Text:
    """The prompt after the turns of the `history` column, which holds pairs of texts or messages."""
    expected = "a list of pairs of texts, or of messages"
    turns = list[Message]()
    for index, entry in enumerate(json_value("history", values.get("history"), list, expected) or ()):
        path = f"history[{index}]"
        if isinstance(entry, dict):
            turns.append(_message(path, entry))
        elif isinstance(entry, list) and len(entry) == 2:
            pair = zip(("user", "assistant"), entry, strict=True)
            turns += [Message(role, _text(f"{path}[{side}]", part)) for side, (role, part) in enumerate(pair)]
        else:
            raise UnfitRow(f"{path} is {type_name(entry)}; history must be {expected}")
    return (*turns, Message("user", text)) if turns else text


def _reasoning(values: ReadKeys, response: str) -> dict[str, str]:
    """The reasoning before a text answer, where a column has it and the answer does not include it."""
    for key, value in values.items():
        if key not in values.read and meaning_of(key).kind == "reasoning":
            thought = value[0] if isinstance(value, list) and len(value) == 1 else value
            if not isinstance(thought, str) or is_off(thought, "learned") is not None or _THOUGHT_END in response:
                continue
            values.read.add(key)
            thought = _THINK_TAGS.sub("", thought)
            return {} if thought.strip() in response else {"reasoning_content": thought}
    return {}


def _with_system(values: Values, prompt: Text) -> Text:
    """The prompt with the row's system text as first turn, where that text has a column of its own."""
    key = _first(values, _SYSTEM)
    system = expect(key, values[key], str, "text") if key else ""
    if not system.strip():
        return prompt
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    if turns[0].role != "system":
        return (Message("system", system), *turns)
    if turns[0].content != system:
        raise UnfitRow(f"{key} and the first turn, a system turn, say different things; use one of them")
    return turns


def _row(where: str, values: ReadKeys, prompt: Text, response: str | None, default: str | None) -> Row:
    """The row with the fields that all kinds share; `default` is its ground truth if it names none."""
    rule, prefix = _typed("reward_model", values, dict), "reward_model."
    truth = (rule or {}).get("ground_truth")
    if truth is None:
        truth, prefix = values.get("ground_truth"), prefix if rule else ""
    return Row(
        where=where,
        prompt=prompt,
        response=response,
        ground_truth=default or None if truth is None and rule is None else truth_of(f"{prefix}ground_truth", truth),
        data_source=_typed("data_source", values, str) or NO_SOURCE,
        ability=_typed("ability", values, str) or "",
        extra_info=_typed("extra_info", values, dict) or {},
        style=_typed("style", ReadKeys(rule or {}), str) or "",
        typed_truth=None if isinstance(truth, str) else truth,
    )


# ---- keys


def _first(values: Values, names: tuple[str, ...]) -> str | None:
    for name in names:  # called twice per row, where a generator would cost more than the lookups
        if values.get(name) is not None:
            return name
    return None


def _with_template_args(row: Row, values: ReadKeys) -> Row:
    """The row with its system turn, tools and chat template arguments. Raises `UnfitRow`."""
    if values.keys().isdisjoint((*_SYSTEM, *_TEMPLATE_ARGS)):
        return row
    others = ReadKeys({key: value for key, value in values.items() if key not in values.read})
    args = dict(row.template_args)
    if tools := objects_of("tools", others.get("tools")):
        args["tools"] = tools
    kwargs = json_value("chat_template_kwargs", others.get("chat_template_kwargs"), dict, "an object") or {}
    try:
        args |= template_args_of(kwargs)
    except ValueError as error:
        raise UnfitRow(f"chat_template_kwargs: {error}") from error
    prompt = _with_system(others, row.prompt)
    values.read |= others.read
    return replace(row, prompt=prompt, template_args=args)


def template_fields(row: Row) -> str | None:
    """The JSON of a row's `TEMPLATE_FIELDS` column; None where the template reads only roles and contents."""
    turns = () if isinstance(row.prompt, str) else row.prompt
    fields = {
        "turns": {str(index): dict(turn.extra) for index, turn in enumerate(turns) if turn.extra},
        "args": dict(row.template_args), "response": dict(row.response_extra), "rejected": dict(row.rejected_extra),
    }  # fmt: skip
    return json.dumps(fields, ensure_ascii=False) if any(fields.values()) else None


def _with_template_fields(values: Values) -> Values:
    """Undo `template_fields`: the row's values with that JSON back in turns and arguments."""
    fields = json_value(TEMPLATE_FIELDS, values[TEMPLATE_FIELDS], dict, "an object")
    if not fields:
        return values
    name = "messages" if "messages" in values else "prompt"
    turns = [turn | fields["turns"].get(str(index), {}) for index, turn in enumerate(values[name])]
    sides = {
        side: [{"role": "assistant", "content": values[side], **fields[part]}]
        for side, part in (("chosen", "response"), ("rejected", "rejected"))
        if fields[part]
    }
    others = {key: value for key, value in values.items() if key != TEMPLATE_FIELDS}
    return {**others, name: turns, "chat_template_kwargs": fields["args"], **sides}


def required(values: Values, name: str, **settings: str | None) -> Any:
    """The value of column `name`. `settings` are those that could name it. Raises `UnfitRow` if missing or null."""
    if name in values:
        if values[name] is None:
            raise UnfitRow(f"{name} is null; expected a value")
        return values[name]
    keys, advice = sorted(values), _suggest_keys(values, settings)
    listed = ", ".join(key if key.isidentifier() and len(key) <= 40 else short_repr(key, 40) for key in keys[:8])
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    if not advice and (similar := get_close_matches(name, keys, n=1)):
        setting = next((f"data.{field}=" for field, key in settings.items() if key == name), "")
        advice = suggest(name, similar, before=setting) if setting else suggest(similar[0], [name])
    raise UnfitRow(f"{name} is missing; it has {listed or 'no keys'}{more}" + (f"; {advice}" if advice else ""))


def _suggest_keys(values: Values, settings: Mapping[str, str | None]) -> str:
    """Advice for a row that lacks a key which `settings` could name, from the keys that it has; may be empty."""
    missing = [*settings]
    if missing == ["prompt_key"] and not _first(values, ANSWERS["question"]):
        missing.append("response_key")
    if keys := propose_keys(values, missing, READ_KEYS):
        return "use " + " ".join(f"data.{setting}={_quote(keys[setting])}" for setting in sorted(keys))
    for key, value in values.items():
        kind, use = meaning_of(key)
        if key in READ_KEYS:
            continue
        if kind in ("instead", "verdict", "refused"):
            return f"{key}: {use}"
        rows = isinstance(value, list) and value and isinstance(value[0], dict) and len(values) < 4
        if rows and value[0].keys().isdisjoint(("role", "from")):
            return f"{key} holds the rows: write one on each line, jq -c '.{key}[]' FILE > rows.jsonl"
    return ""


def _quote(key: str) -> str:
    """The key as a setting's value, as a shell takes it."""
    return key if key.isidentifier() else shlex.quote(quoted(key))


# ---- values


def _text(path: str, value: Any, extra: Mapping[str, Any] | None = None) -> str:
    text: str = expect(path, value, str, "text")
    if text.lstrip()[:1] in ("[", "{"):
        _refuse_written_turns(path, text)
    if not text.strip() and not (extra and extra.get("tool_calls")):
        raise UnfitRow(f"{path} is empty")
    return text


def _refuse_written_turns(path: str, text: str) -> None:
    """Raise `UnfitRow` for a conversation serialized as text, which would be trained on literally."""
    if _WRITTEN_TURNS.fullmatch(text):
        raise UnfitRow(f"{path} is a conversation written as text; use a list (json.loads), in JSONL or parquet")


def _prompt(path: str, value: Any) -> Text:
    if isinstance(value, str):
        return _text(path, value)
    turns = _messages(path, value, "text or a list of messages")
    if not any(turn.content.strip() for turn in turns):
        raise UnfitRow(f"{path} is empty: no message has content")
    return turns


def _messages(path: str, value: Any, expected: str = "a list of messages") -> tuple[Message, ...]:
    if isinstance(value, str):
        _refuse_written_turns(path, value)
    if not expect(path, value, list, expected):
        raise UnfitRow(f"{path} is empty; expected a list of messages")
    return tuple(_message(f"{path}[{index}]", turn) for index, turn in enumerate(value))


def _message(path: str, value: Any) -> Message:
    expect(path, value, dict, "an object with role and content")
    extra = _extra(path, value) if len(value) > 2 or "tool_calls" in value else {}
    role_key, text_key, roles = "role", "content", _ROLES
    if value.get("role") is None and value.get("from") is not None:
        role_key, text_key, roles = "from", "value", SPEAKERS
        if value.get("content") is not None:
            raise UnfitRow(f"{path} has from and content; use from and value, or role and content")
    elif value.get("role") is not None and extra.get("tool_calls") and value.get("content") is None:
        value = {**value, "content": ""}  # OpenAI writes a turn that only has tool calls so
        extra["content"] = None
    for key in (role_key, text_key):
        if key not in value:
            raise UnfitRow(f"{path}.{key} is missing")
    speaker = value[role_key]
    if not isinstance(speaker, str) or speaker not in roles:
        raise UnfitRow(f"{path}.{role_key} is {short_repr(speaker)}; it may be {', '.join(roles)}")
    return Message(roles[speaker], _content(f"{path}.{text_key}", value[text_key]), extra)


def _extra(path: str, turn: Mapping[str, Any]) -> dict[str, Any]:
    """The turn's further fields for the chat template, as in `Message.extra`."""
    is_answer = SPEAKERS.get(str(turn.get("role") or turn.get("from"))) == "assistant"
    others = ((key, value) for key, value in turn.items() if key not in _READ_TURN_KEYS)
    extra = {key: value for key, value in others if is_of_template(path, key, value, is_answer)}
    if calls := objects_of(f"{path}.tool_calls", extra.pop("tool_calls", None)):
        extra["tool_calls"] = calls
    return extra


def _content(path: str, value: Any) -> str:
    """A turn's text. OpenAI's text parts are concatenated, as chat templates do it."""
    if not (isinstance(value, list) and value):
        return str(expect(path, value, str, "text"))
    for index, part in enumerate(value):
        kind = part.get("type", "text") if isinstance(part, dict) else type_name(part)
        if not (isinstance(part, dict) and isinstance(part.get("text"), str) and kind in _TEXT_PARTS):
            raise UnfitRow(f"{path}[{index}] is of type {short_repr(kind)}; parts must be of type text")
    return "".join(part["text"] for part in value)


def _typed(name: str, values: ReadKeys, kind: type[T]) -> T | None:
    """A value of this type: an object or its JSON, a text or a list of one. Any other, such as the name of a scoring
    model, is left unread."""
    value = values.get(name)
    if kind is dict and isinstance(value, str) and value.lstrip()[:1] == "{":
        value = json_value(name, value, dict, "an object")
    if kind is str and isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, kind):
        return value
    values.read.discard(name)
    return None
