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


def answered(text: str) -> Call:
    return "return_final_answer", {"answer": text, "sources": []}


WRONG_ID: Call = ("read_email", {"message_id": "m9"})
RIGHT = {
    "answer_correct": 1, "attempted_answer": 1, "returned_i_dont_know": 0, RUBRIC: 1, "ever_read_right_email": 1,
    "num_searches": 1, "num_repeated_searches": 0, "num_turns": 3, "sources_correct": 1, "num_sources": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "turn_rewards", "ended", "reward", "facts"),
    [
        # S3-03: found, read, answered; the episode's reward is the last turn's, and is not added
        ([SEARCH, READ, ANSWER], [0.25, 0.25, 0.0], "finished", 1.0, RIGHT),
        # S3-18: "I don't know" gives up; a wrong answer ends the episode; a bad call is an error that the policy reads
        ([], [], None, 0.0, {"attempted_answer": 0, "num_turns": 0}),
        ([answered("tuesday")], [0.0], "finished", -0.5, {"attempted_answer": 1, RUBRIC: 0}),
        ([answered("I don\u2019t know.")], [0.0], "gave-up", 0.0, {"returned_i_dont_know": 1}),
        ([SEARCH, SEARCH, ("search_inbox", {"keywords": "Anna lunch"})], [0.25, -0.1, -0.1], None, 0.0,
         {"num_searches": 3, "num_repeated_searches": 2}),
        ([SEARCH, WRONG_ID, ("search_inbox", {"words": "x"})], [0.25, 0.0, 0.0], None, 0.0,
         {RUBRIC: 1, "ever_read_right_email": 0}),
        ([SEARCH, SEARCH, READ, READ], [0.25, -0.1, 0.25, 0.0], None, 0.0, {}),
    ],
)  # fmt: skip
def test_what_an_episode_is_rewarded(
    tmp_path: Path, calls: list[Call], turn_rewards: list[float], ended: str | None, reward: float, facts: Any
) -> None:
    turns, final = play(tmp_path, *calls)
    assert [turn.reward for turn in turns] == turn_rewards
    assert [turn.ended for turn in turns] == [*[None] * (len(turns) - 1), ended][: len(turns)]
    assert final.reward == reward and (final.facts == facts if facts == RIGHT else facts.items() <= final.facts.items())
    wrong_calls = [call == WRONG_ID or "words" in call[1] for call in calls]
    assert [bool(use.error) for turn in turns for use in turn.uses] == wrong_calls


def test_what_the_policy_reads_and_which_states_are_equal(tmp_path: Path) -> None:
    """Equal where the same is listed and read."""
    turns, _ = play(tmp_path, SEARCH, SEARCH, READ, READ)
    assert turns[0].messages[0].content == "m1 anna: lunch" and "on monday" in turns[2].messages[0].content
    assert turns[0].state == turns[1].state != turns[2].state == turns[3].state


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
