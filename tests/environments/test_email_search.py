"""environment=email_search: its tools, what is counted of an episode, and what each turn is rewarded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from launcher.core.rubric import RUBRIC
from launcher.data.email_search import EmailQuestions, mailbox_of
from launcher.data.mailbox import Mail, write_mailbox
from launcher.environments.email_search import EmailSearch, normalised
from launcher.spec.data import Row
from launcher.spec.environment import Final, History, Observation, Spoken, ToolCall

ROW = Row(where="a:1", prompt="When is lunch?", ground_truth="On Monday.", extra_info={"message_ids": ["m1"]})
Call = tuple[str, dict[str, Any]]
SEARCH: Call = ("search_inbox", {"keywords": "lunch anna"})
READ: Call = ("read_email", {"message_id": "m1"})
ANSWER: Call = ("return_final_answer", {"answer": "monday", "sources": ["m1"]})


def play(tmp_path: Path, *calls: Call, row: Row = ROW, **settings: Any) -> tuple[list[Observation], Final]:
    """An episode in which the policy makes these calls, one a turn."""
    mails = [Mail(f"m{at}", who, "", "", "lunch", "on monday") for at, who in enumerate(("bob", "anna", "carl"))]
    source = str(write_mailbox(tmp_path / "box.sqlite", mails))
    session, history = EmailSearch(mailbox=source, **settings).session(), History(row)
    session.reset(row)
    for name, arguments in calls:
        spoken = Spoken("", "", (ToolCall(name, arguments, "c"),))
        history.turns.append((spoken, asyncio.run(session.step(history, spoken))))
    final = session.reward(history)
    session.close()
    assert isinstance(final, Final)
    return [seen for _, seen in history.turns], final


def test_a_right_answer(tmp_path: Path) -> None:
    """S3-03: found, read, answered."""
    turns, final = play(tmp_path, SEARCH, READ, ANSWER)
    assert [turn.ended for turn in turns] == [None, None, "finished"]
    assert [turn.reward for turn in turns] == [0.25, 0.25, 0.0], (
        "the episode's reward is the last turn's, and is not added"
    )
    assert turns[0].messages[0].content == "m1 anna: lunch" and "on monday" in turns[1].messages[0].content
    assert final.reward == 1.0
    assert final.facts == {
        "answer_correct": 1, "attempted_answer": 1, "returned_i_dont_know": 0, RUBRIC: 1, "ever_read_right_email": 1,
        "num_searches": 1, "num_repeated_searches": 0, "num_turns": 3, "sources_correct": 1, "num_sources": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "reward", "facts"),
    [
        ([], 0.0, {"attempted_answer": 0, "num_turns": 0}),
        ([("return_final_answer", {"answer": "tuesday", "sources": []})], -0.5, {"attempted_answer": 1, RUBRIC: 0}),
        ([("return_final_answer", {"answer": "I don\u2019t know.", "sources": []})], 0.0, {"returned_i_dont_know": 1}),
        ([SEARCH, SEARCH, ("search_inbox", {"keywords": "Anna lunch"})], 0.0,
         {"num_searches": 3, "num_repeated_searches": 2}),
        ([SEARCH, ("read_email", {"message_id": "m9"})], 0.0, {RUBRIC: 1, "ever_read_right_email": 0}),
    ],
)  # fmt: skip
def test_other_ends(tmp_path: Path, calls: list[Call], reward: float, facts: dict[str, float]) -> None:
    """S3-18: "I don't know" gives up; a wrong answer ends the episode; a bad call is an error that the policy reads."""
    turns, final = play(tmp_path, *calls)
    assert final.reward == reward and facts.items() <= final.facts.items()
    assert all(turn.reward in (0.0, 0.25, -0.1) for turn in turns)
    ended = {None, "finished", "gave-up"}
    assert {turn.ended for turn in turns} <= ended


def test_errors_and_repetitions_are_seen_in_the_turns(tmp_path: Path) -> None:
    calls: list[Call] = [
        SEARCH,
        SEARCH,
        ("read_email", {"message_id": "m9"}),
        ("search_inbox", {"words": "x"}),
        READ,
        READ,
    ]
    turns, _ = play(tmp_path, *calls)
    assert [turn.reward for turn in turns] == [0.25, -0.1, 0.0, 0.0, 0.25, 0.0]
    assert [bool(turn.uses[0].error) for turn in turns] == [False, False, True, True, False, False]
    states = [turn.state for turn in turns]
    assert states[0] == states[1] != states[4] == states[5], "equal where the same is listed and read"


def test_answers_are_compared_by_their_words() -> None:
    assert normalised("On Monday.") == normalised("monday") != normalised("tuesday")
    assert normalised("It is at 9:30, in Rome") == "9:30 rome" and normalised("1,000") != normalised("1000")


def test_rows_name_their_mailbox_and_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path))
    mailbox_of.cache_clear()
    row = next(iter(EmailQuestions(n_mails=30, n_prompts=30, n_val=0).read("train", "prompts")))
    assert isinstance(row, Row)
    environment = EmailSearch(system_prompt="Search.")
    prompt = environment.prompt(row)
    assert [turn.role for turn in prompt.prompt] == ["system", "user"]  # type: ignore[union-attr]
    tools = [tool["function"]["name"] for tool in prompt.template_args["tools"]]
    assert sorted(tools) == ["read_email", "return_final_answer", "search_inbox"]
    listed = []
    for _ in range(2):
        session = environment.session()
        session.reset(row)
        spoken = Spoken("", "", (ToolCall("search_inbox", {"keywords": str(row.prompt).split()[-1]}, "c"),))
        listed.append(asyncio.run(session.step(History(row), spoken)).messages)
        session.close()
    assert listed[0] == listed[1] and listed[0][0].content


def test_a_mailbox_that_is_nowhere_is_a_problem() -> None:
    (problem,) = EmailSearch(mailbox="none/of/these.jsonl").problems()
    assert problem.where == "environment.mailbox" and "no file and no dataset" in problem.got
