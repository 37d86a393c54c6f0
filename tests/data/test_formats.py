"""Raw rows to rows: what each format gives, and what is said of one that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.data.formats import to_row
from launcher.spec.data import Message, Row

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "1+1?"}
BOT = {"role": "assistant", "content": "2"}
ASKED = Message("user", "1+1?")
SAID = Message("assistant", "2")


def row(**values: Any) -> Row:
    return Row(where="x:1", **values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "1+1?", "response": "2"}, row(prompt="1+1?", response="2")),
        ({"question": "1+1?", "answer": "2"}, row(prompt="1+1?", response="2")),
        ({"prompt": "1+1?", "answer": "2"}, row(prompt="1+1?", response="2")),  # mixed names
        ({"prompt": [USER], "response": "2"}, row(prompt=(ASKED,), response="2")),
        ({"messages": [USER, BOT]}, row(prompt=(ASKED, SAID))),  # its turns are the answers
        ({"messages": [USER, BOT], "prompt": "1+1?"}, row(prompt=(ASKED, SAID))),
        ({"messages": None, "prompt": "1+1?", "response": "2"}, row(prompt="1+1?", response="2")),
        (
            {"prompt": "1+1?", "response": "it is 2", "reward_model": {"ground_truth": 2}, "data_source": "sums"},
            row(prompt="1+1?", response="it is 2", ground_truth="2", data_source="sums"),
        ),
    ],
)
def test_demonstrations(values: dict[str, Any], expected: Row) -> None:
    assert to_row("x:1", values, "answers") == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "1+1?"}, row(prompt="1+1?")),  # a reward may need no truth
        ({"prompt": [SYSTEM, USER]}, row(prompt=(Message("system", "be brief"), ASKED))),
        ({"question": "1+1?", "answer": "2"}, row(prompt="1+1?", ground_truth="2")),
        ({"question": "1+1?", "answer": 2}, row(prompt="1+1?", ground_truth="2")),
        (
            {"question": "1+1?", "answer": "so 2", "reward_model": {"ground_truth": "2"}},
            row(prompt="1+1?", ground_truth="2"),
        ),
        ({"question": "1+1?", "answer": "so 2", "reward_model": {"style": "model"}}, row(prompt="1+1?")),
        ({"question": "1+1?", "answer": "2", "reward_model": None}, row(prompt="1+1?", ground_truth="2")),
        ({"prompt": "1+1?", "ground_truth": 2.5}, row(prompt="1+1?", ground_truth="2.5")),
        ({"messages": [USER, BOT]}, row(prompt=(ASKED,), ground_truth="2")),
        ({"messages": [USER, BOT, USER]}, row(prompt=(ASKED,), ground_truth="2")),  # up to the last assistant turn
        ({"messages": [USER, BOT], "reward_model": {"ground_truth": "3"}}, row(prompt=(ASKED,), ground_truth="3")),
        ({"messages": [USER]}, row(prompt=(ASKED,))),
        (
            {"prompt": "p", "data_source": "sums", "ability": "math", "extra_info": {"index": 3}},
            row(prompt="p", data_source="sums", ability="math", extra_info={"index": 3}),
        ),
        ({"prompt": "p", "data_source": None, "ability": None, "extra_info": None}, row(prompt="p")),
    ],
)
def test_prompts(values: dict[str, Any], expected: Row) -> None:
    assert to_row("x:1", values, "prompts") == expected


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"question": "1+1?", "anwser": "2"}, "answer is missing; it has anwser, question; did you mean answer?"),
        ({"foo": 1, "bar": 2}, "prompt is missing; it has bar, foo"),
        ({}, "prompt is missing; it has no keys"),
        ({f"k{n}": n for n in range(9)}, "prompt is missing; it has k0, k1, k2, k3, k4, k5, k6, k7 and 1 more"),
        ({"a\nb": 1}, r"prompt is missing; it has 'a\nb'"),  # one line stays one line
        ({"prompt": "p"}, "response is missing; it has prompt"),
        ({"prompt": "p", "response": None}, "response is null; expected a value"),
        ({"prompt": "p", "response": ""}, "response is empty"),
        ({"prompt": "p", "response": " \n"}, "response is empty"),
        ({"prompt": "p", "response": 2}, "response is int; it must be text"),
        ({"prompt": "", "response": "2"}, "prompt is empty"),
        ({"prompt": 1, "response": "2"}, "prompt is int; it must be text or a list of messages"),
        ({"prompt": [USER | {"content": 1}], "response": "2"}, "prompt[0].content is int; it must be text"),
        ({"prompt": [USER | {"content": ""}], "response": "2"}, "prompt is empty: no message has content"),
        ({"messages": []}, "messages is empty; expected a list of messages"),
        ({"messages": {}}, "messages is object; it must be text or a list of messages"),
        ({"messages": ["hello"]}, "messages[0] is text; it must be an object with role and content"),
        (
            {"messages": [USER, BOT, {"role": "bot", "content": "x"}]},
            "messages[2].role is 'bot'; it may be system, user, assistant, tool",
        ),
        (
            {"messages": [{"role": ["user"], "content": "x"}]},
            "messages[0].role is ['user']; it may be system, user, assistant, tool",
        ),
        ({"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content is missing"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "messages[1].content is null; it must be text"),
        ({"messages": [USER | {"content": [{"type": "text"}]}]}, "messages[0].content is list; it must be text"),
        ({"messages": [USER]}, "no assistant turn in messages; add one with content"),
        (
            {"messages": [USER, BOT | {"content": " "}]},
            "the assistant turns of messages are empty; add one with content",
        ),
        (
            {"messages": [USER, BOT | {"tool_calls": [{}]}]},
            "messages[1].tool_calls are not read yet; put the whole turn in content",
        ),
    ],
)
def test_what_is_no_demonstration(values: dict[str, Any], reason: str) -> None:
    assert to_row("x:1", values, "answers") == reason


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"promt": "p"}, "prompt is missing; it has promt; did you mean prompt?"),
        ({"prompt": {"role": "user"}}, "prompt is object; it must be text or a list of messages"),
        ({"prompt": []}, "prompt is empty; expected a list of messages"),
        ({"messages": [BOT]}, "nothing stands before messages[0]; add a turn with content"),
        (
            {"prompt": "p", "reward_model": {"ground_truth": ["2"]}},
            "reward_model.ground_truth is list; it must be text or a number",
        ),
        (
            {"prompt": "p", "reward_model": {"ground_truth": {}}},
            "reward_model.ground_truth is object; it must be text or a number",
        ),
        (
            {"prompt": "p", "reward_model": {"ground_truth": True}},
            "reward_model.ground_truth is bool; it must be text or a number",
        ),
        ({"prompt": "p", "ground_truth": float("nan")}, "ground_truth is nan; expected a finite number"),
        ({"question": "p", "answer": ["2"]}, "answer is list; it must be text or a number"),
        ({"prompt": "p", "reward_model": "2"}, "reward_model is text; it must be an object"),
        ({"prompt": "p", "extra_info": []}, "extra_info is list; it must be an object"),
        ({"prompt": "p", "data_source": 1}, "data_source is int; it must be text"),
        ({"prompt": "p", "ability": ["math"]}, "ability is list; it must be text"),
    ],
)
def test_what_is_no_prompt(values: dict[str, Any], reason: str) -> None:
    assert to_row("x:1", values, "prompts") == reason


def test_named_keys_are_used_and_must_be_there() -> None:
    values = {"q": "1+1?", "a": "2", "prompt": "not this"}
    asked = {"prompt_key": "q", "response_key": "a"}
    expected = row(prompt="1+1?", response="2")
    assert to_row("x:1", values, "answers", prompt_key="q", response_key="a") == expected
    assert to_row("x:1", values, "prompts", prompt_key="q", response_key="a") == row(prompt="1+1?", ground_truth="2")
    assert to_row("x:1", {"q": "1+1?"}, "prompts", **asked) == "a is missing; it has q"
    assert to_row("x:1", {"a": "2"}, "answers", **asked) == "q is missing; it has a"


def test_a_named_key_may_hold_a_conversation() -> None:
    found = to_row("x:1", {"conversation": [USER, BOT]}, "answers", prompt_key="conversation")
    assert found == row(prompt=(ASKED, SAID))


def test_an_answer_never_leaks_into_the_prompt_of_messages() -> None:
    found = to_row("x:1", {"messages": [USER, BOT], "label": 7}, "prompts", response_key="label")
    assert found == row(prompt=(ASKED,), ground_truth="7")
