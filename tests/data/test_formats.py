"""Raw rows to rows: what each format gives, and what is said of one that does not fit."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from launcher.data.formats import to_row
from launcher.data.known_datasets import to_standard_row
from launcher.data.rows import UnfitRow
from launcher.spec.data import Message, Row

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "1+1?"}
BOT = {"role": "assistant", "content": "2"}
WRONG = {"role": "assistant", "content": "3"}
HUMAN, GPT = {"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}
BRIEF, ASKED, SAID = Message("system", "be brief"), Message("user", "1+1?"), Message("assistant", "2")
ONE = (BRIEF, ASKED)
PARTS = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?", "image": None}]  # as OpenAI's API has them
ANSWERED = {"prompt": "1+1?", "response": "2"}
PAIR = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
CHAT = {"messages": [USER, BOT]}
HISTORY, EARLIER = [["a", "b"]], (Message("user", "a"), Message("assistant", "b"), ASKED)


def row(**values: Any) -> Row:
    return Row(where="x:1", **values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "1+1?"}, row(prompt="1+1?")),  # a reward may need no truth
        ({"prompt": [SYSTEM, USER]}, row(prompt=ONE)),
        ({"question": "1+1?", "answer": 2}, row(prompt="1+1?", ground_truth="2")),
        ({"question": "1+1?", "answer": "so 2", "reward_model": {"ground_truth": "2"}},
         row(prompt="1+1?", ground_truth="2")),
        ({"question": "1+1?", "answer": "so 2", "reward_model": {"style": "model"}}, row(prompt="1+1?", style="model")),
        ({"question": "1+1?", "answer": "2", "reward_model": None}, row(prompt="1+1?", ground_truth="2")),
        ({"prompt": "1+1?", "ground_truth": 2.5}, row(prompt="1+1?", ground_truth="2.5", typed_truth=2.5)),
        *(({"prompt": "1+1?", "reward_model": {"ground_truth": truth}},
           row(prompt="1+1?", ground_truth=text, typed_truth=truth))
          for truth, text in ((True, "true"), (["2", "zwei"], '["2", "zwei"]'), ({"target": 2}, '{"target": 2}'))),
        # up to the last assistant turn
        ({"messages": [USER, WRONG, USER, BOT, USER]},
         row(prompt=(ASKED, Message("assistant", "3"), ASKED), ground_truth="2")),
        ({**CHAT, "reward_model": {"ground_truth": "3"}}, row(prompt=(ASKED,), ground_truth="3")),
        ({"messages": [USER]}, row(prompt=(ASKED,))),
        ({"prompt": "p", "data_source": "sums", "ability": "math", "extra_info": {"index": 3}},
         row(prompt="p", data_source="sums", ability="math", extra_info={"index": 3})),
        ({"prompt": "p", "data_source": None, "ability": None, "extra_info": None}, row(prompt="p")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["prompts", "mixed"])
def test_prompts(values: dict[str, Any], expected: Row, kind: Any) -> None:
    assert to_row("x:1", values, kind) == expected


@pytest.mark.parametrize(
    ("values", "prompt"),
    [
        (PAIR, "1+1?"),
        ({**PAIR, "prompt": [SYSTEM, USER]}, ONE),
        ({"chosen": [USER, BOT], "rejected": [USER, WRONG]}, (ASKED,)),  # the prompt is within
        ({"prompt": [USER], "chosen": [BOT], "rejected": [WRONG]}, (ASKED,)),  # TRL's explicit prompt
        ({"prompt": "1+1?", "chosen": [USER, BOT], "rejected": [USER, WRONG]}, "1+1?"),  # said twice
        ({"question": "1+1?", "chosen": "2", "rejected": [WRONG]}, "1+1?"),
        ({"instruction": "1+1?", "chosen": GPT, "rejected": GPT | {"value": "3"}}, "1+1?"),
        ({"conversations": [HUMAN], "system": "be brief", "chosen": "2", "rejected": "3"}, ONE),
        ({**PAIR, "system": "be brief"}, ONE),
        ({**PAIR, "history": HISTORY}, EARLIER),
        ({"chosen": [USER, BOT], "rejected": [USER, WRONG], "system": "be brief"}, ONE),
        ({"prompt": "1+1?", "chosen": [SYSTEM, USER, BOT], "rejected": [SYSTEM, USER, WRONG], "system": "be brief"},
         ONE),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pairs", "mixed"])
def test_pairs(values: dict[str, Any], prompt: Any, kind: Any) -> None:
    assert to_row("x:1", values, kind) == row(prompt=prompt, response="2", rejected="3")


REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "answers": [
        ({"question": "1+1?", "anwser": "2"}, "answer is missing; it has anwser, question; did you mean answer?"),
        ({}, "prompt is missing; it has no keys"),
        ({"data": [{"prompt": "q"}]}, "prompt is missing; it has data; data holds the rows: write one on each line,"
                                      " jq -c '.data[]' FILE > rows.jsonl"),
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
        ({"messages": [USER, BOT | {"function_call": {"name": "add"}}]},
         "messages[1].function_call cannot be read yet; use tool_calls"),
        ({"messages": [SYSTEM, USER, BOT], "system": "be long"},
         "system and the first turn, a system turn, say different things; use one of them"),
        ({"instruction": "q"}, "output is missing; it has instruction"),
        ({"instruction": " ", "output": "2"}, "instruction is empty"),
        ({"instruction": 1, "output": "2"}, "instruction is int; it must be text"),
        ({"instruction": "q", "input": [1], "output": "2"}, "input is list; it must be text"),
        ({"instruction": "q", "system": ["s"], "output": "2"}, "system is list; it must be text"),
        ({"instruction": "q", "history": ["a", "b"], "output": "2"},
         "history[0] is text; history must be a list of pairs of texts, or of messages"),
        ({"conversations": [HUMAN | {"value": ""}, GPT]},
         "conversations[0].content is empty; write it, or leave the turn out"),
        ({"conversations": [HUMAN, GPT | {"value": 2}]}, "conversations[1].value is int; it must be text"),
        ({"conversations": [HUMAN, {"from": "gpt"}]}, "conversations[1].value is missing"),
        ({"conversations": [HUMAN | {"content": "1+1?"}, GPT]},
         "conversations[0] has from and content; use from and value, or role and content"),
        ({"conversations": [HUMAN, GPT | {"from": "bot"}]}, "conversations[1].from is 'bot'; it may be human, user, "
         "gpt, assistant, model, chatgpt, bing, bard, system, tool, observation, function_response"),
        ({"prompt": "p", "completion": [USER, BOT]}, "completion has 2 turns; expected the assistant's alone"),
    ],
    "prompts": [
        ({"promt": "p"}, "prompt is missing; it has promt; did you mean prompt?"),
        ({"prompt": []}, "prompt is empty; expected a list of messages"),
        ({"messages": [BOT]}, "nothing stands before messages[0]; add a turn with content"),
        ({"prompt": "p", "reward_model": {"ground_truth": [b"2"]}},
         "reward_model.ground_truth is list, or holds one; use what JSON has"),
        ({"prompt": "p", "ground_truth": float("nan")}, "ground_truth is nan; expected finite numbers"),
    ],
    "pairs": [
        ({"prompt": "p", "rejected": "3"}, "chosen is missing; it has prompt, rejected"),
        ({"prompt": "p", "chosen": "2"}, "rejected is missing; it has chosen, prompt"),
        ({"prompt": "p", "chosen": 2, "rejected": "3"}, "chosen is int; it must be text or a list of messages"),
        ({"chosen": [BOT], "rejected": [WRONG]},
         "prompt is missing, and chosen is no conversation that holds it; add a prompt"),
        ({"prompt": "p", "chosen": "2", "rejected": "2"},
         "chosen and rejected are equal, which teaches nothing; use two different answers"),
        ({"prompt": "1+1?", "chosen": "2", "rejected": [USER, WRONG]},
         "chosen and rejected answer different conversations; expected equal turns before the last"),
        ({"prompt": "2+2?", "chosen": [USER, BOT], "rejected": [USER, WRONG]},
         "chosen has other turns before its answer than prompt; use the answer alone"),
        ({"chosen": [USER], "rejected": [USER, WRONG]},
         "chosen[0].role is 'user'; the last turn must be the assistant's"),
        ({"chosen": [USER, BOT], "rejected": [USER, WRONG | {"content": ""}]}, "rejected[1].content is empty"),
        ({"conversations": [HUMAN, GPT], "chosen": "2", "rejected": "3"},
         "conversations[1] is the assistant's turn; the last must be the user's"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "reason"), [(kind, *each) for kind in REFUSED for each in REFUSED[kind]])
def test_what_is_no_row(kind: Any, values: dict[str, Any], reason: str) -> None:
    assert to_row("x:1", values, kind) == reason
    assert kind == "answers" or to_row("x:1", values, "mixed") == reason


def test_named_keys_are_used_and_must_be_there() -> None:
    values = {"q": "1+1?", "a": "2", "prompt": "not this"}
    asked = {"prompt_key": "q", "response_key": "a"}
    assert to_row("x:1", values, "answers", **asked) == row(prompt="1+1?", response="2")
    assert to_row("x:1", values, "prompts", **asked) == row(prompt="1+1?", ground_truth="2")
    assert to_row("x:1", {"q": "1+1?"}, "prompts", **asked) == "a is missing; it has q"
    assert to_row("x:1", {"a": "2"}, "answers", **asked) == "q is missing; it has a"
    pair = {**values, "chosen": "2", "rejected": "3"}
    assert to_row("x:1", pair, "pairs", prompt_key="q") == row(prompt="1+1?", response="2", rejected="3")
    chat = to_row("x:1", {"chat": [USER, BOT], "system": "be brief"}, "answers", prompt_key="chat")
    assert chat == row(prompt=(*ONE, SAID))
    assert to_row("x:1", {**CHAT, "prompt": "x"}, "answers") == row(prompt=(ASKED, SAID))  # messages go before
    no_answer_leaks = to_row("x:1", {**CHAT, "label": 7}, "prompts", response_key="label")
    assert no_answer_leaks == row(prompt=(ASKED,), ground_truth="7")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (ANSWERED, row(prompt="1+1?", response="2")),
        ({"prompt": "1+1?", "answer": "2"}, row(prompt="1+1?", response="2")),  # mixed names
        ({"prompt": [USER], "response": "2"}, row(prompt=(ASKED,), response="2")),
        ({"messages": [USER | {"content": PARTS}, BOT]}, row(prompt=(ASKED, SAID))),
        ({"messages": None, **ANSWERED}, row(prompt="1+1?", response="2")),
        ({**CHAT, "history": HISTORY}, row(prompt=(ASKED, SAID))),  # messages are the whole conversation
        ({"prompt": "1+1?", "response": "it is 2", "reward_model": {"ground_truth": 2}, "data_source": "sums"},
         row(prompt="1+1?", response="it is 2", ground_truth="2", typed_truth=2, data_source="sums")),
        *(({**ANSWERED, "history": history}, row(prompt=(*EARLIER, SAID)))  # learned, as in its programs
          for history in (HISTORY, json.dumps(HISTORY), [USER | {"content": "a"}, BOT | {"content": "b"}])),
        ({"instruction": "1+1?", "input": " ", "system": "", "history": [], "output": "2"},
         row(prompt="1+1?", response="2")),
        ({"instruction": "Add.", "input": "1+1", "output": "2"}, row(prompt="Add.\n1+1", response="2")),
        ({"instruction": "1+1?", "output": "2", "system": "be brief"}, row(prompt=ONE, response="2")),
        ({"conversations": [HUMAN, GPT]}, row(prompt=(ASKED, SAID))),
        ({"conversations": [{"from": "system", "value": "be brief"}, HUMAN, GPT]}, row(prompt=(*ONE, SAID))),
        ({"conversations": [HUMAN, GPT], "system_prompt": "be brief"}, row(prompt=(*ONE, SAID))),
        ({"messages": [HUMAN, GPT]}, row(prompt=(ASKED, SAID))),
        ({"messages": [SYSTEM, USER, BOT], "system": "be brief"}, row(prompt=(*ONE, SAID))),  # said twice
        ({**ANSWERED, "system": "be brief"}, row(prompt=ONE, response="2")),
        ({"prompt": "1+1?", "completion": "2"}, row(prompt="1+1?", response="2")),
        ({"prompt": [USER], "completion": [BOT], "system": "be brief"}, row(prompt=ONE, response="2")),
        # where an older form is there too, it counts
        ({**ANSWERED, "instruction": "x", "output": "y", "conversations": [HUMAN]}, row(prompt="1+1?", response="2")),
        # null in a turn counts as missing
        ({"conversations": [USER | {"from": None, "value": None}, GPT | {"role": None}]}, row(prompt=(ASKED, SAID))),
        ({"messages": [USER | {"from": "someone", "tool_calls": None}, BOT | {"from": "bot", "value": "x"}]},
         row(prompt=(ASKED, SAID))),
    ],
)  # fmt: skip
def test_other_shapes_as_demonstrations_and_as_prompts(values: dict[str, Any], expected: Row) -> None:
    assert to_row("x:1", values, "answers") == expected
    found = to_row("x:1", values, "prompts")
    turns = expected.prompt[:-1] if expected.response is None else expected.prompt
    assert isinstance(found, Row)
    assert (found.prompt, found.response, found.ground_truth) == (turns, None, "2")


def test_an_instruction_follows_what_is_asked() -> None:
    values = {"instruction": "Add.", "input": "1+1", "output": "2"}
    found = to_row("x:1", to_standard_row("auto", values, "Be brief.", "sums"), "answers")
    assert found == row(prompt="Add.\n1+1 Be brief.", response="2", data_source="sums")
    assert to_standard_row("auto", {**values, "input": ""}, "Be brief.", None)["instruction"] == "Add. Be brief."
    for given in ({"conversations": [HUMAN, GPT]}, {"messages": [USER], "input": "x"}):
        with pytest.raises(UnfitRow, match="prompt or question is no text that an instruction can follow"):
            to_standard_row("auto", given, "Be brief.", None)


# ---- keys that change what a row means


TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize(("kind", "values"), [("answers", CHAT), ("pairs", PAIR)])
def test_what_the_chat_template_reads_is_carried(kind: Any, values: dict[str, Any]) -> None:
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


def test_what_else_a_turn_has_is_carried_as_it_is() -> None:
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": None}}}]
    called = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "content": "2", "name": "add", "tool_call_id": "1"}
    thought = BOT | {"reasoning_content": "Add.", "weight": 1, "thinking": None}
    found = to_row("x:1", {"messages": [USER, called, result, thought]}, "answers")
    assert isinstance(found, Row)
    assert [turn.extra for turn in found.prompt if not isinstance(turn, str)] == [
        {}, {"content": None, "tool_calls": calls}, {"name": "add", "tool_call_id": "1"}, {"reasoning_content": "Add."},
    ]  # fmt: skip
    completed = to_row("x:1", {"prompt": "1+1?", "completion": [thought]}, "answers")
    assert completed == row(prompt="1+1?", response="2", response_extra={"reasoning_content": "Add."})
    pair = to_row("x:1", {"chosen": [USER, thought], "rejected": [USER, WRONG]}, "pairs")
    assert isinstance(pair, Row)
    assert (pair.response, pair.response_extra, pair.rejected_extra) == ("2", {"reasoning_content": "Add."}, {})


@pytest.mark.parametrize(("text", "content"), [
    (r"\boxed{7}", "7"), (r"\boxed{1} and \boxed{ {a}{b} }.", "{a}{b}"), (r"\fbox{8}", "8"), (r"$\boxed 7 $", "7"),
    (r"\boxed{1} \fbox{2}", "2"), (r"\boxed{", None), (r"\boxed{a{b}", None), (r"\boxed", None), ("7", None),
    (r"\boxed  $", None), (r"\boxed(7)", None), (r"\boxed{a}}", "a"),
])  # fmt: skip
def test_the_truth_is_what_the_last_box_of_a_solution_holds(text: str, content: str | None) -> None:
    with nullcontext() if content else pytest.raises(UnfitRow, match="no closed, non-empty"):
        row = to_standard_row("math", {"problem": "1+1?", "solution": text}, None, None)
        assert row["reward_model"]["ground_truth"] == content
