"""Raw rows to rows: what each format gives, and what is said of one that does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.data.formats import to_row
from launcher.data.known_datasets import to_standard_row
from launcher.data.rows import UnfitRow
from launcher.spec.data import Message, Row

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "1+1?"}
BOT = {"role": "assistant", "content": "2"}
ASKED = Message("user", "1+1?")
SAID = Message("assistant", "2")
PARTS = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?", "image": None}]  # as OpenAI's API has them


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
        ({"messages": [USER | {"content": PARTS}, BOT]}, row(prompt=(ASKED, SAID))),
        ({"messages": [USER, BOT], "prompt": "1+1?"}, row(prompt=(ASKED, SAID))),
        ({"messages": None, "prompt": "1+1?", "response": "2"}, row(prompt="1+1?", response="2")),
        ({"prompt": "1+1?", "response": "it is 2", "reward_model": {"ground_truth": 2}, "data_source": "sums"},
         row(prompt="1+1?", response="it is 2", ground_truth="2", data_source="sums")),
    ],
)  # fmt: skip
def test_demonstrations(values: dict[str, Any], expected: Row) -> None:
    assert to_row("x:1", values, "answers") == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "1+1?"}, row(prompt="1+1?")),  # a reward may need no truth
        ({"prompt": [SYSTEM, USER]}, row(prompt=(Message("system", "be brief"), ASKED))),
        ({"question": "1+1?", "answer": "2"}, row(prompt="1+1?", ground_truth="2")),
        ({"question": "1+1?", "answer": 2}, row(prompt="1+1?", ground_truth="2")),
        ({"question": "1+1?", "answer": "so 2", "reward_model": {"ground_truth": "2"}},
         row(prompt="1+1?", ground_truth="2")),
        ({"question": "1+1?", "answer": "so 2", "reward_model": {"style": "model"}}, row(prompt="1+1?", style="model")),
        ({"question": "1+1?", "answer": "2", "reward_model": None}, row(prompt="1+1?", ground_truth="2")),
        ({"prompt": "1+1?", "ground_truth": 2.5}, row(prompt="1+1?", ground_truth="2.5")),
        ({"messages": [USER, BOT]}, row(prompt=(ASKED,), ground_truth="2")),
        ({"messages": [USER, BOT, USER]}, row(prompt=(ASKED,), ground_truth="2")),  # up to the last assistant turn
        ({"messages": [USER, BOT], "reward_model": {"ground_truth": "3"}}, row(prompt=(ASKED,), ground_truth="3")),
        ({"messages": [USER]}, row(prompt=(ASKED,))),
        ({"prompt": "p", "data_source": "sums", "ability": "math", "extra_info": {"index": 3}},
         row(prompt="p", data_source="sums", ability="math", extra_info={"index": 3})),
        ({"prompt": "p", "data_source": None, "ability": None, "extra_info": None}, row(prompt="p")),
    ],
)  # fmt: skip
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
        ({"prompt": "p", "response": 2}, "response is int; it must be text"),
        ({"prompt": "", "response": "2"}, "prompt is empty"),
        ({"prompt": 1, "response": "2"}, "prompt is int; it must be text or a list of messages"),
        ({"prompt": [USER | {"content": 1}], "response": "2"}, "prompt[0].content is int; it must be text"),
        ({"prompt": [USER | {"content": ""}], "response": "2"}, "prompt is empty: no message has content"),
        ({"messages": []}, "messages is empty; expected a list of messages"),
        ({"messages": "[]", "response": "2"}, "messages is text; it must be a list of messages"),
        ({"messages": ["hello"]}, "messages[0] is text; it must be an object with role and content"),
        ({"messages": [USER, BOT, {"role": "bot", "content": "x"}]},
         "messages[2].role is 'bot'; it may be system, user, assistant, tool"),
        ({"messages": [{"role": ["user"], "content": "x"}]},
         "messages[0].role is ['user']; it may be system, user, assistant, tool"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content is missing"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "messages[1].content is null; it must be text"),
        ({"messages": [USER | {"content": [{"type": "text"}]}]},
         "messages[0].content[0] is of type 'text'; parts must be of type text"),
        ({"messages": [USER]}, "no assistant turn in messages; add one with content"),
        ({"messages": [USER, BOT | {"content": " "}]},
         "the assistant turns of messages are empty; add one with content"),
        ({"messages": [USER, BOT, USER, BOT | {"content": ""}]},
         "messages[3].content is empty; write it, or leave the turn out"),
    ],
)  # fmt: skip
def test_what_is_no_demonstration(values: dict[str, Any], reason: str) -> None:
    assert to_row("x:1", values, "answers") == reason


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"promt": "p"}, "prompt is missing; it has promt; did you mean prompt?"),
        ({"prompt": {"role": "user"}}, "prompt is object; it must be text or a list of messages"),
        ({"prompt": []}, "prompt is empty; expected a list of messages"),
        ({"messages": [BOT]}, "nothing stands before messages[0]; add a turn with content"),
        ({"prompt": "p", "reward_model": {"ground_truth": ["2"]}},
         "reward_model.ground_truth is list; it must be text or a number"),
        ({"prompt": "p", "reward_model": {"ground_truth": True}},
         "reward_model.ground_truth is bool; it must be text or a number"),
        ({"prompt": "p", "ground_truth": float("nan")}, "ground_truth is nan; expected a finite number"),
        ({"prompt": "p", "reward_model": "2"}, "reward_model is text; it must be an object"),
        ({"prompt": "p", "extra_info": []}, "extra_info is list; it must be an object"),
        ({"prompt": "p", "data_source": 1}, "data_source is int; it must be text"),
    ],
)  # fmt: skip
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


# ---- Alpaca, ShareGPT, prompt and completion

HUMAN, GPT = {"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}
BRIEF = Message("system", "be brief")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"instruction": "1+1?", "output": "2"}, row(prompt="1+1?", response="2")),
        ({"instruction": "1+1?", "input": " ", "system": "", "history": [], "output": "2"},
         row(prompt="1+1?", response="2")),
        ({"instruction": "Add.", "input": "1+1", "output": "2"}, row(prompt="Add.\n1+1", response="2")),
        ({"instruction": "1+1?", "output": "2", "system": "be brief"}, row(prompt=(BRIEF, ASKED), response="2")),
        ({"conversations": [HUMAN, GPT]}, row(prompt=(ASKED, SAID))),
        ({"conversations": [USER, BOT]}, row(prompt=(ASKED, SAID))),
        ({"conversations": [{"from": "system", "value": "be brief"}, HUMAN, GPT]}, row(prompt=(BRIEF, ASKED, SAID))),
        ({"conversations": [HUMAN, GPT], "system": "be brief"}, row(prompt=(BRIEF, ASKED, SAID))),
        ({"messages": [HUMAN, GPT]}, row(prompt=(ASKED, SAID))),
        ({"prompt": "1+1?", "completion": "2"}, row(prompt="1+1?", response="2")),
        ({"prompt": [USER], "completion": [BOT]}, row(prompt=(ASKED,), response="2")),
        # where an older form is there too, it counts
        ({"prompt": "1+1?", "response": "2", "instruction": "x", "output": "y", "conversations": [HUMAN]},
         row(prompt="1+1?", response="2")),
    ],
)  # fmt: skip
def test_shapes_of_others_as_demonstrations_and_as_prompts(values: dict[str, Any], expected: Row) -> None:
    assert to_row("x:1", values, "answers") == expected
    found = to_row("x:1", values, "prompts")
    assert isinstance(found, Row)
    turns = expected.prompt[:-1] if expected.response is None else expected.prompt
    assert (found.prompt, found.response, found.ground_truth) == (turns, None, "2")


@pytest.mark.parametrize(
    ("values", "prompt"),
    [
        ({"instruction": "1+1?"}, "1+1?"),
        ({"conversations": [HUMAN], "system": "be brief"}, (BRIEF, ASKED)),
    ],
)
@pytest.mark.parametrize("turn_of", [lambda text: text, lambda text: {"from": "gpt", "value": text},
                                  lambda text: [{"role": "assistant", "content": text}]])  # fmt: skip
def test_shapes_of_others_as_pairs(values: dict[str, Any], prompt: Any, turn_of: Any) -> None:
    found = to_row("x:1", {**values, "chosen": turn_of("2"), "rejected": turn_of("3")}, "pairs")
    assert found == row(prompt=prompt, response="2", rejected="3")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"instruction": "q"}, "output is missing; it has instruction"),
        ({"instruction": "q", "output": " "}, "output is empty"),
        ({"instruction": " ", "output": "2"}, "instruction is empty"),
        ({"instruction": 1, "output": "2"}, "instruction is int; it must be text"),
        ({"instruction": "q", "input": [], "output": "2"}, "input is list; it must be text"),
        ({"instruction": "q", "system": 1, "output": "2"}, "system is int; it must be text"),
        ({"instruction": "q", "history": [["a", "b"]], "output": "2"},
         "history cannot be read yet; use messages, with all turns"),
        ({"conversations": [HUMAN]}, "no assistant turn in conversations; add one with content"),
        ({"conversations": [HUMAN | {"value": ""}, GPT], "system": "s"}, "conversations[0].content is empty"),
        ({"conversations": [HUMAN, GPT | {"value": 2}]}, "conversations[1].value is int; it must be text"),
        ({"conversations": [HUMAN, {"from": "gpt"}]}, "conversations[1].value is missing"),
        ({"conversations": [HUMAN, {"value": "2"}]}, "conversations[1].role is missing"),
        ({"conversations": [HUMAN | {"content": "1+1?"}, GPT]},
         "conversations[0] has from and content; use from and value, or role and content"),
        (
            {"conversations": [HUMAN, GPT | {"from": "bot"}]},
            "conversations[1].from is 'bot'; it may be human, user, gpt, assistant, model, chatgpt, bing, bard, system,"
            " tool, observation, function_response",
        ),
        ({"conversations": [{"role": "human", "content": "x"}, GPT]},
         "conversations[0].role is 'human'; it may be system, user, assistant, tool"),
        ({"conversations": [SYSTEM, HUMAN, GPT], "system": "another"},
         "system and the first turn, a system turn, say different things; use one of them"),
        ({"prompt": "p", "completion": [USER, BOT]}, "completion has 2 turns; expected the assistant's alone"),
        ({"prompt": "p", "completion": []}, "completion is empty; expected a list of messages"),
    ],
)  # fmt: skip
def test_what_is_no_row_of_these_shapes(values: dict[str, Any], reason: str) -> None:
    found = to_row("x:1", values, "answers")
    assert isinstance(found, str) and found.startswith(reason)


def test_a_pair_follows_the_users_turn() -> None:
    values = {"conversations": [HUMAN, GPT], "chosen": "2", "rejected": "3"}
    assert to_row("x:1", values, "pairs") == "conversations[1] is the assistant's turn; the last must be the user's"


def test_a_format_that_is_named_takes_no_other_key_of_a_prompt() -> None:
    values = {"instruction": "1+1?", "output": "2", "prompt": "no", "messages": [USER], "conversations": [HUMAN, GPT]}
    alpaca = to_row("x:1", to_standard_row("alpaca", values, None, None), "answers")
    assert alpaca == row(prompt="1+1?", response="2")
    assert to_row("x:1", to_standard_row("sharegpt", {**values, "messages": None}, None, None), "answers") == row(
        prompt=(ASKED, SAID)
    )
    for format, key in (("alpaca", "instruction"), ("sharegpt", "conversations")):
        with pytest.raises(UnfitRow, match=f"{key} is missing; it has prompt"):
            to_standard_row(format, {"prompt": "p"}, None, None)  # type: ignore[arg-type]


def test_an_instruction_follows_what_is_asked() -> None:
    values = {"instruction": "Add.", "input": "1+1", "output": "2"}
    for format in ("auto", "alpaca"):
        found = to_row("x:1", to_standard_row(format, values, "Be brief.", "sums"), "answers")
        assert found == row(prompt="Add.\n1+1 Be brief.", response="2", data_source="sums")
    assert to_standard_row("auto", {**values, "input": ""}, "Be brief.", None)["instruction"] == "Add. Be brief."
    for given in ({"conversations": [HUMAN, GPT]}, {"messages": [USER], "input": "x"}):
        with pytest.raises(UnfitRow, match="prompt or question is no text that an instruction can follow"):
            to_standard_row("auto", given, "Be brief.", None)


# ---- keys that change what a row means

ONE = (BRIEF, ASKED)


@pytest.mark.parametrize(
    ("values", "answers", "prompts"),
    [
        ({"messages": [USER, BOT]}, row(prompt=(*ONE, SAID)), row(prompt=ONE, ground_truth="2")),
        ({"messages": [SYSTEM, USER, BOT]}, row(prompt=(*ONE, SAID)), row(prompt=ONE, ground_truth="2")),  # said twice
        ({"conversations": [HUMAN, GPT]}, row(prompt=(*ONE, SAID)), row(prompt=ONE, ground_truth="2")),
        ({"prompt": "1+1?", "response": "2"}, row(prompt=ONE, response="2"), row(prompt=ONE, ground_truth="2")),
        ({"question": "1+1?", "answer": "2"}, row(prompt=ONE, response="2"), row(prompt=ONE, ground_truth="2")),
        ({"prompt": [USER], "completion": [BOT]}, row(prompt=ONE, response="2"), row(prompt=ONE, ground_truth="2")),
    ],
)
@pytest.mark.parametrize("key", ["system", "system_prompt"])
def test_a_system_prompt_beside_any_prompt(values: dict[str, Any], answers: Row, prompts: Row, key: str) -> None:
    values = {**values, key: "be brief"}
    assert to_row("x:1", values, "answers") == answers
    assert to_row("x:1", values, "prompts") == prompts
    assert to_row("x:1", {**values, key: " "}, "answers") == to_row("x:1", {**values, key: None}, "answers")
    if "messages" in values:
        assert to_row("x:1", to_standard_row("sharegpt", values, None, None), "answers") == answers
        named = to_row("x:1", {"chat": values["messages"], key: "be brief"}, "answers", prompt_key="chat")
        assert named == answers


def test_a_system_prompt_beside_a_pair() -> None:
    expected = row(prompt=ONE, response="2", rejected="3")
    no = {"role": "assistant", "content": "3"}
    for values in (
        {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
        {"chosen": [USER, BOT], "rejected": [USER, no]},
        {"prompt": "1+1?", "chosen": [USER, BOT], "rejected": [USER, no]},
        {"prompt": "1+1?", "chosen": [SYSTEM, USER, BOT], "rejected": [SYSTEM, USER, no]},
    ):
        assert to_row("x:1", {**values, "system": "be brief"}, "pairs") == expected
    found = to_row("x:1", {"messages": [SYSTEM, USER, BOT], "system": "be long"}, "answers")
    assert found == "system and the first turn, a system turn, say different things; use one of them"


TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize("key", ["functions", "images", "image", "videos", "audios"])
@pytest.mark.parametrize("values", [{"messages": [USER, BOT]}, {"prompt": "1+1?", "chosen": "2", "rejected": "3"}])
def test_what_cannot_be_read_and_matters_refuses_the_row(key: str, values: dict[str, Any]) -> None:
    kind: Any = "answers" if "messages" in values else "pairs"
    for value in (TOOLS, {"a": 1}, '[{"name": "add"}]'):
        assert f"{key} cannot be read yet; use " in str(to_row("x:1", {**values, key: value}, kind))
    for nothing in (None, [], {}, "", "[]", " {} "):
        assert isinstance(to_row("x:1", {**values, key: nothing}, kind), Row)


@pytest.mark.parametrize("values", [{"messages": [USER, BOT]}, {"prompt": "1+1?", "chosen": "2", "rejected": "3"}])
def test_what_the_chat_template_reads_is_carried(values: dict[str, Any]) -> None:
    kind: Any = "answers" if "messages" in values else "pairs"
    for tools in (TOOLS, json.dumps(TOOLS)):
        found = to_row("x:1", {**values, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}, kind)
        assert isinstance(found, Row)
        assert found.template_args == {"tools": TOOLS, "enable_thinking": False}
    for nothing in (None, [], "", "[]"):
        plain = to_row("x:1", {**values, "tools": nothing}, kind)
        assert isinstance(plain, Row) and not plain.template_args
    reserved = "chat_template_kwargs: add_generation_prompt is decided where the template is used; leave it out"
    assert to_row("x:1", {**values, "chat_template_kwargs": {"add_generation_prompt": True}}, kind) == reserved
    for bad, got in (({"a": 1}, "object"), ('{"a": 1}', "object"), ("[1", "text that is no JSON")):
        assert to_row("x:1", {**values, "tools": bad}, kind) == f"tools is {got}; it must be a list of objects"


CALLS = [{"type": "function", "function": {"name": "add", "arguments": {"a": None}}}]


def test_what_else_a_turn_has_is_carried_as_it_is() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": CALLS}
    result = {"role": "tool", "content": "2", "name": "add", "tool_call_id": "1"}
    thought = BOT | {"reasoning_content": "Add.", "weight": 1, "thinking": None}
    found = to_row("x:1", {"messages": [USER, called, result, thought]}, "answers")
    assert isinstance(found, Row)
    assert [turn.extra for turn in found.prompt if not isinstance(turn, str)] == [
        {}, {"content": None, "tool_calls": CALLS}, {"name": "add", "tool_call_id": "1"}, {"reasoning_content": "Add."},
    ]  # fmt: skip
    pair = to_row("x:1", {"chosen": [USER, thought], "rejected": [USER, BOT | {"content": "3"}]}, "pairs")
    assert isinstance(pair, Row)
    assert (pair.response, pair.response_extra, pair.rejected_extra) == ("2", {"reasoning_content": "Add."}, {})


@pytest.mark.parametrize("key", ["label", "kto_tag"])
@pytest.mark.parametrize("values", [{"prompt": [USER], "completion": [BOT]}, {"conversations": [HUMAN, GPT]}])
def test_an_answer_that_is_to_be_avoided_is_not_imitated(key: str, values: dict[str, Any]) -> None:
    reason = f"{key} is false: the answer is one to avoid; use rows where {key} is true"
    for kind in ("answers", "prompts"):
        for false in (False, "False"):
            assert to_row("x:1", {**values, key: false}, kind) == reason  # type: ignore[arg-type]
        for other in (True, "True", None, 0, "negative"):
            assert isinstance(to_row("x:1", {**values, key: other}, kind), Row)  # type: ignore[arg-type]
    for values in ({"prompt": "1+1?"}, {"prompt": "1+1?", "answer": "3", "ground_truth": "2"}):  # no answer, not used
        assert isinstance(to_row("x:1", {**values, key: False}, "prompts"), Row)


@pytest.mark.parametrize(
    ("flag", "got"),
    [
        ({"weight": 0}, "weight is 0"),
        ({"weight": 0.5}, "weight is 0.5"),
        ({"train": False}, "train is False"),
        ({"loss": False}, "loss is False"),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]}, "train_detail cannot be read yet"),
    ],
)
def test_a_turn_that_is_not_to_be_learned_is_not_learned(flag: dict[str, Any], got: str) -> None:
    for name, turns in (("messages", [USER, BOT | flag, USER, BOT]), ("conversations", [HUMAN, GPT | flag])):
        found = to_row("x:1", {name: turns}, "answers")
        assert found == f"{name}[1].{got}; every assistant turn is learned, so leave the turn out"
        assert isinstance(to_row("x:1", {name: turns}, "prompts"), Row)  # none is learned
    found = to_row("x:1", {"prompt": "p", "completion": [BOT | flag]}, "answers")
    assert isinstance(found, str) and found.startswith(f"completion[0].{got}")
    on: dict[str, Any] = {"weight": 1, "train": True, "loss": None, "train_detail": []}
    assert to_row("x:1", {"messages": [USER | flag, BOT | on]}, "answers") == row(prompt=(ASKED, SAID))


def test_a_part_of_a_turn_that_cannot_be_read_is_not_dropped() -> None:
    for name, turns in (("messages", [USER, BOT]), ("conversations", [HUMAN, GPT])):
        found = to_row("x:1", {name: [turns[0], turns[1] | {"function_call": {"name": "add"}}]}, "answers")
        assert found == f"{name}[1].function_call cannot be read yet; use tool_calls"


@pytest.mark.parametrize(
    "turns",
    [
        [USER | {"from": None, "value": None}, BOT | {"from": None, "value": None}],
        [HUMAN | {"role": None, "content": None}, GPT | {"role": None, "content": None}],
        [USER | {"from": "someone"}, BOT | {"from": "bot", "value": "x"}],
        [USER | {"tool_calls": None}, GPT | {"role": None}],
    ],
)
def test_null_in_a_turn_counts_as_missing(turns: list[Any]) -> None:
    for name in ("messages", "conversations"):
        assert to_row("x:1", {name: turns}, "answers") == row(prompt=(ASKED, SAID))


def test_a_missing_key_of_a_format_is_named_within_limits() -> None:
    with pytest.raises(UnfitRow) as refused:
        to_standard_row("alpaca", {"x" * 4_000_000: "p"}, None, None)
    assert len(str(refused.value)) < 200
